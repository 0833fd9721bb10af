package view_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/application-grid/application-grid/internal/testkit/storagetest"
	"github.com/application-grid/application-grid/internal/testkit/wiretest"
	"github.com/application-grid/application-grid/pkg/storage/facts"
	"github.com/application-grid/application-grid/pkg/storage/wire"
)

// TestSilentNodes: endpoints on silent nodes are hidden, but never the last ready one that the viewer may see of a
// Service, over all its slices.
func TestSilentNodes(t *testing.T) {
	s := syncedStore(t, storagetest.Options{})
	s.Services().Replace([]*wire.Object{
		wiretest.Service("governed", `["zone"]`), wiretest.Service("open", ""), wiretest.Service("two", `["zone"]`),
		wiretest.Service("ordered", `["kubernetes.io/hostname","zone"]`),
	})
	s.EndpointSlices().Replace([]*wire.Object{
		wiretest.Slice("governed", "governed", "node-a1!", "node-a2", "node-b1"),
		wiretest.Slice("open", "open", "node-a2", "node-b1"),
		wiretest.Slice("two-1", "two", "node-a1", "node-b1"),
		wiretest.Slice("two-2", "two", "node-a2"),
		wiretest.Slice("ordered", "ordered", "node-a2", "node-b1"),
	})
	expect := func(what string, want map[string]string) {
		t.Helper()
		for name, nodes := range want {
			if got := nodesShown(t, s.History, name); got != nodes {
				t.Errorf("%s: slice %s shows %q, want %q", what, name, got, nodes)
			}
		}
	}
	all := map[string]string{
		"governed": "node-a1,node-a2", "open": "node-a2,node-b1", "two-1": "node-a1", "two-2": "node-a2",
		"ordered": "node-a2",
	}
	expect("none is silent", all)
	s.SetDoubted(facts.Silent, nodeSet("node-a2"))
	expect("node-a2 is silent", map[string]string{
		"governed": "node-a1,node-a2", "open": "node-b1", "two-1": "node-a1", "two-2": "", "ordered": "node-a2",
	})
	s.SetDoubted(facts.Silent, nodeSet("node-a2", "node-b1"))
	expect("all others are silent", map[string]string{
		"governed": "node-a1,node-a2", "open": "node-a2,node-b1", "two-1": "node-a1", "two-2": "", "ordered": "node-a2",
	})
	// The last other endpoint is no longer ready, then gone; both change what is shown of the other slice.
	s.EndpointSlices().Apply(wiretest.Slice("two-1", "two", "node-a1!", "node-b1"))
	expect("the other is not ready", map[string]string{"two-1": "node-a1", "two-2": "node-a2"})
	s.EndpointSlices().Apply(wiretest.Slice("two-1", "two", "node-a1", "node-b1"))
	expect("the other is ready again", map[string]string{"two-1": "node-a1", "two-2": ""})
	s.EndpointSlices().Remove("ns", "two-1")
	expect("the other is gone", map[string]string{"two-2": "node-a2"})
	s.EndpointSlices().Apply(wiretest.Slice("two-1", "two", "node-a1", "node-b1"))
	s.SetDoubted(facts.Dead, nodeSet("node-a2"))
	expect("dead is silent too", map[string]string{
		"governed": "node-a1,node-a2", "open": "node-a2,node-b1", "two-2": "", "ordered": "node-a2",
	})
	s.SetDoubted(facts.Dead, nil)
	s.SetDoubted(facts.Silent, nodeSet("node-a1", ""))
	expect("the node itself is never silent", all)
	s.SetDoubted(facts.Silent, nil)
	expect("none is silent", all)
}

// TestSilentAndUnanswering: of endpoints on a silent node and on one whose wrapper does not answer, both are hidden if
// another is ready, and only the first if none is.
func TestSilentAndUnanswering(t *testing.T) {
	s := syncedStore(t, storagetest.Options{})
	s.Services().Apply(wiretest.Service("svc", ""))
	s.SetDoubted(facts.Silent, nodeSet("node-a2"))
	s.SetDoubted(facts.Unanswering, nodeSet("node-b1"))
	for own, want := range map[string]string{"node-a1": "node-a1", "node-a1!": "node-a1,node-b1"} {
		s.EndpointSlices().Apply(wiretest.Slice("svc", "svc", own, "node-a2", "node-b1"))
		if got := nodesShown(t, s.History, "svc"); got != want {
			t.Errorf("with an endpoint on %s, shown are %s", own, got)
		}
	}
}

// TestSilentNodesExplained: the explanation says why an endpoint is hidden, or is not although its node is silent.
func TestSilentNodesExplained(t *testing.T) {
	s := syncedStore(t, storagetest.Options{})
	s.Services().Replace([]*wire.Object{wiretest.Service("svc", `["zone"]`)})
	s.EndpointSlices().Replace([]*wire.Object{wiretest.Slice("svc", "svc", "node-a1", "node-a2")})
	s.SetDoubted(facts.Silent, nodeSet("node-a2"))
	reason := func() (kept bool, said string) {
		t.Helper()
		e, err := s.View.Explain(inNS("svc"), "node-a1", "")
		if err != nil {
			t.Fatal(err)
		}
		return e.Endpoints[1].Kept, e.Endpoints[1].Reason
	}
	if kept, said := reason(); kept || said != "node node-a2 does not answer its neighbours (site exchange)" {
		t.Errorf("kept %t: %s", kept, said)
	}
	s.EndpointSlices().Apply(wiretest.Slice("svc", "svc", "node-a1!", "node-a2"))
	if kept, said := reason(); !kept || !strings.Contains(said, "but no other endpoint is ready") {
		t.Errorf("kept %t: %s", kept, said)
	}
}

// TestSilentNodesAtRandom: whatever the order of events, what is shown is what a model says.
func TestSilentNodesAtRandom(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	nodes := []string{"node-a1", "node-a2", "node-b1"}
	services := map[string]string{"g": `["zone"]`, "o": ""}
	s := syncedStore(t, storagetest.Options{})
	for name, keys := range services {
		s.Services().Apply(wiretest.Service(name, keys))
	}
	slices := map[string][]string{}
	silent := map[string]struct{}{}
	visible := func(service, node string) bool { return service == "o" || node != "node-b1" }
	for step := range 2000 {
		service := []string{"g", "o"}[random.IntN(2)]
		name := fmt.Sprintf("%s-%d", service, random.IntN(2))
		switch random.IntN(4) {
		case 0:
			silent = map[string]struct{}{}
			for _, node := range nodes[1:] {
				if random.IntN(2) == 0 {
					silent[node] = struct{}{}
				}
			}
			s.SetDoubted(facts.Silent, silent)
		case 1:
			delete(slices, name)
			s.EndpointSlices().Remove("ns", name)
		default:
			var on []string
			for _, node := range nodes {
				switch random.IntN(3) {
				case 0:
					on = append(on, node)
				case 1:
					on = append(on, node+"!")
				}
			}
			slices[name] = on
			s.EndpointSlices().Apply(wiretest.Slice(name, service, on...))
		}
		for service := range services {
			spared := true
			for i := range 2 {
				for _, node := range slices[fmt.Sprintf("%s-%d", service, i)] {
					if _, quiet := silent[node]; !strings.HasSuffix(node, "!") && !quiet && visible(service, node) {
						spared = false
					}
				}
			}
			anyReady := false
			for i := range 2 {
				for _, node := range slices[fmt.Sprintf("%s-%d", service, i)] {
					anyReady = anyReady || (!strings.HasSuffix(node, "!") && visible(service, node))
				}
			}
			for i := range 2 {
				name := fmt.Sprintf("%s-%d", service, i)
				on, there := slices[name]
				if !there {
					continue
				}
				var want []string
				for _, node := range on {
					plain, unready := strings.CutSuffix(node, "!")
					_, quiet := silent[plain]
					if visible(service, plain) && (!quiet || unready || spared && anyReady) {
						want = append(want, plain)
					}
				}
				if got := nodesShown(t, s.History, name); got != strings.Join(want, ",") {
					t.Fatalf("step %d, %v silent: %s of %v shows %q, want %q", step, silent, name, slices, got, want)
				}
			}
		}
	}
}
