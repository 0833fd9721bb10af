package serve

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/application-grid/application-grid/pkg/storage/history"
	"github.com/application-grid/application-grid/pkg/storage/served"
	"github.com/application-grid/application-grid/pkg/storage/wire"
)

// representation writes the objects of one resource in the format of one request.
type representation struct {
	format

	resource *served.Resource
}

func represent(r *http.Request, resource *served.Resource, reads answerKind) (*representation, error) {
	f, err := negotiate(r.Header.Get("Accept"), reads)
	return &representation{format: f, resource: resource}, err
}

func (r *representation) objectType() wire.TypeMeta {
	if r.metadata != "" {
		return wire.TypeMeta{APIVersion: r.metadata, Kind: kindMetadata}
	}
	return r.resource.Type()
}

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
	partial := &metav1.PartialObjectMetadata{}
	if err := partial.Unmarshal(wire.AppendObject(nil, o.Meta, nil, o.Revision)); err != nil {
		return nil, fmt.Errorf("decoding the metadata of %s %s: %w", r.resource.Kind, o.Key(), err)
	}
	setKind(partial, r.objectType())
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

func (r *representation) appendEvent(dst []byte, eventType watch.EventType, o *history.Object) ([]byte, error) {
	if r.encoding == encodingProtobuf {
		dst = wire.AppendWatchFrame(dst, string(eventType), r.objectType(), r.protobufSize(o))
		return r.appendProtobuf(dst, o), nil
	}
	dst, err := r.appendJSON(fmt.Appendf(dst, `{"type":%q,"object":`, eventType), o)
	return append(dst, "}\n"...), err
}

// initialEventsEnd are the annotations of the bookmark after the initial events of a watch.
var initialEventsEnd = map[string]string{metav1.InitialEventsAnnotationKey: "true"}

// appendBookmark appends a bookmark. Its object has only this metadata; reflectors expect it to have the kind that they
// watch.
func (r *representation) appendBookmark(dst []byte, revision uint64, annotations map[string]string) ([]byte, error) {
	var typed served.Typed
	if r.metadata != "" {
		typed = &metav1.PartialObjectMetadata{}
	} else {
		typed = r.resource.New()
	}
	accessor, ok := typed.(metav1.Object)
	if !ok {
		return nil, fmt.Errorf("a %T has no metadata", typed)
	}
	accessor.SetResourceVersion(strconv.FormatUint(revision, 10))
	accessor.SetAnnotations(annotations)
	return r.encoding.appendTyped(dst, watch.Bookmark, r.objectType(), typed)
}

// appendTyped appends an event of an object that is decoded.
func (e encoding) appendTyped(
	dst []byte, eventType watch.EventType, t wire.TypeMeta, typed served.Typed,
) ([]byte, error) {
	if e == encodingProtobuf {
		raw, err := typed.Marshal()
		return append(wire.AppendWatchFrame(dst, string(eventType), t, len(raw)), raw...), err
	}
	setKind(typed, t)
	encoded, err := json.Marshal(typed)
	return fmt.Appendf(dst, "{\"type\":%q,\"object\":%s}\n", eventType, encoded), err
}

// encodeTyped encodes an object that is decoded, in protobuf or JSON.
func (e encoding) encodeTyped(t wire.TypeMeta, typed served.Typed) ([]byte, error) {
	if e == encodingProtobuf {
		raw, err := typed.Marshal()
		return append(wire.AppendEnvelope(nil, t, len(raw)), raw...), err
	}
	setKind(typed, t)
	body, err := json.Marshal(typed)
	return append(body, '\n'), err
}

func setKind(typed served.Typed, t wire.TypeMeta) {
	typed.GetObjectKind().SetGroupVersionKind(schema.FromAPIVersionAndKind(t.APIVersion, t.Kind))
}

func encodeObject(o *history.Object, as *representation) ([]byte, error) {
	if as.encoding == encodingProtobuf {
		body := wire.AppendEnvelope(nil, as.objectType(), as.protobufSize(o))
		return as.appendProtobuf(body, o), nil
	}
	body, err := as.appendJSON(nil, o)
	if err != nil {
		return nil, err
	}
	return append(body, '\n'), nil
}
