package gridview

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/ptr"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/topology"
)

// Port is a topology.Port of a Service. Headless Services and Services without ports are decided as a whole in each
// family, and have neither Name nor Protocol.
type Port struct {
	AddressType string `json:"family"`
	Name        string `json:"name,omitempty"`
	Protocol    string `json:"protocol,omitempty"`
}

// String returns the port's name for a sentence.
func (p Port) String() string {
	switch {
	case p.Protocol == "":
		return p.AddressType
	case p.Name == "":
		return p.Protocol + " over " + p.AddressType
	}
	return "port " + p.Name + " over " + p.AddressType
}

// PortReach is what the nodes of a site reach on a port; the worst of them if they differ.
type PortReach struct {
	Port  `json:",inline"`
	Reach Cell `json:"reach"`
	// Key is the topology key that decided; empty without a slice.
	Key string `json:"key,omitempty"`
}

// Tally counts the endpoints of a Service, slice by slice, and computes what each node reaches. It holds label values,
// not endpoints.
type Tally struct {
	*Grouping

	service *corev1.Service
	// local is set if each node uses only its own endpoints.
	local bool
	ports map[topology.Port]bool
	lists []*portList
	// strays are the nodes with an endpoint and without any of the keys.
	strays map[string]bool
}

// portList has the endpoints of the slices with the same list of ports.
type portList struct {
	topology.List

	name string
	// ways are the Service's ports to which the slices belong.
	ways []topology.Port
	// nodes are the tiers of the endpoints' nodes, for Services whose nodes use only their own endpoints.
	nodes map[string]topology.Tier
	// silent counts, as if they were ready, the endpoints on silent nodes that the API server does not call ready.
	// kube-controller-manager calls the pods of such nodes not ready, and deletes them in time. They may serve.
	silent topology.Counts
}

// NewTally starts a tally for a Service that is governed by the keys of the Grouping.
func (g *Grouping) NewTally(service *corev1.Service) *Tally {
	t := &Tally{Grouping: g, service: service, local: isLocal(service), ports: map[topology.Port]bool{},
		strays: map[string]bool{}}
	for _, family := range service.Spec.IPFamilies {
		t.addFamily(string(family))
	}
	return t
}

// ServiceProxy returns the name of the program that sends the connections to a Service in place of kube-proxy, which
// leaves Services with this label alone; "" for kube-proxy. Names, by which headless Services are reached, are not
// affected.
func ServiceProxy(service *corev1.Service) string {
	name, left := service.Labels[v1.LabelServiceProxyName]
	if !left || isHeadless(service) {
		return ""
	}
	return siteName(name)
}

// ByKubeProxy reports whether kube-proxy sends the connections to the Service. Else it is unknown here where they go.
func (t *Tally) ByKubeProxy() bool { return !isHeadless(t.service) && ServiceProxy(t.service) == "" }

func isHeadless(service *corev1.Service) bool { return service.Spec.ClusterIP == corev1.ClusterIPNone }

// isLocal reports whether nodes use only their own endpoints. A name has the endpoints of all.
func isLocal(service *corev1.Service) bool {
	policy := ptr.Deref(service.Spec.InternalTrafficPolicy, "")
	return !isHeadless(service) && policy == corev1.ServiceInternalTrafficPolicyLocal
}

func (t *Tally) addFamily(family string) {
	if isHeadless(t.service) || len(t.service.Spec.Ports) == 0 {
		t.ports[topology.Port{AddressType: family}] = true
		return
	}
	for _, p := range t.service.Spec.Ports {
		t.ports[topology.Port{AddressType: family, Name: p.Name,
			Protocol: string(cmp.Or(p.Protocol, corev1.ProtocolTCP))}] = true
	}
}

// Add counts the endpoints of a slice.
func (t *Tally) Add(s *discoveryv1.EndpointSlice) {
	list := t.listOf(s)
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		node := ptr.Deref(e.NodeName, "")
		if labels, known := t.Nodes[node]; known && t.keys.Governed() && !inGroup(labels, t.keys) && list.ways != nil {
			t.strays[node] = true
		}
		// nil means ready, and serving
		tier := topology.TierOf(ptr.Deref(e.Conditions.Ready, true), ptr.Deref(e.Conditions.Serving, true),
			ptr.Deref(e.Conditions.Terminating, false))
		list.Add(tier, t.keys, t.Nodes[node], 1)
		if tier != topology.Ready && t.Diagnosis.silent(node) {
			list.silent.Add(topology.Ready, t.keys, t.Nodes[node], 1)
			tier = topology.Silent
		}
		if before, found := list.nodes[node]; t.local && (!found || tier < before) {
			list.nodes[node] = tier
		}
	}
}

func (t *Tally) listOf(s *discoveryv1.EndpointSlice) *portList {
	family, spec := string(cmp.Or(s.AddressType, discoveryv1.AddressTypeIPv4)), &t.service.Spec
	if len(spec.IPFamilies) == 0 {
		t.addFamily(family)
	}
	list := &portList{List: topology.List{Counts: &topology.Counts{}}, nodes: map[string]topology.Tier{}}
	for _, p := range s.Ports {
		if ptr.Deref(p.Port, 0) != 0 {
			list.Ports = append(list.Ports, topology.Port{AddressType: family, Name: ptr.Deref(p.Name, ""),
				Protocol: string(ptr.Deref(p.Protocol, corev1.ProtocolTCP))})
		}
	}
	ways := append([]topology.Port{{AddressType: family}}, list.Ports...)
	list.name = fmt.Sprint(ways)
	if topology.IgnoresPorts(isHeadless(t.service), isLocal(t.service) && spec.ExternalTrafficPolicy == "") {
		list.Ports = nil
	}
	for _, way := range ways {
		if t.ports[way] {
			list.ways = append(list.ways, way)
		}
	}
	if i := slices.IndexFunc(t.lists, func(other *portList) bool { return other.name == list.name }); i >= 0 {
		return t.lists[i]
	}
	t.lists = append(t.lists, list)
	return list
}

// choices returns how the slices of each list are shown to a node with these labels.
func (t *Tally) choices(labels topology.Labels) map[*portList]topology.Choice {
	lists := make([]topology.List, len(t.lists))
	for i, list := range t.lists {
		lists[i] = list.List
	}
	choices := make(map[*portList]topology.Choice, len(lists))
	for i, choice := range t.keys.Choices(labels, lists) {
		choices[t.lists[i]] = choice
	}
	return choices
}

// reach returns what a node with these labels reaches on each port: the best of the endpoints that it sees for the
// port.
func (t *Tally) reach(node string, labels topology.Labels) []PortReach {
	choices := t.choices(labels)
	own := max(slices.Index(t.keys, SiteKey(t.keys)), 0) // the rank of the last key of the site
	reached := make([]PortReach, 0, len(t.ports))
	for _, port := range slices.SortedFunc(maps.Keys(t.ports), topology.Port.Compare) {
		r := PortReach{Port: Port(port), Reach: CellNone}
		ready, silent, terminating, tier, rank := 0, 0, 0, topology.Unusable, topology.NoRank
		// may is set if an endpoint on a silent node is one for this node.
		may, cut := false, t.Diagnosis.silent(node)
		for list, choice := range choices {
			if !slices.Contains(list.ways, port) {
				continue
			}
			ready, silent = ready+list.Total(topology.Ready), silent+list.silent.Total(topology.Ready)
			may = may || !t.local && list.silent.Best(t.keys, labels).Tier == topology.Ready
			terminating += list.Total(topology.Terminating)
			decision := t.keys.Decide(labels, choice.Rank())
			if slices.Contains(choice.Without, port) {
				continue
			}
			r.Key = decision.Key()
			best := list.Best(topology.Keys{decision.Key()}, labels).Tier
			if own, found := list.nodes[node]; t.local {
				best = topology.Unusable
				if found && decision.Keep(labels) {
					best = own
				}
			}
			if best < tier {
				tier, rank = best, slices.Index(t.keys, decision.Key())
			}
		}
		if isHeadless(t.service) { // CoreDNS leaves out endpoints that are ending
			terminating = 0
			if tier == topology.Terminating {
				tier = topology.Unusable
			}
		}
		switch {
		case ready+silent+terminating == 0:
			r.Reach = CellEmpty
		case ServiceProxy(t.service) != "":
			r.Reach = CellUnknown
		case tier == topology.Ready && (t.local || rank <= own):
			r.Reach = CellOwn
		case tier == topology.Ready:
			r.Reach = CellFallback
		case tier == topology.Terminating && (!cut || !may): // a silent node may have seen another one ready
			r.Reach = CellTerminating
		case may, tier == topology.Silent, ready == 0 && silent > 0:
			r.Reach = CellUnknown
		case ready == 0: // elsewhere; no ready endpoint is hidden from the node
			r.Reach = CellTerminating
		case cut:
			r.Reach = CellUnknown
		}
		reached = append(reached, r)
	}
	return reached
}

// reachOf returns what the nodes of one group reach on each port, the worst of them for each, and which of them reach
// nothing on some port. The nodes of a group see the same endpoints, so one of them that is not silent is enough,
// unless each uses its own endpoints.
func (t *Tally) reachOf(nodes []string) (reached []PortReach, without []string) {
	ask := nodes
	if !t.local && len(nodes) > 1 {
		heard := max(0, slices.IndexFunc(nodes, func(node string) bool { return !t.Diagnosis.silent(node) }))
		ask = nodes[heard : heard+1]
	}
	for _, node := range ask {
		own := t.reach(node, t.Nodes[node])
		if reachesNone(own) {
			without = append(without, node)
		}
		for i := range reached {
			own[i].Reach = max(reached[i].Reach, own[i].Reach)
		}
		reached = own
	}
	if len(without) > 0 && len(ask) < len(nodes) {
		without = slices.DeleteFunc(slices.Clone(nodes), t.Diagnosis.silent)
	}
	return reached, without
}

// reachesNone reports whether connections to some port are refused.
func reachesNone(reached []PortReach) bool {
	return slices.ContainsFunc(reached, func(r PortReach) bool { return r.Reach == CellNone })
}

// inGroup reports whether a node has one of the keys, or needs none.
func inGroup(labels topology.Labels, keys topology.Keys) bool {
	return slices.Contains(keys, topology.Any) || hasAny(labels, keys)
}
