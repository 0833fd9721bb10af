package view_test

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"

	"github.com/application-grid/application-grid/pkg/storage/facts"
	"github.com/application-grid/application-grid/pkg/storage/served"
	"github.com/application-grid/application-grid/pkg/storage/storagetest"
	"github.com/application-grid/application-grid/pkg/storage/view"
	"github.com/application-grid/application-grid/pkg/storage/wire"
	"github.com/application-grid/application-grid/pkg/storage/wire/wiretest"
)

func nodeSet(names ...string) map[string]struct{} {
	set := make(map[string]struct{}, len(names))
	for _, name := range names {
		set[name] = struct{}{}
	}
	return set
}

// endpointsOn makes legacy Endpoints with a ready address on every node and one that is not ready on the first.
func endpointsOn(tb testing.TB, namespace, name string, nodes ...string) *wire.Object {
	tb.Helper()
	var subset corev1.EndpointSubset
	for i, node := range nodes {
		subset.Addresses = append(subset.Addresses, corev1.EndpointAddress{
			IP: fmt.Sprintf("10.1.0.%d", i), NodeName: ptr.To(node),
		})
	}
	subset.NotReadyAddresses = []corev1.EndpointAddress{{IP: "10.1.1.1", NodeName: ptr.To(nodes[0])}}
	subset.Ports = []corev1.EndpointPort{{Port: 80}}
	return wiretest.Object(&corev1.Endpoints{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Subsets: []corev1.EndpointSubset{subset},
	})
}

// addressesShown is which nodes' addresses Endpoints show, those that are not ready in brackets.
func addressesShown(t *testing.T, s *storagetest.Node, namespace, name string) string {
	t.Helper()
	o, err := s.History.Get(served.Endpoints, types.NamespacedName{Namespace: namespace, Name: name}, 0)
	if err != nil || o == nil {
		t.Fatalf("Endpoints %s: got %v, %v", name, o, err)
	}
	typed, err := o.Decode()
	if err != nil {
		t.Fatal(err)
	}
	var nodes []string
	for _, subset := range typed.(*corev1.Endpoints).Subsets {
		for _, a := range subset.Addresses {
			nodes = append(nodes, *a.NodeName)
		}
		for _, a := range subset.NotReadyAddresses {
			nodes = append(nodes, "("+*a.NodeName+")")
		}
	}
	return strings.Join(nodes, ",")
}

// TestDeadNodesHideTheirEndpoints: of governed Services and of others, in slices and in Endpoints, and no
// others; and they are shown again.
func TestDeadNodesHideTheirEndpoints(t *testing.T) {
	s := syncedStore(t, storagetest.Options{})
	s.Services().Replace([]*wire.Object{testService(t, "governed", `["zone"]`), testService(t, "open", "")})
	s.EndpointSlices().Replace([]*wire.Object{
		testSlice(t, "governed", "governed", "node-a1", "node-a2", "node-b1"),
		testSlice(t, "open", "open", "node-a1", "node-a2", "node-b1"),
		testSlice(t, "nobodys", "", "node-a1", "node-a2", "node-b1"),
	})
	s.Endpoints().Replace([]*wire.Object{
		endpointsOn(t, "ns", "governed", "node-a2", "node-a1", "node-b1"),
		endpointsOn(t, "ns", "open", "node-a2", "node-a1", "node-b1"),
	})
	for i, step := range []struct {
		dead                                                 []string
		governed, open, governedEndpoints, openEndpoints     string
		keptSlices, hiddenSlices, keptLegacy, hiddenOfLegacy int
	}{
		{
			nil, "node-a1,node-a2", "node-a1,node-a2,node-b1", "node-a2,node-a1,(node-a2)",
			"node-a2,node-a1,node-b1,(node-a2)", 8, 1, 7, 1,
		},
		{[]string{"node-a2"}, "node-a1", "node-a1,node-b1", "node-a1", "node-a1,node-b1", 6, 3, 3, 5},
		{[]string{"node-a2", "node-b1"}, "node-a1", "node-a1", "node-a1", "node-a1", 5, 4, 2, 6},
		{
			[]string{"node-b1"}, "node-a1,node-a2", "node-a1,node-a2", "node-a2,node-a1,(node-a2)",
			"node-a2,node-a1,(node-a2)", 7, 2, 6, 2,
		},
		{
			[]string{"node-a1"}, "node-a1,node-a2", "node-a1,node-a2,node-b1", "node-a2,node-a1,(node-a2)",
			"node-a2,node-a1,node-b1,(node-a2)", 8, 1, 7, 1,
		},
		{
			nil, "node-a1,node-a2", "node-a1,node-a2,node-b1", "node-a2,node-a1,(node-a2)",
			"node-a2,node-a1,node-b1,(node-a2)", 8, 1, 7, 1,
		},
	} {
		s.SetDeadNodes(nodeSet(step.dead...))
		for name, want := range map[string]string{
			"governed": step.governed, "open": step.open, "nobodys": "node-a1,node-a2,node-b1",
		} {
			if got := nodesShown(t, s.History, name); got != want {
				t.Errorf("step %d, %v dead: slice %s shows %s, want %s", i, step.dead, name, got, want)
			}
		}
		for name, want := range map[string]string{"governed": step.governedEndpoints, "open": step.openEndpoints} {
			if got := addressesShown(t, s, "ns", name); got != want {
				t.Errorf("step %d, %v dead: Endpoints %s show %s, want %s", i, step.dead, name, got, want)
			}
		}
		for r, want := range map[*served.Resource]view.EndpointCount{
			served.EndpointSlices: {Kept: step.keptSlices, Hidden: step.hiddenSlices},
			served.Endpoints:      {Kept: step.keptLegacy, Hidden: step.hiddenOfLegacy},
			served.Services:       {}, served.Nodes: {},
		} {
			if got := s.View.Endpoints(r); got != want {
				t.Errorf("step %d, %v dead: %s are counted as %+v, want %+v", i, step.dead, r.Resource, got, want)
			}
		}
	}
}

// TestADeadNodeTouchesOnlyItsSlices: the others keep their revision, and the same set again changes nothing.
func TestADeadNodeTouchesOnlyItsSlices(t *testing.T) {
	s := syncedStore(t, storagetest.Options{})
	for i := range 50 {
		s.Services().Apply(testService(t, fmt.Sprintf("svc-%d", i), ""))
		node := "node-b1"
		if i%10 == 0 {
			node = "node-b2"
		}
		s.EndpointSlices().Apply(testSlice(t, fmt.Sprintf("svc-%d", i), fmt.Sprintf("svc-%d", i), "node-a1", node))
	}
	before := s.History.Revision()
	cursor, err := s.History.Watch(served.EndpointSlices, before)
	if err != nil {
		t.Fatal(err)
	}
	for _, dead := range []map[string]struct{}{nodeSet("node-b2", "stranger"), nil} {
		s.SetDeadNodes(dead)
		events, _, err := cursor.Next(100)
		if err != nil || len(events) != 5 {
			t.Fatalf("%v dead: %d events, %v; want 5", dead, len(events), err)
		}
		for _, e := range events {
			if e.Type != watch.Modified || e.Object.Revision <= before {
				t.Errorf("%s of %s at %d", e.Type, e.Object.Name, e.Object.Revision)
			}
		}
		_, changed, err := cursor.Next(100)
		if err != nil {
			t.Fatal(err)
		}
		s.SetDeadNodes(dead)
		select {
		case <-changed:
			t.Errorf("%v dead again: watchers are woken", dead)
		default:
		}
	}
}

// TestADeadEndpointMatchesNoKey: of a Service with several keys the next one decides, for all of its slices, and
// what is dead stays hidden whatever key decides.
func TestADeadEndpointMatchesNoKey(t *testing.T) {
	s := syncedStore(t, storagetest.Options{})
	s.Services().Apply(testService(t, "svc", `["zone","*"]`))
	s.EndpointSlices().Apply(testSlice(t, "near", "svc", "node-a2"))
	s.EndpointSlices().Apply(testSlice(t, "far", "svc", "node-b1", "node-b2"))
	s.Endpoints().Replace([]*wire.Object{endpointsOn(t, "ns", "svc", "node-a2", "node-b1", "node-b2")})
	for _, step := range []struct {
		dead                 []string
		near, far, endpoints string
	}{
		{nil, "node-a2", "", "node-a2,(node-a2)"},
		{[]string{"node-a2"}, "", "node-b1,node-b2", "node-b1,node-b2"},
		{[]string{"node-a2", "node-b1"}, "", "node-b2", "node-b2"},
		{[]string{"node-a2", "node-b1", "node-b2"}, "", "", ""},
		{[]string{"node-b1"}, "node-a2", "", "node-a2,(node-a2)"},
		{nil, "node-a2", "", "node-a2,(node-a2)"},
	} {
		before := s.History.Revision()
		cursor, err := s.History.Watch(served.EndpointSlices, before)
		if err != nil {
			t.Fatal(err)
		}
		s.SetDeadNodes(nodeSet(step.dead...))
		near, far, endpoints := nodesShown(t, s.History,
			"near"), nodesShown(t, s.History, "far"), addressesShown(t, s, "ns", "svc")
		if near != step.near || far != step.far || endpoints != step.endpoints {
			t.Errorf("%v dead: near shows %q, far %q, Endpoints %q; want %+v", step.dead, near, far, endpoints, step)
		}
		// Each slice goes from one state to the other at once.
		events, _, err := cursor.Next(100)
		if err != nil || len(events) > 2 {
			t.Errorf("%v dead: %d events, %v", step.dead, len(events), err)
		}
	}
}

// TestDeadBeforeItIsKnown: the name may come before the node, the Service and the slice, in any order.
func TestDeadBeforeItIsKnown(t *testing.T) {
	for _, early := range []bool{true, false} {
		for _, keys := range []string{"", `["zone"]`, `["zone","*"]`} {
			s := storagetest.New(storagetest.Options{NodeName: "node-a1", KeepKubernetesEndpoint: true})
			if early {
				s.SetDeadNodes(nodeSet("node-a2", "node-new"))
			}
			s.EndpointSlices().Replace([]*wire.Object{testSlice(t, "svc", "svc", "node-a1", "node-a2")})
			s.Services().Replace([]*wire.Object{testService(t, "svc", keys)})
			s.NodeLabels().Replace([]*wire.Object{testNode(t, "node-a1", "a"), testNode(t, "node-a2", "a")})
			if !early {
				s.SetDeadNodes(nodeSet("node-a2", "node-new"))
			}
			if got := nodesShown(t, s.History, "svc"); got != "node-a1" {
				t.Errorf("early %v, keys %s: shows %s", early, keys, got)
			}
			s.EndpointSlices().Apply(testSlice(t, "svc", "svc", "node-new", "node-a1"))
			s.NodeLabels().Apply(testNode(t, "node-new", "a"))
			if got := nodesShown(t, s.History, "svc"); got != "node-a1" {
				t.Errorf("early %v, keys %s: with a new node it shows %s", early, keys, got)
			}
			s.NodeLabels().Remove("", "node-new")
			s.NodeLabels().Apply(testNode(t, "node-new", "a"))
			if got := nodesShown(t, s.History, "svc"); got != "node-a1" {
				t.Errorf("early %v, keys %s: when the node comes back it shows %s", early, keys, got)
			}
			s.SetDeadNodes(nil)
			if got := nodesShown(t, s.History, "svc"); got != "node-new,node-a1" {
				t.Errorf("early %v, keys %s: revived it shows %s", early, keys, got)
			}
		}
	}
}

// TestTheKubernetesServiceOutlivesItsNodes: its Endpoints and its slice are not hidden, governed or not.
func TestTheKubernetesServiceOutlivesItsNodes(t *testing.T) {
	for _, annotations := range []map[string]string{nil, {"topologyKeys": `["zone","*"]`}} {
		s := syncedStore(t, storagetest.Options{})
		s.Services().Apply(wiretest.Object(&corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kubernetes", Annotations: annotations},
		}))
		s.EndpointSlices().Apply(wiretest.Object(&discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "default", Name: "kubernetes",
				Labels: map[string]string{discoveryv1.LabelServiceName: "kubernetes"},
			},
			Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"192.0.2.1"}, NodeName: ptr.To("node-a2")}},
		}))
		s.Endpoints().Replace([]*wire.Object{endpointsOn(t, "default", "kubernetes", "node-a2")})
		before := s.History.Revision()
		s.SetDeadNodes(nodeSet("node-a2"))
		if s.History.Revision() != before {
			t.Errorf("annotations %v: something of default/kubernetes changed", annotations)
		}
		o, err := s.History.Get(served.EndpointSlices, facts.KubernetesService, 0)
		if err != nil || o == nil {
			t.Fatalf("got %v, %v", o, err)
		}
		typed, err := o.Decode()
		if err != nil {
			t.Fatal(err)
		}
		if n := len(typed.(*discoveryv1.EndpointSlice).Endpoints); n != 1 {
			t.Errorf("annotations %v: the slice has %d endpoints", annotations, n)
		}
		if got := addressesShown(t, s, "default", "kubernetes"); got != "node-a2,(node-a2)" {
			t.Errorf("annotations %v: the Endpoints show %s", annotations, got)
		}
	}
}

// TestHintsStayWhereNothingIsGoverned: a dead endpoint leaves, the bytes of the others do not change.
func TestHintsStayWhereNothingIsGoverned(t *testing.T) {
	slice := func(nodes ...string) *wire.Object {
		s := &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "ns", Name: "svc", Labels: map[string]string{discoveryv1.LabelServiceName: "svc"},
			},
			AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Port: ptr.To(int32(80))}},
		}
		for _, node := range nodes {
			s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
				Addresses: []string{"10.0.0.1"}, NodeName: ptr.To(node),
				Hints: &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: "z"}}},
			})
		}
		return wiretest.Object(s)
	}
	body := func(s *storagetest.Node) []byte {
		o, err := s.History.Get(served.EndpointSlices, types.NamespacedName{Namespace: "ns", Name: "svc"}, 0)
		if err != nil || o == nil {
			t.Fatalf("got %v, %v", o, err)
		}
		return o.Body
	}
	s := syncedStore(t, storagetest.Options{})
	s.Services().Apply(testService(t, "svc", ""))
	whole := slice("node-a1", "node-a2", "node-b1")
	s.EndpointSlices().Apply(whole)
	s.SetDeadNodes(nodeSet("node-a2"))
	if want := slice("node-a1", "node-b1").Body; !bytes.Equal(body(s), want) {
		t.Errorf("with a dead node: got %q, want %q", body(s), want)
	}
	s.SetDeadNodes(nodeSet("node-b2"))
	if got := body(s); &got[0] != &whole.Body[0] {
		t.Error("what has no dead endpoint is kept twice")
	}
	s.Services().Apply(testService(t, "svc", `["*"]`))
	if strings.Contains(string(body(s)), "z") {
		t.Error("a governed Service has hints")
	}
}

// TestADeadNodeLeavesNothingBehind: neither in the count nor in what is known. The index is package facts' own.
func TestADeadNodeLeavesNothingBehind(t *testing.T) {
	s := syncedStore(t, storagetest.Options{})
	s.SetDeadNodes(nodeSet("node-a2", "stray"))
	s.Services().Apply(testService(t, "svc", ""))
	s.EndpointSlices().Apply(testSlice(t, "svc", "svc", "node-a1", "node-a2", "stray"))
	if c := s.View.Endpoints(served.EndpointSlices); c != (view.EndpointCount{Kept: 1, Hidden: 2}) {
		t.Errorf("counted: %+v", c)
	}
	s.SetDeadNodes(nodeSet("stray"))
	s.EndpointSlices().Replace(nil)
	s.Services().Replace(nil)
	s.NodeLabels().Replace(nil)
	s.SetDeadNodes(nil)
	if n := s.NodeCount() + len(s.DeadNodes()); n != 0 {
		t.Errorf("left: %d nodes, dead %v", s.NodeCount(), s.DeadNodes())
	}
	if c := s.View.Endpoints(served.EndpointSlices); c != (view.EndpointCount{}) {
		t.Errorf("counted: %+v", c)
	}
}

func TestNodeAddresses(t *testing.T) {
	s := syncedStore(t, storagetest.Options{})
	v4, v6, mapped := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::1"),
		netip.MustParseAddr("::ffff:10.0.0.2")
	given := map[netip.Addr]string{v4: "node-a2", v6: "node-a2", mapped: "node-b1"}
	s.SetNodeAddresses(given)
	delete(given, v4)
	want := map[netip.Addr]string{v4: "node-a2", v6: "node-a2", mapped.Unmap(): "node-b1"}
	if got := s.NodeAddresses(); !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	delete(s.NodeAddresses(), v4)
	// A node that is not known yet may have addresses; one that goes has none any more.
	s.NodeLabels().Remove("", "node-a2")
	if got := s.NodeAddresses(); !maps.Equal(got, map[netip.Addr]string{mapped.Unmap(): "node-b1"}) {
		t.Errorf("when a node is gone: %v", got)
	}
	if s.NodeExists("node-a2") || !s.NodeExists("node-b1") {
		t.Error("NodeExists does not know the nodes")
	}
}

// BenchmarkNodeDies kills a neighbour in this node's unit and revives the one before: about 100 of 2,000 slices
// have endpoints on each.
func BenchmarkNodeDies(b *testing.B) {
	s := fleet(b)
	r := rand.New(rand.NewPCG(2, 2))
	before := s.History.Revision()
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		s.SetDeadNodes(nodeSet(fmt.Sprintf("node-%d", r.IntN(20)*50)))
		i++
	}
	b.ReportMetric(float64(s.History.Revision()-before)/float64(i), "events/op")
}
