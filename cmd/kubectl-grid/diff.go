package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/application-grid/application-grid/pkg/apis/enumerate"
	"github.com/application-grid/application-grid/pkg/gridcontroller/workloadpatch"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/cluster"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/diff"
	"github.com/application-grid/application-grid/pkg/program/flags"
)

// exitDifferences is the exit code of diff where something would change, as kubectl diff has it.
const exitDifferences = 1

// externalDiff names the program that compares two files, as for kubectl diff; without it, it is diff -u -N.
const externalDiff = "KUBECTL_EXTERNAL_DIFF"

type diffOptions struct {
	*command

	files []string
	// site is the site to compare; empty with files.
	site string
}

func newDiffCommand(c *command) *cobra.Command {
	o := &diffOptions{command: c}
	cmd := &cobra.Command{
		Use:   "diff -f FILE | KIND/NAME --site SITE",
		Short: "Show what applying grids would change in their workloads",
		Long: "Prints what would change in the children of the grids in files if those were applied now. It asks\n" +
			"the API server (dry-run), so the answer has what the API server or a webhook would fill in or refuse.\n" +
			"Sites whose children change in the same way are shown once, by the first of them, and named.\n\n" +
			"With --site it compares what one site of a grid in the cluster has with what it will get, for example\n" +
			"because a rollout has not reached it yet.\n\n" +
			"KUBECTL_EXTERNAL_DIFF names a program to compare with in place of diff -u -N, as for kubectl diff. You\n" +
			"need the rights to change the grids and their children, though nothing is changed.\n\n" +
			"Exit codes: 0 nothing would change; 1 there are differences; 2 the command line is wrong, or the\n" +
			"question could not be asked; 3 something is refused.",
		Example: "  kubectl grid diff -f grids.yaml\n" +
			"  kustomize build | kubectl grid diff -f -\n" +
			"  kubectl grid diff dg/echo --site east",
		ValidArgsFunction: complete(c.gridArguments),
		Args:              o.parse,
		RunE:              c.asking(o.run),
	}
	cmd.Flags().StringSliceVarP(&o.files, "filename", "f", nil,
		"Files, or directories of .yaml, .yml and .json files, with grids; - is stdin")
	cmd.Flags().StringVar(&o.site, "site", "", "The site to compare, of the grid that is named")
	if err := cmd.MarkFlagFilename("filename", "yaml", "yml", "json"); err != nil {
		panic(err) // the flag is bound above
	}
	return cmd
}

// parse reads the arguments: files, or a grid and a site.
func (o *diffOptions) parse(cmd *cobra.Command, args []string) error {
	o.failure = flags.ExitUsage // 1 says that there are differences
	switch {
	case len(args) > 0 && o.site != "" && len(o.files) == 0:
		return o.parseGrid(0)(cmd, args)
	case len(args) > 0 || o.site != "" || len(o.files) == 0:
		return errors.New("give the files that the grids are in, -f FILE, or a grid of the cluster and a site, " +
			"KIND/NAME --site SITE")
	}
	return nil
}

// grids reads the grids of the files, or the one that is named.
func (o *diffOptions) grids(ctx context.Context) ([]*unstructured.Unstructured, error) {
	if o.site != "" {
		g, err := o.grid(ctx)
		if err != nil {
			return nil, err
		}
		if _, err := g.Child(ctx, o.site); err != nil {
			return nil, err
		}
		grid, err := g.Unstructured()
		return []*unstructured.Unstructured{grid}, err
	}
	grids, others, err := diff.Read(o.files, os.Stdin)
	if others > 0 {
		fmt.Fprintf(o.stderr, "Not compared: %s of another kind. See kubectl diff.\n",
			enumerate.Count(others, "object"))
	}
	return grids, err
}

func (o *diffOptions) run(ctx context.Context) error {
	grids, err := o.grids(ctx)
	if err != nil {
		return err
	}
	nodes, err := cluster.Nodes(ctx, o.API)
	if err != nil {
		return fmt.Errorf("asking for nodes, whose labels are the sites: %w", err)
	}
	schemas, err := workloadpatch.NewForConfig(o.Config)
	if err != nil {
		return err
	}
	source := diff.Source{API: o.API, Nodes: nodes, Merge: schemas.Merge, Site: o.site}
	program := strings.Fields(os.Getenv(externalDiff))
	if len(program) == 0 {
		program = []string{"diff", "-u", "-N"}
	}
	differ, refused := false, false
	for _, grid := range grids {
		switch {
		case grid.GetNamespace() == "":
			grid.SetNamespace(o.namespace)
		case o.overrides.Context.Namespace != "" && grid.GetNamespace() != o.namespace:
			return fmt.Errorf("%s %s is of namespace %s, and --namespace says %s", grid.GetKind(), grid.GetName(),
				grid.GetNamespace(), o.namespace)
		}
		answers, err := source.Compare(ctx, grid)
		if err != nil {
			return cluster.Explain(err)
		}
		for _, answer := range answers {
			if err := answer.Print(ctx, program, o.stdout, o.stderr); err != nil {
				return err
			}
			differ = differ || answer.Differs()
			refused = refused || answer.Refused
		}
	}
	switch {
	case refused:
		return exitError(exitProblems)
	case differ:
		return exitError(exitDifferences)
	}
	return nil
}
