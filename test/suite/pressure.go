package suite

import (
	"time"

	"github.com/application-grid/application-grid/test/workload"
)

// Unhindered runs do, and returns how long that took without the time in which something on this machine waited for a
// processor (see workload.Starved).
func Unhindered(do func()) time.Duration {
	begin, before := time.Now(), workload.Starved()
	do()
	took := time.Since(begin)
	return max(0, took-(workload.Starved()-before))
}
