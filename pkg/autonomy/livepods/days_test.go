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
func newSettledBench(t *testing.T, pod cri.Pod, slices ...*discoveryv1.EndpointSlice) *bench {
	t.Helper()
	b := newBench(t)
	b.pods, b.slices = []cri.Pod{pod}, slices
	b.api()
	b.run(600)
	return b
}

func (b *bench) boot(state *facts.Snapshot) {
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
	state, err := b.store.View.Snapshot("n0", b.now)
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
		b := newSettledBench(t, run(""), sliceFor("one", own), sliceFor("two", own, other))
		b.pods = []cri.Pod{run("!")} // nobody starts it again
		b.run(50)
		b.ready = corev1.ConditionUnknown
		b.slices = []*discoveryv1.EndpointSlice{sliceFor("one", notReady(own)), sliceFor("two", notReady(own), other)}
		b.api()
		expect := func(when string) {
			t.Helper()
			when = fmt.Sprintf("%s, certainly needed: %v", when, certain)
			b.expect(when, "one", alone)
			if both := strings.ReplaceAll(b.shows("two"), "10.0.0.1! ", ""); both != "10.0.1.1" {
				t.Errorf("%s: the Service two shows %s", when, both)
			}
		}
		b.run(10)
		expect("the node is not ready")
		b.out(10)
		expect("without a link")
		b.run(24 * 360)
		expect("a long time later")
	}
}

// TestHungWatch: the same before a link of which it takes some time until it is known that it is away (a watch that
// hangs on a live connection: up to 150 s).
func TestHungWatch(t *testing.T) {
	run := func(state string) []cri.Pod {
		return []cri.Pod{
			up("db", "10.0.0.1", "s1", "app"+state, "sidecar"),
			restarted(up("web", "10.0.0.2", "s2", "app"+state, "side"), "app"),
		}
	}
	for _, hangs := range []int{25, 30, 35, 40, 45, 60, 150} {
		b := newBench(t)
		b.pods = run("")
		b.slices = []*discoveryv1.EndpointSlice{
			sliceFor("one", own, other), sliceFor("two", ep{"web", "10.0.0.2", "n0", true, true}),
		}
		b.api()
		b.run(600)
		b.pods = run("!")
		b.run(hangs)
		b.out(10)
		when := fmt.Sprintf("noticed after %d s: the containers app have ended", hangs)
		b.expect(when, "one", "10.0.1.1")
		b.expect(when, "two", "10.0.0.2!")
	}
}

// TestDebuggedBeforeReady: kubectl debug in a pod that is not ready yet; the shell goes on when it has become ready.
// Then the power goes.
func TestDebuggedBeforeReady(t *testing.T) {
	b := newBench(t)
	b.pods = []cri.Pod{up("db", "10.0.0.1", "s1", "app", "debugger-x")}
	b.says(notReady(own))
	b.run(60)
	b.says(own)
	b.run(120)
	b.out(5)
	b.expect("without a link", "one", "10.0.0.1")
	b.pods = []cri.Pod{up("db", "10.0.0.1", "s1", "app", "debugger-x!")}
	b.run(5)
	b.expect("only the shell has ended", "one", "10.0.0.1")
	b.pods = []cri.Pod{up("db", "10.0.0.7", "s2", "app")} // after a power cut there is no debug container
	b.run(3600)
	b.expect("an hour after a power cut", "one", "10.0.0.7")
}

// TestUpgradeWhileDebugged: the wrapper's pod is replaced (new version: its emptyDir begins empty) while a debug
// container runs in a pod.
func TestUpgradeWhileDebugged(t *testing.T) {
	b := newBench(t)
	b.pods = []cri.Pod{up("db", "10.0.0.1", "s1", "app", "debugger-x")}
	b.says(own)
	b.run(3600)
	b.out(5)
	b.pods = []cri.Pod{up("db", "10.0.0.7", "s2", "app")}
	b.run(3600)
	b.expect("an hour after a power cut", "one", "10.0.0.7")
}

// TestTwoServices: a pod in two Services, of which one has a slice of its own that calls it not ready (an endpoint that
// was drained, a leader's Service). The link goes, nothing else.
func TestTwoServices(t *testing.T) {
	b := newSettledBench(t, up("db", "10.0.0.1", "s1", "app"), sliceFor("one", own), sliceFor("two", notReady(own)))
	b.out(10)
	b.expect("only the link is away", "one", "10.0.0.1")
	b.expect("only the link is away", "two", "10.0.0.1!")
}

// TestHungRuntimeNotReady: the runtime hangs; the kubelet says so, and the API calls the node and its pods not ready.
func TestHungRuntimeNotReady(t *testing.T) {
	b := newSettledBench(t, up("db", "10.0.0.1", "s1", "app"), sliceFor("one", own))
	b.err, b.ready = context.DeadlineExceeded, corev1.ConditionFalse
	b.says(notReady(own))
	b.run(30)
	b.expect("it runs", "one", "10.0.0.1")
}

// TestCrashBeforeTheLink: a container crashes; the kubelet says so; the link goes before the container, which runs
// again, is called ready.
func TestCrashBeforeTheLink(t *testing.T) {
	b := newSettledBench(t, up("db", "10.0.0.1", "s1", "app"), sliceFor("one", own))
	b.pods = []cri.Pod{up("db", "10.0.0.1", "s1", "app!")}
	b.says(notReady(own))
	b.run(2)
	b.pods = []cri.Pod{again(up("db", "10.0.0.1", "s1", "app"), "app")}
	b.out(3600)
	b.expect("the container has run for an hour", "one", "10.0.0.1")
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
	b := newSettledBench(t, up("db", "10.0.0.1", "s1", "app"), sliceFor("one", at("192.168.50.5", own)))
	b.out(30)
	b.expect("only the link is away", "one", "192.168.50.5")
}

// TestSecondAddress: the same with the addresses of both networks in the runtime's answer.
func TestSecondAddress(t *testing.T) {
	p := up("db", "10.0.0.1", "s1", "app")
	p.Addresses = append(p.Addresses, netip.MustParseAddr("192.168.50.5"))
	b := newSettledBench(t, p, sliceFor("one", at("192.168.50.5", own)))
	b.out(30)
	b.expect("only the link is away", "one", "192.168.50.5")
}

// TestWipedRuntime: after a boot CRI-O has wiped all pods, and the kubelet starts none without the API.
func TestWipedRuntime(t *testing.T) {
	b := newSettledBench(t, up("db", "10.0.0.1", "s1", "app"), sliceFor("one", own, other))
	b.state, b.pods, b.err, b.machine = Away, nil, cri.ErrNoPods, "another"
	b.restart()
	for range 360 {
		if b.run(10); b.shows("one") != "10.0.1.1" || b.shared == nil || len(b.shared.Pods) > 0 {
			t.Fatalf("after a boot the node runs no pod, and shows %q; it tells its neighbours %v, err %v",
				b.shows("one"), b.shared, b.keeper.Status().Err)
		}
	}
	if s := b.keeper.Status(); !errors.Is(s.Err, cri.ErrNoPods) || !s.AsOf.Equal(b.now) || !b.shared.AsOf.Equal(b.now) {
		t.Errorf("the runtime's answer is not reported, or not as of now: %+v", s)
	}
	b.pods, b.err = []cri.Pod{up("db", "10.0.0.7", "s2", "app")}, nil
	b.run(20)
	b.expect("the pod runs again", "one", "10.0.0.7 10.0.1.1")
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
		b.store.UpdateNotes(func(n *facts.Notes) { n.PodNotes = NotesOfBoot(b.machine) })
		b.state, b.pods, b.machine = Away, []cri.Pod{up("wrapper", "10.0.9.9", "s9", "wrapper")}, c.machine
		b.restart()
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
	b.says(own)
	b.store.UpdateNotes(func(n *facts.Notes) { n.PodNotes = NotesOfBoot(b.machine) })
	b.state, b.pods = Away, []cri.Pod{up("db", "10.0.0.2", "s2", "app")}
	b.restart()
	for _, b.state = range []UpstreamState{Away, Followed} {
		b.run(30)
		b.expect(fmt.Sprint("upstream ", b.state), "one", "10.0.0.2")
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

// TestServiceMadeInAnOutage: while the link is away somebody makes a Service whose slice calls the endpoint of a ready
// pod not ready (a leader's Service). When the link is back it is shown so from the first moment.
func TestServiceMadeInAnOutage(t *testing.T) {
	b := newSettledBench(t, up("db", "10.0.0.1", "s1", "app"), sliceFor("one", own))
	b.out(600)
	b.state = Followed
	b.slices = append(b.slices, sliceFor("two", notReady(own)))
	b.api()
	for i := range 120 {
		b.run(1)
		when := fmt.Sprintf("%d s after the link is back", i+1)
		b.expect(when, "one", "10.0.0.1")
		b.expect(when, "two", "10.0.0.1!")
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
			b.says(ep{"db", "10.0.0.1", "n0", ready, ready}, other)
		}
		b.beats, b.pods = true, []cri.Pod{up("db", "10.0.0.1", "s1", "app")}
		says(true)
		b.run(300)
		says(true)
		b.run(300)
		b.out(600)
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
		b.out(30)
		if pod := b.shared.Pods[facts.PodKey{Namespace: "ns", Name: "db", UID: "uid-db"}]; pod.Suspected {
			t.Errorf("sandbox %s: only a debug shell has ended, and the pod is suspected: %+v", sandbox, pod)
		}
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
		b.out(600)
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
