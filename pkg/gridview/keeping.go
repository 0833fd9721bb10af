package gridview

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/application-grid/application-grid/pkg/apis/enumerate"
	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/topology"
)

// Keeping says whether a node keeps Services to its site, by what the API server last knew. It is the node's,
// whatever the Service.
type Keeping struct {
	// Fails is why it does not, Unknown why that cannot be said; with neither it does.
	Fails, Unknown string
}

// keepingChecks are the checks whose findings about a node say whether it keeps.
var keepingChecks = []string{CheckSite, CheckWrapper, CheckKubeProxy, CheckReplacement, CheckPort}

// Keeping is what was found of each edge node. Without a diagnosis those that ask for the wrapper are unknown.
func (d *Diagnosis) Keeping(nodes map[string]topology.Labels) map[string]Keeping {
	keeping, unread := map[string]Keeping{}, ""
	switch {
	case d == nil:
		d, unread = &Diagnosis{}, "the cluster could not be read"
	case len(d.Unread) > 0:
		unread = d.Unread[0].Object.Kind + " could not be read"
	}
	for name, labels := range nodes {
		if isEdge(labels) || d.Wrapped[name] {
			keeping[name] = Keeping{Unknown: unread}
		}
	}
	for _, f := range d.Findings {
		k, edge := keeping[f.Node]
		if !edge || !slices.Contains(keepingChecks, f.Check) {
			continue
		}
		switch f.Severity {
		case Failure:
			if f.Check != CheckSite { // in no site it reaches nothing, and leaves none
				k.Fails = cmp.Or(k.Fails, f.Object.String()+": "+f.Message)
			}
		case Unverified:
			k.Unknown = "how kube-proxy is set up"
			if edge := nodes[f.Node][v1.LabelEdgeNode]; edge != v1.EdgeNodePods {
				k.Unknown = edge
			}
		case OK, Warning:
		}
		keeping[f.Node] = k
	}
	return keeping
}

// joiner joins what nodes keep with what they reach of the Services with some topology keys.
type joiner struct {
	keys    topology.Keys
	keeping map[string]Keeping
	// half are the nodes in a site of edge nodes that are none. anyEdge is that there are edge nodes; without them all
	// may become some.
	half    map[string]bool
	anyEdge bool
}

func (d *Diagnosis) joiner(keys topology.Keys, nodes map[string]topology.Labels) *joiner {
	j := &joiner{keys: keys, keeping: d.Keeping(nodes), half: map[string]bool{}}
	j.anyEdge = len(j.keeping) > 0
	for _, f := range d.Of(keys) {
		if f.Check == CheckSite && f.Severity == Failure {
			j.half[f.Node] = true
		}
	}
	return j
}

// edge reports whether a Service is meant to stay in the node's site.
func (j *joiner) edge(node string) bool {
	_, edge := j.keeping[node]
	return edge || !j.anyEdge
}

// join is the verdict of a Service and a node that reaches this of it.
func (j *joiner) join(node string, reach Reach) Cell {
	k, edge := j.keeping[node]
	switch {
	case reach == ReachNone && j.edge(node) && SiteKey(j.keys) == "":
		return CellNoneOfNode
	case reach == ReachNone && j.edge(node):
		return CellNone
	case edge && k.Fails != "" || !edge && j.half[node]:
		return CellLeaves
	case !edge:
		return CellOpen
	case reach == ReachTerminating:
		return CellTerminating
	case k.Unknown != "":
		return CellUnknown
	case reach == ReachFallback:
		return CellFallback
	case reach == ReachEmpty:
		return CellEmpty
	}
	return CellOwn
}

// Verdict rolls up the verdicts of the nodes on the Services with some topology keys.
type Verdict struct {
	// Edge is how many edge nodes are in a site, Keeps on how many of them Services stay in it.
	Edge  int `json:"edgeNodes"`
	Keeps int `json:"keeping"`
	// Fails are the nodes on which they do not, or which reach nothing; Unknown counts those that cannot be seen, by
	// the reason.
	Fails   []string       `json:"failing,omitempty"`
	Unknown map[string]int `json:"unknown,omitempty"`
	// NoSite are the edge nodes in no site, Open is how many nodes are not edge nodes and reach every endpoint.
	NoSite []string `json:"inNoSite,omitempty"`
	Open   int      `json:"open,omitempty"`
}

// Verdict is that on the nodes of a cluster, whatever they reach.
func (d *Diagnosis) Verdict(keys topology.Keys, nodes map[string]topology.Labels) Verdict {
	return d.joiner(keys, nodes).verdict(nodes, func(string) Reach { return ReachOwn })
}

func (j *joiner) verdict(nodes map[string]topology.Labels, reach func(node string) Reach) Verdict {
	v := Verdict{Unknown: map[string]int{}}
	for name, labels := range nodes {
		k, edge := j.keeping[name]
		switch {
		case !edge:
			v.Open++
			continue
		case !inGroup(labels, j.keys):
			v.NoSite = append(v.NoSite, name)
			continue
		}
		v.Edge++
		switch cell := j.join(name, reach(name)); {
		case cell == CellNone || cell == CellNoneOfNode || cell == CellLeaves:
			v.Fails = append(v.Fails, name)
		case k.Unknown != "":
			v.Unknown[k.Unknown]++
		default:
			v.Keeps++
		}
	}
	slices.Sort(v.Fails)
	slices.Sort(v.NoSite)
	return v
}

// Holds reports whether nothing is known to be wrong on any node of a site, and there is one.
func (v *Verdict) Holds() bool { return len(v.Fails) == 0 && v.Edge > 0 }

// String says where Services stay in their sites, and what is not known of that, without its subject.
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
		parts = append(parts, fmt.Sprintf("%s in none of them: %s", are(n, "edge node"),
			enumerate.First(v.NoSite, namedSites)))
	}
	if v.Open > 0 {
		parts = append(parts, are(v.Open, "node")+" outside of all sites, and can reach every endpoint")
	}
	return strings.Join(parts, "; ")
}

func are(n int, noun string) string {
	if n == 1 {
		return "1 " + noun + " is"
	}
	return enumerate.Count(n, noun) + " are"
}

// actionLabel puts a node into a site.
func actionLabel(node, key string) string {
	return fmt.Sprintf("kubectl label node %s %s=SITE", node, key)
}

// judge says what is wrong with whom the edge nodes reach of a Service: sites without an endpoint, and nodes that run a
// pod of it in no site. Sites are those of edge nodes; if there are no edge nodes, of all.
func (v *View) judge(t *Tally) []Finding {
	about := Object{Kind: "Service", Namespace: v.Namespace, Name: v.Service}
	keys := strings.Join(v.TopologyKeys, " or ")
	site := cmp.Or(SiteKey(v.TopologyKeys), v.TopologyKeys[0])
	annotate := func(keys string) string {
		return fmt.Sprintf("kubectl annotate --overwrite service -n %s %s '%s=[%s]'", v.Namespace, v.Service,
			v1.AnnotationTopologyKeys, keys)
	}
	var found []Finding
	add := func(severity Severity, message, action string) {
		found = append(found, Finding{Severity: severity, Check: CheckReach, Object: about, Message: message,
			Action: action, Key: site})
	}
	if !slices.ContainsFunc(v.Sites, func(s SiteView) bool { return s.inSite }) {
		if !slices.ContainsFunc(slices.Collect(maps.Values(v.nodes)), isEdge) {
			return nil // nothing keeps any Service to sites, and every node reaches all
		}
		add(Failure, fmt.Sprintf("no node has the label %s, so there are no sites, and no edge node reaches it", keys),
			annotate(`"KEY"`)+", with the label key of the sites; or "+actionLabel("NODE", site)+" for the "+
				"nodes of each")
		return found
	}
	troubled := map[Reach]map[string][]string{ReachNone: {}, ReachTerminating: {}}
	sites := 0
	for i := range v.Sites {
		s := &v.Sites[i]
		if !s.inSite || !slices.ContainsFunc(s.Nodes, v.joined.edge) {
			continue
		}
		sites++
		if len(s.Without) > 0 {
			v.Without = append(v.Without, s.Name)
		}
		for _, r := range s.Reach {
			if of := troubled[r.Reach]; of != nil {
				of[r.String()] = append(of[r.String()], cmp.Or(s.Name, `""`))
			}
		}
	}
	fallback := "run a pod of it in each of them, as a DeploymentGrid does; or let them use those of other sites: " +
		annotate(v.TopologyKeys.Quoted()+`,"*"`)
	if t.local {
		fallback = fmt.Sprintf("run a pod of it on each node, as a DaemonSetGrid does; or kubectl patch service "+
			"-n %s %s "+
			`-p '{"spec":{"internalTrafficPolicy":"Cluster"}}'`, v.Namespace, v.Service)
	}
	of := func(port string, sites int, names []string) string {
		if len(v.Sites) > 0 && len(t.ports) < 2 {
			port = ""
		} else {
			port = " (" + port + ")"
		}
		what := "have no ready endpoint"
		if t.local {
			what = "have nodes without an endpoint of their own, which internalTrafficPolicy Local requires"
		}
		return fmt.Sprintf("%d of %s %s%s: %s", len(names), enumerate.Count(sites, "site"), what, port,
			enumerate.First(names, namedSites))
	}
	severity := Failure
	if SiteKey(v.TopologyKeys) == "" {
		severity = Warning // no site lacks an endpoint, but a node its own
	}
	for _, port := range slices.Sorted(maps.Keys(troubled[ReachNone])) {
		add(severity, of(port, sites, troubled[ReachNone][port]), fallback)
	}
	for _, port := range slices.Sorted(maps.Keys(troubled[ReachTerminating])) {
		names := troubled[ReachTerminating][port]
		add(Warning, fmt.Sprintf("%d of %s have only endpoints that are ending: %s", len(names),
			enumerate.Count(sites, "site"), enumerate.First(names, namedSites)),
			fmt.Sprintf("kubectl get pods -n %s -o wide", v.Namespace))
	}
	for _, node := range slices.Sorted(maps.Keys(t.strays)) {
		if isEdge(v.nodes[node]) && !slices.Contains(v.TopologyKeys, topology.Any) {
			found = append(found, Finding{Severity: Failure, Check: CheckSite, Object: Object{Kind: "Node", Name: node},
				Node: node, Key: site, Message: fmt.Sprintf("it runs a pod of Service %s/%s, and has no label %s: the "+
					"node reaches nothing of the Service, and no edge node reaches "+
					"that pod", v.Namespace, v.Service, keys),
				Action: actionLabel(node, site)})
		}
	}
	return found
}
