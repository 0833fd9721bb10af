package livepods

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/application-grid/application-grid/pkg/storage/facts"
	"github.com/application-grid/application-grid/pkg/wire"
	"github.com/application-grid/application-grid/pkg/wire/wiretest"
)

const there = "node-2"

// others are the neighbours in a scene.
type others struct {
	mu     sync.Mutex
	words  map[string]*facts.LivePods
	shared *facts.LivePods
	wanted bool
}

func (o *others) Words() map[string]*facts.LivePods {
	o.mu.Lock()
	defer o.mu.Unlock()
	return maps.Clone(o.words)
}

func (o *others) Share(pods *facts.LivePods) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.shared = pods
}

func (o *others) Wanted() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.wanted
}

func (o *others) setWanted(wanted bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.wanted = wanted
}

// say lets a node say which pods it runs, each written as name=address, with a "!" after it if it is not serving.
func (o *others) say(node string, pods ...string) {
	word := &facts.LivePods{AsOf: time.Now(), Pods: make(map[facts.PodKey]facts.LivePod)}
	for _, pod := range pods {
		name, address, _ := strings.Cut(strings.TrimSuffix(pod, "!"), "=")
		word.Pods[facts.PodKey{Namespace: "ns", Name: name, UID: "uid-" + name}] = facts.LivePod{
			Addresses: []netip.Addr{netip.MustParseAddr(address)}, Serving: !strings.HasSuffix(pod, "!"),
		}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.words == nil {
		o.words = make(map[string]*facts.LivePods)
	}
	o.words[node] = word
}

// has are the pods that the neighbours have of this node, as in say.
func (o *others) has() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.shared == nil {
		return "nothing"
	}
	var pods []string
	for key, pod := range o.shared.Pods {
		text := key.Name + "=" + pod.Addresses[0].String()
		if !pod.Serving {
			text += "!"
		}
		pods = append(pods, text)
	}
	slices.Sort(pods)
	return strings.Join(pods, " ")
}

// inSite runs a test with a neighbour, node-2. The governed Service far and the Service open have endpoints there, of
// the pods x and y.
func inSite(t *testing.T, withRuntime bool, test func(*scene, *others)) {
	t.Helper()
	neighbours := &others{}
	inSceneWith(t, Followed, func(s *scene, c *Config) {
		c.Neighbours = neighbours
		if !withRuntime {
			c.Runtime = nil
		}
		labels := map[string]string{"zone": "a"}
		s.store.NodeLabels().Replace([]*wire.Object{
			wiretest.Object(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: here, Labels: labels}}),
			wiretest.Object(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: there, Labels: labels}}),
		})
		s.store.Services().Apply(wiretest.Object(&corev1.Service{ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: "far", Annotations: map[string]string{"topologyKeys": `["zone"]`},
		}}))
		s.store.Services().Apply(wiretest.Object(&corev1.Service{ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: "open",
		}}))
		s.neighbourHas("far", endpoint{"x", "10.2.0.1", true, false})
		s.neighbourHas("open", endpoint{"y", "10.2.0.2", true, false})
	}, func(s *scene) { test(s, neighbours) })
}

// neighbourHas makes endpoints on the neighbour those of a Service.
func (s *scene) neighbourHas(service string, endpoints ...endpoint) {
	s.slice("ns", service, there, endpoints...)
}

// TestNeighboursWord: it counts while the upstream is away, for pods of governed Services on that node.
func TestNeighboursWord(t *testing.T) {
	for _, withRuntime := range []bool{true, false} {
		inSite(t, withRuntime, func(s *scene, o *others) {
			o.say(there, "x=10.2.1.1", "y=10.2.1.2", "a=10.6.6.6")
			s.after(interval)
			s.expectOf("far", "followed", "10.2.0.1")
			s.upstreamIs(Away)
			s.after(interval)
			s.expectOf("far", "away", "10.2.1.1")
			s.expectOf("open", "not governed", "10.2.0.2")
			s.expectShown("this node's pods", "10.0.0.1 10.0.0.2")
			if status := s.keeper.Status(); !slices.Equal(status.Neighbours, []string{there}) ||
				status.NeighboursCorrected != 1 {
				s.Errorf("status %+v", status)
			}
			o.say(there, "x=10.2.1.9!")
			s.after(interval)
			s.expectOf("far", "another word", "(10.2.1.9)")
			o.say(there)
			s.after(interval)
			s.expectOf("far", "the pod is gone", "")
			o.say(there, "x=10.2.1.1")
			s.after(interval)
			s.expectOf("far", "it is back", "10.2.1.1")
			// What becomes governed while it is away, from a snapshot that is restored later, counts too.
			s.store.Services().Apply(wiretest.Object(&corev1.Service{ObjectMeta: metav1.ObjectMeta{
				Namespace: "ns", Name: "open", Annotations: map[string]string{"topologyKeys": `["zone"]`},
			}}))
			o.say(there, "x=10.2.1.1", "y=10.2.1.2")
			s.after(interval)
			s.expectOf("open", "governed now", "10.2.1.2")
			o.mu.Lock()
			delete(o.words, there)
			o.mu.Unlock()
			s.after(interval)
			s.expectOf("far", "no word any more", "10.2.0.1")
		})
	}
}

// TestAddressesOfOthers: a neighbour's pod is not shown at an address that is known to be another's.
func TestAddressesOfOthers(t *testing.T) {
	const third = "node-3"
	inSite(t, true, func(s *scene, o *others) {
		s.store.NodeLabels().Apply(wiretest.Object(&corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: third, Labels: map[string]string{"zone": "a"}},
		}))
		s.store.Services().Apply(wiretest.Object(&corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "open"},
			Spec:       corev1.ServiceSpec{ClusterIP: "10.96.0.9", ClusterIPs: []string{"10.96.0.9", "fd00::9"}},
		}))
		s.store.Services().Apply(wiretest.Object(&corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kubernetes"},
			Spec:       corev1.ServiceSpec{ClusterIP: "10.96.0.1"},
		}))
		s.slice("default", "kubernetes", "", endpoint{"", "203.0.113.6", true, false})
		s.slice("ns", "third", third, endpoint{"z", "10.3.0.1", true, false})
		s.upstreamIs(Away)
		for i, address := range []string{
			"10.96.0.9", "fd00::9", "10.96.0.1", "203.0.113.6", "10.3.0.1", "10.0.0.1", // the last is here
		} {
			o.say(there, "x="+address)
			s.after(2 * interval)
			s.expectOf("far", "at "+address, "")
			s.change(func() {
				if s.refused != i+1 {
					s.Errorf("at %s: %d pods are counted, want %d", address, s.refused, i+1)
				}
			})
		}
		o.say(there, "x=10.2.1.1")
		s.after(interval)
		s.expectOf("far", "at an address of its own", "10.2.1.1")

		// Addresses may go from one node to another. Both say so at the same time.
		s.store.Services().Apply(wiretest.Object(&corev1.Service{ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: "third", Annotations: map[string]string{"topologyKeys": `["zone"]`},
		}}))
		o.say(there, "x=10.3.0.1")
		o.say(third, "z=10.2.0.1")
		s.after(2 * interval)
		s.expectOf("far", "exchanged", "10.3.0.1")
		s.expectOf("third", "exchanged", "10.2.0.1")
		// That a node says its pod has the address of another's does not keep that one from saying so.
		o.say(there, "x=10.3.0.7")
		s.after(interval)
		o.say(third, "z=10.3.0.7")
		s.after(interval)
		s.expectOf("third", "claimed", "10.3.0.7")
		// What a silent node had is free.
		o.mu.Lock()
		delete(o.words, third)
		o.mu.Unlock()
		o.say(there, "x=10.3.0.1")
		s.after(2 * interval)
		s.expectOf("far", "not silent", "")
		s.store.SetSilentNodes(map[string]struct{}{third: {}})
		s.after(2 * interval)
		s.expectOf("far", "silent", "10.3.0.1")
	})
}

// TestNeighboursReturn: when the upstream is back, a neighbour's word counts for the pods that the upstream knew
// before, until it says the same, or until the grace is over.
func TestNeighboursReturn(t *testing.T) {
	for _, withRuntime := range []bool{true, false} {
		inSite(t, withRuntime, func(s *scene, o *others) {
			s.upstreamIs(Away)
			o.say(there, "x=10.2.1.1")
			s.after(time.Minute)
			s.expectOf("far", "away", "10.2.1.1")
			s.neighbourHas("far", endpoint{"x", "10.2.0.1", false, false}, endpoint{"new", "10.2.3.3", true, false})
			s.upstreamIs(Followed)
			s.after(interval)
			s.expectOf("far", "back", "10.2.1.1 10.2.3.3")
			o.say(there, "x=10.2.1.4")
			s.after(interval)
			s.expectOf("far", "it still says", "10.2.1.4 10.2.3.3")
			s.neighbourHas("far", endpoint{"x", "10.2.1.4", true, false}, endpoint{"new", "10.2.3.3", true, false})
			s.after(settling)
			if status := s.keeper.Status(); len(status.Neighbours) > 0 || status.Used {
				s.Errorf("agreed, and the status is %+v", status)
			}
			o.say(there, "x=10.2.9.9", "new=10.2.3.3")
			s.after(interval)
			s.expectOf("far", "agreed", "10.2.1.4 10.2.3.3")

			s.upstreamIs(Away)
			s.after(time.Minute)
			s.expectOf("far", "away again", "10.2.9.9 10.2.3.3")
			s.upstreamIs(Followed)
			s.after(DefaultReturnGrace - time.Second)
			s.expectOf("far", "not agreed", "10.2.9.9 10.2.3.3")
			s.after(2 * interval)
			s.expectOf("far", "the grace is over", "10.2.1.4 10.2.3.3")
		})
	}
}

// TestShare: the neighbours have this node's pods while its upstream is away, and while one of them needs to know.
func TestShare(t *testing.T) {
	inSite(t, true, func(s *scene, o *others) {
		s.after(time.Minute)
		if got := o.has(); got != "nothing" {
			s.Errorf("followed: %s", got)
		}
		o.setWanted(true)
		s.upstreamSays(endpoint{"a", "10.0.0.1", true, false}, endpoint{"b", "10.0.0.2", false, false})
		s.after(interval)
		if got := o.has(); got != "a=10.0.0.1 b=10.0.0.2!" {
			s.Errorf("wanted: %s", got)
		}
		s.runtimeRuns(pod("a", "10.0.1.1", true, time.Now()))
		s.after(interval)
		if got := o.has(); got != "a=10.0.1.1" {
			s.Errorf("changed: %s", got)
		}
		s.expectShown("the upstream's word counts here", "10.0.0.1 (10.0.0.2)")
		o.setWanted(false)
		s.after(interval)
		if got := o.has(); got != "nothing" {
			s.Errorf("not wanted any more: %s", got)
		}
		before := s.questions()
		s.after(time.Minute)
		if asked := s.questions() - before; asked > 1 {
			s.Errorf("the runtime was asked %d times without need", asked)
		}
		s.upstreamIs(Away)
		s.after(interval)
		if got := o.has(); got != "a=10.0.1.1" {
			s.Errorf("away: %s", got)
		}
	})
}

// TestManyNeighbours: while nothing changes, the facts are not read again for them.
func TestManyNeighbours(t *testing.T) {
	inSite(t, false, func(s *scene, o *others) {
		s.upstreamIs(Away)
		o.say(there, "x=10.2.1.1")
		s.after(10 * interval)
		before := s.store.Changes()
		s.after(time.Minute)
		if after := s.store.Changes(); after != before {
			s.Errorf("%d changes", after-before)
		}
	})
}
