package hub

import (
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/ptr"

	"github.com/application-grid/application-grid/internal/testkit/upstreamtest"
	"github.com/application-grid/application-grid/internal/testkit/wiretest"
)

// The states of the three resources, as tests have them.
type (
	// nodeStates are labels by node.
	nodeStates map[string]map[string]string
	// serviceStates are the annotations topologyKeys by Service.
	serviceStates map[string]string
	// sliceStates are slices by name.
	sliceStates map[string]sliceState
	sliceState  struct {
		service   string
		endpoints []endpointState
	}
	endpointState struct{ address, node string }
)

// What a fleet begins with: two nodes in a zone, one in another, and a Service with an endpoint in the first.
var (
	firstNodes    = nodeStates{"a1": {"zone": "a"}, "a2": {"zone": "a"}, "b1": {"zone": "b"}}
	firstServices = serviceStates{"strict": `["zone"]`}
	firstSlices   = sliceStates{"strict-1": {"strict", []endpointState{{"10.0.0.1", "a2"}}}}
)

// testCluster is an API server, and what tests put there. All objects are in the namespace ns.
type testCluster struct{ *upstreamtest.API }

func newTestCluster(nodes nodeStates, services serviceStates, slices sliceStates) testCluster {
	c := testCluster{upstreamtest.New()}
	for name, labels := range nodes {
		c.putNode(name, labels)
	}
	for name, keys := range services {
		c.putService(name, keys)
	}
	for name, slice := range slices {
		c.putSlice(name, slice)
	}
	return c
}

// nodeObject is a node with labels and an address.
func nodeObject(name string, labels map[string]string) *corev1.Node {
	n := wiretest.NodeOf(name, "")
	n.Labels = labels
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.1"}}
	return n
}

// putNode puts a node; nil labels remove it.
func (c testCluster) putNode(name string, labels map[string]string) {
	if labels == nil {
		c.Delete(nodeObject(name, nil))
	} else {
		c.Put(nodeObject(name, labels))
	}
}

// putService puts a Service; no keys remove it.
func (c testCluster) putService(name, keys string) {
	service := wiretest.ServiceOf(name, keys)
	if keys == "" {
		c.Delete(service)
	} else {
		c.Put(service)
	}
}

// putSlice puts a slice; no endpoints remove it.
func (c testCluster) putSlice(name string, state sliceState) {
	slice := wiretest.SliceOf(name, state.service)
	for _, e := range state.endpoints {
		slice.Endpoints = append(slice.Endpoints,
			discoveryv1.Endpoint{Addresses: []string{e.address}, NodeName: ptr.To(e.node)})
	}
	if len(state.endpoints) == 0 {
		c.Delete(slice)
	} else {
		c.Put(slice)
	}
}

// sharesStats are figures of shares.
type sharesStats struct{ streams, classes, sets, queued, behind int }

func (s *shares) stats() sharesStats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return sharesStats{len(s.common.streams), s.classes(), len(s.sets) - 1, int(s.queued.Load()), s.behind}
}
