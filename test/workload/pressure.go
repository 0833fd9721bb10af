package workload

import (
	"fmt"
	"os"
	"strings"
	"time"
)

// Starved is for how long since the start of the machine something on it has waited for a processor, by the kernel's
// count (/proc/pressure/cpu); 0 if the kernel does not count that.
func Starved() time.Duration {
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
