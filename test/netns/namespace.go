package netns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// Dir is where named network namespaces live; iproute2 uses the same.
const Dir = "/run/netns"

// ownNamespace is the calling thread's namespace. /proc/self would be the main thread's.
const ownNamespace = "/proc/thread-self/ns/net"

// Namespace is a named network namespace and the thread that lives in it.
type Namespace struct {
	*Thread
	name string
	// file refers to the namespace for as long as it is open, whatever happens to the name.
	file *os.File
}

// Create makes a new network namespace with its loopback interface down and nothing else in it. It needs
// CAP_SYS_ADMIN.
func Create(name string) (*Namespace, error) {
	if err := prepareDir(); err != nil {
		return nil, err
	}
	path := filepath.Join(Dir, name)
	mountPoint, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDONLY, 0o444) //nolint:gosec // it has no content
	if err != nil {
		return nil, fmt.Errorf("creating network namespace %s: %w", name, err)
	}
	_ = mountPoint.Close() // an empty file that only serves as a mount point

	thread, err := newThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("unshare: %w", err)
		}
		if err := unix.Mount(ownNamespace, path, "none", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("naming it: %w", err)
		}
		return nil
	})
	if err != nil {
		_ = os.Remove(path) // the error above is the one to report
		return nil, fmt.Errorf("creating network namespace %s: %w", name, err)
	}
	file, err := os.Open(path) //nolint:gosec // below Dir
	if err != nil {
		thread.Close()
		return nil, errors.Join(fmt.Errorf("opening network namespace %s: %w", name, err), Remove(name))
	}
	return &Namespace{Thread: thread, name: name, file: file}, nil
}

// prepareDir makes Dir a shared mount, as `ip netns add` does. Without it that command would later put a
// second mount over ours, and the names could not be removed any more.
func prepareDir() error {
	if err := os.MkdirAll(Dir, 0o755); err != nil { //nolint:gosec // as iproute2 makes it
		return fmt.Errorf("creating %s: %w", Dir, err)
	}
	err := unix.Mount("", Dir, "none", unix.MS_SHARED|unix.MS_REC, "")
	if errors.Is(err, unix.EINVAL) { // not a mount point yet
		if err := unix.Mount(Dir, Dir, "none", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return fmt.Errorf("mounting %s: %w", Dir, err)
		}
		err = unix.Mount("", Dir, "none", unix.MS_SHARED|unix.MS_REC, "")
	}
	if err != nil {
		return fmt.Errorf("sharing the mount %s: %w", Dir, err)
	}
	return nil
}

// Name is the namespace's name, as in `ip netns exec NAME`.
func (n *Namespace) Name() string { return n.name }

// Fd is a descriptor of the namespace, valid until Close.
func (n *Namespace) Fd() int { return int(n.file.Fd()) }

// DialContext opens a connection from inside the namespace. The address must be literal: resolving a name
// is done by other threads and so would happen outside.
func (n *Namespace) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	type result struct {
		conn net.Conn
		err  error
	}
	results := make(chan result, 1)
	// A goroutine with a thread of its own for every dial, not Do: a dial blocks until the peer answers.
	go func() {
		runtime.LockOSThread()
		conn, err := n.dialOnThisThread(ctx, network, address)
		results <- result{conn, err}
	}()
	r := <-results
	return r.conn, r.err
}

// dialOnThisThread enters the namespace, dials and goes back. The thread must be locked; it is unlocked only
// if it is back in the program's own namespace, otherwise it ends with its goroutine.
func (n *Namespace) dialOnThisThread(ctx context.Context, network, address string) (net.Conn, error) {
	own, err := os.Open(ownNamespace)
	if err != nil {
		return nil, fmt.Errorf("opening the own network namespace: %w", err)
	}
	defer own.Close()
	if err := unix.Setns(n.Fd(), unix.CLONE_NEWNET); err != nil {
		return nil, fmt.Errorf("entering network namespace %s: %w", n.name, err)
	}
	conn, err := new(net.Dialer).DialContext(ctx, network, address)
	if unix.Setns(int(own.Fd()), unix.CLONE_NEWNET) == nil {
		runtime.UnlockOSThread()
	}
	return conn, err
}

// Close ends the thread, with it the processes that were started in the namespace, and removes the name.
// The kernel frees the namespace with its last process and socket.
func (n *Namespace) Close() error {
	n.Thread.Close()
	_ = n.file.Close() // read-only
	return Remove(n.name)
}

// List returns the names of the namespaces under Dir that begin with prefix, also those that other programs
// made.
func List(prefix string) ([]string, error) {
	entries, err := os.ReadDir(Dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("listing network namespaces: %w", err)
	}
	var names []string
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), prefix) {
			names = append(names, entry.Name())
		}
	}
	return names, nil
}

// Remove removes the name of a namespace, whoever made it. Removing what does not exist is no error.
func Remove(name string) error {
	path := filepath.Join(Dir, name)
	// EINVAL: a file without a mount, left by a Create that was interrupted in between.
	err := unix.Unmount(path, unix.MNT_DETACH)
	if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("unmounting network namespace %s: %w", name, err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("removing network namespace %s: %w", name, err)
	}
	return nil
}

// Supported tells why this program cannot make network namespaces, or nil if it can. It tries one without a
// name and drops it again.
func Supported() error {
	err := try(func() error { return unix.Unshare(unix.CLONE_NEWNET) })
	if err != nil {
		return fmt.Errorf("this process may not create network namespaces: %w", err)
	}
	return nil
}

// MountsSupported tells why a process of a node cannot have mounts of its own, or nil if it can. Go and the kernel want
// the root directory to be a mount point for that. It tries a mount namespace and drops it again.
func MountsSupported() error {
	err := try(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
			return err
		}
		return unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
	})
	if errors.Is(err, unix.EINVAL) {
		return errors.New("the root directory must be a mount point, which a chroot is not: bind-mount the directory " +
			"onto itself before entering it (mount --bind)")
	}
	if err != nil {
		return fmt.Errorf("this process may not create mount namespaces: %w", err)
	}
	return nil
}

// try runs f on a thread that ends after it.
func try(f func() error) error {
	thread, err := newThread(f)
	if err == nil {
		thread.Close()
	}
	return err
}
