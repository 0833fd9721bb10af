package view_test

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/application-grid/application-grid/pkg/storage/history"
	"github.com/application-grid/application-grid/pkg/storage/served"
	"github.com/application-grid/application-grid/pkg/storage/storagetest"
	"github.com/application-grid/application-grid/pkg/storage/wire"
	"github.com/application-grid/application-grid/pkg/storage/wire/wiretest"
)

// version is a slice as the EndpointSlice controller writes it for the n-th time: with another generation and another
// time of the last change. Its endpoints are on the nodes, in turn; the changing one of them has an address of its own.
func version(n int, service string, endpoints, changing int, nodes ...string) *wire.Object {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: service + "-1", UID: "uid", Generation: int64(n), ResourceVersion: fmt.Sprint(n),
			Labels: map[string]string{discoveryv1.LabelServiceName: service},
			Annotations: map[string]string{
				corev1.EndpointsLastChangeTriggerTime: time.Unix(int64(n), 0).UTC().Format(time.RFC3339),
			},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	for i := range endpoints {
		address := fmt.Sprintf("10.0.%d.%d", i>>8, i&255)
		if i == changing {
			address = fmt.Sprintf("10.1.%d.%d", n>>8&255, n&255)
		}
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{address}, NodeName: ptr.To(nodes[i%len(nodes)]),
			Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true)},
			TargetRef:  &corev1.ObjectReference{Kind: "Pod", Namespace: "ns", Name: fmt.Sprint(service, "-", i)},
		})
	}
	return wiretest.Object(s)
}

// TestChangesElsewhereAreNoEvents: of a governed Service the endpoints of other units come, change and go, and this
// node hears nothing of it; when one of its own changes, it hears.
func TestChangesElsewhereAreNoEvents(t *testing.T) {
	for _, keys := range []string{`["zone"]`, `["zone","*"]`, `["missing","zone"]`} {
		t.Run(keys, func(t *testing.T) {
			n := syncedStore(t, storagetest.Options{})
			n.Services().Apply(testService(t, "svc", keys))
			nodes := []string{"node-a1", "node-b1"}
			n.EndpointSlices().Apply(version(1, "svc", 4, 1, nodes...))
			cursor, err := n.History.Watch(served.EndpointSlices, n.History.Revision())
			if err != nil {
				t.Fatal(err)
			}
			revision := n.History.Revision()
			for i := 2; i < 200; i++ {
				n.EndpointSlices().Apply(version(i, "svc", 4, 1, nodes...))
			}
			n.NodeLabels().Apply(testNode(t, "node-b1", "c"))
			n.NodeLabels().Remove("", "node-b1")
			if events, _, err := cursor.Next(10); err != nil || len(events) > 0 || n.History.Revision() != revision {
				t.Fatalf("%d events of another unit's endpoints, %v", len(events), err)
			}
			n.EndpointSlices().Apply(version(200, "svc", 4, 0, nodes...))
			events, _, err := cursor.Next(10)
			if err != nil || len(events) != 1 {
				t.Fatalf("%d events of the own unit's endpoints, %v", len(events), err)
			}
			typed, err := events[0].Object.Decode()
			if err != nil {
				t.Fatal(err)
			}
			if s := typed.(*discoveryv1.EndpointSlice); s.Generation != 200 || len(s.Endpoints) != 2 {
				t.Errorf("got %+v", s)
			}
		})
	}
}

// TestMemoryOfChanges asserts the heap after thousands of changes of one slice of 1,000 endpoints, of which this node
// may see some, none or all.
func TestMemoryOfChanges(t *testing.T) {
	const changes, endpoints = 4000, 1000
	for _, test := range []struct {
		name     string
		keys     string
		changing int // even ones are on this node's unit
		most     int
	}{
		{"another unit's", `["zone"]`, 1, 1 << 20},
		{"the own unit's", `["zone"]`, 0, history.DefaultLogBytes + 1<<20},
		{"not governed", "", 1, history.DefaultLogBytes + 1<<20},
	} {
		t.Run(test.name, func(t *testing.T) {
			n := syncedStore(t, storagetest.Options{})
			n.Services().Apply(testService(t, "svc", test.keys))
			nodes := []string{"node-a1", "node-b1"}
			n.EndpointSlices().Apply(version(1, "svc", endpoints, test.changing, nodes...))
			// Each change is an object of its own, as it comes from an upstream.
			var messages [][]byte
			for i := range 16 {
				v := version(2+i, "svc", endpoints, test.changing, nodes...)
				messages = append(messages, wire.AppendObject(nil, v.Meta, v.Body, 0))
			}
			before := heap()
			for i := range changes {
				o, err := wire.ParseObject(messages[i%len(messages)])
				if err != nil {
					t.Fatal(err)
				}
				n.EndpointSlices().Apply(o)
			}
			if grown := heap() - before; grown > test.most {
				t.Errorf("%d changes have grown the heap by %d bytes, more than %d", changes, grown, test.most)
			}
			runtime.KeepAlive(n)
		})
	}
}

// TestMemoryOfJSONLists: what a list in JSON takes is given back.
func TestMemoryOfJSONLists(t *testing.T) {
	n := syncedStore(t, storagetest.Options{})
	var slices []*wire.Object
	for i := range 2000 {
		slices = append(slices,
			testSlice(t, fmt.Sprint("s", i), "", strings.Split(strings.Repeat("node-b1 ", 49)+"node-a1", " ")...))
	}
	n.EndpointSlices().Replace(slices)
	objects, _, err := n.History.List(served.EndpointSlices, "", 0)
	if err != nil {
		t.Fatal(err)
	}
	before, total := heap(), 0
	for _, o := range objects {
		encoded, err := o.JSON()
		if err != nil {
			t.Fatal(err)
		}
		total += len(encoded)
	}
	if grown := heap() - before; grown > history.DefaultJSONBytes+1<<20 || total < 2*history.DefaultJSONBytes {
		t.Errorf("encoding %d bytes of JSON has grown the heap by %d", total, grown)
	}
	runtime.KeepAlive(n)
}

// TestMemoryOfUnknownUnits: units that no node is of cost no more than one of them.
func TestMemoryOfUnknownUnits(t *testing.T) {
	n := syncedStore(t, storagetest.Options{})
	for i := range 500 {
		name := fmt.Sprint("svc", i)
		n.Services().Apply(testService(t, name, `["zone"]`))
		n.EndpointSlices().Apply(testSlice(
			t, name, name, strings.Split(strings.Repeat("node-b1 ", 49)+"node-a1", " ")...,
		))
	}
	ask := func(unit string) {
		h, release, err := n.Units.History(unit)
		if err != nil {
			t.Fatal(err)
		}
		defer release()
		if _, _, err := h.List(served.EndpointSlices, "", 0); err != nil {
			t.Fatal(err)
		}
	}
	ask("nowhere")
	before := heap()
	for i := range 1000 {
		ask(fmt.Sprint("nowhere", i))
	}
	if grown := heap() - before; grown > 256<<10 || n.Units.Len() != 1 {
		t.Errorf("a thousand unknown units have grown the heap by %d bytes, and there are %d views",
			grown, n.Units.Len())
	}
	runtime.KeepAlive(n)
}

// TestNoStateThatNeverWas: every state that a watcher goes through is that of one moment of the facts. A neighbour
// leaves the zone of a Service with two keys and two slices; nobody sees one slice without endpoints while the other
// one is not shown by the next key yet.
func TestNoStateThatNeverWas(t *testing.T) {
	n := syncedStore(t, storagetest.Options{})
	n.Services().Apply(testService(t, "svc", `["zone","*"]`))
	n.EndpointSlices().Apply(testSlice(t, "one", "svc", "node-a2"))
	n.EndpointSlices().Apply(testSlice(t, "two", "svc", "node-a2", "node-b1"))
	for step, want := range map[string]int{"b": 2, "a": 2} {
		cursor, err := n.History.Watch(served.EndpointSlices, n.History.Revision())
		if err != nil {
			t.Fatal(err)
		}
		n.NodeLabels().Apply(testNode(t, "node-a2", step))
		events, _, err := cursor.Next(10)
		if err != nil || len(events) > want {
			t.Fatalf("%d events, %v", len(events), err)
		}
		seen := map[string]bool{}
		for _, e := range events {
			if seen[e.Object.Name] {
				t.Errorf("%s is shown twice on the way", e.Object.Name)
			}
			seen[e.Object.Name] = true
			typed, err := e.Object.Decode()
			if err != nil {
				t.Fatal(err)
			}
			if len(typed.(*discoveryv1.EndpointSlice).Endpoints) == 0 {
				t.Errorf("%s is shown empty on the way", e.Object.Name)
			}
		}
	}
}

// TestStepsAreAtomic: a reader of the History sees all of a step or nothing of it.
func TestStepsAreAtomic(t *testing.T) {
	n := syncedStore(t, storagetest.Options{})
	n.Services().Apply(testService(t, "svc", `["zone"]`))
	for i := range 50 {
		n.EndpointSlices().Apply(testSlice(t, fmt.Sprintf("s%02d", i), "svc", "node-a2"))
	}
	stop := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
				n.NodeLabels().Apply(testNode(t, "node-a2", []string{"b", "a"}[i%2]))
			}
		}
	}()
	for range 500 {
		objects, _, err := n.History.List(served.EndpointSlices, "", 0)
		if err != nil {
			t.Fatal(err)
		}
		full := 0
		for _, o := range objects {
			if len(o.Body) > 20 {
				full++
			}
		}
		if full != 0 && full != len(objects) {
			t.Fatalf("%d of %d slices have endpoints", full, len(objects))
		}
	}
	close(stop)
	<-done
}

// TestTruncatedEndpointsAreCompleted: the endpoints controller keeps 1,000 addresses of whatever units; a governed
// Service's Endpoints are completed from its slices.
func TestTruncatedEndpointsAreCompleted(t *testing.T) {
	n := syncedStore(t, storagetest.Options{})
	n.Services().Apply(testService(t, "svc", `["zone"]`))
	truncated := &corev1.Endpoints{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: "svc", Annotations: map[string]string{corev1.EndpointsOverCapacity: "truncated"},
		},
		Subsets: []corev1.EndpointSubset{
			{
				Addresses: []corev1.EndpointAddress{{IP: "10.9.9.9", NodeName: ptr.To("node-b1")}},
				Ports:     []corev1.EndpointPort{{Port: 80}},
			},
		},
	}
	n.Endpoints().Replace([]*wire.Object{wiretest.Object(truncated)})
	shown := func() string {
		o, err := n.History.Get(served.Endpoints, types.NamespacedName{Namespace: "ns", Name: "svc"}, 0)
		if err != nil {
			t.Fatal(err)
		}
		typed, err := o.Decode()
		if err != nil {
			t.Fatal(err)
		}
		var all []string
		for _, s := range typed.(*corev1.Endpoints).Subsets {
			for _, a := range s.Addresses {
				all = append(all, *a.NodeName)
			}
			for _, a := range s.NotReadyAddresses {
				all = append(all, *a.NodeName+" unready")
			}
		}
		return strings.Join(all, ",")
	}
	if got := shown(); got != "" {
		t.Errorf("without slices: %s", got)
	}
	n.EndpointSlices().Apply(testSlice(t, "one", "svc", "node-a1", "node-b1"))
	n.EndpointSlices().Apply(testSlice(t, "two", "svc", "node-b2", "node-a2"))
	if got := shown(); got != "node-a1,node-a2" {
		t.Errorf("with slices: %s", got)
	}
	n.NodeLabels().Apply(testNode(t, "node-b2", "a"))
	if got := shown(); got != "node-a1,node-b2,node-a2" {
		t.Errorf("after a relabel: %s", got)
	}
	n.EndpointSlices().Remove("ns", "one")
	if got := shown(); got != "node-b2,node-a2" {
		t.Errorf("after a slice went: %s", got)
	}
	n.Services().Apply(testService(t, "svc", ""))
	if got := shown(); got != "node-b1" {
		t.Errorf("not governed: %s", got)
	}
}

// TestHeldBackIsOneStep: what the sources say between Hold and Release, in any order, is one step in the end.
func TestHeldBackIsOneStep(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 1))
		n := syncedStore(t, storagetest.Options{})
		n.Services().Apply(testService(t, "svc", `["zone"]`))
		n.EndpointSlices().Apply(testSlice(t, "svc-1", "svc", "node-a2", "node-b1"))
		cursor, err := n.History.Watch(served.EndpointSlices, n.History.Revision())
		if err != nil {
			t.Fatal(err)
		}
		n.Hold()
		// Meanwhile this node moved to zone b, and the slice changed.
		news := []func(){
			func() { n.NodeLabels().Apply(testNode(t, "node-a1", "b")) },
			func() { n.EndpointSlices().Replace([]*wire.Object{testSlice(t, "svc-1", "svc", "node-a2", "node-b2")}) },
			func() { n.NodeLabels().Apply(testNode(t, "node-c", "c")); n.NodeLabels().Remove("", "node-c") },
		}
		r.Shuffle(len(news), func(i, j int) { news[i], news[j] = news[j], news[i] })
		for _, say := range news {
			say()
		}
		if got := nodesShown(t, n.History, "svc-1"); got != "node-a2" {
			t.Fatalf("while it is held back: %s", got)
		}
		n.Release()
		events, _, err := cursor.Next(10)
		if err != nil || len(events) != 1 || nodesShown(t, n.History, "svc-1") != "node-b2" {
			t.Fatalf("%d events, %v; shows %s", len(events), err, nodesShown(t, n.History, "svc-1"))
		}
		// Afterwards everything is applied as it comes.
		n.NodeLabels().Apply(testNode(t, "node-a2", "b"))
		if got := nodesShown(t, n.History, "svc-1"); got != "node-a2,node-b2" {
			t.Fatalf("after the release: %s", got)
		}
	}
}
