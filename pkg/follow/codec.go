package follow

import (
	"bytes"
	"encoding/json"
	"fmt"
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

	"github.com/application-grid/application-grid/pkg/wire"
)

// object is one upstream object in wire form, as client-go's decoders hand it on.
type object struct{ *wire.Object }

// GetObjectKind implements runtime.Object.
func (object) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// DeepCopyObject returns the object itself: nothing mutates it.
func (o object) DeepCopyObject() runtime.Object { return o }

// objectList is a list of them.
type objectList struct {
	wire.ListMeta

	items []*wire.Object
}

// GetObjectKind implements runtime.Object.
func (*objectList) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// DeepCopyObject returns the list itself: nothing mutates it.
func (l *objectList) DeepCopyObject() runtime.Object { return l }

// add appends an encoded object.
func (l *objectList) add(message []byte) error {
	o, err := wire.ParseObject(message)
	if err != nil {
		return err
	}
	l.items = append(l.items, o)
	return nil
}

// largestVersion is the largest resourceVersion of the items; "" if there is none. Some caching upstreams give lists
// none of their own; a watch from there replays at worst what the list already had.
func (l *objectList) largestVersion() string {
	var largest uint64
	for _, o := range l.items {
		if v, err := strconv.ParseUint(o.ResourceVersion, 10, 64); err == nil && v > largest {
			largest = v
		}
	}
	if largest == 0 {
		return ""
	}
	return strconv.FormatUint(largest, 10)
}

// scheme knows the kinds that an upstream may answer with whole, for upstreams that answer in JSON.
var scheme = func() *runtime.Scheme {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{appsv1.AddToScheme, corev1.AddToScheme, discoveryv1.AddToScheme, metav1.AddMetaToScheme} {
		if err := add(s); err != nil {
			panic(err)
		}
	}
	return s
}()

var parameterCodec = runtime.NewParameterCodec(scheme)

// codec decodes responses to object and objectList, and errors to metav1.Status.
type codec struct{ runtime.NegotiatedSerializer }

func newCodec() codec {
	return codec{serializer.NewCodecFactory(scheme).WithoutConversion()}
}

// DecoderToVersion implements runtime.NegotiatedSerializer.
func (c codec) DecoderToVersion(d runtime.Decoder, gv runtime.GroupVersioner) runtime.Decoder {
	return decoder{typed: c.NegotiatedSerializer.DecoderToVersion(d, gv)}
}

// decoder decodes what it can without making Go values of it, and leaves the rest to typed.
type decoder struct{ typed runtime.Decoder }

// Decode implements runtime.Decoder.
func (d decoder) Decode(data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	if bytes.HasPrefix(data, []byte("k8s\x00")) {
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
	decoded, gvk, err := d.typed.Decode(data, defaults, into)
	if runtime.IsNotRegisteredError(err) && gvk != nil {
		// A custom resource, whole. It was asked for as metadata, and nothing else of it is read.
		decoded, err = decodeMetadata(data, gvk.Kind)
	}
	if err != nil {
		return nil, gvk, err
	}
	decoded, err = encodeTyped(decoded)
	return decoded, gvk, err
}

func decodeMessage(typeMeta wire.TypeMeta, message []byte) (runtime.Object, error) {
	if !strings.HasSuffix(typeMeta.Kind, "List") {
		o, err := wire.ParseObject(message)
		if err != nil {
			return nil, fmt.Errorf("decoding %s: %w", typeMeta.Kind, err)
		}
		return object{o}, nil
	}
	list := &objectList{}
	listMeta, err := wire.ParseList(message, list.add)
	if err != nil {
		return nil, fmt.Errorf("decoding %s: %w", typeMeta.Kind, err)
	}
	list.ListMeta = listMeta
	return list, nil
}

// decodeMetadata decodes the metadata of an object, or of a list of them, of a kind that is not known.
func decodeMetadata(data []byte, kind string) (runtime.Object, error) {
	var decoded runtime.Object = &metav1.PartialObjectMetadata{}
	if strings.HasSuffix(kind, "List") {
		decoded = &metav1.PartialObjectMetadataList{}
	}
	if err := json.Unmarshal(data, decoded); err != nil {
		return nil, fmt.Errorf("decoding the metadata of %s: %w", kind, err)
	}
	return decoded, nil
}

// encodeTyped brings what came as JSON into wire form. A Status stays what it is.
func encodeTyped(decoded runtime.Object) (runtime.Object, error) {
	if _, ok := decoded.(*metav1.Status); ok {
		return decoded, nil
	}
	if meta.IsListType(decoded) {
		from, err := meta.ListAccessor(decoded)
		if err != nil {
			return nil, err
		}
		list := &objectList{}
		list.ResourceVersion, list.Continue = from.GetResourceVersion(), from.GetContinue()
		err = meta.EachListItem(decoded, func(item runtime.Object) error {
			message, err := marshal(item)
			if err != nil {
				return err
			}
			return list.add(message)
		})
		return list, err
	}
	message, err := marshal(decoded)
	if err != nil {
		return nil, err
	}
	o, err := wire.ParseObject(message)
	if err != nil {
		return nil, err
	}
	return object{o}, nil
}

func marshal(item runtime.Object) ([]byte, error) {
	typed, ok := item.(interface{ Marshal() ([]byte, error) })
	if !ok {
		return nil, fmt.Errorf("a %T has no protobuf form", item)
	}
	return typed.Marshal()
}
