package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/application-grid/application-grid/pkg/gridview"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/cluster"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/output"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/serviceview"
)

func newViewCommand(c *command) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "view SERVICE",
		Short: "Show what the nodes of every site see of a Service",
		Long: "Prints, for every site of the Service's topologyKeys, its nodes and the endpoints that they see, by\n" +
			"the rule that the wrapper applies on the nodes; which endpoints no node sees, and why; which sites\n" +
			"reach no endpoint; and on how many edge nodes the Service stays in its sites. SERVICE is the name of a\n" +
			"Service, svc/NAME, or the name of a ServiceGrid, sg/NAME.\n" + exitCodes,
		Example:           "  kubectl grid view echo-svc\n  kubectl grid view sg/echo -o json",
		ValidArgsFunction: complete(c.serviceArgument),
		Args:              c.parseService,
		RunE:              c.asking(c.view),
	}
	c.bindOutput(cmd, output.Table, output.JSON, output.YAML)
	return cmd
}

func (c *command) view(ctx context.Context) error {
	service, err := cluster.Service(ctx, c.API, c.namespace, c.service)
	if err != nil {
		return err
	}
	endpointSlices, err := cluster.EndpointSlices(ctx, c.API, service)
	if err != nil {
		return err
	}
	groupings, err := c.Groupings(ctx)
	if err != nil {
		return err
	}
	view := groupings.View(service, endpointSlices)
	if err := serviceview.Print(c.stdout, view, c.output); err != nil {
		return err
	}
	return ending(!view.Healthy(), !gridview.HasSites(view.TopologyKeys) || groupings.Diagnosis.Complete())
}
