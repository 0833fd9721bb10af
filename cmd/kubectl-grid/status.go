package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/labels"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/gridview"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/check"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/cluster"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/status"
	"github.com/application-grid/application-grid/pkg/topology"
)

// statusOptions are the flags of `kubectl grid status`, and its arguments.
type statusOptions struct {
	*command

	query           status.Query
	problems, watch bool
}

func newStatusCommand(c *command) *cobra.Command {
	o := &statusOptions{command: c, query: status.Query{Kinds: v1.Kinds, Selector: labels.Everything()}}
	cmd := &cobra.Command{
		Use:     "status [KIND | KIND/NAME | KIND NAME...]",
		Aliases: []string{"get"},
		Short:   "Show the state of the grids, site by site",
		Long: "Prints, for every site of the grids, how many pods are desired, ready and updated, and what is\n" +
			"wrong, including what the controller cannot report because it does not run; then the findings of\n" +
			"kubectl grid check about these grids and their Services.\n\n" +
			"With --watch it then prints the rows that change, until it is interrupted (Ctrl-C), with exit code 0.\n" +
			exitCodes,
		Example: "  kubectl grid status                 # all grids of the namespace\n" +
			"  kubectl grid status -A --problems   # what is wrong anywhere\n" +
			"  kubectl grid status dg/echo -o wide\n" +
			"  kubectl grid status -w              # and what changes from now on",
		ValidArgsFunction: complete(c.gridArguments),
		Args:              o.parse,
		RunE:              c.asking(o.run),
	}
	f := cmd.Flags()
	f.FuncP("selector", "l", "Only grids with these `labels`, such as team=a,tier!=b", func(text string) (err error) {
		o.query.Selector, err = labels.Parse(text)
		return err
	})
	f.BoolVar(&o.problems, "problems", false, "Print only sites that are not ready and grids with problems")
	f.BoolVarP(&o.watch, "watch", "w", false, "After the answer, print what changes, until interrupted")
	c.bindTable(cmd, "Grids")
	return cmd
}

// parse reads the arguments as kubectl get does.
func (o *statusOptions) parse(_ *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	kind, name, hasName := strings.Cut(args[0], "/")
	k, err := cluster.ParseKind(kind)
	if err != nil {
		return err
	}
	o.query.Kinds, o.query.Names = []v1.GridKind{k}, args[1:]
	if hasName {
		if name == "" || len(args) > 1 {
			return fmt.Errorf("give one KIND/NAME, or KIND and then names: %s", strings.Join(args, " "))
		}
		o.query.Names = []string{name}
	}
	if len(o.query.Names) > 0 && (o.allNamespaces || !o.query.Selector.Empty()) {
		return errors.New("a grid is asked for by its name, in one namespace: leave out -A and -l, or the name")
	}
	return nil
}

func (o *statusOptions) run(ctx context.Context) error {
	o.query.Namespace = o.namespace
	printer := &status.Printer{Out: o.stdout, Format: o.output, Problems: o.problems, Namespaces: o.allNamespaces,
		NoHeader: o.noHeaders}
	if o.watch {
		return status.Follow(ctx, o.Cluster, o.query, func(grids []gridview.Grid) error {
			_, err := printer.Print(grids)
			return err
		})
	}
	reader := &status.Reader{API: o.API, Now: time.Now(), Warn: o.Warn}
	grids, err := reader.Read(ctx, o.query)
	if err != nil {
		return err
	}
	complete := true
	if len(grids) > 0 {
		var keys []topology.Keys
		for i := range grids {
			keys = append(keys, grids[i].Keys)
		}
		diagnosis := o.Diagnose(ctx, check.WithServices)
		printer.Findings, complete = slices.DeleteFunc(diagnosis.OfGrid(keys...), reader.Unread), diagnosis.Complete()
	} else if err := cluster.CheckNamespace(ctx, o.API, o.namespace); err != nil {
		return err
	}
	failed := !status.Healthy(grids) || gridview.Failed(printer.Findings)
	wrote, err := printer.Print(grids)
	switch {
	case err != nil:
		return err
	case wrote || failed || !complete:
	case len(grids) > 0:
		fmt.Fprintln(o.stderr, "No problems found.")
	case o.allNamespaces:
		fmt.Fprintln(o.stderr, "No grids found.")
	default:
		fmt.Fprintf(o.stderr, "No grids found in %s namespace.\n", o.namespace)
	}
	return ending(failed, complete)
}
