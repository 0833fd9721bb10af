package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/application-grid/application-grid/pkg/gridview"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/cluster"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/output"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/serviceview"
	"github.com/application-grid/application-grid/pkg/program/flags"
)

func newViewCommand(c *command) *cobra.Command {
	var format output.Format
	var name cluster.ServiceName
	cmd := &cobra.Command{
		Use:   "view SERVICE",
		Short: "Show what the nodes of every site see of a Service",
		Long: "Prints, for every site of the Service's topologyKeys, its nodes and the endpoints that they see, " +
			"by the\n" +
			"rule that the wrapper applies on the nodes; which endpoints no node sees, and why; which sites " +
			"reach no\n" +
			"endpoint; and on how many edge nodes the Service stays in its sites.\n" +
			"SERVICE is the name of a Service, svc/NAME, or the name of a ServiceGrid, sg/NAME.\n" + exitCodes,
		Example:           "  kubectl grid view echo-svc\n  kubectl grid view sg/echo -o json",
		ValidArgsFunction: complete(c.serviceArgument),
		Args: flags.UsageArgs(func(_ *cobra.Command, args []string) error {
			return parseService(args, &name)
		}),
		RunE: func(cmd *cobra.Command, _ []string) error {
			connected, namespace, err := c.connect()
			if err != nil {
				return err
			}
			service, err := cluster.Service(cmd.Context(), connected.API, namespace, name)
			if err != nil {
				return err
			}
			endpointSlices, err := cluster.EndpointSlices(cmd.Context(), connected.API, service)
			if err != nil {
				return err
			}
			groupings, err := connected.Groupings(cmd.Context())
			if err != nil {
				return err
			}
			view := groupings.View(service, endpointSlices)
			if err := serviceview.Print(c.stdout, view, format); err != nil {
				return err
			}
			return ending(!view.Healthy(), !gridview.HasSites(view.TopologyKeys) || groupings.Diagnosis.Complete())
		},
	}
	bindOutput(cmd, &format, output.Table, output.JSON, output.YAML)
	return cmd
}

func parseService(args []string, to *cluster.ServiceName) (err error) {
	if len(args) != 1 {
		return fmt.Errorf("give the name of one Service or ServiceGrid; got %d arguments", len(args))
	}
	*to, err = cluster.ParseServiceName(args[0])
	return err
}
