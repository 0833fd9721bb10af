package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/application-grid/application-grid/pkg/gridview"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/output"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/prove"
	"github.com/application-grid/application-grid/pkg/program/flags"
)

// proveOptions are the flags of `kubectl grid prove`.
type proveOptions struct {
	*command
	prove.Options
}

func newProveCommand(c *command) *cobra.Command {
	o := &proveOptions{command: c}
	cmd := &cobra.Command{
		Use:   "prove SERVICE",
		Short: "Show by connections which sites a Service reaches from every site",
		Long: "Connects to the Service from a node of every site, for each address family that the node has, and\n" +
			"prints which site reached which. A short pod in the node's network opens TCP connections, sends\n" +
			"nothing, and asks the kernel where each was sent. It is removed at the end. SERVICE is the name of a\n" +
			"Service, svc/NAME, or the name of a ServiceGrid, sg/NAME.\n\n" +
			"Exit codes: 0 no connection left its site; 1 it could not be proved, or something could not be read; 2\n" +
			"the command line is wrong; 3 a connection left its site, or kubectl grid check finds a failure.",
		Example: "  kubectl grid prove echo-svc\n" +
			"  kubectl grid prove sg/echo --requests 100 --all-nodes",
		ValidArgsFunction: complete(c.serviceArgument),
		Args:              cobra.MatchAll(c.parseService, o.check),
		RunE:              c.asking(o.run),
	}
	f := cmd.Flags()
	f.IntVar(&o.Requests, "requests", 20, "Number of connections from each node, one after the other")
	f.DurationVar(&o.ConnectTimeout, "connect-timeout", time.Second, "Time that one connection may take")
	f.StringVar(&o.Port, "port", "", "Name or number of the Service's port. Empty: its first TCP port")
	f.BoolVar(&o.AllNodes, "all-nodes", false, "Connect from every node of each site, not from one of them")
	f.DurationVar(&o.Timeout, "timeout", time.Minute, "Time for one node, with the start of the pod")
	f.StringVar(&o.Image, "image", "", "Image of application-grid-wrapper for the pods. Empty: that of the wrapper on "+
		"the node")
	f.StringVar(&o.PodNamespace, "pod-namespace", metav1.NamespaceSystem,
		"Namespace of the pods: it has to allow the node's network and the capability NET_ADMIN")
	flags.Complete(cmd, "pod-namespace", complete(c.namespaces))
	c.bindOutput(cmd, output.Table, output.JSON, output.YAML)
	return cmd
}

// check looks at the flags' values.
func (o *proveOptions) check(*cobra.Command, []string) error {
	switch {
	case o.Requests < 1 || o.Requests > 10000:
		return fmt.Errorf("--requests=%d: give 1 to 10000", o.Requests)
	case o.ConnectTimeout <= 0 || o.Timeout <= 0:
		return errors.New("--timeout and --connect-timeout have to be more than 0")
	}
	return nil
}

func (o *proveOptions) run(ctx context.Context) error {
	proof, err := prove.Run(ctx, o.Cluster, o.namespace, o.service, o.Options)
	if err != nil {
		return err
	}
	if err := proof.Print(o.stdout, o.output); err != nil {
		return err
	}
	return ending(proof.Verdict == prove.Leak || gridview.Failed(proof.Findings),
		proof.Verdict != prove.Unproved && proof.Complete)
}
