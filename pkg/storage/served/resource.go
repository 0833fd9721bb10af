package served

import (
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/application-grid/application-grid/pkg/storage/wire"
)

// Resource describes one served resource: everything that serving it depends on.
type Resource struct {
	schema.GroupVersionResource
	Kind       string
	Namespaced bool
	// OnDemand says that the resource is followed only while clients ask for it.
	OnDemand bool
	// FieldLabels has the fields that a field selector may use, other than metadata.name and (if namespaced)
	// metadata.namespace. They are those of kube-apiserver.
	FieldLabels []string

	// newTyped makes an empty object of the kind.
	newTyped func() Typed
}

// Typed is a Go type of k8s.io/api with its protobuf methods.
type Typed interface {
	runtime.Object
	Marshal() ([]byte, error)
	Unmarshal([]byte) error
}

// Type returns the apiVersion and kind of an object.
func (r *Resource) Type() wire.TypeMeta {
	return wire.TypeMeta{APIVersion: r.GroupVersion().String(), Kind: r.Kind}
}

// New makes an empty object of the kind.
func (r *Resource) New() Typed { return r.newTyped() }

// Fields reads the values of FieldLabels, in their order, from an encoded object. The error says what cannot be read.
func (r *Resource) Fields(body []byte) ([]string, error) {
	if len(r.FieldLabels) == 0 {
		return nil, nil
	}
	typed := r.New()
	if err := typed.Unmarshal(body); err != nil {
		return nil, err
	}
	switch o := typed.(type) {
	case *corev1.Service:
		return []string{o.Spec.ClusterIP, string(o.Spec.Type)}, nil
	case *corev1.Node:
		return []string{strconv.FormatBool(o.Spec.Unschedulable)}, nil
	case *corev1.Namespace:
		return []string{string(o.Status.Phase)}, nil
	default:
		return nil, fmt.Errorf("the fields %q of a %T are not known", r.FieldLabels, typed)
	}
}

// The served resources.
var (
	Services = &Resource{
		GroupVersionResource: corev1.SchemeGroupVersion.WithResource("services"),
		Kind:                 "Service",
		Namespaced:           true,
		FieldLabels:          []string{"spec.clusterIP", "spec.type"},
		newTyped:             func() Typed { return &corev1.Service{} },
	}
	EndpointSlices = &Resource{
		GroupVersionResource: discoveryv1.SchemeGroupVersion.WithResource("endpointslices"),
		Kind:                 "EndpointSlice",
		Namespaced:           true,
		newTyped:             func() Typed { return &discoveryv1.EndpointSlice{} },
	}
	Endpoints = &Resource{
		GroupVersionResource: corev1.SchemeGroupVersion.WithResource("endpoints"),
		Kind:                 "Endpoints",
		Namespaced:           true,
		OnDemand:             true,
		newTyped:             func() Typed { return &corev1.Endpoints{} },
	}
	// Nodes has only the wrapper's own node; in a hub, the nodes of a share.
	Nodes = &Resource{
		GroupVersionResource: corev1.SchemeGroupVersion.WithResource("nodes"),
		Kind:                 "Node",
		FieldLabels:          []string{"spec.unschedulable"},
		newTyped:             func() Typed { return &corev1.Node{} },
	}
	// Namespaces are what CoreDNS needs to start, besides Services and EndpointSlices.
	Namespaces = &Resource{
		GroupVersionResource: corev1.SchemeGroupVersion.WithResource("namespaces"),
		Kind:                 "Namespace",
		OnDemand:             true,
		FieldLabels:          []string{"status.phase"},
		newTyped:             func() Typed { return &corev1.Namespace{} },
	}
)

// All returns all served resources.
func All() []*Resource {
	return []*Resource{Services, EndpointSlices, Endpoints, Nodes, Namespaces}
}
