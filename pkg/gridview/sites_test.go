package gridview

import (
	"slices"
	"strings"
	"testing"

	"github.com/application-grid/application-grid/pkg/topology"
)

// TestSites: which nodes are half in a site, and which sites have no names, by the keys of the Services.
func TestSites(t *testing.T) {
	edge := func(more ...string) topology.Labels {
		labels := topology.Labels{"superedge.io/application-grid": "true", "kubernetes.io/hostname": "x"}
		for _, label := range more {
			key, value, _ := strings.Cut(label, "=")
			labels[key] = value
		}
		return labels
	}
	host, zone := topology.Keys{"kubernetes.io/hostname"}, topology.Keys{"zone"}
	for name, test := range map[string]struct {
		sites Sites
		want  []string
	}{
		"no Services": {Sites{Nodes: map[string]topology.Labels{"a": {"zone": "x"}, "b": edge()}}, nil},
		"all is well": {Sites{Nodes: map[string]topology.Labels{"a": edge("zone=x"), "cloud": {}},
			Governed: []topology.Keys{zone}}, nil},
		"a node of a site without a wrapper": {Sites{Nodes: map[string]topology.Labels{"a": {"zone": "x"},
			"b": edge("zone=x")}, Governed: []topology.Keys{zone}},
			[]string{"a: it is in the site zone=x and is not an edge node"}},
		"a node of a site without a wrapper, where only CoreDNS has keys": {Sites{Nodes: map[string]topology.Labels{
			"a": {"zone": "x"}, "b": edge("zone=x")}, Resolving: []topology.Keys{{"kubernetes.io/hostname", "zone"}}},
			[]string{"a: it is in the site zone=x and is not an edge node"}},
		"a site without CoreDNS by a key that only CoreDNS has": {Sites{
			Nodes:     map[string]topology.Labels{"a": edge("zone=x"), "b": edge("zone=y")},
			Resolving: []topology.Keys{zone}, CoreDNS: map[string]bool{"a": true}, Resolvers: asked(zone)}, nil},
		"a node with a value that no site has": {Sites{Nodes: map[string]topology.Labels{"cloud": {"zone": "cloud"},
			"b": edge("zone=x")}, Governed: []topology.Keys{zone, {"zone", topology.Any}}}, nil},
		"a fallback that others share": {Sites{Nodes: map[string]topology.Labels{"cloud": {"region": "r"},
			"b": edge("zone=x", "region=r")}, Governed: []topology.Keys{{"zone", "region"}}}, nil},
		"SuperEdge's wrapper": {Sites{Nodes: map[string]topology.Labels{"a": {"zone": "x"}, "b": edge("zone=x")},
			Wrapped: map[string]bool{"a": true}, Governed: []topology.Keys{zone}}, nil},
		"an edge node in no site": {Sites{Nodes: map[string]topology.Labels{"a": edge(), "b": edge("zone=x")},
			Governed: []topology.Keys{zone, {"zone", "region"}}},
			[]string{"a: it is an edge node in no site: without the label zone"}},
		"an edge node with nothing but its name": {Sites{
			Nodes:    map[string]topology.Labels{"a": edge(), "b": edge("zone=x")},
			Governed: []topology.Keys{host, zone},
		}, []string{"a: it is an edge node in no site: without the label zone"}},
		"an edge node of other Services": {Sites{
			Nodes:    map[string]topology.Labels{"a": edge("other=x"), "b": edge("zone=x")},
			Governed: []topology.Keys{zone, {"other"}}}, nil},
		"an edge node of grids without Services": {Sites{
			Nodes:    map[string]topology.Labels{"a": edge("other=x"), "b": edge("zone=x")},
			Governed: []topology.Keys{zone}, GridKeys: []string{"other"}}, nil},
		"a key that no node has says nothing of nodes": {Sites{Nodes: map[string]topology.Labels{"a": edge()},
			Governed: []topology.Keys{zone}}, nil},
		"any endpoint in the end": {Sites{Nodes: map[string]topology.Labels{"a": edge()},
			Governed: []topology.Keys{{"zone", topology.Any}}}, nil},
		"a node's own endpoints": {Sites{Nodes: map[string]topology.Labels{"cloud": {"kubernetes.io/hostname": "c"}},
			Governed: []topology.Keys{host, {"kubernetes.io/hostname", topology.Any}}}, nil},
		"a node's own endpoints before its site's": {Sites{
			Nodes:    map[string]topology.Labels{"cloud": {"kubernetes.io/hostname": "c"}},
			Governed: []topology.Keys{{"kubernetes.io/hostname", "zone"}}}, nil},
		"a site without CoreDNS": {Sites{Nodes: map[string]topology.Labels{"a": edge("zone=x"), "b": edge("zone=y")},
			Governed: []topology.Keys{zone}, CoreDNS: map[string]bool{"a": true}, Resolvers: asked(zone)},
			[]string{"kube-dns: 1 of the 2 sites of zone have no CoreDNS (y)"}},
		"CoreDNS that every site asks": {Sites{Nodes: map[string]topology.Labels{"a": edge("zone=x")},
			Governed: []topology.Keys{zone}, CoreDNS: map[string]bool{"a": true}, Resolvers: asked(nil)},
			[]string{"kube-dns: it has no topologyKeys with zone"}},
		"CoreDNS that the sites of one key ask, and not of the other": {Sites{
			Nodes:    map[string]topology.Labels{"a": edge("zone=x"), "b": edge("rack=y")},
			Governed: []topology.Keys{zone, {"rack"}}, CoreDNS: map[string]bool{"a": true, "b": true},
			Resolvers: asked(topology.Keys{"kubernetes.io/hostname", "zone", topology.Any}),
		}, []string{"kube-dns: it has no topologyKeys with rack"}},
		"two fleets, of which one has no CoreDNS": {Sites{
			Nodes:    map[string]topology.Labels{"a": edge("zone=x"), "b": edge("rack=y")},
			Governed: []topology.Keys{zone, {"rack"}}, CoreDNS: map[string]bool{"a": true}, Resolvers: asked(nil),
		}, []string{"kube-dns: 1 of the 1 sites of rack have no CoreDNS (y): names do not resolve there while",
			"kube-dns: it has no topologyKeys with zone"}},
		"two fleets, of which one asks its CoreDNS, and the other none": {Sites{
			Nodes:    map[string]topology.Labels{"a": edge("zone=x"), "b": edge("rack=y")},
			Governed: []topology.Keys{zone, {"rack"}}, CoreDNS: map[string]bool{"a": true}, Resolvers: asked(zone),
		}, []string{"kube-dns: none of its topologyKeys is on 1 edge node with the label rack: no name resolves"}},
		"two fleets, of which one asks another Service than the other": {Sites{
			Nodes:    map[string]topology.Labels{"a": edge("zone=x"), "b": edge("rack=y")},
			Governed: []topology.Keys{zone, {"rack"}}, CoreDNS: map[string]bool{"a": true, "b": true},
			Resolvers: []Resolver{{"kube-dns", zone, map[string]bool{"a": true}},
				{"upstream", topology.Keys{"rack"}, map[string]bool{"b": true}}},
		}, nil},
		"a site without CoreDNS that has no name": {Sites{
			Nodes:    map[string]topology.Labels{"a": edge("zone=x"), "b": edge("zone=")},
			Governed: []topology.Keys{zone}, CoreDNS: map[string]bool{"a": true}, Resolvers: asked(zone)},
			[]string{`kube-dns: 1 of the 2 sites of zone have no CoreDNS ("")`}},
	} {
		found := test.sites.Findings()
		if len(found) != len(test.want) {
			t.Errorf("%s: got %+v", name, found)
		}
		for i, f := range found {
			if i < len(test.want) && !strings.HasPrefix(f.Object.Name+": "+f.Message, test.want[i]) || f.Action == "" {
				t.Errorf("%s: got %+v", name, f)
			}
		}
	}
}

// asked are the resolvers of a cluster all of whose nodes ask kube-dns.
func asked(keys topology.Keys) []Resolver {
	return []Resolver{{Name: "kube-dns", Keys: keys, Nodes: map[string]bool{"a": true, "b": true}}}
}

// TestResolverKeys: what to do about a kube-dns without one of the keys leaves the other keys in it, and leaves no edge
// node without a CoreDNS.
func TestResolverKeys(t *testing.T) {
	nodes := map[string]topology.Labels{"a": edgeIn("x"), "b": {"superedge.io/application-grid": "true", "rack": "y"}}
	both, one := map[string]bool{"a": true, "b": true}, map[string]bool{"a": true}
	for _, test := range []struct {
		has       topology.Keys
		resolvers map[string]bool
		want      string
	}{
		{nil, both, `'topologyKeys=["kubernetes.io/hostname","rack","zone"]'`},
		{topology.Keys{"zone"}, both, `'topologyKeys=["kubernetes.io/hostname","zone","rack"]'`},
		{topology.Keys{"kubernetes.io/hostname", "rack", topology.Any}, both,
			`'topologyKeys=["kubernetes.io/hostname","rack","zone","*"]'`},
		{nil, one, `'topologyKeys=["kubernetes.io/hostname","rack","zone","*"]'`},
		{topology.Keys{"zone"}, one, `'topologyKeys=["kubernetes.io/hostname","zone","rack","*"]'`},
	} {
		found := Sites{Nodes: nodes, Governed: []topology.Keys{{"zone"}, {"rack"}}, Resolvers: asked(test.has),
			CoreDNS: test.resolvers}.Findings()
		for _, f := range found {
			if !strings.HasSuffix(f.Action, test.want) && strings.Contains(f.Action, "annotate") {
				t.Errorf("%q: the action is %s", test.has, f.Action)
			}
		}
		if len(found) == 0 {
			t.Errorf("%q: nothing is found", test.has)
		}
	}
}

// TestConcerns: a command prints what concerns its Services, and what could not be read: not what is
// wrong with nodes of other sites, and not the
// controller.
func TestConcerns(t *testing.T) {
	d := &Diagnosis{
		Nodes: map[string]topology.Labels{"a": {"zone": "x"}, "b": {"other": "x"}},
		Findings: []Finding{
			{Severity: Failure, Check: "Wrapper", Node: "a"}, {Severity: Failure, Check: "Wrapper", Node: "b"},
			{Severity: Warning, Check: CheckNames, Key: "other"}, {Severity: Warning, Check: "Hub"},
			{Severity: Failure, Check: CheckController}, {Severity: OK, Check: "Port"},
			{Severity: Failure, Check: CheckSite, Node: "b"}, // in none
		},
		Unread: []Finding{{Severity: Unverified, Check: CheckRead}},
	}
	checks := func(found []Finding) (names []string) {
		for _, f := range found {
			names = append(names, f.Check+f.Node)
		}
		return names
	}
	if got := checks(d.Of(topology.Keys{"zone"})); !slices.Equal(got, []string{"Wrappera", "Hub", "Siteb", "Read"}) {
		t.Errorf("got %q", got)
	}
	got := checks(d.OfGrid(topology.Keys{"other"}))
	if !slices.Equal(got, []string{"Wrapperb", "Names", "Hub", "Controller", "Read"}) {
		t.Errorf("got %q", got)
	}
	if got := (*Diagnosis)(nil).Of(topology.Keys{"zone"}); len(got) != 0 {
		t.Errorf("of nothing: %v", got)
	}
}
