package follow

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
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
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/rest"

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

// List is a list of objects in wire form.
type List struct {
	metav1.ListMeta

	Kind  string
	Items []*wire.Object
}

// isOf reports whether objects of a kind can belong to a resource. Otherwise a proxy that mixes up its answers could
// cause the removal of all objects. The kind may be "", because some objects have none.
func isOf(resource, kind string) bool {
	if kind == "" || kind == "PartialObjectMetadata" {
		return true
	}
	plural, _ := meta.UnsafeGuessKindToResource(schema.GroupVersionKind{Kind: kind})
	return plural.Resource == resource
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

// codec decodes responses to Object, and errors to metav1.Status.
type codec struct{ runtime.NegotiatedSerializer }

func (c codec) DecoderToVersion(d runtime.Decoder, gv runtime.GroupVersioner) runtime.Decoder {
	return decoder{typed: c.NegotiatedSerializer.DecoderToVersion(d, gv)}
}

// decoder splits a protobuf object without making a Go value of it. It converts one in JSON, with typed, into the same
// form. A Status stays a Go value.
type decoder struct{ typed runtime.Decoder }

func (d decoder) Decode(
	data []byte, defaults *schema.GroupVersionKind, into runtime.Object,
) (runtime.Object, *schema.GroupVersionKind, error) {
	if bytes.HasPrefix(data, []byte(wire.Magic)) {
		typeMeta, message, err := wire.Unwrap(data)
		if err != nil {
			return nil, nil, err
		}
		if typeMeta.Kind != "Status" {
			gvk := schema.FromAPIVersionAndKind(typeMeta.APIVersion, typeMeta.Kind)
			decoded, err := decodeMessage(typeMeta.Kind, message)
			return decoded, &gvk, err
		}
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
	decoded, err = decodeMessage(gvk.Kind, message)
	return decoded, gvk, err
}

func decodeMessage(kind string, message []byte) (runtime.Object, error) {
	if kind == "" {
		return nil, errors.New("the upstream sent an object without a kind")
	}
	o, err := wire.ParseObject(message)
	if err != nil {
		return nil, fmt.Errorf("decoding %s: %w", kind, err)
	}
	return Object{o, kind}, nil
}

// GetList sends a request for a list, and reads the answer object by object, so that it is never in memory as a whole.
// reduce returns what is kept of an object; nil keeps all of it.
func GetList(ctx context.Context, request *rest.Request, reduce func(*wire.Object) *wire.Object) (*List, error) {
	body, err := request.Stream(ctx)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	return readList(body, reduce)
}

func readList(from io.Reader, reduce func(*wire.Object) *wire.Object) (list *List, err error) {
	list = &List{}
	add := func(message []byte) error {
		o, err := wire.ParseObject(message)
		if err != nil {
			return err
		}
		if reduce != nil {
			o = reduce(o)
		}
		list.Items = append(list.Items, o)
		return nil
	}
	buffered := bufio.NewReader(from)
	if begin, _ := buffered.Peek(len(wire.Magic)); string(begin) == wire.Magic {
		var typeMeta wire.TypeMeta
		typeMeta, list.ListMeta, err = wire.ReadList(buffered, add)
		list.Kind = typeMeta.Kind
	} else {
		err = list.readJSON(buffered, add)
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("reading a list: %w", err)
	case !strings.HasSuffix(list.Kind, "List"):
		return nil, fmt.Errorf("the upstream sent a %s in place of a list", cmp.Or(list.Kind, "body without a kind"))
	default:
		return list, nil
	}
}

// readJSON reads a list, and calls add with its items in wire form, one by one, because all of them as Go values need
// several times the memory. Items in front of the kind wait for it: API servers write the kind first.
func (l *List) readJSON(from io.Reader, add func(message []byte) error) error {
	d := json.NewDecoder(from)
	var apiVersion string
	var item json.RawMessage
	var waiting []json.RawMessage
	take := func(item json.RawMessage) error {
		kind := schema.FromAPIVersionAndKind(apiVersion, strings.TrimSuffix(l.Kind, "List"))
		message, err := itemInWireForm(item, kind)
		if err != nil {
			return err
		}
		return add(message)
	}
	err := eachOf(d, '{', func() error {
		name, err := d.Token()
		switch name {
		case "kind":
			return d.Decode(&l.Kind)
		case "apiVersion":
			return d.Decode(&apiVersion)
		case "metadata":
			return d.Decode(&l.ListMeta)
		case "items":
			return eachOf(d, '[', func() error {
				item = item[:0]
				if err := d.Decode(&item); err != nil {
					return err
				}
				if l.Kind != "" && apiVersion != "" {
					return take(item)
				}
				waiting = append(waiting, bytes.Clone(item))
				return nil
			})
		default:
			return errors.Join(err, d.Decode(&item))
		}
	})
	for _, item := range waiting {
		err = cmp.Or(err, take(item))
	}
	if _, after := d.Token(); err == nil && !errors.Is(after, io.EOF) {
		err = cmp.Or(after, errors.New("the list is not all of the body"))
	}
	return err
}

// eachOf reads an object or an array, or null, and calls read at each member.
func eachOf(d *json.Decoder, begin json.Delim, read func() error) error {
	switch token, err := d.Token(); {
	case token == nil:
		return err
	case token != begin:
		return fmt.Errorf("%v in place of %v", token, begin)
	}
	for d.More() {
		if err := read(); err != nil {
			return err
		}
	}
	_, err := d.Token() // the end
	return err
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
