package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"

	"github.com/spf13/cobra"

	"github.com/application-grid/application-grid/test/cluster"
)

const defaultNodes = "node0=nodeunit1,node1=nodeunit2,node2=nodeunit2"

func newUpCommand() *cobra.Command {
	var o options
	var nodes string
	command := &cobra.Command{
		Use:   "up",
		Short: "Start a cluster and keep it until Ctrl-C",
		Example: `  edge-cluster up
  edge-cluster up --nodes shop1=unit-a,shop2=unit-b --unit-label site --proxy-mode iptables`,
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error { return o.up(command.Context(), nodes) },
	}
	o.addFlags(command.Flags())
	command.Flags().StringVar(&nodes, "nodes", defaultNodes, "the nodes and their units")
	return command
}

func (o *options) up(ctx context.Context, nodes string) (err error) {
	specs, err := parseNodes(nodes, o.unitLabel)
	if err != nil {
		return err
	}
	settings, err := o.clusterOptions(specs)
	if err != nil {
		return err
	}
	if err := o.prepareMachine(ctx, &settings); err != nil {
		return err
	}
	fmt.Println("Starting the cluster:")
	c, err := cluster.Start(ctx, settings)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop(c)) }()
	o.printAccess(c)
	return waitForEnd(ctx, c)
}

// prepareMachine installs what is missing, or settles for the API view if namespaces are not to be had.
func (o *options) prepareMachine(ctx context.Context, settings *cluster.Options) error {
	if obstacle := dataPlaneObstacle(); obstacle != nil {
		settings.APIViewOnly = true
		fmt.Printf("No data plane here: %v.\nShowing the API view only: the control plane and the wrappers run on loopback,\nbut there is no kube-proxy and nothing to curl. Run it as root for all of it.\n\n", obstacle)
		return nil
	}
	return checkTools(ctx, o.install)
}

// printAccess tells how to use the cluster.
func (o *options) printAccess(c *cluster.Cluster) {
	fmt.Printf("\n  export KUBECONFIG=%s\n", c.Kubeconfig())
	if _, err := exec.LookPath("kubectl"); err == nil {
		fmt.Println("  kubectl get nodes,pods,services -o wide")
	} else {
		fmt.Printf("  alias kubectl='%s kubectl'\n", o.components)
	}
	for _, node := range c.Nodes() {
		unit := node.Spec.Labels[o.unitLabel]
		switch {
		case node.Namespace() != "":
			fmt.Printf("  %s  # a shell on %s (%s)\n", enter(node.Namespace()), node.Spec.Name, unit)
		case !node.Spec.Direct:
			fmt.Printf("  curl %s/api/v1/services  # what the wrapper of %s (%s) serves\n", node.WrapperURL(),
				node.Spec.Name, unit)
		}
	}
	fmt.Printf("  Logs: %s/logs\n", c.Dir())
}

// enter is the command that opens a shell in a namespace.
func enter(namespace string) string {
	if _, err := exec.LookPath("ip"); err == nil {
		return "ip netns exec " + namespace + " bash"
	}
	return "nsenter --net=/run/netns/" + namespace + " bash"
}

// waitForEnd waits for Ctrl-C, or for a component to fail, which is an error.
func waitForEnd(ctx context.Context, c *cluster.Cluster) error {
	fmt.Println("\nPress Ctrl-C to end it.")
	select {
	case <-ctx.Done():
		return nil
	case err := <-c.Failed():
		return err
	}
}

func stop(c *cluster.Cluster) error {
	fmt.Println("\nStopping the cluster.")
	if err := c.Stop(); err != nil {
		return fmt.Errorf("stopping the cluster: %w", err)
	}
	return nil
}
