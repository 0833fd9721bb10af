package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
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
