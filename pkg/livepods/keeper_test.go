package livepods

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/application-grid/application-grid/pkg/cri"
	"github.com/application-grid/application-grid/pkg/storage/history"
	"github.com/application-grid/application-grid/pkg/storage/storagetest"
	"github.com/application-grid/application-grid/pkg/wire"
	"github.com/application-grid/application-grid/pkg/wire/wiretest"
)

func TestMain(m *testing.M) {
	klog.SetLogger(logr.Discard())
	os.Exit(m.Run())
}

const here = "node-1"

// scene is a node whose Keeper runs, with its runtime and its upstream.
type scene struct {
	*testing.T
	store  *storagetest.Node
	keeper *Keeper

	mu sync.Mutex
	// What follows is guarded by mu.
	state  UpstreamState
	asOf   time.Time
	pods   []cri.Pod
	err    error
	hangs  bool
	asked  int
	closed int
	// refused counts pods.
	refused int
	polls   []error
}

func (s *scene) State() UpstreamState {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state
}

func (s *scene) AsOf() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asOf
}

func (s *scene) Pods(ctx context.Context) ([]cri.Pod, error) {
	s.mu.Lock()
	s.asked++
	pods, err, hangs := s.pods, s.err, s.hangs
	s.mu.Unlock()
	if hangs {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return pods, err
}

func (s *scene) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed++
}

func (s *scene) RuntimeAsked(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.polls = append(s.polls, err)
}

func (s *scene) PodsRefused(count int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refused += count
}

func (s *scene) change(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

// questions returns how often the runtime was asked.
func (s *scene) questions() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked
}

// after lets time pass, and a little more, so that what is due then is done.
func (s *scene) after(d time.Duration) {
	time.Sleep(d + 10*time.Millisecond)
	synctest.Wait()
}

// endpoint is an endpoint of a pod on this node. "" is no address.
type endpoint struct {
	pod, address       string
	ready, terminating bool
}

// upstreamSays makes endpoints those of the Service.
func (s *scene) upstreamSays(endpoints ...endpoint) {
	s.slice("ns", "svc", here, endpoints...)
}

// slice makes endpoints on a node those of a Service. Without a node they are no pods.
func (s *scene) slice(namespace, service, node string, endpoints ...endpoint) {
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: service, Labels: map[string]string{discoveryv1.LabelServiceName: service},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	for _, e := range endpoints {
		made := discoveryv1.Endpoint{
			Addresses: []string{e.address},
			Conditions: discoveryv1.EndpointConditions{
				Ready: ptr.To(e.ready), Serving: ptr.To(e.ready), Terminating: ptr.To(e.terminating),
			},
		}
		if node != "" {
			made.NodeName = &node
			made.TargetRef = &corev1.ObjectReference{
				Kind: "Pod", Namespace: namespace, Name: e.pod, UID: types.UID("uid-" + e.pod),
			}
		}
		slice.Endpoints = append(slice.Endpoints, made)
	}
	s.store.EndpointSlices().Apply(wiretest.Object(slice))
}

// nodeIs sets the condition Ready of the node.
func (s *scene) nodeIs(status corev1.ConditionStatus) {
	s.store.OwnNode().Replace([]*wire.Object{wiretest.Object(&corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: here},
		Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
			{Type: corev1.NodeReady, Status: status},
		}},
	})})
}

// pod is a pod that the runtime runs, since that time.
func pod(name, address string, running bool, since time.Time) cri.Pod {
	return cri.Pod{
		Namespace: "ns", Name: name, UID: "uid-" + name, Addresses: []netip.Addr{netip.MustParseAddr(address)},
		Running: running, Since: since,
	}
}

func (s *scene) runtimeRuns(pods ...cri.Pod) { s.change(func() { s.pods = pods }) }

func (s *scene) upstreamIs(state UpstreamState) { s.change(func() { s.state = state }) }

// expectShown checks which addresses are shown of the Service, those that are not ready in brackets.
func (s *scene) expectShown(what, want string) {
	s.Helper()
	s.expectOf("svc", what, want)
}

// expectOf is expectShown of a Service.
func (s *scene) expectOf(service, what, want string) {
	s.Helper()
	o, err := s.store.History.Get(history.EndpointSlices, types.NamespacedName{Namespace: "ns", Name: service}, 0)
	if err != nil || o == nil {
		s.Fatalf("%s: %v, %v", what, o, err)
	}
	typed, err := o.Decode()
	if err != nil {
		s.Fatal(err)
	}
	var shown []string
	for _, e := range typed.(*discoveryv1.EndpointSlice).Endpoints {
		if *e.Conditions.Ready {
			shown = append(shown, e.Addresses[0])
		} else {
			shown = append(shown, "("+e.Addresses[0]+")")
		}
	}
	if got := strings.Join(shown, " "); got != want {
		s.Errorf("%s: of %s are shown %q, want %q", what, service, got, want)
	}
}

// inScene runs a test with a Keeper, in a bubble. The upstream is followed, says that the pods a and b are ready, and
// the runtime runs them so.
func inScene(t *testing.T, state UpstreamState, test func(*scene)) {
	t.Helper()
	inSceneWith(t, state, func(*scene, *Config) {}, test)
}

// inSceneWith is inScene with another configuration.
func inSceneWith(t *testing.T, state UpstreamState, configure func(*scene, *Config), test func(*scene)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &scene{T: t, state: state, asOf: time.Now()}
		s.store = storagetest.New(storagetest.Options{NodeName: here, KeepKubernetesEndpoint: true})
		s.store.NodeLabels().Replace([]*wire.Object{
			wiretest.Object(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: here}}),
		})
		s.store.Services().Replace([]*wire.Object{
			wiretest.Object(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "svc"}}),
		})
		s.nodeIs(corev1.ConditionTrue)
		s.store.EndpointSlices().Replace(nil)
		s.upstreamSays(endpoint{"a", "10.0.0.1", true, false}, endpoint{"b", "10.0.0.2", true, false})
		before := time.Now().Add(-time.Hour)
		s.runtimeRuns(pod("a", "10.0.0.1", true, before), pod("b", "10.0.0.2", true, before))
		config := Config{
			NodeName: here, Facts: s.store, Upstream: s, Runtime: s, ReturnGrace: DefaultReturnGrace, Observer: s,
		}
		configure(s, &config)
		s.keeper = New(config)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			s.keeper.Run(ctx)
		}()
		s.after(0)
		test(s)
		cancel()
		<-done
		if s.closed == 0 && config.Runtime != nil {
			t.Error("the runtime is not closed")
		}
	})
}

// powerCut ends all pods and makes them again with other addresses, while the upstream is away.
func (s *scene) powerCut() {
	s.upstreamIs(Away)
	s.runtimeRuns(pod("a", "10.0.1.1", true, time.Now()), pod("b", "10.0.1.2", true, time.Now()))
	s.after(interval)
	s.expectShown("after a power cut", "10.0.1.1 10.0.1.2")
}

// TestFollowing: while the upstream is followed the runtime is asked every 5 minutes, and only to see that it answers.
func TestFollowing(t *testing.T) {
	inScene(t, Followed, func(s *scene) {
		s.runtimeRuns(pod("a", "10.9.9.9", false, time.Now()))
		s.after(11 * time.Minute)
		if asked := s.questions(); asked != 3 || s.closed < 3 {
			s.Errorf("asked %d times in 11 minutes, closed %d times", asked, s.closed)
		}
		s.expectShown("the upstream's word", "10.0.0.1 10.0.0.2")
		if status := s.keeper.Status(); status.Used || status.Err != nil || status.AsOf.IsZero() {
			s.Errorf("status %+v", status)
		}
		s.runtimeRuns(pod("another", "10.9.9.9", true, time.Now()))
		s.after(checkInterval)
		if err := s.keeper.Status().Err; err == nil || !strings.Contains(err.Error(), "none of the 2 ready pods") {
			s.Errorf("of a runtime that is another's: %v", err)
		}
		s.change(func() { s.err = errors.New("refused") })
		s.after(checkInterval)
		if err := s.keeper.Status().Err; err == nil || err.Error() != "refused" {
			s.Errorf("of a runtime that refuses: %v", err)
		}
	})
}

// TestPowerCut: the addresses that the runtime gave count while the upstream is away; when it is back it calls the old
// ones not ready, and nothing changes here until it knows the new ones.
func TestPowerCut(t *testing.T) {
	inScene(t, Followed, func(s *scene) {
		s.powerCut()
		s.runtimeRuns(pod("a", "10.0.1.1", true, time.Now()))
		s.after(interval)
		s.expectShown("a pod is gone", "10.0.1.1")
		s.runtimeRuns(pod("a", "10.0.1.1", true, time.Now()), pod("b", "10.0.2.2", false, time.Now()))
		s.after(interval)
		s.expectShown("a pod is made again", "10.0.1.1 (10.0.2.2)")
		s.runtimeRuns(pod("a", "10.0.1.1", true, time.Now()), pod("b", "10.0.2.2", true, time.Now()))
		s.after(time.Minute)

		s.nodeIs(corev1.ConditionUnknown)
		s.upstreamSays(endpoint{"a", "10.0.0.1", false, false}, endpoint{"b", "10.0.0.2", false, false})
		s.upstreamIs(Followed)
		s.after(interval)
		s.expectShown("the upstream is back", "10.0.1.1 10.0.2.2")
		if status := s.keeper.Status(); !status.Used || !status.Returning || status.Corrected != 2 {
			s.Errorf("status %+v", status)
		}
		s.upstreamSays(endpoint{"a", "10.0.1.1", true, false}, endpoint{"b", "10.0.0.2", false, false},
			endpoint{"new", "10.0.3.3", true, false})
		s.after(settling)
		s.expectShown("one kubelet's report later", "10.0.1.1 10.0.2.2 10.0.3.3")
		s.upstreamSays(endpoint{"a", "10.0.1.1", false, false}, endpoint{"b", "10.0.2.2", true, false})
		s.after(interval)
		s.expectShown("it knows all, and the kubelet has said more", "(10.0.1.1) 10.0.2.2")
		asked := s.questions()
		s.after(time.Minute)
		if now := s.questions(); now > asked+1 {
			s.Errorf("the runtime is asked %d times a minute although the upstream has caught up", now-asked)
		}
		if status := s.keeper.Status(); status.Used || status.Corrected != 0 {
			s.Errorf("status %+v", status)
		}
	})
}

// TestReturnGrace: an upstream that never agrees is believed when the grace is over.
func TestReturnGrace(t *testing.T) {
	inScene(t, Followed, func(s *scene) {
		s.powerCut()
		s.after(time.Minute)
		s.upstreamIs(Followed)
		s.after(DefaultReturnGrace - interval)
		s.expectShown("within the grace", "10.0.1.1 10.0.1.2")
		s.after(2 * interval)
		s.expectShown("after it", "10.0.0.1 10.0.0.2")
	})
}

// TestChangesMeanwhile: what was removed in the cloud goes at once, and what is terminating gets no new connections, at
// its new address.
func TestChangesMeanwhile(t *testing.T) {
	inScene(t, Followed, func(s *scene) {
		s.powerCut()
		s.after(time.Minute)
		s.upstreamIs(Followed)
		s.upstreamSays(endpoint{"b", "10.0.0.2", false, true}, endpoint{"c", "10.0.3.3", true, false})
		s.after(interval)
		s.expectShown("the upstream is back", "(10.0.1.2) 10.0.3.3")
		s.runtimeRuns(pod("c", "10.0.3.3", true, time.Now()))
		s.after(interval)
		s.expectShown("the pod has ended", "10.0.3.3")
	})
}

// TestShortOutage: an outage that the API server cannot have noticed ends as soon as it agrees.
func TestShortOutage(t *testing.T) {
	inScene(t, Followed, func(s *scene) {
		s.upstreamIs(Away)
		s.after(2 * interval)
		s.upstreamIs(Followed)
		s.after(interval)
		if status := s.keeper.Status(); status.Used {
			s.Errorf("status %+v", status)
		}
		s.upstreamSays(endpoint{"a", "10.0.0.1", false, false})
		s.expectShown("the upstream's word", "(10.0.0.1)")
	})
}

// TestReadinessProbes: a pod that the kubelet called not ready before the outage, and that has not been made again
// since, is not ready. What the API server said of a node that it could not reach does not count.
func TestReadinessProbes(t *testing.T) {
	for name, test := range map[string]struct {
		node  corev1.ConditionStatus
		again bool
		want  string
	}{
		"the kubelet's word":                {corev1.ConditionTrue, false, "(10.0.0.1) 10.0.0.2"},
		"the kubelet's word, made again":    {corev1.ConditionTrue, true, "10.0.0.1 10.0.0.2"},
		"the API server's word, of no node": {corev1.ConditionUnknown, false, "10.0.0.1 10.0.0.2"},
	} {
		t.Run(name, func(t *testing.T) {
			inScene(t, Followed, func(s *scene) {
				s.upstreamSays(endpoint{"a", "10.0.0.1", false, false}, endpoint{"b", "10.0.0.2", true, false})
				s.nodeIs(test.node)
				s.change(func() { s.asOf = time.Now() })
				s.upstreamIs(Away)
				if test.again {
					s.after(interval)
					s.runtimeRuns(pod("a", "10.0.0.1", true, time.Now()), pod("b", "10.0.0.2", true, time.Now()))
				}
				s.after(interval)
				s.expectShown("away", test.want)
				s.after(time.Minute)
				s.upstreamIs(Followed)
				s.after(interval)
				s.expectShown("back", test.want)
			})
		})
	}
}

// TestAwayAgain: the link fails again before the API server has caught up. It does not know the pods any better.
func TestAwayAgain(t *testing.T) {
	inScene(t, Followed, func(s *scene) {
		s.upstreamIs(Away)
		s.after(time.Minute)
		s.upstreamSays(endpoint{"a", "10.0.0.1", false, false}, endpoint{"b", "10.0.0.2", false, false})
		s.change(func() { s.asOf = time.Now() })
		s.upstreamIs(Followed)
		s.after(interval)
		s.upstreamIs(Away)
		s.after(time.Minute)
		s.expectShown("away again", "10.0.0.1 10.0.0.2")
	})
}

// TestRuntimeFails: the last answer counts while the runtime is away or hangs; without one the upstream's word does.
func TestRuntimeFails(t *testing.T) {
	inScene(t, Followed, func(s *scene) {
		s.change(func() { s.err = errors.New("refused") })
		s.upstreamIs(Away)
		s.after(interval)
		s.expectShown("no answer", "10.0.0.1 10.0.0.2")
		s.change(func() { s.err = nil })
		s.runtimeRuns(pod("a", "10.0.1.1", true, time.Now()))
		s.after(interval)
		s.expectShown("an answer", "10.0.1.1")
		s.change(func() { s.hangs = true })
		s.after(time.Hour)
		s.expectShown("silence", "10.0.1.1")
		status := s.keeper.Status()
		if !errors.Is(status.Err, ErrSilent) || !status.Used || time.Since(status.AsOf) < time.Hour {
			s.Errorf("status %+v", status)
		}
		s.upstreamSays(endpoint{"a", "10.0.0.1", false, false}, endpoint{"new", "10.0.3.3", true, false})
		s.upstreamIs(Followed)
		s.after(interval + patience)
		s.expectShown("the upstream is back", "10.0.1.1 10.0.3.3")
		s.after(DefaultReturnGrace + patience)
		s.expectShown("the grace is over", "(10.0.0.1) 10.0.3.3")
		if polls := len(s.polls); polls < 1000 {
			s.Errorf("the runtime was asked %d times only", polls)
		}
	})
}

// TestStart: a wrapper that starts asks at once, so that a snapshot is corrected before it is served. If the upstream
// turns out to be there, its word counts at once.
func TestStart(t *testing.T) {
	for _, state := range []UpstreamState{Followed, Away} {
		t.Run(fmt.Sprint(state), func(t *testing.T) {
			inScene(t, Unknown, func(s *scene) {
				s.change(func() { s.asOf = time.Now().Add(-time.Hour) })
				s.runtimeRuns(pod("a", "10.0.1.1", true, time.Now()))
				s.after(interval)
				s.expectShown("not served yet", "10.0.1.1")
				if status := s.keeper.Status(); status.Used {
					s.Errorf("status %+v", status)
				}
				s.upstreamIs(state)
				s.after(interval)
				if state == Followed {
					s.expectShown("followed", "10.0.0.1 10.0.0.2")
					return
				}
				s.expectShown("served", "10.0.1.1")
				// The outage began before the process did, so the API server may still come to doubt the node.
				s.upstreamSays(endpoint{"a", "10.0.1.1", true, false})
				s.upstreamIs(Followed)
				s.after(2 * interval)
				s.upstreamSays(endpoint{"a", "10.0.1.1", false, false})
				s.expectShown("back", "10.0.1.1")
			})
		})
	}
}
