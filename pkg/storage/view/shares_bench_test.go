package view_test

import (
	"fmt"
	"runtime"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/application-grid/application-grid/pkg/storage/facts"
	"github.com/application-grid/application-grid/pkg/storage/storagetest"
	"github.com/application-grid/application-grid/pkg/wire"
	"github.com/application-grid/application-grid/pkg/wire/wiretest"
)

// The cluster of the benchmarks of shares: 10,000 nodes in 1,000 units, and 20,000 Services with 50 endpoints in as
// many units, so a share has 1,000 of 20,000 slices.
const (
	benchUnits    = 1000
	benchPerUnit  = 10
	benchServices = 20000
	benchSpread   = 50
)

type benchHub struct {
	hub *storagetest.Hub
	// facts and shares are the heap that each takes, in MB.
	facts, shares float64
}

// largeHub is a hub at work, with one node of every unit asking. All benchmarks share it.
func largeHub(tb testing.TB) *benchHub {
	tb.Helper()
	makeLargeHub.Do(func() { theLargeHub = newLargeHub(tb) })
	return theLargeHub
}

var (
	makeLargeHub sync.Once
	theLargeHub  *benchHub
)

func newLargeHub(tb testing.TB) *benchHub {
	tb.Helper()
	hub := storagetest.NewHub(nil)
	empty := heapMB()
	nodes := make([]*wire.Object, 0, benchUnits*benchPerUnit)
	for i := range benchUnits * benchPerUnit {
		nodes = append(nodes, wiretest.Object(&corev1.Node{ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprintf("node-%d", i), UID: types.UID(fmt.Sprint(i)),
			Labels: map[string]string{"zone": fmt.Sprint(i % benchUnits)},
		}}))
	}
	hub.Input(facts.InputNode).Replace(nodes)
	hub.Input(facts.InputNodes).Replace(nodes)
	services, slices := make([]*wire.Object, 0, benchServices), make([]*wire.Object, 0, benchServices)
	for i := range benchServices {
		services = append(services, benchService(i))
		slices = append(slices, benchSlice(tb, i, 0))
	}
	hub.Input(facts.InputServices).Replace(services)
	hub.Input(facts.InputEndpointSlices).Replace(slices)
	followed := heapMB()
	for i := range benchUnits {
		if _, _, err := hub.Shares.Class(fmt.Sprintf("node-%d", i), func() {}); err != nil {
			panic(err)
		}
	}
	return &benchHub{hub: hub, facts: followed - empty, shares: heapMB() - followed}
}

func heapMB() float64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return float64(stats.HeapAlloc) / (1 << 20)
}

func benchService(i int) *wire.Object {
	return wiretest.Object(&corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: fmt.Sprintf("s%d", i), UID: types.UID(fmt.Sprint("s", i)),
			Annotations: map[string]string{"topologyKeys": `["zone"]`},
		},
		Spec: corev1.ServiceSpec{ClusterIP: "10.0.0.1", Ports: []corev1.ServicePort{{Port: 80}}},
	})
}

// benchSlice is the slice of a Service. In another version its first endpoint is on another node of the same unit.
func benchSlice(tb testing.TB, i, version int) *wire.Object {
	tb.Helper()
	on := make([]string, benchSpread)
	for j := range on {
		on[j] = fmt.Sprintf("node-%d", (i*benchSpread+j)%benchUnits+benchUnits*((i+j)%benchPerUnit))
	}
	on[0] = fmt.Sprintf("node-%d", i*benchSpread%benchUnits+benchUnits*(version%benchPerUnit))
	return testSlice(tb, fmt.Sprintf("s%d-1", i), fmt.Sprintf("s%d", i), on...)
}

// BenchmarkShareOfASliceEvent is a change of one endpoint of a slice with endpoints in 50 units, of which one sees it.
func BenchmarkShareOfASliceEvent(b *testing.B) {
	large := largeHub(b)
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		b.StopTimer()
		i++
		o := benchSlice(b, i%benchServices, i/benchServices+i%9+1)
		b.StartTimer()
		large.hub.Input(facts.InputEndpointSlices).Apply(o)
	}
	b.ReportMetric(large.facts, "MB-facts")
	b.ReportMetric(large.shares, "MB-shares")
}

// BenchmarkShareOfAHeartbeat is a report of a node's status, which is no event in any share.
func BenchmarkShareOfAHeartbeat(b *testing.B) {
	large := largeHub(b)
	i := 0
	for b.Loop() {
		i++
		o := wiretest.Object(&corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "node-7", UID: "7", Labels: map[string]string{"zone": "7"}},
			Status:     corev1.NodeStatus{NodeInfo: corev1.NodeSystemInfo{KernelVersion: fmt.Sprint(i)}},
		})
		large.hub.Input(facts.InputNode).Apply(o)
		large.hub.Input(facts.InputNodes).Apply(o)
	}
}
