package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/application-grid/application-grid/pkg/flags"
	"github.com/application-grid/application-grid/pkg/griddiff"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/cluster"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/diff"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/output"
)

// exitDifferences is the exit code of diff where something would change, as kubectl diff has it.
const exitDifferences = 1

// errDifferences ends a command with exitDifferences. What differs has been printed.
var errDifferences = errors.New("there are differences")

// unanswered is why diff has no answer. Its exit code is not 1, which says that there are differences.
type unanswered struct{ error }

// externalDiff names the program that compares two files, as for kubectl diff; without it, it is diff -u -N.
const externalDiff = "KUBECTL_EXTERNAL_DIFF"

// diffOptions are the flags of `kubectl grid diff`.
type diffOptions struct {
	files []string
}

func newDiffCommand(c *command) *cobra.Command {
	o := &diffOptions{}
	cmd := &cobra.Command{
		Use:   "diff -f FILE",
		Short: "What applying grids would change in their children",
		Long: "Prints what would change in the children of the grids in files if those were applied now. The API\n" +
			"server is asked for it (dry-run), so what it, or a webhook, would fill in or refuse is in the answer.\n" +
			"Units whose children come of the same template are answered for by the first of them, and named.\n\n" +
			"KUBECTL_EXTERNAL_DIFF names another program than diff -u -N to compare with, as for kubectl diff. You\n" +
			"need the rights to change the grids and their children, though nothing is changed.\n\n" +
			"Exit codes: 0 nothing would change; 1 there are differences; 2 the command line is wrong, or the\n" +
			"question could not be asked; 3 something is refused.",
		Example: "  kubectl grid diff -f grids.yaml\n" +
			"  kustomize build | kubectl grid diff -f -",
		ValidArgsFunction: cobra.NoFileCompletions,
		Args:              flags.UsageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			err := o.run(cmd.Context(), c, cmd.InOrStdin())
			var usage flags.UsageError
			if err == nil || errors.Is(err, errDifferences) || errors.Is(err, errProblems) || errors.As(err, &usage) {
				return err
			}
			return unanswered{err}
		},
	}
	cmd.Flags().StringSliceVarP(&o.files, "filename", "f", nil,
		"Files, or directories of .yaml, .yml and .json files, with grids; - is stdin")
	if err := cmd.MarkFlagFilename("filename", "yaml", "yml", "json"); err != nil {
		panic(err) // the flag is bound above
	}
	return cmd
}

func (o *diffOptions) run(ctx context.Context, c *command, stdin io.Reader) error {
	if len(o.files) == 0 {
		return flags.Usage(errors.New("give the files that the grids are in: -f FILE"))
	}
	manifests, err := diff.Read(o.files, stdin)
	if err != nil {
		return err
	}
	if manifests.Others > 0 {
		fmt.Fprintf(c.stderr, "Not compared: %s of another kind. See kubectl diff.\n",
			output.Count(manifests.Others, "object"))
	}
	connected, namespace, err := c.connect()
	if err != nil {
		return err
	}
	nodes, err := cluster.Nodes(ctx, connected.API)
	if err != nil {
		return fmt.Errorf("asking for nodes, whose labels are the units: %w", err)
	}
	source := griddiff.Source{API: connected.API, Nodes: nodes}
	printer := diff.Printer{Out: c.stdout, Err: c.stderr, Program: strings.Fields(os.Getenv(externalDiff))}
	differ, refused := false, false
	for _, grid := range manifests.Grids {
		switch {
		case grid.GetNamespace() == "":
			grid.SetNamespace(namespace)
		case c.overrides.Context.Namespace != "" && grid.GetNamespace() != namespace:
			return fmt.Errorf("%s %s is of namespace %s, and --namespace says %s", grid.GetKind(), grid.GetName(),
				grid.GetNamespace(), namespace)
		}
		answers, err := source.Compare(ctx, grid)
		if err != nil {
			return cluster.Explain(err)
		}
		for _, answer := range answers {
			if err := printer.Print(ctx, answer); err != nil {
				return err
			}
			differ = differ || answer.Differs()
			refused = refused || answer.Refused != ""
		}
	}
	switch {
	case refused:
		return errProblems
	case differ:
		return errDifferences
	}
	return nil
}
