package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/application-grid/application-grid/pkg/gridview"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/check"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/cluster"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/output"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/prove"
	"github.com/application-grid/application-grid/pkg/program/flags"
)

// proveOptions are the flags of `kubectl grid prove`.
type proveOptions struct {
	service      cluster.ServiceName
	probe        prove.Probe
	image        string
	port         string
	allNodes     bool
	podNamespace string
	timeout      time.Duration
	output       output.Format
}

// askedAtOnce is how many nodes are asked from at the same time, which limits what a command asks of the cluster.
const askedAtOnce = 10

func newProveCommand(c *command) *cobra.Command {
	o := &proveOptions{}
	cmd := &cobra.Command{
		Use:   "prove SERVICE",
		Short: "Show by connections which sites a Service reaches from every site",
		Long: "Connects to the Service from a node of every site, for each address family that the node has, and\n" +
			"prints which site reached which. A short pod in the node's network opens TCP connections, sends\n" +
			"nothing, and asks the kernel where each was sent. It is removed at the end. SERVICE is the name of a\n" +
			"Service, svc/NAME, or the name of a ServiceGrid, sg/NAME.\n" +
			"\n" +
			"Exit codes: 0 no connection left its site; 1 it could not be proved, or something could not be read; 2\n" +
			"the command line is wrong; 3 a connection left its site, or kubectl grid check finds a failure.",
		Example: "  kubectl grid prove echo-svc\n" +
			"  kubectl grid prove sg/echo --requests 100 --all-nodes",
		ValidArgsFunction: complete(c.serviceArgument),
		Args: flags.UsageArgs(func(_ *cobra.Command, args []string) error {
			return errors.Join(parseService(args, &o.service), o.check())
		}),
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), c) },
	}
	f := cmd.Flags()
	f.IntVar(&o.probe.Requests, "requests", 20, "Number of connections from each node, one after the other")
	f.DurationVar(&o.probe.Timeout, "connect-timeout", time.Second, "Time that one connection may take")
	f.StringVar(&o.port, "port", "", "Name or number of the Service's port. Empty: its first TCP port")
	f.BoolVar(&o.allNodes, "all-nodes", false, "Connect from every node of each site, not from one of them")
	f.DurationVar(&o.timeout, "timeout", time.Minute, "Time for one node, with the start of the pod")
	f.StringVar(&o.image, "image", "", "Image of application-grid-wrapper for the pods. Empty: that of the wrapper on "+
		"the node")
	f.StringVar(&o.podNamespace, "pod-namespace", metav1.NamespaceSystem,
		"Namespace of the pods: it has to allow the node's network and the capability NET_ADMIN")
	for _, name := range []string{"requests", "connect-timeout", "port", "timeout", "image"} {
		flags.CompleteWith(cmd, name)
	}
	if err := cmd.RegisterFlagCompletionFunc("pod-namespace", c.completeFlag("namespace")); err != nil {
		panic(err) // the flag is bound above
	}
	bindOutput(cmd, &o.output, output.Table, output.JSON, output.YAML)
	return cmd
}

// check looks at the flags' values.
func (o *proveOptions) check() error {
	switch {
	case o.probe.Requests < 1 || o.probe.Requests > 10000:
		return fmt.Errorf("--requests=%d: give 1 to 10000", o.probe.Requests)
	case o.probe.Timeout <= 0 || o.timeout <= 0:
		return errors.New("--timeout and --connect-timeout have to be more than 0")
	}
	return nil
}

func (o *proveOptions) run(ctx context.Context, c *command) error {
	connected, namespace, err := c.connect()
	if err != nil {
		return err
	}
	service, err := cluster.Service(ctx, connected.API, namespace, o.service)
	if err != nil {
		return err
	}
	diagnosis := connected.Diagnose(ctx, check.WithoutServices)
	slicesOf, nodes, err := prove.Surroundings(ctx, connected.API, service)
	if err != nil {
		return err
	}
	which := prove.OneOfEach
	if o.allNodes {
		which = prove.AllOfEach
	}
	plan, err := prove.Prepare(service, slicesOf, nodes, diagnosis, o.port, which)
	if err != nil {
		return err
	}
	runner, err := o.runner(ctx, connected)
	if err != nil {
		return err
	}
	answers := plan.Ask(ctx, runner, prove.Limits{AtOnce: askedAtOnce, Timeout: o.timeout})
	if ctx.Err() != nil {
		return errors.New("interrupted; its pods are removed")
	}
	name := cluster.ServiceName{Kind: "Service", Name: service.Name}
	if service, err = cluster.Service(ctx, connected.API, namespace, name); err != nil {
		return fmt.Errorf("asking for the Service again: %w", err)
	}
	if slicesOf, nodes, err = prove.Surroundings(ctx, connected.API, service); err != nil {
		return fmt.Errorf("asking again: %w", err)
	}
	proof, err := plan.Conclude(answers, o.probe.Requests, service, slicesOf, nodes, diagnosis)
	if err != nil {
		return err
	}
	if err := proof.Print(c.stdout, o.output); err != nil {
		return err
	}
	return ending(proof.Verdict == prove.Leak || gridview.Failed(proof.Findings),
		proof.Verdict != prove.Unproved && diagnosis.Complete())
}

// runner is what asks on the nodes.
func (o *proveOptions) runner(ctx context.Context, c cluster.Cluster) (prove.Runner, error) {
	images, err := prove.Images(ctx, c.API)
	if err != nil && o.image == "" {
		return nil, fmt.Errorf("asking for the wrappers' pods: %w", err)
	}
	var first prove.Image // for nodes that have none
	for _, node := range slices.Sorted(maps.Keys(images)) {
		first = images[node]
		break
	}
	if o.image == "" && first.Name == "" {
		return nil, errors.New("no wrapper runs in this cluster whose image could be used: name an image with " +
			"--image")
	}
	pods := &prove.Pods{
		API: c.API, Namespace: o.podNamespace, Probe: o.probe, Alive: o.timeout,
		ImageOn: func(node string) (string, []corev1.LocalObjectReference) {
			image, ok := images[node]
			if !ok {
				image = first
			}
			return cmp.Or(o.image, image.Name), image.PullSecrets
		},
	}
	if err := pods.RemoveLeftovers(ctx); err != nil {
		c.Warn("pods that an earlier run may have left in %s are not removed: %s", o.podNamespace, output.WhyNot(err))
	}
	return pods, nil
}
