package follow

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	jsonserializer "k8s.io/apimachinery/pkg/runtime/serializer/json"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	"github.com/application-grid/application-grid/pkg/storage/wire"
)

// Object is an upstream object in wire form, as the client of a Group decodes it.
type Object struct {
	*wire.Object

	Kind string
}

// GetObjectKind implements runtime.Object.
func (Object) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// DeepCopyObject returns the object itself, because it is immutable.
func (o Object) DeepCopyObject() runtime.Object { return o }

// List is a list of objects in wire form, as the client of a Group decodes it.
type List struct {
	wire.ListMeta

	Kind  string
	Items []*wire.Object
}

// GetObjectKind implements runtime.Object.
func (*List) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// DeepCopyObject returns the list itself, because it is immutable once it was decoded.
func (l *List) DeepCopyObject() runtime.Object { return l }

// isOf reports whether objects of a kind can belong to a resource. Otherwise a proxy that mixes up its answers could
// cause the removal of all objects. The kind may be "", because some objects have none.
func isOf(resource, kind string) bool {
	if kind == "" || kind == "PartialObjectMetadata" {
		return true
	}
	plural, _ := meta.UnsafeGuessKindToResource(schema.GroupVersionKind{Kind: kind})
	return plural.Resource == resource
}

func (l *List) add(message []byte) error {
	o, err := wire.ParseObject(message)
	if err != nil {
		return err
	}
	l.Items = append(l.Items, o)
	return nil
}

// largestVersion returns the largest resourceVersion of the items, or "". It is for lists of some caching proxies,
// which have no resourceVersion of their own. At worst a watch from there repeats objects of the list.
func (l *List) largestVersion() string {
	var largest uint64
	for _, o := range l.Items {
		if v, err := strconv.ParseUint(o.ResourceVersion, 10, 64); err == nil && v > largest {
			largest = v
		}
	}
	if largest == 0 {
		return ""
	}
	return strconv.FormatUint(largest, 10)
}

// scheme has the kinds of whole objects that an upstream may send as JSON.
var scheme = func() *runtime.Scheme {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		appsv1.AddToScheme, corev1.AddToScheme, discoveryv1.AddToScheme, metav1.AddMetaToScheme,
	} {
		if err := add(s); err != nil {
			panic(err)
		}
	}
	return s
}()

var parameterCodec = runtime.NewParameterCodec(scheme)

// codec decodes responses to Object and List, and errors to metav1.Status.
type codec struct{ runtime.NegotiatedSerializer }

func newCodec() codec {
	return codec{serializer.NewCodecFactory(scheme).WithoutConversion()}
}

// DecoderToVersion implements runtime.NegotiatedSerializer.
func (c codec) DecoderToVersion(d runtime.Decoder, gv runtime.GroupVersioner) runtime.Decoder {
	return decoder{typed: c.NegotiatedSerializer.DecoderToVersion(d, gv)}
}

// jsonDecoder decodes JSON as the client of a Group does.
var jsonDecoder = func() runtime.Decoder {
	c := newCodec()
	info, _ := runtime.SerializerInfoForMediaType(c.SupportedMediaTypes(), runtime.ContentTypeJSON) // it has JSON
	return c.DecoderToVersion(info.Serializer, nil)
}()

// protobufMagic begins every protobuf body.
const protobufMagic = "k8s\x00"

// decoder splits protobuf objects without making Go values of them. It converts JSON into the same form: a list item by
// item, a single object with typed. A Status stays a Go value.
type decoder struct{ typed runtime.Decoder }

// Decode implements runtime.Decoder.
func (d decoder) Decode(
	data []byte, defaults *schema.GroupVersionKind, into runtime.Object,
) (runtime.Object, *schema.GroupVersionKind, error) {
	if bytes.HasPrefix(data, []byte(protobufMagic)) {
		typeMeta, message, err := wire.Unwrap(data)
		if err != nil {
			return nil, nil, err
		}
		if typeMeta.Kind != "Status" {
			gvk := schema.FromAPIVersionAndKind(typeMeta.APIVersion, typeMeta.Kind)
			decoded, err := decodeMessage(typeMeta, message)
			return decoded, &gvk, err
		}
	}
	if gvk, err := jsonserializer.DefaultMetaFactory.Interpret(data); err == nil &&
		strings.HasSuffix(gvk.Kind, "List") {
		decoded, err := decodeJSONList(data, gvk)
		return decoded, gvk, err
	}
	decoded, gvk, err := d.typed.Decode(data, defaults, into)
	if runtime.IsNotRegisteredError(err) && gvk != nil {
		decoded = &metav1.PartialObjectMetadata{}
		err = utiljson.Unmarshal(data, decoded) // as API servers do: names are case-sensitive
	}
	if err != nil {
		return nil, gvk, err
	}
	if _, ok := decoded.(*metav1.Status); ok {
		return decoded, gvk, nil
	}
	message, err := marshal(decoded)
	if err != nil {
		return nil, gvk, err
	}
	decoded, err = decodeMessage(wire.TypeMeta{Kind: gvk.Kind}, message)
	return decoded, gvk, err
}

// readList reads a list, and reduces its objects one by one, so that it is never in memory as a whole. JSON is: no
// API server sends it to a client that takes protobuf.
func readList(from io.Reader, reduce func(*wire.Object) *wire.Object) (*List, error) {
	list, buffered := &List{}, bufio.NewReader(from)
	if begin, _ := buffered.Peek(len(protobufMagic)); string(begin) != protobufMagic {
		body, err := io.ReadAll(buffered)
		if err != nil {
			return nil, err
		}
		decoded, gvk, err := jsonDecoder.Decode(body, nil, nil)
		if err != nil {
			return nil, err
		}
		var ok bool
		if list, ok = decoded.(*List); !ok {
			return nil, fmt.Errorf("the upstream sent a %s in place of a list", gvk.Kind)
		}
		for i, o := range list.Items {
			list.Items[i] = reduce(o)
		}
		return list, nil
	}
	typeMeta, listMeta, err := wire.ReadList(buffered, func(item []byte) error {
		o, err := wire.ParseObject(item)
		if err == nil {
			list.Items = append(list.Items, reduce(o))
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("reading a list: %w", err)
	}
	if !strings.HasSuffix(typeMeta.Kind, "List") {
		return nil, fmt.Errorf("the upstream sent a %s in place of a list", typeMeta.Kind)
	}
	list.Kind, list.ListMeta = typeMeta.Kind, listMeta
	return list, nil
}

func decodeMessage(typeMeta wire.TypeMeta, message []byte) (runtime.Object, error) {
	if typeMeta.Kind == "" {
		return nil, errors.New("the upstream sent an object without a kind")
	}
	if !strings.HasSuffix(typeMeta.Kind, "List") {
		o, err := wire.ParseObject(message)
		if err != nil {
			return nil, fmt.Errorf("decoding %s: %w", typeMeta.Kind, err)
		}
		return Object{o, typeMeta.Kind}, nil
	}
	list := &List{Kind: typeMeta.Kind}
	listMeta, err := wire.ParseList(message, list.add)
	if err != nil {
		return nil, fmt.Errorf("decoding %s: %w", typeMeta.Kind, err)
	}
	list.ListMeta = listMeta
	return list, nil
}

// decodeJSONList converts a JSON list into wire form.
func decodeJSONList(data []byte, gvk *schema.GroupVersionKind) (runtime.Object, error) {
	list := &List{Kind: gvk.Kind}
	read := struct {
		Metadata metav1.ListMeta `json:"metadata"`
		Items    jsonItems       `json:"items"`
	}{Items: jsonItems{gvk.GroupVersion().WithKind(strings.TrimSuffix(gvk.Kind, "List")), list}}
	if err := utiljson.Unmarshal(data, &read); err != nil {
		return nil, fmt.Errorf("decoding %s: %w", gvk.Kind, err)
	}
	list.ResourceVersion, list.Continue = read.Metadata.ResourceVersion, read.Metadata.Continue
	return list, nil
}

// jsonItems converts the items of a list into wire form, one by one, because all of them as Go values need several
// times the memory.
type jsonItems struct {
	kind schema.GroupVersionKind
	list *List
}

// UnmarshalJSON implements json.Unmarshaler.
func (i jsonItems) UnmarshalJSON(data []byte) error {
	d := json.NewDecoder(bytes.NewReader(data))
	switch begin, err := d.Token(); {
	case err != nil:
		return err
	case begin != nil && begin != json.Delim('['):
		return fmt.Errorf("%v in place of items", begin)
	}
	var item json.RawMessage
	for d.More() {
		item = item[:0]
		if err := d.Decode(&item); err != nil {
			return err
		}
		message, err := itemInWireForm(item, i.kind)
		if err == nil {
			err = i.list.add(message)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func itemInWireForm(item []byte, kind schema.GroupVersionKind) ([]byte, error) {
	typed, err := scheme.New(kind)
	if err != nil {
		// The upstream sent a custom resource whole, although metadata was requested. Only its metadata is read.
		typed = &metav1.PartialObjectMetadata{}
	}
	if err := utiljson.Unmarshal(item, typed); err != nil {
		return nil, err
	}
	return marshal(typed)
}

func marshal(item runtime.Object) ([]byte, error) {
	typed, ok := item.(interface{ Marshal() ([]byte, error) })
	if !ok {
		return nil, fmt.Errorf("a %T has no protobuf form", item)
	}
	return typed.Marshal()
}
