package served

import (
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

	// fields reads the values of FieldLabels, in their order. It is nil if there are none.
	fields func(body []byte) ([]string, error)
	// newTyped makes an empty object of the kind.
	newTyped func() Typed
	// index is the position of the resource in All.
	index int
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

// ListType returns the apiVersion and kind of a list.
func (r *Resource) ListType() wire.TypeMeta {
	t := r.Type()
	t.Kind += "List"
	return t
}

// New makes an empty object of the kind.
func (r *Resource) New() Typed { return r.newTyped() }

// Fields reads the values of FieldLabels, in their order, from an encoded object. The error says what cannot be read.
func (r *Resource) Fields(body []byte) ([]string, error) {
	if r.fields == nil {
		return nil, nil
	}
	return r.fields(body)
}

// Index is the position of the resource in All.
func (r *Resource) Index() int { return r.index }

// The served resources.
var (
	Services = &Resource{
		GroupVersionResource: corev1.SchemeGroupVersion.WithResource("services"),
		index:                0,
		Kind:                 "Service",
		Namespaced:           true,
		FieldLabels:          []string{"spec.clusterIP", "spec.type"},
		fields:               serviceFields,
		newTyped:             func() Typed { return &corev1.Service{} },
	}
	EndpointSlices = &Resource{
		GroupVersionResource: discoveryv1.SchemeGroupVersion.WithResource("endpointslices"),
		index:                1,
		Kind:                 "EndpointSlice",
		Namespaced:           true,
		newTyped:             func() Typed { return &discoveryv1.EndpointSlice{} },
	}
	Endpoints = &Resource{
		GroupVersionResource: corev1.SchemeGroupVersion.WithResource("endpoints"),
		index:                2,
		Kind:                 "Endpoints",
		Namespaced:           true,
		OnDemand:             true,
		newTyped:             func() Typed { return &corev1.Endpoints{} },
	}
	// Nodes has only the wrapper's own node; in a hub, the nodes of a share.
	Nodes = &Resource{
		GroupVersionResource: corev1.SchemeGroupVersion.WithResource("nodes"),
		index:                3,
		Kind:                 "Node",
		FieldLabels:          []string{"spec.unschedulable"},
		fields:               nodeFields,
		newTyped:             func() Typed { return &corev1.Node{} },
	}
	// Namespaces are what CoreDNS needs to start, besides Services and EndpointSlices.
	Namespaces = &Resource{
		GroupVersionResource: corev1.SchemeGroupVersion.WithResource("namespaces"),
		index:                4,
		Kind:                 "Namespace",
		OnDemand:             true,
		FieldLabels:          []string{"status.phase"},
		fields:               namespaceFields,
		newTyped:             func() Typed { return &corev1.Namespace{} },
	}
)

// All returns all served resources.
func All() []*Resource {
	return []*Resource{Services, EndpointSlices, Endpoints, Nodes, Namespaces}
}

func serviceFields(body []byte) ([]string, error) {
	var service corev1.Service
	if err := service.Unmarshal(body); err != nil {
		return nil, err
	}
	return []string{service.Spec.ClusterIP, string(service.Spec.Type)}, nil
}

func namespaceFields(body []byte) ([]string, error) {
	var namespace corev1.Namespace
	if err := namespace.Unmarshal(body); err != nil {
		return nil, err
	}
	return []string{string(namespace.Status.Phase)}, nil
}

func nodeFields(body []byte) ([]string, error) {
	var node corev1.Node
	if err := node.Unmarshal(body); err != nil {
		return nil, err
	}
	unschedulable := "false"
	if node.Spec.Unschedulable {
		unschedulable = "true"
	}
	return []string{unschedulable}, nil
}
