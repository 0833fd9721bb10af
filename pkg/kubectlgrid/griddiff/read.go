package griddiff

import (
	"bufio"
	"errors"
	"fmt"
	"io"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/yaml"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
)

// Read reads the grids from a stream of YAML or JSON documents, also those in a List. others counts the objects that
// are not grids.
func Read(from io.Reader) (grids []*unstructured.Unstructured, others int, err error) {
	add := func(u *unstructured.Unstructured) {
		if _, ok := kindOf(u); ok {
			grids = append(grids, u)
			return
		}
		others++
	}
	decoder := yaml.NewYAMLOrJSONDecoder(bufio.NewReader(from), 4096)
	for {
		var raw runtime.RawExtension
		if err := decoder.Decode(&raw); errors.Is(err, io.EOF) {
			return grids, others, nil
		} else if err != nil {
			return nil, 0, fmt.Errorf("reading: %w", err)
		}
		u := &unstructured.Unstructured{}
		if len(raw.Raw) > 0 {
			if err := json.Unmarshal(raw.Raw, &u.Object); err != nil { // integers stay integers
				return nil, 0, fmt.Errorf("reading: %w", err)
			}
		}
		switch {
		case len(u.Object) == 0: // a document of comments
		case u.IsList():
			err := u.EachListItem(func(item runtime.Object) error {
				inner, ok := item.(*unstructured.Unstructured)
				if !ok {
					return fmt.Errorf("%T is not an object", item)
				}
				add(inner)
				return nil
			})
			if err != nil {
				return nil, 0, fmt.Errorf("reading a list: %w", err)
			}
		case u.GetKind() == "" || u.GetAPIVersion() == "":
			return nil, 0, errors.New("reading: an object without apiVersion or kind")
		default:
			add(u)
		}
	}
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
