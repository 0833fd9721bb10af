package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"net/url"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/pflag"

	"github.com/application-grid/application-grid/pkg/conntrack"
	"github.com/application-grid/application-grid/pkg/probe"
)

// probeCommand connects to a Service from this node, for kubectl grid prove.
type probeCommand struct {
	target   string
	requests int
	timeout  time.Duration
	output   string
	answers  bool
}

const probeIntroduction = `application-grid-wrapper probe connects to the address of a Service from this node, again and again, and prints as
JSON which endpoints the node's rules led to. kubectl grid prove runs it. It asks the kernel for that, which takes the
capability NET_ADMIN; with --answers it asks a URL by HTTP, and prints what was answered.

Usage:
  application-grid-wrapper probe ADDRESS:PORT [flags]
  application-grid-wrapper probe --answers URL [flags]

It exits with 0 if it could ask, whatever was answered, with 1 if not, and with 2 if the command line is wrong.

Flags:
`

func (c *probeCommand) flags() *pflag.FlagSet {
	f := pflag.NewFlagSet("probe", pflag.ContinueOnError)
	f.SortFlags = false
	f.Usage = func() {}
	f.IntVar(&c.requests, "requests", 20, "How many connections, one after the other.")
	f.DurationVar(&c.timeout, "timeout", time.Second, "How long one of them may take.")
	f.StringVar(&c.output, "output", "", "File that the result is written to. Empty: stdout.")
	f.BoolVar(&c.answers, "answers", false, "Ask by HTTP and print the answers, where the kernel cannot be asked.")
	return f
}

// runProbe returns the exit code.
func runProbe(args []string, stdout, stderr io.Writer) int {
	c := &probeCommand{}
	return subcommand{
		name: "probe", introduction: probeIntroduction, flags: c.flags(), check: c.check,
		run: func() error { return c.run(stdout) },
	}.main(args, stdout, stderr)
}

func (c *probeCommand) run(stdout io.Writer) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	result := c.ask(ctx)
	data, err := json.Marshal(result)
	if err == nil && c.output != "" {
		err = os.WriteFile(c.output, data, 0o600)
	} else if err == nil {
		_, err = fmt.Fprintf(stdout, "%s\n", data)
	}
	if err == nil && result.Error != "" {
		err = errors.New(result.Error)
	}
	return err
}

// check reads the arguments.
func (c *probeCommand) check(args []string) error {
	switch {
	case len(args) != 1:
		return fmt.Errorf("give one ADDRESS:PORT, or with --answers one URL; got %d arguments", len(args))
	case c.requests < 1:
		return fmt.Errorf("--requests=%d: ask once at least", c.requests)
	case c.timeout <= 0:
		return fmt.Errorf("--timeout=%s: it has to be more than 0", c.timeout)
	}
	c.target = args[0]
	if c.answers {
		if u, err := url.Parse(c.target); err != nil || u.Scheme != "http" || u.Host == "" {
			return fmt.Errorf("%q is no URL such as http://10.96.0.10:80/", c.target)
		}
		return nil
	}
	if _, err := netip.ParseAddrPort(c.target); err != nil {
		return fmt.Errorf("%q is no address and port, such as 10.96.0.10:80", c.target)
	}
	return nil
}

func (c *probeCommand) ask(ctx context.Context) probe.Result {
	if c.answers {
		return probe.Answers(ctx, c.target, c.requests, c.timeout)
	}
	return probe.Connect(ctx, probe.Options{
		Target: netip.MustParseAddrPort(c.target), Requests: c.requests, Timeout: c.timeout,
		Destination: conntrack.Destination, None: conntrack.ErrNone,
	})
}
