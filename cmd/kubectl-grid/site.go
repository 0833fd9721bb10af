package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/application-grid/application-grid/pkg/kubectlgrid/rollout"
	"github.com/application-grid/application-grid/pkg/program/flags"
)

// kubectlGrace is how long kubectl may take to end when it is interrupted.
const kubectlGrace = 10 * time.Second

func newLogsCommand(c *command) *cobra.Command {
	check := false
	cmd := newSiteCommand(c, &cobra.Command{
		Use:   "logs KIND/NAME --site SITE [--check] [-- KUBECTL-FLAGS]",
		Short: "Print the logs of a pod of a site's workload, or of its check",
		Long: "Runs kubectl logs on a pod of a site's workload, if possible a ready one; with --check on the Job of\n" +
			"the site's last check in a rollout. Flags of kubectl logs follow --. The exit code is that of kubectl.",
		Example: "  kubectl grid logs dg/echo --site east -- --tail=20 -f\n" +
			"  kubectl grid logs dg/echo --site east --check",
	}, func(pod string, after []string) []string {
		return append([]string{"logs", pod}, after...)
	}, func(ctx context.Context, g *rollout.Grid, site string) (string, error) {
		if !check {
			return c.pod(ctx, g, site)
		}
		job, err := g.Check(ctx, site)
		return "job/" + job, err
	})
	cmd.Flags().BoolVar(&check, "check", false, "Print the logs of the site's last check")
	return cmd
}

// pod is the pod of a site's workload that a command is about, as kubectl names it.
func (c *command) pod(ctx context.Context, g *rollout.Grid, site string) (string, error) {
	pods, err := g.Pods(ctx, site)
	if err != nil {
		return "", err
	}
	if len(pods) > 1 {
		fmt.Fprintf(c.stderr, "Site %s has %d pods; this is %s.\n", site, len(pods), pods[0])
	}
	return "pod/" + pods[0], nil
}

func newExecCommand(c *command) *cobra.Command {
	container, stdin, tty := "", false, false
	cmd := newSiteCommand(c, &cobra.Command{
		Use:   "exec KIND/NAME --site SITE [-it] -- COMMAND [ARGUMENTS]",
		Short: "Run a command in a pod of a site's workload",
		Long: "Runs kubectl exec on a pod of a site's workload, if possible a ready one. The command follows --.\n" +
			"The exit code is that of kubectl, which is that of the command.",
		Example: "  kubectl grid exec dg/echo --site east -- hostname\n" +
			"  kubectl grid exec dg/echo --site east -it -- sh",
	}, func(pod string, after []string) []string {
		arguments := []string{"exec", pod}
		if container != "" {
			arguments = append(arguments, "--container="+container)
		}
		if stdin {
			arguments = append(arguments, "--stdin")
		}
		if tty {
			arguments = append(arguments, "--tty")
		}
		return append(append(arguments, "--"), after...)
	}, c.pod)
	args := cmd.Args
	cmd.Args = func(cmd *cobra.Command, given []string) error {
		if err := args(cmd, given); err != nil {
			return err
		}
		if at := cmd.ArgsLenAtDash(); at < 0 || at == len(given) {
			return flags.Usage(errors.New("give the command after --"))
		}
		return nil
	}
	f := cmd.Flags()
	f.StringVarP(&container, "container", "c", "", "The container; by default the one that kubectl chooses")
	f.BoolVarP(&stdin, "stdin", "i", false, "Pass stdin to the command")
	f.BoolVarP(&tty, "tty", "t", false, "Stdin is a terminal")
	return cmd
}

// newSiteCommand makes a command that runs kubectl on what find returns of a site, such as a pod of its workload.
// arguments returns those for kubectl; after is what follows -- on the command line.
func newSiteCommand(
	c *command, cmd *cobra.Command, arguments func(found string, after []string) []string,
	find func(ctx context.Context, g *rollout.Grid, site string) (string, error),
) *cobra.Command {
	site := ""
	var name rollout.Name
	var after []string
	cmd.ValidArgsFunction = complete(c.gridArguments)
	cmd.Args = flags.UsageArgs(func(cmd *cobra.Command, args []string) error {
		if at := cmd.ArgsLenAtDash(); at >= 0 {
			args, after = args[:at], args[at:]
		}
		if len(args) == 0 {
			return errors.New("name a grid: KIND/NAME")
		}
		var more []string
		var err error
		if name, more, err = rollout.ParseName(args, len(args)); err != nil {
			return err
		}
		switch {
		case len(more) > 0:
			return fmt.Errorf("too many arguments: %s; what is for kubectl follows --", strings.Join(more, " "))
		case site == "":
			return errors.New("name a site: --site")
		}
		return nil
	})
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		g, err := c.grid(cmd.Context(), name)
		if err != nil {
			return err
		}
		found, err := find(cmd.Context(), g, site)
		if err != nil {
			return err
		}
		connection := append(kubectlFlags(cmd.InheritedFlags()), "--namespace="+g.Object.GetNamespace())
		return c.kubectl(cmd, append(connection, arguments(found, after)...))
	}
	cmd.Flags().StringVar(&site, "site", "", "The site")
	return cmd
}

// kubectl runs kubectl. An interrupt is passed on to it.
func (c *command) kubectl(cmd *cobra.Command, arguments []string) error {
	kubectl := exec.CommandContext(cmd.Context(), "kubectl", arguments...) //nolint:gosec // the user's own arguments
	kubectl.Stdin, kubectl.Stdout, kubectl.Stderr = cmd.InOrStdin(), c.stdout, c.stderr
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

// kubectlFlags are the flags of the connection that were given, as kubectl also has them, without the namespace.
func kubectlFlags(given *pflag.FlagSet) []string {
	var all []string
	given.VisitAll(func(f *pflag.Flag) {
		if !f.Changed || f.Name == "namespace" {
			return
		}
		values := []string{f.Value.String()}
		if list, ok := f.Value.(pflag.SliceValue); ok {
			values = list.GetSlice()
		}
		for _, value := range values {
			all = append(all, "--"+f.Name+"="+value)
		}
	})
	return all
}
