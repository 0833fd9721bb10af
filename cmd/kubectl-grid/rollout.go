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

	"github.com/application-grid/application-grid/pkg/flags"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/cluster"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/output"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/rollout"
)

// rolloutVerb is a command about the rollout of one grid.
type rolloutVerb struct {
	use, short, long, example string
	// more is how many arguments may follow the grid.
	more int
	do   func(ctx context.Context, c *command, g *rollout.Grid, more []string) error
}

func newRolloutCommand(c *command) *cobra.Command {
	parent := &cobra.Command{
		Use:   "rollout COMMAND",
		Short: "How a change reaches the units: waves, history, undo",
		Long: "Manages the rollout of a DeploymentGrid, StatefulSetGrid or DaemonSetGrid with spec.rollout, as\n" +
			"kubectl rollout does that of a workload.",
		ValidArgsFunction: cobra.NoFileCompletions,
		Args:              flags.UsageArgs(cobra.NoArgs),
		RunE:              func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	parent.AddCommand(newRolloutStatusCommand(c), newRolloutHistoryCommand(c), newRolloutUndoCommand(c))
	for _, verb := range []rolloutVerb{
		{
			use: "pause KIND/NAME", short: "Start no further unit",
			example: "  kubectl grid rollout pause dg/echo",
			do: func(ctx context.Context, c *command, g *rollout.Grid, _ []string) error {
				return c.done(g, "paused", g.Pause(ctx))
			},
		},
		{
			use: "resume KIND/NAME", short: "Let a rollout go on that is paused, or has halted",
			long: "Lets a rollout go on that is paused, or that has halted. The units that have failed until now\n" +
				"count no longer.",
			example: "  kubectl grid rollout resume dg/echo",
			do: func(ctx context.Context, c *command, g *rollout.Grid, _ []string) error {
				return c.done(g, "resumed", g.Resume(ctx))
			},
		},
		{
			use: "approve KIND/NAME [WAVE]", short: "Approve a wave, so that the next one begins", more: 1,
			long: "Approves a wave of the rollout that goes on; without a name, the one that waits. A wave may be\n" +
				"approved before its units are ready.",
			example: "  kubectl grid rollout approve dg/echo canary",
			do: func(ctx context.Context, c *command, g *rollout.Grid, more []string) error {
				wave, err := g.Approve(ctx, strings.Join(more, ""))
				return c.done(g, "wave "+wave+" approved", err)
			},
		},
		{
			use: "restart KIND/NAME", short: "Make all pods anew, wave by wave",
			example: "  kubectl grid rollout restart dg/echo",
			do: func(ctx context.Context, c *command, g *rollout.Grid, _ []string) error {
				return c.done(g, "restarted", g.Restart(ctx, time.Now()))
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

// rolloutCommand makes a command of a verb.
func (c *command) rolloutCommand(verb rolloutVerb) *cobra.Command {
	return &cobra.Command{
		Use: verb.use, Short: verb.short, Long: verb.long, Example: verb.example,
		ValidArgsFunction: c.completeGrids,
		Args:              flags.UsageArgs(cobra.RangeArgs(1, 2+verb.more)),
		RunE: func(cmd *cobra.Command, args []string) error {
			name, more, err := rollout.ParseName(args)
			if err != nil {
				return flags.Usage(err)
			}
			if len(more) > verb.more {
				return flags.Usage(fmt.Errorf("too many arguments: %s", strings.Join(args, " ")))
			}
			g, err := c.grid(cmd.Context(), name)
			if err != nil {
				return err
			}
			return verb.do(cmd.Context(), c, g, more)
		},
	}
}

// grid reads a grid.
func (c *command) grid(ctx context.Context, name rollout.Name) (*rollout.Grid, error) {
	connected, namespace, err := c.connect()
	if err != nil {
		return nil, err
	}
	g, err := rollout.Get(ctx, connected, namespace, name)
	return g, cluster.Explain(err)
}

func newRolloutStatusCommand(c *command) *cobra.Command {
	watch, timeout := true, time.Duration(0)
	cmd := c.rolloutCommand(rolloutVerb{
		use: "status KIND/NAME", short: "How far the rollout has come, wave by wave",
		long: "Prints a table of the waves, and waits until the rollout is complete, unless --watch=false is\n" +
			"given.\n\n" +
			"Exit codes: 0 the rollout is complete, or goes on with --watch=false; 1 it has halted or gone back,\n" +
			"the time is over, or the question could not be asked; 2 the command line is wrong.",
		example: "  kubectl grid rollout status dg/echo\n" +
			"  kubectl grid rollout status dg/echo --watch=false",
		do: func(ctx context.Context, c *command, g *rollout.Grid, _ []string) error {
			if timeout > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeoutCause(ctx, timeout, rollout.ErrTimeout)
				defer cancel()
			}
			file, isFile := c.stdout.(*os.File)
			printer := &rollout.Printer{Out: c.stdout}
			printer.Live = watch && isFile && term.IsTerminal(int(file.Fd()))
			if watch {
				return g.Follow(ctx, printer.Print)
			}
			state, err := g.State()
			if err != nil {
				return fmt.Errorf("%s: %w", g, err)
			}
			return errors.Join(printer.Print(state), state.Err(g))
		},
	})
	cmd.Flags().BoolVarP(&watch, "watch", "w", true, "Wait until the rollout is done")
	cmd.Flags().DurationVar(&timeout, "timeout", 0, "How long to wait. 0: as long as it takes")
	return cmd
}

func newRolloutHistoryCommand(c *command) *cobra.Command {
	revision := int64(0)
	cmd := c.rolloutCommand(rolloutVerb{
		use: "history KIND/NAME", short: "The revisions that there are to go back to",
		example: "  kubectl grid rollout history dg/echo\n" +
			"  kubectl grid rollout history dg/echo --revision=3",
		do: func(ctx context.Context, c *command, g *rollout.Grid, _ []string) error {
			entries, err := g.History(ctx)
			if err != nil {
				return err
			}
			rows := [][]string{{"REVISION", "NAME", "CREATED", "IN USE AS"}}
			for _, entry := range entries {
				if entry.Number == revision {
					text, err := entry.YAML()
					if err != nil {
						return err
					}
					fmt.Fprintf(c.stdout, "# %s, revision %d: %s\n%s", g, entry.Number, entry.Name, text)
					return nil
				}
				rows = append(rows, []string{
					strconv.FormatInt(entry.Number, 10), entry.Name, entry.Created.UTC().Format(time.RFC3339),
					entry.Role,
				})
			}
			if revision != 0 {
				return fmt.Errorf("unable to find revision %d of %s", revision, g)
			}
			return output.NewPrinter(c.stdout).Print(rows...)
		},
	})
	cmd.Flags().Int64Var(&revision, "revision", 0, "Print what this revision has")
	return cmd
}

func newRolloutUndoCommand(c *command) *cobra.Command {
	revision, atOnce := int64(0), false
	cmd := c.rolloutCommand(rolloutVerb{
		use: "undo KIND/NAME", short: "Go back to an earlier revision, through the same waves",
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
			return c.done(g, "rolled back to revision "+strconv.FormatInt(entry.Number, 10), err)
		},
	})
	cmd.Flags().Int64Var(&revision, "to-revision", 0,
		"The revision to go back to. 0: the last one before the present one")
	cmd.Flags().BoolVar(&atOnce, "at-once", false, "Without waves: all units at once")
	return cmd
}
