package diff

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/application-grid/application-grid/pkg/apis/enumerate"
)

// Print writes the changes, below lines with their sites. A program compares two files, and ends with 1 if they differ.
func (a *Answer) Print(ctx context.Context, program []string, out, problems io.Writer) error {
	head := a.Title
	if len(a.Sites) > 0 {
		head += ", " + enumerate.Count(len(a.Sites), "site") + ": " + enumerate.First(a.Sites, len(a.Sites))
	}
	if a.Differs() || len(a.Notes) > 0 {
		fmt.Fprintln(out, "# "+strings.ReplaceAll(strings.Join(append([]string{head}, a.Notes...), "\n"), "\n", "\n# "))
	}
	if !a.Differs() {
		return nil
	}
	dir, err := os.MkdirTemp("", "kubectl-grid-")
	if err != nil {
		return fmt.Errorf("comparing: %w", err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	command := exec.CommandContext(ctx, program[0], program[1:]...) //nolint:gosec // the user's own choice
	command.Dir, command.Stdout, command.Stderr = dir, out, problems
	for _, of := range []struct{ state, text string }{{"LIVE", a.Live}, {"MERGED", a.Merged}} {
		file := filepath.Join(of.state, a.Child+".yaml")
		err = errors.Join(err, os.Mkdir(filepath.Join(dir, of.state), 0o700),
			os.WriteFile(filepath.Join(dir, file), []byte(of.text), 0o600))
		command.Args = append(command.Args, file)
	}
	if err == nil {
		err = command.Run()
	}
	if exit, ok := errors.AsType[*exec.ExitError](err); err == nil || (ok && exit.ExitCode() == 1) {
		return nil
	}
	return fmt.Errorf("comparing with %s: %w", program[0], err)
}
