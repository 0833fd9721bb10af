package storage

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"

	"github.com/application-grid/application-grid/pkg/wire"
	"github.com/application-grid/application-grid/pkg/wire/wiretest"
)

func testNode(tb testing.TB, name, zone string) *wire.Object {
	tb.Helper()
	return wiretest.Object(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"zone": zone}}})
}

func testService(tb testing.TB, name, keys string) *wire.Object {
	tb.Helper()
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name)}}
	if keys != "" {
		svc.Annotations = map[string]string{"topologyKeys": keys}
	}
	return wiretest.Object(svc)
}

func testSlice(tb testing.TB, name, service string, nodes ...string) *wire.Object {
	tb.Helper()
	s := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name), Labels: map[string]string{discoveryv1.LabelServiceName: service}},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	for i, node := range nodes {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&255, i&255)}, NodeName: ptr.To(node),
			Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true), Serving: ptr.To(true), Terminating: ptr.To(false)},
			TargetRef:  &corev1.ObjectReference{Kind: "Pod", Namespace: "ns", Name: fmt.Sprintf("%s-%d", service, i), UID: "00000000-0000-0000-0000-000000000000"},
		})
	}
	return wiretest.Object(s)
}

// nodesShown is which nodes' endpoints a slice shows.
func nodesShown(t *testing.T, s *Store, name string) string {
	t.Helper()
	o, found, err := s.Get(EndpointSlices, "ns", name)
	if err != nil || !found {
		t.Fatalf("slice %s: found %v, %v", name, found, err)
	}
	typed, err := o.Decode()
	if err != nil {
		t.Fatal(err)
	}
	var nodes []string
	for _, e := range typed.(*discoveryv1.EndpointSlice).Endpoints {
		nodes = append(nodes, *e.NodeName)
	}
	return strings.Join(nodes, ",")
}

// syncedStore has two nodes per zone, of which node-a1 is this one, and no objects.
func syncedStore(tb testing.TB, options Options) *Store {
	tb.Helper()
	options.NodeName = "node-a1"
	options.KeepKubernetesEndpoint = true
	s := New(options)
	s.NodeLabels().Replace([]*wire.Object{testNode(tb, "node-a1", "a"), testNode(tb, "node-a2", "a"), testNode(tb, "node-b1", "b"), testNode(tb, "node-b2", "b")})
	s.Services().Replace(nil)
	s.EndpointSlices().Replace(nil)
	return s
}

// TestNothingIsShownBeforeItIsComplete: slices without nodes and Services would leak or lie, in whatever order
// the three arrive.
func TestNothingIsShownBeforeItIsComplete(t *testing.T) {
	names := []string{"nodes", "services", "slices"}
	for _, order := range [][]int{{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}} {
		s := New(Options{NodeName: "node-a1", KeepKubernetesEndpoint: true})
		fill := []func(){
			func() {
				s.NodeLabels().Replace([]*wire.Object{testNode(t, "node-a1", "a"), testNode(t, "node-b1", "b")})
			},
			func() { s.Services().Replace([]*wire.Object{testService(t, "svc", `["zone"]`)}) },
			func() { s.EndpointSlices().Replace([]*wire.Object{testSlice(t, "svc-1", "svc", "node-a1", "node-b1")}) },
		}
		for i, step := range order {
			if _, err := s.Readable(EndpointSlices); err != ErrNotReady { //nolint:errorlint // that very value
				t.Fatalf("readable after %d steps of %v: %v", i, order, err)
			}
			if _, _, err := s.List(EndpointSlices, ""); err != ErrNotReady { //nolint:errorlint // that very value
				t.Fatalf("listed after %d steps of %v: %v", i, order, err)
			}
			changed, _ := s.Readable(EndpointSlices)
			fill[step]()
			if i == len(order)-1 {
				select {
				case <-changed:
				default:
					t.Errorf("nobody is woken when %s complete the view", names[step])
				}
			}
		}
		if got := nodesShown(t, s, "svc-1"); got != "node-a1" {
			t.Errorf("order %v shows %s", order, got)
		}
	}
}

func TestTheKubernetesEndpointHoldsTheViewBack(t *testing.T) {
	s := New(Options{NodeName: "n"})
	s.NodeLabels().Replace(nil)
	s.Services().Replace(nil)
	s.EndpointSlices().Replace(nil)
	if _, err := s.Readable(EndpointSlices); err != ErrNotReady { //nolint:errorlint // that very value
		t.Fatalf("readable before it is known how default/kubernetes is to be shown: %v", err)
	}
	s.KubernetesEndpoints().Replace(nil)
	if _, err := s.Readable(EndpointSlices); err != nil {
		t.Fatal(err)
	}
}

// TestRelabelTouchesOnlyItsSlices: of many slices, only those with endpoints on the relabelled node get a new
// revision, and they do get one.
func TestRelabelTouchesOnlyItsSlices(t *testing.T) {
	s := syncedStore(t, Options{})
	for i := range 50 {
		s.Services().Apply(testService(t, fmt.Sprintf("svc-%d", i), `["zone"]`))
		node := "node-b1"
		if i%10 == 0 {
			node = "node-b2"
		}
		s.EndpointSlices().Apply(testSlice(t, fmt.Sprintf("svc-%d", i), fmt.Sprintf("svc-%d", i), "node-a1", node))
	}
	before := s.Revision()
	cursor, err := s.Watch(EndpointSlices, before)
	if err != nil {
		t.Fatal(err)
	}
	s.NodeLabels().Apply(testNode(t, "node-b2", "a"))
	events, _, err := cursor.Next(100)
	if err != nil || len(events) != 5 {
		t.Fatalf("%d events, %v; want 5", len(events), err)
	}
	for _, e := range events {
		if e.Type != watch.Modified || e.Object.Revision <= before {
			t.Errorf("%s of %s at %d", e.Type, e.Object.Name(), e.Object.Revision)
		}
	}
	if got := nodesShown(t, s, "svc-10"); got != "node-a1,node-b2" {
		t.Errorf("shows %s", got)
	}
	// A label that governs nothing changes nothing.
	before = s.Revision()
	s.NodeLabels().Apply(wiretest.Object(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-b2", Labels: map[string]string{"zone": "a", "other": "x"}}}))
	if s.Revision() != before {
		t.Error("an unrelated label made events")
	}
}

func TestARelistEmitsOnlyDifferences(t *testing.T) {
	s := syncedStore(t, Options{})
	s.Services().Replace([]*wire.Object{testService(t, "same", ""), testService(t, "goes", ""), testService(t, "changes", "")})
	cursor, err := s.Watch(Services, s.Revision())
	if err != nil {
		t.Fatal(err)
	}
	s.Services().Replace([]*wire.Object{testService(t, "same", ""), testService(t, "changes", `["zone"]`), testService(t, "comes", "")})
	events, _, err := cursor.Next(100)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range events {
		got = append(got, fmt.Sprintf("%s %s", e.Type, e.Object.Name()))
	}
	slices.Sort(got)
	if want := "ADDED comes, DELETED goes, MODIFIED changes"; strings.Join(got, ", ") != want {
		t.Errorf("got %q, want %q", strings.Join(got, ", "), want)
	}
}

// TestDeletedAndCreatedAgainIsTwoEvents: under one name, but another UID.
func TestDeletedAndCreatedAgainIsTwoEvents(t *testing.T) {
	s := syncedStore(t, Options{})
	s.Services().Apply(testService(t, "svc", ""))
	cursor, err := s.Watch(Services, s.Revision())
	if err != nil {
		t.Fatal(err)
	}
	s.Services().Replace([]*wire.Object{wiretest.Object(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "svc", UID: "another"}})})
	events, _, err := cursor.Next(100)
	if err != nil || len(events) != 2 || events[0].Type != watch.Deleted || events[1].Type != watch.Added {
		t.Fatalf("%+v, %v", events, err)
	}
}

func TestSliceOfAMissingServiceIsHiddenUntilItComes(t *testing.T) {
	s := syncedStore(t, Options{})
	s.EndpointSlices().Apply(testSlice(t, "svc-1", "svc", "node-a1", "node-b1"))
	if got := nodesShown(t, s, "svc-1"); got != "" {
		t.Errorf("without its Service it shows %s", got)
	}
	s.Services().Apply(testService(t, "svc", ""))
	if got := nodesShown(t, s, "svc-1"); got != "node-a1,node-b1" {
		t.Errorf("with an ungoverned Service it shows %s", got)
	}
	s.Services().Remove("ns", "svc")
	if got := nodesShown(t, s, "svc-1"); got != "" {
		t.Errorf("after its Service is gone it shows %s", got)
	}
}

// TestTheSliceNameSaysNothing: a slice is its Service's by label alone.
func TestTheSliceNameSaysNothing(t *testing.T) {
	s := syncedStore(t, Options{})
	s.Services().Apply(testService(t, "governed", `["zone"]`))
	s.Services().Apply(testService(t, "free", ""))
	s.EndpointSlices().Apply(testSlice(t, "free-abcde", "governed", "node-a1", "node-b1"))
	s.EndpointSlices().Apply(testSlice(t, "governed-abcde", "free", "node-a1", "node-b1"))
	if got := nodesShown(t, s, "free-abcde"); got != "node-a1" {
		t.Errorf("the governed slice shows %s", got)
	}
	if got := nodesShown(t, s, "governed-abcde"); got != "node-a1,node-b1" {
		t.Errorf("the free slice shows %s", got)
	}
}

func TestUnparsableKeysHideEverythingAndAreNamed(t *testing.T) {
	s := syncedStore(t, Options{})
	s.Services().Apply(testService(t, "svc", `zone`))
	s.EndpointSlices().Apply(testSlice(t, "svc-1", "svc", "node-a1", "node-b1"))
	if got := nodesShown(t, s, "svc-1"); got != "" {
		t.Errorf("shows %s", got)
	}
	if reason := s.Invalid()[types.NamespacedName{Namespace: "ns", Name: "svc"}]; !strings.Contains(reason, "JSON") {
		t.Errorf("Invalid says %q", reason)
	}
	s.Services().Apply(testService(t, "svc", `["zone"]`))
	if got := nodesShown(t, s, "svc-1"); got != "node-a1" || len(s.Invalid()) != 0 {
		t.Errorf("after mending it shows %s, invalid %v", got, s.Invalid())
	}
}

// TestSlicesOfOneServiceAreDecidedTogether: the first key that matches anywhere in the Service decides for all
// of its slices.
func TestSlicesOfOneServiceAreDecidedTogether(t *testing.T) {
	s := syncedStore(t, Options{})
	s.Services().Apply(testService(t, "svc", `["zone","*"]`))
	s.EndpointSlices().Apply(testSlice(t, "one", "svc", "node-b1"))
	if got := nodesShown(t, s, "one"); got != "node-b1" {
		t.Errorf("with nothing nearer it shows %s", got)
	}
	s.EndpointSlices().Apply(testSlice(t, "two", "svc", "node-a2"))
	if got := nodesShown(t, s, "one"); got != "" {
		t.Errorf("with something nearer in another slice it shows %s", got)
	}
	s.EndpointSlices().Remove("ns", "two")
	if got := nodesShown(t, s, "one"); got != "node-b1" {
		t.Errorf("when that is gone it shows %s", got)
	}
}

// TestListAtIsHistory: the state at every revision that the log reaches back to is that which a list had then,
// and earlier ones are refused.
func TestListAtIsHistory(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	s := syncedStore(t, Options{MaxEvents: 60})
	history := map[uint64]string{}
	describe := func(objects []*Object) string {
		var b strings.Builder
		for _, o := range objects {
			fmt.Fprintf(&b, "%s@%d ", o.Name(), o.Revision)
		}
		return b.String()
	}
	for range 300 {
		name := fmt.Sprintf("svc-%d", r.IntN(8))
		if r.IntN(3) == 0 {
			s.Services().Remove("ns", name)
		} else {
			s.Services().Apply(testService(t, name, fmt.Sprintf(`["k%d"]`, r.IntN(3))))
		}
		objects, revision, err := s.List(Services, "")
		if err != nil {
			t.Fatal(err)
		}
		history[revision] = describe(objects)
	}
	served := 0
	for revision, want := range history {
		objects, err := s.ListAt(Services, "", revision)
		if err == ErrExpired { //nolint:errorlint // that very value
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		served++
		if got := describe(objects); got != want {
			t.Errorf("at %d: %s, was %s", revision, got, want)
		}
	}
	if served < 50 || served == len(history) {
		t.Errorf("%d of %d revisions served; want about as many as the log is long", served, len(history))
	}
	if _, err := s.ListAt(Services, "", s.Revision()+1); err != ErrFuture { //nolint:errorlint // that very value
		t.Errorf("the future is %v", err)
	}
}

// TestTheLogIsBoundedInBytes: large objects must not make a long log a large one.
func TestTheLogIsBoundedInBytes(t *testing.T) {
	const most = 100 << 10
	s := syncedStore(t, Options{MaxBytes: most})
	for i := range 500 {
		svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "svc", Annotations: map[string]string{"pad": strings.Repeat("x", 5000), "i": fmt.Sprint(i)}}}
		s.Services().Apply(wiretest.Object(svc))
	}
	if got := s.serviceTable.log.bytes; got > most+20000 {
		t.Errorf("the log holds on to %d bytes", got)
	}
	if got := len(s.serviceTable.log.events); got < 4 || got > 10 {
		t.Errorf("%d events in the log", got)
	}
}

// TestRevisionsGrowAcrossRestarts: a later process starts above all that an earlier one gave out.
func TestRevisionsGrowAcrossRestarts(t *testing.T) {
	now := time.Unix(1800000000, 0)
	clock := func() time.Time { return now }
	s := syncedStore(t, Options{Clock: clock})
	for i := range 1000 {
		s.Services().Apply(testService(t, "svc", fmt.Sprintf(`["k%d"]`, i)))
	}
	now = now.Add(time.Second)
	again := syncedStore(t, Options{Clock: clock})
	if again.Revision() <= s.Revision() {
		t.Errorf("%d after %d", again.Revision(), s.Revision())
	}
	if _, err := again.Watch(Services, s.Revision()); err != ErrExpired { //nolint:errorlint // that very value
		t.Errorf("resuming from before the restart: %v", err)
	}
}

func TestIndexHoldsNothingThatIsGone(t *testing.T) {
	s := syncedStore(t, Options{})
	for round := range 3 {
		for i := range 20 {
			s.Services().Apply(testService(t, fmt.Sprintf("svc-%d", i), `["zone","region"]`))
			s.EndpointSlices().Apply(testSlice(t, fmt.Sprintf("s-%d", i), fmt.Sprintf("svc-%d", (i+round)%20), "node-a1", fmt.Sprintf("stray-%d", i+round), "node-b1"))
		}
	}
	s.EndpointSlices().Replace(nil)
	s.Services().Replace(nil)
	s.NodeLabels().Replace(nil)
	if n := len(s.nodes) + len(s.services) + len(s.byKey) + len(s.endpointslices.backends); n != 0 {
		t.Errorf("left: nodes %v, services %v, keys %v, backends %v", s.nodes, s.services, s.byKey, s.endpointslices.backends)
	}
	if c := s.endpointslices.table.endpoints; c != (EndpointCount{}) {
		t.Errorf("counted: %+v", c)
	}
}

// fleet is the load of the end-to-end benchmark: 1,000 nodes in 50 units, 2,000 governed Services of 50
// endpoints each.
func fleet(b *testing.B) *Store {
	b.Helper()
	r := rand.New(rand.NewPCG(1, 1))
	s := New(Options{NodeName: "node-0", KeepKubernetesEndpoint: true})
	var nodes, services, endpoints []*wire.Object
	for i := range 1000 {
		nodes = append(nodes, testNode(b, fmt.Sprintf("node-%d", i), fmt.Sprintf("unit-%d", i%50)))
	}
	for i := range 2000 {
		name := fmt.Sprintf("svc-%d", i)
		services = append(services, testService(b, name, `["zone"]`))
		var on []string
		for range 50 {
			on = append(on, fmt.Sprintf("node-%d", r.IntN(1000)))
		}
		endpoints = append(endpoints, testSlice(b, name, name, on...))
	}
	s.NodeLabels().Replace(nodes)
	s.Services().Replace(services)
	s.EndpointSlices().Replace(endpoints)
	return s
}

func BenchmarkSync(b *testing.B) {
	for b.Loop() {
		fleet(b)
	}
}

// BenchmarkRelabelOtherNode moves a neighbour between units: about 100 of 2,000 slices are pruned anew.
func BenchmarkRelabelOtherNode(b *testing.B) {
	s := fleet(b)
	labels := []*wire.Object{testNode(b, "node-1", "unit-0"), testNode(b, "node-1", "unit-1")}
	in := s.NodeLabels()
	before := s.Revision()
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		in.Apply(labels[i%2])
		i++
	}
	b.ReportMetric(float64(s.Revision()-before)/float64(i), "events/op")
}

// BenchmarkRelabelThisNode moves this node: every governed Service is shown anew.
func BenchmarkRelabelThisNode(b *testing.B) {
	s := fleet(b)
	labels := []*wire.Object{testNode(b, "node-0", "unit-1"), testNode(b, "node-0", "unit-0")}
	in := s.NodeLabels()
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		in.Apply(labels[i%2])
		i++
	}
}

// BenchmarkSliceEvent is one change of one slice of 50 endpoints.
func BenchmarkSliceEvent(b *testing.B) {
	s := fleet(b)
	versions := []*wire.Object{testSlice(b, "svc-7", "svc-7", manyNodes(50)...), testSlice(b, "svc-7", "svc-7", manyNodes(49)...)}
	in := s.EndpointSlices()
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		in.Apply(versions[i%2])
		i++
	}
}

func manyNodes(n int) []string {
	var names []string
	for i := range n {
		names = append(names, fmt.Sprintf("node-%d", i*20))
	}
	return names
}
