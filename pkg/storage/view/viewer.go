package view

import (
	"github.com/application-grid/application-grid/pkg/storage/facts"
	"github.com/application-grid/application-grid/pkg/topology"
)

// Viewer is whose labels a View is pruned by: here are the labels, and present is false for a viewer that sees no
// endpoint of any governed Service, not even by the key "*". It is called while the facts do not change.
type Viewer func(*facts.Facts) (here topology.Labels, present bool)

// Node is a node of the cluster, which need not be known.
func Node(name string) Viewer {
	return func(f *facts.Facts) (topology.Labels, bool) {
		if n := f.Node(name); n != nil {
			return n.Labels, true
		}
		return nil, true
	}
}

// Unit is the nodes that share a value of a topology key, whichever key that is: of a Service governed by zone1 it sees
// the endpoints on nodes with zone1=unit. A unit that no node is of is Nobody.
func Unit(unit string) Viewer {
	return func(f *facts.Facts) (topology.Labels, bool) {
		if unit == "" || !f.Inhabited(unit) {
			return nil, false
		}
		here := topology.Labels{}
		for _, key := range f.Keys() {
			here[key] = unit
		}
		return here, true
	}
}

// Nobody sees no endpoint of any governed Service.
func Nobody(*facts.Facts) (topology.Labels, bool) { return nil, false }
