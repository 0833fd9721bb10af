package dashboard

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
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

// resource describes a followed resource.
type resource struct {
	name       string
	namespaced bool
	// selector selects objects by their labels; empty for all.
	selector string
	newList  func() client.ObjectList
}

// resources returns all resources that the page needs.
func resources() []resource {
	all := []resource{
		{name: nodes, newList: func() client.ObjectList { return cluster.NodeList() }},
		{name: services, namespaced: true, newList: func() client.ObjectList { return &corev1.ServiceList{} }},
		{name: endpointSlices, namespaced: true,
			newList: func() client.ObjectList { return &discoveryv1.EndpointSliceList{} }},
	}
	for _, kind := range v1.Kinds {
		all = append(all, resource{name: kind.Plural, namespaced: true,
			newList: func() client.ObjectList { return kind.NewList() }})
		if kind.Kind != v1.ServiceGridKind.Kind { // whose Services are among the Services
			all = append(all, resource{name: resourceOf(kind.Child), namespaced: true, selector: v1.LabelGridSelector,
				newList: func() client.ObjectList { return pages.Metadata(kind.Child) }})
		}
	}
	return all
}

// resourceOf returns the name of the resource of a kind of children.
func resourceOf(child schema.GroupVersionKind) string { return strings.ToLower(child.Kind) + "s" }

// trim drops the parts of a received object that no result depends on.
func trim(object any) {
	switch o := object.(type) {
	case *corev1.Service:
		trimService(o)
	case *discoveryv1.EndpointSlice:
		trimSlice(o)
	case *metav1.PartialObjectMetadata:
		if o.Namespace == "" {
			o.ObjectMeta = metav1.ObjectMeta{Name: o.Name, Labels: o.Labels} // a node
		} else {
			trimChild(o)
		}
	case v1.Object:
		o.SetManagedFields(nil)
		o.SetAnnotations(nil)
	}
}

func trimService(s *corev1.Service) {
	meta := metav1.ObjectMeta{Namespace: s.Namespace, Name: s.Name, OwnerReferences: s.OwnerReferences}
	for _, key := range []string{v1.AnnotationTopologyKeys, v1.AnnotationOpenYurtTopologyKeys} {
		if value, ok := s.Annotations[key]; ok {
			metav1.SetMetaDataAnnotation(&meta, key, value)
		}
	}
	for _, key := range []string{v1.LabelGridSelector, v1.LabelServiceProxyName} {
		if value, ok := s.Labels[key]; ok {
			metav1.SetMetaDataLabel(&meta, key, value)
		}
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
		Type: s.Spec.Type, ExternalName: s.Spec.ExternalName, ClusterIP: headless,
		IPFamilies: s.Spec.IPFamilies, Ports: ports,
		InternalTrafficPolicy: s.Spec.InternalTrafficPolicy, ExternalTrafficPolicy: s.Spec.ExternalTrafficPolicy,
	}
	s.Status = corev1.ServiceStatus{}
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
