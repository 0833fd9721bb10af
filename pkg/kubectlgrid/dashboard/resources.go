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
	"github.com/application-grid/application-grid/pkg/program/pages"
)

// Names of resources.
const (
	nodes          = "nodes"
	services       = "services"
	endpointSlices = "endpointslices"
)

// resource describes a followed resource.
type resource struct {
	name string
	// selector selects objects by their labels; empty for all.
	selector string
	newList  func() client.ObjectList
}

// resources returns all resources that the page needs.
func resources() []resource {
	all := []resource{
		{name: nodes, newList: func() client.ObjectList { return cluster.NodeList() }},
		{name: services, newList: func() client.ObjectList { return &corev1.ServiceList{} }},
		{name: endpointSlices, newList: func() client.ObjectList { return &discoveryv1.EndpointSliceList{} }},
	}
	for _, kind := range v1.Kinds {
		all = append(all, resource{name: kind.Plural, newList: func() client.ObjectList { return kind.NewList() }})
		if kind.Kind != v1.ServiceGridKind.Kind { // whose Services are among the Services
			all = append(all, resource{name: resourceOf(kind.Child), selector: v1.LabelGridSelector,
				newList: func() client.ObjectList { return pages.Metadata(kind.Child) }})
		}
	}
	return all
}

// resourceOf returns the name of the resource of a kind of children.
func resourceOf(child schema.GroupVersionKind) string { return strings.ToLower(child.Kind) + "s" }

// trim drops the parts of a received object that are large, or that change without a change of a result.
func trim(object any) {
	switch o := object.(type) {
	case *corev1.Service:
		annotations := o.Annotations
		delete(annotations, corev1.LastAppliedConfigAnnotation)
		trimMeta(&o.ObjectMeta)
		o.Annotations, o.Status = annotations, corev1.ServiceStatus{}
	case *discoveryv1.EndpointSlice:
		trimMeta(&o.ObjectMeta)
		trimEndpoints(o)
	case *metav1.PartialObjectMetadata: // a node, or a child, of which the fields that others own matter
		fields := o.ManagedFields
		if trimMeta(&o.ObjectMeta); v1.ForeignFields(fields) == "" {
			return
		}
		for _, entry := range fields {
			if entry.Subresource == "" { // those of the status change all the time, and do not matter here
				entry.Time = nil
				o.ManagedFields = append(o.ManagedFields, entry)
			}
		}
	case v1.Object:
		o.SetManagedFields(nil)
		o.SetAnnotations(nil)
	}
}

func trimMeta(meta *metav1.ObjectMeta) {
	*meta = metav1.ObjectMeta{Namespace: meta.Namespace, Name: meta.Name, Labels: meta.Labels,
		OwnerReferences: meta.OwnerReferences}
}

// trimEndpoints keeps only the fields that determine who sees an endpoint. A large cluster has hundreds of thousands of
// endpoints.
func trimEndpoints(s *discoveryv1.EndpointSlice) {
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
