package gridview

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/application-grid/application-grid/pkg/topology"
)

// Grouping is the nodes of a cluster, grouped by their values of some topology keys: the nodes of a group see the same
// of every Service with these keys. Views of Services with the same keys can share one.
//
// It also finds the endpoints that a group may see. Without that, every group would be compared with every endpoint,
// and both grow with the number of units.
type Grouping struct {
	keys   topology.Keys
	nodes  map[string]topology.Labels
	groups []nodeGroup
	// numbers are those of a node's values, by the position of the key. values counts the values of each key.
	numbers map[string][]int
	values  []int
}

// nodeGroup are nodes that see the same.
type nodeGroup struct {
	name   string
	nodes  []string
	labels topology.Labels
	// numbers are those of any of the nodes.
	numbers []int
}

// noValue is the number of a value that a node does not have.
const noValue = -1

// Group groups nodes, whose labels are given by name, by their values of the keys.
func Group(keys topology.Keys, nodes map[string]topology.Labels) *Grouping {
	g := &Grouping{
		keys: keys, nodes: nodes, numbers: make(map[string][]int, len(nodes)), values: make([]int, len(keys)),
	}
	numbered := make([]map[string]int, len(keys))
	for k := range keys {
		numbered[k] = map[string]int{}
	}
	groups := map[string]*nodeGroup{}
	for _, node := range slices.Sorted(maps.Keys(nodes)) {
		labels, numbers := nodes[node], make([]int, len(keys))
		for k, key := range keys {
			value, ok := labels[key]
			if !ok {
				numbers[k] = noValue
				continue
			}
			number, known := numbered[k][value]
			if !known {
				number = len(numbered[k])
				numbered[k][value] = number
			}
			numbers[k] = number
		}
		g.numbers[node] = numbers
		name := groupName(keys, labels)
		if groups[name] == nil {
			groups[name] = &nodeGroup{name: name, labels: labels, numbers: numbers}
		}
		groups[name].nodes = append(groups[name].nodes, node)
	}
	for k := range keys {
		g.values[k] = len(numbered[k])
	}
	for _, name := range slices.Sorted(maps.Keys(groups)) {
		g.groups = append(g.groups, *groups[name])
	}
	return g
}

func groupName(keys topology.Keys, labels topology.Labels) string {
	var names []string
	for _, key := range keys {
		value, ok := labels[key]
		switch {
		case !ok:
		case len(keys) > 1:
			names = append(names, key+"="+value)
		case value == "": // a value like any other for the rule, though no unit of a grid
			return strconv.Quote(value)
		default:
			return value
		}
	}
	return strings.Join(names, ",")
}

// of returns the groups of some nodes, with these of their nodes only.
func (g *Grouping) of(viewers []string) []nodeGroup {
	some := make(map[string]topology.Labels, len(viewers))
	for _, name := range viewers {
		if labels, ok := g.nodes[name]; ok {
			some[name] = labels
		}
	}
	groups := Group(g.keys, some).groups
	for i := range groups {
		groups[i].numbers = g.numbers[groups[i].nodes[0]]
	}
	return groups
}

// viewer applies the rule to the endpoints of one Service.
type viewer struct {
	*Grouping

	endpoints []Endpoint
	// all are the positions of all endpoints. at has for every key the positions of those on nodes that have it, in the
	// order of the numbers of its values; from has where each number begins.
	all  []int
	at   [][]int
	from [][]int
	// kept is what the endpoints of units are cut from.
	kept []Endpoint
}

func (g *Grouping) viewer(endpoints []Endpoint) *viewer {
	v := &viewer{
		Grouping: g, endpoints: endpoints, all: make([]int, len(endpoints)), kept: make([]Endpoint, 0, len(endpoints)),
	}
	numbers := make([][]int, len(endpoints))
	for i := range endpoints {
		v.all[i], numbers[i] = i, g.numbers[endpoints[i].Node]
	}
	for k := range g.keys {
		from := make([]int, g.values[k]+1)
		for _, n := range numbers {
			if n != nil && n[k] != noValue {
				from[n[k]+1]++
			}
		}
		for i := 1; i < len(from); i++ {
			from[i] += from[i-1]
		}
		at, next := make([]int, from[len(from)-1]), slices.Clone(from)
		for i, n := range numbers {
			if n != nil && n[k] != noValue {
				at[next[n[k]]] = i
				next[n[k]]++
			}
		}
		v.at, v.from = append(v.at, at), append(v.from, from)
	}
	return v
}

// candidates are the positions of all endpoints that the rule may keep for a group: those on nodes that have one of the
// keys with the same value. It is the rule that decides among them.
func (v *viewer) candidates(group *nodeGroup) []int {
	if !v.keys.Governed() || slices.Contains(v.keys, topology.Any) {
		return v.all
	}
	var positions []int
	for k, number := range group.numbers {
		if number == noValue {
			continue
		}
		same := v.at[k][v.from[k][number]:v.from[k][number+1]]
		if len(v.keys) == 1 {
			return same
		}
		positions = append(positions, same...)
	}
	slices.Sort(positions)
	return slices.Compact(positions)
}

// see applies the rule for one group of nodes, and notes in seen what they see, unless seen is nil.
func (v *viewer) see(group *nodeGroup, seen []bool) UnitView {
	unit := UnitView{Name: group.name, Nodes: group.nodes}
	candidates := v.candidates(group)
	best := topology.NoRank
	for _, i := range candidates {
		if endpoint := &v.endpoints[i]; endpoint.Ready {
			best = min(best, v.keys.Rank(group.labels, v.nodes[endpoint.Node]))
		}
	}
	decision := v.keys.Decide(group.labels, best)
	unit.Key = decision.Key()
	begin := len(v.kept)
	for _, i := range candidates {
		endpoint := &v.endpoints[i]
		if v.keys.Governed() && !decision.Keep(v.nodes[endpoint.Node]) {
			continue
		}
		if seen != nil {
			seen[i] = true
		}
		v.kept = append(v.kept, *endpoint)
		if endpoint.Ready {
			unit.Ready++
		}
	}
	unit.Endpoints = slices.Clip(v.kept[begin:])
	return unit
}
