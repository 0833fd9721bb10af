package hub

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/application-grid/application-grid/internal/testkit/liveheap"
	"github.com/application-grid/application-grid/internal/testkit/wiretest"
	"github.com/application-grid/application-grid/pkg/storage/wire"
)

func largeFleetService(i int) *corev1.Service {
	name := fmt.Sprintf("svc-%05d", i)
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: name, UID: types.UID(fmt.Sprintf("%036d", i)),
			Labels:      map[string]string{"superedge.io/grid-selector": name, "superedge.io/grid-uniq-key": "zone"},
			Annotations: map[string]string{"topologyKeys": `["zone"]`},
		},
		Spec: corev1.ServiceSpec{
			ClusterIP: "10.0.0.1", ClusterIPs: []string{"10.0.0.1"}, Selector: map[string]string{"app": name},
			Ports: []corev1.ServicePort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80}},
		},
	}
}

// largeFleetSlice is the EndpointSlice of largeFleetService.
func largeFleetSlice(i, endpoints int, node func() int) *discoveryv1.EndpointSlice {
	name := fmt.Sprintf("svc-%05d", i)
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: name + "-abcde", Labels: map[string]string{discoveryv1.LabelServiceName: name},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: ptr.To("http"), Port: ptr.To(int32(8080))}},
	}
	for e := range endpoints {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses:  []string{fmt.Sprintf("10.%d.%d.%d", i/250, i%250, e)},
			NodeName:   ptr.To(fmt.Sprintf("node-%d", node())),
			Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true), Serving: ptr.To(true)},
			TargetRef:  &corev1.ObjectReference{Kind: "Pod", Namespace: "shop", Name: name + "-x7k2p"},
		})
	}
	return s
}

// BenchmarkLargeFleet is a change of one endpoint, until it is encoded for all streams of its site, in a fleet of
// 10,000 nodes in 1,000 sites with 20,000 governed Services of 50 endpoints each. All nodes have a stream; nothing is
// sent. It logs the heap.
func BenchmarkLargeFleet(b *testing.B) {
	const nodes, sites, services, endpoints = 10_000, 1_000, 20_000, 50
	random := rand.New(rand.NewPCG(1, 2))
	begin := liveheap.Size()
	w := newBoundsWorld(boundsNodes(nodes, func(i int) int { return i % sites }), nil)
	all := make([]*wire.Object, services)
	for i := range all {
		all[i] = wiretest.Object(largeFleetService(i))
	}
	w.services.Replace(all)
	made := make([]*discoveryv1.EndpointSlice, services)
	for i := range all {
		made[i] = largeFleetSlice(i, endpoints, func() int { return random.IntN(nodes) })
		all[i] = wiretest.Object(made[i])
	}
	w.slices.Replace(all)
	clear(all)
	followed := liveheap.Size()
	b.Logf("heap of what is followed: %d MB (with the load itself)", (followed-begin)>>20)
	streams := make([]*stream, nodes)
	started := time.Now()
	first := 0
	for i := range streams {
		streams[i] = w.stream(b, i, nil)
		data, sent, _ := streams[i].Next()
		for _, member := range data {
			first += len(member)
		}
		sent(nil)
	}
	b.Logf("%d streams from nothing: %s, %d kB each; heap of the shares: %d MB", nodes, time.Since(started),
		first/nodes/1000, (liveheap.Size()-followed)>>20)
	events, n := 0, 0
	b.ResetTimer()
	for b.Loop() {
		b.StopTimer()
		slice := made[random.IntN(services)]
		e := random.IntN(endpoints)
		slice.Endpoints[e].Conditions.Ready = ptr.To(!*slice.Endpoints[e].Conditions.Ready)
		o := wiretest.Object(slice)
		b.StartTimer()
		w.slices.Apply(o)
		n++
		for _, st := range streams {
			w.mu.Lock()
			waiting := len(st.queue) > 0
			w.mu.Unlock()
			if waiting {
				_, sent, _ := st.Next()
				sent(nil)
				events++
			}
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(max(events, 1)), "ns/event")
	b.ReportMetric(float64(events)/float64(n), "events/change")
	runtime.KeepAlive(made)
}
