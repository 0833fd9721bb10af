// Command kubeadm-cluster starts a cluster that kubeadm makes, on this machine: package kubeadm says of what.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/application-grid/application-grid/test/kubeadm"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintf(os.Stderr, "kubeadm-cluster: %v\n", err)
		os.Exit(1)
	}
}

func run() error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	root := &cobra.Command{
		Use:           "kubeadm-cluster",
		Short:         "A Kubernetes cluster on this machine, made by kubeadm, with kubelets and containers",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.CompletionOptions.DisableDefaultCmd = true
	root.AddCommand(newUpCommand(),
		newPartCommand(kubeadm.PowerOn, kubeadm.RunPowerOn), newPartCommand(kubeadm.Machine, kubeadm.RunMachine))
	return root.ExecuteContext(ctx)
}

// newPartCommand is a command by which the cluster starts a process of its own.
func newPartCommand(name string, run func(disk, name string) error) *cobra.Command {
	return &cobra.Command{
		Use: name + " DISK NAME", Hidden: true, Args: cobra.ExactArgs(2),
		RunE: func(_ *cobra.Command, args []string) error { return run(args[0], args[1]) },
	}
}

func newUpCommand() *cobra.Command {
	var nodes, images []string
	command := &cobra.Command{
		Use:   "up",
		Short: "Start a cluster and keep it until Ctrl-C",
		Args:  cobra.NoArgs,
		RunE:  func(command *cobra.Command, _ []string) error { return up(command.Context(), nodes, images) },
	}
	command.Flags().StringSliceVar(&nodes, "nodes", []string{"cloud0", "node0", "node1"},
		"the nodes, the control plane's first")
	command.Flags().StringSliceVar(&images, "images", nil, "further archives of images, for all nodes")
	return command
}

func up(ctx context.Context, nodes, images []string) (err error) {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	fmt.Println("Starting the cluster:")
	c, err := kubeadm.Start(ctx, kubeadm.Options{
		Bin: filepath.Dir(program), Program: program, Nodes: nodes, Images: images,
		Progress: func(what string, took time.Duration) { fmt.Printf("  %5.1f s  %s\n", took.Seconds(), what) },
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Stop()) }()
	tools, err := c.WriteTools()
	if err != nil {
		return err
	}
	node := nodes[len(nodes)-1]
	fmt.Printf(`
To follow docs/quickstart.md in another shell, as root, in this repository:

  export KUBECONFIG=%s PATH=%s:$PATH

That PATH has kubectl and kubectl-grid, and commands for the nodes (%s):

  on %s ctr -n k8s.io images import - < dist/images/application-grid-wrapper.tar
  on %s bash         # a shell on the node
  cable %s down      # pulls its cable; cable %s up plugs it in again

These nodes have no network: use the image registry.example.org/echo:v1 in grids, without args.
Disks and logs: %s/NODE/var/log

Press Ctrl-C to end it.
`, c.Kubeconfig(), tools, strings.Join(nodes, ", "), node, node, node, node, c.Dir())
	<-ctx.Done()
	return nil
}
