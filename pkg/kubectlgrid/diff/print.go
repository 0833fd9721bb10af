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

// Print writes the changes, below lines with their sites.
func (p Printer) Print(ctx context.Context, a *Answer) error {
	if !a.Differs() && a.Refused == "" && len(a.Notes) == 0 {
		return nil
	}
	lines := []string{a.Grid}
	if a.Template != "" {
		lines[0] += ", template " + a.Template + ", site " + enumerate.First(a.Sites[:1], 1)
	}
	if len(a.Sites) > 1 {
		lines = append(lines, fmt.Sprintf("the same for %s: %s", enumerate.Count(len(a.Sites)-1, "site"),
			enumerate.First(a.Sites[1:], len(a.Sites))))
	}
	lines = append(lines, a.Notes...)
	if a.Refused != "" {
		lines = append(lines, "REFUSED: "+a.Refused)
	}
	fmt.Fprintln(p.Out, "# "+strings.ReplaceAll(strings.Join(lines, "\n"), "\n", "\n# "))
	if !a.Differs() {
		return nil
	}
	return p.compare(ctx, a)
}

// compare writes both states into files, and runs Program on them.
func (p Printer) compare(ctx context.Context, a *Answer) (err error) {
	dir, err := os.MkdirTemp("", "kubectl-grid-")
	if err != nil {
		return fmt.Errorf("comparing: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	name := fmt.Sprintf("%s.%s.%s.yaml", a.Merged.GetKind(), a.Merged.GetNamespace(), a.Merged.GetName())
	for state, object := range map[string]*unstructured.Unstructured{"LIVE": a.Live, "MERGED": a.Merged} {
		var text []byte
		if object != nil {
			text, err = yaml.Marshal(object.Object)
		}
		err = errors.Join(err, os.Mkdir(filepath.Join(dir, state), 0o700),
			os.WriteFile(filepath.Join(dir, state, name), text, 0o600))
		if err != nil {
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
	if exit, ok := errors.AsType[*exec.ExitError](err); err == nil || (ok && exit.ExitCode() == 1) { // 1: they differ
		return nil
	}
	return fmt.Errorf("comparing with %s: %w", program[0], err)
}
