package cluster

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/application-grid/application-grid/test/netns"
)

// idPrefix begins the name of every namespace and temporary directory of a cluster.
const idPrefix = "appgrid"

// started counts the clusters of this process; it keeps their ids apart.
var started atomic.Int64

// NewID returns the cluster's id, appgrid-PID-STARTTIME-N: the pid and start time (in clock ticks since boot,
// base 36) of the supervisor, so that anyone can tell whether it still lives, also after its pid was given
// to another process.
func NewID() (string, error) {
	pid := os.Getpid()
	start, err := startTime(pid)
	if err != nil {
		return "", fmt.Errorf("reading the own start time: %w", err)
	}
	return fmt.Sprintf("%s-%d-%s-%d", idPrefix, pid, strconv.FormatUint(start, 36), started.Add(1)), nil
}

// Abandoned reports whether name carries the id of a supervisor that does not run any more. It is false for
// every name that is not of this form.
func Abandoned(name string) bool {
	parts := strings.Split(name, "-")
	if len(parts) < 4 || parts[0] != idPrefix {
		return false
	}
	pid, err := strconv.Atoi(parts[1])
	if err != nil {
		return false
	}
	then, err := strconv.ParseUint(parts[2], 36, 64)
	if err != nil {
		return false
	}
	now, err := startTime(pid)
	if err != nil {
		return errors.Is(err, os.ErrNotExist)
	}
	return now != then
}

// startTime is when a process was started, in clock ticks since boot. A process that has ended but was not
// waited for does not exist any more, for this purpose.
func startTime(pid int) (uint64, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	// The second field is the program's name in parentheses and may contain anything; count from its end.
	const startTimeAfterName = 19
	fields := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
	if len(fields) <= startTimeAfterName {
		return 0, fmt.Errorf("/proc/%d/stat has %d fields after the name", pid, len(fields))
	}
	if state := fields[0]; state == "Z" || state == "X" {
		return 0, fmt.Errorf("process %d has ended: %w", pid, os.ErrNotExist)
	}
	return strconv.ParseUint(fields[startTimeAfterName], 10, 64)
}

// appendUnlessForbidden drops errors about what belongs to another user, who will remove it in turn.
func appendUnlessForbidden(failures []error, err error) []error {
	if errors.Is(err, os.ErrPermission) {
		return failures
	}
	return append(failures, err)
}

// RemoveLeftovers removes the namespaces and temporary directories of clusters whose supervisor is gone (it was
// killed), and returns their names. It leaves alone what belongs to another user. Their processes have died with the
// supervisor.
func RemoveLeftovers() ([]string, error) {
	var removed []string
	var failures []error
	names, err := netns.List(idPrefix + "-")
	if err != nil {
		failures = append(failures, err)
	}
	for _, name := range names {
		if !Abandoned(name) {
			continue
		}
		if err := netns.Remove(name); err != nil {
			failures = appendUnlessForbidden(failures, err)
			continue
		}
		removed = append(removed, name)
	}
	dirs, err := filepath.Glob(filepath.Join(os.TempDir(), idPrefix+"-*"))
	if err != nil {
		failures = append(failures, err)
	}
	for _, dir := range dirs {
		if !Abandoned(filepath.Base(dir)) {
			continue
		}
		if err := removeAll(dir); err != nil {
			failures = appendUnlessForbidden(failures, fmt.Errorf("removing %s: %w", dir, err))
			continue
		}
		removed = append(removed, dir)
	}
	return removed, errors.Join(failures...)
}
