// Command application-grid-wrapper stands between kube-proxy and the API server of an edge node, and shows it
// the endpoints that the node's unit may see.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/pflag"
	"k8s.io/klog/v2"

	"github.com/application-grid/application-grid/pkg/proxy"
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
		fmt.Print(o.flags.Usage(introduction))
		return 0
	case err != nil:
		fmt.Fprintf(os.Stderr, "application-grid-wrapper: %v\nRun application-grid-wrapper --help for all flags.\n", err)
		return exitUsage
	case o.version:
		fmt.Println("application-grid-wrapper", version.String())
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
	p, err := proxy.New(config, logger)
	if err != nil {
		return fail(err)
	}
	ctx, stop := signal.NotifyContext(klog.NewContext(context.Background(), logger), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := p.Run(ctx); err != nil {
		return fail(err)
	}
	return 0
}

func fail(err error) int {
	fmt.Fprintf(os.Stderr, "application-grid-wrapper: %v\n", err)
	return exitFailure
}
