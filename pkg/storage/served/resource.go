package served

import (
	"errors"
	"fmt"
	"reflect"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/application-grid/application-grid/pkg/storage/wire"
)

// Errors for readers of a resource.
var (
	// ErrNotReady means that the state is not complete yet, so that an answer would be incomplete, or that it is older
	// than a state that the reader has seen.
	ErrNotReady = errors.New("not synced with the upstream yet")
	// ErrAbsent means that the upstream does not serve the resource.
	ErrAbsent = errors.New("not served by the upstream")
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
	// New makes an empty object of the kind.
	New func() Typed
}

// Typed is a Go type of k8s.io/api with its protobuf methods.
type Typed interface {
	runtime.Object
	Marshal() ([]byte, error)
	Unmarshal([]byte) error
}

// TypedPointer is a pointer to T that is Typed.
type TypedPointer[T any] interface {
	*T
	Typed
}

// Type returns the apiVersion and kind of an object.
func (r *Resource) Type() wire.TypeMeta {
	return wire.TypeMeta{APIVersion: r.GroupVersion().String(), Kind: r.Kind}
}

// Fields reads the values of FieldLabels, in their order, from an encoded object.
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

// Of returns the descriptor of a resource whose objects are of type T, which has the name of their kind. Its other
// fields are those of r.
func Of[T any, P TypedPointer[T]](version schema.GroupVersion, name string, r Resource) *Resource {
	r.GroupVersionResource, r.Kind = version.WithResource(name), reflect.TypeFor[T]().Name()
	r.New = func() Typed { return P(new(T)) }
	return &r
}

// The served resources.
var (
	Services = Of[corev1.Service](corev1.SchemeGroupVersion, "services",
		Resource{Namespaced: true, FieldLabels: []string{"spec.clusterIP", "spec.type"}})
	EndpointSlices = Of[discoveryv1.EndpointSlice](discoveryv1.SchemeGroupVersion, "endpointslices",
		Resource{Namespaced: true})
	Endpoints = Of[corev1.Endpoints](corev1.SchemeGroupVersion, "endpoints", Resource{Namespaced: true, OnDemand: true})
	// Nodes has only the wrapper's own node; in a hub, the nodes of a share.
	Nodes = Of[corev1.Node](corev1.SchemeGroupVersion, "nodes", Resource{FieldLabels: []string{"spec.unschedulable"}})
	// Namespaces are what CoreDNS needs to start, besides Services and EndpointSlices.
	Namespaces = Of[corev1.Namespace](corev1.SchemeGroupVersion, "namespaces",
		Resource{OnDemand: true, FieldLabels: []string{"status.phase"}})
)

// All returns all served resources.
func All() []*Resource {
	return []*Resource{Services, EndpointSlices, Endpoints, Nodes, Namespaces}
}
