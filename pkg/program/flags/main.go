package flags

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"syscall"

	"github.com/spf13/cobra"
	"k8s.io/klog/v2"

	"github.com/application-grid/application-grid/pkg/program/version"
)

// Exit codes of every program here, other than 0.
const (
	ExitFailure = 1
	ExitUsage   = 2
)

// Program is a command line, and what runs when the command line is right.
type Program struct {
	Flags *Set
	// Short says in one line what the program is.
	Short string
	// Introduction is what --help and the man page begin with.
	Introduction string
	// Without, if set, returns a notice for each flag that was given and has no effect without another one.
	Without func() []string
	// GCPercent is the GOGC of the process, where the environment has none; 0 for Go's own.
	GCPercent int
	// Processors is the GOMAXPROCS of the process, where the environment has none; 0 for Go's own.
	Processors int
	// Run does the work until ctx is done, which happens on SIGTERM and SIGINT. ctx carries the logger.
	Run func(ctx context.Context) error
	// Commands are those that answer and end.
	Commands []*cobra.Command
}

// Serve is a Run that turns the flags into a configuration, makes a server of it, and runs that.
func Serve[C any, S interface {
	Run(ctx context.Context) error
}](
	config func() (C, error), server func(C, klog.Logger) (S, error),
) func(ctx context.Context) error {
	return func(ctx context.Context) error {
		configured, err := config()
		if err != nil {
			return err
		}
		made, err := server(configured, klog.FromContext(ctx))
		if err != nil {
			return err
		}
		return made.Run(ctx)
	}
}

// start runs the program with the flags as they were read.
func (p Program) start(ctx context.Context, stdout io.Writer) error {
	if err := p.Flags.applyLogFormat(); err != nil {
		return Usage(err)
	}
	if p.Flags.version {
		fmt.Fprintln(stdout, p.Flags.all.Name(), version.String())
		return nil
	}
	defer klog.Flush()
	logger := klog.Background()
	notices := p.Flags.Ignored()
	if p.Without != nil {
		notices = append(notices, p.Without()...)
	}
	for _, notice := range notices {
		logger.Info(notice)
	}
	if p.GCPercent > 0 && os.Getenv("GOGC") == "" {
		debug.SetGCPercent(p.GCPercent)
	}
	if p.Processors > 0 && os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(p.Processors)
	}
	ctx, stop := signal.NotifyContext(klog.NewContext(ctx, logger), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	return p.Run(ctx)
}

// Main runs the program, and returns its exit code: 0, 1 when it fails, 2 when the command line is wrong.
func (p Program) Main(args []string, stdout, stderr io.Writer) int {
	path, chosen, err := p.read(args, stdout, stderr)
	if err == nil && chosen {
		err = p.start(context.Background(), stdout)
	}
	var usage UsageError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &usage):
		fmt.Fprintf(stderr, "%s: %v\nRun %s --help for all flags.\n", path, err, path)
		return ExitUsage
	}
	fmt.Fprintf(stderr, "%s: %v\n", path, err)
	return ExitFailure
}

// read reads the command line, and runs the command that it names, if it names one; chosen is that it names none. path
// is what was called. The tree of commands is garbage when read returns: a program that runs for months does not keep
// it.
func (p Program) read(args []string, stdout, stderr io.Writer) (path string, chosen bool, err error) {
	root := p.command(func() { chosen = true })
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(context.Background())
	return cmd.CommandPath(), chosen, err
}
