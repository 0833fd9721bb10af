// Command edge-bench measures application-grid-wrapper beside direct access to kube-apiserver, in one run on
// one machine: it starts an embedded cluster with two nodes of one site, one behind a wrapper and one without,
// loads a fleet, and prints one table with ratios. It asserts nothing; figures depend on the machine.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/pflag"
)

// options are the flags.
type options struct {
	components, wrapper, controller, hub string
	// part is what is measured: wrapper, grids, rollout, large, hub, or all, which is the first three.
	part      string
	gridSites int
	fleet     fleet
	rate      int
	// hubChart is the file that a chart is written to of fleets that grow to the one that is asked for; "" for none.
	hubChart string
	// hubSaving is how many times as many bytes a change must cost a node directly as through the hub; 0 for any.
	hubSaving int
}

func main() {
	var o options
	flags := pflag.NewFlagSet("edge-bench", pflag.ContinueOnError)
	flags.StringVar(&o.components, "components", "bin/components", "binary of the cluster's components")
	flags.StringVar(&o.wrapper, "wrapper", "bin/application-grid-wrapper", "binary of the wrapper")
	flags.StringVar(&o.controller, "controller", "bin/application-grid-controller", "binary of the controller")
	flags.StringVar(&o.hub, "hub", "bin/application-grid-hub", "binary of the hub")
	flags.StringVar(&o.part, "part", "all",
		"what is measured: wrapper, grids, rollout (a change of one grid in two waves, with real controllers and pods), large (1,000,000 endpoints on 10,000 nodes), hub (simulated wrappers of all nodes follow their shares), or all, which is the first three")
	flags.IntVar(&o.gridSites, "grid-sites", 1000, "sites of the grids, each with one node")
	flags.IntVar(&o.fleet.nodes, "nodes", 1000, "nodes of the fleet, all but two without a data plane")
	flags.IntVar(&o.fleet.sites, "sites", 50, "sites that they are in")
	flags.IntVar(&o.fleet.services, "services", 2000, "Services with topologyKeys, of 50 endpoints on random nodes")
	flags.IntVar(&o.rate, "rate", 100, "changes per second")
	flags.StringVar(&o.hubChart, "hub-chart", "",
		"file for a chart (SVG) of the hub's figures against nodes: fleets of an eighth, a quarter and half of the size are measured before")
	flags.IntVar(&o.hubSaving, "hub-saving", 0,
		"fail unless a change costs a node at least so many times as many bytes directly as through the hub")
	switch err := flags.Parse(os.Args[1:]); {
	case errors.Is(err, pflag.ErrHelp):
		return
	case err != nil:
		fmt.Fprintln(os.Stderr, "edge-bench:", err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "edge-bench:", err)
		stop()
		os.Exit(1) //nolint:gocritic // stop was called
	}
}

// run measures the parts that are asked for.
func run(ctx context.Context, o options) error {
	switch o.part {
	case "wrapper":
		return measureWrapper(ctx, o)
	case "grids":
		return measureGrids(ctx, o)
	case "rollout":
		return measureRollout(ctx, o)
	case "all":
		for _, part := range []func(context.Context, options) error{measureWrapper, measureGrids, measureRollout} {
			if err := part(ctx, o); err != nil {
				return err
			}
		}
		return nil
	case "hub":
		return measureFleets(ctx, o)
	case "large":
		o.fleet = fleet{nodes: 10_000, sites: 1000, services: 20_000}
		return measureWrapper(ctx, o)
	}
	return fmt.Errorf("--part=%s: it is wrapper, grids, rollout, large, hub or all", o.part)
}
