package view

import (
	"github.com/application-grid/application-grid/pkg/storage/facts"
	"github.com/application-grid/application-grid/pkg/topology"
)

// Viewer returns the labels by which a View is pruned. present is false for a viewer that sees no endpoint of any
// governed Service, not even by the key "*". It is called while the facts do not change.
type Viewer func(facts.Reader) (here topology.Labels, present bool)

// Node returns the Viewer for a node of the cluster, which need not be known.
func Node(name string) Viewer {
	return func(in facts.Reader) (topology.Labels, bool) {
		if n := in.Node(name); n != nil {
			return n.Labels, true
		}
		return nil, true
	}
}

// Unit returns the Viewer for the nodes that have the value unit of a topology key, whichever key that is. For example,
// it sees the endpoints on nodes with zone1=unit of a Service that is governed by zone1. A unit without nodes sees no
// endpoint of any governed Service.
func Unit(unit string) Viewer {
	return func(in facts.Reader) (topology.Labels, bool) {
		if unit == "" || !in.Inhabited(unit) {
			return nil, false
		}
		here := topology.Labels{}
		for _, key := range in.Keys() {
			here[key] = unit
		}
		return here, true
	}
}
