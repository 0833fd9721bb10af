package diff

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

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/application-grid/application-grid/pkg/apis/enumerate"
)

// Printer writes answers.
type Printer struct {
	Out, Err io.Writer
	// Program compares two files, and ends with 1 if they differ. Empty: diff -u -N.
	Program []string
}

// Print writes the changes, below a line with their sites.
func (p Printer) Print(ctx context.Context, a Answer) error {
	if !a.Differs() && a.Refused == "" && len(a.Notes) == 0 {
		return nil
	}
	title := fmt.Sprintf("# %s %s/%s", a.Kind, a.Namespace, a.Name)
	if a.Template != "" {
		title += ", template " + a.Template
		if len(a.Overrides) > 0 {
			title += " with " + strings.Join(a.Overrides, ", ")
		}
		title += ", site " + enumerate.First(a.Sites[:1], 1)
	}
	fmt.Fprintln(p.Out, title)
	if len(a.Sites) > 1 {
		fmt.Fprintf(p.Out, "# the same for %s: %s\n",
			enumerate.Count(len(a.Sites)-1, "site"), enumerate.First(a.Sites[1:], len(a.Sites)))
	}
	for _, note := range a.Notes {
		fmt.Fprintf(p.Out, "# %s\n", note)
	}
	if a.Refused != "" {
		fmt.Fprintf(p.Out, "# REFUSED: %s\n", strings.ReplaceAll(a.Refused, "\n", "\n# "))
		return nil
	}
	if !a.Differs() {
		return nil
	}
	return p.compare(ctx, a)
}

// compare writes both states into files, and runs Program on them.
func (p Printer) compare(ctx context.Context, a Answer) (err error) {
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
	program := p.Program
	if len(program) == 0 {
		program = []string{"diff", "-u", "-N"}
	}
	arguments := append(slices.Clone(program[1:]), filepath.Join("LIVE", name), filepath.Join("MERGED", name))
	command := exec.CommandContext(ctx, program[0], arguments...) //nolint:gosec // the user's own choice
	command.Dir, command.Stdout, command.Stderr = dir, p.Out, p.Err
	err = command.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() == 1 { // there are differences
		return nil
	}
	if err != nil {
		return fmt.Errorf("comparing with %s: %w", program[0], err)
	}
	return nil
}
