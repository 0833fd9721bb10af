package diff

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
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

// Manifests are the grids of files.
type Manifests struct {
	Grids []*unstructured.Unstructured
	// Others is how many objects of the files are not grids.
	Others int
}

// Read reads the grids in files, or in directories of .yaml, .yml and .json files. The name - is stdin. It is an error
// if none of them has a grid.
func Read(names []string, stdin io.Reader) (*Manifests, error) {
	m := &Manifests{}
	for _, name := range names {
		err := filepath.WalkDir(name, func(file string, entry fs.DirEntry, err error) error {
			manifest := slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(file))
			switch {
			case file == "-":
				return m.read(stdin)
			case err != nil:
				return err
			case entry.IsDir() && file != name:
				return fs.SkipDir
			case entry.IsDir(), file != name && !manifest:
				return nil
			}
			data, err := os.ReadFile(file) //nolint:gosec // the file that the user names
			if err == nil {
				err = m.read(bytes.NewReader(data))
			}
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("reading %s: %w", name, err)
		}
	}
	if len(m.Grids) == 0 {
		return nil, fmt.Errorf("found no grid in %s", strings.Join(names, ", "))
	}
	return m, nil
}

// read reads a stream of YAML or JSON documents.
func (m *Manifests) read(in io.Reader) error {
	decoder := yaml.NewYAMLOrJSONDecoder(in, 4096)
	for {
		raw, u := runtime.RawExtension{}, &unstructured.Unstructured{}
		err := decoder.Decode(&raw)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil && len(raw.Raw) > 0 { // it has more than comments
			if err = u.UnmarshalJSON(raw.Raw); err == nil {
				err = m.add(u)
			}
		}
		if err != nil {
			return err
		}
	}
}

// add adds an object, or those of a List.
func (m *Manifests) add(object runtime.Object) error {
	u, ok := object.(*unstructured.Unstructured)
	switch {
	case ok && u.IsList():
		return u.EachListItem(m.add)
	case ok && kindOf(u) != nil:
		m.Grids = append(m.Grids, u)
	default:
		m.Others++
	}
	return nil
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
	lines := slices.Concat([]string{a.Title}, a.Notes)
	if len(a.Sites) > 1 {
		lines = slices.Insert(lines, 1, fmt.Sprintf("the same for %s: %s", enumerate.Count(len(a.Sites)-1, "site"),
			enumerate.First(a.Sites[1:], len(a.Sites))))
	}
	if a.Differs() || len(a.Notes) > 0 {
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
