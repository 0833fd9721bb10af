package diff

import (
	"bytes"
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
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/application-grid/application-grid/pkg/apis/enumerate"
	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
)

// Read reads the grids in files, or in directories of .yaml, .yml and .json files. The name - is stdin. others is how
// many of the objects are not grids. It is an error if none is one.
func Read(names []string, stdin io.Reader) (grids []*unstructured.Unstructured, others int, err error) {
	var add func(object runtime.Object) error
	add = func(object runtime.Object) error {
		u, ok := object.(*unstructured.Unstructured)
		switch {
		case ok && u.IsList():
			return u.EachListItem(add)
		case ok && kindOf(u) != nil:
			grids = append(grids, u)
		default:
			others++
		}
		return nil
	}
	for _, name := range names {
		files := []string{name}
		if entries, err := os.ReadDir(name); err == nil {
			files = nil
			for _, entry := range entries {
				if slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(entry.Name())) {
					files = append(files, filepath.Join(name, entry.Name()))
				}
			}
		}
		for _, file := range files {
			if err := decode(file, stdin, add); err != nil {
				return nil, 0, fmt.Errorf("reading %s: %w", file, err)
			}
		}
	}
	if len(grids) == 0 {
		return nil, 0, fmt.Errorf("found no grid in %s", strings.Join(names, ", "))
	}
	return grids, others, nil
}

// decode adds the objects in a file of YAML or JSON documents.
func decode(file string, stdin io.Reader, add func(runtime.Object) error) error {
	data, err := os.ReadFile(file) //nolint:gosec // the file that the user names
	if file == "-" {
		data, err = io.ReadAll(stdin)
	}
	for decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(data), 4096); err == nil; {
		var raw runtime.RawExtension
		if err = decoder.Decode(&raw); err == nil && len(raw.Raw) > 0 { // it has more than comments
			u := &unstructured.Unstructured{}
			if err = u.UnmarshalJSON(raw.Raw); err == nil {
				err = add(u)
			}
		}
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// kindOf returns the kind of grid that an object is; nil if it is not a grid.
func kindOf(u *unstructured.Unstructured) *v1.GridKind {
	for _, k := range v1.Kinds {
		if u.GroupVersionKind() == v1.GroupVersion.WithKind(k.Kind) {
			return &k
		}
	}
	return nil
}

// Print writes the changes, below lines with their sites. A program compares two files, and ends with 1 if they differ.
func (a *Answer) Print(ctx context.Context, program []string, out, problems io.Writer) error {
	about := a.Title
	if len(a.Sites) > 0 {
		about += ", site " + enumerate.First(a.Sites[:1], 1)
	}
	if others := len(a.Sites) - 1; others > 0 {
		about += fmt.Sprintf("\nthe same for %s: %s", enumerate.Count(others, "site"),
			enumerate.First(a.Sites[1:], others))
	}
	if a.Differs() || len(a.Notes) > 0 {
		lines := append([]string{about}, a.Notes...)
		fmt.Fprintln(out, "# "+strings.ReplaceAll(strings.Join(lines, "\n"), "\n", "\n# "))
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
