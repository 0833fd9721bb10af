package hub

import (
	"math/rand/v2"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/application-grid/application-grid/pkg/storage/facts"
	"github.com/application-grid/application-grid/pkg/storage/wire"
	"github.com/application-grid/application-grid/pkg/storage/wire/wiretest"
)

// TestAReplicaThatCameLaterGetsItsPart: streams that are ended come to any replica, and in the end none has more than
// it may. Then none is ended any more.
func TestAReplicaThatCameLaterGetsItsPart(t *testing.T) {
	t.Parallel()
	const nodes = 1000
	ready := 2
	replicas, streams := make([]*shedder, 4), make([]int, 4)
	for i := range replicas {
		replicas[i] = shedderOf(&streams[i], nodes, &ready)
	}
	random := rand.New(rand.NewPCG(1, 2))
	settle := func() (rounds int) {
		for ; ; rounds++ {
			n := 0
			for _, r := range replicas[:ready] {
				n += r.round()
			}
			if n == 0 {
				return rounds
			}
			for range n {
				streams[random.IntN(ready)]++
			}
		}
	}
	streams[0] = nodes
	for _, ready = range []int{2, 3, 4} {
		rounds := settle()
		for i, r := range replicas[:ready] {
			if may := int(r.may.Load()); streams[i] > may || streams[i] == 0 || r.full() {
				t.Errorf("replica %d of %d has %d streams, and may have %d", i, ready, streams[i], may)
			}
		}
		t.Logf("%d replicas: settled after %d rounds", ready, rounds)
	}
	ready = 1
	streams[0] += nodes
	if n := replicas[0].round(); n > 0 {
		t.Errorf("the only replica ends %d streams", n)
	}
}

// shedderOf is that of a replica with so many streams.
func shedderOf(streams *int, nodes int, replicas *int) *shedder {
	return &shedder{
		nodes: func() int { return nodes }, replicas: func() int { return *replicas },
		streams: func() int { return *streams },
		end: func(n int, _ error) int {
			n = min(n, *streams)
			*streams -= n
			return n
		},
	}
}

// TestShedderEndsWhatIsTooMuch, and counts it no more.
func TestShedderEndsWhatIsTooMuch(t *testing.T) {
	t.Parallel()
	streams, replicas := 5, 4 // and two are the part of each
	s := shedderOf(&streams, 5, &replicas)
	if s.full() {
		t.Error("before the first round nothing is too much")
	}
	for range 10 {
		s.round()
	}
	if may, ended := s.may.Load(), s.ended.Load(); may != 2 || ended != 3 || streams != 2 || s.full() {
		t.Errorf("may have %d, ended %d, has %d", may, ended, streams)
	}
	streams++
	if !s.full() {
		t.Error("the connection of one that is too much takes more")
	}
}

// TestReplicasOf counts pods that are ready, of both families once.
func TestReplicasOf(t *testing.T) {
	t.Parallel()
	f := facts.New(facts.Options{})
	service := types.NamespacedName{Namespace: "kube-system", Name: "hub"}
	if n := replicasOf(f, service); n != 0 {
		t.Errorf("%d replicas of nothing", n)
	}
	endpoint := func(pod string, ready *bool) discoveryv1.Endpoint {
		return discoveryv1.Endpoint{
			Addresses: []string{"192.0.2.1"}, Conditions: discoveryv1.EndpointConditions{Ready: ready},
			TargetRef: &corev1.ObjectReference{Kind: "Pod", UID: types.UID(pod)},
		}
	}
	var slices []*wire.Object
	for _, family := range []string{"ipv4", "ipv6"} {
		slices = append(slices, wiretest.Object(&discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "kube-system", Name: family, Labels: map[string]string{discoveryv1.LabelServiceName: "hub"},
			},
			Endpoints: []discoveryv1.Endpoint{
				endpoint("a", nil), endpoint("b", ptr.To(true)), endpoint("c", ptr.To(false)),
				{Addresses: []string{"192.0.2.2"}},
			},
		}))
	}
	f.Input(facts.InputEndpointSlices).Replace(slices)
	if n := replicasOf(f, service); n != 2 {
		t.Errorf("got %d", n)
	}
}
