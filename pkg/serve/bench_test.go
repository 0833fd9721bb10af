package serve_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/application-grid/application-grid/pkg/filters"
	"github.com/application-grid/application-grid/pkg/serve"
	"github.com/application-grid/application-grid/pkg/storage/storagetest"
	"github.com/application-grid/application-grid/pkg/storage/wire"
	"github.com/application-grid/application-grid/pkg/storage/wire/wiretest"
)

const slicesPath = "/apis/discovery.k8s.io/v1/endpointslices"

// benchSlice is a slice of 50 endpoints on random nodes of 1,000.
func benchSlice(r *rand.Rand, i int) *wire.Object {
	name := fmt.Sprintf("svc-%04d", i)
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: name + "-abcde", Labels: map[string]string{discoveryv1.LabelServiceName: name},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports: []discoveryv1.EndpointPort{
			{Name: ptr.To("http"), Port: ptr.To(int32(r.IntN(60000))), Protocol: ptr.To(corev1.ProtocolTCP)},
		},
	}
	for e := range 50 {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{fmt.Sprintf("10.1.%d.%d", i/250, e)},
			NodeName:  ptr.To(fmt.Sprintf("node-%d", r.IntN(1000))),
			Conditions: discoveryv1.EndpointConditions{
				Ready: ptr.To(true), Serving: ptr.To(true), Terminating: ptr.To(false),
			},
			TargetRef: &corev1.ObjectReference{
				Kind: "Pod", Namespace: "ns", Name: fmt.Sprintf("%s-%d", name, e),
				UID: "00000000-0000-0000-0000-000000000000",
			},
		})
	}
	return wiretest.Object(s)
}

// benchServer serves the fleet of the end-to-end benchmark: 1,000 nodes in 50 units, 2,000 governed Services.
func benchServer(b *testing.B) (*storagetest.Node, http.Handler) {
	b.Helper()
	r := rand.New(rand.NewPCG(1, 1))
	store := storagetest.New(storagetest.Options{NodeName: "node-0", KeepKubernetesEndpoint: true})
	var nodes, services, endpoints []*wire.Object
	for i := range 1000 {
		nodes = append(nodes, wiretest.Node(fmt.Sprintf("node-%d", i), fmt.Sprintf("unit-%d", i%50)))
	}
	for i := range 2000 {
		services = append(services, wiretest.Service(fmt.Sprintf("svc-%04d", i), `["zone"]`))
		endpoints = append(endpoints, benchSlice(r, i))
	}
	store.NodeLabels().Replace(nodes)
	store.Services().Replace(services)
	store.EndpointSlices().Replace(endpoints)
	return store, filters.WithRequestInfo()(filters.WithServed(
		&serve.Server{HistoryOf: serve.Only(store.History)}, "node-0",
	)(http.NotFoundHandler()))
}

// sink is a connection to a client that takes everything at once. It tells when something was flushed to it.
type sink struct {
	header  http.Header
	written int
	flushed func()
}

func (s *sink) Header() http.Header { return s.header }

func (s *sink) WriteHeader(int) {}

func (s *sink) Write(p []byte) (int, error) {
	s.written += len(p)
	return len(p), nil
}

func (s *sink) Flush() {
	if s.written > 0 {
		s.written = 0
		s.flushed()
	}
}

func BenchmarkList(b *testing.B) {
	_, handler := benchServer(b)
	for _, accept := range []string{"application/vnd.kubernetes.protobuf", "application/json"} {
		for _, coding := range []string{"identity", "gzip"} {
			b.Run(accept+"/"+coding, func(b *testing.B) {
				r := httptest.NewRequestWithContext(b.Context(), http.MethodGet, slicesPath+"?resourceVersion=0", nil)
				r.Header.Set("Accept", accept)
				r.Header.Set("Accept-Encoding", coding)
				b.ReportAllocs()
				size := 0
				for b.Loop() {
					s := &sink{header: http.Header{}}
					handler.ServeHTTP(s, r)
					size = s.written
				}
				b.ReportMetric(float64(size), "bytes/list")
			})
		}
	}
}

// BenchmarkFanOut is one change of a slice, until each of 1,000 watchers has written it.
func BenchmarkFanOut(b *testing.B) {
	const watchers = 1000
	for _, accept := range []string{"application/vnd.kubernetes.protobuf", "application/json"} {
		b.Run(accept, func(b *testing.B) {
			store, handler := benchServer(b)
			ctx, cancel := context.WithCancel(b.Context())
			var running, sent sync.WaitGroup
			defer running.Wait()
			defer cancel()
			// The initial bookmark is the first thing that each writes.
			sent.Add(watchers)
			for range watchers {
				r := httptest.NewRequestWithContext(ctx, http.MethodGet,
					slicesPath+"?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan"+
						"&labelSelector=kubernetes.io/service-name%3Dsvc-0007",
					nil)
				r.Header.Set("Accept", accept)
				running.Go(func() { handler.ServeHTTP(&sink{header: http.Header{}, flushed: sent.Done}, r) })
			}
			sent.Wait()
			random := rand.New(rand.NewPCG(2, 2))
			in := store.EndpointSlices()
			b.ReportAllocs()
			for b.Loop() {
				sent.Add(watchers)
				in.Apply(benchSlice(random, 7))
				sent.Wait()
			}
		})
	}
}
