package upstreamtest

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"path"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/watch"
)

// resources are those that an API has, with their kinds.
var resources = map[string]schema.GroupVersionKind{
	"nodes":          corev1.SchemeGroupVersion.WithKind("Node"),
	"services":       corev1.SchemeGroupVersion.WithKind("Service"),
	"endpoints":      corev1.SchemeGroupVersion.WithKind("Endpoints"),
	"endpointslices": discoveryv1.SchemeGroupVersion.WithKind("EndpointSlice"),
}

var (
	scheme = runtime.NewScheme()
	codecs = serializer.NewCodecFactory(scheme)
)

func init() {
	for _, add := range []func(*runtime.Scheme) error{
		corev1.AddToScheme, discoveryv1.AddToScheme, metav1.AddMetaToScheme,
	} {
		utilruntime.Must(add(scheme))
	}
}

// newObject makes an empty object of the kind of a resource, or with the suffix List an empty list.
func newObject(resource, suffix string) runtime.Object {
	kind := resources[resource]
	kind.Kind += suffix
	o, err := scheme.New(kind)
	utilruntime.Must(err)
	return o
}

func resourceOf(o runtime.Object) string {
	kinds, _, err := scheme.ObjectKinds(o)
	utilruntime.Must(err)
	for name, kind := range resources {
		if kinds[0] == kind {
			return name
		}
	}
	panic(fmt.Sprintf("upstreamtest: a %T is not one of the resources", o))
}

// collectionOf returns the resource that a path lists, and its namespace; "" for other paths.
func collectionOf(request string) (namespace, resource string) {
	for resource, kind := range resources {
		prefix := "/apis/" + kind.GroupVersion().String()
		if kind.Group == "" {
			prefix = "/api/" + kind.Version
		}
		if request == prefix+"/"+resource {
			return "", resource
		}
		if found, _ := path.Match(prefix+"/namespaces/*/"+resource, request); found {
			return path.Base(path.Dir(request)), resource
		}
	}
	return "", ""
}

// encoding is how a response is written.
type encoding struct {
	protobuf bool
	// metadata writes PartialObjectMetadata instead of objects.
	metadata bool
}

func negotiate(accept string, b Behaviour) encoding {
	return encoding{
		protobuf: strings.Contains(accept, runtime.ContentTypeProtobuf) && !b.JSONOnly,
		metadata: strings.Contains(accept, "as=PartialObjectMetadata") && !b.WholeObjects,
	}
}

func (e encoding) contentType() string {
	if e.protobuf {
		return runtime.ContentTypeProtobuf
	}
	return runtime.ContentTypeJSON
}

func (e encoding) list(resource string, listMeta metav1.ListMeta, items []runtime.Object) []byte {
	if e.metadata {
		partial := &metav1.PartialObjectMetadataList{ListMeta: listMeta}
		for _, item := range items {
			partial.Items = append(partial.Items, *partialOf(item))
		}
		return e.object(partial)
	}
	list := newObject(resource, "List")
	utilruntime.Must(meta.SetList(list, items))
	accessor, err := meta.ListAccessor(list)
	utilruntime.Must(err)
	accessor.SetResourceVersion(listMeta.ResourceVersion)
	accessor.SetContinue(listMeta.Continue)
	return e.object(list)
}

func partialOf(o runtime.Object) *metav1.PartialObjectMetadata {
	return meta.AsPartialObjectMetadata(accessorOf(o))
}

func (e encoding) object(o runtime.Object) []byte {
	// Encoders write the kind into what they encode, and it may be shared.
	o = o.DeepCopyObject()
	info, _ := runtime.SerializerInfoForMediaType(codecs.SupportedMediaTypes(), e.contentType())
	versions := schema.GroupVersions{
		corev1.SchemeGroupVersion, discoveryv1.SchemeGroupVersion, metav1.SchemeGroupVersion,
	}
	encoded, err := runtime.Encode(codecs.EncoderForVersion(info.Serializer, versions), o)
	utilruntime.Must(err)
	return encoded
}

func (e encoding) event(event watch.Event) []byte {
	o := event.Object
	if _, isStatus := o.(*metav1.Status); e.metadata && !isStatus {
		o = partialOf(o)
	}
	encoded := metav1.WatchEvent{
		Type:   string(event.Type),
		Object: runtime.RawExtension{Raw: bytes.TrimSpace(e.object(o))},
	}
	if !e.protobuf {
		line, err := json.Marshal(encoded)
		utilruntime.Must(err)
		return append(line, '\n')
	}
	encoded.Object.Raw = e.object(o)
	frame, err := encoded.Marshal()
	utilruntime.Must(err)
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(frame))), frame...) //nolint:gosec // a short one
}
