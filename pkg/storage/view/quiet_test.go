package view_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/application-grid/application-grid/internal/testkit/liveheap"
	"github.com/application-grid/application-grid/internal/testkit/storagetest"
	"github.com/application-grid/application-grid/internal/testkit/wiretest"
	"github.com/application-grid/application-grid/pkg/storage/facts"
	"github.com/application-grid/application-grid/pkg/storage/history"
	"github.com/application-grid/application-grid/pkg/storage/served"
	"github.com/application-grid/application-grid/pkg/storage/wire"
)

// version is a slice as the EndpointSlice controller writes it for the n-th time: with another generation and another
// time of the last change. Its endpoints are on the nodes, in turn; the changing one of them has an address of its own.
func version(n int, service string, endpoints, changing int, nodes ...string) *wire.Object {
	on := make([]string, endpoints)
	for i := range on {
		on[i] = nodes[i%len(nodes)]
	}
	s := wiretest.SliceOf(service+"-1", service, on...)
	s.Generation, s.ResourceVersion = int64(n), fmt.Sprint(n)
	s.Annotations = map[string]string{
		corev1.EndpointsLastChangeTriggerTime: time.Unix(int64(n), 0).UTC().Format(time.RFC3339),
	}
	s.Endpoints[changing].Addresses = []string{fmt.Sprintf("10.1.%d.%d", n>>8&255, n&255)}
	return wiretest.Object(s)
}

// TestChangesElsewhereAreNoEvents: of a governed Service the endpoints of other sites come, change and go, and this
// node hears nothing of it; when one of its own changes, it hears.
func TestChangesElsewhereAreNoEvents(t *testing.T) {
	for _, keys := range []string{`["zone"]`, `["zone","*"]`, `["missing","zone"]`} {
		t.Run(keys, func(t *testing.T) {
			n := syncedStore(t, storagetest.Options{})
			n.Services().Apply(wiretest.Service("svc", keys))
			nodes := []string{"node-a1", "node-b1"}
			n.EndpointSlices().Apply(version(1, "svc", 4, 1, nodes...))
			cursor := watchFrom(t, n.History, served.EndpointSlices, n.History.Revision())
			revision := n.History.Revision()
			for i := 2; i < 200; i++ {
				n.EndpointSlices().Apply(version(i, "svc", 4, 1, nodes...))
			}
			n.NodeLabels().Apply(wiretest.Node("node-b1", "c"))
			n.NodeLabels().Remove("", "node-b1")
			if events, _, err := cursor.Next(10); err != nil || len(events) > 0 || n.History.Revision() != revision {
				t.Fatalf("%d events of another site's endpoints, %v", len(events), err)
			}
			n.EndpointSlices().Apply(version(200, "svc", 4, 0, nodes...))
			events, _, err := cursor.Next(10)
			if err != nil || len(events) != 1 {
				t.Fatalf("%d events of the own site's endpoints, %v", len(events), err)
			}
			s := decoded[*discoveryv1.EndpointSlice](t, events[0].Object)
			if s.Generation != 200 || len(s.Endpoints) != 2 {
				t.Errorf("got %+v", s)
			}
		})
	}
}

// TestMemoryOfChanges asserts the heap after many changes of one slice, of which this node may see some endpoints, none
// or all: where it sees none, so many that 262 bytes of each are too many; else three times what the log may keep.
func TestMemoryOfChanges(t *testing.T) {
	for _, test := range []struct {
		name               string
		keys               string
		changes, endpoints int
		changing           int // even ones are on this node's site
		most               int
	}{
		{"another site's", `["zone"]`, 4000, 100, 1, 1 << 20},
		{"the own site's", `["zone"]`, 600, 1000, 0, history.DefaultLogBytes + 1<<20},
		{"not governed", "", 300, 1000, 1, history.DefaultLogBytes + 1<<20},
	} {
		t.Run(test.name, func(t *testing.T) {
			n := syncedStore(t, storagetest.Options{})
			n.Services().Apply(wiretest.Service("svc", test.keys))
			nodes := []string{"node-a1", "node-b1"}
			n.EndpointSlices().Apply(version(1, "svc", test.endpoints, test.changing, nodes...))
			// Each change is an object of its own, as it comes from an upstream.
			var messages [][]byte
			for i := range 16 {
				v := version(2+i, "svc", test.endpoints, test.changing, nodes...)
				messages = append(messages, wire.AppendObject(nil, v.Meta, v.Body, 0))
			}
			before := liveheap.Size()
			for i := range test.changes {
				o, err := wire.ParseObject(messages[i%len(messages)])
				if err != nil {
					t.Fatal(err)
				}
				n.EndpointSlices().Apply(o)
			}
			if grown := liveheap.Size() - before; grown > test.most {
				t.Errorf("%d changes have grown the heap by %d bytes, more than %d", test.changes, grown, test.most)
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
			wiretest.Slice(fmt.Sprint("s", i), "", strings.Split(strings.Repeat("node-b1 ", 49)+"node-a1", " ")...))
	}
	n.EndpointSlices().Replace(slices)
	objects, _, err := n.History.List(served.EndpointSlices, "", 0)
	if err != nil {
		t.Fatal(err)
	}
	before, total := liveheap.Size(), 0
	for _, o := range objects {
		encoded, err := o.JSON()
		if err != nil {
			t.Fatal(err)
		}
		total += len(encoded)
	}
	if grown := liveheap.Size() - before; grown > history.DefaultJSONBytes+1<<20 || total < 2*history.DefaultJSONBytes {
		t.Errorf("encoding %d bytes of JSON has grown the heap by %d", total, grown)
	}
	runtime.KeepAlive(n)
}

// TestNoStateThatNeverWas: every state that a watcher goes through is that of one moment of the facts. A neighbour
// leaves the zone of a Service with two keys and two slices, or dies; nobody sees one slice without endpoints while the
// other one is not shown by the next key yet.
func TestNoStateThatNeverWas(t *testing.T) {
	n := syncedStore(t, storagetest.Options{})
	n.Services().Apply(wiretest.Service("svc", `["zone","*"]`))
	n.EndpointSlices().Apply(wiretest.Slice("one", "svc", "node-a2", "node-b2"))
	n.EndpointSlices().Apply(wiretest.Slice("two", "svc", "node-a2", "node-b1"))
	for what, step := range map[string]func(){
		"leaves": func() { n.NodeLabels().Apply(wiretest.Node("node-a2", "b")) },
		"comes":  func() { n.NodeLabels().Apply(wiretest.Node("node-a2", "a")) },
		"dies":   func() { n.SetDoubted(facts.Dead, nodeSet("node-a2")) },
		"lives":  func() { n.SetDoubted(facts.Dead, nil) },
	} {
		cursor := watchNow(t, n.History)
		step()
		seen := map[string]bool{}
		events, _ := next(t, cursor)
		for _, e := range events {
			if seen[e.Object.Name] {
				t.Errorf("%s: %s is shown twice on the way", what, e.Object.Name)
			}
			seen[e.Object.Name] = true
			if len(decoded[*discoveryv1.EndpointSlice](t, e.Object).Endpoints) == 0 {
				t.Errorf("%s: %s is shown empty on the way", what, e.Object.Name)
			}
		}
	}
}

// TestStepsAreAtomic: a reader of the History sees all of a step or nothing of it.
func TestStepsAreAtomic(t *testing.T) {
	n := syncedStore(t, storagetest.Options{})
	n.Services().Apply(wiretest.Service("svc", `["zone"]`))
	for i := range 50 {
		n.EndpointSlices().Apply(wiretest.Slice(fmt.Sprintf("s%02d", i), "svc", "node-a2"))
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
				n.NodeLabels().Apply(wiretest.Node("node-a2", []string{"b", "a"}[i%2]))
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
