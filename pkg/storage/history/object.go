package history

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/application-grid/application-grid/pkg/storage/served"
	"github.com/application-grid/application-grid/pkg/storage/wire"
)

// Version is the shown form of an object, without its revision. It must not be changed after it was passed to an
// Update.
type Version struct {
	// Object has no ResourceVersion in a History.
	wire.Object

	// Fields has the values of the resource's FieldLabels, in their order.
	Fields []string
}

// NewVersion makes the version of an upstream object that is shown with the given body. It returns an error if its
// fields cannot be read; the version then has no Fields.
func NewVersion(r *served.Resource, o *wire.Object, body []byte) (Version, error) {
	v := Version{Object: *o}
	v.ResourceVersion, v.Body = "", body
	var err error
	v.Fields, err = r.Fields(body)
	return v, err
}

// looksLike reports whether a client would see no difference between the versions: they differ at most in fields that
// wire.SameMeta ignores.
func (v *Version) looksLike(other *Version) bool {
	return bytes.Equal(v.Body, other.Body) && wire.SameMeta(v.Meta, other.Meta)
}

// Digest returns a digest of everything that a client would see of the version. It is the same in every process.
func (v *Version) Digest() uint64 { return wire.Digest("", v.Meta, v.Body) }

// size returns the memory that the version holds, in bytes.
func (v *Version) size() int {
	const entry = 48 // of a map, with its two string headers
	n := 256 + len(v.Namespace) + len(v.Name) + len(v.UID) + cap(v.Meta) + cap(v.Body)
	for key, value := range v.Labels {
		n += entry + len(key) + len(value)
	}
	for _, value := range v.Fields {
		n += 16 + len(value)
	}
	return n
}

// Object is one version of an object at its revision. It is immutable and may be read without a lock.
type Object struct {
	Version

	// Revision is the object's resourceVersion.
	Revision uint64
	resource *served.Resource
	encoded  *JSONCache
}

// uncached keeps nothing.
var uncached = &JSONCache{}

// NewObject makes an object outside of any History: an upstream's, with the upstream's own resourceVersion.
func NewObject(r *served.Resource, o *wire.Object) *Object {
	revision, _ := strconv.ParseUint(o.ResourceVersion, 10, 64) // kube-apiserver's are numbers
	return &Object{Version: Version{Object: *o}, Revision: revision, resource: r, encoded: uncached}
}

// JSON returns the object as kube-apiserver writes it in a list: without apiVersion and kind. The caller must not
// change it.
func (o *Object) JSON() ([]byte, error) {
	if encoded := o.encoded.get(o); encoded != nil {
		return encoded, nil
	}
	typed, err := o.Decode()
	if err != nil {
		return nil, err
	}
	encoded, err := json.Marshal(typed)
	if err != nil {
		return nil, fmt.Errorf("encoding %s %s as JSON: %w", o.resource.Kind, o.Key(), err)
	}
	o.encoded.put(o, encoded)
	return encoded, nil
}

// Decode makes a Go value of the object. The caller owns it.
func (o *Object) Decode() (served.Typed, error) {
	typed := o.resource.New()
	message := make([]byte, 0, wire.Size(o.Meta, o.Body, o.Revision))
	if err := typed.Unmarshal(wire.AppendObject(message, o.Meta, o.Body, o.Revision)); err != nil {
		return nil, fmt.Errorf("decoding %s %s: %w", o.resource.Kind, o.Key(), err)
	}
	return typed, nil
}

func (o *Object) withRevision(revision uint64) *Object {
	return &Object{Version: o.Version, Revision: revision, resource: o.resource, encoded: o.encoded}
}

// Selector selects objects. The zero Selector selects all.
type Selector struct {
	// Namespace is "" for all namespaces.
	Namespace string
	Labels    labels.Selector
	Fields    fields.Selector
}

// Matches reports whether the selector selects the object.
func (s Selector) Matches(o *Object) bool {
	return (s.Namespace == "" || s.Namespace == o.Namespace) &&
		(s.Labels == nil || s.Labels.Empty() || s.Labels.Matches(labels.Set(o.Labels))) &&
		(s.Fields == nil || s.Fields.Empty() || s.Fields.Matches(fieldsOf(o)))
}

// fieldsOf returns the fields of an Object for field selectors.
func fieldsOf(o *Object) fields.Set {
	set := fields.Set{"metadata.name": o.Name, "metadata.namespace": o.Namespace}
	for i, value := range o.Fields {
		set[o.resource.FieldLabels[i]] = value
	}
	return set
}
