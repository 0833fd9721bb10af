package facts

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/application-grid/application-grid/internal/testkit/wiretest"
	"github.com/application-grid/application-grid/pkg/storage/served"
	"github.com/application-grid/application-grid/pkg/storage/wire"
)

// left is what of the indexes is not empty.
func (f *Facts) left() string {
	held := slices.DeleteFunc(slices.Clone(f.inputs), func(in *Input) bool { return in.held == nil })
	if len(f.nodes.byName)+len(f.nodes.values)+
		len(f.services.byName)+len(f.services.byKey)+len(f.services.stale)+len(f.services.invalid)+
		len(f.slices.objects)+len(f.legacy.objects)+len(f.node.objects)+len(f.doubted[Dead])+len(held) == 0 {
		return ""
	}
	return fmt.Sprintf("nodes %v, their values %v, services %v, by key %v, to recount %v, "+
		"invalid %v, slices %v, Endpoints %v, dead %v, held back %v",
		f.nodes.byName, f.nodes.values, f.services.byName, f.services.byKey, f.services.stale,
		f.services.invalid, f.slices.objects, f.legacy.objects, f.doubted[Dead], held)
}

// churn lets nodes, Services and what lists endpoints come, change and name each other in turn.
func churn(f *Facts) {
	nodes, services, endpoints, legacy := f.Input(InputNodes), f.Input(InputServices), f.Input(InputEndpointSlices),
		f.Input(InputEndpoints)
	for round := range 3 {
		for i := range 20 {
			nodes.Apply(wiretest.Node(fmt.Sprint("node-", i), fmt.Sprint("zone-", round)))
			keys := []string{`["zone","region"]`, `["zone"]`, `["*"]`, "nonsense"}[(i+round)%4]
			services.Apply(wiretest.Service(fmt.Sprint("svc-", i), keys))
			on := []string{"node-a1", fmt.Sprint("stray-", i+round), "node-b1", "node-b1"}
			endpoints.Apply(wiretest.Slice(fmt.Sprint("s-", i), fmt.Sprint("svc-", (i+round)%20), on...))
			legacy.Apply(wiretest.Endpoints(fmt.Sprint("svc-", i), on...))
		}
	}
}

func TestIndexHoldsNothingThatIsGone(t *testing.T) {
	for what, empty := range map[string]func(*Facts){
		"endpoints first": func(f *Facts) {
			for _, name := range []string{InputEndpointSlices, InputEndpoints, InputServices, InputNodes} {
				f.Input(name).Replace(nil)
			}
		},
		"endpoints last": func(f *Facts) {
			for _, name := range []string{InputNodes, InputServices, InputEndpoints, InputEndpointSlices} {
				f.Input(name).Replace(nil)
			}
		},
		"one by one": func(f *Facts) {
			for i := range 20 {
				f.Input(InputServices).Remove("ns", fmt.Sprint("svc-", i))
				f.Input(InputNodes).Remove("", fmt.Sprint("node-", i))
				f.Input(InputEndpointSlices).Remove("ns", fmt.Sprint("s-", i))
				f.Input(InputEndpoints).Remove("ns", fmt.Sprint("svc-", i))
			}
		},
		"as one step": func(f *Facts) {
			f.Hold()
			for _, in := range f.inputs {
				in.Replace(nil)
			}
			f.Release()
		},
		"the legacy ones forgotten": func(f *Facts) {
			for _, name := range []string{InputEndpointSlices, InputServices, InputNodes} {
				f.Input(name).Replace(nil)
			}
			f.Forget(served.Endpoints)
		},
	} {
		f := New(Options{NodeName: "node-a1"})
		churn(f)
		f.SetDoubted(Dead, map[string]struct{}{"node-b1": {}, "stray-3": {}, "node-a1": {}, "": {}})
		churn(f)
		if f.NodeCount() != 20 || len(f.slices.objects) != 20 || len(f.legacy.objects) != 20 ||
			f.Input(InputServices).ObjectCount() != 20 {
			t.Fatalf("%s: this shows nothing: %s", what, f.left())
		}
		if len(f.doubted[Dead]) != 2 {
			t.Errorf("%s: dead are %v", what, f.doubted[Dead])
		}
		// An unknown node has nothing in the index but the objects with endpoints on it, each once.
		if n := f.nodes.byName["node-b1"]; n == nil || n.Known || len(n.Objects) != 40 {
			t.Errorf("%s: node-b1 is %+v", what, n)
		}
		f.SetDoubted(Dead, nil)
		empty(f)
		if left := f.left(); left != "" {
			t.Errorf("%s: left: %s", what, left)
		}
	}
}

// TestNothingIsHeldAfterAState was replaced by what the upstream says.
func TestNothingIsHeldAfterAState(t *testing.T) {
	state := &Snapshot{NodeName: "node-a1", AsOf: time.Unix(1, 0), Sections: []Section{
		{Input: InputNodes, Objects: []*wire.Object{wiretest.Node("node-a1", "a"), wiretest.Node("node-gone", "a")}},
		{Input: InputNode, Objects: []*wire.Object{wiretest.Node("node-a1", "a")}},
		{Input: InputServices, Objects: []*wire.Object{wiretest.Service("svc", `["zone"]`)}},
		{Input: InputEndpointSlices, Objects: []*wire.Object{wiretest.Slice("svc-1", "svc", "node-a1")}},
		{Input: InputEndpoints, Objects: []*wire.Object{wiretest.Endpoints("svc", "node-a1")}},
	}}
	f := New(Options{NodeName: "node-a1"})
	f.Restore(state)
	if f.Restored() != state || f.NodeCount() != 2 {
		t.Fatalf("restored %v, %d nodes", f.Restored(), f.NodeCount())
	}
	for _, in := range f.inputs {
		if in.name != InputEndpoints && in.name != InputKubernetesEndpoints {
			in.Replace(nil)
		}
	}
	if f.Restored() != nil {
		t.Error("the state is still held")
	}
	if left := f.left(); left != "" {
		t.Errorf("left: %s", left)
	}
	select {
	case <-f.Live():
	default:
		t.Error("not live")
	}
}

// TestKnownCountsWhatThereIs, in the facts or in a Snapshot: a list that has much less is not believed at once by who
// asks.
func TestKnownCountsWhatThereIs(t *testing.T) {
	f := New(Options{NodeName: "node-a1"})
	if n := f.Input(InputServices).ObjectCount(); n != 0 {
		t.Errorf("%d Services in the beginning", n)
	}
	f.Restore(&Snapshot{Sections: []Section{
		{Input: InputServices, Objects: []*wire.Object{wiretest.Service("a", ""), wiretest.Service("b", "")}},
		{Input: InputEndpointSlices, Objects: []*wire.Object{wiretest.Slice("a-1", "a")}},
	}})
	for name, want := range map[string]int{
		InputServices: 2, InputEndpointSlices: 1, InputNodes: 0, InputNode: 0, InputEndpoints: 0,
		InputKubernetesEndpoints: 0,
	} {
		if got := f.Input(name).ObjectCount(); got != want {
			t.Errorf("%s: %d, want %d", name, got, want)
		}
	}
}
