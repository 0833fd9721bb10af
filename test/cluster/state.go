package cluster

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// fillerName is the file with which FillStateDir takes all space.
const fillerName = "filler"

// makeStateDir makes the directory of the node's wrapper: a file system of its own if the node's spec gives it a
// size.
func (c *Cluster) makeStateDir(node *Node) error {
	node.StateDir = filepath.Join(c.dir, "state", node.Spec.Name)
	if err := os.MkdirAll(node.StateDir, 0o700); err != nil {
		return fmt.Errorf("creating the wrapper's state directory: %w", err)
	}
	if node.Spec.StateDirSize == 0 {
		return nil
	}
	options := fmt.Sprintf("size=%d,mode=0700", node.Spec.StateDirSize)
	if err := unix.Mount("tmpfs", node.StateDir, "tmpfs", 0, options); err != nil {
		return fmt.Errorf("mounting the wrapper's state directory: %w", err)
	}
	return nil
}

// removeStateDir removes the directory and what is mounted there.
func (n *Node) removeStateDir() error {
	if n.StateDir == "" {
		return nil
	}
	return removeAll(n.StateDir)
}

// FillStateDir takes all space of the wrapper's state directory, which must have a size of its own.
func (n *Node) FillStateDir() error {
	if n.Spec.StateDirSize == 0 {
		return fmt.Errorf("the state directory of node %s has no size of its own", n.Spec.Name)
	}
	filler, err := os.OpenFile(filepath.Join(n.StateDir, fillerName), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("filling the state directory of node %s: %w", n.Spec.Name, err)
	}
	defer filler.Close()
	for page := make([]byte, 4<<10); err == nil; {
		_, err = filler.Write(page)
	}
	if !errors.Is(err, unix.ENOSPC) {
		return fmt.Errorf("filling the state directory of node %s: %w", n.Spec.Name, err)
	}
	return nil
}

// EmptyStateDir gives the space back that FillStateDir took.
func (n *Node) EmptyStateDir() error {
	if err := os.Remove(filepath.Join(n.StateDir, fillerName)); err != nil {
		return fmt.Errorf("emptying the state directory of node %s: %w", n.Spec.Name, err)
	}
	return nil
}

// ForbidStateWrites makes the wrapper's state directory, which must have a size of its own, read-only;
// AllowStateWrites makes it writable again.
func (n *Node) ForbidStateWrites() error { return n.remountStateDir(unix.MS_RDONLY) }

// AllowStateWrites ends ForbidStateWrites.
func (n *Node) AllowStateWrites() error { return n.remountStateDir(0) }

func (n *Node) remountStateDir(flags uintptr) error {
	if n.Spec.StateDirSize == 0 {
		return fmt.Errorf("the state directory of node %s is no file system of its own", n.Spec.Name)
	}
	var err error
	for range 100 {
		err = unix.Mount("", n.StateDir, "", unix.MS_REMOUNT|flags, "")
		if !errors.Is(err, unix.EBUSY) {
			break
		}
		time.Sleep(pollInterval) // a file is being written
	}
	if err != nil {
		return fmt.Errorf("mounting the state directory of node %s again: %w", n.Spec.Name, err)
	}
	return nil
}

// removeAll is os.RemoveAll that unmounts first what is mounted in the directory.
func removeAll(dir string) error {
	mounts, err := os.Open("/proc/thread-self/mountinfo")
	if err != nil {
		return fmt.Errorf("reading what is mounted: %w", err)
	}
	defer mounts.Close()
	for lines := bufio.NewScanner(mounts); lines.Scan(); {
		fields := strings.Fields(lines.Text()) // id parent device root mountpoint …
		if len(fields) < 5 || fields[4] != dir && !strings.HasPrefix(fields[4], dir+"/") {
			continue
		}
		if err := unix.Unmount(fields[4], unix.MNT_DETACH); err != nil {
			return fmt.Errorf("unmounting %s: %w", fields[4], err)
		}
	}
	return os.RemoveAll(dir)
}
