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
	"github.com/application-grid/application-grid/pkg/kubectlgrid/output"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/status"
	"github.com/application-grid/application-grid/pkg/program/flags"
	"github.com/application-grid/application-grid/pkg/topology"
)

type statusOptions struct {
	allNamespaces bool
	selector      string
	problems      bool
	watch         bool
	noHeaders     bool
	output        output.Format
	// kinds are those to ask for, names the grids of the one kind; none for all.
	kinds []v1.GridKind
	names []string
}

func newStatusCommand(c *command) *cobra.Command {
	o := &statusOptions{}
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
		Args:              flags.UsageArgs(o.parse),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.run(cmd.Context(), c)
		},
	}
	f := cmd.Flags()
	f.BoolVarP(&o.allNamespaces, "all-namespaces", "A", false, "Grids of all namespaces")
	f.StringVarP(&o.selector, "selector", "l", "", "Only grids with these labels, such as team=a,tier!=b")
	f.BoolVar(&o.problems, "problems", false, "Print only sites that are not ready and grids with problems")
	f.BoolVarP(&o.watch, "watch", "w", false, "After the answer, print what changes, until interrupted")
	f.BoolVar(&o.noHeaders, "no-headers", false, "Print the rows of the table only")
	bindOutput(cmd, &o.output, output.Table, output.Wide, output.JSON, output.YAML)
	return cmd
}

// parse reads the arguments as kubectl get does.
func (o *statusOptions) parse(_ *cobra.Command, args []string) error {
	o.kinds, o.names = v1.Kinds, nil
	if len(args) == 0 {
		return nil
	}
	kind, name, hasName := strings.Cut(args[0], "/")
	k, err := cluster.ParseKind(kind)
	if err != nil {
		return err
	}
	o.kinds, o.names = []v1.GridKind{k}, args[1:]
	if hasName {
		if name == "" || len(args) > 1 {
			return fmt.Errorf("give one KIND/NAME, or KIND and then names: %s", strings.Join(args, " "))
		}
		o.names = []string{name}
	}
	switch {
	case len(o.names) > 0 && o.allNamespaces:
		return errors.New("a grid cannot be asked for by name in all namespaces: leave out -A or the name")
	case len(o.names) > 0 && o.selector != "":
		return errors.New("a grid is asked for by name or by label: leave out -l or the name")
	}
	return nil
}

func (o *statusOptions) run(ctx context.Context, c *command) error {
	selector, err := labels.Parse(o.selector)
	if err != nil {
		return flags.Usage(fmt.Errorf("--selector: %w", err))
	}
	connected, namespace, err := c.connect()
	if err != nil {
		return err
	}
	if o.allNamespaces {
		namespace = ""
	}
	query := status.Query{Kinds: o.kinds, Names: o.names, Namespace: namespace, Selector: selector}
	printer := &status.Printer{
		Out: c.stdout, Format: o.output, Problems: o.problems,
		Columns: status.Columns{Wide: o.output == output.Wide, Namespaces: o.allNamespaces, NoHeader: o.noHeaders},
	}
	if o.watch {
		return status.Follow(ctx, connected, query, func(grids []gridview.Grid) error {
			_, err := printer.Print(grids)
			return err
		})
	}
	reader := &status.Reader{API: connected.API, Now: time.Now(), Warn: connected.Warn}
	grids, err := reader.Read(ctx, query)
	if err != nil {
		return err
	}
	var keys []topology.Keys
	for i := range grids {
		keys = append(keys, grids[i].Keys)
	}
	complete := true
	if len(grids) > 0 {
		diagnosis := connected.Diagnose(ctx, check.WithServices)
		printer.Findings, complete = slices.DeleteFunc(diagnosis.OfGrid(keys...), reader.Unread), diagnosis.Complete()
	} else if err := cluster.CheckNamespace(ctx, connected.API, namespace); err != nil {
		return err
	}
	wrote, err := printer.Print(grids)
	switch {
	case err != nil:
		return err
	case !status.Healthy(grids) || gridview.Failed(printer.Findings) || !complete:
		return ending(!status.Healthy(grids) || gridview.Failed(printer.Findings), complete)
	case wrote:
	case len(grids) > 0:
		fmt.Fprintln(c.stderr, "No problems found.")
	case o.allNamespaces:
		fmt.Fprintln(c.stderr, "No grids found.")
	default:
		fmt.Fprintf(c.stderr, "No grids found in %s namespace.\n", namespace)
	}
	return nil
}
