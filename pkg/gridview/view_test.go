package gridview

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/ptr"

	"github.com/application-grid/application-grid/internal/testkit/wiretest"
	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/topology"
)

// endpoint is one on a node; a name that ends with "!" is not ready.
func endpoint(pod, node string) discoveryv1.Endpoint {
	name, notReady := strings.CutSuffix(pod, "!")
	e := discoveryv1.Endpoint{Addresses: []string{"ip-" + name}, TargetRef: &corev1.ObjectReference{Kind: "Pod",
		Name: name}}
	if notReady {
		e.Conditions.Ready = ptr.To(false)
	}
	if node != "" {
		e.NodeName = &node
	}
	return e
}

// slice reads "pod@node pod@node".
func slice(endpoints string) discoveryv1.EndpointSlice {
	var s discoveryv1.EndpointSlice
	for text := range strings.FieldsSeq(endpoints) {
		pod, node, _ := strings.Cut(text, "@")
		s.Endpoints = append(s.Endpoints, endpoint(pod, node))
	}
	return s
}

// tell is a view in one line per site: "site(nodes) key: pods".
func tell(v *View) string {
	var lines []string
	pods := func(endpoints []Endpoint) string {
		var names []string
		for _, e := range endpoints {
			name := e.Pod
			if !e.Ready {
				name += "!"
			}
			names = append(names, name)
		}
		return strings.Join(names, " ")
	}
	for _, u := range v.Sites {
		lines = append(lines, fmt.Sprintf(
			"%s(%s) %s: %s", u.Name, strings.Join(u.Nodes, " "), u.Key, pods(u.Endpoints)))
	}
	for _, h := range v.Hidden {
		lines = append(lines, fmt.Sprintf("hidden %s: %s", pods([]Endpoint{h.Endpoint}), h.Reason))
	}
	return strings.Join(lines, "\n")
}

// viewOf is the view of a Service with this annotation, if any, and these EndpointSlices.
func viewOf(annotation string, slices []string, nodes map[string]topology.Labels) *View {
	var endpointSlices []discoveryv1.EndpointSlice
	for _, text := range slices {
		endpointSlices = append(endpointSlices, slice(text))
	}
	return ofService(wiretest.ServiceOf("shop/echo-svc", annotation), nodes, nil, endpointSlices...)
}

func ofService(service *corev1.Service, nodes map[string]topology.Labels, d *Diagnosis,
	endpointSlices ...discoveryv1.EndpointSlice) *View {
	if d != nil && d.Nodes == nil {
		d.Nodes = nodes
	}
	return (&Groupings{Nodes: nodes, Diagnosis: d}).View(service, endpointSlices)
}

func TestViews(t *testing.T) {
	nodes := map[string]topology.Labels{
		"a1": {"zone": "a", "region": "r"}, "a2": {"zone": "a", "region": "r"},
		"b1": {"zone": "b", "region": "r"}, "c1": {"zone": "c", "region": "s"}, "bare": {},
	}
	for _, test := range []struct {
		name, annotation string
		slices           []string
		want             []string
		closed, healthy  bool
		without          string
	}{
		{"every site has its own", `["zone"]`, []string{"p@a1 q@a2", "r@b1 s@c1"},
			[]string{"(bare) zone: ", "a(a1 a2) zone: p q", "b(b1) zone: r", "c(c1) zone: s"}, true, true, ""},
		{"a site is without", `["zone"]`, []string{"p@a1 r!@b1"},
			[]string{"(bare) zone: ", "a(a1 a2) zone: p", "b(b1) zone: r!", "c(c1) zone: "}, false, false, "b c"},
		{"endpoints that nobody sees", `["zone"]`, []string{"p@a1 r@b1 s@c1 x@bare y@gone z"},
			[]string{"(bare) zone: ", "a(a1 a2) zone: p", "b(b1) zone: r", "c(c1) zone: s",
				"hidden z: it names no node", "hidden x: node bare has no label zone",
				"hidden y: there is no node gone"}, true, true, ""},
		{"one that is not ready is no reason to act", `["zone"]`, []string{"p@a1 r@b1 s@c1 x!@bare"},
			[]string{"(bare) zone: ", "a(a1 a2) zone: p", "b(b1) zone: r", "c(c1) zone: s",
				"hidden x!: node bare has no label zone"}, true, true, ""},
		{"in order of preference", `["zone", "region"]`, []string{"p@a1"},
			[]string{"(bare) : ", "zone=a,region=r(a1 a2) zone: p", "zone=b,region=r(b1) region: p",
				"zone=c,region=s(c1) : "}, false, false, "zone=c,region=s"},
		{"in order of preference, any at last", `["zone", "region", "*"]`, []string{"p@a1 r!@b1"},
			[]string{"(bare) *: p r!", "zone=a,region=r(a1 a2) zone: p", "zone=b,region=r(b1) region: p r!",
				"zone=c,region=s(c1) *: p r!"}, true, true, ""},
		{"a ready one of a later key is preferred to one that is not ready", `["zone", "region"]`,
			[]string{"p@a1 s!@c1 r@b1"},
			[]string{"(bare) : ", "zone=a,region=r(a1 a2) zone: p", "zone=b,region=r(b1) zone: r",
				"zone=c,region=s(c1) : ", "hidden s!: it is not ready, and of several topologyKeys the first counts " +
					"that a ready endpoint matches"}, false, false, "zone=c,region=s"},
		{"any alone", `["*"]`, []string{"p@a1 z"}, []string{"(a1 a2 b1 bare c1) : z p"}, false, true, ""},
		{"not governed", ``, []string{"p@a1 z"}, []string{"(a1 a2 b1 bare c1) : z p"}, false, true, ""},
		{"not governed, by an empty array", `[]`, []string{"p@a1"}, []string{"(a1 a2 b1 bare c1) : p"}, false, true,
			""},
		{"not governed, and nothing ready", ``, []string{"p!@a1"}, []string{"(a1 a2 b1 bare c1) : p!"}, false, true,
			""},
		{"does not parse", `zone`, []string{"p@a1"}, []string{"hidden p: the annotation does not parse"}, false,
			false, ""},
		{"no endpoints", `["zone"]`, nil, []string{"(bare) zone: ", "a(a1 a2) zone: ", "b(b1) zone: ", "c(c1) zone: "},
			false, true, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			view := viewOf(test.annotation, test.slices, nodes)
			if got, want := tell(view), strings.Join(test.want, "\n"); got != want {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
			if view.Closed != test.closed || view.Healthy() != test.healthy ||
				strings.Join(view.Without, " ") != test.without {
				t.Errorf("closed %t, healthy %t, without %q, error %q",
					view.Closed, view.Healthy(), view.Without, view.Error)
			}
			if (view.Error != "") != (test.annotation == "zone") {
				t.Errorf("error %q", view.Error)
			}
		})
	}
}

// TestEmptyLabel: an empty value is a value for the rule.
func TestEmptyLabel(t *testing.T) {
	view := ofService(wiretest.ServiceOf("s", `["zone"]`),
		map[string]topology.Labels{"n1": {"zone": ""}, "n2": {}}, nil, slice("p@n1"))
	if got, want := tell(view), "(n2) zone: \n\"\"(n1) zone: p"; got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// TestNodesWithout: all nodes of a site are without an endpoint, or with the policy Local those that have none of their
// own. The best endpoint of a node counts.
func TestNodesWithout(t *testing.T) {
	nodes := map[string]topology.Labels{"a1": edgeIn("a"), "a2": edgeIn("a"), "b1": edgeIn("b")}
	service := wiretest.ServiceOf("s", `["zone"]`)
	for _, test := range []struct {
		policy          corev1.ServiceInternalTrafficPolicy
		endpoints, want string
	}{
		{corev1.ServiceInternalTrafficPolicyCluster, "p@b1", "[a1 a2] []"},
		{corev1.ServiceInternalTrafficPolicyCluster, "p@a1", "[] [b1]"},
		{corev1.ServiceInternalTrafficPolicyLocal, "p@a1 q@b1", "[a2] []"},
		{corev1.ServiceInternalTrafficPolicyLocal, "p@a1 q!@a1 r!@b1 s@b1", "[a2] []"},
	} {
		service.Spec.InternalTrafficPolicy = &test.policy
		view := ofService(service, nodes, &Diagnosis{}, slice(test.endpoints))
		if got := fmt.Sprint(view.Sites[0].Without, " ", view.Sites[1].Without); got != test.want {
			t.Errorf("%s, %s: got %s, want %s", test.policy, test.endpoints, got, test.want)
		}
	}
}

// TestSilentNodeInASite: what a site reaches is what those of its nodes reach that are not silent.
func TestSilentNodeInASite(t *testing.T) {
	nodes := map[string]topology.Labels{"a1": edgeIn("a"), "a2": edgeIn("a"), "b1": edgeIn("b")}
	view := ofService(wiretest.ServiceOf("s", `["zone"]`), nodes,
		&Diagnosis{Silent: map[string]bool{"a1": true}}, slice("q@b1"))
	if got := view.Sites[0]; got.Reach[0].Reach != CellNone || fmt.Sprint(got.Without) != "[a2]" {
		t.Errorf("got %+v", got)
	}
}

// TestNodesAsSites: a Service whose sites are single nodes is not closed while a node lacks its own endpoint.
func TestNodesAsSites(t *testing.T) {
	nodes := map[string]topology.Labels{}
	for _, name := range []string{"n1", "n2"} {
		nodes[name] = topology.Labels{corev1.LabelHostname: name, v1.LabelEdgeNode: v1.EdgeNodePods}
	}
	for endpoints, closed := range map[string]bool{"p@n1": false, "p@n1 q@n2": true} {
		view := ofService(wiretest.ServiceOf("s", `["kubernetes.io/hostname"]`), nodes, &Diagnosis{}, slice(endpoints))
		if view.Closed != closed {
			t.Errorf("%s: closed %t, without %v, %+v", endpoints, view.Closed, view.Without, view.Verdict)
		}
	}
}

// TestConclusionNamesSites: the first ten of those without an endpoint.
func TestConclusionNamesSites(t *testing.T) {
	nodes := map[string]topology.Labels{}
	for i := range 13 {
		nodes[fmt.Sprint("n", i)] = edgeIn(fmt.Sprintf("%02d", i))
	}
	view := ofService(wiretest.ServiceOf("s", `["zone"]`), nodes, &Diagnosis{}, slice("p@n0"))
	const want = "12 sites without a ready endpoint that it may use: 01, 02, 03, 04, 05, 06, 07, 08, 09, 10 and 2 more."
	if got := view.Conclusion(); !strings.HasPrefix(got, want) {
		t.Errorf("got %s", got)
	}
}

// TestNoSites: a Service whose sites do not exist is a failure if there are edge nodes, because these reach nothing.
func TestNoSites(t *testing.T) {
	for _, edge := range []bool{false, true} {
		nodes := map[string]topology.Labels{"n1": {}}
		if edge {
			nodes["n1"][v1.LabelEdgeNode] = v1.EdgeNodePods
		}
		view := ofService(wiretest.ServiceOf("s", `["zone"]`), nodes, &Diagnosis{}, slice("p"))
		if got := len(view.Reach) > 0; got != edge {
			t.Errorf("with an edge node: %t, found %+v", edge, view.Reach)
		}
	}
}

// TestFindingNamesThePort if the Service has several, and a site lacks an endpoint for one.
func TestFindingNamesThePort(t *testing.T) {
	nodes := map[string]topology.Labels{"a1": edgeIn("a"), "b1": edgeIn("b")}
	service := wiretest.ServiceOf("s", `["zone"]`)
	for _, test := range []struct {
		names  string
		ending bool
		want   string
	}{
		{"http", false, "1 of 2 sites have no ready endpoint: b"},
		{"http admin", false, "1 of 2 sites have no ready endpoint (port admin over IPv4): b; " +
			"1 of 2 sites have no ready endpoint (port http over IPv4): b"},
		{"http admin", true, "2 of 2 sites have only endpoints that are ending: a, b; " +
			"2 of 2 sites have only endpoints that are ending: a, b"},
	} {
		service.Spec.Ports = nil
		endpoints := slice("p@a1")
		if test.ending {
			endpoints.Endpoints[0].Conditions = discoveryv1.EndpointConditions{Ready: ptr.To(false),
				Terminating: ptr.To(true)}
		}
		for i, name := range strings.Fields(test.names) {
			service.Spec.Ports = append(service.Spec.Ports, corev1.ServicePort{Name: name})
			endpoints.Ports = append(endpoints.Ports, discoveryv1.EndpointPort{Name: &name, Port: ptr.To(int32(i + 1))})
		}
		var messages []string
		for _, f := range ofService(service, nodes, &Diagnosis{}, endpoints).Reach {
			messages = append(messages, f.Message)
		}
		if got := strings.Join(messages, "; "); got != test.want {
			t.Errorf("got %s", got)
		}
	}
}

// TestAddressesAreSorted: they may come in any order.
func TestAddressesAreSorted(t *testing.T) {
	s := slice("p@n1")
	s.Endpoints[0].Addresses = []string{"10.0.0.2", "10.0.0.1"}
	if got := merge(partsOf(&s, nil))[0].Addresses; strings.Join(got, " ") != "10.0.0.1 10.0.0.2" {
		t.Errorf("got %s", got)
	}
	if got := s.Endpoints[0].Addresses[0]; got != "10.0.0.2" {
		t.Error("the slice is changed")
	}
}

// TestBothFamilies: a pod with addresses of both families is one endpoint.
func TestBothFamilies(t *testing.T) {
	a, b := slice("p@n1"), slice("p@n1")
	b.Endpoints[0].Addresses = []string{"fd00::1"}
	endpoints := merge(append(partsOf(&a, nil), partsOf(&b, nil)...))
	if len(endpoints) != 1 || strings.Join(endpoints[0].Addresses, " ") != "fd00::1 ip-p" {
		t.Errorf("got %+v", endpoints)
	}
}
