package gridview

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/application-grid/application-grid/pkg/apis/enumerate"
	"github.com/application-grid/application-grid/pkg/topology"
)

// View has the endpoints of one Service that the nodes see.
type View struct {
	metav1.TypeMeta `json:",inline"` // set when it is printed

	Namespace string `json:"namespace"`
	Service   string `json:"service"`
	// ServiceGrid is the grid of the Service, if it has one.
	ServiceGrid string `json:"serviceGrid,omitempty"`
	// Annotation is the name of the Service's annotation with the keys; "" if it has none.
	Annotation string `json:"annotation,omitempty"`
	// TopologyKeys are the parsed annotation; empty for a Service that is not governed.
	TopologyKeys topology.Keys `json:"topologyKeys"`
	// ExternalName is the name for which the Service stands, if it is of that type. It has no endpoints then, and no
	// keys govern it.
	ExternalName string `json:"externalName,omitempty"`
	// Error is the error of the annotation. Such an error hides all endpoints, on every node.
	Error string `json:"error,omitempty"`
	// Closed: the Service is governed, no finding shows that it leaves its sites, and every site reaches an endpoint.
	// The sites of a Service are those with an edge node.
	// Without are the sites with nodes that reach nothing on some port, though others have an endpoint.
	Closed  bool     `json:"closed"`
	Without []string `json:"without,omitempty"`
	// Verdict is the verdict on the nodes.
	Verdict Verdict `json:"verdict"`
	// Sites are the groups of nodes that see the same endpoints, by name. For a Service that is not governed it has one
	// group of all nodes.
	Sites []SiteView `json:"sites"`
	// Hidden are the endpoints that no node sees.
	Hidden []HiddenEndpoint `json:"hidden,omitempty"`
	// Findings are those of kubectl grid check that concern the Service.
	Findings []Finding `json:"findings,omitempty"`

	// Reach are those of the findings that are about this Service alone.
	Reach []Finding `json:"-"`

	tally *Tally
	cells map[string]Cell // the verdicts of the nodes
}

// SiteView has the endpoints that the nodes with the same values of the topology keys see.
type SiteView struct {
	// Name is the value of the topology key, or key=value of every key if the Service has several; empty for nodes
	// outside of sites, which have none of the labels.
	Name  string   `json:"name"`
	Nodes []string `json:"nodes"`
	// Key is the topology key that decided, or the keys for different ports; empty if the Service is not governed.
	Key string `json:"key,omitempty"`
	// Reach is what they reach on each port, and Without are those that reach nothing on some port.
	Reach   []PortReach `json:"reach,omitempty"`
	Without []string    `json:"without,omitempty"`
	// Verdict is the worst verdict of the nodes.
	Verdict Word `json:"verdict"`
	// Ready is how many of the endpoints are ready.
	Ready     int        `json:"ready"`
	Endpoints []Endpoint `json:"endpoints"`

	// inSite is set if the nodes have one of the keys, or need none.
	inSite bool
	cell   Cell
}

// Endpoint is one endpoint of a Service. One that is in several EndpointSlices, because it has addresses of both
// families, is here once.
type Endpoint struct {
	Addresses []string `json:"addresses"`
	Pod       string   `json:"pod,omitempty"`
	Node      string   `json:"node,omitempty"`
	Ready     bool     `json:"ready"`
}

// endpointPart is an endpoint in one EndpointSlice.
type endpointPart struct {
	Endpoint

	list *portList
	// id is that of the endpoint: its pod, or its addresses if it has no pod.
	id string
}

// HiddenEndpoint is an endpoint that no node sees.
type HiddenEndpoint struct {
	Endpoint `json:",inline"`

	// Reason is why, in words.
	Reason string `json:"reason"`
}

// View returns the view of a Service. endpointSlices are the Service's EndpointSlices. The diagnosis does not affect
// Services that are not governed, or that no node sees.
func (g *Groupings) View(service *corev1.Service, endpointSlices []discoveryv1.EndpointSlice) *View {
	keys, annotation, err := topology.KeysOf(service.Annotations)
	if err != nil {
		keys = topology.Keys{} // no node sees any endpoint
	}
	view := &View{
		Namespace:    service.Namespace,
		Service:      service.Name,
		Annotation:   annotation,
		TopologyKeys: topology.Keys{},
		Sites:        []SiteView{},
		ServiceGrid:  serviceGridOf(service),
	}
	if service.Spec.Type == corev1.ServiceTypeExternalName {
		view.ExternalName = service.Spec.ExternalName
		return view
	}
	grouping := g.Of(keys)
	if err == nil && !keys.Governed() {
		grouping = g.Of(topology.Keys{topology.Any})
	}
	viewer := grouping.viewer(service, endpointSlices)
	why := func(e Endpoint) string { return whyHidden(view.TopologyKeys, e, g.Nodes) }
	seen := map[string]bool{} // by endpointPart.id
	if err != nil {
		view.Error = fmt.Sprintf("annotation %s=%s is %v", annotation, service.Annotations[annotation], err)
		why = func(Endpoint) string { return "the annotation does not parse" }
	} else {
		view.TopologyKeys = append(view.TopologyKeys, keys...) // [], not null, in JSON
		for i := range viewer.groups {
			view.Sites = append(view.Sites, viewer.see(&viewer.groups[i], seen))
		}
		view.join(viewer.Tally)
	}
	hidden := slices.DeleteFunc(viewer.parts, func(p endpointPart) bool { return seen[p.id] })
	for _, endpoint := range merge(hidden) {
		view.Hidden = append(view.Hidden, HiddenEndpoint{endpoint, why(endpoint)})
	}
	return view
}

// View returns a View without endpoints, which only has what the nodes reach, by a newer diagnosis of them.
func (t *Tally) View(cluster *Groupings) *View {
	t.Grouping = cluster.Of(t.keys)
	view := &View{Namespace: t.service.Namespace, Service: t.service.Name, TopologyKeys: t.keys}
	for i := range t.groups {
		view.Sites = append(view.Sites, SiteView{Name: t.groups[i].name, Nodes: t.groups[i].nodes})
	}
	view.join(t)
	return view
}

// join joins what the nodes reach with the diagnosis of the cluster.
func (v *View) join(t *Tally) {
	v.tally, v.cells = t, map[string]Cell{}
	seen := t.ByKubeProxy()
	for i := range v.Sites {
		s := &v.Sites[i]
		if s.cell = CellOpen; HasSites(t.keys) {
			seen = v.joinSite(s) && seen
		}
		s.Verdict = s.cell.Word()
	}
	if !HasSites(t.keys) {
		return
	}
	v.Reach = v.judge()
	slices.SortStableFunc(v.Reach, ByObject)
	v.Verdict = t.verdict(v.cells)
	v.Findings = append(t.findings(), v.Reach...)
	slices.SortStableFunc(v.Findings, BySeverity)
	v.Closed = !v.open() && !v.Empty() && !Failed(v.Findings) && len(v.Without)+len(v.Verdict.Fails) == 0 && seen &&
		(t.Diagnosis == nil || t.Diagnosis.Complete())
}

// joinSite joins what the nodes of a site reach, and reports whether that is known of all of them.
func (v *View) joinSite(s *SiteView) (seen bool) {
	t := v.tally
	labels := t.Nodes[s.Nodes[0]]
	s.inSite, s.cell, seen = inGroup(labels, t.keys), CellNothing, true
	s.Reach, s.Without = t.reachOf(s.Nodes)
	s.Key = cmp.Or(keysOf(s.Reach), t.keys.Decide(labels, topology.NoRank).Key())
	for _, node := range s.Nodes {
		reach := v.reachOf(s, node)
		v.cells[node] = t.join(node, reach)
		if _, edge := t.keeping[node]; s.inSite {
			s.cell, seen = max(s.cell, v.cells[node]), seen && reach != CellUnknown
		} else if !edge {
			s.cell = max(s.cell, CellOpen)
		}
	}
	return seen
}

// keysOf returns the keys that decided for some ports, in the form of a list.
func keysOf(ports []PortReach) string {
	var keys []string
	for _, port := range ports {
		if port.Key != "" && !slices.Contains(keys, port.Key) {
			keys = append(keys, port.Key)
		}
	}
	return strings.Join(keys, ", ")
}

// reachOf returns the worst of what a node of a site reaches on the ports that have an endpoint anywhere. A headless
// Service without a selector has both families, but mostly endpoints of one.
func (v *View) reachOf(s *SiteView, node string) Cell {
	ports := s.Reach
	if len(s.Nodes) > 1 && (v.tally.local || v.tally.Diagnosis.silent(node)) {
		ports, _ = v.tally.reachOf([]string{node})
	}
	reach := CellNothing
	for _, port := range ports {
		if port.Reach != CellEmpty {
			reach = max(reach, port.Reach)
		}
	}
	return cmp.Or(reach, CellEmpty)
}

// NodeVerdict is the verdict of one node on a Service, and its reasons.
type NodeVerdict struct {
	Node    string `json:"node"`
	Verdict Word   `json:"verdict"`
	// Keeps is whether the node keeps Services to its site, and why not. Reaches is what it reaches on each port.
	Keeps   string `json:"keeps"`
	Reaches string `json:"reaches"`
}

// At returns the verdicts of the nodes of a site by a key, by name.
func (v *View) At(key, name string) []NodeVerdict {
	verdicts := []NodeVerdict{}
	for _, s := range v.Sites {
		for _, node := range s.Nodes {
			if site, in := SiteOf(v.tally.Nodes[node], key); in && site == name {
				verdicts = append(verdicts, v.verdictOf(node))
			}
		}
	}
	slices.SortFunc(verdicts, func(a, b NodeVerdict) int { return cmp.Compare(a.Node, b.Node) })
	return verdicts
}

func (v *View) verdictOf(node string) NodeVerdict {
	if !HasSites(v.TopologyKeys) {
		return NodeVerdict{node, CellOpen.Word(), "no topology key keeps the Service to sites", "every endpoint"}
	}
	k, edge := v.tally.keepingOf(node)
	n := NodeVerdict{Node: node, Verdict: v.cells[node].Word(), Keeps: "yes"}
	switch {
	case !edge:
		n.Keeps = "no: it is not an edge node"
	case k.Fails != "":
		n.Keeps = "no: " + k.Fails
	case k.Unknown != "":
		n.Keeps = "unknown: " + k.Unknown
	}
	ports, _ := v.tally.reachOf([]string{node})
	for i, port := range ports {
		n.Reaches += map[bool]string{true: "; "}[i > 0] + port.String() + ": " + port.Reach.Word().Word
	}
	return n
}

// IsEdge reports whether the Service is meant to stay in the node's site, if that is in one. Without edge nodes, all
// nodes may become edge nodes.
func (v *View) IsEdge(node string) bool { return v.tally.edge(node) }

// Conclusion returns a last line about where the Service stays in its sites, or "".
func (v *View) Conclusion() string {
	switch {
	case v.Error != "" || v.ExternalName != "":
		return ""
	case v.Empty():
		return "No endpoint is ready anywhere."
	case !HasSites(v.TopologyKeys):
		return ""
	}
	text := "The Service " + v.Verdict.String() + "."
	if len(v.Without) > 0 {
		text = fmt.Sprintf("%s without a ready endpoint that it may use: %s. %s",
			enumerate.Count(len(v.Without), "site"), enumerate.First(v.Without, 2*namedSites), text)
	}
	return text
}

// open reports whether nothing is meant to keep the Service to its sites: it is not governed, or has none with an edge
// node. In a cluster without edge nodes all nodes may become edge nodes.
func (v *View) open() bool {
	return !HasSites(v.TopologyKeys) || v.Verdict.Edge == 0 && len(v.tally.keeping) > 0
}

// Empty reports whether no endpoint takes connections on some port of the Service.
func (v *View) Empty() bool {
	if v.TopologyKeys.Governed() {
		return !slices.ContainsFunc(v.tally.lists, func(l *portList) bool {
			return l.ways != nil && (l.Total(topology.Ready)+l.silent.Total(topology.Ready) > 0 ||
				l.Total(topology.Terminating) > 0 && !isHeadless(v.tally.service))
		})
	}
	return !slices.ContainsFunc(v.Sites, func(s SiteView) bool { return s.Ready > 0 })
}

// Healthy reports whether no failure was found: each site reaches an endpoint if any exists, and no node fails to keep
// the Service to its site.
func (v *View) Healthy() bool { return v.Error == "" && !Failed(v.Findings) }

// whyHidden returns why no node sees an endpoint.
func whyHidden(keys topology.Keys, endpoint Endpoint, nodes map[string]topology.Labels) string {
	labels, known := nodes[endpoint.Node]
	switch {
	case endpoint.Node == "":
		return "it names no node"
	case !known:
		return "there is no node " + endpoint.Node
	}
	if hasAny(labels, keys) {
		return "it is not ready, and of several topologyKeys the first counts that a ready endpoint matches"
	}
	return fmt.Sprintf("node %s has no label %s", endpoint.Node, strings.Join(keys, " or "))
}

// partsOf returns the endpoints in a slice with this list of ports.
func partsOf(slice *discoveryv1.EndpointSlice, list *portList) []endpointPart {
	parts := make([]endpointPart, 0, len(slice.Endpoints))
	for i := range slice.Endpoints {
		e := &slice.Endpoints[i]
		// discovery/v1: a nil ready condition means ready. The slice is not ours, so its addresses are not sorted.
		part := endpointPart{list: list, Endpoint: Endpoint{Addresses: sorted(e.Addresses),
			Node: ptr.Deref(e.NodeName, ""), Ready: ptr.Deref(e.Conditions.Ready, true)}}
		if target := e.TargetRef; target != nil && target.Kind == "Pod" {
			part.Pod = target.Name
		}
		part.id = fmt.Sprintf("%s/%s", part.Node, cmp.Or(part.Pod, fmt.Sprint(part.Addresses)))
		parts = append(parts, part)
	}
	return parts
}

// merge returns the endpoints that some parts make, in an order that depends only on their content.
func merge(parts []endpointPart) []Endpoint {
	slices.SortFunc(parts, func(a, b endpointPart) int { // the parts of one endpoint follow each other
		return cmp.Or(strings.Compare(a.Node, b.Node), strings.Compare(a.Pod, b.Pod),
			slices.Compare(a.Addresses, b.Addresses))
	})
	endpoints := []Endpoint{}
	for i, p := range parts {
		if i == 0 || p.id != parts[i-1].id {
			endpoints = append(endpoints, p.Endpoint)
			continue
		}
		last := &endpoints[len(endpoints)-1]
		last.Ready, last.Addresses = last.Ready || p.Ready, sorted(slices.Concat(last.Addresses, p.Addresses))
	}
	return endpoints
}

func sorted(addresses []string) []string {
	if len(addresses) < 2 {
		return addresses
	}
	return slices.Compact(slices.Sorted(slices.Values(addresses)))
}
