package livepods

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/application-grid/application-grid/internal/testkit/storagetest"
	"github.com/application-grid/application-grid/internal/testkit/wiretest"
	"github.com/application-grid/application-grid/pkg/autonomy/cri"
	"github.com/application-grid/application-grid/pkg/storage/facts"
	"github.com/application-grid/application-grid/pkg/storage/served"
	"github.com/application-grid/application-grid/pkg/storage/wire"
)

// bench is one node, its keeper, its runtime and its API, second by second.
type bench struct {
	t      *testing.T
	now    time.Time
	store  *storagetest.Node
	keeper *Keeper
	state  UpstreamState
	pods   []cri.Pod
	err    error
	words  map[string]*facts.LivePods
	shared *facts.LivePods
	ready  corev1.ConditionStatus
	slices []*discoveryv1.EndpointSlice
	wanted bool
	// machine is the id of the machine's boot.
	machine string
	// contact is when the API last confirmed what it says; zero for now.
	contact time.Time
	// beats is set if the kubelet has reported its node whenever the API delivers something.
	beats bool
	// named is set if a person has named the runtime's socket.
	named bool
	// asked counts the questions to the runtime, refused has the counts of the neighbours' pods that were refused.
	asked   int
	refused []int
}

func (b *bench) Pods(context.Context) ([]cri.Pod, error) { return slices.Clone(b.pods), b.err }
func (b *bench) Socket() string                          { return "socket" }
func (b *bench) Named() bool                             { return b.named }
func (b *bench) Close()                                  {}
func (b *bench) RuntimeAsked(error)                      { b.asked++ }
func (b *bench) PodsRefused(count int)                   { b.refused = append(b.refused, count) }
func (b *bench) Words() map[string]*facts.LivePods       { return b.words }
func (b *bench) Share(p *facts.LivePods)                 { b.shared = p }
func (b *bench) Wanted() bool                            { return b.wanted }

func newBench(t *testing.T) *bench {
	t.Helper()
	b := &bench{t: t, now: epoch, state: Followed, ready: corev1.ConditionTrue}
	b.boot(nil)
	return b
}

// newSettledBench makes a bench whose pod the runtime and the API server have shown unchanged for 10 minutes.
func newSettledBench(t *testing.T, pod cri.Pod, slice *discoveryv1.EndpointSlice) *bench {
	t.Helper()
	b := newBench(t)
	b.pods, b.slices = []cri.Pod{pod}, []*discoveryv1.EndpointSlice{slice}
	b.api()
	b.run(600)
	return b
}

func (b *bench) boot(state *facts.State) {
	b.store = storagetest.New(storagetest.Options{
		NodeName: "n0", KeepKubernetesEndpoint: true, Clock: func() time.Time { return b.now },
	})
	if state != nil {
		b.store.Restore(state)
	}
	b.keeper = New(Config{
		NodeName: "n0", Facts: b.store.Facts, Upstream: func() UpstreamState { return b.state }, Runtime: b,
		Neighbours:  b,
		ReturnGrace: DefaultReturnGrace, Observer: b, Boot: b.machine, Now: func() time.Time { return b.now },
		Contact: func() time.Time {
			if b.contact.IsZero() {
				return b.now
			}
			return b.contact
		},
	})
}

// api delivers what the API says now.
func (b *bench) api() {
	b.store.Hold()
	defer b.store.Release()
	b.store.NodeLabels().Replace([]*wire.Object{wiretest.Node("n0", "a"), wiretest.Node("n1", "a")})
	own := wiretest.NodeOf("n0", "a")
	own.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: b.ready}}
	if b.beats {
		own.Status.Conditions[0].LastHeartbeatTime = metav1.NewTime(b.now)
	}
	b.store.OwnNode().Replace([]*wire.Object{wiretest.Object(own)})
	var services, endpoints []*wire.Object
	seen := map[string]bool{}
	for _, s := range b.slices {
		name := s.Labels[discoveryv1.LabelServiceName]
		if keys := `["zone"]`; !seen[name] {
			if name == ungoverned {
				keys = ""
			}
			services = append(services, wiretest.Service(name, keys))
		}
		seen[name] = true
		endpoints = append(endpoints, wiretest.Object(s))
	}
	b.store.Services().Replace(services)
	b.store.EndpointSlices().Replace(endpoints)
}

// says delivers that the Service one has these endpoints, and that there is no other Service.
func (b *bench) says(eps ...ep) {
	b.slices = []*discoveryv1.EndpointSlice{sliceFor("one", eps...)}
	b.api()
}

// beat lets the kubelet report its node once a minute.
func (b *bench) beat(minutes int) {
	b.beats = true
	for range minutes {
		b.api()
		b.run(60)
	}
}

// restart starts the wrapper again, from its snapshot.
func (b *bench) restart() {
	b.t.Helper()
	state, err := b.store.View.State("n0", b.now)
	if err != nil {
		b.t.Fatal(err)
	}
	b.boot(state)
}

// expect says what a Service must show.
func (b *bench) expect(when, service, want string) {
	b.t.Helper()
	if got := b.shows(service); got != want {
		b.t.Errorf("%s: the Service %s shows %q, want %q: %v", when, service, got, want, b.keeper.Status().Reasons)
	}
}

func (b *bench) run(seconds int) {
	for range seconds {
		b.now = b.now.Add(time.Second)
		b.keeper.step(context.Background())
	}
}

// shows is what a Service shows: ADDRESS, ADDRESS! for one that is not ready, and ADDRESS~ if that one is serving.
func (b *bench) shows(service string) string {
	var all []string
	for _, o := range b.store.History.Objects(served.EndpointSlices) {
		if !strings.HasPrefix(o.Key().Name, service+"-") {
			continue
		}
		err := wire.EndpointSlice.Scan(o.Body, func(e wire.Endpoint) {
			text := string(e.Address)
			switch {
			case !e.Ready && e.Serving():
				text += "~"
			case !e.Ready:
				text += "!"
			}
			all = append(all, text)
		})
		if err != nil {
			b.t.Fatal(err)
		}
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

type ep struct {
	pod, address, node string
	ready, serving     bool
}

func sliceFor(service string, eps ...ep) *discoveryv1.EndpointSlice {
	s := wiretest.SliceOf(service+"-1", service)
	for _, e := range eps {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{e.address}, NodeName: ptr.To(e.node),
			Conditions: discoveryv1.EndpointConditions{
				Ready: ptr.To(e.ready), Serving: ptr.To(e.serving), Terminating: ptr.To(false),
			},
			TargetRef: &corev1.ObjectReference{
				Kind: "Pod", Namespace: "ns", Name: e.pod, UID: types.UID("uid-" + e.pod),
			},
		})
	}
	return s
}

func up(pod, address, sandbox string, containers ...string) cri.Pod {
	p := cri.Pod{
		Namespace: "ns", Name: pod, UID: "uid-" + pod, Sandbox: sandbox,
		Addresses: []netip.Addr{netip.MustParseAddr(address)}, Containers: map[string]cri.Container{},
	}
	for _, c := range containers {
		name, down := strings.CutSuffix(c, "!")
		state := cri.Running
		if down {
			state = cri.Exited
		}
		p.Containers[name] = cri.Container{ID: sandbox + "-" + name, State: state}
	}
	return p
}

// own is an endpoint of this node, other a neighbour's. Both are ready.
var (
	own   = ep{"db", "10.0.0.1", "n0", true, true}
	other = ep{"other", "10.0.1.1", "n1", true, true}
)

// ungoverned is the name of a Service without topologyKeys.
const ungoverned = "plain"

// at returns an endpoint with another address, notReady one that is not ready.
func at(address string, e ep) ep { e.address = address; return e }

func notReady(e ep) ep { e.ready, e.serving = false, false; return e }

// again returns a pod whose container was started again, of which the runtime has not kept the one before.
func again(p cri.Pod, name string) cri.Pod {
	p.Containers[name] = cri.Container{ID: "again-" + p.Containers[name].ID, State: p.Containers[name].State}
	return p
}

// restarted says that the kubelet has started a container before, so that it is none of kubectl debug.
func restarted(p cri.Pod, name string) cri.Pod {
	c := p.Containers[name]
	c.Restarted = true
	p.Containers[name] = c
	return p
}

// TestKubeletDiesWithAContainer: the kubelet and one of two containers die together (out of memory). The API server
// goes on to call the pod ready until it calls the node not ready, after 50 s (Kubernetes 1.32 and newer; 40 before).
// The pod is not used beside another one; and not at all if it is certain that the container is needed.
func TestKubeletDiesWithAContainer(t *testing.T) {
	for certain, alone := range map[bool]string{false: "10.0.0.1", true: "10.0.0.1!"} {
		run := func(state string) cri.Pod {
			p := up("db", "10.0.0.1", "s1", "app"+state, "sidecar")
			if certain {
				return restarted(p, "app")
			}
			return p
		}
		b := newBench(t)
		b.pods = []cri.Pod{run("")}
		b.slices = []*discoveryv1.EndpointSlice{
			sliceFor("one", ep{"db", "10.0.0.1", "n0", true, true}),
			sliceFor("two", ep{"db", "10.0.0.1", "n0", true, true}, other),
		}
		b.api()
		b.run(600)
		b.pods = []cri.Pod{run("!")} // nobody starts it again
		b.run(50)
		b.ready = corev1.ConditionUnknown
		b.slices = []*discoveryv1.EndpointSlice{
			sliceFor("one", ep{"db", "10.0.0.1", "n0", false, false}),
			sliceFor("two", ep{"db", "10.0.0.1", "n0", false, false}, other),
		}
		b.api()
		expect := func(when string) {
			t.Helper()
			both := strings.ReplaceAll(b.shows("two"), "10.0.0.1! ", "")
			if got := b.shows("one"); got != alone || both != "10.0.1.1" {
				t.Errorf("%s: the container app has ended (certainly needed: %v), and the Services show %q and %q: %v",
					when, certain, got, both, b.keeper.Status().Reasons)
			}
		}
		b.run(10)
		expect("the node is not ready")
		b.state = Away
		b.run(10)
		expect("without a link")
		b.run(24 * 360)
		expect("a long time later")
	}
}

// TestHungWatch: the same before a link of which it takes some time until it is known that it is away (a watch that
// hangs on a live connection: up to 150 s).
func TestHungWatch(t *testing.T) {
	for _, hangs := range []int{25, 30, 35, 40, 45, 60, 150} {
		b := newBench(t)
		b.pods = []cri.Pod{
			up("db", "10.0.0.1", "s1", "app", "sidecar"), restarted(up("web", "10.0.0.2", "s2", "app", "side"), "app"),
		}
		b.slices = []*discoveryv1.EndpointSlice{
			sliceFor("one", ep{"db", "10.0.0.1", "n0", true, true}, other),
			sliceFor("two", ep{"web", "10.0.0.2", "n0", true, true}),
		}
		b.api()
		b.run(600)
		b.pods = []cri.Pod{
			up("db", "10.0.0.1", "s1", "app!", "sidecar"),
			restarted(up("web", "10.0.0.2", "s2", "app!", "side"), "app"),
		}
		b.run(hangs)
		b.state = Away
		b.run(10)
		if one, two := b.shows("one"), b.shows("two"); one != "10.0.1.1" || two != "10.0.0.2!" {
			t.Errorf("noticed after %d s: the containers app have ended, and the Services show %q and %q",
				hangs, one, two)
		}
	}
}

// TestDebuggedBeforeReady: kubectl debug in a pod that is not ready yet; the shell goes on when it has become ready.
// Then the power goes.
func TestDebuggedBeforeReady(t *testing.T) {
	b := newBench(t)
	b.pods = []cri.Pod{up("db", "10.0.0.1", "s1", "app", "debugger-x")}
	b.slices = []*discoveryv1.EndpointSlice{sliceFor("one", ep{"db", "10.0.0.1", "n0", false, false})}
	b.api()
	b.run(60)
	b.slices = []*discoveryv1.EndpointSlice{sliceFor("one", ep{"db", "10.0.0.1", "n0", true, true})}
	b.api()
	b.run(120)
	b.state = Away
	b.run(5)
	if got := b.shows("one"); got != "10.0.0.1" {
		t.Errorf("without a link: %q", got)
	}
	b.pods = []cri.Pod{up("db", "10.0.0.1", "s1", "app", "debugger-x!")} // the shell ends
	b.run(5)
	if got := b.shows("one"); got != "10.0.0.1" {
		t.Errorf("the debug shell has ended, nothing else: %q %v", got, b.keeper.Status().Reasons)
	}
	b.pods = []cri.Pod{up("db", "10.0.0.7", "s2", "app")} // after a power cut there is no debug container
	b.run(3600)
	if got := b.shows("one"); got != "10.0.0.7" {
		t.Errorf("an hour after a power cut: %q %v", got, b.keeper.Status().Reasons)
	}
}

// TestUpgradeWhileDebugged: the wrapper's pod is replaced (new version: its emptyDir begins empty) while a debug
// container runs in a pod.
func TestUpgradeWhileDebugged(t *testing.T) {
	b := newBench(t)
	b.pods = []cri.Pod{up("db", "10.0.0.1", "s1", "app", "debugger-x")}
	b.slices = []*discoveryv1.EndpointSlice{sliceFor("one", ep{"db", "10.0.0.1", "n0", true, true})}
	b.api()
	b.run(3600)
	b.state = Away
	b.run(5)
	b.pods = []cri.Pod{up("db", "10.0.0.7", "s2", "app")}
	b.run(3600)
	if got := b.shows("one"); got != "10.0.0.7" {
		t.Errorf("an hour after a power cut: %q %v", got, b.keeper.Status().Reasons)
	}
}

// TestTwoServices: a pod in two Services, of which one has a slice of its own that calls it not ready (an endpoint that
// was drained, a leader's Service). The link goes, nothing else.
func TestTwoServices(t *testing.T) {
	b := newBench(t)
	b.pods = []cri.Pod{up("db", "10.0.0.1", "s1", "app")}
	b.slices = []*discoveryv1.EndpointSlice{
		sliceFor("one", ep{"db", "10.0.0.1", "n0", true, true}),
		sliceFor("two", ep{"db", "10.0.0.1", "n0", false, false}),
	}
	b.api()
	b.run(600)
	before := fmt.Sprint(b.shows("one"), ", ", b.shows("two"))
	b.state = Away
	b.run(10)
	if got := fmt.Sprint(b.shows("one"), ", ", b.shows("two")); got != before {
		t.Errorf("only the link is away: before %q, now %q: %v", before, got, b.keeper.Status().Reasons)
	}
}

// TestServingNotReady: a slice that calls an endpoint not ready, but serving (a drained one), until the pod has ended.
func TestServingNotReady(t *testing.T) {
	b := newSettledBench(t, up("db", "10.0.0.1", "s1", "app"), sliceFor("two", ep{"db", "10.0.0.1", "n0", false, true}))
	b.out(10)
	b.expect("only the link is away", "two", "10.0.0.1~")
	b.pods = []cri.Pod{up("db", "10.0.0.1", "s1", "app!")}
	b.run(10)
	b.expect("it has ended", "two", "10.0.0.1!")
}

// TestSecondNetwork: endpoints at another network of the pod (Multus' service controller, user-defined networks).
func TestSecondNetwork(t *testing.T) {
	b := newSettledBench(t, up("db", "10.0.0.1", "s1", "app"),
		sliceFor("one", ep{"db", "192.168.50.5", "n0", true, true}))
	before := b.shows("one")
	b.state = Away
	b.run(30)
	if got := b.shows("one"); got != before {
		t.Errorf("only the link is away: before %q, now %q: %v", before, got, b.keeper.Status().Reasons)
	}
}

// TestSecondAddress: the same with the addresses of both networks in the runtime's answer.
func TestSecondAddress(t *testing.T) {
	b := newBench(t)
	p := up("db", "10.0.0.1", "s1", "app")
	p.Addresses = append(p.Addresses, netip.MustParseAddr("192.168.50.5"))
	b.pods = []cri.Pod{p}
	b.slices = []*discoveryv1.EndpointSlice{sliceFor("one", ep{"db", "192.168.50.5", "n0", true, true})}
	b.api()
	b.run(600)
	before := b.shows("one")
	b.state = Away
	b.run(30)
	if got := b.shows("one"); got != before {
		t.Errorf("only the link is away: before %q, now %q: %v", before, got, b.keeper.Status().Reasons)
	}
}

// TestWipedRuntime: after a boot CRI-O has wiped all pods, and the kubelet starts none without the API.
func TestWipedRuntime(t *testing.T) {
	b := newBench(t)
	b.pods = []cri.Pod{up("db", "10.0.0.1", "s1", "app")}
	b.slices = []*discoveryv1.EndpointSlice{sliceFor("one",
		ep{"db", "10.0.0.1", "n0", true, true}, ep{"other", "10.0.1.1", "n1", true, true})}
	b.api()
	b.run(600)
	state, err := b.store.View.State("n0", b.now)
	if err != nil {
		t.Fatal(err)
	}
	b.state, b.pods, b.err, b.machine = Away, nil, cri.ErrNoPods, "another"
	b.boot(state)
	for range 360 {
		b.run(10)
		if got := b.shows("one"); got != "10.0.1.1" || b.shared == nil || len(b.shared.Pods) > 0 {
			t.Fatalf("after a boot the node runs no pod, and shows %q; it tells its neighbours %v, err %v",
				got, b.shared, b.keeper.Status().Err)
		}
	}
	if s := b.keeper.Status(); !errors.Is(s.Err, cri.ErrNoPods) || !s.AsOf.Equal(b.now) || !b.shared.AsOf.Equal(b.now) {
		t.Errorf("the runtime's answer is not reported, or not as of now: %+v", s)
	}
	b.pods, b.err = []cri.Pod{up("db", "10.0.0.7", "s2", "app")}, nil
	b.run(20)
	if got := b.shows("one"); got != "10.0.0.7 10.0.1.1" {
		t.Errorf("the pod runs again, and the Service shows %q", got)
	}
}

// TestRuntimeIsAskedAfterABoot: the process before asked no runtime. After a boot, and where a person has named the
// kubelet's runtime, a pod that the runtime does not list does not run; else that is not known.
func TestRuntimeIsAskedAfterABoot(t *testing.T) {
	for _, c := range []struct {
		machine string
		named   bool
		want    string
	}{{"another", false, ""}, {"another", true, ""}, {"same", true, ""}, {"same", false, "10.0.0.1"}} {
		b := newBench(t)
		b.machine, b.named = "same", c.named
		b.slices = []*discoveryv1.EndpointSlice{sliceFor("one", own), sliceFor("two", own, other)}
		b.api()
		b.store.Note(func(n *facts.Notes) { n.PodNotes = NotesOfBoot(b.machine) })
		state, err := b.store.View.State("n0", b.now)
		if err != nil {
			t.Fatal(err)
		}
		b.state, b.pods, b.machine = Away, []cri.Pod{up("wrapper", "10.0.9.9", "s9", "wrapper")}, c.machine
		b.boot(state)
		b.run(60)
		when := fmt.Sprintf("boot %s, named %v", c.machine, c.named)
		b.expect(when, "one", c.want)
		b.expect(when, "two", "10.0.1.1")
	}
}

// TestRuntimeIsAskedOnlyInAnOutage: a person gives --cri during an outage in which a pod has got another address. When
// the link is back the API server does not know that one yet, and the address of before is not that of another network.
func TestRuntimeIsAskedOnlyInAnOutage(t *testing.T) {
	b := newBench(t)
	b.machine, b.named = "same", true
	b.slices = []*discoveryv1.EndpointSlice{sliceFor("one", ep{"db", "10.0.0.1", "n0", true, true})}
	b.api()
	b.store.Note(func(n *facts.Notes) { n.PodNotes = NotesOfBoot(b.machine) })
	state, err := b.store.View.State("n0", b.now)
	if err != nil {
		t.Fatal(err)
	}
	b.state, b.pods = Away, []cri.Pod{up("db", "10.0.0.2", "s2", "app")}
	b.boot(state)
	for _, b.state = range []UpstreamState{Away, Followed} {
		b.run(30)
		if got := b.shows("one"); got != "10.0.0.2" {
			t.Errorf("upstream %d: the Service shows %q: %v", b.state, got, b.keeper.Status().Reasons)
		}
		b.api()
	}
}

// TestLinkIsBackForAMoment: the kubelet reports that the node is ready, and the link is dead again before it reports
// that of the pods. Nobody notices that for longer than the grace. The wrapper may be started again meanwhile.
func TestLinkIsBackForAMoment(t *testing.T) {
	for _, restarts := range []bool{false, true} {
		b := newBench(t)
		b.pods = []cri.Pod{up("db", "10.0.0.1", "s1", "app")}
		b.says(own, other)
		b.beat(10)
		b.beats = false
		b.out(60)
		b.slices = []*discoveryv1.EndpointSlice{sliceFor("one", notReady(own), other)}
		for _, b.ready = range []corev1.ConditionStatus{corev1.ConditionUnknown, corev1.ConditionTrue} {
			b.state, b.contact = Followed, b.now
			b.api()
			b.run(5)
		}
		if restarts {
			b.run(120)
			b.restart()
			b.contact = b.now
			b.api()
			b.run(5)
		}
		b.run(140)
		b.out(10)
		b.expect(fmt.Sprintf("it has not changed, restarts %v", restarts), "one", "10.0.0.1 10.0.1.1")
	}
}

// TestCrashBeforeTheLink: a container crashes; the kubelet says so; the link goes before the container, which runs
// again, is called ready.
func TestCrashBeforeTheLink(t *testing.T) {
	b := newSettledBench(t, up("db", "10.0.0.1", "s1", "app"), sliceFor("one", ep{"db", "10.0.0.1", "n0", true, true}))
	b.pods = []cri.Pod{up("db", "10.0.0.1", "s1", "app!")}
	b.slices = []*discoveryv1.EndpointSlice{sliceFor("one", ep{"db", "10.0.0.1", "n0", false, false})}
	b.api()
	b.run(2)
	p := up("db", "10.0.0.1", "s1", "app")
	p.Containers["app"] = cri.Container{ID: "again", State: cri.Running}
	b.pods = []cri.Pod{p}
	b.state = Away
	b.run(14 * 24 * 360)
	if got := b.shows("one"); got != "10.0.0.1" {
		t.Errorf("the container has run for days, and its Service shows %q: %v", got, b.keeper.Status().Reasons)
	}
}

// TestHungRuntimeNotReady: the runtime hangs; the kubelet says so, and the API calls the node and its pods not ready.
func TestHungRuntimeNotReady(t *testing.T) {
	b := newSettledBench(t, up("db", "10.0.0.1", "s1", "app"), sliceFor("one", ep{"db", "10.0.0.1", "n0", true, true}))
	b.err = context.DeadlineExceeded
	b.ready = corev1.ConditionFalse
	b.slices = []*discoveryv1.EndpointSlice{sliceFor("one", ep{"db", "10.0.0.1", "n0", false, false})}
	b.api()
	b.run(30)
	if got := b.shows("one"); got != "10.0.0.1" {
		t.Errorf("the pod runs, and its Service shows %q", got)
	}
}

// TestSlowStart: a pod in a new sandbox needs a minute until it passes its probe; the link goes in that
// minute.
func TestSlowStart(t *testing.T) {
	for _, after := range []int{20, 40} {
		b := newBench(t)
		b.pods = []cri.Pod{up("db", "10.0.0.1", "s1", "app")}
		b.slices = []*discoveryv1.EndpointSlice{sliceFor("one", ep{"db", "10.0.0.1", "n0", true, true})}
		b.api()
		b.run(600)
		b.pods = []cri.Pod{up("db", "10.0.0.2", "s2", "app")}
		b.slices = []*discoveryv1.EndpointSlice{sliceFor("one", ep{"db", "10.0.0.2", "n0", false, false})}
		b.api()
		b.run(after)
		b.state = Away
		b.run(3600)
		if got := b.shows("one"); got != "10.0.0.2" {
			t.Errorf("the link was lost %d s after the start, and the Service shows %q: %v",
				after, got, b.keeper.Status().Reasons)
		}
	}
}

// TestWithoutARuntime: a keeper that has only neighbours has no runtime to ask.
func TestWithoutARuntime(t *testing.T) {
	b := newBench(t)
	b.keeper.config.Runtime = nil
	for _, b.state = range []UpstreamState{Followed, Away, Away, Followed, Followed} {
		b.now = b.now.Add(time.Second)
		b.keeper.step(t.Context())
	}
}

// TestServiceMadeInAnOutage: while the link is away somebody makes a Service whose slice calls the endpoint of a ready
// pod not ready (a leader's Service). When the link is back it is shown so from the first moment.
func TestServiceMadeInAnOutage(t *testing.T) {
	b := newSettledBench(t, up("db", "10.0.0.1", "s1", "app"), sliceFor("one", ep{"db", "10.0.0.1", "n0", true, true}))
	b.state = Away
	b.run(600)
	b.state = Followed
	b.slices = append(b.slices, sliceFor("two", ep{"db", "10.0.0.1", "n0", false, false}))
	b.api()
	for i := range 120 {
		b.run(1)
		if one, two := b.shows("one"), b.shows("two"); one != "10.0.0.1" || two != "10.0.0.1!" {
			t.Fatalf("%d s after the link is back: %q, and the new Service shows %q: %v", i+1, one, two,
				b.keeper.Status().Reasons)
		}
	}
}

// TestWithoutARuntimeAfterOneWithIt: a person has --cri removed. The notes of the process before say nothing of the
// pods as they are now, so that after an outage the API's word counts, also when it calls the node not ready at first.
func TestWithoutARuntimeAfterOneWithIt(t *testing.T) {
	b := newBench(t)
	says := func(ready bool) {
		if b.ready = corev1.ConditionUnknown; ready {
			b.ready = corev1.ConditionTrue
		}
		b.slices = []*discoveryv1.EndpointSlice{sliceFor("one", ep{"db", "10.0.0.1", "n0", ready, ready}, other)}
		b.api()
	}
	b.pods = []cri.Pod{up("db", "10.0.0.1", "s1", "app")}
	says(true)
	b.run(600)
	state, err := b.store.View.State("n0", b.now)
	if err != nil {
		t.Fatal(err)
	}
	b.state = Away
	b.boot(state)
	b.keeper.config.Runtime = nil
	b.run(600)
	b.state = Followed
	says(false)
	b.run(300) // longer than the grace: the kubelet does not come back
	says(true)
	b.run(60)
	if got := b.shows("one"); got != "10.0.0.1 10.0.1.1" || b.keeper.Status().Used {
		t.Errorf("the API calls the pod ready, and the Service shows %q: %+v", got, b.keeper.Status())
	}
}

// TestDebuggedAfterAnOutage: kubectl debug in a pod that the API has just called ready again, after it had called the
// node not ready. The pod has not changed, or was started again just before. The shell ends in the next outage.
func TestDebuggedAfterAnOutage(t *testing.T) {
	for sandbox, debugged := range map[string]int{"s1": 15, "s2": 45} {
		b := newBench(t)
		says := func(ready bool) {
			if b.ready = corev1.ConditionUnknown; ready {
				b.ready = corev1.ConditionTrue
			}
			b.slices = []*discoveryv1.EndpointSlice{sliceFor("one", ep{"db", "10.0.0.1", "n0", ready, ready}, other)}
			b.api()
		}
		b.beats, b.pods = true, []cri.Pod{up("db", "10.0.0.1", "s1", "app")}
		says(true)
		b.run(300)
		says(true)
		b.run(300)
		b.state = Away
		b.run(600)
		b.state = Followed
		says(false)
		b.run(5)
		b.pods = []cri.Pod{up("db", "10.0.0.1", sandbox, "app")}
		b.run(5)
		says(true)
		b.run(debugged)
		b.pods = []cri.Pod{up("db", "10.0.0.1", sandbox, "app", "debugger-x")}
		for range 5 {
			b.run(60)
			says(true)
		}
		b.pods = []cri.Pod{up("db", "10.0.0.1", sandbox, "app", "debugger-x!")}
		b.state = Away
		b.run(30)
		if pod := b.shared.Pods[facts.PodKey{Namespace: "ns", Name: "db", UID: "uid-db"}]; pod.Suspected {
			t.Errorf("sandbox %s: only a debug shell has ended, and the pod is suspected: %+v", sandbox, pod)
		}
	}
}

// TestRuntimeIsAskedFromAnOutageOn: a person adds --cri in an outage, which ends with the pod ready. Later one of its
// containers dies as the link goes.
func TestRuntimeIsAskedFromAnOutageOn(t *testing.T) {
	b := newBench(t)
	b.slices = []*discoveryv1.EndpointSlice{sliceFor("one", ep{"db", "10.0.0.1", "n0", true, true}, other)}
	b.api()
	b.store.Note(func(n *facts.Notes) { n.PodNotes = NotesOfBoot("") })
	state, err := b.store.View.State("n0", b.now)
	if err != nil {
		t.Fatal(err)
	}
	b.state, b.pods = Away, []cri.Pod{up("db", "10.0.0.1", "s1", "app", "sidecar")}
	b.boot(state)
	b.run(60)
	b.state = Followed
	b.api()
	b.run(100)
	b.pods = []cri.Pod{up("db", "10.0.0.1", "s1", "app!", "sidecar")}
	b.state = Away
	b.run(30)
	if got := b.shows("one"); got != "10.0.1.1" {
		t.Errorf("a container has ended, and the Service shows %q: %v", got, b.keeper.Status().Reasons)
	}
}

// TestServiceMadeAgainInAnOutage: a Service is deleted, the link goes for long, the Service is made again, and the link
// is back. The API still calls the pod not ready, because it has not heard of the kubelet. Meanwhile the wrapper may be
// started again while the runtime hangs, and the Service's slice may come a little later.
func TestServiceMadeAgainInAnOutage(t *testing.T) {
	created := ep{"new", "10.0.0.2", "n0", true, true}
	for _, later := range []bool{false, true} {
		b := newBench(t)
		b.pods = []cri.Pod{up("db", "10.0.0.1", "s1", "app"), up("new", "10.0.0.2", "s2", "app")}
		b.says(own)
		b.run(600)
		b.says()
		b.run(60)
		if later {
			b.err = context.DeadlineExceeded
			b.restart()
			b.api()
			b.run(5)
			b.err = nil
		}
		b.state = Away
		b.run(600)
		b.state = Followed
		if later {
			b.api()
			b.run(5)
		}
		b.says(notReady(own), notReady(created))
		b.run(15)
		b.expect("one was ready, and the other never was", "one", "10.0.0.1 10.0.0.2!")
		b.says(own, created)
		b.run(60)
		b.expect("the API calls both ready", "one", "10.0.0.1 10.0.0.2")
		if b.keeper.Status().Used {
			t.Error("the API calls both ready, and the node's own state is used")
		}
	}
}

// TestServiceMadeAgainAfterAShortOutage: the same around an outage that the API server has not noticed, while it does
// not agree on another pod. That one of the Service's pods is not ready is the kubelet's word.
func TestServiceMadeAgainAfterAShortOutage(t *testing.T) {
	web := ep{"web", "10.0.0.2", "n0", true, true}
	b := newBench(t)
	b.pods = []cri.Pod{up("db", "10.0.0.1", "s1", "app"), up("web", "10.0.0.2", "s2", "app")}
	b.says(own, web)
	b.run(600)
	b.says(own)
	b.wanted = true
	b.run(60)
	b.pods[0] = up("db", "10.0.0.7", "s3", "app")
	b.run(5)
	b.out(5)
	b.state = Followed
	b.run(2)
	b.says(own, notReady(web))
	b.run(5)
	b.expect("the API server does not know the new address yet", "one", "10.0.0.2! 10.0.0.7")
}

// TestStaticPodReplacedInAnOutage: when the link is back the API calls the node and the former static pod not ready.
// Then it hears of the one that has replaced that, which becomes ready. Later one of its containers dies together with
// the kubelet.
func TestStaticPodReplacedInAnOutage(t *testing.T) {
	b := newBench(t)
	run := func(uid string, containers ...string) {
		p := up("db", "10.0.0.1", uid, containers...)
		p.UID, p.Static = uid, true
		b.pods = []cri.Pod{p}
	}
	says := func(mirror types.UID, ready bool) {
		b.slices = []*discoveryv1.EndpointSlice{sliceFor("one", ep{"db", "10.0.0.1", "n0", ready, ready}, other)}
		b.slices[0].Endpoints[0].TargetRef.UID = mirror
		b.api()
	}
	run("former", "app", "sidecar")
	says("mirror-of-former", true)
	b.run(600)
	b.state = Away
	b.run(60)
	run("next", "app", "sidecar")
	b.run(600)
	b.state = Followed
	b.ready = corev1.ConditionUnknown
	says("mirror-of-former", false)
	b.run(5)
	b.ready = corev1.ConditionTrue
	says("mirror-of-next", false)
	b.run(5)
	says("mirror-of-next", true)
	b.run(200)
	run("next", "app!", "sidecar")
	b.run(20)
	b.state = Away
	b.run(30)
	if got := b.shows("one"); got != "10.0.1.1" {
		t.Errorf("a container has ended, and the Service shows %q: %v", got, b.keeper.Status().Reasons)
	}
}
