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
			for _, node := range nodes {
				if random.IntN(2) == 0 {
					silent[node] = struct{}{}
				}
			}
			doubts := []facts.Doubt{facts.Silent, facts.Dead} // which are the same here
			random.Shuffle(len(doubts), func(i, j int) { doubts[i], doubts[j] = doubts[j], doubts[i] })
			s.SetDoubted(doubts[0], silent)
			s.SetDoubted(doubts[1], nil)
			delete(silent, "node-a1") // the node itself is never silent
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
