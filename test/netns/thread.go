package netns

import (
	"context"
	"errors"
	"net"
	"os/exec"
	"runtime"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// errClosed is what a Thread that has been closed answers.
var errClosed = errors.New("the namespace is closed")

// Thread is one operating system thread that runs the functions given to it, one after the other.
type Thread struct {
	tasks chan func()
	done  chan struct{}
	once  sync.Once
}

// NewThread returns a thread in the program's own network namespace. It is what a process is started on
// that has to die with the program but needs no namespace of its own.
func NewThread() *Thread {
	thread, err := newThread(func() error { return nil })
	if err != nil { // setup above cannot fail
		panic(err)
	}
	return thread
}

// newThread starts a thread and runs setup on it first. The error is setup's.
func newThread(setup func() error) (*Thread, error) {
	t := &Thread{tasks: make(chan func()), done: make(chan struct{})}
	ready := make(chan error, 1)
	go t.run(setup, ready)
	if err := <-ready; err != nil {
		return nil, err
	}
	return t, nil
}

func (t *Thread) run(setup func() error, ready chan<- error) {
	// Never unlocked: the thread ends with this goroutine, and no other goroutine can ever run on a thread
	// that is in a foreign namespace.
	runtime.LockOSThread()
	if unix.Gettid() == unix.Getpid() {
		// The main thread cannot end, and /proc/self shows its namespace as the program's. Hold it while
		// another goroutine, which therefore gets another thread, does the work.
		next := make(chan struct{})
		go func() {
			defer close(next)
			t.run(setup, ready)
		}()
		<-next
		runtime.UnlockOSThread()
		return
	}
	if err := setup(); err != nil {
		ready <- err
		return
	}
	ready <- nil
	for {
		select {
		case task := <-t.tasks:
			task()
		case <-t.done:
			return
		}
	}
}

// Do runs f on the thread and returns its error. f must not block for long: everything that happens in the
// namespace queues behind it.
func (t *Thread) Do(f func() error) error {
	result := make(chan error, 1)
	select {
	case t.tasks <- func() { result <- f() }:
		return <-result
	case <-t.done:
		return errClosed
	}
}

// Start starts the command on the thread. The process gets its own process group, so that Ctrl-C in a
// terminal reaches the program only and not its children, and SIGKILL as soon as the thread or the program
// ends.
func (t *Thread) Start(cmd *exec.Cmd) error {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	return t.Do(cmd.Start)
}

// Listen opens a TCP listener on the thread.
func (t *Thread) Listen(ctx context.Context, address string) (net.Listener, error) {
	var listener net.Listener
	err := t.Do(func() error {
		var err error
		listener, err = new(net.ListenConfig).Listen(ctx, "tcp", address)
		return err
	})
	return listener, err
}

// Close ends the thread, which kills the processes that were started on it.
func (t *Thread) Close() { t.once.Do(func() { close(t.done) }) }
