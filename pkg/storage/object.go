package storage

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/application-grid/application-grid/pkg/wire"
)

// Object is one version of one served object. It is immutable and may be read without a lock.
type Object struct {
	// Revision is the object's resourceVersion.
	Revision uint64

	resource *Resource
	// meta is the upstream object that this is a view of; its Body may differ from body.
	meta *wire.Object
	// body is the encoded object without metadata. Of an object that is not pruned it is meta.Body itself.
	body   []byte
	fields map[string]string
	// json is the encoded object, made once, when first asked for.
	json atomic.Pointer[[]byte]
}

// Namespace is "" for an object that has none.
func (o *Object) Namespace() string { return o.meta.Namespace }

// Name is the object's name.
func (o *Object) Name() string { return o.meta.Name }

// ProtobufSize is the length of the object's protobuf message in bytes.
func (o *Object) ProtobufSize() int { return wire.Size(o.meta.Meta, o.body, o.Revision) }

// AppendProtobuf appends the object's protobuf message, without envelope.
func (o *Object) AppendProtobuf(dst []byte) []byte {
	return wire.AppendObject(dst, o.meta.Meta, o.body, o.Revision)
}

// JSON is the object as kube-apiserver writes it in a list: without apiVersion and kind.
func (o *Object) JSON() ([]byte, error) {
	if encoded := o.json.Load(); encoded != nil {
		return *encoded, nil
	}
	typed, err := o.Decode()
	if err != nil {
		return nil, err
	}
	encoded, err := json.Marshal(typed)
	if err != nil {
		return nil, fmt.Errorf("encoding %s %s/%s as JSON: %w", o.resource.Kind, o.Namespace(), o.Name(), err)
	}
	o.json.Store(&encoded)
	return encoded, nil
}

// Decode makes a Go value of the object. The caller owns it.
func (o *Object) Decode() (Typed, error) {
	typed := o.resource.newTyped()
	if err := typed.Unmarshal(o.AppendProtobuf(make([]byte, 0, o.ProtobufSize()))); err != nil {
		return nil, fmt.Errorf("decoding %s %s/%s: %w", o.resource.Kind, o.Namespace(), o.Name(), err)
	}
	return typed, nil
}

// at is the same object with another revision.
func (o *Object) at(revision uint64) *Object {
	return &Object{Revision: revision, resource: o.resource, meta: o.meta, body: o.body, fields: o.fields}
}

// same tells whether clients would see no difference but the revision.
func (o *Object) same(meta *wire.Object, body []byte) bool {
	return bytes.Equal(o.meta.Meta, meta.Meta) && bytes.Equal(o.body, body)
}

// differsInContent tells whether a later version is worth a new State at once. A report of the own Node's status,
// which comes every few minutes, is not, nor are the generation and the time of the last change of a slice, which
// change with endpoints of other units too.
func (o *Object) differsInContent(later *Object) bool {
	switch o.resource {
	case Nodes:
		return !bytes.Equal(o.meta.Meta, later.meta.Meta)
	case EndpointSlices, Endpoints:
		return !bytes.Equal(o.body, later.body) || !maps.Equal(o.meta.Labels, later.meta.Labels)
	default:
		return true
	}
}

// size is what the object costs in memory, in bytes, as far as the log counts it. As JSON, which it will be once
// a client wants that, it is about twice as long.
func (o *Object) size() int { return 3*(len(o.meta.Meta)+len(o.body)) + 256 }

// compare orders objects as kube-apiserver's lists do: by namespace, then by name.
func (o *Object) compare(namespace, name string) int {
	if c := strings.Compare(o.meta.Namespace, namespace); c != 0 {
		return c
	}
	return strings.Compare(o.meta.Name, name)
}

// Selector picks objects. The zero Selector picks all.
type Selector struct {
	// Namespace is "" for all.
	Namespace string
	Labels    labels.Selector
	Fields    fields.Selector
}

// Matches tells whether the selector picks the object.
func (s Selector) Matches(o *Object) bool {
	return (s.Namespace == "" || s.Namespace == o.meta.Namespace) &&
		(s.Labels == nil || s.Labels.Empty() || s.Labels.Matches(labels.Set(o.meta.Labels))) &&
		(s.Fields == nil || s.Fields.Empty() || s.Fields.Matches(objectFields{o}))
}

// Everything tells whether the selector picks all objects, whatever they are.
func (s Selector) Everything() bool {
	return s.Namespace == "" && (s.Labels == nil || s.Labels.Empty()) && (s.Fields == nil || s.Fields.Empty())
}

// objectFields is an Object as a field selector sees it.
type objectFields struct{ o *Object }

var _ fields.Fields = objectFields{}

func (f objectFields) Has(field string) bool {
	return field == "metadata.name" || field == "metadata.namespace" || slices.Contains(f.o.resource.FieldLabels, field)
}

func (f objectFields) Get(field string) string {
	switch field {
	case "metadata.name":
		return f.o.meta.Name
	case "metadata.namespace":
		return f.o.meta.Namespace
	default:
		return f.o.fields[field]
	}
}
