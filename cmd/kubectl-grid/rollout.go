package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/application-grid/application-grid/pkg/apis/enumerate"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/cluster"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/output"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/rollout"
	"github.com/application-grid/application-grid/pkg/program/flags"
)

type rolloutVerb struct {
	use, short, long, example string
	// more is how many arguments may follow the grid.
	more int
	do   func(ctx context.Context, c *command, g *rollout.Grid, more []string) error
}

func newRolloutCommand(c *command) *cobra.Command {
	parent := &cobra.Command{
		Use:   "rollout COMMAND",
		Short: "Follow and steer a change on its way to the sites",
		Long: "Manages the rollout of a DeploymentGrid, StatefulSetGrid or DaemonSetGrid with spec.rollout, as\n" +
			"kubectl rollout does that of a workload.",
		ValidArgsFunction: cobra.NoFileCompletions,
		Args:              flags.UsageArgs(cobra.NoArgs),
		RunE:              func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	parent.AddCommand(newRolloutStatusCommand(c), newRolloutHistoryCommand(c), newRolloutUndoCommand(c))
	for _, verb := range []rolloutVerb{
		{
			use: "pause KIND/NAME", short: "Keep a rollout from changing further sites",
			example: "  kubectl grid rollout pause dg/echo",
			do: func(ctx context.Context, c *command, g *rollout.Grid, _ []string) error {
				return c.done(g, "paused", g.Pause(ctx))
			},
		},
		{
			use: "resume KIND/NAME", short: "Continue a rollout that is paused or has halted",
			long: "Continues a rollout that is paused or has halted. Failures so far are forgiven. If a rollout is\n" +
				"paused and has also halted, the command only ends the pause, and prints that the rollout has halted.",
			example: "  kubectl grid rollout resume dg/echo",
			do: func(ctx context.Context, c *command, g *rollout.Grid, _ []string) error {
				still, err := g.Resume(ctx)
				if still != "" {
					return c.done(g, "is no longer paused, but it has halted: "+still+
						"\nTo continue it: kubectl grid rollout resume "+g.Ref(), err)
				}
				return c.done(g, "resumed", err)
			},
		},
		{
			use: "approve KIND/NAME [WAVE]", more: 1,
			short: "Approve the wave that waits for an approval",
			long: "Gives the approval that the rollout waits for. It is valid for this wave of this attempt. If a\n" +
				"wave is named, it must be the one that waits.",
			example: "  kubectl grid rollout approve dg/echo canary",
			do: func(ctx context.Context, c *command, g *rollout.Grid, more []string) error {
				wave, err := g.Approve(ctx, strings.Join(more, ""))
				return c.done(g, "wave "+wave+" approved", err)
			},
		},
		{
			use: "restart KIND/NAME", short: "Replace all pods, wave by wave or site by site",
			long: "Replaces all pods of a grid. With spec.rollout it changes the templates, and the change passes\n" +
				"the waves as any other. Otherwise it restarts the sites' workloads one after the other: it waits\n" +
				"until a site is ready, for at most spec.progressDeadlineSeconds, and ends at the first site that\n" +
				"is not. It leaves out sites that cannot be reached or are held.",
			example: "  kubectl grid rollout restart dg/echo",
			do: func(ctx context.Context, c *command, g *rollout.Grid, _ []string) error {
				sites, left := 0, 0
				begun, err := g.Restart(ctx, time.Now(), func(site, leftOut string) {
					if leftOut != "" {
						left++
						fmt.Fprintf(c.stdout, "%s: site %s is left out: %s\n", g, site, leftOut)
						return
					}
					sites++
					fmt.Fprintf(c.stdout, "%s: site %s restarted\n", g, site)
				})
				switch {
				case begun:
					return c.done(g, "restarts; to follow it: kubectl grid rollout status "+g.Ref(), err)
				case left > 0:
					what := fmt.Sprintf("restarted in %s; %d left out", enumerate.Count(sites, "site"), left)
					return c.done(g, what, err)
				}
				return c.done(g, "restarted", err)
			},
		},
	} {
		parent.AddCommand(c.rolloutCommand(verb))
	}
	return parent
}

// done prints what was done, or returns why it was not.
func (c *command) done(g *rollout.Grid, what string, err error) error {
	if err != nil {
		return fmt.Errorf("%s: %w", g, err)
	}
	fmt.Fprintf(c.stdout, "%s %s\n", g, what)
	return nil
}

func (c *command) rolloutCommand(verb rolloutVerb) *cobra.Command {
	return &cobra.Command{
		Use: verb.use, Short: verb.short, Long: verb.long, Example: verb.example,
		ValidArgsFunction: complete(c.gridArguments),
		Args:              flags.UsageArgs(cobra.RangeArgs(1, 2+verb.more)),
		RunE: func(cmd *cobra.Command, args []string) error {
			name, more, err := rollout.ParseName(args, verb.more)
			if err != nil {
				return flags.Usage(err)
			}
			g, err := c.grid(cmd.Context(), name)
			if err != nil {
				return err
			}
			return verb.do(cmd.Context(), c, g, more)
		},
	}
}

func (c *command) grid(ctx context.Context, name rollout.Name) (*rollout.Grid, error) {
	connected, namespace, err := c.connect()
	if err != nil {
		return nil, err
	}
	g, err := rollout.Get(ctx, connected, namespace, name)
	return g, cluster.Explain(err)
}

func newRolloutStatusCommand(c *command) *cobra.Command {
	watch, wait, timeout := true, false, time.Duration(0)
	cmd := c.rolloutCommand(rolloutVerb{
		use: "status KIND/NAME", short: "Show the progress of the rollout, wave by wave",
		long: "Prints a table of the waves, and waits until the rollout is complete, unless --watch=false is\n" +
			"given. It ends when a person is needed: for an approval, or because the rollout is paused, has halted,\n" +
			"or waits for sites that fell silent at once. With --wait it then waits until somebody has decided.\n\n" +
			"Exit codes: 0 the rollout is complete, or in progress with --watch=false; 1 it was rolled back, the\n" +
			"timeout has passed, or the API server did not answer; 2 the command line is wrong; 4 a person is\n" +
			"needed.",
		example: "  kubectl grid rollout status dg/echo\n" +
			"  kubectl grid rollout status dg/echo --watch=false",
		do: func(ctx context.Context, c *command, g *rollout.Grid, _ []string) error {
			if timeout > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeoutCause(ctx, timeout, rollout.ErrTimeout)
				defer cancel()
			}
			printer := &rollout.Printer{Out: c.stdout, Live: watch && isTerminal(c.stdout)}
			patience := rollout.UntilPerson
			if wait {
				patience = rollout.UntilDone
			}
			if watch {
				return g.Follow(ctx, patience, printer.Print)
			}
			state, err := g.State()
			if err != nil {
				return fmt.Errorf("%s: %w", g, err)
			}
			return errors.Join(printer.Print(state), state.Err(g))
		},
	})
	cmd.Flags().BoolVarP(&watch, "watch", "w", true, "Wait until the rollout is done")
	cmd.Flags().BoolVar(&wait, "wait", false, "Wait also while a person is needed")
	cmd.Flags().DurationVar(&timeout, "timeout", 0, "Time to wait. 0: no limit")
	return cmd
}

func newRolloutHistoryCommand(c *command) *cobra.Command {
	revision := int64(0)
	cmd := c.rolloutCommand(rolloutVerb{
		use: "history KIND/NAME", short: "List the revisions that an undo can go back to",
		example: "  kubectl grid rollout history dg/echo\n" +
			"  kubectl grid rollout history dg/echo --revision=3",
		do: func(ctx context.Context, c *command, g *rollout.Grid, _ []string) error {
			entries, err := g.History(ctx)
			if err != nil {
				return err
			}
			rows := [][]string{{"REVISION", "NAME", "CREATED", "COMPLETED", "IN USE AS"}}
			for _, entry := range entries {
				if entry.Number == revision {
					text, err := entry.YAML()
					if err != nil {
						return err
					}
					fmt.Fprintf(c.stdout, "# %s, revision %d: %s\n%s", g, entry.Number, entry.Name, text)
					return nil
				}
				completed := "no"
				if entry.Completed {
					completed = "yes"
				}
				rows = append(rows, []string{
					strconv.FormatInt(entry.Number, 10), entry.Name, entry.Created.UTC().Format(time.RFC3339),
					completed, entry.Role,
				})
			}
			if revision != 0 {
				return fmt.Errorf("unable to find revision %d of %s", revision, g)
			}
			return output.NewPrinter(c.stdout).Print(rows...)
		},
	})
	cmd.Flags().Int64Var(&revision, "revision", 0, "Print the content of this revision")
	return cmd
}

func newRolloutUndoCommand(c *command) *cobra.Command {
	revision, atOnce := int64(0), false
	cmd := c.rolloutCommand(rolloutVerb{
		use: "undo KIND/NAME", short: "Go back to an earlier revision, through the same waves",
		long: "Writes an earlier revision into the spec: the one that ran everywhere last, unless --to-revision\n" +
			"names another. Replicas do not change.",
		example: "  kubectl grid rollout undo dg/echo\n" +
			"  kubectl grid rollout undo dg/echo --to-revision=3 --at-once",
		do: func(ctx context.Context, c *command, g *rollout.Grid, _ []string) error {
			pace := rollout.InWaves
			if atOnce {
				pace = rollout.AtOnce
			}
			entry, err := g.Undo(ctx, revision, pace)
			if errors.Is(err, rollout.ErrSkipped) {
				fmt.Fprintf(c.stdout, "%s skipped rollback (current template already matches revision %d)\n", g,
					entry.Number)
				return nil
			}
			return c.done(g, "goes back to revision "+strconv.FormatInt(entry.Number, 10), err)
		},
	})
	cmd.Flags().Int64Var(&revision, "to-revision", 0,
		"The revision to go back to. 0: the one that ran everywhere last")
	cmd.Flags().BoolVar(&atOnce, "at-once", false, "Change all sites at once, without waves")
	return cmd
}
