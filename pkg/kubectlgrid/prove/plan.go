package prove

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/gridview"
	"github.com/application-grid/application-grid/pkg/topology"
)

// Node is a reduced Node.
type Node struct {
	Labels topology.Labels
	// Ready is set if the node can run a pod now.
	Ready bool
	// Families are the IP families of the node's addresses; empty if not known.
	Families []corev1.IPFamily
}

// NodeOf reduces a Node.
func NodeOf(n *corev1.Node) Node {
	ready := slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
	node := Node{Labels: gridview.LabelsOf(n), Ready: ready && n.Status.NodeInfo.OperatingSystem != "windows"}
	for _, a := range n.Status.Addresses {
		if address, err := netip.ParseAddr(a.Address); err == nil {
			node.Families = append(node.Families, familyOf(address))
		}
	}
	return node
}

func familyOf(address netip.Addr) corev1.IPFamily {
	if address.Is4() {
		return corev1.IPv4Protocol
	}
	return corev1.IPv6Protocol
}

type endpoint struct{ pod, node, site string }

// Plan has the Service to connect to, the nodes from which to connect, and the endpoints that each may reach.
type Plan struct {
	// Service is the Service to connect to, at Targets: one for each of its address families.
	Service *corev1.Service
	Targets []netip.AddrPort
	Keys    topology.Keys

	view     *gridview.View
	portName string
	samples  []sample
}

type sample struct {
	site, node string
	target     netip.AddrPort
	// without is why no node of the site is used.
	without string
}

// Nodes is how many nodes of a site are used.
type Nodes int

// OneOfEach connects from one node of each site, whose nodes should have the same rules. AllOfEach connects from all
// ready nodes.
const (
	OneOfEach Nodes = iota
	AllOfEach
)

// Prepare makes the plan. port is the Service's port, by name or number; empty for its first TCP port.
func Prepare(service *corev1.Service, slicesOf []discoveryv1.EndpointSlice, nodes map[string]Node,
	d *gridview.Diagnosis, port string, which Nodes) (*Plan, error) {
	target, err := targetOf(service, port)
	if err != nil {
		return nil, err
	}
	view, err := viewOf(service, slicesOf, nodes, d)
	if err != nil {
		return nil, err
	}
	p := &Plan{Service: service, Targets: target.addresses, Keys: view.TopologyKeys, view: view,
		portName: target.portName}
	for _, site := range view.Sites {
		// From nodes outside of sites, and from sites without an edge node, a Service is meant to reach every endpoint.
		if site.Name == "" || !slices.ContainsFunc(site.Nodes, view.IsEdge) {
			continue
		}
		chosen := p.choose(site.Nodes, nodes, which)
		if len(chosen) == 0 {
			without := "none of its nodes is ready"
			if slices.ContainsFunc(site.Nodes, func(name string) bool { return nodes[name].Ready }) {
				without = "none of its nodes that are ready has an address of the Service's family"
			}
			p.samples = append(p.samples, sample{site: site.Name, without: without})
		}
		for _, node := range chosen {
			for _, target := range p.targetsFrom(nodes[node]) {
				p.samples = append(p.samples, sample{site: site.Name, node: node, target: target})
			}
		}
	}
	if len(p.samples) == 0 {
		return nil, fmt.Errorf("no node is in a site by the label %s, so there are no sites to ask from",
			strings.Join(view.TopologyKeys, " or "))
	}
	return p, nil
}

func viewOf(service *corev1.Service, slicesOf []discoveryv1.EndpointSlice, nodes map[string]Node,
	d *gridview.Diagnosis) (*gridview.View, error) {
	labels := make(map[string]topology.Labels, len(nodes))
	for name, node := range nodes {
		labels[name] = node.Labels
	}
	view := (&gridview.Groupings{Nodes: labels, Diagnosis: d}).View(service, slicesOf)
	switch {
	case view.Error != "":
		return nil, fmt.Errorf("service %s/%s: %s", service.Namespace, service.Name, view.Error)
	case !view.TopologyKeys.Governed():
		return nil, fmt.Errorf("service %s/%s has no %s: it is meant to reach every endpoint from everywhere, and "+
			"there is nothing to prove",
			service.Namespace, service.Name, v1.AnnotationTopologyKeys)
	}
	return view, nil
}

// targetsFrom returns the targets of the families that a node has an address of; the first one if these are not known.
func (p *Plan) targetsFrom(node Node) []netip.AddrPort {
	if len(node.Families) == 0 {
		return p.Targets[:1]
	}
	return slices.DeleteFunc(slices.Clone(p.Targets), func(target netip.AddrPort) bool {
		return !slices.Contains(node.Families, familyOf(target.Addr()))
	})
}

// choose picks nodes of a site that are ready and have a target, those with a wrapper first.
func (p *Plan) choose(names []string, nodes map[string]Node, which Nodes) []string {
	var ready []string
	for _, edge := range []bool{true, false} {
		for _, name := range names {
			if node := nodes[name]; node.Ready && p.view.IsEdge(name) == edge && len(p.targetsFrom(node)) > 0 {
				ready = append(ready, name)
			}
		}
	}
	if which == OneOfEach && len(ready) > 1 {
		ready = ready[:1]
	}
	return ready
}

// target is the addresses of a Service to which to connect, and the name of their port.
type target struct {
	addresses []netip.AddrPort
	portName  string
}

func targetOf(service *corev1.Service, wanted string) (target, error) {
	name := service.Namespace + "/" + service.Name
	if service.Spec.Type == corev1.ServiceTypeExternalName {
		return target{}, fmt.Errorf("service %s is a name of something else (ExternalName), and has no endpoints", name)
	}
	var addresses []netip.Addr
	for _, text := range append([]string{service.Spec.ClusterIP}, service.Spec.ClusterIPs...) {
		if address, err := netip.ParseAddr(text); err == nil && !slices.Contains(addresses, address) {
			addresses = append(addresses, address)
		}
	}
	if len(addresses) == 0 {
		return target{}, fmt.Errorf("service %s has no cluster IP, so kube-proxy has no part in reaching it; kubectl "+
			"grid view says what each site sees", name)
	}
	var others []string
	for i := range service.Spec.Ports {
		port := &service.Spec.Ports[i]
		switch {
		case wanted != "" && port.Name != wanted && strconv.Itoa(int(port.Port)) != wanted:
		case port.Protocol == "" || port.Protocol == corev1.ProtocolTCP:
			t := target{portName: port.Name}
			for _, address := range addresses {
				number := uint16(port.Port) //nolint:gosec // a port
				t.addresses = append(t.addresses, netip.AddrPortFrom(address, number))
			}
			return t, nil
		}
		others = append(others, fmt.Sprintf("%d/%s", port.Port, port.Protocol))
	}
	if wanted != "" {
		return target{}, fmt.Errorf("service %s has no port %s of TCP; it has %s",
			name, wanted, strings.Join(others, ", "))
	}
	if len(others) == 0 {
		return target{}, errors.New("service " + name + " has no ports")
	}
	return target{}, fmt.Errorf("service %s has no port of TCP, and only TCP can be asked; it has %s", name,
		strings.Join(others, ", "))
}

// endpointsOf adds the endpoints of a view by their addresses.
func endpointsOf(view *gridview.View, endpoints map[string]endpoint) {
	sites := map[string]string{}
	add := func(e gridview.Endpoint) {
		for _, address := range e.Addresses {
			endpoints[address] = endpoint{e.Pod, e.Node, sites[e.Node]}
		}
	}
	for _, site := range view.Sites {
		for _, node := range site.Nodes {
			sites[node] = site.Name
		}
	}
	for _, site := range view.Sites {
		for _, e := range site.Endpoints {
			add(e)
		}
	}
	for _, hidden := range view.Hidden {
		add(hidden.Endpoint)
	}
}

// allowed returns the addresses, without ports, that a node of a site may reach. ready is set if one of them accepts
// connections on the port.
func (p *Plan) allowed(view *gridview.View, s sample) (addresses map[string]bool, ready bool) {
	addresses = map[string]bool{}
	i := slices.IndexFunc(view.Sites, func(u gridview.SiteView) bool { return u.Name == s.site })
	if i < 0 {
		return addresses, false
	}
	site := view.Sites[i]
	for _, e := range site.Endpoints {
		for _, address := range e.Addresses {
			addresses[address] = true
		}
	}
	return addresses, !slices.Contains(site.Without, s.node) && slices.ContainsFunc(site.Reach,
		func(r gridview.PortReach) bool {
			return string(r.Family) == string(familyOf(s.target.Addr())) &&
				(r.Name == p.portName || r.Protocol == "") &&
				r.Reach != gridview.ReachEmpty && r.Reach != gridview.ReachUnknown &&
				r.Reach != gridview.ReachTerminating
		})
}

func (p *Plan) siteNames() []string {
	names := map[string]bool{}
	for _, s := range p.samples {
		names[s.site] = true
	}
	return slices.Sorted(maps.Keys(names))
}
