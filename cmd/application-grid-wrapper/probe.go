package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/application-grid/application-grid/pkg/kubectlgrid/probe"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/probe/conntrack"
	"github.com/application-grid/application-grid/pkg/program/flags"
)

// probeOptions are the flags of the command probe, and its argument. kubectl grid prove runs the command.
type probeOptions struct {
	probe.Options

	output string
}

const probeIntroduction = `application-grid-wrapper probe connects to the address of a Service from this node, again and
again, and prints as JSON which endpoints the node's rules sent it to. kubectl grid prove runs it. It asks the kernel
for that, which takes the capability NET_ADMIN.

It exits with 0 if it could ask, whatever was answered, with 1 if not, and with 2 if the command line is wrong.`

func newProbeCommand() *cobra.Command {
	o := &probeOptions{Options: probe.Options{Destination: conntrack.Destination, None: conntrack.ErrNone}}
	cmd := &cobra.Command{
		Use:               "probe ADDRESS:PORT",
		Short:             "Connects to a Service from this node, and says where the kernel sent the connections",
		Long:              probeIntroduction,
		Args:              flags.UsageArgs(o.parse),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGTERM, syscall.SIGINT)
			defer stop()
			return o.run(ctx, cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.IntVar(&o.Requests, "requests", 20, "How many connections, one after the other.")
	f.DurationVar(&o.Timeout, "timeout", time.Second, "How long one of them may take.")
	f.StringVar(&o.output, "output", "", "File that the result is written to. Empty: stdout.")
	flags.AddHelp(f)
	flags.CompleteWith(cmd, "requests")
	flags.CompleteWith(cmd, "timeout")
	return cmd
}

func (o *probeOptions) run(ctx context.Context, stdout io.Writer) error {
	result := probe.Connect(ctx, o.Options)
	data, err := json.Marshal(result)
	if err == nil && o.output != "" {
		err = os.WriteFile(o.output, data, 0o600)
	} else if err == nil {
		_, err = fmt.Fprintf(stdout, "%s\n", data)
	}
	if err == nil && result.Error != "" {
		err = errors.New(result.Error)
	}
	return err
}

// parse reads the arguments, and checks them and the flags.
func (o *probeOptions) parse(_ *cobra.Command, args []string) error {
	switch {
	case len(args) != 1:
		return fmt.Errorf("give one ADDRESS:PORT; got %d arguments", len(args))
	case o.Requests < 1:
		return fmt.Errorf("--requests=%d: ask once at least", o.Requests)
	case o.Timeout <= 0:
		return fmt.Errorf("--timeout=%s: it has to be more than 0", o.Timeout)
	}
	var err error
	if o.Target, err = netip.ParseAddrPort(args[0]); err != nil {
		return fmt.Errorf("%q is not an address and port, such as 10.96.0.10:80", args[0])
	}
	return nil
}
