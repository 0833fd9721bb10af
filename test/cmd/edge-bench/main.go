// Command edge-bench measures application-grid-wrapper beside direct access to kube-apiserver, in one run on
// one machine: it starts an embedded cluster with two nodes of one site, one behind a wrapper and one without,
// loads a fleet, and prints one table with ratios. It asserts nothing; figures depend on the machine.
package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"

	"github.com/application-grid/application-grid/test/cluster"
)

// options are the flags.
type options struct {
	components, wrapper, controller, hub string
	// part is what is measured: wrapper, grids, rollout, large, hub, or all, which is the first three.
	part         string
	gridSites    int
	fleet        fleet
	lists        int
	events, rate int
	relabels     int
	elsewhere    time.Duration
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
	flags.IntVar(&o.fleet.services, "services", 2000, "Services with topologyKeys")
	flags.IntVar(&o.fleet.endpoints, "endpoints", 50, "endpoints of each, on random nodes")
	flags.IntVar(&o.lists, "lists", 20, "lists per kind of list")
	flags.IntVar(&o.events, "events", 1000, "changes of slices whose way to a watcher is timed")
	flags.IntVar(&o.rate, "rate", 100, "changes per second")
	flags.DurationVar(&o.elsewhere, "elsewhere", time.Minute, "how long endpoints of other sites change, at the rate")
	flags.IntVar(&o.relabels, "relabels", 20, "moves of a node between sites")
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
		o.fleet = fleet{nodes: 10_000, sites: 1000, services: 20_000, endpoints: 50}
		return measureWrapper(ctx, o)
	}
	return fmt.Errorf("--part=%s: it is wrapper, grids, rollout, large, hub or all", o.part)
}

// measureWrapper starts the cluster, measures, and prints the table.
func measureWrapper(ctx context.Context, o options) (err error) {
	if o.fleet.nodes < 3 || o.fleet.sites < 2 || o.fleet.services < 1 || o.fleet.endpoints < 1 || o.rate < 1 {
		return errors.New("at least 3 nodes, 2 sites, 1 service, 1 endpoint and 1 change per second are needed")
	}
	labels := map[string]string{siteLabel: o.fleet.site(0)}
	c, err := cluster.Start(ctx, cluster.Options{
		Components: o.components, Wrapper: o.wrapper, NoKwok: true, NoScheduler: true, Progress: os.Stderr,
		Nodes: []cluster.NodeSpec{
			{Name: viewer, Labels: labels},
			{Name: direct, Labels: labels, Direct: true},
		},
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Stop()) }()
	if o.part == "large" {
		// A kube-proxy that asks the API server directly would write the rules of a million endpoints for minutes.
		for _, n := range c.Nodes() {
			n.KubeProxy.Kill()
		}
	}
	// Nobody keeps the fleet's nodes alive; without this it would mark them all dead in the midst of it.
	c.ControllerManager.Kill()

	begin := time.Now()
	fmt.Fprintf(os.Stderr, "loading %d nodes, %d Services with %d endpoints each\n", o.fleet.nodes, o.fleet.services,
		o.fleet.services*o.fleet.endpoints)
	if err := o.fleet.load(ctx, c.RESTConfig()); err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "loaded (%s)\n", time.Since(begin).Round(time.Second))
	if o.part == "large" {
		return measureLarge(ctx, c, o)
	}
	return measure(ctx, c, o)
}

// side is one way to the data: directly, or through the wrapper.
type side struct {
	name   string
	base   string
	client *http.Client
}

func newSide(name string, config *rest.Config, as encoding) (side, error) {
	config = rest.CopyConfig(config)
	config.DisableCompression = as == plain
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return side{}, fmt.Errorf("making a client for %s: %w", name, err)
	}
	return side{name: name, base: strings.TrimSuffix(config.Host, "/"), client: client}, nil
}
