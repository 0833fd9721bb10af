package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/application-grid/application-grid/pkg/kubectlgrid/output"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/preview"
	"github.com/application-grid/application-grid/pkg/program/flags"
)

// previewOptions are the flags of `kubectl grid preview`.
type previewOptions struct {
	key           string
	allNamespaces bool
	noHeaders     bool
	output        output.Format
}

func newPreviewCommand(c *command) *cobra.Command {
	o := &previewOptions{}
	cmd := &cobra.Command{
		Use:   "preview --key KEY",
		Short: "Show what site-local Services would change, on any cluster",
		Long: "Prints, for every Service, how many ready endpoints it has, what share of the endpoints that a " +
			"node uses\n" +
			"today is in another site, which sites would be left without a ready endpoint if the Service were\n" +
			"site-local, and the command that makes it site-local. The sites are the values of a label key of the " +
			"nodes.\n" +
			"\n" +
			"It reads nodes, Services and EndpointSlices, and changes nothing. application-grid need not be " +
			"installed.\n" +
			"\n" +
			"Exit codes: 0 every site has a ready endpoint of every Service that has any; 1 something could not " +
			"be read;\n" +
			"2 the command line is wrong; 3 a site would be left without one, or kubectl grid check finds a failure.",
		Example: "  kubectl grid preview --key topology.kubernetes.io/zone -A\n" +
			"  kubectl grid preview --key zone1 -n shop -o wide",
		Args: flags.UsageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), c) },
	}
	f := cmd.Flags()
	f.StringVar(&o.key, "key", "",
		"Label key of the nodes whose values are the sites. Without it the command lists the keys that divide the "+
			"nodes")
	f.BoolVarP(&o.allNamespaces, "all-namespaces", "A", false, "Services of all namespaces")
	f.BoolVar(&o.noHeaders, "no-headers", false, "Print the rows of the table only")
	flags.CompleteWith(cmd, "key")
	bindOutput(cmd, &o.output, output.Table, output.Wide, output.JSON, output.YAML)
	return cmd
}

func (o *previewOptions) run(ctx context.Context, c *command) error {
	connected, namespace, err := c.connect()
	if err != nil {
		return err
	}
	if o.allNamespaces {
		namespace = ""
	}
	groupings, err := connected.Groupings(ctx)
	if err != nil {
		return err
	}
	previewer, err := preview.Read(ctx, connected.API, groupings, preview.Query{Key: o.key, Namespace: namespace})
	if err != nil {
		return err
	}
	found := previewer.Preview()
	columns := preview.Columns{Namespaces: o.allNamespaces, NoHeader: o.noHeaders}
	if len(found.Services) == 0 && !o.output.Encoded() {
		where := "in " + namespace + " namespace; -A asks for all"
		if o.allNamespaces {
			where = "in any namespace"
		}
		fmt.Fprintf(c.stderr, "No Services found %s.\n", where)
	}
	if err := preview.Print(c.stdout, found, o.output, columns); err != nil {
		return err
	}
	return ending(!found.Healthy(), groupings.Diagnosis.Complete())
}
