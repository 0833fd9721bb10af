// Package v1 is group superedge.io/v1 and the names the project shares with its users' clusters: every
// label, annotation and reason string stands here once. It imports nothing of the project.
//
// The grids' CRDs (manifests/crds) and the copying of their types are generated from here: make generate.
//
// +kubebuilder:object:generate=true
// +groupName=superedge.io
package v1

// GroupName is the API group of the grids.
const GroupName = "superedge.io"
