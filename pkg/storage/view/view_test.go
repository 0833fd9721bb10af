package view_test

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/application-grid/application-grid/internal/testkit/liveheap"
	"github.com/application-grid/application-grid/internal/testkit/storagetest"
	"github.com/application-grid/application-grid/internal/testkit/wiretest"
	"github.com/application-grid/application-grid/pkg/storage/facts"
	"github.com/application-grid/application-grid/pkg/storage/served"
	"github.com/application-grid/application-grid/pkg/storage/view"
	"github.com/application-grid/application-grid/pkg/storage/wire"
)

// TestNothingIsShownBeforeItIsComplete: slices without nodes and Services would leak or lie, in whatever order
// the three arrive.
func TestNothingIsShownBeforeItIsComplete(t *testing.T) {
	all := cloud{
		facts.InputNodes:          {wiretest.Node("node-a1", "a"), wiretest.Node("node-b1", "b")},
		facts.InputServices:       {wiretest.Service("svc", `["zone"]`)},
		facts.InputEndpointSlices: {wiretest.Slice("svc-1", "svc", "node-a1", "node-b1")},
	}
	permutations(slices.Collect(maps.Keys(all)), func(order []string) {
		s := newStore()
		s.Services().Apply(wiretest.Service("early", "")) // what comes singly before the first list is not shown
		for i, input := range order {
			what := fmt.Sprintf("%d steps of %v", i, order)
			expectReadable(t, what, s.History, served.EndpointSlices, served.ErrNotReady)
			if _, _, err := s.History.List(served.EndpointSlices, "", 0); !errors.Is(err, served.ErrNotReady) {
				t.Fatalf("listed after %s: %v", what, err)
			}
			changed, _ := s.History.Readable(served.EndpointSlices)
			s.Input(input).Replace(all[input])
			if i == len(order)-1 {
				expectWoken(t, input+" complete the view", changed, true)
			}
		}
		if got := nodesShown(t, s.History, "svc-1"); got != "node-a1" {
			t.Errorf("order %v shows %s", order, got)
		}
		if got := listOf(t, s.History, served.Services); len(got) != 1 || got[0].Name != "svc" {
			t.Errorf("order %v shows the Services %v", order, got)
		}
	})
}

// fiftyServices has a slice each, of which every tenth has an endpoint on node-b2, the others one on node-b1. What is
// returned is what watchers are told when those of node-b2 change.
func fiftyServices(s *storagetest.Node, keys string) (told []string) {
	for i := range 50 {
		name, node := fmt.Sprintf("svc-%d", i), "node-b1"
		if i%10 == 0 {
			node = "node-b2"
			told = append(told, "MODIFIED "+name)
		}
		s.Services().Apply(wiretest.Service(name, keys))
		s.EndpointSlices().Apply(wiretest.Slice(name, name, "node-a1", node))
	}
	return told
}

// TestChangesTouchOnlyTheirSlices: of many slices, only those with endpoints on a node that is relabelled, dies or
// lives again, or whose pods move, get a new revision, and they do get one. The same again changes nothing.
func TestChangesTouchOnlyTheirSlices(t *testing.T) {
	podsAt := func(address string) *facts.LivePods { // of all slices, on whichever node
		live := &facts.LivePods{Pods: map[facts.PodKey]facts.LivePod{}}
		for i := range 50 {
			key := facts.PodKey{Namespace: "ns", Name: fmt.Sprintf("svc-%d-1", i), UID: "uid-1"}
			live.Pods[key] = facts.LivePod{Addresses: []netip.Addr{netip.MustParseAddr(address)}, Serving: true}
		}
		return live
	}
	for keys, steps := range map[string][]func(*storagetest.Node){
		"": {
			func(s *storagetest.Node) { s.SetDoubted(facts.Dead, nodeSet("node-b2", "stranger")) },
			func(s *storagetest.Node) { s.SetDoubted(facts.Dead, nil) },
			func(s *storagetest.Node) { s.SetLivePods("node-b2", podsAt("10.0.0.9")) },
			func(s *storagetest.Node) { s.SetLivePods("node-b2", podsAt("10.0.0.1")) },
		},
		`["zone"]`: {
			func(s *storagetest.Node) { s.NodeLabels().Apply(wiretest.Node("node-b2", "a")) },
			func(s *storagetest.Node) {
				s.NodeLabels().Apply(wiretest.NodeWith("node-b2", map[string]string{"zone": "b", "other": "x"}))
			},
		},
	} {
		s := syncedStore(t, storagetest.Options{})
		want := fiftyServices(s, keys)
		cursor := watchNow(t, s.History)
		s.SetLivePods("node-b1", podsAt("10.0.0.1"))
		s.NodeLabels().Apply(wiretest.NodeWith("node-b1", map[string]string{"zone": "b", "other": "x"}))
		expectTold(t, "what is as it was, and a label that governs nothing", nil, cursor)
		for i, step := range steps {
			step(s)
			expectTold(t, fmt.Sprintf("keys %s, step %d", keys, i), want, cursor)
			_, woken := next(t, cursor)
			step(s)
			expectWoken(t, fmt.Sprintf("keys %s, step %d again", keys, i), woken, false)
		}
	}
}

// paddedService is one of some kilobytes, another one for every number.
func paddedService(i int) *wire.Object {
	return wiretest.Object(&corev1.Service{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: "svc",
		Annotations: map[string]string{"pad": strings.Repeat("x", 5000), "i": strconv.Itoa(i)},
	}})
}

// TestTheLogIsBoundedInBytes: large objects must not make a long log a large one. What counts is what the process holds
// on to, so the heap is measured; the figure of the metrics must not say less than that.
func TestTheLogIsBoundedInBytes(t *testing.T) {
	const most = 100 << 10
	var s *storagetest.Node
	held := 0
	for threads := -1; threads != liveheap.Threads(); { // the runtime keeps 5 kB on the heap for each
		threads = liveheap.Threads()
		s = syncedStore(t, storagetest.Options{LogBytes: most})
		s.Services().Apply(paddedService(-1))
		before := liveheap.Size()
		for i := range 500 {
			s.Services().Apply(paddedService(i))
		}
		held = liveheap.Size() - before
	}
	stats := statsOf(t, s, served.Services)
	if held > most+20000 {
		t.Errorf("the log holds on to %d bytes of the heap, its bound is %d", held, most)
	}
	if stats.LogBytes > most+6000 || stats.LogBytes < most-6000 {
		t.Errorf("the log is said to hold on to %d bytes, its bound is %d", stats.LogBytes, most)
	}
	if stats.LogBytes < held*9/10 {
		t.Errorf("the log is said to hold on to %d bytes, and %d of the heap are held", stats.LogBytes, held)
	}
	// An event costs what it replaced, of some 5,000 bytes.
	if stats.LogLength < 15 || stats.LogLength > 20 {
		t.Errorf("%d events in the log", stats.LogLength)
	}
	runtime.KeepAlive(s)
}

// TestTheMemoryOfAService: a node holds every Service of the cluster, behind a hub too.
func TestTheMemoryOfAService(t *testing.T) {
	const services, most = 5000, 1250
	s := syncedStore(t, storagetest.Options{})
	before := liveheap.Size()
	for i := range services {
		service := wiretest.Object(&corev1.Service{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "ns", Name: fmt.Sprintf("svc-%05d", i), CreationTimestamp: metav1.Unix(1_700_000_000, 0),
				UID:         types.UID(fmt.Sprintf("00000000-0000-0000-0000-%012d", i)),
				Annotations: map[string]string{"topologyKeys": `["zone1"]`},
			},
			Spec: corev1.ServiceSpec{
				Ports: []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}},
				Type:  corev1.ServiceTypeClusterIP, ClusterIP: "10.96.100.100", ClusterIPs: []string{"10.96.100.100"},
				IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol}, SessionAffinity: corev1.ServiceAffinityNone,
			},
		})
		// As it comes from the upstream.
		parsed, err := wire.ParseObject(wire.AppendObject(nil, service.Meta, service.Body, uint64(1000+i)))
		if err != nil {
			t.Fatal(err)
		}
		s.Services().Apply(parsed)
	}
	held := (liveheap.Size() - before) / services
	t.Logf("%d bytes of the heap a Service", held)
	if held > most {
		t.Errorf("a Service takes %d bytes of the heap, want %d at most", held, most)
	}
	runtime.KeepAlive(s)
}

// TestNothingIsCountedThatIsGone: the indexes of package facts and the view itself have tests of their own.
func TestNothingIsCountedThatIsGone(t *testing.T) {
	s := syncedStore(t, storagetest.Options{})
	for round := range 3 {
		for i := range 20 {
			s.Services().Apply(wiretest.Service(fmt.Sprintf("svc-%d", i), `["zone","region"]`))
			s.EndpointSlices().Apply(wiretest.Slice(fmt.Sprintf("s-%d", i), fmt.Sprintf("svc-%d", (i+round)%20),
				"node-a1", fmt.Sprintf("stray-%d", i+round), "node-b1"))
		}
	}
	if c := s.View.CountEndpoints(served.EndpointSlices); c.Kept != 20 || c.Hidden != 40 {
		t.Errorf("counted: %+v", c)
	}
	s.SetDoubted(facts.Dead, nodeSet("node-b1", "stray-3"))
	s.EndpointSlices().Replace(nil)
	s.Services().Replace(nil)
	s.NodeLabels().Replace(nil)
	if c := s.View.CountEndpoints(served.EndpointSlices); c != (view.EndpointCount{}) {
		t.Errorf("counted: %+v", c)
	}
	for _, stats := range s.History.Stats() {
		if stats.Objects != 0 {
			t.Errorf("%d %s are shown", stats.Objects, stats.Resource.Resource)
		}
	}
	if n := s.NodeCount(); n != 0 {
		t.Errorf("%d nodes are known", n)
	}
	if n := view.Held(s.View); n != 0 {
		t.Errorf("the view holds %d entries", n)
	}
}

// TestStepThatPanics half-way: what it has changed is shown as what the facts have then.
func TestStepThatPanics(t *testing.T) {
	armed, broken := false, false
	s := syncedStore(t, storagetest.Options{Broken: func(error) { broken = true }, Panics: func() bool {
		now := armed
		armed = false
		return now
	}})
	s.Services().Replace([]*wire.Object{wiretest.Service("a", "")})
	armed = true // reading the keys, which do not parse, is where the step panics
	s.Services().Apply(wiretest.Service("b", "no keys"))
	shown := 0
	for range s.History.Objects(served.Services) {
		shown++
	}
	if shown != 2 || !broken {
		t.Errorf("%d of 2 Services are shown, and a step has panicked: %v", shown, broken)
	}
}

// TestFallbackInBothKinds: a Service without endpoints for its first key shows those of its second, in a slice and in
// Endpoints, of which it has as many.
func TestFallbackInBothKinds(t *testing.T) {
	s := syncedStore(t, storagetest.Options{})
	s.Services().Replace([]*wire.Object{wiretest.Service("web", `["kubernetes.io/hostname","zone"]`)})
	s.EndpointSlices().Replace([]*wire.Object{wiretest.Slice("web", "web", "node-a2", "node-b1")})
	s.Endpoints().Replace([]*wire.Object{wiretest.Endpoints("web", "node-a2", "node-b1")})
	if got := addressesShown(t, s, "web"); got != "node-a2" {
		t.Errorf("Endpoints show %q", got)
	}
}
