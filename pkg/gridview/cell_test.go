package gridview

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/ptr"

	"github.com/application-grid/application-grid/internal/testkit/wiretest"
	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/topology"
)

// edgeIn are the labels of an edge node in a zone.
func edgeIn(zone string) topology.Labels {
	return topology.Labels{"zone": zone, v1.LabelEdgeNode: v1.EdgeNodePods}
}

// tellCells is the row of each site, in words.
func tellCells(m Matrix) string {
	var rows []string
	for i := range m.Sites {
		site := &m.Sites[i]
		words := []string{site.Name}
		for _, cell := range slices.Concat(site.Grids, site.Services) {
			word := m.Words[cell]
			words = append(words, map[bool]string{true: "!"}[word.Severity == Failure]+word.Word)
		}
		rows = append(rows, strings.Join(words, " "))
	}
	return strings.Join(rows, "\n")
}

// TestCells: a cell is the worst of what the nodes of a site keep and reach, and a cell is a failure where the view of
// the Service names one.
func TestCells(t *testing.T) {
	nodes := map[string]topology.Labels{
		"a1": edgeIn("a"), "a2": edgeIn("a"), "b1": edgeIn("b"), "c1": edgeIn("c"), "d1": edgeIn("d"),
		"cloud": {"zone": "cloud"}, "d2": {"zone": "d"}, "none": {v1.LabelEdgeNode: v1.EdgeNodePods},
	}
	diagnosis := &Diagnosis{Nodes: nodes, Findings: []Finding{
		{Severity: Failure, Check: CheckKubeProxy, Node: "b1", Message: "past"},
		{Severity: Unverified, Check: CheckKubeProxy, Node: "c1"},
		halfInSite("d2", "zone", "d"),
	}}
	var services []ServiceSummary
	for _, s := range []struct{ name, annotation, endpoints string }{
		{"strict", `["zone"]`, "p@a1 q@b1 r@c1 s@d1"}, {"lacks", `["zone"]`, "p@c1"},
		{"any", `["zone","*"]`, "p@a1"}, {"open", "", "p@a1"}, {"wrong", "zone", "p@a1"},
		{"empty", `["zone"]`, ""}, {"other", `["rack"]`, "p@a1"},
	} {
		view := ofService(wiretest.ServiceOf("shop/"+s.name, s.annotation), nodes, diagnosis, slice(s.endpoints))
		services = append(services, view.Summary())
	}
	const said = "The Service stays in its sites on 3 of 5 edge nodes; not well on 2: b1, d2; 1 cannot be seen from " +
		"here: how kube-proxy is set up; 1 edge node is in none of them: none; 1 other node can " +
		"reach every endpoint."
	if services[0].Message != said {
		t.Errorf("got %s", services[0].Message)
	}
	grids := []Grid{{Key: "zone", Sites: []Site{{Name: "a", Phase: v1.SiteReady}, {Name: "b", Phase: v1.SiteFailed},
		{Name: "c", Phase: v1.SiteReady, Revision: "old"}}}, {Key: "rack", Sites: []Site{{Name: "a"}}}}
	m := MatrixOf("zone", &Groupings{Nodes: nodes, Diagnosis: diagnosis}, grids, services)
	//nolint:dupword // a row of words
	const want = `a Ready - own !none own open !none empty -
b !Failed - !open !none !open open !none !open -
c Ready, older revision - unknown unknown unknown open !none unknown -
d - - !open !none !open open !none !open -
cloud - - open open open open open open -`
	if got := tellCells(m); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if m.NodesWithoutSite != 1 || fmt.Sprint(m.InNoSite) != "[none]" || m.Sites[4].Severity != OK {
		t.Errorf("got %+v", m)
	}
}

// TestLocal: of a Service with internalTrafficPolicy Local each node has its own verdict, and the site that of its
// worst node.
func TestLocal(t *testing.T) {
	nodes := map[string]topology.Labels{"a1": edgeIn("a"), "a2": edgeIn("a"), "b1": edgeIn("b")}
	service := wiretest.ServiceOf("shop/s", `["zone"]`)
	service.Spec.InternalTrafficPolicy = ptr.To(corev1.ServiceInternalTrafficPolicyLocal)
	view := ofService(service, nodes, &Diagnosis{}, slice("p@a1 q@b1"))
	if fmt.Sprint(view.Without) != "[a]" || view.Closed || view.Healthy() || fmt.Sprint(view.Verdict.Fails) != "[a2]" {
		t.Errorf("without %q, closed %t, verdict %+v", view.Without, view.Closed, view.Verdict)
	}
	var got []string
	for _, n := range append(view.At("zone", "a"), view.At("zone", "b")...) {
		got = append(got, n.Node+" "+n.Verdict.Word+" "+n.Keeps+" "+n.Reaches)
	}
	if want := "a1 own yes IPv4: own, a2 none yes IPv4: none, b1 own yes IPv4: own"; strings.Join(got, ", ") != want {
		t.Errorf("got %s, want %s", strings.Join(got, ", "), want)
	}
	if action := view.Findings[0].Action; !strings.Contains(action, `{"internalTrafficPolicy":"Cluster"}`) {
		t.Errorf("the action is %s", action)
	}
	view = ofService(service, nodes, &Diagnosis{}, slice("p@a1"))
	if action := view.Findings[0].Action; strings.Contains(action, "internalTrafficPolicy") {
		t.Errorf("the action leaves site b without an endpoint: %s", action)
	}
	service.Spec.InternalTrafficPolicy, service.Spec.IPFamilies = nil, []corev1.IPFamily{"IPv4", "IPv6"}
	view = ofService(service, nodes, &Diagnosis{}, slice("p@a1 q@b1"))
	if view.Sites[0].Verdict.Word != "own" {
		t.Errorf("with a family of which there is no endpoint: %+v", view.Sites[0])
	}
	service.Spec.InternalTrafficPolicy = ptr.To(corev1.ServiceInternalTrafficPolicyLocal)
	// A node that the fallback would serve has to have its own all the same.
	service.Annotations["topologyKeys"] = `["zone","*"]`
	if view = ofService(service, nodes, &Diagnosis{}, slice("p@a1 q@b1")); view.Healthy() {
		t.Error("a node without an endpoint of its own is well with a fallback")
	}
}

// TestKeeping: what is found of the programs of a node decides whether it keeps Services, and what is found of all
// nodes decides that for each of them.
func TestKeeping(t *testing.T) {
	nodes := map[string]topology.Labels{"a1": edgeIn("a"), "b1": edgeIn("b"), "cloud": {}}
	const open = "; 1 other node can reach every endpoint"
	for name, test := range map[string]struct {
		found Finding
		want  string
	}{
		"past the wrapper": {Finding{Severity: Failure, Check: CheckKubeProxy, Node: "b1"},
			"stays in its sites on 1 of 2 edge nodes; not well on 1: b1"},
		"another program at the wrapper's port": {Finding{Severity: Failure, Check: CheckPort, Node: "b1"},
			"stays in its sites on 1 of 2 edge nodes; not well on 1: b1"},
		"in place of kube-proxy everywhere": {Finding{Severity: Failure, Check: CheckReplacement},
			"stays in its sites on 0 of 2 edge nodes; not well on 2: a1, b1"},
		"a configuration that is perhaps not that of the process": {
			Finding{Severity: Warning, Check: CheckKubeProxy, Node: "b1"},
			"stays in its sites on 1 of 2 edge nodes; 1 cannot be seen from here: how kube-proxy is set up"},
		"a wrapper whose state is old": {Finding{Severity: Warning, Check: CheckWrapper, Node: "b1"},
			"stays in its sites on 1 of 2 edge nodes; 1 cannot be seen from here: whether the wrapper is ready"},
		"a port that pods may take": {Finding{Severity: Warning, Check: CheckPort},
			"stays in its sites on 2 edge nodes"},
	} {
		view := ofService(wiretest.ServiceOf("shop/s", `["zone"]`), nodes,
			&Diagnosis{Nodes: nodes, Findings: []Finding{test.found}}, slice("p@a1 q@b1"))
		if got := view.Verdict.String(); got != test.want+open {
			t.Errorf("%s: the Service %s", name, got)
		}
		if failed := test.found.Severity == Failure; view.Closed == failed {
			t.Errorf("%s: closed %t", name, view.Closed)
		}
	}
}

// TestOfNoEdgeNode: a Service whose sites have no edge node is well, and is not closed.
func TestOfNoEdgeNode(t *testing.T) {
	nodes := map[string]topology.Labels{"a1": edgeIn("a"), "c1": {"rack": "x"}, "c2": {"rack": "y"}}
	view := ofService(wiretest.ServiceOf("shop/s", `["rack"]`), nodes, &Diagnosis{Nodes: nodes}, slice("p@c1 q@c2"))
	if s := view.Summary(); view.Closed || !s.Healthy || s.State != ServiceOpen ||
		!strings.HasPrefix(s.Message, "The Service is not kept to its sites, as no edge node is in one") {
		t.Errorf("closed %t, %+v", view.Closed, s)
	}
}

// TestHeadlessLocal: internalTrafficPolicy has no effect on names, by which the endpoints of a headless Service are
// reached.
func TestHeadlessLocal(t *testing.T) {
	nodes := map[string]topology.Labels{"a1": edgeIn("a"), "a2": edgeIn("a")}
	service := wiretest.ServiceOf("shop/s", `["zone"]`)
	service.Spec.ClusterIP = corev1.ClusterIPNone
	service.Spec.InternalTrafficPolicy = ptr.To(corev1.ServiceInternalTrafficPolicyLocal)
	if view := ofService(service, nodes, &Diagnosis{}, slice("p@a1")); !view.Healthy() {
		t.Errorf("got %+v", view.Findings)
	}
}

// TestHeadless: the names of a headless Service lead to the pods of all sites, unless the CoreDNS that answers asks a
// wrapper. A site without a pod is a failure for those who use one.
func TestHeadless(t *testing.T) {
	nodes := map[string]topology.Labels{"a1": edgeIn("a"), "b1": edgeIn("b")}
	service := wiretest.ServiceOf("shop/s", `["zone"]`)
	service.Spec.ClusterIP = corev1.ClusterIPNone
	view := ofService(service, nodes, &Diagnosis{}, slice("p@a1 q@b1"))
	if s := view.Summary(); !s.Healthy || view.Sites[0].Verdict.Word != "unknown" ||
		s.Message != "The Service stays in its sites on 0 of 2 edge nodes; 2 cannot be seen from here: whether the "+
			"CoreDNS that answers asks a wrapper." {
		t.Errorf("got %+v", s)
	}
	view = ofService(service, nodes, &Diagnosis{}, slice("p@a1"))
	if view.Healthy() || fmt.Sprint(view.Without) != "[b]" {
		t.Errorf("got %+v", view)
	}
	ending := slice("p@a1 q@b1")
	ending.Endpoints[1].Conditions.Ready, ending.Endpoints[1].Conditions.Terminating = new(false), new(true)
	if view = ofService(service, nodes, &Diagnosis{}, ending); view.Healthy() { // CoreDNS leaves out what is ending
		t.Errorf("an endpoint that is ending is one of %+v", view)
	}
}

// TestWithoutKubeProxy: how kube-proxy is set up does not matter for Services in which it has no part.
func TestWithoutKubeProxy(t *testing.T) {
	nodes := map[string]topology.Labels{"a1": edgeIn("a"), "b1": edgeIn("b"), "a2": {"zone": "a"}}
	d := &Diagnosis{Nodes: nodes, Findings: []Finding{
		{Severity: Failure, Check: CheckKubeProxy, Node: "a1", Message: "past"}, halfInSite("a2", "zone", "a"),
		{Severity: Warning, Check: CheckNames, Key: "zone", Message: "names"},
	}}
	headless := wiretest.ServiceOf("shop/s", `["zone"]`)
	headless.Spec.ClusterIP = corev1.ClusterIPNone
	left := wiretest.ServiceOf("shop/s", `["zone"]`)
	left.Labels = map[string]string{v1.LabelServiceProxyName: "other"}
	labelled := headless.DeepCopy() // CoreDNS heeds no such label
	labelled.Labels = left.Labels
	const warned = "warning Reach Service shop/s: kube-proxy leaves it to service proxy other, as its label " +
		"service.kubernetes.io/service-proxy-name says: its topologyKeys keep it to its sites only if that asks the " +
		"wrapper on each node"
	for _, test := range []struct {
		service   *corev1.Service
		endpoints string
		unknown   string
		without   int
		want      []string
	}{
		{headless, "p@a1 q@b1", "whether the CoreDNS that answers asks a wrapper", 0, nil},
		{labelled, "p@a1 q@b1", "whether the CoreDNS that answers asks a wrapper", 0, nil},
		{left, "p@a1 q@b1", "whether service proxy other asks a wrapper", 0, []string{warned}},
		{left, "p@a1", "whether service proxy other asks a wrapper", 0, []string{warned}},
	} {
		view := ofService(test.service, nodes, d, slice(test.endpoints))
		var found []string
		for _, f := range view.Reach {
			found = append(found, fmt.Sprintf("%s %s %s: %s", f.Severity, f.Check, f.Object, f.Message))
		}
		if view.Verdict.Unknown[test.unknown] != 2 || len(view.Without) != test.without ||
			fmt.Sprint(found) != fmt.Sprint(test.want) || len(view.Findings) != len(test.want)+1 {
			t.Errorf("%+v\n%+v %+v", test, view.Verdict, view.Findings)
		}
		if s := view.Summary(); view.Closed || !s.Healthy || s.State != ServiceUnknown {
			t.Errorf("%+v\n%+v", test, s)
		}
	}
}

// TestEndingBesideSilent: a node that is heard reaches the endpoints that are ending, and not one on a silent node,
// which the API server does not call ready. A silent node may have seen that one ready.
func TestEndingBesideSilent(t *testing.T) {
	nodes := map[string]topology.Labels{"a1": edgeIn("a"), "b1": edgeIn("b"), "b2": edgeIn("b"), "c1": edgeIn("c")}
	of := slice("p@a1 q@b1")
	for i := range of.Endpoints {
		of.Endpoints[i].Conditions.Ready = new(false)
	}
	of.Endpoints[0].Conditions.Terminating, of.Endpoints[0].Conditions.Serving = new(true), new(true)
	view := ofService(wiretest.ServiceOf("shop/s", `["zone","*"]`), nodes,
		&Diagnosis{Silent: map[string]bool{"b1": true}}, of)
	for node, want := range map[string]Cell{
		"a1": CellTerminating, "b1": CellUnknown, "b2": CellTerminating, "c1": CellTerminating,
	} {
		if got := view.tally.reach(node, nodes[node])[0].Reach; got != want {
			t.Errorf("node %s reaches %s, want %s", node, got.Word().Word, want.Word().Word)
		}
	}
	local := wiretest.ServiceOf("shop/s", `["zone"]`)
	local.Spec.InternalTrafficPolicy = ptr.To(corev1.ServiceInternalTrafficPolicyLocal)
	of.Endpoints[1].Conditions = of.Endpoints[0].Conditions
	view = ofService(local, nodes, &Diagnosis{Silent: map[string]bool{"b1": true}}, of)
	if got := view.tally.reach("b1", nodes["b1"])[0].Reach; got != CellUnknown {
		t.Errorf("a silent node with an endpoint of its own reaches %s", got.Word().Word)
	}
}

// TestHubAway: the wrappers ask a hub that is away, and may not have heard of the endpoints.
func TestHubAway(t *testing.T) {
	nodes := map[string]topology.Labels{"a1": edgeIn("a"), "b1": edgeIn("b")}
	view := ofService(wiretest.ServiceOf("shop/s", `["zone"]`), nodes, &Diagnosis{Nodes: nodes, HubAway: true},
		slice("p@a1 q@b1"))
	const verdict = "stays in its sites on 0 of 2 edge nodes; 2 cannot be seen from here: what they show, as the hub " +
		"that their wrappers ask is away"
	if got := view.Verdict.String(); got != verdict {
		t.Errorf("got %s, want %s", got, verdict)
	}
}

// TestSilent: it is not known what a site reaches whose nodes are silent, nor what a node reaches that shares endpoints
// with one.
func TestSilent(t *testing.T) {
	nodes := map[string]topology.Labels{"a1": edgeIn("a"), "b1": edgeIn("b"), "b2": edgeIn("b"), "c1": edgeIn("c")}
	cut := func(text string) discoveryv1.EndpointSlice {
		s := slice(text)
		for i := range s.Endpoints {
			s.Endpoints[i].Conditions.Ready = new(*s.Endpoints[i].NodeName == "a1")
		}
		return s
	}
	ready, silent := "stays in its sites on 1 of 4 edge nodes", "2 cannot be seen from here: unreachable"
	for name, test := range map[string]struct {
		silent             []string
		endpoints, verdict string
		closed, healthy    bool
	}{
		"a site": {[]string{"b1", "b2", "c1"}, "p@a1 q@b1 r@c1",
			ready + "; 3 cannot be seen from here: unreachable", false, true},
		"a node whose endpoint another uses": {[]string{"b1", "c1"}, "p@a1 q@b1 r@c1",
			ready + "; 1 cannot be seen from here: endpoints on unreachable nodes; " + silent, false, true},
		"a node whose site has no endpoint at all": {[]string{"b1", "c1"}, "p@a1 r@c1",
			ready + "; not well on 1: b2; " + silent, false, false},
		"a site that has no endpoint at all": {[]string{"b1", "b2", "c1"}, "p@a1 r@c1",
			ready + "; 3 cannot be seen from here: unreachable", false, true},
		"every site with an endpoint": {[]string{"b1", "b2", "c1"}, "q@b1 r@c1",
			"stays in its sites on 0 of 4 edge nodes; 1 cannot be seen from here: endpoints on unreachable nodes; " +
				"3 cannot be seen from here: unreachable", false, true},
	} {
		t.Run(name, func(t *testing.T) {
			d := &Diagnosis{Silent: map[string]bool{}}
			for _, node := range test.silent {
				d.Silent[node] = true
			}
			view := ofService(wiretest.ServiceOf("shop/s", `["zone"]`), nodes, d, cut(test.endpoints))
			if got := view.Verdict.String(); got != test.verdict {
				t.Errorf("got %s, want %s", got, test.verdict)
			}
			s := view.Summary()
			if view.Closed != test.closed || s.Healthy != test.healthy || view.Empty() || s.State == ServiceClosed {
				t.Errorf("closed %t, %+v", view.Closed, s)
			}
			p := NewPreviewer("zone", &Groupings{Nodes: nodes, Diagnosis: d})
			p.AddService(wiretest.ServiceOf("shop/s", `["zone"]`))
			of := cut(test.endpoints)
			of.Namespace, of.Labels = "shop", map[string]string{discoveryv1.LabelServiceName: "s"}
			p.AddSlice(&of)
			if got := p.Preview(); got.Healthy() != test.healthy {
				t.Errorf("preview: %+v", got)
			}
		})
	}
}

// TestTerminating: a site with endpoints that are ending, and no others, has a warning.
func TestTerminating(t *testing.T) {
	nodes := map[string]topology.Labels{"a1": edgeIn("a"), "b1": edgeIn("b")}
	endpoints := slice("p@a1 q@b1")
	for i := range endpoints.Endpoints {
		if e := &endpoints.Endpoints[i]; *e.NodeName == "a1" {
			e.Conditions = discoveryv1.EndpointConditions{
				Ready: ptr.To(false), Serving: ptr.To(true), Terminating: ptr.To(true),
			}
		}
	}
	view := ofService(wiretest.ServiceOf("shop/s", `["zone"]`), nodes, &Diagnosis{}, endpoints)
	if word := view.At("zone", "a")[0].Verdict; word.Word != "terminating" || word.Severity != Warning ||
		!view.Healthy() {
		t.Errorf("healthy %t, %+v", view.Healthy(), word)
	}
	if len(view.Findings) != 1 || view.Findings[0].Severity != Warning ||
		view.Findings[0].Message != "1 of 2 sites have only endpoints that are ending: a" {
		t.Errorf("got %+v", view.Findings)
	}
	endpoints.Endpoints = endpoints.Endpoints[:1] // b has none, and nowhere is a ready one
	view = ofService(wiretest.ServiceOf("shop/s", `["zone"]`), nodes, &Diagnosis{}, endpoints)
	if word := view.At("zone", "b")[0].Verdict; word.Word != "terminating" || !view.Healthy() {
		t.Errorf("healthy %t, %+v", view.Healthy(), word)
	}
}

// TestPodInNoSite: an edge node in no site of a Service that runs a pod of it is a failure.
func TestPodInNoSite(t *testing.T) {
	nodes := map[string]topology.Labels{"a1": edgeIn("a"), "lost": {v1.LabelEdgeNode: v1.EdgeNodePods, "pool": "p"}}
	view := ofService(wiretest.ServiceOf("shop/s", `["zone"]`), nodes, &Diagnosis{}, slice("p@a1 q@lost"))
	if len(view.Findings) != 1 || view.Healthy() || view.Findings[0].Node != "lost" ||
		!strings.HasPrefix(view.Findings[0].Message, "it runs a pod of Service shop/s, and has no label zone") {
		t.Errorf("got %+v", view.Findings)
	}
}

// TestHostnameIsNoSite: the name of a node makes no site where another key does, and what a node lacks of its own is no
// failure where no other key is.
func TestHostnameIsNoSite(t *testing.T) {
	nodes := map[string]topology.Labels{"a1": edgeIn("a"), "a2": edgeIn("a"), "b1": edgeIn("b")}
	for name := range nodes {
		nodes[name][corev1.LabelHostname] = name
	}
	for _, test := range []struct{ annotation, cells string }{
		{`["kubernetes.io/hostname"]`, "own, none warning, own"},
		{`["kubernetes.io/hostname","zone"]`, "own, own, own"}, //nolint:dupword // a row of words
		{`["kubernetes.io/hostname","*"]`, "own, fallback, own"},
	} {
		view := ofService(wiretest.ServiceOf("shop/s", test.annotation), nodes, &Diagnosis{}, slice("p@a1 q@b1"))
		var got []string
		for _, name := range []string{"a1", "a2", "b1"} {
			word := view.At(corev1.LabelHostname, name)[0].Verdict
			got = append(got, strings.TrimSuffix(word.Word+" "+string(word.Severity), " ok"))
		}
		if strings.Join(got, ", ") != test.cells || !view.Healthy() {
			t.Errorf("%s: got %q, healthy %t", test.annotation, got, view.Healthy())
		}
	}
}

// TestAnyEndpoint: a Service whose only key is "*" reaches every endpoint from everywhere, and is not called closed.
func TestAnyEndpoint(t *testing.T) {
	nodes := map[string]topology.Labels{"a1": edgeIn("a"), "b1": edgeIn("b")}
	view := ofService(wiretest.ServiceOf("shop/s", `["*"]`), nodes, &Diagnosis{Findings: []Finding{
		{Severity: Failure, Check: CheckWrapper, Node: "b1"}}}, slice("p@a1"))
	s := view.Summary()
	if view.Closed || !s.Healthy || s.State != ServiceOpen || strings.Contains(s.Message, "stays") {
		t.Errorf("got %+v", s)
	}
	m := MatrixOf("zone", &Groupings{Nodes: nodes, Diagnosis: &Diagnosis{Nodes: nodes}}, nil, []ServiceSummary{s})
	if got := tellCells(m); got != "a open\nb open" {
		t.Errorf("got %s", got)
	}
}

// TestFamilies: a site that lacks one of two families is a failure, if others have it.
func TestFamilies(t *testing.T) {
	nodes := map[string]topology.Labels{"a1": edgeIn("a"), "b1": edgeIn("b")}
	service := wiretest.ServiceOf("shop/s", `["zone"]`)
	service.Spec.IPFamilies = []corev1.IPFamily{"IPv4", "IPv6"}
	four, six := slice("p@a1 q@b1"), slice("p6@a1")
	four.AddressType, six.AddressType = discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6
	view := ofService(service, nodes, &Diagnosis{}, four, six)
	if at := view.At("zone", "b")[0]; fmt.Sprint(view.Without) != "[b]" || view.Healthy() ||
		at.Reaches != "IPv4: own; IPv6: none" || at.Verdict.Word != "none" {
		t.Errorf("without %q, %+v", view.Without, view.At("zone", "b"))
	}
}

// TestKeyOfNoNode: a key that no node has is a failure, as no edge node reaches the Service.
func TestKeyOfNoNode(t *testing.T) {
	nodes := map[string]topology.Labels{"a1": edgeIn("a")}
	view := ofService(wiretest.ServiceOf("shop/s", `["zon"]`), nodes, &Diagnosis{}, slice("p@a1"))
	if s := view.Summary(); s.Healthy || s.Severity != Failure || view.Closed ||
		!strings.Contains(view.Findings[0].Message, "no node has the label zon") {
		t.Errorf("got %+v", s)
	}
	superEdges := map[string]topology.Labels{"a1": {"zone": "a"}, "a2": {"zone": "a"}}
	view = ofService(wiretest.ServiceOf("shop/s", `["zon"]`), superEdges,
		&Diagnosis{Wrapped: map[string]bool{"a1": true}}, slice("p@a1"))
	if view.Healthy() || view.Closed {
		t.Errorf("on a node with a wrapper and without the label of edge nodes: %+v", view)
	}
}

// TestNotCheckedYet: of a node that was labelled after the diagnosis nothing is known, and a node that was not an edge
// node then, and is one of a site now, is one without its label.
func TestNotCheckedYet(t *testing.T) {
	before := map[string]topology.Labels{"a1": edgeIn("a"), "b1": {"zone": "b"}, "c1": {}}
	now := map[string]topology.Labels{"a1": edgeIn("a"), "b1": edgeIn("b"), "c1": {"zone": "a"}}
	view := ofService(wiretest.ServiceOf("shop/s", `["zone"]`), now, &Diagnosis{Nodes: before}, slice("p@a1 q@b1"))
	if v := view.Verdict; v.Keeps != 1 || v.Unknown["not checked yet"] != 1 || fmt.Sprint(v.Fails) != "[c1]" {
		t.Errorf("got %+v", v)
	}
	if at := view.At("zone", "b")[0]; at.Verdict.Word != "unknown" || at.Keeps != "unknown: not checked yet" {
		t.Errorf("got %+v", at)
	}
}

// TestUnread: what could not be read makes a node unknown only if it may change its verdict.
func TestUnread(t *testing.T) {
	nodes := map[string]topology.Labels{"a1": edgeIn("a")}
	for kind, keeps := range map[string]int{"Lease": 1, "Deployment": 1, "Secret": 1, "Pod": 0} {
		view := ofService(wiretest.ServiceOf("shop/s", `["zone"]`), nodes, &Diagnosis{Unread: []Finding{
			{Severity: Unverified, Check: CheckRead, Object: Object{Kind: kind}}}}, slice("p@a1"))
		if view.Verdict.Keeps != keeps || view.Closed || len(view.Findings) != 1 {
			t.Errorf("%s: got %+v", kind, view.Verdict)
		}
	}
	view := ofService(wiretest.ServiceOf("shop/s", `["zone"]`), nodes, &Diagnosis{Findings: []Finding{
		{Severity: Unverified, Check: CheckReplacement}}}, slice("p@a1"))
	if view.Verdict.Keeps != 0 {
		t.Errorf("what is unknown of all nodes: got %+v", view.Verdict)
	}
}

// TestMatrixLarge measures the matrix of 600 sites and 200 Services, of which a few are not well: its size, its time,
// and that these come first.
func TestMatrixLarge(t *testing.T) {
	const sites, of = 600, 200
	nodes := map[string]topology.Labels{}
	var all strings.Builder
	for i := range sites {
		nodes[fmt.Sprintf("n%03d", i)] = edgeIn(fmt.Sprintf("site-%03d", i))
		fmt.Fprintf(&all, "p%d@n%03d ", i, i)
	}
	services := make([]ServiceSummary, 0, of)
	for i := range of {
		endpoints := all.String()
		if i >= of-3 {
			endpoints = strings.Replace(endpoints, "p42@n042 ", "", 1)
		}
		services = append(services, summaryOf(fmt.Sprintf("s%03d", i), `["zone"]`, endpoints, nodes))
	}
	begin := time.Now()
	m := MatrixOf("zone", &Groupings{Nodes: nodes, Diagnosis: &Diagnosis{Nodes: nodes}}, nil, services)
	data, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	took := time.Since(begin)
	t.Logf("%d bytes in %s", len(data), took.Round(time.Millisecond))
	if first := m.Sites[0]; len(m.Sites) != sites || first.Name != "site-042" || first.Problems != 3 ||
		len(slices.DeleteFunc(first.Services, func(c Cell) bool { return c != CellNone })) != 3 ||
		m.Sites[1].Severity != OK {
		t.Errorf("%d sites, the first is %+v", len(m.Sites), first)
	}
	if len(data) > 300<<10 || took > 5*time.Second {
		t.Errorf("%d bytes in %s", len(data), took)
	}
}
