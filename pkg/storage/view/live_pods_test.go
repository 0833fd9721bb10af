package view_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/application-grid/application-grid/pkg/storage/facts"
	"github.com/application-grid/application-grid/pkg/storage/served"
	"github.com/application-grid/application-grid/pkg/storage/storagetest"
	"github.com/application-grid/application-grid/pkg/storage/view"
	"github.com/application-grid/application-grid/pkg/storage/wire"
	"github.com/application-grid/application-grid/pkg/storage/wire/wiretest"
)

// someTime is when nodes run their pods in these tests.
var someTime = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// podSlice has one ready endpoint for every node; its pod is pod-0, pod-1 and so on.
func podSlice(name, service string, nodes ...string) *wire.Object {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: service},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	for i, node := range nodes {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{fmt.Sprintf("10.0.0.%d", i)}, NodeName: ptr.To(node),
			Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true), Serving: ptr.To(true)},
			TargetRef: &corev1.ObjectReference{
				Kind: "Pod", Namespace: "ns", Name: fmt.Sprintf("pod-%d", i), UID: types.UID(fmt.Sprintf("uid-%d", i)),
			},
		})
	}
	return wiretest.Object(s)
}

// podEndpoints are the same as legacy Endpoints.
func podEndpoints(service string, nodes ...string) *wire.Object {
	var subset corev1.EndpointSubset
	for i, node := range nodes {
		subset.Addresses = append(subset.Addresses, corev1.EndpointAddress{
			IP: fmt.Sprintf("10.0.0.%d", i), NodeName: ptr.To(node),
			TargetRef: &corev1.ObjectReference{
				Kind: "Pod", Namespace: "ns", Name: fmt.Sprintf("pod-%d", i), UID: types.UID(fmt.Sprintf("uid-%d", i)),
			},
		})
	}
	subset.Ports = []corev1.EndpointPort{{Port: 80}}
	return wiretest.Object(&corev1.Endpoints{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: service}, Subsets: []corev1.EndpointSubset{subset},
	})
}

// runs is how a node runs pods, each written as number=address, with a "!" after it if it is not serving.
func runs(pods ...string) *facts.LivePods {
	live := &facts.LivePods{AsOf: someTime, Pods: map[facts.PodKey]facts.LivePod{}}
	for _, pod := range pods {
		number, address, _ := strings.Cut(strings.TrimSuffix(pod, "!"), "=")
		how := facts.LivePod{Serving: !strings.HasSuffix(pod, "!")}
		if address != "" {
			how.Addresses = []netip.Addr{netip.MustParseAddr("fd00::1"), netip.MustParseAddr(address)}
		}
		live.Pods[podKey(number)] = how
	}
	return live
}

// podKey is the key of the pod with that number; "s0" is pod-0 as a static pod.
func podKey(number string) facts.PodKey {
	key := facts.PodKey{Namespace: "ns", Name: "pod-" + strings.TrimPrefix(number, "s")}
	if !strings.HasPrefix(number, "s") {
		key.UID = "uid-" + number
	}
	return key
}

// shownAddresses are the addresses that a slice and the Endpoints of the Service svc show, those that are not ready in
// brackets.
func shownAddresses(t *testing.T, s *storagetest.Node) (slice, legacy string) {
	t.Helper()
	var inSlice, inLegacy []string
	read := func(r *served.Resource, name string) served.Typed {
		o, err := s.History.Get(r, types.NamespacedName{Namespace: "ns", Name: name}, 0)
		if err != nil || o == nil {
			t.Fatalf("%s: %v, %v", name, o, err)
		}
		typed, err := o.Decode()
		if err != nil {
			t.Fatal(err)
		}
		return typed
	}
	for _, e := range read(served.EndpointSlices, "svc-1").(*discoveryv1.EndpointSlice).Endpoints {
		address := e.Addresses[0]
		if !*e.Conditions.Ready {
			address = "(" + address + ")"
		}
		inSlice = append(inSlice, address)
	}
	for _, subset := range read(served.Endpoints, "svc").(*corev1.Endpoints).Subsets {
		for _, a := range subset.Addresses {
			inLegacy = append(inLegacy, a.IP)
		}
		for _, a := range subset.NotReadyAddresses {
			inLegacy = append(inLegacy, "("+a.IP+")")
		}
	}
	return strings.Join(inSlice, " "), strings.Join(inLegacy, " ")
}

// TestLivePods: what a node says of its pods is shown, of governed Services and of others, in slices and in Endpoints,
// and of that node's pods alone; then the upstream's word again.
func TestLivePods(t *testing.T) {
	about := runs("0=10.9.0.0")
	about.About = map[facts.PodKey]struct{}{podKey("0"): {}}
	for _, keys := range []string{"", `["zone"]`} {
		s := syncedStore(t, storagetest.Options{})
		s.Services().Apply(testService(t, "svc", keys))
		nodes := []string{"node-a1", "node-a1", "node-a2"}
		s.EndpointSlices().Apply(podSlice("svc-1", "svc", nodes...))
		s.Endpoints().Replace([]*wire.Object{podEndpoints("svc", nodes...)})
		for i, step := range []struct {
			live          *facts.LivePods
			slice, legacy string
			lost          int
		}{
			{nil, "10.0.0.0 10.0.0.1 10.0.0.2", "10.0.0.0 10.0.0.1 10.0.0.2", 0},
			{runs("0=10.0.0.0", "1=10.0.0.1"), "10.0.0.0 10.0.0.1 10.0.0.2", "10.0.0.0 10.0.0.1 10.0.0.2", 0},
			{runs("0=10.9.0.0", "1=10.9.0.1"), "10.9.0.0 10.9.0.1 10.0.0.2", "10.9.0.0 10.9.0.1 10.0.0.2", 0},
			{runs("0=10.9.0.0!", "1=10.9.0.1"), "(10.9.0.0) 10.9.0.1 10.0.0.2", "10.9.0.1 10.0.0.2 (10.9.0.0)", 0},
			{runs("1=10.9.0.1"), "10.9.0.1 10.0.0.2", "10.9.0.1 10.0.0.2", 1},
			{runs("s0=10.9.0.0", "1"), "10.9.0.0 10.0.0.1 10.0.0.2", "10.9.0.0 10.0.0.1 10.0.0.2", 0},
			{runs("0=fd00::2"), "10.0.0.2", "10.0.0.2", 2},
			{runs(), "10.0.0.2", "10.0.0.2", 2},
			{about, "10.9.0.0 10.0.0.1 10.0.0.2", "10.9.0.0 10.0.0.1 10.0.0.2", 0},
			{nil, "10.0.0.0 10.0.0.1 10.0.0.2", "10.0.0.0 10.0.0.1 10.0.0.2", 0},
		} {
			s.SetLivePods("node-a1", step.live)
			slice, legacy := shownAddresses(t, s)
			if slice != step.slice || legacy != step.legacy {
				t.Errorf("keys %q, step %d: shown are %q and %q, want %q and %q",
					keys, i, slice, legacy, step.slice, step.legacy)
			}
			for _, r := range []*served.Resource{served.EndpointSlices, served.Endpoints} {
				if got := s.View.Endpoints(r); got.Hidden != step.lost || got.Kept != 3-step.lost {
					t.Errorf("keys %q, step %d: %s are counted as %+v", keys, i, r.Resource, got)
				}
			}
		}
	}
}

// TestLivePodsOfLaterObjects: an object that comes, or changes, is corrected as it comes. A new list of the same
// changes nothing.
func TestLivePodsOfLaterObjects(t *testing.T) {
	s := syncedStore(t, storagetest.Options{})
	s.Services().Apply(testService(t, "svc", `["zone"]`))
	s.SetLivePods("node-a1", runs("0=10.9.0.0", "1=10.9.0.1"))
	s.Endpoints().Replace([]*wire.Object{podEndpoints("svc", "node-a1")})
	s.EndpointSlices().Apply(podSlice("svc-1", "svc", "node-a1"))
	if slice, legacy := shownAddresses(t, s); slice != "10.9.0.0" || legacy != "10.9.0.0" {
		t.Errorf("shown are %q and %q", slice, legacy)
	}
	s.EndpointSlices().Apply(podSlice("svc-1", "svc", "node-a1", "node-a1"))
	if slice, _ := shownAddresses(t, s); slice != "10.9.0.0 10.9.0.1" {
		t.Errorf("shown are %q", slice)
	}
	revision := s.History.Revision()
	s.EndpointSlices().Replace([]*wire.Object{podSlice("svc-1", "svc", "node-a1", "node-a1")})
	s.SetLivePods("node-a1", runs("0=10.9.0.0", "1=10.9.0.1"))
	if now := s.History.Revision(); now != revision {
		t.Errorf("nothing has changed, and the revision went from %d to %d", revision, now)
	}
	s.EndpointSlices().Remove("ns", "svc-1")
	if got := s.View.Endpoints(served.EndpointSlices); got != (view.EndpointCount{}) {
		t.Errorf("of a slice that was removed, %+v are counted", got)
	}
}

// TestLivePodsDecide: the deciding key of a Service follows the readiness that pods really have.
func TestLivePodsDecide(t *testing.T) {
	s := syncedStore(t, storagetest.Options{})
	s.Services().Apply(testService(t, "svc", `["zone","*"]`))
	s.Endpoints().Replace([]*wire.Object{podEndpoints("svc", "node-a1", "node-b1")})
	s.EndpointSlices().Apply(podSlice("svc-1", "svc", "node-a1", "node-b1"))
	for i, step := range []struct {
		live *facts.LivePods
		want string
	}{
		{nil, "10.0.0.0"},
		{runs("0=10.0.0.0!"), "(10.0.0.0) 10.0.0.1"},
		{runs("0=10.0.0.7"), "10.0.0.7"},
		{runs(), "10.0.0.1"},
		{nil, "10.0.0.0"},
	} {
		s.SetLivePods("node-a1", step.live)
		if slice, _ := shownAddresses(t, s); slice != step.want {
			t.Errorf("step %d: shown is %q, want %q", i, slice, step.want)
		}
	}
}

// TestLivePodsTouchOnlyTheirSlices: a pod that moves is an event of its own slice alone.
func TestLivePodsTouchOnlyTheirSlices(t *testing.T) {
	s := syncedStore(t, storagetest.Options{})
	for i := range 20 {
		name := fmt.Sprintf("svc-%d", i)
		s.Services().Apply(testService(t, name, ""))
		s.EndpointSlices().Apply(testSlice(t, name, name, "node-a1"))
	}
	s.Services().Apply(testService(t, "svc", ""))
	s.EndpointSlices().Apply(podSlice("pods", "svc", "node-a1", "node-a2"))
	live := runs("0=10.0.0.0")
	for i := range 20 {
		key := facts.PodKey{
			Namespace: "ns", Name: fmt.Sprintf("svc-%d-0", i), UID: "00000000-0000-0000-0000-000000000000",
		}
		live.Pods[key] = facts.LivePod{Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.0")}, Serving: true}
	}
	before := s.History.Revision()
	cursor, err := s.History.Watch(served.EndpointSlices, before)
	if err != nil {
		t.Fatal(err)
	}
	s.SetLivePods("node-a1", live)
	if now := s.History.Revision(); now != before {
		t.Errorf("all pods are as the upstream says, and the revision went from %d to %d", before, now)
	}
	moved := runs("0=10.0.0.9")
	for key, pod := range live.Pods {
		if key != podKey("0") {
			moved.Pods[key] = pod
		}
	}
	s.SetLivePods("node-a1", moved)
	events, _, err := cursor.Next(100)
	if err != nil || len(events) != 1 || events[0].Object.Name != "pods" {
		t.Errorf("got %v, %v", events, err)
	}
}

// TestExplainLivePods: explain shows what is shown, and says whose word it is.
func TestExplainLivePods(t *testing.T) {
	s := syncedStore(t, storagetest.Options{})
	s.Services().Apply(testService(t, "svc", `["zone"]`))
	s.EndpointSlices().Apply(podSlice("svc-1", "svc", "node-a1", "node-a1", "node-a1", "node-a2"))
	s.SetLivePods("node-a1", runs("0=10.9.0.0", "2=10.9.0.2!"))
	e := explain(t, s, "svc", "")
	if e.Kept != 3 || e.Hidden != 1 || len(e.Endpoints) != 4 {
		t.Fatalf("got %+v", e)
	}
	const asOf = "as of 2026-01-02T03:04:05Z"
	for i, want := range []struct {
		address     string
		ready, kept bool
		reason      string
	}{
		{"10.9.0.0", true, true, "node node-a1 runs its pod (" + asOf},
		{"10.0.0.1", true, false, "node node-a1 does not run its pod (" + asOf},
		{"10.9.0.2", false, true, "node node-a1 runs its pod (" + asOf},
		{"10.0.0.3", true, true, "node node-a2 has zone=a too"},
	} {
		got := e.Endpoints[i]
		if got.Addresses[0] != want.address || got.Ready != want.ready || got.Kept != want.kept ||
			!strings.Contains(got.Reason, want.reason) {
			t.Errorf("endpoint %d is %+v, want %+v", i, got, want)
		}
	}
	origin, err := s.View.Origin(served.EndpointSlices, types.NamespacedName{Namespace: "ns", Name: "svc-1"})
	if err != nil || origin.Altered == "" {
		t.Errorf("origin: %+v, %v", origin, err)
	}
}

// TestPodsOn: what the upstream says of the pods of a node, and where the node says otherwise.
func TestPodsOn(t *testing.T) {
	s := syncedStore(t, storagetest.Options{})
	s.Services().Apply(testService(t, "svc", ""))
	s.EndpointSlices().Apply(podSlice("svc-1", "svc", "node-a1", "node-a1", "node-a2"))
	s.SetLivePods("node-a1", runs("0=10.9.0.0", "1=10.0.0.1"))
	got := s.PodsOn("node-a1")
	want := map[facts.PodKey]facts.KnownPod{
		podKey("0"): {Address: "10.0.0.0", Serving: true, Disputed: true},
		podKey("1"): {Address: "10.0.0.1", Serving: true},
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got := s.PodsOn("elsewhere"); len(got) > 0 {
		t.Errorf("on a node that is not known: %v", got)
	}
}

// TestHeldByOthers: no neighbour may claim the address of a node, of a pod that this node runs, or of another
// neighbour's pod.
func TestHeldByOthers(t *testing.T) {
	s := syncedStore(t, storagetest.Options{NodeName: "node-a1"})
	s.Services().Apply(testService(t, "svc", `["zone"]`))
	s.EndpointSlices().Apply(podSlice("svc-1", "svc", "node-a1", "node-a2"))
	s.SetInternalIPs(map[string][]netip.Addr{"node-a2": {netip.MustParseAddr("192.168.0.2")}})
	s.SetLivePods("node-a1", runs("0=10.9.0.0"))
	claimed := make([]netip.Addr, 0, 4)
	for _, address := range []string{"192.168.0.2", "10.9.0.0", "10.0.0.1", "10.7.7.7"} {
		claimed = append(claimed, netip.MustParseAddr(address))
	}
	held := s.HeldByOthers(map[string][]netip.Addr{"node-a3": claimed})["node-a3"]
	for i, address := range claimed {
		if _, isHeld := held[address]; isHeld != (i < 3) {
			t.Errorf("%s is held by others: %v", address, isHeld)
		}
	}
}

// BenchmarkLivePods is what an answer of the runtime costs that changes nothing: of a node with 110 pods, each in a
// slice with 100 endpoints.
func BenchmarkLivePods(b *testing.B) {
	s := syncedStore(b, storagetest.Options{})
	live := &facts.LivePods{Pods: map[facts.PodKey]facts.LivePod{}}
	nodes := make([]string, 100)
	for i := range nodes {
		nodes[i] = "node-a2"
	}
	nodes[0] = "node-a1"
	for i := range 110 {
		name := fmt.Sprintf("svc-%d", i)
		s.Services().Apply(testService(b, name, `["zone"]`))
		s.EndpointSlices().Apply(testSlice(b, name, name, nodes...))
		key := facts.PodKey{Namespace: "ns", Name: name + "-0", UID: "00000000-0000-0000-0000-000000000000"}
		live.Pods[key] = facts.LivePod{Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.99")}, Serving: true}
	}
	s.SetLivePods("node-a1", live)
	b.ReportAllocs()
	for b.Loop() {
		s.SetLivePods("node-a1", live)
		if known := s.PodsOn("node-a1"); len(known) != 110 {
			b.Fatal(len(known))
		}
	}
}

// TestPublishNotReadyAddresses has a Service with publishNotReadyAddresses (etcd, Cassandra, Kafka: peers find each
// other before they are ready), whose pods were all ready when the link went. After a power cut a pod runs its init
// containers, or crashes: not serving.
func TestPublishNotReadyAddresses(t *testing.T) {
	s := storagetest.New(storagetest.Options{NodeName: "n0", KeepKubernetesEndpoint: true})
	s.NodeLabels().Replace([]*wire.Object{wiretest.Object(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n0"}})})
	s.OwnNode().Replace([]*wire.Object{wiretest.Object(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n0"}})})
	s.Services().Replace([]*wire.Object{wiretest.Object(&corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "svc"},
		Spec:       corev1.ServiceSpec{ClusterIP: "None", PublishNotReadyAddresses: true},
	})})
	s.EndpointSlices().Replace([]*wire.Object{podSlice("svc-1", "svc", "n0", "n0")})
	s.Endpoints().Replace([]*wire.Object{podEndpoints("svc", "n0", "n0")})
	s.SetLivePods("n0", runs("0=10.1.0.0!", "1=10.1.0.1"))
	slice, legacy := shownAddresses(t, s)
	if slice != "10.1.0.0 10.1.0.1" || legacy != "10.1.0.0 10.1.0.1" {
		t.Errorf("slice %q, Endpoints %q: of a Service that publishes not ready addresses all are ready", slice, legacy)
	}
}
