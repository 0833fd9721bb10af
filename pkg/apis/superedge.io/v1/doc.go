// Package v1 has the types of API group superedge.io/v1, and the names that the project uses in its users' clusters:
// every label, annotation and reason is defined here, once. It imports nothing of the project.
//
// The grids' CRDs (manifests/crds) and the types' DeepCopy methods are generated from it by make generate.
//
// +kubebuilder:object:generate=true
// +groupName=superedge.io
package v1

// GroupName is the API group of the grids.
const GroupName = "superedge.io"
