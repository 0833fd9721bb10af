// Command edge-cluster starts a Kubernetes cluster with a real data plane on this machine: `demo` is a walk through what
// application-grid-wrapper does.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintf(os.Stderr, "edge-cluster: %v\n", err)
		os.Exit(1)
	}
}

func run() error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	root := &cobra.Command{
		Use:   "edge-cluster",
		Short: "A Kubernetes cluster on this machine, with kube-proxy behind application-grid-wrapper",
		Long: `edge-cluster starts etcd, kube-apiserver, kube-controller-manager, kube-scheduler and kwok, and per node a
network namespace with kube-proxy, application-grid-wrapper and an HTTP echo server behind every pod address.
All of it ends with this program and leaves nothing behind.`,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.CompletionOptions.DisableDefaultCmd = true
	root.AddCommand(newDemoCommand())
	return root.ExecuteContext(ctx)
}
