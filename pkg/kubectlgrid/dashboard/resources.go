package dashboard

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/cluster"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/pages"
)

// Names of resources.
const (
	nodes          = "nodes"
	services       = "services"
	endpointSlices = "endpointslices"
)

// resource describes a followed resource: its requests, the parts of its objects that are kept, and where they are
// kept.
type resource struct {
	name       string
	namespaced bool
	// selector selects objects by their labels; empty for all.
	selector string
	newList  func() client.ObjectList
	// trim drops the parts of a received object that are not needed.
	trim func(runtime.Object)
	// set takes an object, and reports whether it may affect results. remove takes its removal.
	set    func(*facts, runtime.Object) bool
	remove func(*facts, types.NamespacedName)
}

// resources returns all resources that the page needs.
func resources() []resource {
	all := []resource{nodeResource(), serviceResource(), sliceResource()}
	for _, kind := range v1.Kinds {
		all = append(all, gridResource(kind))
	}
	for _, kind := range v1.Kinds {
		if kind.Kind != v1.ServiceGridKind.Kind { // their Services are among the Services
			all = append(all, childResource(kind))
		}
	}
	return all
}

// typed makes the functions of a resource whose objects have this type; they ignore objects of other types.
func typed[T runtime.Object](r resource, trim func(T), set func(*facts, T) bool) resource {
	r.trim = func(object runtime.Object) {
		if o, ok := object.(T); ok {
			trim(o)
		}
	}
	r.set = func(f *facts, object runtime.Object) bool {
		o, ok := object.(T)
		return ok && set(f, o)
	}
	return r
}

func nodeResource() resource {
	return typed(resource{
		name: nodes, newList: func() client.ObjectList { return cluster.NodeList() },
		remove: (*facts).removeNode,
	}, func(node *metav1.PartialObjectMetadata) {
		node.ObjectMeta = metav1.ObjectMeta{Name: node.Name, Labels: node.Labels}
	}, (*facts).setNode)
}

func serviceResource() resource {
	return typed(resource{
		name: services, namespaced: true, newList: func() client.ObjectList { return &corev1.ServiceList{} },
		remove: (*facts).removeService,
	}, trimService, (*facts).setService)
}

func trimService(s *corev1.Service) {
	meta := metav1.ObjectMeta{Namespace: s.Namespace, Name: s.Name, OwnerReferences: s.OwnerReferences}
	for _, key := range []string{v1.AnnotationTopologyKeys, v1.AnnotationOpenYurtTopologyKeys} {
		if value, ok := s.Annotations[key]; ok {
			metav1.SetMetaDataAnnotation(&meta, key, value)
		}
	}
	if value, ok := s.Labels[v1.LabelGridSelector]; ok {
		meta.Labels = map[string]string{v1.LabelGridSelector: value}
	}
	s.ObjectMeta = meta
	ports := make([]corev1.ServicePort, 0, len(s.Spec.Ports))
	for _, p := range s.Spec.Ports {
		ports = append(ports, corev1.ServicePort{Name: p.Name, Protocol: p.Protocol})
	}
	headless := ""
	if s.Spec.ClusterIP == corev1.ClusterIPNone {
		headless = s.Spec.ClusterIP
	}
	s.Spec = corev1.ServiceSpec{
		Type: s.Spec.Type, ClusterIP: headless, IPFamilies: s.Spec.IPFamilies, Ports: ports,
		InternalTrafficPolicy: s.Spec.InternalTrafficPolicy,
	}
	s.Status = corev1.ServiceStatus{}
}

func sliceResource() resource {
	return typed(resource{
		name: endpointSlices, namespaced: true,
		newList: func() client.ObjectList { return &discoveryv1.EndpointSliceList{} },
		remove:  (*facts).removeSlice,
	}, trimSlice, (*facts).setSlice)
}

// trimSlice keeps only the fields that determine who sees an endpoint. A large cluster has hundreds of thousands of
// endpoints.
func trimSlice(s *discoveryv1.EndpointSlice) {
	s.ObjectMeta = metav1.ObjectMeta{
		Namespace: s.Namespace, Name: s.Name,
		Labels: map[string]string{discoveryv1.LabelServiceName: s.Labels[discoveryv1.LabelServiceName]},
	}
	s.Endpoints = slices.Clip(s.Endpoints)
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		kept := discoveryv1.Endpoint{Addresses: e.Addresses, NodeName: e.NodeName, Hints: e.Hints}
		if !ptr.Deref(e.Conditions.Ready, true) {
			kept.Conditions = e.Conditions // they show whether it still serves
		}
		if t := e.TargetRef; t != nil {
			kept.TargetRef = &corev1.ObjectReference{Kind: t.Kind, Name: t.Name}
		}
		*e = kept
	}
}

func gridResource(kind v1.GridKind) resource {
	return typed(resource{
		name: kind.Plural, namespaced: true,
		newList: func() client.ObjectList { return kind.NewList() },
		remove:  func(f *facts, name types.NamespacedName) { f.removeGrid(kind, name) },
	}, func(grid v1.Object) {
		grid.SetManagedFields(nil)
		grid.SetAnnotations(nil)
	}, func(f *facts, grid v1.Object) bool { return f.setGrid(kind, grid) })
}

// resourceOf returns the name of the resource of a kind of children.
func resourceOf(child schema.GroupVersionKind) string { return strings.ToLower(child.Kind) + "s" }

func childResource(kind v1.GridKind) resource {
	return typed(resource{
		name: resourceOf(kind.Child), namespaced: true, selector: v1.LabelGridSelector,
		newList: func() client.ObjectList { return pages.Metadata(kind.Child) },
		remove:  func(f *facts, name types.NamespacedName) { f.removeChild(kind, name) },
	}, trimChild, func(f *facts, child *metav1.PartialObjectMetadata) bool { return f.setChild(kind, child) })
}

// trimChild keeps the owner of a child, its site, and which of its fields others own.
func trimChild(child *metav1.PartialObjectMetadata) {
	meta := metav1.ObjectMeta{
		Namespace: child.Namespace, Name: child.Name, OwnerReferences: child.OwnerReferences,
	}
	if value, ok := child.Labels[v1.LabelGridSite]; ok {
		meta.Labels = map[string]string{v1.LabelGridSite: value}
	}
	if v1.ForeignFields(child.ManagedFields) != "" {
		for _, entry := range child.ManagedFields {
			if entry.Subresource == "" { // those of the status change all the time, and do not matter here
				entry.Time = nil
				meta.ManagedFields = append(meta.ManagedFields, entry)
			}
		}
	}
	child.ObjectMeta = meta
}

func objectOf(object any) (client.Object, types.NamespacedName, error) {
	o, ok := object.(client.Object)
	if !ok {
		return nil, types.NamespacedName{}, fmt.Errorf("%T is not an object of an API server", object)
	}
	return o, client.ObjectKeyFromObject(o), nil
}
