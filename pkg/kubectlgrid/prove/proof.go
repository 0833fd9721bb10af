package prove

import (
	"cmp"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/application-grid/application-grid/pkg/apis/enumerate"
	"github.com/application-grid/application-grid/pkg/gridview"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/output"
	"github.com/application-grid/application-grid/pkg/topology"
)

// Verdict is the result of the connections from one node.
type Verdict string

// The verdicts.
const (
	// Closed: only endpoints were reached that the node may reach.
	Closed Verdict = "Closed"
	// Leak: an endpoint was reached that the node must not reach.
	Leak Verdict = "Leak"
	// Unproved: neither was shown.
	Unproved Verdict = "Unproved"
)

// Proof is the result of connecting to a Service from every site.
type Proof struct {
	metav1.TypeMeta `json:",inline"`

	Namespace    string        `json:"namespace"`
	Service      string        `json:"service"`
	TopologyKeys topology.Keys `json:"topologyKeys"`
	// Address is the Service's address and port, in its first family.
	Address string `json:"address"`
	// Requests is how many connections were planned from each node.
	Requests int      `json:"requests"`
	Verdict  Verdict  `json:"verdict"`
	Sites    []string `json:"sites"`
	Rows     []Row    `json:"rows"`
	// Nodes is the verdict of kubectl grid view. Findings are those of kubectl grid check that concern the Service,
	// including those on other nodes. Complete is set if the cluster could be read for these.
	Nodes    gridview.Verdict   `json:"nodes"`
	Findings []gridview.Finding `json:"findings,omitempty"`
	Complete bool               `json:"-"`
}

// Row has the endpoints that were reached from one node.
type Row struct {
	Site string `json:"site"`
	Node string `json:"node,omitempty"`
	// Address is the Service's address and port for this node.
	Address string `json:"address,omitempty"`
	// Asked is how many connections were tried, and Reached how many went to each site; endpoints outside of sites are
	// counted under their node's name in parentheses. Nobody is how many got no answer.
	Asked   int            `json:"asked"`
	Reached map[string]int `json:"reached"`
	Nobody  int            `json:"nobody"`
	Verdict Verdict        `json:"verdict"`
	// Message explains the row, where that is needed.
	Message string `json:"message,omitempty"`
}

// endpoint is an endpoint, and the sites whose nodes may reach it.
type endpoint struct {
	gridview.Endpoint

	// where is the site of the endpoint, or its node in parentheses if that is not in a site.
	where string
	from  map[string]bool
}

// unknown is where endpoints are that name no node.
const unknown = "(unknown)"

// endpointsOf returns the endpoints of views by their addresses, without ports. Each is as the last view has it, and
// may be reached from where any view allows it.
func endpointsOf(views ...*gridview.View) map[string]endpoint {
	endpoints := map[string]endpoint{}
	for _, view := range views {
		sites := map[string]string{"": unknown}
		for _, site := range view.Sites {
			for _, node := range site.Nodes {
				sites[node] = site.Name
			}
		}
		add := func(e gridview.Endpoint, from string) {
			for _, address := range e.Addresses {
				all := endpoints[address].from
				if all == nil {
					all = map[string]bool{}
				}
				all[from] = true
				endpoints[address] = endpoint{e, cmp.Or(sites[e.Node], "("+e.Node+")"), all}
			}
		}
		for _, site := range view.Sites {
			for _, e := range site.Endpoints {
				add(e, site.Name)
			}
		}
		for _, hidden := range view.Hidden {
			add(hidden.Endpoint, "") // from no site
		}
	}
	return endpoints
}

// conclude makes the Proof from the results. s are the surroundings after the probes. A node may reach the endpoints
// that were allowed before or after, because endpoints change meanwhile.
func (p *plan) conclude(s surroundings) (*Proof, error) {
	after, err := s.view()
	if err == nil {
		_, _, err = targets(s.service, strconv.Itoa(int(p.targets[0].Port())))
	}
	if err != nil {
		return nil, fmt.Errorf("while asking it was changed: %w", err)
	}
	proof := &Proof{
		TypeMeta: output.TypeMeta("Proof"), Namespace: after.Namespace, Service: after.Service,
		TopologyKeys: p.view.TopologyKeys, Address: p.targets[0].String(), Requests: p.options.Requests,
		Verdict: Closed, Nodes: after.Verdict, Findings: after.Findings, Complete: s.diagnosis.Complete(),
	}
	endpoints := endpointsOf(after, p.view)
	for i := range p.samples {
		a := &p.samples[i]
		row := a.row(s.service, endpoints, p.ready(p.view, a) || p.ready(after, a))
		if row.Verdict == Leak || (row.Verdict == Unproved && proof.Verdict == Closed) {
			proof.Verdict = row.Verdict
		}
		proof.Rows, proof.Sites = append(proof.Rows, row), append(proof.Sites, row.Site)
	}
	slices.Sort(proof.Sites)
	proof.Sites = slices.Compact(proof.Sites)
	return proof, nil
}

// ready reports whether a node of a site may reach an endpoint that accepts connections on the port.
func (p *plan) ready(view *gridview.View, s *sample) bool {
	i := slices.IndexFunc(view.Sites, func(site gridview.SiteView) bool { return site.Name == s.site })
	if i < 0 || slices.Contains(view.Sites[i].Without, s.node) {
		return false
	}
	return slices.ContainsFunc(view.Sites[i].Reach, func(r gridview.PortReach) bool {
		return r.AddressType == string(familyOf(s.target.Addr())) && (r.Name == p.portName || r.Protocol == "") &&
			r.Reach != gridview.CellEmpty && r.Reach != gridview.CellUnknown && r.Reach != gridview.CellTerminating
	})
}

// row makes a row from one result. ready is set if the node may reach an endpoint that accepts connections.
func (a *sample) row(service *corev1.Service, endpoints map[string]endpoint, ready bool) Row {
	row := Row{Site: a.site, Node: a.node, Asked: a.result.Asked, Reached: map[string]int{}, Nobody: a.result.Nobody,
		Verdict: Closed}
	if a.target.IsValid() {
		row.Address = a.target.String()
	}
	all := map[string]int{}
	maps.Copy(all, a.result.Reached)
	for address, times := range a.result.Silent {
		all[address] += times
		row.Nobody += times
	}
	mayReachAll := true
	for _, e := range endpoints {
		mayReachAll = mayReachAll && e.from[a.site]
	}
	var leaks, strangers []string
	for _, address := range slices.Sorted(maps.Keys(all)) {
		host, _, _ := net.SplitHostPort(address) // the kernel's
		e, known := endpoints[host]
		if times := a.result.Reached[address]; times > 0 {
			row.Reached[cmp.Or(e.where, unknown)] += times
		}
		switch {
		case !known:
			strangers = append(strangers, address)
		case !e.from[a.site]:
			if e.Pod != "" {
				host = "pod " + e.Pod
			}
			leaks = append(leaks, fmt.Sprintf("%s on node %s, of %s, %s", host, cmp.Or(e.Node, "<none>"), e.where,
				enumerate.Count(all[address], "time")))
		}
	}
	unproved := func(format string, args ...any) {
		row.Verdict, row.Message = Unproved, fmt.Sprintf(format, args...)
	}
	switch answered := len(row.Reached) > 0; {
	case len(leaks) > 0:
		row.Verdict, row.Message = Leak, "reached "+strings.Join(leaks, "; ")
	case a.err != nil:
		unproved("%v", a.err)
	case a.result.Error != "":
		unproved("%s", a.result.Error)
	case len(strangers) > 0:
		unproved("connections went to %s, which is not an endpoint of the Service: the node's rules are older",
			strings.Join(strangers, ", "))
	case a.result.Untranslated > 0:
		unproved("%s went to no endpoint: kube-proxy has no rules for the Service there, or another program than "+
			"kube-proxy handles Services", enumerate.Count(a.result.Untranslated, "connection"))
	case a.result.Others > 0:
		unproved("%s went to more addresses than there is room to report",
			enumerate.Count(a.result.Others, "connection"))
	case !answered && len(a.result.Silent) > 0:
		unproved("no connection was answered; all went to endpoints that may be reached")
	case !answered && ready:
		unproved("no connection was answered, though the site has a ready endpoint")
	case !answered && gridview.ServiceProxy(service) != "":
		unproved("no connection was answered, and kube-proxy leaves the Service to service proxy %s",
			gridview.ServiceProxy(service))
	case !answered:
		row.Message = "the site has no ready endpoint, and connections are refused"
	case service.Spec.SessionAffinity == corev1.ServiceAffinityClientIP && !mayReachAll:
		// kube-proxy sends every connection of one address to the endpoint of the first.
		unproved("sessionAffinity keeps one client at one endpoint")
	case row.Nobody > 0:
		row.Message = fmt.Sprintf("%d of %d were not answered", row.Nobody, row.Asked)
	}
	return row
}
