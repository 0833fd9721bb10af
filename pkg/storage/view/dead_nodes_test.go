package view_test

import (
	"testing"

	"github.com/application-grid/application-grid/internal/testkit/storagetest"
	"github.com/application-grid/application-grid/internal/testkit/wiretest"
	"github.com/application-grid/application-grid/pkg/storage/facts"
	"github.com/application-grid/application-grid/pkg/storage/served"
	"github.com/application-grid/application-grid/pkg/storage/view"
	"github.com/application-grid/application-grid/pkg/storage/wire"
)

// TestHiddenEndpointsAreCounted, of governed Services and of others, in slices and in Endpoints. What is shown while
// nodes are dead is compared by the oracle of package serve.
func TestHiddenEndpointsAreCounted(t *testing.T) {
	s := syncedStore(t, storagetest.Options{})
	s.Services().Replace([]*wire.Object{wiretest.Service("governed", `["zone"]`), wiretest.Service("open", "")})
	on := []string{"node-a2", "node-a1", "node-b1"}
	s.EndpointSlices().Replace([]*wire.Object{
		wiretest.Slice("governed", "governed", on...), wiretest.Slice("open", "open", on...),
		wiretest.Slice("nobodys", "", on...),
	})
	on = append(on, "node-a2!")
	s.Endpoints().Replace([]*wire.Object{wiretest.Endpoints("governed", on...), wiretest.Endpoints("open", on...)})
	type count = view.EndpointCount
	for i, step := range []struct {
		dead           []string
		slices, legacy count
		shown          string
	}{
		{nil, count{8, 1}, count{7, 1}, "node-a2,node-a1,(node-a2)"},
		{[]string{"node-a2"}, count{6, 3}, count{5, 3}, "node-a1,(node-a2)"},
		{[]string{"node-a2", "node-b1"}, count{5, 4}, count{4, 4}, "node-a1,(node-a2)"},
		{[]string{"node-b1"}, count{7, 2}, count{6, 2}, "node-a2,node-a1,(node-a2)"},
		{[]string{"node-a1"}, count{8, 1}, count{7, 1}, "node-a2,node-a1,(node-a2)"},
		{nil, count{8, 1}, count{7, 1}, "node-a2,node-a1,(node-a2)"},
	} {
		s.SetDoubted(facts.Dead, nodeSet(step.dead...))
		for r, want := range map[*served.Resource]count{
			served.EndpointSlices: step.slices, served.Endpoints: step.legacy, served.Services: {}, served.Nodes: {},
		} {
			if got := s.View.CountEndpoints(r); got != want {
				t.Errorf("step %d, %v dead: %s are counted as %+v, want %+v", i, step.dead, r.Resource, got, want)
			}
		}
		if got := addressesShown(t, s, "governed"); got != step.shown {
			t.Errorf("step %d, %v dead: the governed Endpoints show %s, want %s", i, step.dead, got, step.shown)
		}
	}
}

// TestWhatIsNotHiddenIsNotKeptTwice: a slice of which nothing is hidden is the upstream's own memory.
func TestWhatIsNotHiddenIsNotKeptTwice(t *testing.T) {
	s := syncedStore(t, storagetest.Options{})
	s.Services().Apply(wiretest.Service("svc", ""))
	whole := wiretest.Slice("svc", "svc", "node-a1", "node-a2", "node-b1")
	s.EndpointSlices().Apply(whole)
	s.SetDoubted(facts.Dead, nodeSet("node-b2"))
	if o, err := s.History.Get(served.EndpointSlices, inNS("svc"), 0); err != nil || &o.Body[0] != &whole.Body[0] {
		t.Errorf("what has no dead endpoint is kept twice: %v", err)
	}
}
