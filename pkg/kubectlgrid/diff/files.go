package diff

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/application-grid/application-grid/pkg/kubectlgrid/griddiff"
)

// Manifests are the grids of files.
type Manifests struct {
	Grids []*unstructured.Unstructured
	// Others is how many objects of the files are no grids.
	Others int
}

// Read reads the grids in files, or in directories of .yaml, .yml and .json files. The name - is stdin. It is an error
// if there is no grid.
func Read(names []string, stdin io.Reader) (*Manifests, error) {
	m := &Manifests{}
	for _, name := range names {
		if name == "-" {
			if err := m.add("stdin", stdin); err != nil {
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
			if err := errors.Join(m.add(path, file), file.Close()); err != nil {
				return nil, err
			}
		}
	}
	if len(m.Grids) == 0 {
		return nil, fmt.Errorf("there is no grid in %s", strings.Join(names, ", "))
	}
	return m, nil
}

// add reads the grids of one file.
func (m *Manifests) add(name string, file io.Reader) error {
	found, left, err := griddiff.Read(file)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	m.Grids, m.Others = append(m.Grids, found...), m.Others+left
	return nil
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
