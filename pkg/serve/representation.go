package serve

import (
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
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
	table    tableOptions
}

// represent returns the representation of a resource that a request asks for.
func (s *Server) represent(r *http.Request, resource *served.Resource, reads reading) (*representation, error) {
	f, err := negotiate(r.Header.Get("Accept"), reads)
	if err != nil {
		return nil, err
	}
	as := &representation{format: f, resource: resource}
	if f.form == formTable {
		as.table, err = parseTableOptions(r.URL.Query().Get("includeObject"), s.now)
	}
	return as, err
}

// objectType returns the apiVersion and kind of one object.
func (r *representation) objectType() wire.TypeMeta {
	switch r.form {
	case formMetadata:
		return wire.TypeMeta{APIVersion: r.version, Kind: kindMetadata}
	case formTable:
		return wire.TypeMeta{APIVersion: r.version, Kind: kindTable}
	default:
		return r.resource.Type()
	}
}

// listType returns the apiVersion and kind of a list.
func (r *representation) listType() wire.TypeMeta {
	t := r.objectType()
	if r.form != formTable {
		t.Kind += "List"
	}
	return t
}

// body returns the part of an object's body that is written, which is empty if only metadata is shown.
func (r *representation) body(o *history.Object) []byte {
	if r.form == formMetadata || (r.form == formTable && r.table.include != metav1.IncludeObject) {
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
	switch r.form {
	case formMetadata:
		partial, err := r.metadata(o)
		if err != nil {
			return nil, err
		}
		return appendMarshalled(dst, partial)
	case formTable:
		typed, err := o.Decode()
		if err != nil {
			return nil, err
		}
		return r.appendTable(dst, typed)
	default:
		return appendObjectJSON(dst, o, r.resource.Type())
	}
}

// appendItem appends an object as an item of a list. Whole objects in a list do not have a kind.
func (r *representation) appendItem(dst []byte, o *history.Object) ([]byte, error) {
	switch r.form {
	case formMetadata:
		return r.appendJSON(dst, o)
	case formTable:
		typed, err := o.Decode()
		if err != nil {
			return nil, err
		}
		row, err := r.row(typed)
		if err != nil {
			return nil, err
		}
		return appendMarshalled(dst, row)
	default:
		item, err := o.JSON()
		return append(dst, item...), err
	}
}

// metadata returns an object's PartialObjectMetadata.
func (r *representation) metadata(o *history.Object) (*metav1.PartialObjectMetadata, error) {
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
	if r.form == formMetadata {
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

// appendTypedJSON appends an object that bookmark made, with its kind.
func (r *representation) appendTypedJSON(dst []byte, typed served.Typed) ([]byte, error) {
	if r.form == formTable {
		return r.appendTable(dst, typed)
	}
	setKind(typed, r.objectType())
	return appendMarshalled(dst, typed)
}

func appendMarshalled(dst []byte, value any) ([]byte, error) {
	encoded, err := json.Marshal(value)
	return append(dst, encoded...), err
}

func setKind(typed served.Typed, t wire.TypeMeta) {
	typed.GetObjectKind().SetGroupVersionKind(schema.FromAPIVersionAndKind(t.APIVersion, t.Kind))
}

// tableOptions has a request's options for a table, and what was already written of the table.
type tableOptions struct {
	include metav1.IncludeObjectPolicy
	now     func() time.Time
	// begun is set once the columns were written. A watch has them in its first event only.
	begun bool
}

func parseTableOptions(includeObject string, now func() time.Time) (tableOptions, error) {
	o := tableOptions{include: metav1.IncludeObjectPolicy(includeObject), now: now}
	switch o.include {
	case metav1.IncludeNone, metav1.IncludeMetadata, metav1.IncludeObject:
		return o, nil
	case "":
		o.include = metav1.IncludeMetadata
		return o, nil
	default:
		return o, apierrors.NewBadRequest(fmt.Sprintf("invalid query parameter includeObject=%q: must be None, "+
			"Metadata or Object", includeObject))
	}
}
