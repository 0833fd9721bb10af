// Package manifests is what a cluster applies, for programs that apply some of it themselves: the controller the
// CRDs, the tests all of it.
package manifests

import "embed"

// CRDs are the grids' definitions, crds/superedge.io_*.yaml.
//
//go:embed crds/superedge.io_*.yaml
var CRDs embed.FS

// RBAC is */rbac.yaml: who each program is in a cluster, and what it may do there.
//
//go:embed */rbac.yaml
var RBAC embed.FS

// Kubeconfig is the wrapper's way to the API server, whose address is still to be set.
//
//go:embed application-grid-wrapper/kubeconfig.conf
var Kubeconfig string
