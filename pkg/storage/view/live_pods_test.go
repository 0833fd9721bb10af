package view_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/application-grid/application-grid/internal/testkit/storagetest"
	"github.com/application-grid/application-grid/internal/testkit/wiretest"
	"github.com/application-grid/application-grid/pkg/storage/facts"
	"github.com/application-grid/application-grid/pkg/storage/served"
	"github.com/application-grid/application-grid/pkg/storage/view"
	"github.com/application-grid/application-grid/pkg/storage/wire"
)

// someTime is when nodes run their pods in these tests.
var someTime = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

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

// podKey is the key of the pod with that number; "s0" is svc-0 as a static pod.
func podKey(number string) facts.PodKey {
	key := facts.PodKey{Namespace: "ns", Name: "svc-" + strings.TrimPrefix(number, "s")}
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
	for _, e := range shownAs[*discoveryv1.EndpointSlice](t, s.History, served.EndpointSlices, "svc-1").Endpoints {
		address := e.Addresses[0]
		if !*e.Conditions.Ready {
			address = "(" + address + ")"
		}
		inSlice = append(inSlice, address)
	}
	for _, subset := range shownAs[*corev1.Endpoints](t, s.History, served.Endpoints, "svc").Subsets {
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
		s.Services().Apply(wiretest.Service("svc", keys))
		nodes := []string{"node-a1", "node-a1", "node-a2"}
		s.EndpointSlices().Apply(wiretest.Slice("svc-1", "svc", nodes...))
		s.Endpoints().Replace([]*wire.Object{wiretest.Endpoints("svc", nodes...)})
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
				if got := s.View.CountEndpoints(r); got.Hidden != step.lost || got.Kept != 3-step.lost {
					t.Errorf("keys %q, step %d: %s are counted as %+v", keys, i, r.Resource, got)
				}
			}
		}
		s.SetLivePods("node-a1", about)
		revision := s.History.Revision()
		s.EndpointSlices().Replace([]*wire.Object{wiretest.Slice("svc-1", "svc", nodes...)})
		s.SetLivePods("node-a1", about)
		if now := s.History.Revision(); now != revision {
			t.Errorf("keys %q: nothing has changed, and the revision went from %d to %d", keys, revision, now)
		}
		s.EndpointSlices().Remove("ns", "svc-1")
		if got := s.View.CountEndpoints(served.EndpointSlices); got != (view.EndpointCount{}) {
			t.Errorf("keys %q: of a slice that was removed, %+v are counted", keys, got)
		}
	}
}

// TestPublishingBeginsAndEnds: what a node says of its pods is shown by what its Service publishes now.
func TestPublishingBeginsAndEnds(t *testing.T) {
	s := syncedStore(t, storagetest.Options{})
	s.Services().Apply(wiretest.Service("svc", ""))
	s.EndpointSlices().Apply(wiretest.Slice("svc-1", "svc", "node-a1"))
	live := runs()
	live.Pods[podKey("0")] = facts.LivePod{Addresses: []netip.Addr{netip.MustParseAddr("10.9.0.0")}}
	s.SetLivePods("node-a1", live)
	for i, publishes := range []bool{false, true, false} {
		service := wiretest.ServiceOf("svc", "")
		service.Spec.PublishNotReadyAddresses, service.Generation = publishes, int64(i)
		s.Services().Apply(wiretest.Object(service))
		e := shownAs[*discoveryv1.EndpointSlice](t, s.History, served.EndpointSlices, "svc-1").Endpoints[0]
		if e.Addresses[0] != "10.9.0.0" || *e.Conditions.Ready != publishes {
			t.Errorf("step %d: shown is %s, ready %t", i, e.Addresses[0], *e.Conditions.Ready)
		}
	}
}

// TestDoubtsOfAPublishingService: a Service with publishNotReadyAddresses uses all its pods, as in Kubernetes, whatever
// is said of nodes and pods, but none that its node does not run.
func TestDoubtsOfAPublishingService(t *testing.T) {
	for name, doubt := range map[string]func(*storagetest.Node){
		"dead":        func(s *storagetest.Node) { s.SetDoubted(facts.Dead, nodeSet("node-a2")) },
		"silent":      func(s *storagetest.Node) { s.SetDoubted(facts.Silent, nodeSet("node-a2")) },
		"unanswering": func(s *storagetest.Node) { s.SetDoubted(facts.Unanswering, nodeSet("node-a2")) },
		"suspected": func(s *storagetest.Node) {
			live := runs("1=10.0.0.1")
			pod := live.Pods[podKey("1")]
			pod.Suspected = true
			live.Pods[podKey("1")] = pod
			s.SetLivePods("node-a2", live)
		},
		"down": func(s *storagetest.Node) { s.SetLivePods("node-a2", runs()) },
	} {
		for _, keys := range []string{"", `["zone"]`} {
			for _, published := range []bool{false, true} {
				s := syncedStore(t, storagetest.Options{})
				service := wiretest.ServiceOf("svc", keys)
				service.Spec.PublishNotReadyAddresses = published
				s.Services().Apply(wiretest.Object(service))
				s.EndpointSlices().Apply(wiretest.Slice("svc-1", "svc", "node-a1", "node-a2"))
				s.Endpoints().Replace([]*wire.Object{wiretest.Endpoints("svc", "node-a1", "node-a2")})
				doubt(s)
				want := "10.0.0.0"
				if published && name != "down" {
					want += " 10.0.0.1"
				}
				if slice, legacy := shownAddresses(t, s); slice != want || legacy != want {
					t.Errorf("%s, keys %q, published %v: shown are %q and %q, want %q", name, keys, published, slice,
						legacy, want)
				}
			}
		}
	}
}

// TestDoubtsOfALocalService: traffic to a Service with the policy Local has only this node's pods, so that a suspected
// one of them stays. That changes nothing for those of other nodes.
func TestDoubtsOfALocalService(t *testing.T) {
	for _, local := range []bool{false, true} {
		s := syncedStore(t, storagetest.Options{})
		service := wiretest.ServiceOf("svc", `["zone"]`)
		if local {
			policy := corev1.ServiceInternalTrafficPolicyLocal
			service.Spec.InternalTrafficPolicy = &policy
		}
		s.Services().Apply(wiretest.Object(service))
		s.EndpointSlices().Apply(wiretest.Slice("svc-1", "svc", "node-a1", "node-a1", "node-a2"))
		s.Endpoints().Replace([]*wire.Object{wiretest.Endpoints("svc", "node-a1", "node-a1", "node-a2")})
		live := runs("0=10.0.0.0", "1=10.0.0.1")
		pod := live.Pods[podKey("1")]
		pod.Suspected = true
		live.Pods[podKey("1")] = pod
		s.SetLivePods("node-a1", live)
		s.SetDoubted(facts.Silent, nodeSet("node-a2"))
		s.SetDoubted(facts.Unanswering, nodeSet("node-a1")) // a node answers itself
		want := "10.0.0.0"
		if local {
			want += " 10.0.0.1"
		}
		if slice, legacy := shownAddresses(t, s); slice != want || legacy != want {
			t.Errorf("local %v: shown are %q and %q, want %q", local, slice, legacy, want)
		}
	}
}

// TestExplainLivePods: explain shows what is shown, and says whose word it is.
func TestExplainLivePods(t *testing.T) {
	s := syncedStore(t, storagetest.Options{})
	s.Services().Apply(wiretest.Service("svc", `["zone"]`))
	s.EndpointSlices().Apply(wiretest.Slice("svc-1", "svc", "node-a1", "node-a1", "node-a1", "node-a2"))
	s.SetLivePods("node-a1", runs("0=10.9.0.0", "2=10.9.0.2!"))
	e := explain(t, s, "svc", "")
	if e.Kept != 3 || e.Hidden != 1 || len(e.Endpoints) != 4 {
		t.Fatalf("got %+v", e)
	}
	const (
		asOf     = "as of 2026-01-02T03:04:05Z, its container runtime says so"
		replaced = "node node-a1 has zone=a too; its address and readiness are those with which "
	)
	for i, want := range []struct {
		address     string
		ready, kept bool
		reason      string
	}{
		{"10.9.0.0", true, true, replaced + "node node-a1 runs its pod (" + asOf + ")"},
		{"10.0.0.1", true, false, "node node-a1 does not run its pod (" + asOf + ")"},
		{"10.9.0.2", false, true, replaced + "node node-a1 runs its pod (" + asOf + ")"},
		{"10.0.0.3", true, true, "node node-a2 has zone=a too"},
	} {
		got := e.Endpoints[i]
		if got.Addresses[0] != want.address || got.Ready != want.ready || got.Kept != want.kept ||
			got.Reason != want.reason {
			t.Errorf("endpoint %d is %+v, want %+v", i, got, want)
		}
	}
	if why, err := s.View.Altered(served.EndpointSlices, inNS("svc-1")); err != nil || why == "" {
		t.Errorf("altered: %q, %v", why, err)
	}
	s.SetLivePods("node-a2", runs("3=10.9.0.3"))
	const other = "node node-a2 has zone=a too; its address and readiness are those with which node node-a2 runs its " +
		"pod (as of 2026-01-02T03:04:05Z, that node itself says so)"
	if got := explain(t, s, "svc", "").Endpoints[3].Reason; got != other {
		t.Errorf("of another node's pod: %q, want %q", got, other)
	}
}

// TestPodsOn: what the upstream says of the pods of a node, and where the node says otherwise.
func TestPodsOn(t *testing.T) {
	s := syncedStore(t, storagetest.Options{})
	s.Services().Apply(wiretest.Service("svc", ""))
	s.EndpointSlices().Apply(wiretest.Slice("svc-1", "svc", "node-a1", "node-a1", "node-a2", "node-a1!"))
	s.EndpointSlices().Apply(wiretest.Slice("svc-2", "svc", "", "", "", "node-a1!")) // of another family
	s.SetLivePods("node-a1", runs("0=10.9.0.0", "1=10.0.0.1"))
	got := s.PodsOn("node-a1")["node-a1"]
	want := map[facts.PodKey]facts.KnownPod{
		podKey("0"): {Serving: true, Disputed: true},
		podKey("1"): {Serving: true},
		podKey("3"): {Idle: []string{"svc"}, Disputed: true},
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got := s.PodsOn("elsewhere")["elsewhere"]; len(got) > 0 {
		t.Errorf("on a node that is not known: %v", got)
	}
}

// TestHeldByOthers: no neighbour may claim the address of a node, of a pod that this node runs, or of another
// neighbour's pod, nor that of a Service or of an API server.
func TestHeldByOthers(t *testing.T) {
	s := syncedStore(t, storagetest.Options{})
	s.NodeLabels().Replace([]*wire.Object{
		wiretest.Node("node-a1", "a"), wiretest.Node("node-a2", "a"), wiretest.Node("dead", "a"),
		wiretest.Node("silent", "a"),
	})
	own := wiretest.NodeOf("node-a1", "a")
	own.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.168.0.1"}}
	s.OwnNode().Replace([]*wire.Object{wiretest.Object(own)})
	s.Services().Apply(wiretest.Service("svc", `["zone"]`))
	s.EndpointSlices().Apply(
		wiretest.Slice("svc-1", "svc", "node-a1", "node-a2", "", "node-a2", "dead", "silent", "node-a2"))
	service := wiretest.ServiceOf("other", "")
	service.Spec.ClusterIP, service.Spec.ClusterIPs = "10.96.0.1", []string{"10.96.0.1"}
	s.Services().Apply(wiretest.Object(service))
	s.Services().Apply(wiretest.Service("default/kubernetes", ""))
	servers := wiretest.SliceOf("default/kubernetes", "kubernetes", "")
	servers.Endpoints[0].Addresses = []string{"172.16.0.1"}
	s.EndpointSlices().Apply(wiretest.Object(servers))
	s.UpdateNotes(func(n *facts.Notes) {
		n.InternalIPs = map[string][]netip.Addr{"node-a2": {netip.MustParseAddr("192.168.0.2")}}
	})
	s.SetDoubted(facts.Dead, nodeSet("dead"))
	s.SetDoubted(facts.Silent, nodeSet("silent"))
	s.SetLivePods("node-a1", runs("0=10.9.0.0"))
	s.SetLivePods("node-a2", runs("1=10.0.0.1", "3=10.9.0.3"))
	wants := map[string]bool{
		"192.168.0.1": true, "192.168.0.2": true, "10.9.0.0": true, "10.0.0.1": true, "10.96.0.1": true,
		"172.16.0.1": true, "10.7.7.7": false,
		"10.0.0.2": false, // of an endpoint that is on no node
		"10.0.0.3": false, // of a pod that has another address now, as its node says
		"10.0.0.4": false, // on a node that is dead
		"10.0.0.5": false, // on a node that is silent
		"10.0.0.6": false, // of a pod that its node does not run
	}
	var claimed []netip.Addr
	for address := range wants {
		claimed = append(claimed, netip.MustParseAddr(address))
	}
	held := s.HeldByOthers(map[string]*facts.LivePods{
		"node-a3": {Pods: map[facts.PodKey]facts.LivePod{podKey("3"): {Addresses: claimed}}},
		"node-a2": {Pods: map[facts.PodKey]facts.LivePod{
			podKey("1"): {Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.1")}},
		}},
	})
	for _, address := range claimed {
		if _, isHeld := held["node-a3"][address]; isHeld != wants[address.String()] {
			t.Errorf("%s is held by others: %v", address, isHeld)
		}
	}
	if len(held["node-a2"]) > 0 {
		t.Errorf("node-a2 reports its own pod, whose address others hold: %v", held["node-a2"])
	}
}
