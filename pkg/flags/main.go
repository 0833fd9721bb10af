package flags

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/pflag"
	"k8s.io/klog/v2"

	"github.com/application-grid/application-grid/pkg/version"
)

// Exit codes of every program here, other than 0.
const (
	ExitFailure = 1
	ExitUsage   = 2
)

// Program is a command line, and what runs when the command line is right.
type Program struct {
	Flags *Set
	// Usage is the text of --help.
	Usage func() string
	// Version is --version, after Parse.
	Version *bool
	// Ignored returns a notice for each flag that was given and has no effect.
	Ignored func() []string
	// Run does the work until ctx is done, which happens on SIGTERM and SIGINT. ctx carries the logger.
	Run func(ctx context.Context) error
}

// Main runs the program, and returns its exit code: 0, 1 when it fails, 2 when the command line is wrong.
func (p Program) Main(args []string) int {
	name := p.Flags.all.Name()
	err := p.Flags.Parse(args)
	if err == nil {
		err = p.Flags.applyLogFormat()
	}
	switch {
	case errors.Is(err, pflag.ErrHelp):
		fmt.Print(p.Usage())
		return 0
	case err != nil:
		fmt.Fprintf(os.Stderr, "%s: %v\nRun %s --help for all flags.\n", name, err, name)
		return ExitUsage
	case *p.Version:
		fmt.Println(name, version.String())
		return 0
	}
	defer klog.Flush()
	logger := klog.Background()
	for _, notice := range p.Ignored() {
		logger.Info(notice)
	}
	ctx, stop := signal.NotifyContext(klog.NewContext(context.Background(), logger), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := p.Run(ctx); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		return ExitFailure
	}
	return 0
}
