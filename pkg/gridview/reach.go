package gridview

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/ptr"

	"github.com/application-grid/application-grid/pkg/topology"
)

// Reach says whom a connection to a Service finds.
type Reach string

// The answers, the best first.
const (
	// ReachOwn is a ready endpoint of the node's own site, ReachFallback one that a later topology key allows.
	ReachOwn      Reach = "own"
	ReachFallback Reach = "fallback"
	// ReachEmpty: no endpoint of the Service takes connections anywhere.
	ReachEmpty Reach = "empty"
	// ReachTerminating: only endpoints that are ending are left.
	ReachTerminating Reach = "terminating"
	// ReachNone: connections are refused, though other nodes have an endpoint.
	ReachNone Reach = "none"
)

var reaches = []Reach{ReachOwn, ReachFallback, ReachEmpty, ReachTerminating, ReachNone}

func worse(a, b Reach) Reach { return reaches[max(slices.Index(reaches, a), slices.Index(reaches, b))] }

// Port is a way into a Service: one of its ports, by one address family. Headless Services and Services without ports
// are decided as a whole in each family, and have neither Name nor Protocol.
type Port struct {
	Family   discoveryv1.AddressType `json:"family"`
	Name     string                  `json:"name,omitempty"`
	Protocol corev1.Protocol         `json:"protocol,omitempty"`
}

// String is the port as a sentence names it.
func (p Port) String() string {
	switch {
	case p.Protocol == "":
		return string(p.Family)
	case p.Name == "":
		return string(p.Protocol) + " over " + string(p.Family)
	}
	return "port " + p.Name + " over " + string(p.Family)
}

// PortReach is what the nodes of a site reach on a port; the worst of them if they differ.
type PortReach struct {
	Port  `json:",inline"`
	Reach Reach `json:"reach"`
}

// Tally adds up the endpoints of a Service, slice by slice, and says what each node reaches. It holds label values, not
// endpoints.
type Tally struct {
	service *corev1.Service
	keys    topology.Keys
	nodes   map[string]topology.Labels
	// own is the rank of the last key that is of the node's own site.
	own int
	// local is that each node uses its own endpoints only.
	local bool
	ports map[Port]*counted
	// fixed is set if the Service says which ports and families it has.
	fixedPorts, fixedFamilies bool
	// strays are the nodes that have an endpoint and none of the keys.
	strays map[string]bool
}

// counted are the endpoints of a port: those that are ready, and those that serve while they end.
type counted struct{ ready, terminating spread }

// spread says where endpoints are: the values that their nodes have of each key.
type spread struct {
	count  int
	values []map[string]bool
	// nodes are the endpoints' nodes, for Services whose nodes use their own endpoints only.
	nodes map[string]bool
}

// NewTally starts a tally for a Service that is governed by these keys.
func NewTally(service *corev1.Service, keys topology.Keys, nodes map[string]topology.Labels) *Tally {
	spec := &service.Spec
	t := &Tally{
		service: service, keys: keys, nodes: nodes, own: max(slices.Index(keys, SiteKey(keys)), 0),
		fixedPorts:    spec.ClusterIP != corev1.ClusterIPNone && len(spec.Ports) > 0,
		fixedFamilies: len(spec.IPFamilies) > 0,
		local:         isLocal(service),
	}
	t.Restart()
	return t
}

func isLocal(service *corev1.Service) bool {
	return ptr.Deref(service.Spec.InternalTrafficPolicy, "") == corev1.ServiceInternalTrafficPolicyLocal
}

// Restart forgets all slices.
func (t *Tally) Restart() {
	t.ports, t.strays = map[Port]*counted{}, map[string]bool{}
	for _, family := range t.service.Spec.IPFamilies {
		t.addFamily(discoveryv1.AddressType(family))
	}
}

func (t *Tally) addFamily(family discoveryv1.AddressType) {
	if !t.fixedPorts {
		t.ports[Port{Family: family}] = &counted{}
		return
	}
	for _, p := range t.service.Spec.Ports {
		t.ports[Port{family, p.Name, cmp.Or(p.Protocol, corev1.ProtocolTCP)}] = &counted{}
	}
}

// Add counts the endpoints of a slice.
func (t *Tally) Add(s *discoveryv1.EndpointSlice) {
	family := cmp.Or(s.AddressType, discoveryv1.AddressTypeIPv4)
	if !t.fixedFamilies && !t.hasFamily(family) {
		t.addFamily(family)
	}
	var of []*counted
	for _, port := range t.portsOf(s, family) {
		if c := t.ports[port]; c != nil {
			of = append(of, c)
		}
	}
	if len(of) == 0 {
		return
	}
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		node := ptr.Deref(e.NodeName, "")
		if labels, known := t.nodes[node]; known && t.keys.Governed() && !inGroup(labels, t.keys) {
			t.strays[node] = true
		}
		terminating := ptr.Deref(e.Conditions.Terminating, false)
		ready := ptr.Deref(e.Conditions.Ready, true) // nil is to be read as ready
		for _, c := range of {
			switch {
			case ready:
				t.count(&c.ready, node)
			case terminating && ptr.Deref(e.Conditions.Serving, true):
				t.count(&c.terminating, node)
			}
		}
	}
}

func (t *Tally) hasFamily(family discoveryv1.AddressType) bool {
	for port := range t.ports {
		if port.Family == family {
			return true
		}
	}
	return false
}

func (t *Tally) portsOf(s *discoveryv1.EndpointSlice, family discoveryv1.AddressType) []Port {
	if !t.fixedPorts {
		return []Port{{Family: family}}
	}
	var ports []Port
	for _, p := range s.Ports {
		if p.Port != nil {
			ports = append(ports, Port{family, ptr.Deref(p.Name, ""), ptr.Deref(p.Protocol, corev1.ProtocolTCP)})
		}
	}
	return ports
}

func (t *Tally) count(s *spread, node string) {
	s.count++
	if s.values == nil {
		s.values, s.nodes = make([]map[string]bool, len(t.keys)), map[string]bool{}
	}
	if t.local {
		s.nodes[node] = true
	}
	labels := t.nodes[node]
	for i, key := range t.keys {
		if value, ok := labels[key]; ok {
			if s.values[i] == nil {
				s.values[i] = map[string]bool{}
			}
			s.values[i][value] = true
		}
	}
}

// rank is that of the best of some endpoints, seen from a node with these labels.
func (s *spread) rank(keys topology.Keys, labels topology.Labels) int {
	if s.count == 0 {
		return topology.NoRank
	}
	for i, key := range keys {
		if value, ok := labels[key]; key == topology.Any || ok && s.values[i][value] {
			return i
		}
	}
	return topology.NoRank
}

// reach is what a node with these labels reaches on a port.
func (t *Tally) reach(c *counted, node string, labels topology.Labels) Reach {
	own := t.local && inGroup(labels, t.keys)
	ready, terminating := c.ready.rank(t.keys, labels), c.terminating.rank(t.keys, labels)
	switch {
	case c.ready.count == 0 && c.terminating.count == 0:
		return ReachEmpty
	case own && c.ready.nodes[node]:
		return ReachOwn
	case own && c.terminating.nodes[node]:
		return ReachTerminating
	case t.local:
	case ready <= t.own:
		return ReachOwn
	case ready < topology.NoRank:
		return ReachFallback
	case terminating < topology.NoRank:
		return ReachTerminating
	}
	if c.ready.count == 0 {
		return ReachTerminating // elsewhere; nothing ready is withheld from the node
	}
	return ReachNone
}

// of says what nodes of one group reach on each port, the worst of them for each, and which of them reach nothing on
// some port. The nodes of a group see the same, so that one stands for all unless each uses its own endpoints.
func (t *Tally) of(nodes []string) (reached []PortReach, without []string) {
	ask := nodes
	if !t.local && len(nodes) > 1 {
		ask = nodes[:1]
	}
	worst := map[string]Reach{}
	for port, c := range t.ports {
		result := ReachOwn
		for _, node := range ask {
			reach := t.reach(c, node, t.nodes[node])
			result, worst[node] = worse(result, reach), worse(cmp.Or(worst[node], ReachOwn), reach)
		}
		reached = append(reached, PortReach{port, result})
	}
	slices.SortFunc(reached, func(a, b PortReach) int {
		return cmp.Or(cmp.Compare(a.Family, b.Family), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Protocol, b.Protocol))
	})
	for _, node := range ask {
		if worst[node] == ReachNone {
			without = append(without, node)
		}
	}
	if len(without) > 0 && len(ask) < len(nodes) {
		without = nodes
	}
	return reached, without
}

// inGroup reports whether a node has one of the keys, or needs none.
func inGroup(labels topology.Labels, keys topology.Keys) bool {
	return slices.Contains(keys, topology.Any) || hasAny(labels, keys)
}
