package view_test

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/application-grid/application-grid/internal/testkit/storagetest"
	"github.com/application-grid/application-grid/internal/testkit/wiretest"
	"github.com/application-grid/application-grid/pkg/storage/facts"
	"github.com/application-grid/application-grid/pkg/storage/history"
	"github.com/application-grid/application-grid/pkg/storage/served"
	"github.com/application-grid/application-grid/pkg/storage/view"
	"github.com/application-grid/application-grid/pkg/storage/wire"
)

// cloud is what the upstream says, by input.
type cloud map[string][]*wire.Object

// fill gives a Node all of it, in an order of inputs.
func (c cloud) fill(s *storagetest.Node, order []string) {
	for _, name := range order {
		s.Input(name).Replace(c[name])
	}
}

// inputsOf are those that a Node needs here.
var inputsOf = []string{facts.InputNodes, facts.InputNode, facts.InputServices, facts.InputEndpointSlices}

func smallCloud() cloud {
	return cloud{
		facts.InputNodes: {wiretest.Node("node-a1", "a"), wiretest.Node("node-a2", "a"), wiretest.Node("node-b1", "b")},
		facts.InputNode:  {wiretest.Node("node-a1", "a")},
		facts.InputServices: {
			wiretest.Service("free", ""), wiretest.Service("ordered", `["zone","*"]`),
			wiretest.Service("strict", `["zone"]`),
		},
		facts.InputEndpointSlices: {
			wiretest.Slice("free-1", "free", "node-a1", "node-b1"),
			wiretest.Slice("ordered-1", "ordered", "node-a2", "node-b1"),
			wiretest.Slice("strict-1", "strict", "node-a1", "node-a2", "node-b1"),
			wiretest.Slice("strict-2", "strict", "node-b1"),
		},
	}
}

func newStore() *storagetest.Node {
	return storagetest.New(storagetest.Options{NodeName: "node-a1", KeepKubernetesEndpoint: true})
}

// stateOf is what a Node would have on its disk.
func stateOf(tb testing.TB, s *storagetest.Node) *facts.Snapshot {
	tb.Helper()
	state, err := s.View.Snapshot(s.Name, time.Unix(1, 0))
	if err != nil {
		tb.Fatal(err)
	}
	return state
}

// restarted is the Node of a process that begins with a Snapshot, after one that gave out revisions up to the given
// one.
// As in package proxy the View is made of facts that are restored already.
func restarted(state *facts.Snapshot, after uint64) *storagetest.Node {
	f := facts.New(facts.Options{NodeName: "node-a1"})
	f.Restore(state)
	options := view.Options{
		Facts: f, Viewer: view.Node("node-a1"), KeepKubernetesEndpoint: true,
		History: history.Options{Revisions: history.NewRevisions(after)},
	}
	v := view.New(options)
	return &storagetest.Node{Facts: f, Name: "node-a1", View: v, History: v.History(), Sites: view.NewSites(options)}
}

// restartedLate is restarted with a View that is there before the Snapshot.
func restartedLate(state *facts.Snapshot, after uint64) *storagetest.Node {
	s := storagetest.New(storagetest.Options{NodeName: "node-a1", KeepKubernetesEndpoint: true, After: after})
	s.Restore(state)
	return s
}

// expectUnserved checks that nothing can be read.
func expectUnserved(tb testing.TB, s *storagetest.Node) {
	tb.Helper()
	for _, r := range served.All() {
		if _, err := s.History.Readable(r); !errors.Is(err, served.ErrNotReady) {
			tb.Errorf("%s: readable: %v", r.Resource, err)
		}
		if objects, _, err := s.History.List(r, "", 0); !errors.Is(err, served.ErrNotReady) {
			tb.Errorf("%s: listed %v, %v", r.Resource, objects, err)
		}
		if _, err := s.History.Watch(r, s.History.Revision()); !errors.Is(err, served.ErrNotReady) {
			tb.Errorf("%s: watched: %v", r.Resource, err)
		}
	}
	if s.View.ServedSnapshot() != nil {
		tb.Error("it says that it serves a Snapshot")
	}
}

// serve lets a Node serve the Snapshot that it began with.
func serve(tb testing.TB, s *storagetest.Node) {
	tb.Helper()
	expectUnserved(tb, s)
	if !s.View.AllowRestored() || s.View.ServedSnapshot() == nil || s.View.ServedSnapshot() != s.Restored() {
		tb.Fatal("not restored")
	}
	revision := s.History.Revision()
	if !s.View.AllowRestored() || s.History.Revision() != revision {
		tb.Fatal("restored twice")
	}
}

// restored is a Node that serves what another one served.
func restored(tb testing.TB, before *storagetest.Node) *storagetest.Node {
	tb.Helper()
	s := restarted(stateOf(tb, before), before.History.Revision()+1)
	serve(tb, s)
	return s
}

// content is what a client gets of an object, without its revision.
func content(o *history.Object) string {
	return fmt.Sprintf("%s %s %x %x", o.Name, o.UID, o.Meta, o.Body)
}

func listOf(tb testing.TB, h *history.History, r *served.Resource) []*history.Object {
	tb.Helper()
	objects, _, err := h.List(r, "", 0)
	if err != nil {
		tb.Fatalf("%s: %v", r.Resource, err)
	}
	return objects
}

// shownTable is what is shown of a resource, without revisions.
func shownTable(tb testing.TB, h *history.History, r *served.Resource) []string {
	tb.Helper()
	var shown []string
	for _, o := range listOf(tb, h, r) {
		shown = append(shown, content(o))
	}
	return shown
}

var servedHere = []*served.Resource{served.Services, served.EndpointSlices, served.Nodes}

// watchAll watches all of them from a revision.
func watchAll(t *testing.T, s *storagetest.Node, after uint64) (cursors []*history.Cursor) {
	t.Helper()
	for _, r := range servedHere {
		cursors = append(cursors, watchFrom(t, s.History, r, after))
	}
	return cursors
}

func expectSame(tb testing.TB, what string, got, want *storagetest.Node) {
	tb.Helper()
	for _, r := range servedHere {
		if g, w := shownTable(tb, got.History, r), shownTable(tb, want.History, r); !slices.Equal(g, w) {
			tb.Fatalf("%s: %s:\ngot  %q\nwant %q", what, r.Resource, g, w)
		}
	}
}

// shownBefore is what a process showed at its end: by resource and name, the content and the revision.
type shownBefore map[string]*history.Object

func shownOf(tb testing.TB, s *storagetest.Node) shownBefore {
	tb.Helper()
	shown := make(shownBefore)
	for _, r := range served.All() {
		if _, err := s.History.Readable(r); err != nil {
			continue
		}
		for _, o := range listOf(tb, s.History, r) {
			shown[r.Resource+" "+o.Key().String()] = o
		}
	}
	return shown
}

// expectOneContent checks what the process after shows: an object that is not as it was has a revision that only the
// process after can have given out. A client takes two objects of one revision for the same; it compares nothing else.
// What no client has a use for does not count.
func expectOneContent(tb testing.TB, what string, before shownBefore, after *storagetest.Node, last uint64) {
	tb.Helper()
	for name, o := range shownOf(tb, after) {
		switch was, there := before[name]; {
		case o.Revision > last:
		case !there:
			tb.Fatalf("%s: %s is new, and has the revision %d, of before the restart", what, name, o.Revision)
		case was.Revision != o.Revision:
			tb.Fatalf("%s: %s has the revision %d, and had %d before the restart", what, name, o.Revision, was.Revision)
		case !sameFor(was, o):
			tb.Fatalf("%s: %s has the revision %d, of before the restart, and is not what it was:\ngot %s\nwas %s",
				what, name, o.Revision, content(o), content(was))
		}
	}
}

// sameFor reports whether a client has no use for the difference.
func sameFor(a, b *history.Object) bool {
	return a.UID == b.UID && bytes.Equal(a.Body, b.Body) && wire.SameMeta(a.Meta, b.Meta)
}

// expectRevisionsKept is expectOneContent where nothing was shown otherwise in between: an object that is as it was has
// the revision that it had, too.
func expectRevisionsKept(tb testing.TB, what string, before shownBefore, after *storagetest.Node, last uint64) {
	tb.Helper()
	expectOneContent(tb, what, before, after, last)
	for name, o := range shownOf(tb, after) {
		if was, there := before[name]; there && sameFor(was, o) && was.Revision != o.Revision {
			tb.Fatalf("%s: %s is as it was at %d, and has the revision %d now", what, name, was.Revision, o.Revision)
		}
	}
}

func TestRestoredShowsTheSame(t *testing.T) {
	before := newStore()
	smallCloud().fill(before, inputsOf)
	after := restored(t, before)
	expectSame(t, "restored", after, before)
	expectRevisionsKept(t, "restored", shownOf(t, before), after, before.History.Revision())
	if state := after.View.ServedSnapshot(); !state.AsOf.Equal(time.Unix(1, 0)) ||
		state.Revision != before.History.Revision() {
		t.Errorf("got %v, of revision %d", state.AsOf, state.Revision)
	}
	select {
	case <-after.Live():
		t.Error("what is restored is not live")
	default:
	}
	if _, err := after.View.Snapshot(after.Name, time.Now()); err == nil {
		t.Error("a restored state would be saved as if it were confirmed")
	}
	if !after.NodeExists(after.Name) {
		t.Error("this node is not known")
	}
	_, err := after.History.Watch(served.EndpointSlices, before.History.Revision())
	if !errors.Is(err, history.ErrExpired) {
		t.Errorf("a client of the process before got %v", err)
	}
}

// TestNobodyIsTakenBackInTime: to a client of the process before that has seen a newer state than the snapshot's it is
// not served, whatever the client asks; and it is served when the upstream's state is there.
func TestNobodyIsTakenBackInTime(t *testing.T) {
	before := newStore()
	smallCloud().fill(before, inputsOf)
	state := stateOf(t, before)
	before.Services().Apply(wiretest.Service("young", ""))
	newer := before.History.Revision()
	for _, process := range []func(*facts.Snapshot, uint64) *storagetest.Node{restarted, restartedLate} {
		after := process(state, newer)
		serve(t, after)
		free := inNS("free")
		read := func(presented uint64) map[string]error {
			_, _, list := after.History.List(served.Services, "", presented)
			_, get := after.History.Get(served.Services, free, presented)
			_, watched := after.History.Watch(served.Services, presented)
			return map[string]error{"list": list, "get": get, "watch": watched}
		}
		for what, err := range read(newer) {
			if !errors.Is(err, served.ErrNotReady) {
				t.Errorf("%s from a newer revision than the snapshot's: %v", what, err)
			}
		}
		for _, presented := range []uint64{state.Revision, state.Revision - 1} {
			got := read(presented)
			if got["list"] != nil || got["get"] != nil {
				t.Errorf("the snapshot's revision %d, presented %d: %v", state.Revision, presented, got)
			}
			if !errors.Is(got["watch"], history.ErrExpired) {
				t.Errorf("a history that is not held is served from %d: %v", presented, got)
			}
		}
		if got := read(after.History.Revision()); got["list"] != nil || got["get"] != nil || got["watch"] != nil {
			t.Errorf("this process's own revision: %v", got)
		}
		if got := read(after.History.Revision() + 1); !errors.Is(got["list"], history.ErrFuture) ||
			!errors.Is(got["watch"], history.ErrFuture) {
			t.Errorf("a revision that was never given out: %v", got)
		}

		changed, _ := after.History.Readable(served.Services)
		now := smallCloud()
		now[facts.InputServices] = append(now[facts.InputServices], wiretest.Service("young", ""))
		now.fill(after, inputsOf)
		expectWoken(t, "the upstream's state is there", changed, true)
		if got := read(newer); got["list"] != nil || got["get"] != nil ||
			!errors.Is(got["watch"], history.ErrExpired) {
			t.Errorf("with the upstream's state: %v", got)
		}
	}
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

// touched is an object after a change of what is written with every change of any, or by whoever writes it, and of
// nothing that a client has a use for.
func touched(tb testing.TB, o *wire.Object, n int64) *wire.Object {
	tb.Helper()
	// Only the metadata is read and written, and that is of one form for all.
	as := &corev1.Node{}
	if err := as.Unmarshal(wire.AppendObject(nil, o.Meta, nil, 0)); err != nil {
		tb.Fatal(err)
	}
	as.Generation, as.ResourceVersion = n, fmt.Sprint(1000+n)
	as.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: fmt.Sprint("manager-", n), Operation: "Update"}}
	metav1.SetMetaDataAnnotation(&as.ObjectMeta, corev1.EndpointsLastChangeTriggerTime,
		time.Unix(n, 0).UTC().Format(time.RFC3339))
	both, err := wire.ParseObject(wire.AppendObject(nil, wiretest.Object(as).Meta, o.Body, 0))
	if err != nil {
		tb.Fatal(err)
	}
	return both
}

// TestRevisionsOverARestart: an upstream that brings the same again, but for what no client has a use for, makes no
// event; one object that changed is one event, and has a revision of this process.
func TestRevisionsOverARestart(t *testing.T) {
	before := newStore()
	smallCloud().fill(before, inputsOf)
	last := before.History.Revision()
	now := smallCloud()
	for i, o := range now[facts.InputEndpointSlices] {
		now[facts.InputEndpointSlices][i] = touched(t, o, 7)
	}
	now[facts.InputServices][0] = touched(t, now[facts.InputServices][0], 7)
	now[facts.InputServices][1] = wiretest.Service("ordered", `["zone"]`)

	s := restored(t, before)
	was := s.History.Revision()
	now.fill(s, inputsOf)
	expectRevisionsKept(t, "after the return", shownOf(t, before), s, last)
	// ordered-1 shows node-a2 by either of the annotations.
	expectTold(t, "after the return", []string{"MODIFIED ordered"}, watchAll(t, s, was)...)
	// And it is not for one restart only: what is kept is kept again.
	again := restored(t, s)
	now.fill(again, inputsOf)
	expectRevisionsKept(t, "a second restart", shownOf(t, s), again, s.History.Revision())
}

// TestARevisionIsOfOneContent: what a process shows of a snapshot does not follow from the snapshot alone, but from its
// flag of the local API server, too. Where it is not what the process before showed, the revision must not be that of
// before: an informer that finds an object with the revision that it has takes it for the same, and tells nobody.
func TestARevisionIsOfOneContent(t *testing.T) {
	options := func(f *facts.Facts, port string, after uint64) view.Options {
		local, err := view.ParseLocalEndpoint("169.254.0.1", port)
		if err != nil {
			t.Fatal(err)
		}
		return view.Options{
			Facts: f, Viewer: view.Node("node-a1"), LocalEndpoint: local,
			History: history.Options{Revisions: history.NewRevisions(after)},
		}
	}
	wrap := func(f *facts.Facts, v *view.View) *storagetest.Node {
		return &storagetest.Node{Facts: f, Name: "node-a1", View: v, History: v.History()}
	}
	f := facts.New(facts.Options{NodeName: "node-a1"})
	before := wrap(f, view.New(options(f, "51003", 1000)))
	smallCloud().fill(before, inputsOf)
	before.Services().Apply(wiretest.Service("default/kubernetes", ""))
	before.EndpointSlices().Apply(wiretest.Object(kubernetesSlice()))
	last := before.History.Revision()

	f = facts.New(facts.Options{NodeName: "node-a1"})
	f.Restore(stateOf(t, before))
	after := wrap(f, view.New(options(f, "51004", last)))
	after.View.AllowRestored()
	expectRevisionsKept(t, "restored", shownOf(t, before), after, last)
}

// annotated are the Endpoints default/kubernetes that name a local API server.
func annotated(port string) *wire.Object {
	return wiretest.Object(&corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{
		Namespace: "default", Name: "kubernetes",
		Annotations: map[string]string{"superedge.io/local-endpoint": "169.254.0.1", "superedge.io/local-port": port},
	}})
}

func kubernetesSlice() *discoveryv1.EndpointSlice {
	s := wiretest.SliceOf("default/kubernetes", "kubernetes")
	s.Endpoints = []discoveryv1.Endpoint{{Addresses: []string{"192.0.2.1"}}}
	return s
}

// TestNothingIsShownOfWhatIsHeldBack, of any input, complete or not; and then it comes as one change.
func TestNothingIsShownOfWhatIsHeldBack(t *testing.T) {
	s := syncedStore(t, storagetest.Options{})
	s.Services().Replace([]*wire.Object{wiretest.Service("a", `["zone"]`), wiretest.Service("b", "")})
	s.EndpointSlices().Replace([]*wire.Object{
		wiretest.Slice("a-1", "a", "node-a1", "node-b1"), wiretest.Slice("b-1", "b", "node-b1"),
	})
	before := s.History.Revision()
	was := shownOf(t, s)
	cursor := watchFrom(t, s.History, served.EndpointSlices, before)
	_, changed := next(t, cursor)
	s.Hold()
	s.NodeLabels().Apply(wiretest.Node("node-b1", "a"))
	s.NodeLabels().Remove("", "node-b2")
	s.Services().Replace([]*wire.Object{wiretest.Service("a", `["zone"]`)})
	s.Services().Apply(wiretest.Service("c", ""))
	s.EndpointSlices().Apply(wiretest.Slice("c-1", "c", "node-b1"))
	s.EndpointSlices().Remove("ns", "b-1")
	s.EndpointSlices().Apply(wiretest.Slice("short", "c", "node-b1"))
	s.EndpointSlices().Remove("ns", "short")
	if s.History.Revision() != before || fmt.Sprint(shownOf(t, s)) != fmt.Sprint(was) || s.NodeCount() != 4 {
		t.Error("something is shown that is held back")
	}
	expectWoken(t, "held back", changed, false)
	s.Release()
	expectWoken(t, "released", changed, true)
	expectTold(t, "released", []string{"ADDED c-1", "DELETED b-1", "MODIFIED a-1"}, cursor)
	if got := nodesShown(t, s.History, "a-1"); got != "node-a1,node-b1" || s.NodeCount() != 3 {
		t.Errorf("shows %s with %d nodes", got, s.NodeCount())
	}
	s.EndpointSlices().Remove("ns", "c-1")
	expectTold(t, "after the release", []string{"DELETED c-1"}, cursor)
}

func sectionOf(state *facts.Snapshot, input string) *facts.Section {
	for i := range state.Sections {
		if state.Sections[i].Input == input {
			return &state.Sections[i]
		}
	}
	return nil
}

// legacyFree are the legacy Endpoints of the Service "free".
func legacyFree(addresses ...string) *wire.Object {
	e := &corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "free"}}
	for _, ip := range addresses {
		e.Subsets = append(e.Subsets, corev1.EndpointSubset{Addresses: []corev1.EndpointAddress{{IP: ip}}})
	}
	return wiretest.Object(e)
}

// legacyAddresses is what is shown of them.
func legacyAddresses(t *testing.T, s *storagetest.Node) string {
	t.Helper()
	var all []string
	for _, o := range listOf(t, s.History, served.Endpoints) {
		for _, subset := range decoded[*corev1.Endpoints](t, o).Subsets {
			for _, a := range subset.Addresses {
				all = append(all, a.IP)
			}
		}
	}
	return strings.Join(all, ",")
}

// legacyStore is a process that follows the legacy Endpoints of the Service "free".
func legacyStore() *storagetest.Node {
	s := newStore()
	smallCloud().fill(s, inputsOf)
	s.Endpoints().Replace([]*wire.Object{legacyFree("10.0.0.1")})
	return s
}

func expectLegacy(t *testing.T, what string, s *storagetest.Node, want string) {
	t.Helper()
	if got := legacyAddresses(t, s); got != want {
		t.Errorf("%s: got %s, want %s", what, got, want)
	}
}

// TestLegacyEndpointsAreForgotten when the upstream's state is complete and has none: nobody who asks for them later is
// to get those of the snapshot for current ones.
func TestLegacyEndpointsAreForgotten(t *testing.T) {
	s := restored(t, legacyStore())
	expectLegacy(t, "restored", s, "10.0.0.1")
	cursor := watchFrom(t, s.History, served.Endpoints, s.History.Revision())
	smallCloud().fill(s, inputsOf)
	if s.Restored() != nil {
		t.Fatal("the Endpoints were awaited")
	}
	expectReadable(t, "in the end", s.History, served.Endpoints, served.ErrNotReady)
	if _, _, err := cursor.Next(10); !errors.Is(err, history.ErrExpired) {
		t.Errorf("a watch of them: %v", err)
	}
	s.Endpoints().Replace([]*wire.Object{legacyFree("10.0.0.2")})
	expectLegacy(t, "once they are followed", s, "10.0.0.2")
}

func TestLegacyEndpointsAreRestored(t *testing.T) {
	before := legacyStore()
	for _, now := range []string{"10.0.0.1", "10.0.0.2"} {
		s := restored(t, before)
		last := s.History.Revision()
		expectLegacy(t, "restored", s, "10.0.0.1")
		cursor := watchFrom(t, s.History, served.Endpoints, last)
		s.Endpoints().Replace([]*wire.Object{legacyFree(now)})
		expectLegacy(t, "before the rest is there", s, "10.0.0.1")
		smallCloud().fill(s, inputsOf)
		expectLegacy(t, "in the end", s, now)
		if s.Restored() != nil {
			t.Error("it is still restored")
		}
		expectRevisionsKept(t, "followed", shownOf(t, before), s, last)
		events, _, err := cursor.Next(10)
		if err != nil || (len(events) == 0) != (now == "10.0.0.1") {
			t.Errorf("now %s: events %v, %v", now, events, err)
		}
	}
}

func TestLegacyEndpointsThatAreNotServedAnyMore(t *testing.T) {
	for _, early := range []bool{true, false} {
		s := restored(t, legacyStore())
		if early {
			s.Endpoints().SetAbsent()
			expectLegacy(t, "before the rest is there", s, "10.0.0.1")
		}
		smallCloud().fill(s, inputsOf)
		if !early {
			s.Endpoints().SetAbsent()
		}
		expectReadable(t, "in the end", s.History, served.Endpoints, served.ErrAbsent)
	}
}

func TestLegacyEndpointsThatAreNotFollowedAnyMore(t *testing.T) {
	s := restored(t, legacyStore())
	s.Endpoints().Replace([]*wire.Object{legacyFree("10.0.0.2")})
	s.Forget(served.Endpoints)
	smallCloud().fill(s, inputsOf)
	expectReadable(t, "in the end", s.History, served.Endpoints, served.ErrNotReady)
}

// TestKubernetesEndpointIsRestored: it is rewritten as before, by the annotations that were known.
func TestKubernetesEndpointIsRestored(t *testing.T) {
	inputs := append(slices.Clone(inputsOf), facts.InputKubernetesEndpoints)
	all := cloud{
		facts.InputNodes: smallCloud()[facts.InputNodes], facts.InputNode: smallCloud()[facts.InputNode],
		facts.InputServices: {
			wiretest.Service("default/kubernetes", ""),
		},
		facts.InputEndpointSlices:      {wiretest.Object(kubernetesSlice())},
		facts.InputKubernetesEndpoints: {annotated("51003")},
	}
	before := storagetest.New(storagetest.Options{NodeName: "node-a1"})
	all.fill(before, inputs)
	if shown := shownTable(t, before.History, served.EndpointSlices); len(shown) != 1 ||
		!strings.Contains(shown[0], fmt.Sprintf("%x", "169.254.0.1")) {
		t.Fatalf("the process before shows %q", shown)
	}
	restarted := func() *storagetest.Node {
		after := storagetest.New(storagetest.Options{NodeName: "node-a1", After: before.History.Revision()})
		after.Restore(stateOf(t, before))
		serve(t, after)
		if got, want := shownTable(t, after.History, served.EndpointSlices), shownTable(t, before.History,
			served.EndpointSlices); !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
		return after
	}
	restarted()

	// The annotations are awaited with the rest, and what is there now is rewritten.
	after := restarted()
	was := after.History.Revision()
	all.fill(after, inputsOf)
	if after.Restored() == nil || after.History.Revision() != was {
		t.Error("the annotations of default/kubernetes are not awaited")
	}
	after.KubernetesEndpoints().Replace([]*wire.Object{annotated("51004")})
	want := storagetest.New(storagetest.Options{NodeName: "node-a1"})
	all[facts.InputKubernetesEndpoints] = []*wire.Object{annotated("51004")}
	all.fill(want, inputs)
	gotSlices := shownTable(t, after.History, served.EndpointSlices)
	wantSlices := shownTable(t, want.History, served.EndpointSlices)
	if !slices.Equal(gotSlices, wantSlices) || after.Restored() != nil {
		t.Errorf("got %q, want %q", gotSlices, wantSlices)
	}
	if o := listOf(t, after.History, served.EndpointSlices)[0]; o.Revision <= was {
		t.Errorf("it is another one at the revision %d, served before was %d", o.Revision, was)
	}

	// An upstream that has no legacy Endpoints holds nothing up, and a 404 takes nothing away.
	after = restarted()
	all.fill(after, inputsOf)
	after.KubernetesEndpoints().SetAbsent()
	if got, want := shownTable(t, after.History, served.EndpointSlices), shownTable(t, before.History,
		served.EndpointSlices); !slices.Equal(got, want) || after.Restored() != nil {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestStateIsTheShare: a Snapshot has only endpoints that a key of their Service matches, and only nodes that these
// name, or that are of the site.
func TestStateIsTheShare(t *testing.T) {
	s := newStore()
	c := smallCloud()
	c[facts.InputNodes] = append(c[facts.InputNodes], wiretest.Node("node-a3", "a"), wiretest.Node("node-b3", "b"))
	c.fill(s, inputsOf)
	nodesOf := func(o *wire.Object) (nodes []string) {
		slice := &discoveryv1.EndpointSlice{}
		if err := slice.Unmarshal(wire.AppendObject(nil, o.Meta, o.Body, 0)); err != nil {
			t.Fatal(err)
		}
		for _, e := range slice.Endpoints {
			nodes = append(nodes, *e.NodeName)
		}
		return nodes
	}
	got := map[string]string{}
	for _, o := range sectionOf(stateOf(t, s), facts.InputEndpointSlices).Objects {
		got[o.Name] = strings.Join(nodesOf(o), ",")
	}
	want := map[string]string{
		"free-1": "node-a1,node-b1", "ordered-1": "node-a2,node-b1", "strict-1": "node-a1,node-a2", "strict-2": "",
	}
	if !maps.Equal(got, want) {
		t.Errorf("endpoints on %v, want %v", got, want)
	}
	expect := func(what string, want ...string) {
		t.Helper()
		var got []string
		for _, o := range sectionOf(stateOf(t, s), facts.InputNodes).Objects {
			got = append(got, o.Name)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: nodes %q, want %q", what, got, want)
		}
	}
	expect("without addresses of the site", "node-a1", "node-a2", "node-b1")
	s.UpdateNotes(func(n *facts.Notes) {
		n.InternalIPs = map[string][]netip.Addr{"node-a2": {netip.MustParseAddr("192.0.2.2")}}
	})
	expect("with addresses of the site", "node-a1", "node-a2", "node-a3", "node-b1")
}

// TestContent: only what is shown otherwise is worth a new Snapshot; a report of the own node's kubelet is not.
func TestContent(t *testing.T) {
	s := newStore()
	smallCloud().fill(s, inputsOf)
	node := wiretest.NodeOf("node-a1", "a")
	changes := func(what string, want bool, change func()) {
		t.Helper()
		before := s.View.SnapshotVersion()
		change()
		if now := s.View.SnapshotVersion(); now < before || now > before != want {
			t.Errorf("%s: the content went from %d to %d; a new Snapshot is due: %t", what, before, now, want)
		}
	}
	report := func(version string) {
		node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Message: version}}
		s.OwnNode().Apply(wiretest.Object(node))
	}
	report("first")
	changes("a report of the kubelet", false, func() { report("second") })
	changes("a label of the node", true, func() { node.Labels["rack"] = "1"; report("third") })
	changes("another report", false, func() { report("fourth") })
	changes("a Service", true, func() { s.Services().Apply(wiretest.Service("new", "")) })
	changes("an address of the site", true, func() {
		s.UpdateNotes(func(n *facts.Notes) {
			n.InternalIPs = map[string][]netip.Addr{"node-a2": {netip.MustParseAddr("192.0.2.2")}}
		})
	})
	changes("the node's end", true, func() { s.OwnNode().Remove("", "node-a1") })
}

// TestSitesOfASnapshot: it has none of other sites' endpoints, and to show none of them would be a lie.
func TestSitesOfASnapshot(t *testing.T) {
	before := newStore()
	smallCloud().fill(before, inputsOf)
	s := restored(t, before)
	for _, site := range []string{"b", "nobodys"} {
		h := siteHistory(t, s, site)
		if _, err := h.Readable(served.EndpointSlices); !errors.Is(err, served.ErrNotReady) {
			t.Errorf("site %s: %v", site, err)
		}
	}
	smallCloud().fill(s, inputsOf)
	if got := nodesShown(t, siteHistory(t, s, "b"), "strict-1"); got != "node-b1" {
		t.Errorf("with the upstream's state site b sees %s", got)
	}
}

func pick(random *rand.Rand, from ...string) string { return from[random.IntN(len(from))] }

// cloudNodes are the nodes of a randomCloud, of which some are missing.
var cloudNodes = []string{"node-a1", "node-a2", "node-b1", "node-b2", "node-c1"}

func randomCloud(random *rand.Rand) cloud {
	zone := func() string { return pick(random, "a", "b", "c") }
	c := cloud{facts.InputNode: {wiretest.Node("node-a1", zone())}}
	for _, name := range cloudNodes {
		if random.IntN(5) > 0 {
			c[facts.InputNodes] = append(c[facts.InputNodes], wiretest.Node(name, zone()))
		}
	}
	for i := range 6 {
		name := fmt.Sprint("s", i)
		if random.IntN(5) > 0 {
			c[facts.InputServices] = append(c[facts.InputServices], wiretest.Service(name,
				pick(random, "", `["zone"]`, `["host","zone"]`, `["zone","*"]`, `nonsense`)))
		}
		for j := range random.IntN(3) {
			var on []string
			for range random.IntN(4) {
				on = append(on, pick(random, cloudNodes...))
			}
			c[facts.InputEndpointSlices] = append(c[facts.InputEndpointSlices],
				wiretest.Slice(fmt.Sprint(name, "-", j), name, on...))
		}
	}
	return c
}

// TestRandomRestart: whatever happened before and while the process was away, after its return the Node shows
// what one shows that was there all the time, and told of every object once at most; and what is as it was has the
// revision that it had.
func TestRandomRestart(t *testing.T) {
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 1))
	for round := range 300 {
		what := fmt.Sprintf("seed %d round %d", seed, round)
		before, now := randomCloud(random), randomCloud(random)
		first := newStore()
		before.fill(first, inputsOf)
		deadBefore, deadNow := map[string]struct{}{}, map[string]struct{}{}
		if random.IntN(3) == 0 {
			deadBefore[pick(random, cloudNodes...)], deadNow[pick(random, cloudNodes...)] = struct{}{}, struct{}{}
		}
		first.SetDoubted(facts.Dead, deadBefore)
		was := shownOf(t, first)
		process := restarted
		if random.IntN(2) == 0 {
			process = restartedLate
		}
		last := first.History.Revision()
		s := process(stateOf(t, first), last)
		serves := random.IntN(3) > 0
		if serves {
			serve(t, s)
			first.SetDoubted(facts.Dead, nil) // they are not in a Snapshot
			expectSame(t, what+": restored", s, first)
			expectRevisionsKept(t, what+": restored", was, s, last)
		}
		s.SetDoubted(facts.Dead, deadNow)
		start := s.History.Revision()
		order := slices.Clone(inputsOf)
		random.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
		for i, input := range order {
			if serves && s.History.Revision() != start {
				t.Fatalf("%s: %d inputs of %v are shown before the others are there", what, i, order)
			}
			s.Input(input).Replace(now[input])
		}
		if s.Restored() != nil || s.View.ServedSnapshot() != nil {
			t.Fatalf("%s: it is still restored", what)
		}
		want := newStore()
		want.SetDoubted(facts.Dead, deadNow)
		now.fill(want, inputsOf)
		expectSame(t, what, s, want)
		if len(deadNow) == 0 {
			expectRevisionsKept(t, what, was, s, last)
		}
		// With dead nodes some objects were shown otherwise in between.
		expectOneContent(t, what, was, s, last)
		if serves {
			expectToldOnce(t, what, s, start)
		}
	}
}

// expectToldOnce fails if a client that watches from a revision is told of an object twice.
func expectToldOnce(t *testing.T, what string, s *storagetest.Node, from uint64) {
	t.Helper()
	for _, cursor := range watchAll(t, s, from) {
		seen := map[types.NamespacedName]bool{}
		events, _ := next(t, cursor)
		for _, e := range events {
			if name := e.Object.Key(); seen[name] {
				t.Fatalf("%s: %s was told of twice", what, name)
			} else {
				seen[name] = true
			}
		}
	}
}
