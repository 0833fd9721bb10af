package view_test

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"

	"github.com/application-grid/application-grid/pkg/storage/history"
	"github.com/application-grid/application-grid/pkg/storage/served"
	"github.com/application-grid/application-grid/pkg/storage/storagetest"
	"github.com/application-grid/application-grid/pkg/storage/view"
	"github.com/application-grid/application-grid/pkg/storage/wire"
	"github.com/application-grid/application-grid/pkg/storage/wire/wiretest"
)

func testNode(tb testing.TB, name, zone string) *wire.Object {
	tb.Helper()
	return wiretest.Object(&corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"zone": zone}},
	})
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
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: name, UID: types.UID(name),
			Labels: map[string]string{discoveryv1.LabelServiceName: service},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	for i, node := range nodes {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&255, i&255)}, NodeName: ptr.To(node),
			Conditions: discoveryv1.EndpointConditions{
				Ready: ptr.To(true), Serving: ptr.To(true), Terminating: ptr.To(false),
			},
			TargetRef: &corev1.ObjectReference{
				Kind: "Pod", Namespace: "ns", Name: fmt.Sprintf("%s-%d", service, i),
				UID: "00000000-0000-0000-0000-000000000000",
			},
		})
	}
	return wiretest.Object(s)
}

// nodesShown is which nodes' endpoints a slice shows.
func nodesShown(t *testing.T, h *history.History, name string) string {
	t.Helper()
	o, err := h.Get(served.EndpointSlices, types.NamespacedName{Namespace: "ns", Name: name}, 0)
	if err != nil || o == nil {
		t.Fatalf("slice %s: got %v, %v", name, o, err)
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
func syncedStore(tb testing.TB, options storagetest.Options) *storagetest.Node {
	tb.Helper()
	options.NodeName = "node-a1"
	options.KeepKubernetesEndpoint = true
	s := storagetest.New(options)
	s.NodeLabels().Replace([]*wire.Object{
		testNode(tb, "node-a1", "a"), testNode(tb, "node-a2", "a"), testNode(tb, "node-b1", "b"),
		testNode(tb, "node-b2", "b"),
	})
	s.Services().Replace(nil)
	s.EndpointSlices().Replace(nil)
	return s
}

// TestNothingIsShownBeforeItIsComplete: slices without nodes and Services would leak or lie, in whatever order
// the three arrive.
func TestNothingIsShownBeforeItIsComplete(t *testing.T) {
	names := []string{"nodes", "services", "slices"}
	for _, order := range [][]int{{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}} {
		s := storagetest.New(storagetest.Options{NodeName: "node-a1", KeepKubernetesEndpoint: true})
		fill := []func(){
			func() {
				s.NodeLabels().Replace([]*wire.Object{testNode(t, "node-a1", "a"), testNode(t, "node-b1", "b")})
			},
			func() { s.Services().Replace([]*wire.Object{testService(t, "svc", `["zone"]`)}) },
			func() { s.EndpointSlices().Replace([]*wire.Object{testSlice(t, "svc-1", "svc", "node-a1", "node-b1")}) },
		}
		for i, step := range order {
			//nolint:errorlint // that very value
			if _, err := s.History.Readable(served.EndpointSlices); err != served.ErrNotReady {
				t.Fatalf("readable after %d steps of %v: %v", i, order, err)
			}
			//nolint:errorlint // that very value
			if _, _, err := s.History.List(served.EndpointSlices, "", 0); err != served.ErrNotReady {
				t.Fatalf("listed after %d steps of %v: %v", i, order, err)
			}
			changed, _ := s.History.Readable(served.EndpointSlices)
			fill[step]()
			if i == len(order)-1 {
				select {
				case <-changed:
				default:
					t.Errorf("no cursor is woken when %s complete the view", names[step])
				}
			}
		}
		if got := nodesShown(t, s.History, "svc-1"); got != "node-a1" {
			t.Errorf("order %v shows %s", order, got)
		}
	}
}

func TestTheKubernetesEndpointHoldsTheViewBack(t *testing.T) {
	s := storagetest.New(storagetest.Options{NodeName: "n"})
	s.NodeLabels().Replace(nil)
	s.Services().Replace(nil)
	s.EndpointSlices().Replace(nil)
	//nolint:errorlint // that very value
	if _, err := s.History.Readable(served.EndpointSlices); err != served.ErrNotReady {
		t.Fatalf("readable before it is known how default/kubernetes is to be shown: %v", err)
	}
	s.KubernetesEndpoints().Replace(nil)
	if _, err := s.History.Readable(served.EndpointSlices); err != nil {
		t.Fatal(err)
	}
}

// TestRelabelTouchesOnlyItsSlices: of many slices, only those with endpoints on the relabelled node get a new
// revision, and they do get one.
func TestRelabelTouchesOnlyItsSlices(t *testing.T) {
	s := syncedStore(t, storagetest.Options{})
	for i := range 50 {
		s.Services().Apply(testService(t, fmt.Sprintf("svc-%d", i), `["zone"]`))
		node := "node-b1"
		if i%10 == 0 {
			node = "node-b2"
		}
		s.EndpointSlices().Apply(testSlice(t, fmt.Sprintf("svc-%d", i), fmt.Sprintf("svc-%d", i), "node-a1", node))
	}
	before := s.History.Revision()
	cursor, err := s.History.Watch(served.EndpointSlices, before)
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
			t.Errorf("%s of %s at %d", e.Type, e.Object.Name, e.Object.Revision)
		}
	}
	if got := nodesShown(t, s.History, "svc-10"); got != "node-a1,node-b2" {
		t.Errorf("shows %s", got)
	}
	// A label that governs nothing changes nothing.
	before = s.History.Revision()
	s.NodeLabels().Apply(wiretest.Object(&corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "node-b2", Labels: map[string]string{"zone": "a", "other": "x"}},
	}))
	if s.History.Revision() != before {
		t.Error("an unrelated label made events")
	}
}

func TestARelistEmitsOnlyDifferences(t *testing.T) {
	s := syncedStore(t, storagetest.Options{})
	s.Services().Replace([]*wire.Object{
		testService(t, "same", ""), testService(t, "goes", ""), testService(t, "changes", ""),
	})
	cursor, err := s.History.Watch(served.Services, s.History.Revision())
	if err != nil {
		t.Fatal(err)
	}
	s.Services().Replace([]*wire.Object{
		testService(t, "same", ""), testService(t, "changes", `["zone"]`), testService(t, "comes", ""),
	})
	events, _, err := cursor.Next(100)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range events {
		got = append(got, fmt.Sprintf("%s %s", e.Type, e.Object.Name))
	}
	slices.Sort(got)
	if want := "ADDED comes, DELETED goes, MODIFIED changes"; strings.Join(got, ", ") != want {
		t.Errorf("got %q, want %q", strings.Join(got, ", "), want)
	}
}

// TestDeletedAndCreatedAgainIsTwoEvents: under one name, but another UID.
func TestDeletedAndCreatedAgainIsTwoEvents(t *testing.T) {
	s := syncedStore(t, storagetest.Options{})
	s.Services().Apply(testService(t, "svc", ""))
	cursor, err := s.History.Watch(served.Services, s.History.Revision())
	if err != nil {
		t.Fatal(err)
	}
	s.Services().Replace([]*wire.Object{
		wiretest.Object(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "svc", UID: "another"}}),
	})
	events, _, err := cursor.Next(100)
	if err != nil || len(events) != 2 || events[0].Type != watch.Deleted || events[1].Type != watch.Added {
		t.Fatalf("%+v, %v", events, err)
	}
}

func TestSliceOfAMissingServiceIsHiddenUntilItComes(t *testing.T) {
	s := syncedStore(t, storagetest.Options{})
	s.EndpointSlices().Apply(testSlice(t, "svc-1", "svc", "node-a1", "node-b1"))
	if got := nodesShown(t, s.History, "svc-1"); got != "" {
		t.Errorf("without its Service it shows %s", got)
	}
	s.Services().Apply(testService(t, "svc", ""))
	if got := nodesShown(t, s.History, "svc-1"); got != "node-a1,node-b1" {
		t.Errorf("with an ungoverned Service it shows %s", got)
	}
	s.Services().Remove("ns", "svc")
	if got := nodesShown(t, s.History, "svc-1"); got != "" {
		t.Errorf("after its Service is gone it shows %s", got)
	}
}

// TestTheSliceNameSaysNothing: a slice is its Service's by label alone.
func TestTheSliceNameSaysNothing(t *testing.T) {
	s := syncedStore(t, storagetest.Options{})
	s.Services().Apply(testService(t, "governed", `["zone"]`))
	s.Services().Apply(testService(t, "free", ""))
	s.EndpointSlices().Apply(testSlice(t, "free-abcde", "governed", "node-a1", "node-b1"))
	s.EndpointSlices().Apply(testSlice(t, "governed-abcde", "free", "node-a1", "node-b1"))
	if got := nodesShown(t, s.History, "free-abcde"); got != "node-a1" {
		t.Errorf("the governed slice shows %s", got)
	}
	if got := nodesShown(t, s.History, "governed-abcde"); got != "node-a1,node-b1" {
		t.Errorf("the free slice shows %s", got)
	}
}

func TestUnparsableKeysHideEverythingAndAreNamed(t *testing.T) {
	s := syncedStore(t, storagetest.Options{})
	s.Services().Apply(testService(t, "svc", `zone`))
	s.EndpointSlices().Apply(testSlice(t, "svc-1", "svc", "node-a1", "node-b1"))
	if got := nodesShown(t, s.History, "svc-1"); got != "" {
		t.Errorf("shows %s", got)
	}
	if reason := s.Invalid()[types.NamespacedName{Namespace: "ns", Name: "svc"}]; !strings.Contains(reason, "JSON") {
		t.Errorf("Invalid says %q", reason)
	}
	s.Services().Apply(testService(t, "svc", `["zone"]`))
	if got := nodesShown(t, s.History, "svc-1"); got != "node-a1" || len(s.Invalid()) != 0 {
		t.Errorf("after mending it shows %s, invalid %v", got, s.Invalid())
	}
}

// TestSlicesOfOneServiceAreDecidedTogether: the first key that matches anywhere in the Service decides for all
// of its slices.
func TestSlicesOfOneServiceAreDecidedTogether(t *testing.T) {
	s := syncedStore(t, storagetest.Options{})
	s.Services().Apply(testService(t, "svc", `["zone","*"]`))
	s.EndpointSlices().Apply(testSlice(t, "one", "svc", "node-b1"))
	if got := nodesShown(t, s.History, "one"); got != "node-b1" {
		t.Errorf("with nothing nearer it shows %s", got)
	}
	s.EndpointSlices().Apply(testSlice(t, "two", "svc", "node-a2"))
	if got := nodesShown(t, s.History, "one"); got != "" {
		t.Errorf("with something nearer in another slice it shows %s", got)
	}
	s.EndpointSlices().Remove("ns", "two")
	if got := nodesShown(t, s.History, "one"); got != "node-b1" {
		t.Errorf("when that is gone it shows %s", got)
	}
}

// TestListAtIsHistory: the state at every revision that the log reaches back to is that which a list had then,
// and earlier ones are refused.
func TestListAtIsHistory(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	s := syncedStore(t, storagetest.Options{LogEvents: 60})
	listed := map[uint64]string{}
	describe := func(objects []*history.Object) string {
		var b strings.Builder
		for _, o := range objects {
			fmt.Fprintf(&b, "%s@%d ", o.Name, o.Revision)
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
		objects, revision, err := s.History.List(served.Services, "", 0)
		if err != nil {
			t.Fatal(err)
		}
		listed[revision] = describe(objects)
	}
	counted := 0
	for revision, want := range listed {
		objects, err := s.History.ListAt(served.Services, "", revision)
		if err == history.ErrExpired { //nolint:errorlint // that very value
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		counted++
		if got := describe(objects); got != want {
			t.Errorf("at %d: %s, was %s", revision, got, want)
		}
	}
	if counted < 50 || counted == len(listed) {
		t.Errorf("%d of %d revisions served; want about as many as the log is long", counted, len(listed))
	}
	//nolint:errorlint // that very value
	if _, err := s.History.ListAt(served.Services, "", s.History.Revision()+1); err != history.ErrFuture {
		t.Errorf("the future is %v", err)
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
	s := syncedStore(t, storagetest.Options{LogBytes: most})
	s.Services().Apply(paddedService(-1))
	before := heap()
	for i := range 500 {
		s.Services().Apply(paddedService(i))
	}
	held := heap() - before
	stats := statsOf(t, s, served.Services)
	if held > most+20000 {
		t.Errorf("the log holds on to %d bytes of the heap, its bound is %d", held, most)
	}
	if stats.PastBytes > most+6000 || stats.PastBytes < most-6000 {
		t.Errorf("the past is said to hold on to %d bytes, its bound is %d", stats.PastBytes, most)
	}
	if stats.PastBytes < held*9/10 {
		t.Errorf("the past is said to hold on to %d bytes, and %d of the heap are held", stats.PastBytes, held)
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
	before := heap()
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
	held := (heap() - before) / services
	t.Logf("%d bytes of the heap a Service", held)
	if held > most {
		t.Errorf("a Service takes %d bytes of the heap, want %d at most", held, most)
	}
	runtime.KeepAlive(s)
}

// heap is how many bytes of the heap are in use.
func heap() int {
	runtime.GC()
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int(stats.HeapAlloc)
}

func statsOf(t *testing.T, s *storagetest.Node, r *served.Resource) history.Stats {
	t.Helper()
	for _, stats := range s.History.Stats() {
		if stats.Resource == r {
			return stats
		}
	}
	t.Fatalf("there are no figures of %s", r.Resource)
	return history.Stats{}
}

// TestRevisionsGrowAcrossRestarts: a later process starts above all that an earlier one gave out.
func TestRevisionsGrowAcrossRestarts(t *testing.T) {
	s := syncedStore(t, storagetest.Options{})
	for i := range 1000 {
		s.Services().Apply(testService(t, "svc", fmt.Sprintf(`["k%d"]`, i)))
	}
	again := syncedStore(t, storagetest.Options{After: s.History.Revision()})
	if again.History.Revision() <= s.History.Revision() {
		t.Errorf("%d after %d", again.History.Revision(), s.History.Revision())
	}
	//nolint:errorlint // that very value
	if _, err := again.History.Watch(served.Services, s.History.Revision()); err != history.ErrExpired {
		t.Errorf("resuming from before the restart: %v", err)
	}
}

// TestNothingIsCountedThatIsGone: the indexes of package facts and the view itself have tests of their own.
func TestNothingIsCountedThatIsGone(t *testing.T) {
	s := syncedStore(t, storagetest.Options{})
	for round := range 3 {
		for i := range 20 {
			s.Services().Apply(testService(t, fmt.Sprintf("svc-%d", i), `["zone","region"]`))
			s.EndpointSlices().Apply(testSlice(t, fmt.Sprintf("s-%d", i), fmt.Sprintf("svc-%d", (i+round)%20),
				"node-a1", fmt.Sprintf("stray-%d", i+round), "node-b1"))
		}
	}
	if c := s.View.Endpoints(served.EndpointSlices); c.Kept != 20 || c.Hidden != 40 {
		t.Errorf("counted: %+v", c)
	}
	s.EndpointSlices().Replace(nil)
	s.Services().Replace(nil)
	s.NodeLabels().Replace(nil)
	if c := s.View.Endpoints(served.EndpointSlices); c != (view.EndpointCount{}) {
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

// load are the lists that a wrapper of the end-to-end benchmark gets: 1,000 nodes in 50 units, 2,000 governed Services
// of 50 endpoints each.
type load struct{ nodes, services, endpoints []*wire.Object }

func newLoad(b *testing.B) load {
	b.Helper()
	r := rand.New(rand.NewPCG(1, 1))
	var l load
	for i := range 1000 {
		l.nodes = append(l.nodes, testNode(b, fmt.Sprintf("node-%d", i), fmt.Sprintf("unit-%d", i%50)))
	}
	for i := range 2000 {
		name := fmt.Sprintf("svc-%d", i)
		l.services = append(l.services, testService(b, name, `["zone"]`))
		var on []string
		for range 50 {
			on = append(on, fmt.Sprintf("node-%d", r.IntN(1000)))
		}
		l.endpoints = append(l.endpoints, testSlice(b, name, name, on...))
	}
	return l
}

// sync fills the cache of a node as its first lists do.
func (l load) sync() *storagetest.Node {
	s := storagetest.New(storagetest.Options{NodeName: "node-0", KeepKubernetesEndpoint: true})
	s.NodeLabels().Replace(l.nodes)
	s.Services().Replace(l.services)
	s.EndpointSlices().Replace(l.endpoints)
	return s
}

// fleet is a node that has the load.
func fleet(b *testing.B) *storagetest.Node {
	b.Helper()
	return newLoad(b).sync()
}

// BenchmarkSync is what the first lists cost in the cache, without reading and decoding them.
func BenchmarkSync(b *testing.B) {
	l := newLoad(b)
	b.ReportAllocs()
	for b.Loop() {
		l.sync()
	}
}

// BenchmarkRelabelOtherNode moves a neighbour between units: about 100 of 2,000 slices are pruned anew.
func BenchmarkRelabelOtherNode(b *testing.B) {
	s := fleet(b)
	labels := []*wire.Object{testNode(b, "node-1", "unit-0"), testNode(b, "node-1", "unit-1")}
	in := s.NodeLabels()
	before := s.History.Revision()
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		in.Apply(labels[i%2])
		i++
	}
	b.ReportMetric(float64(s.History.Revision()-before)/float64(i), "events/op")
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
	versions := []*wire.Object{
		testSlice(b, "svc-7", "svc-7", manyNodes(50)...), testSlice(b, "svc-7", "svc-7", manyNodes(49)...),
	}
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
