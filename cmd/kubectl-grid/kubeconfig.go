package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/application-grid/application-grid/pkg/kubectlgrid/kubeconfig"
)

// kubeconfigOptions are the flags of `kubectl grid kubeconfig`, and its argument.
type kubeconfigOptions struct {
	*command
	kubeconfig.Request
}

func newKubeconfigCommand(c *command) *cobra.Command {
	o := &kubeconfigOptions{command: c}
	cmd := &cobra.Command{
		Use:   "kubeconfig PROGRAM",
		Short: "Make a kubeconfig for a program that runs on a node outside of pods",
		Long: "Prints a kubeconfig for " + strings.Join(kubeconfig.Programs, " or ") + ": the address of the API\n" +
			"server, its authority, and a new token of the ServiceAccount of that name, in kube-system or in\n" +
			"--namespace. On stderr it says when the token ends; the same command renews it. You need the right to\n" +
			"create tokens of that ServiceAccount.\n\n" +
			"Exit codes: 0 it was printed; 1 the API server did not answer or refused; 2 the command line is wrong.",
		Example: "  kubectl grid kubeconfig application-grid-wrapper > application-grid-wrapper.kubeconfig\n" +
			"  kubectl grid kubeconfig statefulset-grid-daemon --address=https://127.0.0.1:6444 --duration=720h",
		ValidArgs: kubeconfig.Programs,
		Args:      cobra.MatchAll(cobra.ExactArgs(1), o.parse),
		RunE:      c.asking(o.run),
	}
	cmd.Flags().StringVar(&o.Address, "address", "",
		"Address of the API server as the node has it, https://HOST:PORT; by default the one that kubeadm has "+
			"published for nodes that join (ConfigMap kube-public/cluster-info), or else the one that this command "+
			"asks")
	cmd.Flags().DurationVar(&o.Duration, "duration", 8760*time.Hour,
		"Lifetime of the token to ask for; the API server may give a shorter one")
	return cmd
}

func (o *kubeconfigOptions) parse(_ *cobra.Command, args []string) error {
	o.Program = args[0]
	switch {
	case !slices.Contains(kubeconfig.Programs, o.Program):
		return fmt.Errorf("%q: must be %s", o.Program, strings.Join(kubeconfig.Programs, " or "))
	case o.Duration < 10*time.Minute:
		return errors.New("--duration must be 10m or longer: API servers give no shorter tokens")
	}
	return nil
}

func (o *kubeconfigOptions) run(ctx context.Context) error {
	o.Namespace = cmp.Or(o.overrides.Context.Namespace, metav1.NamespaceSystem)
	made, err := kubeconfig.Make(ctx, o.Cluster, o.Request)
	if err != nil {
		return err
	}
	fmt.Fprintf(o.stderr, "The server is %s. The token ends at %s.\n",
		made.Server, made.Ends.UTC().Format(time.RFC3339))
	if given := time.Until(made.Ends); given < o.Duration-time.Minute {
		o.Warn("the API server gives tokens for less than --duration=%s: this one is good for %s", o.Duration,
			given.Round(time.Minute))
	}
	_, err = o.stdout.Write(made.Data)
	return err
}
