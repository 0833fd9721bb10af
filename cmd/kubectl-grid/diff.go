package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/clock"
	"sigs.k8s.io/yaml"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/griddiff"
	"github.com/application-grid/application-grid/pkg/workloadpatch"
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
	unit  string
}

func newDiffCommand(c *command) *cobra.Command {
	o := &diffOptions{}
	cmd := &cobra.Command{
		Use:   "diff -f FILE | KIND/NAME --unit UNIT",
		Short: "What applying grids would change in their children",
		Long: "Prints what would change in the children of the grids in files if those were applied now. The API server is\n" +
			"asked for it (dry-run), so what it, or a webhook, would fill in or refuse is in the answer. Units whose children\n" +
			"come of the same template are answered for by the first of them, and named.\n\n" +
			"With --unit, what one unit of a grid in the cluster has is compared with what it will get. A rollout may not have come\n" +
			"to it yet.\n\n" +
			"KUBECTL_EXTERNAL_DIFF names another program than diff -u -N to compare with, as for kubectl diff. You need the\n" +
			"rights to change the grids and their children, though nothing is changed.\n\n" +
			"Exit codes: 0 nothing would change; 1 there are differences; 2 the command line is wrong, or the question could\n" +
			"not be asked; 3 something is refused.",
		Example: "  kubectl grid diff -f grids.yaml\n" +
			"  kustomize build | kubectl grid diff -f -\n" +
			"  kubectl grid diff dg/echo --unit lyon",
		ValidArgsFunction: c.completeGrids,
		Args:              usageArgs(cobra.MaximumNArgs(2)),
		RunE: func(cmd *cobra.Command, args []string) error {
			err := o.run(cmd.Context(), c, cmd.InOrStdin(), args)
			var usage usageError
			if err == nil || errors.Is(err, errDifferences) || errors.Is(err, errProblems) || errors.As(err, &usage) {
				return err
			}
			return unanswered{err}
		},
	}
	cmd.Flags().StringSliceVarP(&o.files, "filename", "f", nil, "Files, or directories of .yaml, .yml and .json files, with grids; - is stdin")
	cmd.Flags().StringVar(&o.unit, "unit", "", "The unit to compare, of the grid that is named")
	if err := cmd.MarkFlagFilename("filename", "yaml", "yml", "json"); err != nil {
		panic(err) // the flag is bound above
	}
	return cmd
}

func (o *diffOptions) run(ctx context.Context, c *command, stdin io.Reader, args []string) error {
	grids, err := o.grids(ctx, c, stdin, args)
	if err != nil {
		return err
	}
	cluster, namespace, err := c.connect()
	if err != nil {
		return err
	}
	nodes, err := cluster.nodes(ctx)
	if err != nil {
		return fmt.Errorf("asking for nodes, whose labels are the units: %w", err)
	}
	schemas, err := workloadpatch.NewForConfig(cluster.config, clock.RealClock{})
	if err != nil {
		return err
	}
	source := griddiff.Source{API: cluster.api, Nodes: nodes, Merge: schemas.Merge, Unit: o.unit}
	differ, refused := false, false
	for _, grid := range grids {
		switch {
		case grid.GetNamespace() == "":
			grid.SetNamespace(namespace)
		case c.overrides.Context.Namespace != "" && grid.GetNamespace() != namespace:
			return fmt.Errorf("%s %s is of namespace %s, and --namespace says %s", grid.GetKind(), grid.GetName(), grid.GetNamespace(), namespace)
		}
		answers, err := source.Compare(ctx, grid)
		if err != nil {
			return explain(err)
		}
		for _, answer := range answers {
			if err := c.printAnswer(ctx, answer); err != nil {
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

// grids are those of the files, or the one in the cluster that is named.
func (o *diffOptions) grids(ctx context.Context, c *command, stdin io.Reader, args []string) ([]*unstructured.Unstructured, error) {
	switch {
	case len(args) == 0 && len(o.files) > 0:
		return o.read(c, stdin)
	case len(args) == 0:
		return nil, usageError{errors.New("give the files that the grids are in, -f FILE, or KIND/NAME and --unit")}
	case len(o.files) > 0 || o.unit == "":
		return nil, usageError{errors.New("give KIND/NAME with --unit and without -f")}
	}
	g, more, err := c.rolloutGrid(ctx, args)
	if err != nil {
		return nil, err
	}
	if len(more) > 0 {
		return nil, usageError{fmt.Errorf("too many arguments: %s", strings.Join(args, " "))}
	}
	if _, err := g.Child(ctx, o.unit); err != nil {
		return nil, err
	}
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(g.Object)
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", g, err)
	}
	grid := &unstructured.Unstructured{Object: object}
	grid.SetGroupVersionKind(v1.GroupVersion.WithKind(g.Kind.Kind))
	return []*unstructured.Unstructured{grid}, nil
}

// read reads the grids of all files.
func (o *diffOptions) read(c *command, stdin io.Reader) ([]*unstructured.Unstructured, error) {
	var grids []*unstructured.Unstructured
	others := 0
	add := func(name string, from io.Reader) error {
		found, left, err := griddiff.Read(from)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		grids, others = append(grids, found...), others+left
		return nil
	}
	for _, name := range o.files {
		if name == "-" {
			if err := add("stdin", stdin); err != nil {
				return nil, err
			}
			continue
		}
		files, err := filesIn(name)
		if err != nil {
			return nil, err
		}
		for _, path := range files {
			file, err := os.Open(path) //nolint:gosec // the file that the user names
			if err != nil {
				return nil, fmt.Errorf("opening: %w", err)
			}
			if err := errors.Join(add(path, file), file.Close()); err != nil {
				return nil, err
			}
		}
	}
	if len(grids) == 0 {
		return nil, fmt.Errorf("there is no grid in %s", strings.Join(o.files, ", "))
	}
	if others > 0 {
		fmt.Fprintf(c.stderr, "Not compared: %s that no grid is. See kubectl diff.\n", count(others, "object"))
	}
	return grids, nil
}

// filesIn are the manifests in a directory, or the file of this name.
func filesIn(name string) ([]string, error) {
	info, err := os.Stat(name)
	if err != nil {
		return nil, fmt.Errorf("reading: %w", err)
	}
	if !info.IsDir() {
		return []string{name}, nil
	}
	entries, err := os.ReadDir(name)
	if err != nil {
		return nil, fmt.Errorf("reading: %w", err)
	}
	var files []string
	for _, entry := range entries {
		if !entry.IsDir() && slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(entry.Name())) {
			files = append(files, filepath.Join(name, entry.Name()))
		}
	}
	return files, nil
}

// printAnswer prints what would change, under a line that says for which units.
func (c *command) printAnswer(ctx context.Context, a griddiff.Answer) error {
	if !a.Differs() && a.Refused == "" && len(a.Notes) == 0 {
		return nil
	}
	title := fmt.Sprintf("# %s %s/%s", a.Kind, a.Namespace, a.Name)
	if a.Template != "" {
		title += ", template " + a.Template + ", unit " + a.Units[0]
	}
	fmt.Fprintln(c.stdout, title)
	if len(a.Units) > 1 {
		fmt.Fprintf(c.stdout, "# the same for %s: %s\n", count(len(a.Units)-1, "unit"), strings.Join(a.Units[1:], ", "))
	}
	for _, note := range a.Notes {
		fmt.Fprintf(c.stdout, "# %s\n", note)
	}
	if a.Refused != "" {
		fmt.Fprintf(c.stdout, "# REFUSED: %s\n", strings.ReplaceAll(a.Refused, "\n", "\n# "))
		return nil
	}
	if !a.Differs() {
		return nil
	}
	return c.runDiff(ctx, a)
}

// runDiff writes both states into files and has them compared.
func (c *command) runDiff(ctx context.Context, a griddiff.Answer) (err error) {
	dir, err := os.MkdirTemp("", "kubectl-grid-")
	if err != nil {
		return fmt.Errorf("comparing: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	name := fmt.Sprintf("%s.%s.%s.yaml", a.Merged.GetKind(), a.Namespace, a.Child)
	for state, object := range map[string]*unstructured.Unstructured{"LIVE": a.Live, "MERGED": a.Merged} {
		var text []byte
		if object != nil {
			if text, err = yaml.Marshal(object.Object); err != nil {
				return fmt.Errorf("comparing: %w", err)
			}
		}
		if err := os.Mkdir(filepath.Join(dir, state), 0o700); err != nil {
			return fmt.Errorf("comparing: %w", err)
		}
		if err := os.WriteFile(filepath.Join(dir, state, name), text, 0o600); err != nil {
			return fmt.Errorf("comparing: %w", err)
		}
	}
	program := strings.Fields(os.Getenv(externalDiff))
	if len(program) == 0 {
		program = []string{"diff", "-u", "-N"}
	}
	arguments := append(slices.Clone(program[1:]), filepath.Join("LIVE", name), filepath.Join("MERGED", name))
	command := exec.CommandContext(ctx, program[0], arguments...) //nolint:gosec // the user's own choice
	command.Dir, command.Stdout, command.Stderr = dir, c.stdout, c.stderr
	err = command.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == 1 { // there are differences
		return nil
	}
	if err != nil {
		return fmt.Errorf("comparing with %s: %w", program[0], err)
	}
	return nil
}
