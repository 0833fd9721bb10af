package storage

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/application-grid/application-grid/pkg/wire"
	"github.com/application-grid/application-grid/pkg/wire/wiretest"
)

// cloud is what the upstream says, by input.
type cloud map[string][]*wire.Object

// fill gives a Store all of it, in an order of inputs.
func (c cloud) fill(s *Store, order []string) {
	for _, name := range order {
		s.inputs[name].Replace(c[name])
	}
}

// inputsOf are those that a Store needs here.
var inputsOf = []string{InputNodes, InputNode, InputServices, InputEndpointSlices}

func smallCloud(tb testing.TB) cloud {
	tb.Helper()
	return cloud{
		InputNodes: {testNode(tb, "node-a1", "a"), testNode(tb, "node-a2", "a"), testNode(tb, "node-b1", "b")},
		InputNode:  {testNode(tb, "node-a1", "a")},
		InputServices: {
			testService(tb, "free", ""), testService(tb, "ordered", `["zone","*"]`), testService(tb, "strict", `["zone"]`),
		},
		InputEndpointSlices: {
			testSlice(tb, "free-1", "free", "node-a1", "node-b1"), testSlice(tb, "ordered-1", "ordered", "node-a2", "node-b1"),
			testSlice(tb, "strict-1", "strict", "node-a1", "node-a2", "node-b1"), testSlice(tb, "strict-2", "strict", "node-b1"),
		},
	}
}

func newStore(state *State, minRevision uint64) *Store {
	return New(Options{NodeName: "node-a1", KeepKubernetesEndpoint: true, State: state, MinRevision: minRevision})
}

// restored is a Store that serves what another one served.
func restored(tb testing.TB, before *Store) *Store {
	tb.Helper()
	state, err := before.State(time.Unix(1, 0), true)
	if err != nil {
		tb.Fatal(err)
	}
	s := newStore(state, before.Revision()+1)
	if !s.Restore() {
		tb.Fatal("not restored")
	}
	if s.Restore() {
		tb.Fatal("restored twice")
	}
	return s
}

// table is what a Store shows of a resource, without revisions.
func shownTable(tb testing.TB, s *Store, r *Resource) []string {
	tb.Helper()
	objects, _, err := s.List(r, "")
	if err != nil {
		tb.Fatalf("%s: %v", r.Resource, err)
	}
	var shown []string
	for _, o := range objects {
		shown = append(shown, fmt.Sprintf("%s %s %x %x", o.Name(), o.meta.UID, o.meta.Meta, o.body))
	}
	return shown
}

var servedHere = []*Resource{Services, EndpointSlices, Nodes}

func expectSame(tb testing.TB, what string, got, want *Store) {
	tb.Helper()
	for _, r := range servedHere {
		if g, w := shownTable(tb, got, r), shownTable(tb, want, r); !slices.Equal(g, w) {
			tb.Fatalf("%s: %s:\ngot  %q\nwant %q", what, r.Resource, g, w)
		}
	}
}

func TestStateBeforeItIsKnown(t *testing.T) {
	s := newStore(nil, 0)
	if _, err := s.State(time.Now(), false); err != ErrNotReady { //nolint:errorlint // that very value
		t.Errorf("got %v", err)
	}
	if s.Restore() {
		t.Error("restored from nothing")
	}
}

func TestRestoredShowsTheSame(t *testing.T) {
	before := newStore(nil, 0)
	smallCloud(t).fill(before, inputsOf)
	after := restored(t, before)
	expectSame(t, "restored", after, before)
	if asOf, ok := after.Restored(); !ok || !asOf.Equal(time.Unix(1, 0)) {
		t.Errorf("got %v %v", asOf, ok)
	}
	select {
	case <-after.Live():
		t.Error("what is restored is not live")
	default:
	}
	if _, err := after.State(time.Now(), false); err == nil {
		t.Error("a restored state would be saved as if it were confirmed")
	}
	if !after.NodeKnown() {
		t.Error("this node is not known")
	}
	if _, err := after.Watch(EndpointSlices, before.Revision()); err != ErrExpired { //nolint:errorlint // that very value
		t.Errorf("a client of the process before got %v", err)
	}
}

// TestReturnOfTheUpstream: whatever the order in which the upstream's state comes, clients see nothing of it
// until it is complete, and then the differences only.
func TestReturnOfTheUpstream(t *testing.T) {
	before := newStore(nil, 0)
	smallCloud(t).fill(before, inputsOf)

	now := smallCloud(t)
	// This node moved to the other unit, whose endpoints are not in the snapshot.
	now[InputNodes] = []*wire.Object{testNode(t, "node-a1", "b"), testNode(t, "node-a2", "a"), testNode(t, "node-b1", "b")}
	now[InputServices] = append(now[InputServices][:2:2], testService(t, "strict", `["zone"]`), testService(t, "young", ""))
	now[InputEndpointSlices] = slices.Delete(now[InputEndpointSlices], 3, 4)
	want := newStore(nil, 0)
	now.fill(want, inputsOf)

	permutations(inputsOf, func(order []string) {
		s := restored(t, before)
		served := s.Revision()
		cursors := map[*Resource]*Cursor{}
		for _, r := range servedHere {
			cursor, err := s.Watch(r, served)
			if err != nil {
				t.Fatal(err)
			}
			cursors[r] = cursor
		}
		for i, name := range order {
			if s.Revision() != served {
				t.Fatalf("%v: something is told after %d inputs", order, i)
			}
			s.inputs[name].Replace(now[name])
			if i < len(order)-1 {
				// A gateway that has lost its API server, before or after it brought the Services.
				s.inputs[InputServices].SetAbsent()
			}
		}
		expectSame(t, fmt.Sprint(order), s, want)
		if _, stillRestored := s.Restored(); stillRestored {
			t.Errorf("%v: still restored", order)
		}
		<-s.Live()
		var told []string
		for _, r := range servedHere {
			events, _, err := cursors[r].Next(1000)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range events {
				told = append(told, fmt.Sprint(e.Type, " ", e.Object.Name()))
			}
		}
		slices.Sort(told)
		differences := []string{"ADDED young", "DELETED strict-2", "MODIFIED ordered-1", "MODIFIED strict-1"}
		if !slices.Equal(told, differences) {
			t.Fatalf("%v: told %q, the differences are %q", order, told, differences)
		}
		// From here on it is a Store like any other.
		s.Services().Remove("ns", "young")
		if got, _, err := cursors[Services].Next(10); err != nil || len(got) != 1 || got[0].Type != watch.Deleted {
			t.Errorf("got %v %v", got, err)
		}
	})
}

func permutations(of []string, visit func([]string)) {
	if len(of) == 0 {
		visit(nil)
		return
	}
	for i, first := range of {
		rest := slices.Delete(slices.Clone(of), i, i+1)
		permutations(rest, func(order []string) { visit(append([]string{first}, order...)) })
	}
}

// TestStateIsNotServedIfTheUpstreamIsThere in time.
func TestStateIsNotServedIfTheUpstreamIsThere(t *testing.T) {
	before := newStore(nil, 0)
	smallCloud(t).fill(before, inputsOf)
	state, err := before.State(time.Now(), false)
	if err != nil {
		t.Fatal(err)
	}
	s := newStore(state, 0)
	now := smallCloud(t)
	now[InputServices] = now[InputServices][:1]
	now.fill(s, inputsOf)
	if s.Restore() {
		t.Error("restored over the truth")
	}
	want := newStore(nil, 0)
	now.fill(want, inputsOf)
	expectSame(t, "synced", s, want)
}

// TestLegacyEndpointsAreRestored if somebody asked for them, and then awaited with the rest.
func TestLegacyEndpointsAreRestored(t *testing.T) {
	legacy := func(addresses ...string) *wire.Object {
		e := &corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "free"}}
		for _, ip := range addresses {
			e.Subsets = append(e.Subsets, corev1.EndpointSubset{Addresses: []corev1.EndpointAddress{{IP: ip}}})
		}
		return wiretest.Object(e)
	}
	before := newStore(nil, 0)
	smallCloud(t).fill(before, inputsOf)
	before.Endpoints().Replace([]*wire.Object{legacy("10.0.0.1")})
	without, err := before.State(time.Now(), false)
	if err != nil || without.Has(InputEndpoints) {
		t.Errorf("nobody asked for them: %v", err)
	}
	s := restored(t, before)
	if objects, _, err := s.List(Endpoints, ""); err != nil || len(objects) != 1 {
		t.Fatalf("got %v %v", objects, err)
	}
	smallCloud(t).fill(s, inputsOf)
	if _, stillRestored := s.Restored(); !stillRestored {
		t.Fatal("the Endpoints were not awaited")
	}
	s.Endpoints().Replace([]*wire.Object{legacy("10.0.0.2")})
	if _, stillRestored := s.Restored(); stillRestored {
		t.Fatal("still restored")
	}
	// An upstream that has none any more.
	s = restored(t, before)
	smallCloud(t).fill(s, inputsOf)
	s.Endpoints().SetAbsent()
	if _, err := s.Readable(Endpoints); err != ErrAbsent { //nolint:errorlint // that very value
		t.Errorf("got %v", err)
	}
}

// TestKubernetesEndpointIsRestored: it is rewritten as before, by the annotations that were known.
func TestKubernetesEndpointIsRestored(t *testing.T) {
	slice := wiretest.Object(&discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kubernetes", Labels: map[string]string{discoveryv1.LabelServiceName: "kubernetes"}},
		Endpoints:  []discoveryv1.Endpoint{{Addresses: []string{"192.0.2.1"}}},
	})
	before := New(Options{NodeName: "node-a1"})
	smallCloud(t).fill(before, []string{InputNodes, InputNode})
	before.Services().Replace([]*wire.Object{wiretest.Object(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kubernetes"}})})
	before.EndpointSlices().Replace([]*wire.Object{slice})
	before.KubernetesEndpoints().Replace([]*wire.Object{wiretest.Object(&corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{
		Namespace: "default", Name: "kubernetes",
		Annotations: map[string]string{"superedge.io/local-endpoint": "169.254.0.1", "superedge.io/local-port": "51003"},
	}})})
	state, err := before.State(time.Now(), false)
	if err != nil {
		t.Fatal(err)
	}
	after := New(Options{NodeName: "node-a1", State: state})
	after.Restore()
	if got, want := shownTable(t, after, EndpointSlices), shownTable(t, before, EndpointSlices); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestRandomRestart: whatever happened before and while the process was away, after its return the Store shows
// what one shows that was there all the time, and told of every object once at most.
func TestRandomRestart(t *testing.T) {
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 1))
	zones := []string{"a", "b", "c"}
	nodes := []string{"node-a1", "node-a2", "node-b1", "node-b2", "node-c1"}
	keys := []string{"", `["zone"]`, `["host","zone"]`, `["zone","*"]`, `nonsense`}
	pick := func(from []string) string { return from[random.IntN(len(from))] }
	generate := func() cloud {
		c := cloud{InputNode: {testNode(t, "node-a1", pick(zones))}}
		for _, name := range nodes {
			if random.IntN(5) > 0 {
				c[InputNodes] = append(c[InputNodes], testNode(t, name, pick(zones)))
			}
		}
		for i := range 6 {
			name := fmt.Sprint("s", i)
			if random.IntN(5) > 0 {
				c[InputServices] = append(c[InputServices], testService(t, name, pick(keys)))
			}
			for j := range random.IntN(3) {
				var on []string
				for range random.IntN(4) {
					on = append(on, pick(nodes))
				}
				c[InputEndpointSlices] = append(c[InputEndpointSlices], testSlice(t, fmt.Sprint(name, "-", j), name, on...))
			}
		}
		return c
	}
	for round := range 300 {
		before, now := generate(), generate()
		first := newStore(nil, 0)
		before.fill(first, inputsOf)
		s := restored(t, first)
		expectSame(t, fmt.Sprintf("seed %d round %d: restored", seed, round), s, first)
		start := s.Revision()
		order := slices.Clone(inputsOf)
		random.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
		now.fill(s, order)
		want := newStore(nil, 0)
		now.fill(want, inputsOf)
		expectSame(t, fmt.Sprintf("seed %d round %d", seed, round), s, want)
		for _, r := range servedHere {
			cursor, err := s.Watch(r, start)
			if err != nil {
				t.Fatal(err)
			}
			events, _, err := cursor.Next(10000)
			if err != nil {
				t.Fatal(err)
			}
			seen := map[types.NamespacedName]bool{}
			for _, e := range events {
				if name := nameOf(e.Object.meta); seen[name] {
					t.Fatalf("seed %d round %d: %s %s was told of twice", seed, round, r.Resource, name)
				} else {
					seen[name] = true
				}
			}
		}
	}
}
