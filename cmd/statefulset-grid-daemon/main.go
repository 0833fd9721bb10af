// Command statefulset-grid-daemon keeps, on every node, the hosts file from which the node's CoreDNS answers the
// names of StatefulSetGrids with the pods of the node's own unit.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/spf13/pflag"
	"k8s.io/klog/v2"

	"github.com/application-grid/application-grid/pkg/dnshosts"
	"github.com/application-grid/application-grid/pkg/version"
)

// Exit codes.
const (
	exitFailure = 1
	exitUsage   = 2
)

func main() {
	os.Exit(run(os.Args[1:]))
}

func run(args []string) int {
	o := newOptions()
	err := o.flags.Parse(args)
	switch {
	case errors.Is(err, pflag.ErrHelp):
		fmt.Print(o.usage())
		return 0
	case err != nil:
		fmt.Fprintf(os.Stderr, "%s: %v\nRun %s --help for all flags.\n", program, err, program)
		return exitUsage
	case o.version:
		fmt.Println(program, version.String())
		return 0
	}
	defer klog.Flush()
	logger := klog.Background()
	for _, notice := range o.ignored() {
		logger.Info(notice)
	}
	config, err := o.config()
	if err != nil {
		return fail(err)
	}
	daemon, err := dnshosts.New(config, logger)
	if err != nil {
		return fail(err)
	}
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(dnshosts.GCPercent)
	}
	ctx, stop := signal.NotifyContext(klog.NewContext(context.Background(), logger), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := daemon.Run(ctx); err != nil {
		return fail(err)
	}
	return 0
}

func fail(err error) int {
	fmt.Fprintf(os.Stderr, "%s: %v\n", program, err)
	return exitFailure
}
