package livepods

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/application-grid/application-grid/internal/testkit/wiretest"
	"github.com/application-grid/application-grid/pkg/autonomy/cri"
	"github.com/application-grid/application-grid/pkg/storage/wire"
)

// TestSharesAfterItsReturn: this node's link is back before a neighbour's, which needs to know this node's pods until
// its own is.
func TestSharesAfterItsReturn(t *testing.T) {
	b := newSettledBench(t, up("db", "10.0.0.1", "s1", "app"), sliceFor("one", own))
	b.wanted = true
	b.out(60)
	b.state = Followed
	for i := range 300 {
		if b.run(1); b.shared == nil {
			t.Fatalf("%d s after the link is back the node says nothing of its pods, which a neighbour needs", i)
		}
	}
}

// TestBootOfWhichNothingWasSeen: a machine boots while its link is there and its runtime does not know the pods yet, or
// hangs; the wrapper is started again; the link is lost.
func TestBootOfWhichNothingWasSeen(t *testing.T) {
	for _, err := range []error{cri.ErrNoPods, context.DeadlineExceeded} {
		for _, restarts := range []bool{false, true} {
			b := newBench(t)
			b.machine = "first"
			b.boot(nil)
			b.pods = []cri.Pod{up("db", "10.0.0.1", "s1", "app")}
			b.says(own, other)
			b.run(600)
			b.pods, b.err, b.machine = nil, err, "second"
			b.restart()
			b.api()
			b.run(15)
			if restarts {
				b.restart()
			}
			b.out(60)
			when := fmt.Sprintf("%v, restarts %v: nothing runs since the boot", err, restarts)
			b.expect(when, "one", "10.0.1.1")
			if b.shared == nil || len(b.shared.Pods) > 0 {
				t.Errorf("%s, and neighbours hear %v", when, b.shared)
			}
		}
	}
}

// TestLegacyEndpoints: a client has Endpoints followed; the pod is also in a Service that publishes addresses that are
// not ready (that of a StatefulSet). It crashes, the kubelet says so, and the link goes before it is ready again.
func TestLegacyEndpoints(t *testing.T) {
	for _, legacy := range []bool{false, true} {
		b := newBench(t)
		b.pods = []cri.Pod{up("db", "10.0.0.1", "s1", "app")}
		api := func(ready bool) {
			b.slices = []*discoveryv1.EndpointSlice{
				sliceFor("one", ep{"db", "10.0.0.1", "n0", ready, ready}),
				sliceFor("headless", ep{"db", "10.0.0.1", "n0", true, ready}),
			}
			b.api()
			s := wiretest.ServiceOf("headless", `["zone"]`)
			s.Spec.PublishNotReadyAddresses = true
			b.store.Services().Apply(wiretest.Object(s))
			if legacy {
				a := corev1.EndpointAddress{IP: "10.0.0.1", NodeName: new("n0"), TargetRef: &corev1.ObjectReference{
					Kind: "Pod", Namespace: "ns", Name: "db", UID: "uid-db",
				}}
				b.store.Endpoints().Replace([]*wire.Object{wiretest.Object(&corev1.Endpoints{
					ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "headless"},
					Subsets:    []corev1.EndpointSubset{{Addresses: []corev1.EndpointAddress{a}}},
				})})
			}
		}
		api(true)
		b.run(600)
		b.pods = []cri.Pod{up("db", "10.0.0.1", "s1", "app!")}
		api(false)
		b.run(2)
		b.pods = []cri.Pod{again(up("db", "10.0.0.1", "s1", "app"), "app")}
		b.out(3600)
		when := fmt.Sprintf("Endpoints followed: %v", legacy)
		b.expect(when+": it has run for an hour", "one", "10.0.0.1")
		b.pods[0].Kubelet = new(true)
		b.run(60)
		b.expect(when+": the kubelet calls it ready", "one", "10.0.0.1")
	}
}

// TestContainersOfANewPod: the wrapper is started without notes (an upgrade of its pod) while a pod's sandbox is made
// again, of which the API server has not heard yet. One of the images may take long.
func TestContainersOfANewPod(t *testing.T) {
	for _, takes := range []int{0, 100} {
		b := newBench(t)
		b.pods = []cri.Pod{up("db", "10.0.0.2", "s2", "proxy")} // app is about to be made
		b.says(own, other)
		b.run(1)
		b.says(at("10.0.0.2", notReady(own)), other)
		b.run(takes)
		b.pods = []cri.Pod{up("db", "10.0.0.2", "s2", "proxy", "app")}
		b.run(10)
		b.says(at("10.0.0.2", own), other)
		b.run(24 * 3600)
		b.out(60)
		b.pods = []cri.Pod{up("db", "10.0.0.2", "s2", "proxy", "app!")}
		b.run(60)
		b.expect("a day later app has ended", "one", "10.0.1.1")
	}
}

// TestRuntimeThatHangs: while the link is away the runtime hangs. Its last answer counts for 30 s. Then the pod is used
// only where nothing better is there.
func TestRuntimeThatHangs(t *testing.T) {
	b := newSettledBench(t, up("db", "10.0.0.1", "s1", "app"), sliceFor("one", own, other), sliceFor("two", own))
	b.out(60)
	for _, c := range []struct {
		err     error
		seconds int
		want    string
	}{
		{context.DeadlineExceeded, 29, "10.0.0.1 10.0.1.1"}, {context.DeadlineExceeded, 1, "10.0.1.1"},
		{nil, 2, "10.0.0.1 10.0.1.1"},
	} {
		b.err = c.err
		b.run(c.seconds)
		b.expect(fmt.Sprintf("%v for %d s", c.err, c.seconds), "one", c.want)
		b.expect("the only one", "two", "10.0.0.1")
	}
}

// TestHungWatchOfSlices: a container ends and nobody starts it again, while the watch of slices hangs and the kubelet's
// reports on the node still arrive. The old "ready" is not about the containers that run now.
func TestHungWatchOfSlices(t *testing.T) {
	b := newBench(t)
	b.beats = true
	b.pods = []cri.Pod{up("db", "10.0.0.1", "s1", "app", "sidecar")}
	b.slices = []*discoveryv1.EndpointSlice{sliceFor("one", own, other)}
	run := func(tens int) {
		for range tens {
			b.api()
			b.run(10)
		}
	}
	run(60)
	b.contact = b.now
	b.pods = []cri.Pod{up("db", "10.0.0.1", "s1", "app!", "sidecar")}
	run(15)
	b.out(10)
	b.expect("the container app has ended", "one", "10.0.1.1")
}
