package cluster

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// ProcessorTime is the time that a process has used of the processors.
func ProcessorTime(pid int) (time.Duration, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	_, rest, found := strings.Cut(string(stat), ") ") // the program's name may have spaces
	fields := strings.Fields(rest)
	if !found || len(fields) < 13 {
		return 0, fmt.Errorf("/proc/%d/stat: %q", pid, stat)
	}
	const ticks = 100 // a second, on every Linux that Go runs on
	var total int64
	for _, field := range fields[11:13] { // in user mode and in the kernel
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("/proc/%d/stat: %w", pid, err)
		}
		total += n
	}
	return time.Duration(total) * time.Second / ticks, nil
}

// ResidentMemory is a process's resident memory in bytes, and the most that it ever was.
func ResidentMemory(pid int) (now, peak float64, err error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, 0, err
	}
	values := map[string]float64{}
	for line := range strings.SplitSeq(string(status), "\n") {
		fields := strings.Fields(line)
		if len(fields) == 3 && fields[2] == "kB" {
			kilobytes, err := strconv.ParseFloat(fields[1], 64)
			if err != nil {
				return 0, 0, fmt.Errorf("/proc/%d/status: %w", pid, err)
			}
			values[fields[0]] = kilobytes * 1024
		}
	}
	return values["VmRSS:"], values["VmHWM:"], nil
}
