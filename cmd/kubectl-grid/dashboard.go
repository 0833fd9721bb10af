package main

import (
	"cmp"
	"context"
	"fmt"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/application-grid/application-grid/pkg/kubectlgrid/cluster"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/dashboard"
)

// dashboardOptions are the flags of `kubectl grid dashboard`.
type dashboardOptions struct {
	*command

	port uint16
	key  string
}

func newDashboardCommand(c *command) *cobra.Command {
	o := &dashboardOptions{command: c}
	cmd := &cobra.Command{
		Use:   "dashboard",
		Short: "Serve a page with the sites, grids and Services of the cluster",
		Long: "Serves a page to this machine, and prints its URL: a matrix of sites and Services with the verdicts\n" +
			"of kubectl grid view, what kubectl grid check finds, and the grids with their rollouts wave by wave.\n" +
			"The page follows the cluster with the rights of the user, and writes nothing to it. It shows all\n" +
			"namespaces, or one with -n.\n\n" +
			"The URL has a token. Whoever has it sees what the user may read, until Ctrl-C ends the command with\n" +
			"exit code 0.\n\n" +
			"Exit codes: 0 it was interrupted; 1 the cluster could not be asked, or the port is taken; 2 the\n" +
			"command line is wrong.",
		Example: "  kubectl grid dashboard\n" +
			"  kubectl grid dashboard --port 8001\n" +
			"  kubectl grid dashboard -n shop --key topology.kubernetes.io/zone",
		Args: cobra.NoArgs,
		RunE: c.asking(o.run),
	}
	f := cmd.Flags()
	f.Uint16Var(&o.port, "port", 0, "Port of 127.0.0.1 to serve on; 0 for a free one")
	f.StringVar(&o.key, "key", "", "Label key of the nodes whose values are the sites of the matrix at first. "+
		"Without it, the one that most grids and Services have")
	return cmd
}

func (o *dashboardOptions) run(ctx context.Context) error {
	// A server that cannot be reached, or a login that is over, is an answer of the command, and not of the page.
	err := o.API.List(ctx, cluster.NodeList(), client.Limit(1))
	if err != nil && !apierrors.IsForbidden(err) {
		return fmt.Errorf("asking the cluster: %w", err)
	}
	raw, _ := o.loader().RawConfig() // the connection was made from it
	d, err := dashboard.New(ctx, o.Cluster, o.port, dashboard.Shown{
		// As the user knows it: by the kubeconfig's context, or else by its address.
		Cluster:   cmp.Or(o.overrides.CurrentContext, raw.CurrentContext, o.Config.Host),
		Namespace: o.overrides.Context.Namespace, Key: o.key,
	})
	if err != nil {
		return err
	}
	fmt.Fprintln(o.stdout, d.URL)
	fmt.Fprintln(o.stderr, "Open this page in a browser. Ctrl-C ends it.")
	return d.Run(ctx)
}
