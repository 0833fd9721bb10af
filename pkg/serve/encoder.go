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

// encoder encodes the objects of one resource in the format of one request.
type encoder struct {
	format

	resource *served.Resource
}

// negotiateEncoder makes the encoder for the format that a request accepts. The error is that of negotiate.
func negotiateEncoder(r *http.Request, resource *served.Resource, reads answerKind) (*encoder, error) {
	f, err := negotiate(r.Header.Get("Accept"), reads)
	return &encoder{format: f, resource: resource}, err
}

func (e *encoder) objectType() wire.TypeMeta {
	if e.metadata != "" {
		return wire.TypeMeta{APIVersion: e.metadata, Kind: kindMetadata}
	}
	return e.resource.Type()
}

func (e *encoder) listType() wire.TypeMeta {
	t := e.objectType()
	t.Kind += "List"
	return t
}

// body returns the part of an object's body that is written, which is empty if only metadata is shown.
func (e *encoder) body(o *history.Object) []byte {
	if e.metadata != "" {
		return nil
	}
	return o.Body
}

// protobufSize returns the length of what appendProtobuf appends.
func (e *encoder) protobufSize(o *history.Object) int {
	return wire.Size(o.Meta, e.body(o), o.Revision)
}

// appendProtobuf appends an object's message, without envelope.
func (e *encoder) appendProtobuf(dst []byte, o *history.Object) []byte {
	return wire.AppendObject(dst, o.Meta, e.body(o), o.Revision)
}

func (e *encoder) appendJSON(dst []byte, o *history.Object) ([]byte, error) {
	if e.metadata == "" {
		encoded, err := o.JSON()
		if err != nil {
			return nil, err
		}
		t := e.objectType()
		dst = fmt.Appendf(dst, `{"kind":%q,"apiVersion":%q,`, t.Kind, t.APIVersion)
		return append(dst, encoded[1:]...), nil
	}
	partial := &metav1.PartialObjectMetadata{}
	if err := partial.Unmarshal(wire.AppendObject(nil, o.Meta, nil, o.Revision)); err != nil {
		return nil, fmt.Errorf("decoding the metadata of %s %s: %w", e.resource.Kind, o.Key(), err)
	}
	setKind(partial, e.objectType())
	encoded, err := json.Marshal(partial)
	return append(dst, encoded...), err
}

// appendItem appends an object as an item of a list. Whole objects in a list do not have a kind.
func (e *encoder) appendItem(dst []byte, o *history.Object) ([]byte, error) {
	if e.metadata != "" {
		return e.appendJSON(dst, o)
	}
	item, err := o.JSON()
	return append(dst, item...), err
}

func (e *encoder) appendEvent(dst []byte, eventType watch.EventType, o *history.Object) ([]byte, error) {
	if e.encoding == encodingProtobuf {
		dst = wire.AppendWatchFrame(dst, string(eventType), e.objectType(), e.protobufSize(o))
		return e.appendProtobuf(dst, o), nil
	}
	dst, err := e.appendJSON(fmt.Appendf(dst, `{"type":%q,"object":`, eventType), o)
	return append(dst, "}\n"...), err
}

// initialEventsEnd are the annotations of the bookmark after the initial events of a watch.
var initialEventsEnd = map[string]string{metav1.InitialEventsAnnotationKey: "true"}

// appendBookmark appends a bookmark. Its object has only this metadata; reflectors expect it to have the kind that they
// watch.
func (e *encoder) appendBookmark(dst []byte, revision uint64, annotations map[string]string) ([]byte, error) {
	var typed served.Typed
	if e.metadata != "" {
		typed = &metav1.PartialObjectMetadata{}
	} else {
		typed = e.resource.New()
	}
	accessor, ok := typed.(metav1.Object)
	if !ok {
		return nil, fmt.Errorf("a %T has no metadata", typed)
	}
	accessor.SetResourceVersion(strconv.FormatUint(revision, 10))
	accessor.SetAnnotations(annotations)
	return e.encoding.appendTypedEvent(dst, watch.Bookmark, e.objectType(), typed)
}

// appendTypedEvent appends an event of an object that is decoded.
func (e encoding) appendTypedEvent(
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

func encodeObject(o *history.Object, enc *encoder) ([]byte, error) {
	if enc.encoding == encodingProtobuf {
		body := wire.AppendEnvelope(nil, enc.objectType(), enc.protobufSize(o))
		return enc.appendProtobuf(body, o), nil
	}
	body, err := enc.appendJSON(nil, o)
	if err != nil {
		return nil, err
	}
	return append(body, '\n'), nil
}
