package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/gridview"
	"github.com/application-grid/application-grid/pkg/topology"
)

func newViewCommand(c *command) *cobra.Command {
	var output format
	cmd := &cobra.Command{
		Use:   "view SERVICE",
		Short: "What the nodes of every unit see of a Service",
		Long: "Prints, for every unit of the Service's topologyKeys, its nodes and the endpoints that they see, by the rule that\n" +
			"the wrapper applies on the nodes; which units have no ready endpoint; and which endpoints no node sees, and why.\n" +
			"SERVICE is the name of a Service, svc/NAME, or the name of a ServiceGrid, sg/NAME.\n" + exitCodes,
		Example:           "  kubectl grid view echo-svc\n  kubectl grid view sg/echo -o json",
		ValidArgsFunction: c.completeServices,
		Args: usageArgs(func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return fmt.Errorf("give the name of one Service or ServiceGrid; got %d arguments", len(args))
			}
			_, _, err := serviceArgument(args[0])
			return err
		}),
		RunE: func(cmd *cobra.Command, args []string) error {
			view, err := c.view(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if err := printView(c.stdout, view, output); err != nil {
				return err
			}
			if !view.Healthy() {
				return errProblems
			}
			return nil
		},
	}
	bindOutput(cmd, &output, formatTable, formatJSON, formatYAML)
	return cmd
}

// serviceArgument reads SERVICE. kind is Service, ServiceGrid, or empty for either.
func serviceArgument(argument string) (kind, name string, err error) {
	prefix, name, hasPrefix := strings.Cut(argument, "/")
	if !hasPrefix {
		return "", argument, nil
	}
	switch {
	case name == "":
		return "", "", fmt.Errorf("%q names no Service", argument)
	case prefix == "svc" || prefix == "service" || prefix == "services":
		return "Service", name, nil
	}
	if k, err := kindOf(prefix); err != nil || k.Kind != "ServiceGrid" {
		return "", "", fmt.Errorf("%q is neither a Service (svc/NAME) nor a ServiceGrid (sg/NAME)", argument)
	}
	return "ServiceGrid", name, nil
}

func (c *command) view(ctx context.Context, argument string) (*gridview.View, error) {
	kind, name, err := serviceArgument(argument)
	if err != nil {
		return nil, usageError{err}
	}
	cluster, namespace, err := c.connect()
	if err != nil {
		return nil, err
	}
	service, err := cluster.service(ctx, namespace, kind, name)
	if err != nil {
		return nil, err
	}
	nodes, err := cluster.nodes(ctx)
	if err != nil {
		return nil, fmt.Errorf("asking for nodes, whose labels are the units: %w", err)
	}
	endpointSlices := &discoveryv1.EndpointSliceList{}
	err = cluster.api.List(ctx, endpointSlices, client.InNamespace(namespace), client.MatchingLabels{discoveryv1.LabelServiceName: service.Name})
	if err != nil {
		return nil, fmt.Errorf("asking for endpointslices: %w", err)
	}
	return gridview.OfService(service, endpointSlices.Items, nodes), nil
}

// service finds the Service that is meant. A bare name is that of a Service; if there is none, or no annotation
// governs it, that of a ServiceGrid.
func (c cluster) service(ctx context.Context, namespace, kind, name string) (*corev1.Service, error) {
	get := func(name string) (*corev1.Service, error) {
		service := &corev1.Service{}
		err := c.api.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, service)
		return service, err
	}
	if kind == "ServiceGrid" {
		service, err := get(name + v1.ServiceSuffix)
		if !apierrors.IsNotFound(err) {
			return service, err
		}
		grid := &v1.ServiceGrid{}
		if err := c.api.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, grid); err != nil {
			return nil, explain(err)
		}
		return nil, fmt.Errorf("ServiceGrid %s has no Service %s yet: kubectl grid status sg/%s -n %s says why", name, name+v1.ServiceSuffix, name, namespace)
	}
	service, err := get(name)
	if kind == "Service" || (err != nil && !apierrors.IsNotFound(err)) {
		return service, err
	}
	if _, annotation, _ := topology.KeysOf(service.Annotations); err == nil && annotation != "" { // also one that does not parse
		return service, nil
	}
	ofGrid, gridErr := get(name + v1.ServiceSuffix)
	if by := metav1.GetControllerOf(ofGrid); gridErr == nil && by != nil && by.Kind == "ServiceGrid" && by.Name == name {
		return ofGrid, nil
	}
	if err != nil {
		return nil, errors.New("there is no Service and no ServiceGrid " + name + " in namespace " + namespace)
	}
	return service, nil
}
