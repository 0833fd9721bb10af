package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/application-grid/application-grid/pkg/kubectlgrid/rollout"
)

// kubectlGrace is how long kubectl may take to end when it is interrupted.
const kubectlGrace = 10 * time.Second

func newLogsCommand(c *command) *cobra.Command {
	check := false
	cmd := c.ofSite(&cobra.Command{
		Use:   "logs KIND/NAME --site SITE [--check] [-- KUBECTL-FLAGS]",
		Short: "Print the logs of a pod of a site's workload, or of its check",
		Long: "Runs kubectl logs on a pod of a site's workload, if possible a ready one; with --check on the Job of\n" +
			"the site's last check in a rollout. Flags of kubectl logs follow --. The exit code is that of kubectl.",
		Example: "  kubectl grid logs dg/echo --site east -- --tail=20 -f\n" +
			"  kubectl grid logs dg/echo --site east --check",
	}, func(ctx context.Context, g *rollout.Grid, site string) ([]string, error) {
		if !check {
			return c.pod(ctx, g, site)
		}
		job, err := g.Check(ctx, site)
		return []string{"job/" + job}, err
	})
	cmd.Flags().BoolVar(&check, "check", false, "Print the logs of the site's last check")
	return cmd
}

// pod is the pod of a site's workload that a command is about, as kubectl names it.
func (c *command) pod(ctx context.Context, g *rollout.Grid, site string) ([]string, error) {
	pods, err := g.Pods(ctx, site)
	if err != nil {
		return nil, err
	}
	if len(pods) > 1 {
		fmt.Fprintf(c.stderr, "Site %s has %d pods; this is %s.\n", site, len(pods), pods[0].Name)
	}
	return []string{"pod/" + pods[0].Name}, nil
}

func newExecCommand(c *command) *cobra.Command {
	cmd := c.ofSite(&cobra.Command{
		Use:   "exec KIND/NAME --site SITE [-it] -- COMMAND [ARGUMENTS]",
		Short: "Run a command in a pod of a site's workload",
		Long: "Runs kubectl exec on a pod of a site's workload, if possible a ready one. The command follows --.\n" +
			"The exit code is that of kubectl, which is that of the command.",
		Example: "  kubectl grid exec dg/echo --site east -- hostname\n" +
			"  kubectl grid exec dg/echo --site east -it -- sh",
		PreRunE: func(cmd *cobra.Command, args []string) error {
			if at := cmd.ArgsLenAtDash(); at < 0 || at == len(args) {
				return errors.New("give the command after --")
			}
			return nil
		},
	}, func(ctx context.Context, g *rollout.Grid, site string) ([]string, error) {
		pod, err := c.pod(ctx, g, site)
		return append(pod, "--"), err
	})
	f := cmd.Flags()
	f.StringP("container", "c", "", "The container; by default the one that kubectl chooses")
	f.BoolP("stdin", "i", false, "Pass stdin to the command")
	f.BoolP("tty", "t", false, "Stdin is a terminal")
	return cmd
}

// ofSite completes a command that runs the command of kubectl with its name. find returns the arguments about a site,
// such as a pod of its workload. They come before what follows -- on the command line.
func (c *command) ofSite(
	cmd *cobra.Command, find func(ctx context.Context, g *rollout.Grid, site string) ([]string, error),
) *cobra.Command {
	site := ""
	var after []string
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if at := cmd.ArgsLenAtDash(); at >= 0 {
			args, after = args[:at], args[at:]
		}
		if site == "" {
			return errors.New("name a site: --site")
		}
		return c.parseGrid(0)(cmd, args)
	}
	c.ofGrid(cmd, func(ctx context.Context, g *rollout.Grid) (string, error) {
		found, err := find(ctx, g, site)
		if err != nil {
			return "", err
		}
		arguments := append(kubectlFlags(cmd.Flags()), "--namespace="+g.Object.GetNamespace())
		return "", c.kubectl(ctx, slices.Concat([]string{cmd.Name()}, arguments, found, after))
	})
	cmd.Flags().StringVar(&site, "site", "", "The site")
	return cmd
}

// kubectl runs kubectl. An interrupt is passed on to it.
func (c *command) kubectl(ctx context.Context, arguments []string) error {
	kubectl := exec.CommandContext(ctx, "kubectl", arguments...) //nolint:gosec // the user's own arguments
	kubectl.Stdin, kubectl.Stdout, kubectl.Stderr = os.Stdin, c.stdout, c.stderr
	kubectl.Cancel = func() error { return kubectl.Process.Signal(os.Interrupt) }
	kubectl.WaitDelay = kubectlGrace
	err := kubectl.Run()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit) && exit.Exited():
		return exitError(exit.ExitCode()) // kubectl has said why
	case err != nil:
		return fmt.Errorf("running kubectl: %w", err)
	}
	return nil
}

// kubectlFlags are the flags that were given, and that kubectl has too, without the namespace.
func kubectlFlags(given *pflag.FlagSet) []string {
	var all []string
	given.Visit(func(f *pflag.Flag) {
		values := []string{f.Value.String()}
		if list, ok := f.Value.(pflag.SliceValue); ok {
			values = list.GetSlice()
		}
		for _, value := range values {
			if !slices.Contains([]string{"check", "namespace", "site"}, f.Name) {
				all = append(all, "--"+f.Name+"="+value)
			}
		}
	})
	return all
}
