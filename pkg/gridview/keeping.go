package gridview

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/application-grid/application-grid/pkg/apis/enumerate"
	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/topology"
)

// Keeping is whether a node keeps Services to its site, by the last state in the API server. It is the same for all
// Services.
type Keeping struct {
	// Fails is why it does not, and Unknown why that is not known; if both are empty, it does.
	Fails, Unknown string
}

// The reasons of Unknown that a silent node has, that nodes have which may reach endpoints on one, and that nodes have
// whose wrappers hear nothing.
const (
	unreachable       = "unreachable"
	onUnreachableNode = "endpoints on unreachable nodes"
	hubAway           = "what they show, as the hub that their wrappers ask is away"
)

// keepingChecks are the checks whose findings decide whether a node keeps Services to its site.
var keepingChecks = []string{CheckWrapper, CheckKubeProxy, CheckReplacement, CheckPort}

// keeping returns the Keeping of each edge node. It is unknown for a node that has become one since the diagnosis.
func (d *Diagnosis) keeping(nodes map[string]topology.Labels) map[string]Keeping {
	keeping, unread := map[string]Keeping{}, ""
	if d == nil {
		d = &Diagnosis{}
	}
	// Where anything else could not be read, the checks have a finding about what it leaves unknown.
	if slices.ContainsFunc(d.Unread, func(f Finding) bool { return f.Object.Kind == kindPod }) {
		unread = "pods could not be read"
	}
	for name, labels := range nodes {
		k, before := Keeping{Unknown: unread}, d.Nodes[name]
		if before == nil || before[v1.LabelEdgeNode] != labels[v1.LabelEdgeNode] {
			k.Unknown = "not checked yet"
		}
		if isEdge(labels) || d.Wrapped[name] {
			keeping[name] = k
		}
	}
	for _, f := range d.Findings {
		if f.Severity == OK || !slices.Contains(keepingChecks, f.Check) {
			continue
		}
		of := []string{f.Node}
		if f.Node == "" && f.Severity != Warning { // of a program on all nodes
			of = slices.Collect(maps.Keys(keeping))
		}
		for _, node := range of {
			k, edge := keeping[node]
			if f.Severity == Failure {
				k.Fails = cmp.Or(k.Fails, f.Object.String()+": "+f.Message)
			} else {
				k.Unknown = unseen(f.Check, nodes[node][v1.LabelEdgeNode])
			}
			if edge {
				keeping[node] = k
			}
		}
	}
	for name, k := range keeping {
		switch {
		case d.Silent[name]: // whatever runs there
			k.Unknown = unreachable
		case d.HubAway:
			k.Unknown = cmp.Or(k.Unknown, hubAway)
		}
		keeping[name] = k
	}
	return keeping
}

// unseen returns what is not known of an edge node, with this value of its label, by a finding of a check.
func unseen(check, label string) string {
	switch {
	case label != "" && label != v1.EdgeNodePods:
		return label
	case check == CheckWrapper:
		return "whether the wrapper is ready"
	}
	return "how kube-proxy is set up"
}

// edge reports whether a Service is meant to stay in the node's site. In a cluster without edge nodes all nodes may
// become edge nodes.
func (g *Grouping) edge(node string) bool {
	_, edge := g.keeping[node]
	return edge || len(g.keeping) == 0
}

// keepingOf returns whether a node keeps the Service, and reports false if it is not an edge node. One that is not
// fails to keep the Service if it is in a site of edge nodes. How its kube-proxy is set up does not matter for a
// Service in which kube-proxy has no part.
func (t *Tally) keepingOf(node string) (k Keeping, edge bool) {
	k, edge = t.keeping[node]
	switch proxy := ServiceProxy(t.service); {
	case !edge && t.ByKubeProxy() && t.halfInSite(node):
		return Keeping{Fails: "it is not an edge node"}, false
	case !edge, t.ByKubeProxy():
		return k, edge
	case t.Diagnosis.silent(node):
		return Keeping{Unknown: unreachable}, true
	case proxy != "":
		return Keeping{Unknown: "whether service proxy " + proxy + " asks a wrapper"}, true
	}
	return Keeping{Unknown: "whether the CoreDNS that answers asks a wrapper"}, true
}

// join returns the verdict on the Service of a node that reaches this.
func (t *Tally) join(node string, reach Cell) Cell {
	k, edge := t.keepingOf(node)
	switch {
	case reach == CellNone && t.edge(node) && SiteKey(t.keys) == "":
		return CellNoneOfNode
	case reach == CellNone && t.edge(node):
		return CellNone
	case k.Fails != "":
		return CellLeaves
	case !edge:
		return CellOpen
	case k.Unknown != "" && reach != CellTerminating:
		return CellUnknown
	}
	return reach
}

// Verdict rolls up the verdicts of the nodes on the Services with some topology keys.
type Verdict struct {
	// Edge is how many edge nodes are in a site, and Keeps on how many of them Services stay in it.
	Edge  int `json:"edgeNodes"`
	Keeps int `json:"keeping"`
	// Fails are the nodes on which they do not, or which reach nothing. Unknown counts the nodes for which this is not
	// known, by the reason.
	Fails   []string       `json:"failing,omitempty"`
	Unknown map[string]int `json:"unknown,omitempty"`
	// NoSite are the edge nodes outside of sites. Open is how many nodes are not edge nodes and reach every endpoint.
	NoSite []string `json:"inNoSite,omitempty"`
	Open   int      `json:"open,omitempty"`
}

func (t *Tally) verdict(cells map[string]Cell) Verdict {
	v := Verdict{Unknown: map[string]int{}}
	for name, labels := range t.Nodes {
		k, edge := t.keepingOf(name)
		switch {
		case !edge && k.Fails != "":
			v.Fails = append(v.Fails, name)
			continue
		case !edge:
			v.Open++
			continue
		case !inGroup(labels, t.keys):
			v.NoSite = append(v.NoSite, name)
			continue
		}
		v.Edge++
		switch cell := cells[name]; {
		case cell == CellNone || cell == CellNoneOfNode || cell == CellLeaves:
			v.Fails = append(v.Fails, name)
		case k.Unknown != "":
			v.Unknown[k.Unknown]++
		case cell == CellUnknown:
			v.Unknown[onUnreachableNode]++
		default:
			v.Keeps++
		}
	}
	slices.Sort(v.Fails)
	slices.Sort(v.NoSite)
	return v
}

// Holds reports whether a site has a node, and no problem of any of its nodes is known.
func (v *Verdict) Holds() bool { return len(v.Fails) == 0 && v.Edge > 0 }

// String describes where Services stay in their sites, and what is not known, as a sentence without its subject.
func (v *Verdict) String() string {
	parts := []string{"stays in its sites on " + enumerate.Count(v.Keeps, "edge node")}
	switch {
	case v.Edge == 0:
		parts[0] = "is not kept to its sites, as no edge node is in one"
	case v.Keeps < v.Edge:
		parts[0] = fmt.Sprintf("stays in its sites on %d of %s", v.Keeps, enumerate.Count(v.Edge, "edge node"))
	}
	if len(v.Fails) > 0 {
		parts = append(parts, fmt.Sprintf("not well on %d: %s", len(v.Fails), enumerate.First(v.Fails, namedSites)))
	}
	for _, reason := range slices.Sorted(maps.Keys(v.Unknown)) {
		parts = append(parts, fmt.Sprintf("%d cannot be seen from here: %s", v.Unknown[reason], reason))
	}
	if n := len(v.NoSite); n > 0 {
		verb := "are"
		if n == 1 {
			verb = "is"
		}
		parts = append(parts, fmt.Sprintf("%s %s in none of them: %s", enumerate.Count(n, "edge node"), verb,
			enumerate.First(v.NoSite, namedSites)))
	}
	if noun := "other node"; v.Open > 0 {
		if v.Edge == 0 {
			noun = "node"
		}
		parts = append(parts, enumerate.Count(v.Open, noun)+" can reach every endpoint")
	}
	return strings.Join(parts, "; ")
}

// actionLabel returns the command that puts a node into a site.
func actionLabel(node, key string) string {
	return fmt.Sprintf("kubectl label node %s %s=SITE", node, key)
}

// judge returns the problems with what the edge nodes reach of a Service: sites without an endpoint, and nodes outside
// of sites that run a pod of it. It looks at the sites of edge nodes; without edge nodes, at all sites.
func (v *View) judge() []Finding {
	t, keys := v.tally, strings.Join(v.TopologyKeys, " or ")
	site := cmp.Or(SiteKey(v.TopologyKeys), v.TopologyKeys[0])
	var found []Finding
	add := func(severity Severity, action, format string, args ...any) {
		found = append(found, Finding{Severity: severity, Check: CheckReach, Key: site, Action: action,
			Object:  Object{Kind: "Service", Namespace: v.Namespace, Name: v.Service},
			Message: fmt.Sprintf(format, args...)})
	}
	if proxy := ServiceProxy(t.service); proxy != "" {
		const label = v1.LabelServiceProxyName
		action := fmt.Sprintf("to leave it to kube-proxy: kubectl label service -n %s %s %s-", v.Namespace,
			v.Service, label)
		add(Warning, action, "kube-proxy leaves it to service proxy %s, as its label %s says: its topologyKeys keep "+
			"it to its sites only if that asks the wrapper on each node", proxy, label)
		return found
	}
	troubled := map[Cell]map[string][]string{CellNone: {}, CellTerminating: {}}
	shared := *t
	shared.local = false
	inSites, sites, elsewhere := false, 0, false // elsewhere is set if a site has no endpoint on any of its nodes
	for i := range v.Sites {
		s := &v.Sites[i]
		inSites = inSites || s.inSite
		if !s.inSite || !slices.ContainsFunc(s.Nodes, t.edge) {
			continue
		}
		sites++
		if len(s.Without) > 0 {
			v.Without = append(v.Without, s.Name)
			reached, _ := shared.reachOf(s.Nodes)
			elsewhere = elsewhere || reachesNone(reached)
		}
		for _, r := range s.Reach {
			if of := troubled[r.Reach]; of != nil {
				of[r.String()] = append(of[r.String()], cmp.Or(s.Name, `""`))
			}
		}
	}
	if !inSites {
		if len(t.keeping) > 0 { // else every node reaches all
			action := fmt.Sprintf("%s, with the label key of the sites; or %s for the nodes of each",
				setKeys(t.service, topology.Keys{"KEY"}), actionLabel("NODE", site))
			add(Failure, action, "no node has the label %s, so there are no sites, and no edge node reaches it", keys)
		}
		return found
	}
	severity, what := Failure, "have no ready endpoint"
	action := "run a pod of it in each of them, as a DeploymentGrid does; or let them use those of other sites: " +
		setKeys(t.service, append(slices.Clone(v.TopologyKeys), topology.Any))
	if t.local {
		action = "run a pod of it on each node, as a DaemonSetGrid does"
		if !elsewhere {
			action += "; or " + useAllNodes(t.service)
		}
		what = "have nodes without an endpoint of their own, which internalTrafficPolicy Local requires"
	}
	if SiteKey(v.TopologyKeys) == "" {
		severity = Warning // every site has an endpoint, but a node lacks its own
	}
	tell := func(reach Cell, severity Severity, action, what string) {
		for _, port := range slices.Sorted(maps.Keys(troubled[reach])) {
			names, which := troubled[reach][port], ""
			if len(t.ports) > 1 && reach == CellNone {
				which = " (" + port + ")"
			}
			add(severity, action, "%d of %s %s%s: %s", len(names), enumerate.Count(sites, "site"), what, which,
				enumerate.First(names, namedSites))
		}
	}
	tell(CellNone, severity, action, what)
	tell(CellTerminating, Warning, fmt.Sprintf("kubectl get pods -n %s -o wide", v.Namespace),
		"have only endpoints that are ending")
	return append(found, v.judgeStrays(site)...)
}

// judgeStrays returns the edge nodes outside of all sites that run a pod of the Service.
func (v *View) judgeStrays(site string) (found []Finding) {
	consequence := "the node reaches nothing of the Service, and no edge node reaches that pod"
	if isHeadless(v.tally.service) {
		consequence = "the pod is in none of the Service's sites"
	}
	for _, node := range slices.Sorted(maps.Keys(v.tally.strays)) {
		if _, edge := v.tally.keeping[node]; edge {
			found = append(found, Finding{Severity: Failure, Check: CheckSite, Object: Object{Kind: "Node", Name: node},
				Node: node, Key: site, Action: actionLabel(node, site), Message: fmt.Sprintf(
					"it runs a pod of Service %s/%s, and has no label %s: %s", v.Namespace, v.Service,
					strings.Join(v.TopologyKeys, " or "), consequence)})
		}
	}
	return found
}

// serviceGridOf returns the name of the ServiceGrid that owns a Service; "" if none does. Its controller reverts what
// somebody changes at the Service itself.
func serviceGridOf(service *corev1.Service) string {
	if by := metav1.GetControllerOf(service); by != nil && by.Kind == "ServiceGrid" {
		return by.Name
	}
	return ""
}

// setKeys returns the command that gives a Service these topology keys.
func setKeys(service *corev1.Service, keys topology.Keys) string {
	if grid := serviceGridOf(service); grid != "" {
		fallback := ""
		if len(keys) > 1 {
			fallback = keys[1:].Quoted()
		}
		return patchGrid(service.Namespace, grid,
			fmt.Sprintf(`{"gridUniqKey":%q,"fallbackKeys":[%s]}`, keys[0], fallback))
	}
	return fmt.Sprintf("kubectl annotate --overwrite service -n %s %s '%s=[%s]'", service.Namespace, service.Name,
		v1.AnnotationTopologyKeys, keys.Quoted())
}

// useAllNodes returns the command that lets the nodes of a Service use each other's endpoints.
func useAllNodes(service *corev1.Service) string {
	const policy = `{"internalTrafficPolicy":"Cluster"}`
	if grid := serviceGridOf(service); grid != "" {
		return patchGrid(service.Namespace, grid, `{"template":`+policy+`}`)
	}
	return fmt.Sprintf(`kubectl patch service -n %s %s -p '{"spec":%s}'`, service.Namespace, service.Name, policy)
}

func patchGrid(namespace, grid, spec string) string {
	return fmt.Sprintf(`kubectl patch servicegrid -n %s %s --type=merge -p '{"spec":%s}'`, namespace, grid, spec)
}
