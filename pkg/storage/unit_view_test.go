package storage

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/application-grid/application-grid/pkg/wire"
)

func viewFrom(t *testing.T, s *Store, unit string) *Store {
	t.Helper()
	view, release, err := s.ViewFrom(unit)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(release)
	return view
}

// TestUnitView: what a named unit sees, and that one which is empty or which nobody is of sees nothing.
func TestUnitView(t *testing.T) {
	s := syncedStore(t, Options{})
	for name, keys := range map[string]string{"free": "", "strict": `["zone"]`, "ordered": `["rack","zone","*"]`, "broken": `zone`} {
		s.Services().Apply(testService(t, name, keys))
		s.EndpointSlices().Apply(testSlice(t, name+"-1", name, "node-a2", "node-b1", "node-b2"))
	}
	expect := func(unit, service, want string) {
		t.Helper()
		if got := nodesShown(t, viewFrom(t, s, unit), service+"-1"); got != want {
			t.Errorf("unit %q, %s: got %q, want %q", unit, service, got, want)
		}
	}
	all := "node-a2,node-b1,node-b2"
	for _, unit := range []string{"a", "b", "c", ""} {
		want := map[string]string{"a": "node-a2", "b": "node-b1,node-b2"}[unit]
		expect(unit, "free", all)
		expect(unit, "strict", want)
		expect(unit, "ordered", want)
		expect(unit, "broken", "")
	}
	if got := nodesShown(t, s, "strict-1"); got != "node-a2" {
		t.Errorf("this node sees %q", got)
	}
	// A node that moves into a unit that nobody was of, which is then like any other.
	s.NodeLabels().Apply(testNode(t, "node-b2", "c"))
	expect("c", "strict", "node-b2")
	expect("b", "strict", "node-b1")
	s.NodeLabels().Apply(testNode(t, "node-a1", "d"))
	expect("d", "strict", "")
	expect("d", "ordered", all)
	s.NodeLabels().Remove("", "node-a1")
	expect("d", "ordered", "")
	s.SetDeadNodes(map[string]struct{}{"node-b1": {}})
	expect("b", "strict", "")
	expect("b", "free", "node-a2,node-b2")
	s.SetDeadNodes(nil)
	expect("b", "strict", "node-b1")
}

// TestUnitViewIsWatched: every change of the upstream's reaches it, with revisions of its own.
func TestUnitViewIsWatched(t *testing.T) {
	s := syncedStore(t, Options{})
	view := viewFrom(t, s, "b")
	if view.Revision() <= s.Revision() {
		t.Error("a client of this node's view could resume in the other one")
	}
	cursor, err := view.Watch(EndpointSlices, view.Revision())
	if err != nil {
		t.Fatal(err)
	}
	_, changed, err := cursor.Next(10)
	if err != nil {
		t.Fatal(err)
	}
	s.Services().Apply(testService(t, "svc", `["zone"]`))
	s.EndpointSlices().Apply(testSlice(t, "svc-1", "svc", "node-a1", "node-b1"))
	select {
	case <-changed:
	default:
		t.Error("nobody is woken")
	}
	s.EndpointSlices().Remove("ns", "svc-1")
	events, _, err := cursor.Next(10)
	if err != nil || len(events) != 2 {
		t.Errorf("got %v %v", events, err)
	}
}

// TestUnitViewsAreBounded in number, and those that nobody asks go.
func TestUnitViewsAreBounded(t *testing.T) {
	now := time.Unix(1e9, 0)
	s := syncedStore(t, Options{Clock: func() time.Time { return now }})
	var releases []func()
	for i := range maxUnitViews {
		_, release, err := s.ViewFrom(fmt.Sprint(i))
		if err != nil {
			t.Fatal(err)
		}
		releases = append(releases, release)
	}
	if _, _, err := s.ViewFrom("one more"); err != ErrTooManyViews { //nolint:errorlint // that very value
		t.Errorf("got %v", err)
	}
	again := viewFrom(t, s, "0")
	before := again.Revision()
	releases[1]()
	now = now.Add(unitViewIdle + time.Second)
	viewFrom(t, s, "one more")
	if len(s.views) != maxUnitViews || s.views["1"] != nil || s.views["0"].store != again {
		t.Errorf("got %v", s.views)
	}
	// The clock stands still: nobody of the view that went is to resume in the one that comes.
	releases[2]()
	now = now.Add(unitViewIdle + time.Second)
	if view := viewFrom(t, s, "1"); view.Revision() <= before {
		t.Errorf("it begins at %d, the one before began at %d", view.Revision(), before)
	}
}

// TestUnitViewConverges: whenever it was made and whatever the order, it shows what one made last shows, and what
// a node of that unit sees.
func TestUnitViewConverges(t *testing.T) {
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 3))
	pick := func(from ...string) string { return from[random.IntN(len(from))] }
	nodes := []string{"node-a2", "node-b1", "node-b2"}
	for round := range 100 {
		s := newStore(nil, 0)
		views := map[string]*Store{"a": viewFrom(t, s, "a"), "b": viewFrom(t, s, "b")}
		step := func() {
			switch random.IntN(6) {
			case 0:
				s.NodeLabels().Apply(testNode(t, pick(nodes...), pick("a", "b", "c")))
			case 1:
				s.NodeLabels().Remove("", pick(nodes...))
			case 2:
				s.Services().Apply(testService(t, pick("s", "t"), pick("", `["zone"]`, `["rack","zone"]`, `["zone","*"]`, `["zone","*"]`, `bad`)))
			case 3:
				s.Services().Remove("ns", pick("s", "t"))
			case 4:
				service := pick("s", "t")
				s.EndpointSlices().Apply(testSlice(t, service+pick("-1", "-2"), service, pick(nodes...), pick(nodes...)))
			case 5:
				s.SetDeadNodes(map[string]struct{}{pick(nodes...): {}})
			}
		}
		if random.IntN(2) == 0 {
			for range 10 {
				step()
			}
		}
		s.NodeLabels().Replace([]*wire.Object{testNode(t, "node-a2", "a"), testNode(t, "node-b1", "b")})
		s.Services().Replace(nil)
		s.EndpointSlices().Replace(nil)
		s.Node().Replace(nil)
		for range 40 {
			step()
		}
		for unit, view := range views {
			fresh := s.newUnitView(unit)
			for _, r := range servedHere {
				if got, want := shownTable(t, view, r), shownTable(t, fresh, r); !slices.Equal(got, want) {
					t.Fatalf("seed %d round %d unit %s: %s:\ngot  %q\nwant %q", seed, round, unit, r.Resource, got, want)
				}
			}
			// A node that carries that value of every key sees the same, if there is such a node.
			if !view.inhabited {
				continue
			}
			as := New(Options{NodeName: "node-there", KeepKubernetesEndpoint: true})
			as.NodeLabels().Replace(nil)
			for name, n := range s.nodes {
				if n.known {
					as.setNode(name, true, n.labels)
				}
			}
			as.setNode("node-there", true, map[string]string{"zone": unit, "rack": unit})
			as.Services().Replace(upstreamOf(s.serviceTable))
			var slicesOf []*wire.Object
			for _, b := range s.endpointslices.backends {
				slicesOf = append(slicesOf, b.upstream)
			}
			as.EndpointSlices().Replace(slicesOf)
			as.SetDeadNodes(s.dead)
			if got, want := shownTable(t, view, EndpointSlices), shownTable(t, as, EndpointSlices); !slices.Equal(got, want) {
				t.Fatalf("seed %d round %d unit %s: a node of the unit sees\n%q, the view is\n%q", seed, round, unit, want, got)
			}
		}
	}
}
