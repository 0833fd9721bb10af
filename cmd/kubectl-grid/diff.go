package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/application-grid/application-grid/pkg/apis/enumerate"
	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
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
	// kubectlFlags are the flags that were given, and that kubectl has too.
	kubectlFlags []string
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
		"Files, directories or URLs with grids, which kubectl reads; - is stdin")
	cmd.Flags().StringVar(&o.site, "site", "", "The site to compare, of the grid that is named")
	if err := cmd.MarkFlagFilename("filename", "yaml", "yml", "json"); err != nil {
		panic(err) // the flag is bound above
	}
	return cmd
}

// parse reads the arguments: files, or a grid and a site.
func (o *diffOptions) parse(cmd *cobra.Command, args []string) error {
	o.failure = flags.ExitUsage // 1 says that there are differences
	// Former kubectls do not have this flag, and kubectl asks no API server here.
	o.kubectlFlags = slices.DeleteFunc(kubectlFlags(cmd.Flags()), func(flag string) bool {
		return strings.HasPrefix(flag, "--"+clientcmd.FlagProxyURL+"=")
	})
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
	if o.site == "" {
		return o.readFiles(ctx)
	}
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

// readFiles has kubectl read the grids in the files: with an empty patch it prints what objects they have.
func (o *diffOptions) readFiles(ctx context.Context) (grids []*unstructured.Unstructured, err error) {
	arguments := append([]string{"patch", "--local", "--type=merge", "--patch={}", "--output=json"}, o.kubectlFlags...)
	kubectl := exec.CommandContext(ctx, "kubectl", arguments...) //nolint:gosec // the user's own flags
	kubectl.Stdin, kubectl.Stderr = os.Stdin, o.stderr
	objects, err := kubectl.Output()
	if err != nil {
		return nil, fmt.Errorf("reading the files with kubectl: %w", err)
	}
	others := 0
	for decoder := json.NewDecoder(bytes.NewReader(objects)); decoder.More(); {
		object := &unstructured.Unstructured{}
		if err := decoder.Decode(object); err != nil {
			return nil, fmt.Errorf("reading the answer of kubectl: %w", err)
		}
		if slices.ContainsFunc(v1.Kinds, func(k v1.GridKind) bool {
			return object.GroupVersionKind() == v1.GroupVersion.WithKind(k.Kind)
		}) {
			grids = append(grids, object)
		} else {
			others++
		}
	}
	switch {
	case len(grids) == 0:
		return nil, fmt.Errorf("found no grid in %s", strings.Join(o.files, ", "))
	case others > 0:
		fmt.Fprintf(o.stderr, "Not compared: %s of another kind. See kubectl diff.\n",
			enumerate.Count(others, "object"))
	}
	return grids, nil
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
	source := diff.Source{API: o.API, Nodes: nodes, Schemas: schemas, Site: o.site}
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
