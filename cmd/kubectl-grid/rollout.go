package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	"sigs.k8s.io/yaml"

	"github.com/application-grid/application-grid/pkg/kubectlgrid/cluster"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/output"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/rollout"
)

func newRolloutCommand(c *command) *cobra.Command {
	parent := &cobra.Command{
		Use:   "rollout COMMAND",
		Short: "Follow and steer a change on its way to the sites",
		Long: "Manages the rollout of a DeploymentGrid, StatefulSetGrid or DaemonSetGrid with spec.rollout, as\n" +
			"kubectl rollout does that of a workload.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	parent.AddCommand(newRolloutStatusCommand(c), newRolloutHistoryCommand(c), newRolloutUndoCommand(c),
		c.ofGrid(&cobra.Command{
			Use:     "pause KIND/NAME",
			Short:   "Keep a rollout from changing further sites",
			Example: "  kubectl grid rollout pause dg/echo",
		}, func(ctx context.Context, g *rollout.Grid) (string, error) { return "paused", g.Pause(ctx) }),
		c.ofGrid(&cobra.Command{
			Use:   "resume KIND/NAME",
			Short: "Continue a rollout that is paused or has halted",
			Long: "Continues a rollout that is paused or has halted. Failures so far are forgiven. If a rollout is\n" +
				"paused and has also halted, the command only ends the pause, and prints that the rollout has halted.",
			Example: "  kubectl grid rollout resume dg/echo",
		}, func(ctx context.Context, g *rollout.Grid) (string, error) {
			still, err := g.Resume(ctx)
			if still != "" {
				return "is no longer paused, but it has halted: " + still +
					"\nTo continue it: kubectl grid rollout resume " + g.Ref(), err
			}
			return "resumed", err
		}),
		c.ofGrid(&cobra.Command{
			Use:   "approve KIND/NAME [WAVE]",
			Short: "Approve the wave that waits for an approval",
			Long: "Gives the approval that the rollout waits for. It is valid for this wave of this attempt. If a\n" +
				"wave is named, it must be the one that waits.",
			Example: "  kubectl grid rollout approve dg/echo canary",
			Args:    c.parseGrid(1),
		}, func(ctx context.Context, g *rollout.Grid) (string, error) {
			wave, err := g.Approve(ctx, strings.Join(c.more, ""))
			return "wave " + wave + " approved", err
		}),
		c.ofGrid(&cobra.Command{
			Use:   "restart KIND/NAME",
			Short: "Replace all pods, wave by wave or site by site",
			Long: "Replaces all pods of a grid. With spec.rollout it changes the templates, and the change passes\n" +
				"the waves as any other. Otherwise it restarts the sites' workloads one after the other: it waits\n" +
				"until a site is ready, for at most spec.progressDeadlineSeconds, and ends at the first site that\n" +
				"is not. It leaves out sites that cannot be reached or are held.",
			Example: "  kubectl grid rollout restart dg/echo",
		}, func(ctx context.Context, g *rollout.Grid) (string, error) {
			return g.Restart(ctx, time.Now(), func(site, what string) {
				fmt.Fprintf(c.stdout, "%s: site %s %s\n", g, site, what)
			})
		}))
	return parent
}

// ofGrid completes a command about a grid of workloads, KIND/NAME. do returns what was done with it, in words; empty to
// print nothing.
func (c *command) ofGrid(
	cmd *cobra.Command, do func(ctx context.Context, g *rollout.Grid) (string, error),
) *cobra.Command {
	cmd.ValidArgsFunction = complete(c.gridArguments)
	if cmd.Args == nil {
		cmd.Args = c.parseGrid(0)
	}
	cmd.RunE = c.asking(func(ctx context.Context) error {
		g, err := c.grid(ctx)
		if err != nil {
			return err
		}
		done, err := do(ctx, g)
		switch {
		case err != nil:
			return fmt.Errorf("%s: %w", g, err)
		case done != "":
			fmt.Fprintf(c.stdout, "%s %s\n", g, done)
		}
		return nil
	})
	return cmd
}

// parseGrid reads the arguments of a command about a grid of workloads, which no more than most arguments may follow.
func (c *command) parseGrid(most int) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) (err error) {
		c.name, c.more, err = rollout.ParseName(args, most)
		return err
	}
}

func (c *command) grid(ctx context.Context) (*rollout.Grid, error) {
	g, err := rollout.Get(ctx, c.Cluster, c.namespace, c.name)
	return g, cluster.Explain(err)
}

func newRolloutStatusCommand(c *command) *cobra.Command {
	watch, wait, timeout := true, false, time.Duration(0)
	cmd := c.ofGrid(&cobra.Command{
		Use:   "status KIND/NAME",
		Short: "Show the progress of the rollout, wave by wave",
		Long: "Prints a table of the waves, and waits until the rollout is complete, unless --watch=false is\n" +
			"given. It ends when a person is needed: for an approval, or because the rollout is paused, has halted,\n" +
			"or waits for sites that fell silent at once. With --wait it then waits until somebody has decided.\n\n" +
			"Exit codes: 0 the rollout is complete, or in progress with --watch=false; 1 it was rolled back, the\n" +
			"timeout has passed, or the API server did not answer; 2 the command line is wrong; 4 a person is\n" +
			"needed.",
		Example: "  kubectl grid rollout status dg/echo\n" +
			"  kubectl grid rollout status dg/echo --watch=false",
	}, func(ctx context.Context, g *rollout.Grid) (string, error) {
		if timeout > 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeoutCause(ctx, timeout, errors.New("timed out waiting for the rollout"))
			defer cancel()
		}
		file, ok := c.stdout.(*os.File)
		printer := &rollout.Printer{Out: c.stdout, Live: watch && ok && term.IsTerminal(int(file.Fd()))}
		return "", rollout.Follower{Show: printer.Print, Once: !watch, Wait: wait}.Follow(ctx, g)
	})
	cmd.Flags().BoolVarP(&watch, "watch", "w", true, "Wait until the rollout is done")
	cmd.Flags().BoolVar(&wait, "wait", false, "Wait also while a person is needed")
	cmd.Flags().DurationVar(&timeout, "timeout", 0, "Time to wait. 0: no limit")
	return cmd
}

func newRolloutHistoryCommand(c *command) *cobra.Command {
	revision := int64(0)
	cmd := c.ofGrid(&cobra.Command{
		Use:   "history KIND/NAME",
		Short: "List the revisions that an undo can go back to",
		Example: "  kubectl grid rollout history dg/echo\n" +
			"  kubectl grid rollout history dg/echo --revision=3",
	}, func(ctx context.Context, g *rollout.Grid) (string, error) {
		entries, err := g.History(ctx)
		if err != nil {
			return "", err
		}
		rows := [][]string{{"REVISION", "NAME", "CREATED", "COMPLETED", "IN USE AS"}}
		for _, entry := range entries {
			if entry.Revision == revision {
				text, err := yaml.JSONToYAML(entry.Data.Raw)
				fmt.Fprintf(c.stdout, "# %s, revision %d: %s\n%s", g, entry.Revision, entry.Name, text)
				return "", err
			}
			completed := map[bool]string{true: "yes", false: "no"}[entry.Completed()]
			rows = append(rows, []string{strconv.FormatInt(entry.Revision, 10), entry.Name,
				entry.CreationTimestamp.UTC().Format(time.RFC3339), completed, entry.Role})
		}
		if revision != 0 {
			return "", fmt.Errorf("unable to find revision %d", revision)
		}
		return "", output.NewPrinter(c.stdout).Print(rows...)
	})
	cmd.Flags().Int64Var(&revision, "revision", 0, "Print the content of this revision")
	return cmd
}

func newRolloutUndoCommand(c *command) *cobra.Command {
	var undo rollout.Undo
	cmd := c.ofGrid(&cobra.Command{
		Use:   "undo KIND/NAME",
		Short: "Go back to an earlier revision, through the same waves",
		Long: "Writes an earlier revision into the spec: the one that ran everywhere last, unless --to-revision\n" +
			"names another. Replicas do not change.",
		Example: "  kubectl grid rollout undo dg/echo\n" +
			"  kubectl grid rollout undo dg/echo --to-revision=3 --at-once",
	}, func(ctx context.Context, g *rollout.Grid) (string, error) {
		number, err := g.Undo(ctx, undo)
		if errors.Is(err, rollout.ErrSkipped) {
			return fmt.Sprintf("skipped rollback (current template already matches revision %d)", number), nil
		}
		return fmt.Sprintf("goes back to revision %d", number), err
	})
	cmd.Flags().Int64Var(&undo.Revision, "to-revision", 0,
		"The revision to go back to. 0: the one that ran everywhere last")
	cmd.Flags().BoolVar(&undo.AtOnce, "at-once", false, "Change all sites at once, without waves")
	return cmd
}
