package gridview

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/application-grid/application-grid/pkg/topology"
)

// Groupings makes one Grouping for all Services with the same keys.
type Groupings struct {
	// Nodes are the labels of all nodes, by name.
	Nodes map[string]topology.Labels
	// Diagnosis is nil if it is not known.
	Diagnosis *Diagnosis

	byKeys map[string]*Grouping
	// keeping is the Keeping of each edge node, nil before it is asked for.
	keeping map[string]Keeping
}

// Of returns the Grouping of the nodes by some keys.
func (g *Groupings) Of(keys topology.Keys) *Grouping {
	name := strings.Join(keys, " ") // a key has no space
	if g.byKeys[name] == nil {
		if g.byKeys == nil {
			g.byKeys = map[string]*Grouping{}
		}
		g.byKeys[name] = g.group(keys)
	}
	return g.byKeys[name]
}

// keepingOfNodes returns the Keeping of each edge node.
func (g *Groupings) keepingOfNodes() map[string]Keeping {
	if g.keeping == nil {
		g.keeping = g.Diagnosis.keeping(g.Nodes)
	}
	return g.keeping
}

// Grouping has the nodes of a cluster, grouped by their values of some topology keys. The nodes of a group see the same
// endpoints of every Service with these keys. Views of Services with the same keys share one.
type Grouping struct {
	*Groupings

	keys   topology.Keys
	groups []nodeGroup
	// sites are those with an edge node.
	sites map[string]bool
}

// halfInSite reports whether a node that is not an edge node is in a site with one.
func (g *Grouping) halfInSite(node string) bool {
	_, edge := g.keeping[node]
	name, in := SiteOf(g.Nodes[node], SiteKey(g.keys))
	return !edge && in && g.sites[name]
}

// nodeGroup is a group of nodes that see the same endpoints.
type nodeGroup struct {
	name   string
	nodes  []string
	labels topology.Labels
}

func (g *Groupings) group(keys topology.Keys) *Grouping {
	grouping := &Grouping{Groupings: g, keys: keys, sites: map[string]bool{}}
	for node := range g.keepingOfNodes() {
		if name, in := SiteOf(g.Nodes[node], SiteKey(keys)); in {
			grouping.sites[name] = true
		}
	}
	groups := map[string]*nodeGroup{}
	for _, node := range slices.Sorted(maps.Keys(g.Nodes)) {
		name := groupName(keys, g.Nodes[node])
		if groups[name] == nil {
			groups[name] = &nodeGroup{name: name, labels: g.Nodes[node]}
		}
		groups[name].nodes = append(groups[name].nodes, node)
	}
	for _, name := range slices.Sorted(maps.Keys(groups)) {
		grouping.groups = append(grouping.groups, *groups[name])
	}
	return grouping
}

func groupName(keys topology.Keys, labels topology.Labels) string {
	var names []string
	for _, key := range keys {
		name, in := SiteOf(labels, key)
		if in && len(keys) == 1 {
			return name
		}
		if in {
			names = append(names, key+"="+name)
		}
	}
	return strings.Join(names, ",")
}

// viewer applies the rules of topology to the endpoints of one Service.
type viewer struct {
	*Tally

	parts []endpointPart
	// at has the parts in each place: without that, every group would be compared with every endpoint, and both grow
	// with the number of sites.
	at map[place][]endpointPart
}

// place is where an endpoint is: on nodes with this value of the key, or anywhere for "*".
type place struct {
	list       *portList
	key, value string
}

func (g *Grouping) viewer(service *corev1.Service, endpointSlices []discoveryv1.EndpointSlice) *viewer {
	v := &viewer{Tally: g.NewTally(service), at: map[place][]endpointPart{}}
	for i := range endpointSlices {
		v.Add(&endpointSlices[i])
		v.parts = append(v.parts, partsOf(&endpointSlices[i], v.listOf(&endpointSlices[i]))...)
	}
	for _, p := range v.parts {
		for _, key := range g.keys {
			if value, has := g.Nodes[p.Node][key]; has || key == topology.Any {
				at := place{p.list, key, value}
				v.at[at] = append(v.at[at], p)
			}
		}
	}
	return v
}

// see applies the rules for one group of nodes, and notes in seen which endpoints they see.
func (v *viewer) see(group *nodeGroup, seen map[string]bool) SiteView {
	var kept []endpointPart
	for list, choice := range v.choices(group.labels) {
		key := v.keys.Decide(group.labels, choice.Rank()).Key()
		if value, has := group.labels[key]; has || key == topology.Any {
			kept = append(kept, v.at[place{list, key, value}]...)
		}
	}
	for _, p := range kept {
		seen[p.id] = true
	}
	site := SiteView{Name: group.name, Nodes: group.nodes, Endpoints: merge(kept)}
	for _, e := range site.Endpoints {
		if e.Ready {
			site.Ready++
		}
	}
	return site
}
