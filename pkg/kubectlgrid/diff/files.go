package diff

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/json"
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
		return nil, fmt.Errorf("found no grid in %s", strings.Join(names, ", "))
	}
	return m, nil
}

// filesIn returns the manifests in a directory, or the file of this name.
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

// add reads the grids of one file, a stream of YAML or JSON documents, including those in a List.
func (m *Manifests) add(name string, file io.Reader) error {
	decoder := yaml.NewYAMLOrJSONDecoder(bufio.NewReader(file), 4096)
	for {
		var raw runtime.RawExtension
		err := decoder.Decode(&raw)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = m.addDocument(raw.Raw)
		}
		if err != nil {
			return fmt.Errorf("%s: reading: %w", name, err)
		}
	}
}

func (m *Manifests) addDocument(data []byte) error {
	u := &unstructured.Unstructured{}
	if len(data) > 0 {
		if err := json.Unmarshal(data, &u.Object); err != nil { // integers stay integers
			return err
		}
	}
	switch {
	case len(u.Object) == 0: // a document of comments
	case u.IsList():
		list, err := u.ToList()
		if err != nil {
			return err
		}
		for i := range list.Items {
			m.addObject(&list.Items[i])
		}
	case u.GetKind() == "" || u.GetAPIVersion() == "":
		return errors.New("an object without apiVersion or kind")
	default:
		m.addObject(u)
	}
	return nil
}

func (m *Manifests) addObject(u *unstructured.Unstructured) {
	if _, ok := kindOf(u); ok {
		m.Grids = append(m.Grids, u)
		return
	}
	m.Others++
}

// kindOf returns the kind of grid that an object is; ok is false if it is not a grid.
func kindOf(u *unstructured.Unstructured) (kind v1.GridKind, ok bool) {
	i := slices.IndexFunc(v1.Kinds, func(k v1.GridKind) bool {
		return u.GroupVersionKind() == v1.GroupVersion.WithKind(k.Kind)
	})
	if i < 0 {
		return v1.GridKind{}, false
	}
	return v1.Kinds[i], true
}
