package hub

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	goruntime "runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/gzip"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"

	"github.com/application-grid/application-grid/internal/testkit/liveheap"
	"github.com/application-grid/application-grid/internal/testkit/wiretest"
	hubv1alpha1 "github.com/application-grid/application-grid/pkg/apis/hub.superedge.io/v1alpha1"
	"github.com/application-grid/application-grid/pkg/storage/facts"
	"github.com/application-grid/application-grid/pkg/storage/wire"
)

// boundsWorld is the shares of many nodes, without a server.
type boundsWorld struct {
	*shares

	nodes, services, slices *facts.Input
}

// newBoundsWorld has these nodes, Services with their keys, and slices.
func newBoundsWorld(nodes []*wire.Object, services map[string]string, slices ...*wire.Object) *boundsWorld {
	f := facts.New(facts.Options{})
	w := &boundsWorld{
		newShares(f, DefaultMaxQueuedBytes), f.Input(facts.InputNodes), f.Input(facts.InputServices),
		f.Input(facts.InputEndpointSlices),
	}
	var objects []*wire.Object
	for name, keys := range services {
		objects = append(objects, wiretest.Service(name, keys))
	}
	w.nodes.Replace(nodes)
	w.services.Replace(objects)
	w.slices.Replace(slices)
	return w
}

// boundsNode is a node as a kubelet reports it, with a status as large as many are.
func boundsNode(i, zone, beat int) *wire.Object {
	name := fmt.Sprintf("node-%d", i)
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: name, UID: types.UID(name),
		Labels: map[string]string{"zone": fmt.Sprint(zone), "kubernetes.io/hostname": name},
	}}
	for _, kind := range []corev1.NodeConditionType{"Ready", "MemoryPressure", "DiskPressure", "PIDPressure"} {
		n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{
			Type: kind, Status: "False", LastHeartbeatTime: metav1.Unix(1_700_000_000+int64(beat)*300, 0),
		})
	}
	for j := range 50 {
		n.Status.Images = append(n.Status.Images, corev1.ContainerImage{Names: []string{
			fmt.Sprintf("registry.example.org/some/project/image-%d@sha256:%064d", j, j),
		}})
	}
	return wiretest.Object(n)
}

// boundsNodes are so many nodes, spread over zones as zone says.
func boundsNodes(count int, zone func(i int) int) (nodes []*wire.Object) {
	for i := range count {
		nodes = append(nodes, boundsNode(i, zone(i), 0))
	}
	return nodes
}

func boundsSlice(name, service string, version int, nodes ...int) *wire.Object {
	slice := wiretest.SliceOf(name, service)
	for i, node := range nodes {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Addresses:  []string{fmt.Sprintf("10.%d.%d.%d", node/256, node%256, i)},
			NodeName:   ptr.To(fmt.Sprintf("node-%d", node)),
			Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(version%2 == 0)},
		})
	}
	return wiretest.Object(slice)
}

// stream begins one. known are the digests of what its client has; nil for nothing.
func (w *boundsWorld) stream(tb testing.TB, node int, known *hubv1alpha1.Digests) *stream {
	tb.Helper()
	st, err := w.beginStream(fmt.Sprintf("node-%d", node), known, func() {})
	if err != nil {
		tb.Fatal(err)
	}
	return st
}

// digestsOf are what a client of the stream has when it has everything.
func digestsOf(w *boundsWorld, st *stream) hubv1alpha1.Digests {
	w.mu.Lock()
	defer w.mu.Unlock()
	return *st.digests()
}

// drain takes what a stream is to be sent.
func drain(tb testing.TB, st *stream) (bytes int) {
	tb.Helper()
	data, sent, err := st.Next()
	if err != nil {
		tb.Fatal(err)
	}
	for _, member := range data {
		bytes += len(member)
	}
	if sent != nil {
		sent(nil)
	}
	return bytes
}

// frames takes what a stream is to be sent, as it was before it was compressed.
func frames(t *testing.T, st *stream) string {
	t.Helper()
	data, sent, err := st.Next()
	if err != nil {
		t.Fatal(err)
	}
	defer sent(nil)
	zip, err := gzip.NewReader(bytes.NewReader(bytes.Join(data, nil)))
	if err != nil {
		t.Fatal(err)
	}
	all, err := io.ReadAll(zip)
	if err != nil {
		t.Fatal(err)
	}
	return string(all)
}

// TestLabelsGoWithTheLastClass: the labels of a node are in a share as long as a class of it names the node, and no
// longer.
func TestLabelsGoWithTheLastClass(t *testing.T) {
	w := newBoundsWorld([]*wire.Object{boundsNode(1, 0, 0), boundsNode(2, 0, 0)},
		map[string]string{"strict": `["zone"]`, "near": `["kubernetes.io/hostname","zone"]`},
		boundsSlice("strict-1", "strict", 0, 2), boundsSlice("near-1", "near", 0, 2))
	st := w.stream(t, 1, nil)
	drain(t, st)
	for i, slice := range []string{"strict-1", "near-1"} {
		w.slices.Remove("ns", slice)
		if got := frames(t, st); strings.Count(got, "DELETED") != i+1 {
			t.Errorf("without %s: %q", slice, got)
		}
	}
}

// TestARelabelSendsWhatDiffers: a node that moves to another site is sent that site's slices, and no Services, of which
// it has the same. It keeps the labels that another class names.
func TestARelabelSendsWhatDiffers(t *testing.T) {
	const services = 1000
	all := map[string]string{"racks": `["rack"]`}
	slices := []*wire.Object{boundsSlice("racks", "racks", 0, 1), boundsSlice("both", "svc-0000", 0, 3, 1, 2)}
	for i := range services {
		name := fmt.Sprintf("svc-%04d", i)
		all[name] = `["zone"]`
		slices = append(slices, boundsSlice(name+"-a", name, 0, 1), boundsSlice(name+"-b", name, 0, 2))
	}
	node := func(i int, zone, rack string) *wire.Object {
		return wiretest.Object(nodeObject(fmt.Sprintf("node-%d", i), map[string]string{"zone": zone, "rack": rack}))
	}
	w := newBoundsWorld([]*wire.Object{node(0, "a", "1"), node(1, "a", "1"), node(2, "b", "2")}, all, slices...)
	st := w.stream(t, 0, nil)
	var known hubv1alpha1.Digests
	addMarks(t, &known, frames(t, st))
	w.nodes.Apply(node(0, "b", "1"))
	got := frames(t, st)
	for what, n := range map[string]int{
		"topologyKeys": 0, "DELETED": services, "10.0.2.0": services, "10.0.2.2": 1, "10.0.1.": 0,
	} {
		if has := strings.Count(got, what); has != n {
			t.Errorf("%d times %q, and not %d times", has, what, n)
		}
	}
	if addMarks(t, &known, got); known != digestsOf(w, st) {
		t.Error("the digests are not those of the new share")
	}
	if classes := w.stats().classes; classes != 2 {
		t.Errorf("%d classes, and the node is in one by zone and one by rack", classes)
	}
	w.nodes.Apply(node(0, "b", "2"))
	if got := frames(t, st); strings.Count(got, "DELETED") != 2 { // the slice of racks, and the labels of node-1
		t.Errorf("another rack: %q", got)
	}
}

// addMarks does with the marks of frames what a client does.
func addMarks(t *testing.T, digests *hubv1alpha1.Digests, frames string) {
	t.Helper()
	var whole [hubv1alpha1.Buckets]bool
	for len(frames) > 0 {
		size := 4 + binary.BigEndian.Uint32([]byte(frames))
		event, envelope, object := &metav1.WatchEvent{}, &runtime.Unknown{}, &metav1.PartialObjectMetadata{}
		if err := event.Unmarshal([]byte(frames[4:size])); err != nil {
			t.Fatal(err)
		}
		frames = frames[size:]
		if event.Type != string(watch.Bookmark) {
			continue
		}
		if err := envelope.Unmarshal(bytes.TrimPrefix(event.Object.Raw, []byte("k8s\x00"))); err != nil {
			t.Fatal(err)
		}
		if err := object.Unmarshal(envelope.Raw); err != nil {
			t.Fatal(err)
		}
		mark, err := hubv1alpha1.ParseBookmark(object.ResourceVersion, object.Annotations)
		if err != nil {
			t.Fatal(err)
		}
		mark.AddTo(digests, &whole)
	}
}

// TestDaysOfReports: kubelets report, slices flap, and nothing of it stays.
func TestDaysOfReports(t *testing.T) {
	const nodes, zones, beats = 6, 2, 3 * 288 // three days
	w := newBoundsWorld(boundsNodes(nodes, func(i int) int { return i % zones }),
		map[string]string{"free": "[]", "strict": `["zone"]`},
		boundsSlice("free-1", "free", 0, 1, 2, 3), boundsSlice("strict-1", "strict", 0, 1, 2, 3))
	var streams []*stream
	for i := range nodes {
		streams = append(streams, w.stream(t, i, nil))
	}
	day := func(from int) {
		for beat := from; beat < from+beats/3; beat++ {
			for i := range nodes {
				w.nodes.Apply(boundsNode(i, i%zones, beat))
			}
			w.slices.Apply(boundsSlice("free-1", "free", beat, 1, 2, 3))
			w.slices.Apply(boundsSlice("strict-1", "strict", beat, 1, 2, 3))
			for _, st := range streams {
				drain(t, st)
			}
		}
	}
	day(1)
	before := liveheap.Size()
	day(1 + beats/3)
	day(1 + 2*beats/3)
	grown := liveheap.Size() - before
	t.Logf("two more days of %d nodes: %d bytes of heap", nodes, grown)
	if grown > 1<<20 {
		t.Errorf("the heap grew by %d bytes", grown)
	}
	goruntime.KeepAlive(streams)
}

// TestRemovedNodesAreForgotten: nothing is kept of nodes that are gone.
func TestRemovedNodesAreForgotten(t *testing.T) {
	w := newBoundsWorld([]*wire.Object{boundsNode(0, 0, 0)}, map[string]string{"strict": `["zone"]`},
		boundsSlice("strict-1", "strict", 0, 1))
	drain(t, w.stream(t, 0, nil))
	for i := 1; i < 10; i++ {
		w.nodes.Apply(boundsNode(i, 0, 0))
		w.nodes.Remove("", fmt.Sprintf("node-%d", i))
	}
	if kept := len(w.shares.nodes); kept != 1 {
		t.Errorf("%d nodes are kept", kept)
	}
}

// TestHostnameMultipliesNothing: a Service with the key kubernetes.io/hostname, in anybody's namespace, makes every
// node a class of its own set and of no other, and ends no stream.
func TestHostnameMultipliesNothing(t *testing.T) {
	const nodes, open, perZone = 300, 1500, 20
	slicesOf := []*wire.Object{boundsSlice("strict-1", "strict", 0, 1, 2, 3)}
	for i := range open {
		slicesOf = append(slicesOf, boundsSlice(fmt.Sprintf("free-%d", i), "free", 0, i%nodes))
	}
	w := newBoundsWorld(boundsNodes(nodes, func(i int) int { return i / perZone }),
		map[string]string{"free": "[]", "strict": `["zone"]`}, slicesOf...)
	var streams []*stream
	for i := range nodes {
		st := w.stream(t, i, nil)
		drain(t, st)
		streams = append(streams, st)
	}
	before := liveheap.Size()
	w.services.Apply(wiretest.Service("theirs", `["kubernetes.io/hostname"]`))
	w.slices.Apply(boundsSlice("theirs-1", "theirs", 0, 1, 2, 3))
	sent := 0
	for _, st := range streams {
		sent = max(sent, drain(t, st))
	}
	grown := liveheap.Size() - before
	stats := w.stats()
	t.Logf("%d classes, %d bytes of heap, at most %d bytes to a node", stats.classes, grown, sent)
	if grown > 1<<20 || sent > 4<<10 || stats.classes != nodes+nodes/perZone || stats.sets != 2 {
		t.Errorf("%d classes of %d sets, %d bytes of heap, %d bytes to a node", stats.classes, stats.sets, grown, sent)
	}
	// And of keys that no node has there is no class.
	w.services.Apply(wiretest.Service("nobodys", `["nobody/has-it"]`))
	if got := w.stats(); got.classes != stats.classes {
		t.Errorf("%d classes", got.classes)
	}
	goruntime.KeepAlive(streams)
}

// TestManySetsOfKeys: Services beyond maxSets are matched node by node, and shown as well.
func TestManySetsOfKeys(t *testing.T) {
	labels := map[string]string{}
	services := map[string]string{}
	for i := range 3 * maxSets {
		labels[fmt.Sprint("key-", i)] = "here"
		services[fmt.Sprint("svc-", i)] = fmt.Sprintf(`["key-%d"]`, i)
	}
	neighbour := wiretest.Object(nodeObject("node-2", maps.Clone(labels)))
	begin := func() (*boundsWorld, *stream) {
		w := newBoundsWorld([]*wire.Object{wiretest.Object(nodeObject("node-1", labels)), neighbour}, nil)
		st := w.stream(t, 1, nil)
		drain(t, st)
		return w, st
	}
	w, first := begin()
	put := func(w *boundsWorld, name string) {
		w.services.Apply(wiretest.Service(name, services[name]))
		w.slices.Apply(boundsSlice(name, name, 0, 2))
	}
	remove := func(name string) {
		w.services.Remove("ns", name)
		w.slices.Remove("ns", name)
	}
	for name := range services {
		put(w, name)
	}
	drain(t, first)
	if stats := w.stats(); stats.sets != maxSets+1 || stats.classes != maxSets+1 {
		t.Errorf("%d sets and %d classes", stats.sets, stats.classes)
	}
	// Classes go with their last stream, so the next one is told what there is now.
	expectToldAll := func(when string) {
		t.Helper()
		drain(t, first)
		told := digestsOf(w, first)
		first.Close()
		if first = w.stream(t, 1, nil); digestsOf(w, first) != told {
			t.Errorf("%s: what a stream was told step by step is not what a new one is told", when)
		}
		drain(t, first)
	}
	expectToldAll("all are there")
	// When two with sets of their own go, another one has its own, into which its slice moves.
	var own, others []string
	for i := range 3 * maxSets {
		if name := fmt.Sprint("svc-", i); w.sets[fmt.Sprint("key-", i)] != nil {
			own = append(own, name)
		} else {
			others = append(others, name)
		}
	}
	remove(own[0])
	remove(own[1])
	touched := wiretest.ServiceOf(others[0], services[others[0]])
	touched.Labels = map[string]string{"touched": "yes"}
	w.services.Apply(wiretest.Object(touched))
	expectToldAll("a slice has moved into another set")
	put(w, own[0])
	put(w, own[1])
	drain(t, first)
	for key := range labels { // the node moves away from its neighbour, label by label
		labels[key] = "there"
		w.nodes.Apply(wiretest.Object(nodeObject("node-1", labels)))
		wanted := 1
		if !slices.Contains(slices.Collect(maps.Values(labels)), "here") {
			wanted++ // and the neighbour's labels
		}
		if got := frames(t, first); strings.Count(got, "DELETED") != wanted {
			t.Errorf("without the same %s: %q", key, got)
		}
	}
	for name := range services {
		remove(name)
	}
	drain(t, first)
	if stats := w.stats(); stats.sets != 0 || stats.classes != 0 {
		t.Errorf("%d sets and %d classes are left", stats.sets, stats.classes)
	}
	if fresh, of := begin(); digestsOf(w, first) != digestsOf(fresh, of) {
		t.Error("what a stream was told step by step is not what a replica tells that begins now")
	}
}

// TestALaggardIsEnded: what streams have not been sent is bounded, and the one that is behind is ended.
func TestALaggardIsEnded(t *testing.T) {
	w := newBoundsWorld([]*wire.Object{boundsNode(1, 0, 0), boundsNode(2, 0, 0)}, map[string]string{"free": "[]"})
	slow, quick := w.stream(t, 1, nil), w.stream(t, 2, nil)
	w.maxQueued = 64 << 10
	var most int64
	for i := range 200 {
		w.slices.Apply(
			boundsSlice(fmt.Sprint("free-", i), "free", 0, 1, 2, 1, 2, 1, 2, 1, 2))
		drain(t, quick)
		held := w.queued.Load()
		if most = max(most, held); held > w.maxQueued {
			t.Fatalf("%d bytes are held, more than %d", held, w.maxQueued)
		}
	}
	if most < w.maxQueued*9/10 {
		t.Errorf("a stream was ended although only %d of %d bytes were held", most, w.maxQueued)
	}
	if _, _, err := slow.Next(); err == nil || w.stats().behind != 1 {
		t.Errorf("the stream that takes nothing goes on: %v", err)
	}
	w.maxQueued = -1
	if _, err := w.beginStream("node-1", nil, func() {}); !apierrors.IsTooManyRequests(err) {
		t.Errorf("a stream begins while there is no memory for its first step: %v", err)
	}
	slow.Close()
	quick.Close()
	if held := w.stats().queued; held != 0 {
		t.Errorf("%d bytes are held for nobody", held)
	}
}

// TestASwitchCostsKilobytes: a wrapper that comes to another replica is sent what differs.
func TestASwitchCostsKilobytes(t *testing.T) {
	const services = 20_000
	all := make(map[string]string, services)
	for i := range services {
		all[fmt.Sprintf("svc-%05d", i)] = `["zone"]`
	}
	w := newBoundsWorld([]*wire.Object{boundsNode(1, 0, 0)}, all, boundsSlice("svc-00001", "svc-00001", 0, 1))
	first := w.stream(t, 1, nil)
	whole := drain(t, first)
	known := digestsOf(w, first)
	first.Close()
	for _, differs := range []bool{false, true} {
		if differs {
			w.slices.Apply(boundsSlice("svc-00001", "svc-00001", 1, 1))
		}
		again := w.stream(t, 1, &known)
		sent := drain(t, again) + len(known.String())
		t.Logf("differs: %t: %d bytes in place of %d", differs, sent, whole)
		if sent > 20_000 {
			t.Errorf("differs: %t: %d bytes", differs, sent)
		}
		again.Close()
	}
}

// TestMembers: a reader has all of a member before the next one comes.
func TestMembers(t *testing.T) {
	t.Parallel()
	for _, size := range []int{0, 1, 100, 1000, 100_000} {
		frames := bytes.Repeat([]byte("frame"), size/5+1)[:size]
		r, w := io.Pipe()
		go func() {
			_, _ = w.Write(newChunk(frames).member) // and no more
		}()
		got := make(chan []byte, 1)
		go func() {
			zip, err := gzip.NewReader(r)
			if err != nil {
				got <- nil
				return
			}
			read := make([]byte, size)
			_, _ = io.ReadFull(zip, read)
			got <- read
		}()
		select {
		case read := <-got:
			if !slices.Equal(read, frames) {
				t.Errorf("%d bytes: got %d others", size, len(read))
			}
		case <-time.After(20 * time.Second):
			t.Errorf("%d bytes: the reader waits", size)
		}
		_ = w.Close()
	}
}

// TestContentIsNotKeptTooLong: a stream that begins with nothing is sent what its class has now, also if another one
// of the class began before a change.
func TestContentIsNotKeptTooLong(t *testing.T) {
	w := newBoundsWorld([]*wire.Object{boundsNode(1, 0, 0), boundsNode(2, 0, 0)},
		map[string]string{"strict": `["zone"]`, "free": "[]"},
		boundsSlice("strict-1", "strict", 0, 1), boundsSlice("free-1", "free", 0, 1))
	sent := func(node int) string { return frames(t, w.stream(t, node, nil)) }
	sent(1)
	for i, service := range []string{"strict", "free"} {
		w.slices.Apply(boundsSlice(service+"-1", service, 0, 2))
		if strings.Count(sent(2), "10.0.2.0") != i+1 {
			t.Errorf("a stream that begins is not sent the changed slice of %s", service)
		}
	}
}

// TestAVersionIsNotClaimedEarly: between the arrival of a version and that of what it brings, a step of another input
// does not claim it.
func TestAVersionIsNotClaimedEarly(t *testing.T) {
	w := newBoundsWorld(nil, nil)
	w.services.ChangeAt("7", func() {
		w.slices.ChangeAt("9", nil)
		if got := *w.reached.Load(); got != (hubv1alpha1.Version{hubv1alpha1.VersionSlices: 9}) {
			t.Errorf("%s is claimed", got)
		}
		w.services.Replace(nil)
	})
	if got := *w.reached.Load(); got != (hubv1alpha1.Version{0, 7, 9}) {
		t.Errorf("%s is reached", got)
	}
}
