package gridview

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/ptr"

	"github.com/application-grid/application-grid/internal/testkit/storagetest"
	"github.com/application-grid/application-grid/internal/testkit/wiretest"
	"github.com/application-grid/application-grid/pkg/storage/served"
	"github.com/application-grid/application-grid/pkg/storage/wire"
	"github.com/application-grid/application-grid/pkg/topology"
)

// TestAgreesWithTheWrapper: for random clusters, what a View says that a node sees is what that node's wrapper
// shows, endpoint by endpoint; and no wrapper shows an endpoint that, as a View says, no node sees.
func TestAgreesWithTheWrapper(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	annotations := []string{"", "[]", `["a"]`, `["a","b"]`, `["b","a","*"]`, `["*"]`, "nonsense"}
	openYurt := []string{"openyurt.io/nodepool", "kubernetes.io/zone", "", "nonsense"}
	compared := 0
	for range 400 {
		nodes := map[string]topology.Labels{}
		for i := range 1 + random.IntN(6) {
			labels := topology.Labels{}
			for _, key := range []string{"a", "b", "apps.openyurt.io/nodepool", "topology.kubernetes.io/zone"} {
				if value := random.IntN(4); value < 3 {
					labels[key] = []string{"", "x", "y"}[value]
				}
			}
			nodes[fmt.Sprint("n", i)] = labels
		}
		service := wiretest.ServiceOf("shop/s", annotations[random.IntN(len(annotations))])
		if random.IntN(3) == 0 {
			if service.Annotations == nil {
				service.Annotations = map[string]string{}
			}
			service.Annotations["openyurt.io/topologyKeys"] = openYurt[random.IntN(len(openYurt))]
		}
		switch random.IntN(4) {
		case 0:
			service.Spec.ClusterIP = corev1.ClusterIPNone
		case 1:
			service.Spec.Ports = []corev1.ServicePort{{Name: "web", Port: 80}, {Name: "admin", Port: 81}}
			service.Spec.InternalTrafficPolicy = ptr.To(corev1.ServiceInternalTrafficPolicyLocal)
		}
		endpointSlices := make([]discoveryv1.EndpointSlice, random.IntN(5))
		for i := range endpointSlices {
			endpointSlices[i] = *wiretest.SliceOf(fmt.Sprint("shop/s-", i), "s")
			if random.IntN(3) == 0 {
				endpointSlices[i].AddressType = discoveryv1.AddressTypeIPv6
			}
			for _, port := range [][]string{nil, {"web"}, {"admin"}, {"web", "admin"}}[random.IntN(4)] {
				endpointSlices[i].Ports = append(endpointSlices[i].Ports,
					discoveryv1.EndpointPort{Name: &port, Port: ptr.To[int32](8080)})
			}
			for j := range random.IntN(5) {
				e := discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.0.%d.%d", i, j)}}
				if node := random.IntN(8); node < 7 { // n6 is no node
					e.NodeName = ptr.To(fmt.Sprint("n", node))
				}
				if ready := random.IntN(3); ready < 2 {
					e.Conditions.Ready = ptr.To(ready == 1)
				}
				if random.IntN(3) == 0 { // in all its slices
					e.TargetRef = &corev1.ObjectReference{Kind: "Pod", Name: ptr.Deref(e.NodeName, "nowhere")}
				}
				if random.IntN(3) == 0 && !ptr.Deref(e.Conditions.Ready, true) {
					e.Conditions.Terminating = ptr.To(true)
				}
				endpointSlices[i].Endpoints = append(endpointSlices[i].Endpoints, e)
			}
		}
		view := ofService(service, nodes, nil, endpointSlices...)
		said := map[string]string{}
		for _, site := range view.Sites {
			for _, node := range site.Nodes {
				said[node] = addresses(site.Endpoints)
			}
		}
		seen := map[string]bool{}
		for node := range nodes {
			shown := shownBy(t, node, service, endpointSlices, nodes)
			if shown != said[node] {
				t.Fatalf("node %s: the wrapper shows %q, the view says %q\nkeys %v\nnodes %v\nslices %+v", node, shown,
					said[node],
					service.Annotations, nodes, endpointSlices)
			}
			for address := range strings.FieldsSeq(shown) {
				seen[address] = true
			}
			compared++
		}
		hidden := map[string]bool{}
		for _, h := range view.Hidden {
			for _, address := range h.Addresses {
				if hidden[address] = true; seen[address] {
					t.Fatalf("%s is said to be seen by no node: %s", address, h.Reason)
				}
			}
		}
		var parts []endpointPart
		for i := range endpointSlices {
			parts = append(parts, partsOf(&endpointSlices[i], nil)...)
		}
		for _, e := range merge(parts) {
			known := func(address string) bool { return seen[address] || hidden[address] }
			if !slices.ContainsFunc(e.Addresses, known) {
				t.Fatalf("%v is neither seen nor hidden", e.Addresses)
			}
		}
	}
	t.Logf("%d nodes' views compared", compared)
}

func addresses(endpoints []Endpoint) string {
	var all []string
	for _, e := range endpoints {
		all = append(all, e.Addresses...)
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

// shownBy is what the wrapper of a node shows of the slices.
func shownBy(t *testing.T, node string, service *corev1.Service, endpointSlices []discoveryv1.EndpointSlice,
	nodes map[string]topology.Labels) string {
	t.Helper()
	store := storagetest.New(storagetest.Options{NodeName: node, KeepKubernetesEndpoint: true})
	var all []*wire.Object
	for _, name := range slices.Sorted(maps.Keys(nodes)) {
		all = append(all, wiretest.NodeWith(name, nodes[name]))
	}
	store.NodeLabels().Replace(all)
	store.Services().Replace([]*wire.Object{wiretest.Object(service)})
	all = nil
	for i := range endpointSlices {
		all = append(all, wiretest.Object(&endpointSlices[i]))
	}
	store.EndpointSlices().Replace(all)
	objects, _, err := store.History.List(served.EndpointSlices, "shop", 0)
	if err != nil {
		t.Fatal(err)
	}
	var shown []string
	for _, object := range objects {
		typed, err := object.Decode()
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range typed.(*discoveryv1.EndpointSlice).Endpoints {
			shown = append(shown, e.Addresses...)
		}
	}
	slices.Sort(shown)
	return strings.Join(shown, " ")
}
