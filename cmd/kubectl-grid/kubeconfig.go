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
	"github.com/application-grid/application-grid/pkg/program/flags"
)

// kubeconfigOptions are the flags of `kubectl grid kubeconfig`.
type kubeconfigOptions struct {
	address  string
	duration time.Duration
}

func newKubeconfigCommand(c *command) *cobra.Command {
	o := &kubeconfigOptions{}
	cmd := &cobra.Command{
		Use:   "kubeconfig PROGRAM",
		Short: "Make a kubeconfig for a program that runs on a node outside of pods",
		Long: "Prints a kubeconfig for " + strings.Join(kubeconfig.Programs, " or ") + ": the address of the API\n" +
			"server, its authority, and a new token of the ServiceAccount of that name, in kube-system or in\n" +
			"--namespace. On stderr it says when the token ends; the same command renews it. You need the right to\n" +
			"create tokens of that ServiceAccount.\n" +
			"\n" +
			"Exit codes: 0 it was printed; 1 the API server did not answer or refused; 2 the command line is wrong.",
		Example: "  kubectl grid kubeconfig application-grid-wrapper > application-grid-wrapper.kubeconfig\n" +
			"  kubectl grid kubeconfig statefulset-grid-daemon --address=https://127.0.0.1:6444 --duration=720h",
		Args: flags.UsageArgs(cobra.ExactArgs(1)),
		ValidArgsFunction: complete(func(_ *cobra.Command, args []string, _ string) []string {
			if len(args) > 0 {
				return nil
			}
			return kubeconfig.Programs
		}),
		RunE: func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), c, args[0]) },
	}
	cmd.Flags().StringVar(&o.address, "address", "",
		"Address of the API server as the node has it, https://HOST:PORT; by default the one that kubeadm has "+
			"published for nodes that join (ConfigMap kube-public/cluster-info), or else the one that this command "+
			"asks")
	cmd.Flags().DurationVar(&o.duration, "duration", 8760*time.Hour,
		"Lifetime of the token to ask for; the API server may give a shorter one")
	return cmd
}

func (o *kubeconfigOptions) run(ctx context.Context, c *command, program string) error {
	if !slices.Contains(kubeconfig.Programs, program) {
		return flags.Usage(fmt.Errorf("%q: must be %s", program,
			strings.Join(kubeconfig.Programs, " or ")))
	}
	if o.duration < 10*time.Minute {
		return flags.Usage(errors.New("--duration must be 10m or longer: API servers give no shorter tokens"))
	}
	connected, _, err := c.connect()
	if err != nil {
		return err
	}
	request := kubeconfig.Request{Program: program, Address: o.address, Duration: o.duration,
		Namespace: cmp.Or(c.overrides.Context.Namespace, metav1.NamespaceSystem)}
	made, err := kubeconfig.Make(ctx, connected, request)
	if err != nil {
		return err
	}
	fmt.Fprintf(c.stderr, "The server is %s. The token ends at %s.\n",
		made.Server, made.Ends.UTC().Format(time.RFC3339))
	if given := time.Until(made.Ends); given < o.duration-time.Minute {
		connected.Warn("the API server gives tokens for less than --duration=%s: this one is good for %s", o.duration,
			given.Round(time.Minute))
	}
	_, err = c.stdout.Write(made.Data)
	return err
}
