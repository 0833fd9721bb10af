package serve

import (
	"encoding/json"
	"fmt"
	"net/http"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/application-grid/application-grid/pkg/storage/history"
	"github.com/application-grid/application-grid/pkg/storage/served"
	"github.com/application-grid/application-grid/pkg/storage/wire"
)

// representation writes the objects of one resource in the format of one request.
type representation struct {
	format

	resource *served.Resource
}

// represent returns the representation of a resource that a request asks for.
func represent(r *http.Request, resource *served.Resource, reads reading) (*representation, error) {
	f, err := negotiate(r.Header.Get("Accept"), reads)
	return &representation{format: f, resource: resource}, err
}

// objectType returns the apiVersion and kind of one object.
func (r *representation) objectType() wire.TypeMeta {
	if r.metadata != "" {
		return wire.TypeMeta{APIVersion: r.metadata, Kind: kindMetadata}
	}
	return r.resource.Type()
}

// listType returns the apiVersion and kind of a list.
func (r *representation) listType() wire.TypeMeta {
	t := r.objectType()
	t.Kind += "List"
	return t
}

// body returns the part of an object's body that is written, which is empty if only metadata is shown.
func (r *representation) body(o *history.Object) []byte {
	if r.metadata != "" {
		return nil
	}
	return o.Body
}

// protobufSize returns the length of what appendProtobuf appends.
func (r *representation) protobufSize(o *history.Object) int {
	return wire.Size(o.Meta, r.body(o), o.Revision)
}

// appendProtobuf appends an object's message, without envelope.
func (r *representation) appendProtobuf(dst []byte, o *history.Object) []byte {
	return wire.AppendObject(dst, o.Meta, r.body(o), o.Revision)
}

// appendJSON appends an object with its kind.
func (r *representation) appendJSON(dst []byte, o *history.Object) ([]byte, error) {
	if r.metadata == "" {
		encoded, err := o.JSON()
		if err != nil {
			return nil, err
		}
		t := r.objectType()
		dst = fmt.Appendf(dst, `{"kind":%q,"apiVersion":%q,`, t.Kind, t.APIVersion)
		return append(dst, encoded[1:]...), nil
	}
	partial, err := r.partial(o)
	if err != nil {
		return nil, err
	}
	encoded, err := json.Marshal(partial)
	return append(dst, encoded...), err
}

// appendItem appends an object as an item of a list. Whole objects in a list do not have a kind.
func (r *representation) appendItem(dst []byte, o *history.Object) ([]byte, error) {
	if r.metadata != "" {
		return r.appendJSON(dst, o)
	}
	item, err := o.JSON()
	return append(dst, item...), err
}

// partial returns an object's PartialObjectMetadata.
func (r *representation) partial(o *history.Object) (*metav1.PartialObjectMetadata, error) {
	partial := &metav1.PartialObjectMetadata{}
	if err := partial.Unmarshal(wire.AppendObject(nil, o.Meta, nil, o.Revision)); err != nil {
		return nil, fmt.Errorf("decoding the metadata of %s %s: %w", r.resource.Kind, o.Key(), err)
	}
	setKind(partial, r.objectType())
	return partial, nil
}

// bookmark makes the object of a bookmark, which has nothing but this metadata. Reflectors expect it to have the kind
// that they watch.
func (r *representation) bookmark(meta metav1.ObjectMeta) (served.Typed, error) {
	if r.metadata != "" {
		return &metav1.PartialObjectMetadata{ObjectMeta: meta}, nil
	}
	typed := r.resource.New()
	accessor, ok := typed.(metav1.Object)
	if !ok {
		return nil, fmt.Errorf("a %T has no metadata", typed)
	}
	accessor.SetResourceVersion(meta.ResourceVersion)
	accessor.SetAnnotations(meta.Annotations)
	return typed, nil
}

func setKind(typed served.Typed, t wire.TypeMeta) {
	typed.GetObjectKind().SetGroupVersionKind(schema.FromAPIVersionAndKind(t.APIVersion, t.Kind))
}
