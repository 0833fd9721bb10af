package upstream

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"

	"github.com/application-grid/application-grid/pkg/storage/history"
	"github.com/application-grid/application-grid/pkg/wire"
)

// object is one upstream object in wire form, as a reflector wants to see it.
type object struct {
	metav1.TypeMeta
	metav1.ObjectMeta

	wire *wire.Object
}

// DeepCopyObject returns the object itself: nothing mutates it.
func (o *object) DeepCopyObject() runtime.Object { return o }

// objectList is a list of them.
type objectList struct {
	metav1.TypeMeta
	metav1.ListMeta

	Items []*object
}

// DeepCopyObject returns the list itself: nothing mutates it.
func (l *objectList) DeepCopyObject() runtime.Object { return l }

func newObject(message []byte) (*object, error) {
	w, err := wire.ParseObject(message)
	if err != nil {
		return nil, err
	}
	o := &object{wire: w}
	o.Namespace, o.Name, o.ResourceVersion = w.Namespace, w.Name, w.ResourceVersion
	return o, nil
}

// scheme knows the kinds that an upstream may answer with, for upstreams that answer in JSON.
var scheme = func() *runtime.Scheme {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, discoveryv1.AddToScheme, metav1.AddMetaToScheme} {
		if err := add(s); err != nil {
			panic(err)
		}
	}
	return s
}()

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
	if err != nil {
		return nil, gvk, err
	}
	decoded, err = encodeTyped(decoded)
	return decoded, gvk, err
}

func decodeMessage(typeMeta wire.TypeMeta, message []byte) (runtime.Object, error) {
	if !strings.HasSuffix(typeMeta.Kind, "List") {
		return newObject(message)
	}
	list := &objectList{}
	listMeta, err := wire.ParseList(message, func(item []byte) error {
		o, err := newObject(item)
		if err == nil {
			list.Items = append(list.Items, o)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("decoding %s: %w", typeMeta.Kind, err)
	}
	list.ResourceVersion, list.Continue, list.RemainingItemCount = listMeta.ResourceVersion, listMeta.Continue, listMeta.RemainingItemCount
	list.fixResourceVersion()
	return list, nil
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
		list.ResourceVersion, list.Continue, list.RemainingItemCount = from.GetResourceVersion(), from.GetContinue(), from.GetRemainingItemCount()
		err = meta.EachListItem(decoded, func(item runtime.Object) error {
			o, err := encodeItem(item)
			if err == nil {
				list.Items = append(list.Items, o)
			}
			return err
		})
		list.fixResourceVersion()
		return list, err
	}
	return encodeItem(decoded)
}

func encodeItem(item runtime.Object) (*object, error) {
	typed, ok := item.(history.Typed)
	if !ok {
		return nil, fmt.Errorf("a %T has no protobuf form", item)
	}
	message, err := typed.Marshal()
	if err != nil {
		return nil, err
	}
	return newObject(message)
}

// fixResourceVersion gives a list without a resourceVersion the largest of its items. Some caching upstreams
// leave it out; a watch from there replays at worst what the list already had.
func (l *objectList) fixResourceVersion() {
	if l.ResourceVersion != "" {
		return
	}
	var largest uint64
	for _, o := range l.Items {
		if v, err := strconv.ParseUint(o.ResourceVersion, 10, 64); err == nil && v > largest {
			largest = v
		}
	}
	if largest > 0 {
		l.ResourceVersion = strconv.FormatUint(largest, 10)
	}
}
