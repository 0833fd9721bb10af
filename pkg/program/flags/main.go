package flags

import (
	"context"
	"fmt"
	"io"
	"os/signal"
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
	// Version is --version, after Parse.
	Version *bool
	// Ignored returns a notice for each flag that was given and has no effect.
	Ignored func() []string
	// Run does the work until ctx is done, which happens on SIGTERM and SIGINT. ctx carries the logger.
	Run func(ctx context.Context) error
	// Commands are those that answer and end.
	Commands []*cobra.Command
}

// start runs the program with the flags as they were read.
func (p Program) start(ctx context.Context, stdout io.Writer) error {
	if err := p.Flags.applyLogFormat(); err != nil {
		return Usage(err)
	}
	if *p.Version {
		fmt.Fprintln(stdout, p.Flags.all.Name(), version.String())
		return nil
	}
	defer klog.Flush()
	logger := klog.Background()
	for _, notice := range p.Ignored() {
		logger.Info(notice)
	}
	ctx, stop := signal.NotifyContext(klog.NewContext(ctx, logger), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	return p.Run(ctx)
}
