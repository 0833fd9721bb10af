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
	// Fails is that it does not, Unknown why that cannot be said; with neither it does.
	Fails   bool
	Unknown string
}

// keepingChecks are the checks whose findings about a node say whether it keeps.
var keepingChecks = []string{CheckSite, CheckWrapper, CheckKubeProxy, CheckReplacement, CheckPort}

// Keeping is what was found of each edge node. It is nil if nothing is known.
func (d *Diagnosis) Keeping() map[string]Keeping {
	if d == nil {
		return nil
	}
	keeping := map[string]Keeping{}
	unread := ""
	if len(d.Unread) > 0 {
		unread = d.Unread[0].Object.Kind + " could not be read"
	}
	for name, labels := range d.Nodes {
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
			k.Fails = k.Fails || f.Check != CheckSite // in no site it reaches nothing, and leaves none
		case Unverified:
			k.Unknown = "how kube-proxy is set up"
			if edge := d.Nodes[f.Node][v1.LabelEdgeNode]; edge != v1.EdgeNodePods {
				k.Unknown = edge
			}
		case OK, Warning:
		}
		keeping[f.Node] = k
	}
	return keeping
}

// Verdict joins what nodes keep with what they reach of the Services with some topology keys.
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

// Verdict is that on the nodes of a cluster; without are those that reach nothing although there is something.
func (d *Diagnosis) Verdict(keys topology.Keys, nodes map[string]topology.Labels, without map[string]bool) Verdict {
	v, keeping := Verdict{Unknown: map[string]int{}}, d.Keeping()
	for _, name := range slices.Sorted(maps.Keys(nodes)) {
		labels := nodes[name]
		k, edge := keeping[name]
		if d == nil && isEdge(labels) {
			k, edge = Keeping{Unknown: "the cluster could not be read"}, true
		}
		switch {
		case !edge:
			v.Open++
			continue
		case !inGroup(labels, keys):
			v.NoSite = append(v.NoSite, name)
			continue
		case k.Fails || without[name]:
			v.Fails = append(v.Fails, name)
		case k.Unknown != "":
			v.Unknown[k.Unknown]++
		default:
			v.Keeps++
		}
		v.Edge++
	}
	return v
}

// Holds reports whether nothing is known to be wrong on any node of a site, and there is one.
func (v *Verdict) Holds() bool { return len(v.Fails) == 0 && v.Edge > 0 }

// String says where Services stay in their sites, and what is not known of that, without its subject.
func (v *Verdict) String() string {
	parts := []string{"stays in its sites on " + count(v.Keeps, "edge node")}
	switch {
	case v.Edge == 0:
		parts[0] = "is not kept to its sites, as no edge node is in one"
	case v.Keeps < v.Edge:
		parts[0] = fmt.Sprintf("stays in its sites on %d of %s", v.Keeps, count(v.Edge, "edge node"))
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
	return count(n, noun) + " are"
}

func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// actionLabel puts a node into a site.
func actionLabel(node, key string) string {
	return fmt.Sprintf("kubectl label node %s %s=SITE", node, key)
}

// quoted are keys as an annotation has them.
func quoted(keys topology.Keys) string {
	all := make([]string, 0, len(keys))
	for _, key := range keys {
		all = append(all, fmt.Sprintf("%q", key))
	}
	return strings.Join(all, ",")
}

// judge says what is wrong with whom the edge nodes reach of a Service: sites without an endpoint, and nodes that run a
// pod of it in no site. Sites are those of edge nodes; if there are no edge nodes, of all.
func (v *View) judge(t *Tally, edge func(node string) bool) []Finding {
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
		if !s.inSite || !slices.ContainsFunc(s.Nodes, edge) {
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
		annotate(quoted(v.TopologyKeys)+`,"*"`)
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
		return fmt.Sprintf("%d of %s %s%s: %s", len(names), count(sites, "site"), what, port,
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
		add(Warning, fmt.Sprintf("%d of %s have only endpoints that are ending: %s", len(names), count(sites, "site"),
			enumerate.First(names, namedSites)), fmt.Sprintf("kubectl get pods -n %s -o wide", v.Namespace))
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
