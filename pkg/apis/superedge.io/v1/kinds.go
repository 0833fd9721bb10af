package v1

import (
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"
)

// Object is a grid.
//
// +kubebuilder:object:generate=false
type Object interface {
	metav1.Object
	runtime.Object
}

// List is a list of grids.
//
// +kubebuilder:object:generate=false
type List interface {
	metav1.ListInterface
	runtime.Object
}

// GridKind describes a kind of grid: its names in the API, and the kind of its children.
//
// +kubebuilder:object:generate=false
type GridKind struct {
	Kind, Plural, Singular, Short string
	Child                         schema.GroupVersionKind
	// New makes an empty grid, NewList an empty list of them.
	New     func() Object
	NewList func() List
	// names are the rules for the names of its children.
	names nameRules
}

// The kinds of grids. A child's name must leave room: the names of a Deployment's ReplicaSets and of a DaemonSet's
// ControllerRevisions add a hyphen and a hash of up to 10 characters. A StatefulSet's name begins the host names of its
// pods, and with such a hash it is the value of a label.
var (
	DeploymentGridKind = GridKind{
		Kind: "DeploymentGrid", Plural: "deploymentgrids", Singular: "deploymentgrid", Short: "dg",
		Child: appsv1.SchemeGroupVersion.WithKind("Deployment"),
		names: nameRules{longest: validation.DNS1123SubdomainMaxLength - 11, dots: true},
		New:   func() Object { return &DeploymentGrid{} }, NewList: func() List { return &DeploymentGridList{} },
	}
	StatefulSetGridKind = GridKind{
		Kind: "StatefulSetGrid", Plural: "statefulsetgrids", Singular: "statefulsetgrid", Short: "ssg",
		Child: appsv1.SchemeGroupVersion.WithKind("StatefulSet"),
		names: nameRules{longest: validation.LabelValueMaxLength - 11},
		New:   func() Object { return &StatefulSetGrid{} }, NewList: func() List { return &StatefulSetGridList{} },
	}
	DaemonSetGridKind = GridKind{
		Kind: "DaemonSetGrid", Plural: "daemonsetgrids", Singular: "daemonsetgrid", Short: "dsg",
		Child: appsv1.SchemeGroupVersion.WithKind("DaemonSet"),
		names: nameRules{longest: validation.DNS1123SubdomainMaxLength - 11, dots: true},
		New:   func() Object { return &DaemonSetGrid{} }, NewList: func() List { return &DaemonSetGridList{} },
	}
	ServiceGridKind = GridKind{
		Kind: "ServiceGrid", Plural: "servicegrids", Singular: "servicegrid", Short: "sg",
		Child: corev1.SchemeGroupVersion.WithKind("Service"),
		names: nameRules{longest: validation.DNS1035LabelMaxLength, letterFirst: true},
		New:   func() Object { return &ServiceGrid{} }, NewList: func() List { return &ServiceGridList{} },
	}

	// Kinds has all kinds, those of workloads first.
	Kinds = []GridKind{DeploymentGridKind, StatefulSetGridKind, DaemonSetGridKind, ServiceGridKind}
)

// GroupVersion is superedge.io/v1.
var GroupVersion = schema.GroupVersion{Group: GroupName, Version: "v1"}

// AddToScheme adds the grids' kinds to a scheme.
func AddToScheme(scheme *runtime.Scheme) error {
	for _, k := range Kinds {
		scheme.AddKnownTypes(GroupVersion, k.New(), k.NewList())
	}
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return nil
}

// ProgressDeadline is how long a workload may make no progress before it counts as Stalled.
func (s *WorkloadGridSpec) ProgressDeadline() time.Duration {
	return time.Duration(ptr.Deref(s.ProgressDeadlineSeconds, 600)) * time.Second
}

// SpecAndStatus returns the spec and status of a grid of workloads; nil for a ServiceGrid.
func SpecAndStatus(grid Object) (*WorkloadGridSpec, *WorkloadGridStatus) {
	switch g := grid.(type) {
	case *DeploymentGrid:
		return &g.Spec, &g.Status
	case *StatefulSetGrid:
		return &g.Spec, &g.Status
	case *DaemonSetGrid:
		return &g.Spec, &g.Status
	}
	return nil, nil
}
