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
