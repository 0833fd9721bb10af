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
	"github.com/application-grid/application-grid/pkg/wire"
	"github.com/application-grid/application-grid/pkg/wire/wiretest"
)

// TestAReplicaThatCameLaterGetsItsPart: streams that are ended come to any replica, and in the end none has more than
// it may. Then none is ended any more.
func TestAReplicaThatCameLaterGetsItsPart(t *testing.T) {
	t.Parallel()
	const nodes = 1000
	ready := 2
	replicas := make([]*shedder, 4)
	for i := range replicas {
		replicas[i] = &shedder{nodes: func() int { return nodes }, replicas: func() int { return ready }}
	}
	random := rand.New(rand.NewPCG(1, 2))
	connect := func(to *shedder) { to.begin(func() {}) }
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
				connect(replicas[random.IntN(ready)])
			}
		}
	}
	for range nodes {
		connect(replicas[0])
	}
	for _, ready = range []int{2, 3, 4} {
		rounds := settle()
		for i, r := range replicas[:ready] {
			if may, _ := r.stats(); len(r.streams) > may || len(r.streams) == 0 {
				t.Errorf("replica %d of %d has %d streams, and may have %d", i, ready, len(r.streams), may)
			}
		}
		t.Logf("%d replicas: settled after %d rounds", ready, rounds)
	}
	ready = 1
	for range nodes {
		connect(replicas[0])
	}
	if n := replicas[0].round(); n > 0 {
		t.Errorf("the only replica ends %d streams", n)
	}
}

// TestShedderEndsWhatIsTooMuch, and counts it no more.
func TestShedderEndsWhatIsTooMuch(t *testing.T) {
	t.Parallel()
	s := &shedder{nodes: func() int { return 5 }, replicas: func() int { return 4 }} // two streams
	ended := 0
	var dones []func()
	for range 5 {
		done, full := s.begin(func() { ended++ })
		if full {
			t.Error("before the first round nothing is too much")
		}
		dones = append(dones, done)
	}
	for range 10 {
		s.round()
	}
	if may, n := s.stats(); may != 2 || n != 3 || ended != 3 || len(s.streams) != 2 {
		t.Errorf("may have %d, ended %d, %d, has %d", may, n, ended, len(s.streams))
	}
	if _, full := s.begin(func() {}); !full {
		t.Error("the connection of one that is too much takes more")
	}
	for _, done := range dones {
		done()
	}
	if len(s.streams) != 1 {
		t.Errorf("%d streams are left", len(s.streams))
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
