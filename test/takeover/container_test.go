package takeover

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// container is how a process of a pod is started.
type container struct {
	// Root is the directory that becomes /.
	Root string
	// Mounts are made below it.
	Mounts       []mount
	ReadOnlyRoot bool
	UID, GID     int
	// NoCapabilities takes all capabilities away, also from user 0.
	NoCapabilities bool
	Command, Env   []string
}

// mount is a directory of the node at a place in the container.
type mount struct {
	From, To string
	ReadOnly bool
}

// containerVariable has, in the environment of this program when it is started again, the container to become.
const containerVariable = "TAKEOVER_CONTAINER"

// becomeContainer turns this process, which has a mount namespace of its own, into the container's.
func becomeContainer(description string) error {
	runtime.LockOSThread() // the bounding set and the signal below are a thread's
	var c container
	if err := json.Unmarshal([]byte(description), &c); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("keeping mounts private: %w", err)
	}
	if err := unix.Mount(c.Root, c.Root, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("mounting the root: %w", err)
	}
	for _, m := range c.Mounts {
		target := filepath.Join(c.Root, m.To)
		if err := os.MkdirAll(target, 0o755); err != nil {
			return err
		}
		if err := bind(m.From, target, m.ReadOnly); err != nil {
			return err
		}
	}
	if c.ReadOnlyRoot {
		if err := unix.Mount("", c.Root, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
			return fmt.Errorf("making the root read-only: %w", err)
		}
	}
	if err := unix.Chroot(c.Root); err != nil {
		return fmt.Errorf("chroot: %w", err)
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	return c.exec()
}

func bind(from, to string, readOnly bool) error {
	if err := unix.Mount(from, to, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mounting %s at %s: %w", from, to, err)
	}
	if !readOnly {
		return nil
	}
	if err := unix.Mount("", to, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		return fmt.Errorf("making %s read-only: %w", to, err)
	}
	return nil
}

// exec becomes the container's user and program.
func (c container) exec() error {
	if c.NoCapabilities {
		for capability := range uintptr(unix.CAP_LAST_CAP + 1) {
			if err := unix.Prctl(unix.PR_CAPBSET_DROP, capability, 0, 0, 0); err != nil {
				return fmt.Errorf("dropping capability %d: %w", capability, err)
			}
		}
	}
	if err := syscall.Setgroups(nil); err != nil {
		return fmt.Errorf("dropping groups: %w", err)
	}
	if err := syscall.Setgid(c.GID); err != nil {
		return fmt.Errorf("becoming group %d: %w", c.GID, err)
	}
	if err := syscall.Setuid(c.UID); err != nil {
		return fmt.Errorf("becoming user %d: %w", c.UID, err)
	}
	// Another user's process does not inherit that it dies with its parent.
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		return fmt.Errorf("dying with the parent: %w", err)
	}
	return fmt.Errorf("%s: %w", c.Command[0], syscall.Exec(c.Command[0], c.Command, c.Env))
}
