package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/application-grid/application-grid/pkg/kubectlgrid/preview"
)

func newPreviewCommand(c *command) *cobra.Command {
	key := ""
	cmd := &cobra.Command{
		Use:   "preview --key KEY",
		Short: "Show what site-local Services would change, on any cluster",
		Long: "Prints, for every Service, how many ready endpoints it has, what share of the endpoints that a node\n" +
			"uses today is in another site, which sites would be left without a ready endpoint if the Service were\n" +
			"site-local, and the command that makes it site-local. The sites are the values of a label key of the\n" +
			"nodes.\n\n" +
			"It reads nodes, Services and EndpointSlices, and changes nothing. application-grid need not be\n" +
			"installed.\n\n" +
			"Exit codes: 0 every site has a ready endpoint of every Service that has any; 1 something could not be\n" +
			"read; 2 the command line is wrong; 3 a site would be left without one, or kubectl grid check finds a\n" +
			"failure.",
		Example: "  kubectl grid preview --key topology.kubernetes.io/zone -A\n" +
			"  kubectl grid preview --key zone1 -n shop -o wide",
		Args: cobra.NoArgs,
		RunE: c.asking(func(ctx context.Context) error { return c.preview(ctx, key) }),
	}
	cmd.Flags().StringVar(&key, "key", "",
		"Label key of the nodes whose values are the sites. Without it the command lists the keys that divide the "+
			"nodes")
	c.bindTable(cmd, "Services")
	return cmd
}

func (c *command) preview(ctx context.Context, key string) error {
	groupings, err := c.Groupings(ctx)
	if err != nil {
		return err
	}
	previewer, err := preview.Read(ctx, c.API, groupings, key, c.namespace)
	if err != nil {
		return err
	}
	found := previewer.Preview()
	columns := preview.Columns{Namespaces: c.allNamespaces, NoHeader: c.noHeaders}
	if len(found.Services) == 0 && !c.output.Encoded() {
		where := "in " + c.namespace + " namespace; -A asks for all"
		if c.allNamespaces {
			where = "in any namespace"
		}
		fmt.Fprintf(c.stderr, "No Services found %s.\n", where)
	}
	if err := preview.Print(c.stdout, found, c.output, columns); err != nil {
		return err
	}
	return ending(!found.Healthy(), groupings.Diagnosis.Complete())
}
