package upstreamtest

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
)

// resources are those that an API has.
var resources = map[string]struct {
	schema.GroupVersionKind
	newList func() runtime.Object
}{
	"nodes": {corev1.SchemeGroupVersion.WithKind("Node"), func() runtime.Object { return &corev1.NodeList{} }},
	"services": {
		corev1.SchemeGroupVersion.WithKind("Service"), func() runtime.Object { return &corev1.ServiceList{} },
	},
	"endpoints": {
		corev1.SchemeGroupVersion.WithKind("Endpoints"), func() runtime.Object { return &corev1.EndpointsList{} },
	},
	"endpointslices": {
		discoveryv1.SchemeGroupVersion.WithKind("EndpointSlice"),
		func() runtime.Object { return &discoveryv1.EndpointSliceList{} },
	},
}

// newObject makes an empty object of a resource.
func newObject(resource string) runtime.Object {
	o, err := scheme.Scheme.New(resources[resource].GroupVersionKind)
	if err != nil {
		panic(err)
	}
	return o
}

func resourceOf(o runtime.Object) string {
	for name, r := range resources {
		if kinds, _, err := scheme.Scheme.ObjectKinds(o); err == nil && kinds[0].Kind == r.Kind {
			return name
		}
	}
	panic(fmt.Sprintf("upstreamtest: a %T is not one of the resources", o))
}

// collectionOf returns the resource that a path lists, and its namespace; "" for other paths.
func collectionOf(path string) (namespace, resource string) {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	for i, prefix := range [][]string{{"api", "v1"}, {"apis", "discovery.k8s.io", "v1"}} {
		if len(parts) <= len(prefix) || strings.Join(parts[:len(prefix)], "/") != strings.Join(prefix, "/") {
			continue
		}
		rest := parts[len(prefix):]
		if len(rest) == 3 && rest[0] == "namespaces" {
			namespace, rest = rest[1], rest[2:]
		}
		if _, ok := resources[rest[0]]; ok && len(rest) == 1 && (rest[0] == "endpointslices") == (i == 1) {
			return namespace, rest[0]
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
	list := resources[resource].newList()
	if e.metadata {
		partial := &metav1.PartialObjectMetadataList{ListMeta: listMeta}
		for _, item := range items {
			partial.Items = append(partial.Items, *partialOf(item))
		}
		return e.object(partial)
	}
	if err := meta.SetList(list, items); err != nil {
		panic(err)
	}
	accessor, err := meta.ListAccessor(list)
	if err != nil {
		panic(err)
	}
	accessor.SetResourceVersion(listMeta.ResourceVersion)
	accessor.SetContinue(listMeta.Continue)
	return e.object(list)
}

func partialOf(o runtime.Object) *metav1.PartialObjectMetadata {
	p := &metav1.PartialObjectMetadata{}
	p.SetGroupVersionKind(metav1.SchemeGroupVersion.WithKind("PartialObjectMetadata"))
	accessor := accessorOf(o)
	p.Namespace, p.Name, p.UID = accessor.GetNamespace(), accessor.GetName(), accessor.GetUID()
	p.ResourceVersion = accessor.GetResourceVersion()
	p.Labels, p.Annotations = accessor.GetLabels(), accessor.GetAnnotations()
	return p
}

func (e encoding) object(o runtime.Object) []byte {
	// Encoders write the kind into what they encode, and it may be shared.
	o = o.DeepCopyObject()
	info, _ := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), e.contentType())
	versions := schema.GroupVersions{
		corev1.SchemeGroupVersion, discoveryv1.SchemeGroupVersion, metav1.SchemeGroupVersion,
	}
	switch o.(type) {
	case *metav1.PartialObjectMetadata, *metav1.PartialObjectMetadataList:
		kind := strings.TrimPrefix(fmt.Sprintf("%T", o), "*v1.")
		o.GetObjectKind().SetGroupVersionKind(metav1.SchemeGroupVersion.WithKind(kind))
		var buffer bytes.Buffer
		if err := info.Serializer.Encode(o, &buffer); err != nil {
			panic(err)
		}
		return buffer.Bytes()
	}
	encoded, err := runtime.Encode(scheme.Codecs.EncoderForVersion(info.Serializer, versions), o)
	if err != nil {
		panic(err)
	}
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
		if err != nil {
			panic(err)
		}
		return append(line, '\n')
	}
	encoded.Object.Raw = e.object(o)
	frame, err := encoded.Marshal()
	if err != nil {
		panic(err)
	}
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(frame))), frame...) //nolint:gosec // a short one
}
