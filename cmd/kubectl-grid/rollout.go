package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/rollout"
)

const (
	// rolloutPause is the time between two looks of rollout status.
	rolloutPause = time.Second
	// barWidth is how many characters the progress bar has.
	barWidth = 40
)

// rolloutVerb is a command about the rollout of one grid.
type rolloutVerb struct {
	use, short, long, example string
	// args checks the arguments after the grid's.
	more int
	do   func(ctx context.Context, c *command, g *rollout.Grid, more []string) error
}

func newRolloutCommand(c *command) *cobra.Command {
	parent := &cobra.Command{
		Use:   "rollout COMMAND",
		Short: "How a change reaches the units: waves, history, undo",
		Long: "Manages the rollout of a DeploymentGrid, StatefulSetGrid or DaemonSetGrid with spec.rollout, as kubectl rollout does that of\n" +
			"a workload.",
		Args: usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	parent.AddCommand(newRolloutStatusCommand(c), newRolloutHistoryCommand(c), newRolloutUndoCommand(c))
	for _, verb := range []rolloutVerb{
		{use: "pause KIND/NAME", short: "Start no further unit", do: func(ctx context.Context, c *command, g *rollout.Grid, _ []string) error {
			return c.done(g, "paused", g.Pause(ctx))
		}},
		{use: "resume KIND/NAME", short: "Let a rollout go on that is paused, or has halted", do: func(ctx context.Context, c *command, g *rollout.Grid, _ []string) error {
			return c.done(g, "resumed", g.Resume(ctx))
		}},
		{use: "approve KIND/NAME [WAVE]", short: "Approve of a wave, so that the next one begins", more: 1, do: func(ctx context.Context, c *command, g *rollout.Grid, more []string) error {
			wave, err := g.Approve(ctx, strings.Join(more, ""))
			return c.done(g, "wave "+wave+" approved", err)
		}},
		{use: "restart KIND/NAME", short: "Make all pods anew, wave by wave", do: func(ctx context.Context, c *command, g *rollout.Grid, _ []string) error {
			return c.done(g, "restarted", g.Restart(ctx, time.Now()))
		}},
	} {
		parent.AddCommand(c.rolloutCommand(verb))
	}
	return parent
}

// done says what was done, unless it was not.
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
		Args:              usageArgs(cobra.RangeArgs(1, 2+verb.more)),
		RunE: func(cmd *cobra.Command, args []string) error {
			g, more, err := c.rolloutGrid(cmd.Context(), args)
			if err != nil {
				return err
			}
			if len(more) > verb.more {
				return usageError{fmt.Errorf("too many arguments: %s", strings.Join(args, " "))}
			}
			return verb.do(cmd.Context(), c, g, more)
		},
	}
}

// rolloutGrid reads the grid that the arguments name, as KIND/NAME or KIND NAME, and returns the other arguments.
func (c *command) rolloutGrid(ctx context.Context, args []string) (*rollout.Grid, []string, error) {
	kind, name, ok := strings.Cut(args[0], "/")
	more := args[1:]
	if !ok {
		if len(more) == 0 {
			return nil, nil, usageError{errors.New("name a grid: KIND/NAME")}
		}
		name, more = more[0], more[1:]
	}
	k, err := kindOf(kind)
	if err != nil {
		return nil, nil, err
	}
	if k.Kind == v1.ServiceGridKind.Kind {
		return nil, nil, usageError{errors.New("a ServiceGrid has no rollout")}
	}
	cluster, namespace, err := c.connect()
	if err != nil {
		return nil, nil, err
	}
	g, err := rollout.Get(ctx, cluster.api, k, namespace, name)
	if err != nil {
		return nil, nil, explain(err)
	}
	return g, more, nil
}

func newRolloutStatusCommand(c *command) *cobra.Command {
	watch, timeout := true, time.Duration(0)
	cmd := c.rolloutCommand(rolloutVerb{
		use: "status KIND/NAME", short: "How far the rollout has come, wave by wave",
		long: "Prints a table of the waves, and waits until the rollout is complete, unless --watch=false says otherwise. It ends with 0\n" +
			"when the rollout is complete, and with 1 when it has halted or gone back.",
		example: "  kubectl grid rollout status dg/echo",
		do: func(ctx context.Context, c *command, g *rollout.Grid, _ []string) error {
			if timeout > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeoutCause(ctx, timeout, errors.New("timed out waiting for the rollout"))
				defer cancel()
			}
			return c.followRollout(ctx, g, watch)
		},
	})
	cmd.Flags().BoolVarP(&watch, "watch", "w", true, "Wait until the rollout is done")
	cmd.Flags().DurationVar(&timeout, "timeout", 0, "How long to wait. 0: as long as it takes")
	return cmd
}

// followRollout prints how far a rollout has come, each time that it is another picture.
func (c *command) followRollout(ctx context.Context, g *rollout.Grid, watch bool) error {
	file, isFile := c.stdout.(*os.File)
	live := watch && isFile && term.IsTerminal(int(file.Fd()))
	last, lines := "", 0
	for {
		state, err := g.State()
		if err != nil {
			return fmt.Errorf("%s: %w", g, err)
		}
		var b strings.Builder
		if len(state.Rows) > 0 {
			if err := printTable(&b, state.Rows); err != nil {
				return err
			}
		}
		if live {
			b.WriteString(bar(state))
		}
		b.WriteString(state.Summary + "\n")
		if text := b.String(); text != last {
			if live && lines > 0 {
				fmt.Fprintf(c.stdout, "\x1b[%dA\x1b[J", lines)
			}
			fmt.Fprint(c.stdout, text)
			last, lines = text, strings.Count(text, "\n")
		}
		switch {
		case state.Failed != "":
			return fmt.Errorf("%s: %s", g, state.Failed)
		case state.Done, !watch:
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(rolloutPause):
		}
		if err := g.Refresh(ctx); err != nil {
			if cause := context.Cause(ctx); cause != nil {
				return cause
			}
			return explain(err)
		}
	}
}

// bar is the progress in a line.
func bar(state rollout.State) string {
	if state.Units == 0 {
		return ""
	}
	full := barWidth * state.Updated / state.Units
	return fmt.Sprintf("[%s%s] %d/%d\n", strings.Repeat("#", full), strings.Repeat(".", barWidth-full), state.Updated, state.Units)
}

func newRolloutHistoryCommand(c *command) *cobra.Command {
	revision := int64(0)
	cmd := c.rolloutCommand(rolloutVerb{
		use: "history KIND/NAME", short: "The revisions that there are to go back to",
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
				rows = append(rows, []string{strconv.FormatInt(entry.Number, 10), entry.Name, entry.Created.UTC().Format(time.RFC3339), entry.Role})
			}
			if revision != 0 {
				return fmt.Errorf("unable to find revision %d of %s", revision, g)
			}
			return printTable(c.stdout, rows)
		},
	})
	cmd.Flags().Int64Var(&revision, "revision", 0, "Print what this revision has")
	return cmd
}

func newRolloutUndoCommand(c *command) *cobra.Command {
	revision, atOnce := int64(0), false
	cmd := c.rolloutCommand(rolloutVerb{
		use: "undo KIND/NAME", short: "Go back to an earlier revision, through the same waves",
		do: func(ctx context.Context, c *command, g *rollout.Grid, _ []string) error {
			how := rollout.InWaves
			if atOnce {
				how = rollout.AtOnce
			}
			entry, err := g.Undo(ctx, revision, how)
			if errors.Is(err, rollout.ErrSkipped) {
				fmt.Fprintf(c.stdout, "%s skipped rollback (current template already matches revision %d)\n", g, entry.Number)
				return nil
			}
			return c.done(g, "rolled back to revision "+strconv.FormatInt(entry.Number, 10), err)
		},
	})
	cmd.Flags().Int64Var(&revision, "to-revision", 0, "The revision to go back to. 0: the last one before the present one")
	cmd.Flags().BoolVar(&atOnce, "at-once", false, "Without waves: all units at once")
	return cmd
}

// newUnitCommand makes logs or exec, which run kubectl on the workload of a unit.
func newUnitCommand(c *command, verb, short, example string) *cobra.Command {
	unit := ""
	cmd := &cobra.Command{
		Use: verb + " KIND/NAME --unit UNIT -- [ARGUMENTS]", Short: short,
		Long:              "Runs kubectl " + verb + " on the workload of a unit. What is after -- goes to kubectl as it is.",
		Example:           example,
		ValidArgsFunction: c.completeGrids,
		Args:              usageArgs(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if unit == "" {
				return usageError{errors.New("name a unit: --unit")}
			}
			g, more, err := c.rolloutGrid(cmd.Context(), args)
			if err != nil {
				return err
			}
			child, err := g.Child(cmd.Context(), unit)
			if err != nil {
				return err
			}
			arguments := append(c.kubectlFlags(g.Object.GetNamespace()), verb, strings.ToLower(g.Kind.Child.Kind)+"/"+child)
			if verb == "exec" {
				if at := cmd.ArgsLenAtDash(); at >= 0 {
					more = append([]string{"--"}, more...)
				}
				arguments = append(arguments, "-i")
			}
			kubectl := exec.CommandContext(cmd.Context(), "kubectl", append(arguments, more...)...) //nolint:gosec // the user's own arguments
			kubectl.Stdin, kubectl.Stdout, kubectl.Stderr = cmd.InOrStdin(), c.stdout, c.stderr
			return kubectl.Run()
		},
	}
	cmd.Flags().StringVar(&unit, "unit", "", "The unit")
	return cmd
}

// kubectlFlags lead kubectl to the API server that this command asks.
func (c *command) kubectlFlags(namespace string) []string {
	flags := []string{"--namespace=" + namespace}
	for name, value := range map[string]string{
		"kubeconfig": c.kubeconfig, "context": c.overrides.CurrentContext, "cluster": c.overrides.Context.Cluster,
		"user": c.overrides.Context.AuthInfo, "server": c.overrides.ClusterInfo.Server,
	} {
		if value != "" {
			flags = append(flags, "--"+name+"="+value)
		}
	}
	return flags
}
