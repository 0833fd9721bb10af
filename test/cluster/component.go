package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/application-grid/application-grid/internal/testkit/await"
	"github.com/application-grid/application-grid/test/netns"
)

const (
	// pollInterval is the time between two questions to something that is not ready yet.
	pollInterval = 50 * time.Millisecond
	// stopGrace is the time a component has to end after SIGTERM.
	stopGrace = 15 * time.Second
	// logTail is how much of a log goes into an error, in bytes.
	logTail = 4 << 10
)

// Component is one supervised process. It can be stopped, killed and started again any number of times; its
// log file goes on.
type Component struct {
	name    string
	thread  *netns.Thread
	path    string
	logFile string
	// ready asks the component whether it is ready; the error says why it is not.
	ready        func(context.Context) error
	readyTimeout time.Duration
	// crashed is told of every exit that nobody here asked for.
	crashed func(error)

	mu      sync.Mutex
	args    []string // guarded by mu
	env     []string // guarded by mu
	process *process // guarded by mu; the latest one, nil before the first Start
}

// process is one run of a component.
type process struct {
	cmd *exec.Cmd
	// exited is closed after the process has been reaped; err is its result and may be read from then on.
	exited chan struct{}
	err    error

	mu       sync.Mutex
	expected bool // guarded by mu; its end was asked for
}

// Name is the component's name, for a node's component with the node: "kube-proxy@node0".
func (c *Component) Name() string { return c.name }

// LogFile is the path of the file with the component's output.
func (c *Component) LogFile() string { return c.logFile }

// Args are the arguments of the next Start.
func (c *Component) Args() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]string(nil), c.args...)
}

// SetArgs sets the arguments of the next Start.
func (c *Component) SetArgs(args []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.args = append([]string(nil), args...)
}

// AddEnv adds NAME=VALUE to the environment of the next Start.
func (c *Component) AddEnv(variables ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.env = append(slices.Clone(c.env), variables...)
}

// PID is the process id, 0 if the component does not run.
func (c *Component) PID() int {
	if p := c.running(); p != nil {
		return p.cmd.Process.Pid
	}
	return 0
}

func (c *Component) running() *process {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.process == nil {
		return nil
	}
	select {
	case <-c.process.exited:
		return nil
	default:
		return c.process
	}
}

// Start starts the component and waits until it is ready. The error contains the end of its log.
func (c *Component) Start(ctx context.Context) error {
	if err := c.Launch(); err != nil {
		return err
	}
	return c.WaitReady(ctx)
}

// Launch starts the component without waiting.
func (c *Component) Launch() error {
	if c.running() != nil {
		return fmt.Errorf("%s runs already", c.name)
	}
	log, err := os.OpenFile(c.logFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("%s: opening its log: %w", c.name, err)
	}
	defer log.Close() // the child has its own descriptor

	c.mu.Lock()
	defer c.mu.Unlock()
	cmd := exec.Command(c.path, c.args...) //nolint:gosec,noctx // what the caller of Start says; it outlives every context
	cmd.Env = c.env
	cmd.Stdout, cmd.Stderr = log, log
	if err := c.thread.Start(cmd); err != nil {
		return fmt.Errorf("%s: starting %s: %w", c.name, c.path, err)
	}
	p := &process{cmd: cmd, exited: make(chan struct{})}
	c.process = p
	go c.reap(p)
	return nil
}

func (c *Component) reap(p *process) {
	p.err = p.cmd.Wait()
	p.mu.Lock()
	expected := p.expected
	p.mu.Unlock()
	close(p.exited)
	if !expected {
		c.crashed(c.exitError(p))
	}
}

func (c *Component) exitError(p *process) error {
	how := "exit status 0"
	if p.err != nil {
		how = p.err.Error()
	}
	return fmt.Errorf("%s ended unexpectedly (%s)\n%s", c.name, how, c.logExcerpt())
}

// WaitReady waits until the component is ready, has ended, or took longer than Options.ReadyTimeout.
func (c *Component) WaitReady(ctx context.Context) error {
	c.mu.Lock()
	p := c.process
	c.mu.Unlock()
	if p == nil {
		return fmt.Errorf("%s was never started", c.name)
	}
	ctx, cancel := context.WithTimeout(ctx, c.readyTimeout)
	defer cancel()
	exited := make(chan struct{})
	go func() {
		select {
		case <-p.exited:
			close(exited)
			cancel()
		case <-ctx.Done():
		}
	}()
	err := poll(ctx, c.ready)
	if err == nil {
		return nil
	}
	select {
	case <-exited:
		return c.exitError(p)
	default:
		return fmt.Errorf("%s is not ready: %w\n%s", c.name, err, c.logExcerpt())
	}
}

// Stop ends the component with SIGTERM and waits for it, at most 15 s; then it is killed and an error says
// so. Stopping what does not run is no error.
func (c *Component) Stop() error {
	p := c.expectExit()
	if p == nil {
		return nil
	}
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("%s: SIGTERM: %w", c.name, err)
	}
	timer := time.NewTimer(stopGrace)
	defer timer.Stop()
	select {
	case <-p.exited:
		return nil
	case <-timer.C:
		c.Kill()
		return fmt.Errorf("%s did not end within %s of SIGTERM and was killed\n%s", c.name, stopGrace, c.logExcerpt())
	}
}

// Kill ends the component with SIGKILL and waits until it is gone.
func (c *Component) Kill() {
	p := c.expectExit()
	if p == nil {
		return
	}
	_ = p.cmd.Process.Kill() // it fails only if the process has ended already
	<-p.exited
}

// expectExit marks the running process as one whose end is asked for and returns it; nil if none runs.
func (c *Component) expectExit() *process {
	p := c.running()
	if p == nil {
		return nil
	}
	p.mu.Lock()
	p.expected = true
	p.mu.Unlock()
	return p
}

// ExitCode is the exit code of the latest run once it has ended, -1 if it was ended by a signal or runs.
func (c *Component) ExitCode() int {
	c.mu.Lock()
	p := c.process
	c.mu.Unlock()
	if p == nil {
		return -1
	}
	select {
	case <-p.exited:
		return p.cmd.ProcessState.ExitCode()
	default:
		return -1
	}
}

// Restart stops the component gracefully, starts it again and waits until it is ready.
func (c *Component) Restart(ctx context.Context) error {
	if err := c.Stop(); err != nil {
		return err
	}
	return c.Start(ctx)
}

// logExcerpt is the end of the log, indented, for an error message.
func (c *Component) logExcerpt() string {
	tail, err := tailOf(c.logFile, logTail)
	if err != nil {
		return fmt.Sprintf("    (its log cannot be read: %v)", err)
	}
	if strings.TrimSpace(tail) == "" {
		return "    (its log is empty)"
	}
	return fmt.Sprintf("  the end of %s:\n    %s", c.logFile,
		strings.ReplaceAll(strings.TrimSpace(tail), "\n", "\n    "))
}

// tailOf returns the last whole lines of a file, at most size bytes.
func tailOf(path string, size int64) (string, error) {
	file, err := os.Open(path) //nolint:gosec // a log of our own
	if err != nil {
		return "", err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return "", err
	}
	offset := max(0, info.Size()-size)
	data, err := io.ReadAll(io.NewSectionReader(file, offset, size))
	if err != nil {
		return "", err
	}
	tail := string(data)
	if offset > 0 {
		_, tail, _ = strings.Cut(tail, "\n")
	}
	return tail, nil
}

// poll calls ask until it returns nil or ctx ends. Each call may take 5 seconds.
func poll(ctx context.Context, ask func(context.Context) error) error {
	return await.NoError(ctx, pollInterval, func(ctx context.Context) error {
		attempt, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		return ask(attempt)
	})
}
