// Package manifests is what a cluster applies, for programs that apply some of it themselves.
package manifests

import "embed"

// CRDs are the grids' definitions, crds/*.yaml.
//
//go:embed crds/*.yaml
var CRDs embed.FS
