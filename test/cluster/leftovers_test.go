package cluster

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"testing"
)

func TestAbandoned(t *testing.T) {
	id, err := NewID()
	if err != nil {
		t.Fatal(err)
	}
	start, err := startTime(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	gone := exec.Command("true")
	if err := gone.Run(); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{
		id:            false,
		id + "-node0": false,
		fmt.Sprintf("%s-%d-%s-1", idPrefix, os.Getpid(), strconv.FormatUint(start+1, 36)):          true, // our pid, another process
		fmt.Sprintf("%s-%d-%s-1-node0", idPrefix, gone.Process.Pid, strconv.FormatUint(start, 36)): true,
		"other":                     false,
		idPrefix:                    false,
		idPrefix + "-x-y-z":         false,
		idPrefix + "-1-not base36-": false,
	} {
		if got := Abandoned(name); got != want {
			t.Errorf("Abandoned(%q) = %v, want %v", name, got, want)
		}
	}
}

// A supervisor that was killed and not waited for is gone, although its pid is still taken.
func TestAbandonedByZombie(t *testing.T) {
	child := exec.Command("sleep", "100")
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	start, err := startTime(child.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	name := fmt.Sprintf("%s-%d-%s-1", idPrefix, child.Process.Pid, strconv.FormatUint(start, 36))
	if Abandoned(name) {
		t.Error("its supervisor lives")
	}
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	for !Abandoned(name) {
		if _, err := os.Stat(fmt.Sprintf("/proc/%d", child.Process.Pid)); err != nil {
			t.Fatal("the zombie was waited for by somebody else")
		}
	}
	child.Wait()
}
