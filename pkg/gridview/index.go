package gridview

import (
	"slices"

	"github.com/application-grid/application-grid/pkg/topology"
)

// endpointIndex finds the endpoints of one Service that nodes with some labels may see. Without it, every group of
// nodes would be compared with every endpoint, and both grow with the number of units.
type endpointIndex struct {
	keys      topology.Keys
	endpoints []Endpoint
	nodes     map[string]topology.Labels
	// all are the positions of all endpoints. at has those of the endpoints on nodes with a value of a key, by key and
	// value.
	all []int
	at  map[string]map[string][]int
}

func newEndpointIndex(keys topology.Keys, endpoints []Endpoint, nodes map[string]topology.Labels) *endpointIndex {
	x := &endpointIndex{
		keys: keys, endpoints: endpoints, nodes: nodes, all: make([]int, len(endpoints)),
		at: make(map[string]map[string][]int, len(keys)),
	}
	for i := range endpoints {
		x.all[i] = i
	}
	for _, key := range keys {
		byValue := map[string][]int{}
		for i := range endpoints {
			if value, ok := nodes[endpoints[i].Node][key]; ok {
				byValue[value] = append(byValue[value], i)
			}
		}
		x.at[key] = byValue
	}
	return x
}

// candidates are the positions of all endpoints that the rule may keep for nodes with these labels: those on nodes that
// have one of the keys with the same value. It is the rule that decides among them.
func (x *endpointIndex) candidates(here topology.Labels) []int {
	if !x.keys.Governed() || slices.Contains(x.keys, topology.Any) {
		return x.all
	}
	var positions []int
	for _, key := range x.keys {
		if value, ok := here[key]; ok {
			positions = append(positions, x.at[key][value]...)
		}
	}
	if len(x.keys) == 1 {
		return positions
	}
	slices.Sort(positions)
	return slices.Compact(positions)
}

// see applies the rule for one group of nodes, and returns with what they see the positions of those endpoints.
func (x *endpointIndex) see(group nodeGroup) (UnitView, []int) {
	unit := UnitView{Name: group.name, Nodes: group.nodes, Endpoints: []Endpoint{}}
	candidates := x.candidates(group.labels)
	best := topology.NoRank
	for _, i := range candidates {
		if endpoint := x.endpoints[i]; endpoint.Ready {
			best = min(best, x.keys.Rank(group.labels, x.nodes[endpoint.Node]))
		}
	}
	decision := x.keys.Decide(group.labels, best)
	unit.Key = decision.Key()
	seen := make([]int, 0, len(candidates))
	for _, i := range candidates {
		endpoint := x.endpoints[i]
		if x.keys.Governed() && !decision.Keep(x.nodes[endpoint.Node]) {
			continue
		}
		seen = append(seen, i)
		unit.Endpoints = append(unit.Endpoints, endpoint)
		if endpoint.Ready {
			unit.Ready++
		}
	}
	return unit, seen
}
