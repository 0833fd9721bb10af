package diff

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"

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
		for _, file := range filesIn(name) {
			if err := m.read(file, stdin); err != nil {
				return nil, err
			}
		}
	}
	if len(m.Grids) == 0 {
		return nil, fmt.Errorf("found no grid in %s", strings.Join(names, ", "))
	}
	return m, nil
}

// filesIn returns the manifests in a directory, or the name itself if it is not one that can be read.
func filesIn(name string) (files []string) {
	entries, err := os.ReadDir(name)
	if err != nil { // reading the file finds the error, if the name is not stdin
		return []string{name}
	}
	for _, entry := range entries {
		if !entry.IsDir() && slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(entry.Name())) {
			files = append(files, filepath.Join(name, entry.Name()))
		}
	}
	return files
}

// read reads the grids of one file, a stream of YAML or JSON documents, including those in a List.
func (m *Manifests) read(name string, stdin io.Reader) error {
	if name == "-" {
		name = "stdin"
	} else {
		data, err := os.ReadFile(name) //nolint:gosec // the file that the user names
		if err != nil {
			return fmt.Errorf("reading: %w", err)
		}
		stdin = bytes.NewReader(data)
	}
	decoder := yaml.NewYAMLOrJSONDecoder(stdin, 4096)
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
			return fmt.Errorf("%s: reading: %w", name, err)
		}
	}
}

// add adds an object, or those of a List.
func (m *Manifests) add(object runtime.Object) error {
	u, ok := object.(*unstructured.Unstructured)
	if !ok || u.GetKind() == "" || u.GetAPIVersion() == "" {
		return errors.New("an object without apiVersion or kind")
	}
	if u.IsList() {
		return u.EachListItem(m.add)
	}
	if _, ok := kindOf(u); ok {
		m.Grids = append(m.Grids, u)
	} else {
		m.Others++
	}
	return nil
}

// kindOf returns the kind of grid that an object is; ok is false if it is not a grid.
func kindOf(u *unstructured.Unstructured) (kind v1.GridKind, ok bool) {
	for _, k := range v1.Kinds {
		if u.GroupVersionKind() == v1.GroupVersion.WithKind(k.Kind) {
			return k, true
		}
	}
	return v1.GridKind{}, false
}
