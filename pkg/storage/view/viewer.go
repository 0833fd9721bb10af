package view

import (
	"github.com/application-grid/application-grid/pkg/storage/facts"
	"github.com/application-grid/application-grid/pkg/topology"
)

// Viewer returns the labels by which a View is pruned. present is false for a viewer that sees no endpoints of governed
// Services, not even by the key "*". It is called while the facts do not change.
type Viewer func(facts.Reader) (here topology.Labels, present bool)

// Node returns the Viewer for a node of the cluster, which need not be known.
func Node(name string) Viewer {
	return func(in facts.Reader) (topology.Labels, bool) { return in.LabelsOf([]byte(name)), true }
}

// Site returns the Viewer for the nodes that have the value site of a topology key, whichever key that is. For example,
// it sees the endpoints on nodes with zone1=site of a Service that is governed by zone1. A site without nodes sees no
// endpoint of any governed Service.
func Site(site string) Viewer {
	return func(in facts.Reader) (topology.Labels, bool) {
		if site == "" || !in.Inhabited(site) {
			return nil, false
		}
		here := topology.Labels{}
		for _, key := range in.Keys() {
			here[key] = site
		}
		return here, true
	}
}
