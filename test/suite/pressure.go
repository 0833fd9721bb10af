package suite

import (
	"fmt"
	"os"
	"strings"
	"time"
)

// Unhindered runs do, and returns how long that took without the time in which something on this machine waited for a
// processor, by the kernel's count (/proc/pressure/cpu). A kernel without that count takes nothing off.
func Unhindered(do func()) time.Duration {
	begin, before := time.Now(), waited()
	do()
	took := time.Since(begin)
	return max(0, took-(waited()-before))
}

// waited is for how long since the start of the machine something has waited for a processor.
func waited() time.Duration {
	pressure, _ := os.ReadFile("/proc/pressure/cpu") // not every kernel has it
	var averages [3]float64
	var total int64
	some, _, _ := strings.Cut(string(pressure), "\n")
	if _, err := fmt.Sscanf(some, "some avg10=%f avg60=%f avg300=%f total=%d",
		&averages[0], &averages[1], &averages[2], &total); err != nil {
		return 0
	}
	return time.Duration(total) * time.Microsecond
}
