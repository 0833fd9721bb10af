package livepods

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/application-grid/application-grid/pkg/autonomy/cri"
	"github.com/application-grid/application-grid/pkg/storage/facts"
	"github.com/application-grid/application-grid/pkg/storage/served"
	"github.com/application-grid/application-grid/pkg/storage/storagetest"
	"github.com/application-grid/application-grid/pkg/storage/wire"
	"github.com/application-grid/application-grid/pkg/storage/wire/wiretest"
)

// A world is a site with a truth: machines with pods that start, pass their probes, crash, are debugged and end, an API
// that hears of that a few seconds later where it hears of it at all, and the wrapper of each machine.

// seconds is the world's time.
type seconds int64

const never seconds = 1 << 60

// pod is the truth of a pod.
type pod struct {
	name, uid string
	// former is the static pod of this name before.
	former  *pod
	service string
	static  bool
	host    bool
	mains   []string
	// faulty says that the pod never passes its probe.
	faulty bool

	sandbox string
	// provenIn is the sandbox in which the kubelet has last called it ready.
	provenIn   string
	address    netip.Addr
	containers map[string]*container
	// started is when its mains began to run, all of them; never while they do not. proven is when they pass the probe.
	started, proven seconds
	// changed is when an id or state of its sandbox or its mains last changed, down when it last stopped to run.
	changed, down seconds
	// born is when its sandbox was made, up when its mains have first run in it.
	born, up seconds
}

type container struct {
	id    string
	state cri.ContainerState
	main  bool
	// debug says that it is one of kubectl debug, restarted that it has taken the place of another.
	debug, restarted bool
}

// runs reports whether all of the pod's own containers run.
func (p *pod) runs() bool { return p.started != never && p.sandbox != "" }

// runsAny reports whether any of the pod's own containers runs.
func (p *pod) runsAny() bool {
	for _, c := range p.containers {
		if c.state == cri.Running && p.sandbox != "" && !c.debug {
			return true
		}
	}
	return false
}

// ready reports what the kubelet's probes say.
func (p *pod) ready(now seconds) bool { return p.runs() && !p.faulty && now >= p.proven }

// word is what the API says of a pod.
type word struct {
	pod     *pod
	address netip.Addr
	// ready is what the API says, said what the kubelet has said last, and asOf when that was true, in which sandbox.
	ready, said bool
	asOf        seconds
	sandbox     string
	// told counts what the kubelet tells. left is when a wrapper was cut off that had this word.
	told int
	left seconds
	// mixed says that it came while the API called the node not ready, or a moment after.
	mixed bool
}

// machine is a node.
type machine struct {
	w     *world
	name  string
	index int

	on, link bool
	// linked is since when the link is there, or not.
	linked seconds
	// deaf is until when the kubelet says nothing, although the link is there, since deafFrom.
	deaf, deafFrom seconds
	// late is how long after the link is back the kubelet is heard.
	late seconds
	pods map[string]*pod // by name
	ids  int

	// The API's side: what it was told of the pods, when the kubelet was last heard, and whether it calls the node
	// ready.
	words map[string]word // by name
	heard seconds
	// beaten is when the kubelet last reported its node.
	beaten seconds
	// notReady is when it was last called so.
	notReady  seconds
	nodeReady bool

	// The wrapper.
	store    *storagetest.Node
	keeper   *Keeper
	snapshot *facts.State
	content  uint64
	saved    seconds
	synced   bool
	// away has since when the wrapper is without the upstream; never while it has it. back is since when it has it.
	// begun is when the wrapper was started.
	away, back, booted, begun seconds
	// atLeave are the words that it had when it was cut off.
	// inSnapshot are those of the snapshot.
	// received those that it got last.
	atLeave, inSnapshot, received map[string]word
	shared                        *facts.LivePods
	hears                         map[string]*facts.LivePods
	// saidTo is what they said then, lied whether they lied.
	saidTo map[string]*facts.LivePods
	lied   map[string]bool
	silent map[string]struct{}
	lies   bool
	// says is set while the kubelet itself says which pods are ready, as those of odd machines do: not after a boot
	// until it was connected.
	says bool
	// hangs is until when the runtime does not answer.
	hangs seconds
	// shown is what it shows at changes of its history.
	shown    map[string]map[string]netip.Addr // by Service, the ready pods
	revision uint64
	// slices is the revision at which the EndpointSlices last changed.
	slices uint64
}

type event struct {
	at seconds
	do func()
}

// world is a site.
type world struct {
	r        *rand.Rand
	now      seconds
	events   []event
	machines []*machine
	touched  seconds
	// names are those of the Services. nodes, services and endpoints are the API's objects, if they were encoded.
	names                      []string
	nodes, services, endpoints []*wire.Object
}

// published is the name of the Service with publishNotReadyAddresses.
const published = "published"

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func (w *world) clock() time.Time { return epoch.Add(time.Duration(w.now) * time.Second) }

// in has something done later.
func (w *world) in(after seconds, do func()) {
	e := event{w.now + after, do}
	i, _ := slices.BinarySearchFunc(w.events, e, func(a, b event) int {
		if a.at <= b.at {
			return -1
		}
		return 1
	})
	w.events = slices.Insert(w.events, i, e)
}

func (w *world) between(low, high int) seconds { return seconds(low + w.r.IntN(high-low+1)) }

func newWorld(seed uint64, nodes int) *world {
	w := &world{r: rand.New(rand.NewPCG(seed, 1)), names: []string{"one", "two", published}}
	for i := range nodes {
		m := &machine{
			w: w, name: fmt.Sprintf("n%d", i), index: i, on: true, link: true, linked: 0, nodeReady: true,
			pods: map[string]*pod{}, words: map[string]word{}, away: never, hears: map[string]*facts.LivePods{},
			silent: map[string]struct{}{},
		}
		w.machines = append(w.machines, m)
	}
	for _, m := range w.machines {
		for j := range 2 + w.r.IntN(4) {
			m.create(w.names[j%len(w.names)])
		}
		m.start()
	}
	return w
}

// all returns the pods of the machine, by name.
func (m *machine) all() []*pod {
	all := make([]*pod, 0, len(m.pods))
	for _, name := range slices.Sorted(maps.Keys(m.pods)) {
		all = append(all, m.pods[name])
	}
	return all
}

func (m *machine) id(kind string) string { m.ids++; return fmt.Sprintf("%s-%s%d", m.name, kind, m.ids) }

// touch notes that something has happened, so that the next seconds are looked at.
func (w *world) touch() { w.touched = w.now }

// create makes a new pod.
func (m *machine) create(service string) {
	m.begin(m.newPod(m.id("pod"), service, m.w.r.IntN(5) == 0))
}

func (m *machine) newPod(name, service string, static bool) *pod {
	r := m.w.r
	p := &pod{
		name: name, uid: m.id("uid"), service: service, static: static, host: r.IntN(6) == 0,
		faulty: r.IntN(6) == 0, started: never, containers: map[string]*container{}, down: m.w.now, changed: m.w.now,
	}
	for i := range 1 + r.IntN(3) {
		p.mains = append(p.mains, fmt.Sprintf("main%d", i))
	}
	return p
}

func (m *machine) begin(p *pod) {
	m.pods[p.name] = p
	m.sandbox(p)
}

// sandbox makes a sandbox for a pod: an init container first, then the others.
func (m *machine) sandbox(p *pod) {
	w := m.w
	p.sandbox, p.started, p.containers = m.id("sandbox"), never, map[string]*container{}
	p.born, p.up = w.now, never
	switch {
	case p.host:
		p.address = netip.AddrFrom4([4]byte{192, 168, 0, byte(m.index + 1)})
	case !p.address.IsValid():
		for { // addresses are used again
			a := netip.AddrFrom4([4]byte{10, 0, byte(m.index), byte(1 + w.r.IntN(12))})
			if !slices.ContainsFunc(slices.Collect(maps.Values(m.pods)), func(o *pod) bool { return o.address == a }) {
				p.address = a
				break
			}
		}
	}
	p.changed = w.now
	w.touch()
	sandbox := p.sandbox
	begin := seconds(0)
	if w.r.IntN(2) == 0 {
		p.containers["init"] = &container{id: m.id("c"), state: cri.Running}
		begin = w.between(1, 40)
	}
	w.in(begin, func() {
		if p.sandbox != sandbox {
			return
		}
		if c := p.containers["init"]; c != nil {
			c.state = cri.Exited
		}
		for _, name := range p.mains {
			p.containers[name] = &container{id: m.id("c"), state: cri.Running, main: true}
		}
		p.up = w.now
		m.up(p)
	})
	m.tell(p)
}

// up notes that all mains of a pod run.
func (m *machine) up(p *pod) {
	w := m.w
	p.started, p.changed = w.now, w.now
	p.proven = w.now + w.between(0, 8)
	w.touch()
	w.in(p.proven-w.now, func() { m.tell(p) })
	m.tell(p)
}

// crash ends a container of a pod, which the kubelet starts again.
func (m *machine) crash(p *pod) {
	w := m.w
	if !p.runs() {
		return
	}
	name := p.mains[w.r.IntN(len(p.mains))]
	sandbox := p.sandbox
	p.containers[name].state = cri.Exited
	p.started, p.changed, p.down = never, w.now, w.now
	w.touch()
	m.tell(p)
	w.in(w.between(1, 30), func() {
		if p.sandbox == sandbox && m.pods[p.name] == p {
			p.containers[name] = &container{id: m.id("c"), state: cri.Running, main: true, restarted: true}
			m.up(p)
		}
	})
}

// unprove makes a running pod fail its probe for a while.
func (m *machine) unprove(p *pod) {
	w := m.w
	if !m.link || !p.ready(w.now) {
		return // offline nobody but the kubelet would know
	}
	p.faulty = true
	w.touch()
	m.tell(p)
	w.in(w.between(20, 600), func() {
		p.faulty = false
		w.touch()
		m.tell(p)
	})
}

// debug runs a shell in a pod that ends with an error.
func (m *machine) debug(p *pod) {
	w := m.w
	if !m.link || p.sandbox == "" {
		return
	}
	c := &container{id: m.id("c"), state: cri.Running, debug: true}
	p.containers[m.id("debugger")] = c
	w.touch()
	w.in(w.between(5, 200), func() { c.state = cri.Exited; w.touch() })
}

// remove ends a pod, and begins another one of the same Service.
func (m *machine) remove(p *pod) {
	if !m.link {
		return
	}
	delete(m.pods, p.name)
	p.sandbox = ""
	m.w.touch()
	m.w.in(m.w.between(0, 2), func() {
		delete(m.words, p.name)
		m.w.publish()
	})
	m.create(p.service)
}

// replace changes the manifest of a static pod, or changes it back: its kubelet ends it, and begins another one of the
// same name. The UID is a hash of the manifest.
func (m *machine) replace(p *pod) {
	if !p.static {
		return
	}
	p.sandbox = ""
	next := m.newPod(p.name, p.service, true)
	if next.former = p; p.former != nil && m.w.r.IntN(2) == 0 {
		f := p.former
		next.uid, next.mains, next.host, next.faulty = f.uid, f.mains, f.host, f.faulty
	}
	m.begin(next)
}

// tell has the API hear how a pod is, if the kubelet can say so.
func (m *machine) tell(p *pod) {
	m.w.in(m.w.between(0, 2), func() {
		if m.pods[p.name] != p || !m.on || !m.link || m.w.now < m.deaf || p.sandbox == "" {
			return
		}
		if !m.nodeReady && m.w.now-m.heard > 40 {
			return
		}
		ready := p.ready(m.w.now)
		said := word{pod: p, address: p.address, ready: ready, said: ready, asOf: m.w.now, sandbox: p.sandbox}
		if before := m.words[p.name]; !ready && before.pod == p && before.said && before.sandbox != p.sandbox &&
			(p.up == never || p.up == p.started) {
			said = before // that a pod is not ready yet says nothing of how it is when it runs
			said.address, said.ready = p.address, false
		}
		if ready {
			p.provenIn = p.sandbox
		}
		m.ids++
		said.told = m.ids
		m.w.in(m.w.between(0, 1), func() {
			if m.pods[p.name] == p && m.words[p.name].told < said.told {
				said.mixed = !m.nodeReady || m.notReady > 0 && m.w.now-m.notReady < 45
				m.words[p.name] = said
				m.w.publish()
			}
		})
	})
}

// beat is what the API does about a node every few seconds: after 40 s without a word it calls the node and its pods
// not ready; when the kubelet is heard again, that ends.
func (m *machine) beat() {
	w := m.w
	if !m.nodeReady {
		m.notReady = w.now
	}
	switch {
	case m.on && m.link && w.now >= m.deaf && w.now-max(m.linked, m.booted) >= m.late:
		m.heard, m.says = w.now, m.index%2 == 1
		if w.now-m.beaten >= 300 {
			m.beaten = w.now
			w.publish()
		}
		if !m.nodeReady {
			m.nodeReady = true
			for _, p := range m.all() {
				w.in(w.between(0, 10), func() { m.tell(p) })
			}
			w.publish()
		}
	case m.nodeReady && w.now-m.heard > 40:
		m.nodeReady = false
		for name, said := range m.words {
			said.ready = false // the kubelet's word is another
			m.words[name] = said
		}
		w.publish()
	}
}

// deafen has the kubelet say nothing for a while.
func (m *machine) deafen(lasts seconds) {
	m.deafFrom, m.deaf = m.w.now, m.w.now+lasts
	m.w.touch()
	m.w.in(42, m.w.touch)
	m.w.in(lasts, func() {
		m.w.touch()
		for _, p := range m.all() {
			m.w.in(m.w.between(0, 10), func() { m.tell(p) })
		}
	})
}

// recreate makes another sandbox for a pod that runs, as a kubelet does whose sandbox has died.
func (m *machine) recreate(p *pod) {
	if !p.runs() {
		return
	}
	p.sandbox, p.down = "", m.w.now
	if m.w.r.IntN(2) == 0 {
		p.address = netip.Addr{}
	}
	m.sandbox(p)
}

// cut takes the link, mend gives it back.
func (m *machine) cut() {
	m.link, m.linked = false, m.w.now
	m.w.touch()
	m.w.in(42, m.w.touch) // the API calls the node not ready
}

func (m *machine) mend(late seconds) {
	m.link, m.linked, m.late = true, m.w.now, late
	m.w.touch()
	for _, p := range m.all() {
		m.w.in(m.w.between(0, 10), func() { m.tell(p) })
	}
}

// powerCut stops a machine for a while.
func (m *machine) powerCut() {
	w := m.w
	if !m.on {
		return
	}
	m.on = false
	w.touch()
	w.in(42, w.touch)
	for _, p := range m.all() {
		p.sandbox, p.started, p.changed, p.down = "", never, w.now, w.now
		p.address = netip.Addr{}
	}
	w.in(w.between(5, 300), func() {
		m.on, m.booted = true, w.now
		for _, p := range m.all() {
			w.in(w.between(1, 15), func() {
				if m.on && m.pods[p.name] == p && p.sandbox == "" {
					m.sandbox(p)
				}
			})
		}
		m.start()
	})
}

// restart starts the wrapper again, if the machine runs.
func (m *machine) restart() {
	if m.on {
		m.start()
	}
}

// start starts the wrapper.
func (m *machine) start() {
	w := m.w
	w.touch()
	m.says, m.begun = false, w.now
	m.store = storagetest.New(storagetest.Options{
		NodeName: m.name, KeepKubernetesEndpoint: true, Clock: w.clock, After: m.revision,
	})
	m.synced, m.shared, m.content, m.revision = false, nil, 0, 0
	if m.snapshot != nil {
		m.store.Restore(m.snapshot)
		m.away, m.back, m.atLeave, m.received = w.now, never, m.inSnapshot, m.inSnapshot
	}
	m.hears, m.silent = map[string]*facts.LivePods{}, map[string]struct{}{}
	m.saidTo, m.lied = map[string]*facts.LivePods{}, map[string]bool{}
	m.keeper = New(Config{
		NodeName: m.name, Facts: m.store, Upstream: m.upstream, Runtime: m, Neighbours: m,
		ReturnGrace: DefaultReturnGrace, Observer: m, Boot: fmt.Sprint(m.booted), Now: w.clock,
	})
}

func (m *machine) upstream() UpstreamState {
	switch {
	case m.synced && m.link && (m.away == never || m.back != never):
		return Followed
	case m.snapshot == nil && !m.synced:
		return Unknown
	default:
		return Away
	}
}

// Pods implements Runtime.
func (m *machine) Pods(context.Context) ([]cri.Pod, error) {
	if m.w.now < m.hangs {
		return nil, context.DeadlineExceeded
	}
	var pods []cri.Pod
	for _, p := range m.all() {
		if p.sandbox == "" {
			continue
		}
		running := cri.Pod{
			Namespace: "ns", Name: p.name, UID: p.uid, Static: p.static, Sandbox: p.sandbox,
			Containers: map[string]cri.Container{},
		}
		if !p.host {
			running.Addresses = []netip.Addr{p.address}
		}
		if m.says {
			running.Kubelet = ptr.To(p.ready(m.w.now))
		}
		for name, c := range p.containers {
			running.Containers[name] = cri.Container{ID: c.id, State: c.state, Restarted: c.restarted}
		}
		pods = append(pods, running)
	}
	return pods, nil
}

// Socket implements Runtime.
func (m *machine) Socket() string { return "socket" }

// Close implements Runtime.
func (m *machine) Close() {}

// RuntimeAsked and PodsRefused implement Observer.
func (m *machine) RuntimeAsked(error) {}
func (m *machine) PodsRefused(int)    {}

// Words, Share and Wanted implement Neighbours. The exchange itself is tested in package exchange.
func (m *machine) Words() map[string]*facts.LivePods { return m.hears }
func (m *machine) Share(pods *facts.LivePods)        { m.shared = pods }
func (m *machine) Wanted() bool {
	return slices.ContainsFunc(m.w.machines, func(o *machine) bool { return o != m && o.on && o.away != never })
}

// exchange lets the machine hear its neighbours, as their wrappers ask each other every second or two.
func (m *machine) exchange() {
	silent := map[string]struct{}{}
	for _, o := range m.w.machines {
		switch {
		case o == m:
		case !o.on:
			if m.w.now-o.changedAt() > 6 {
				silent[o.name] = struct{}{}
				delete(m.hears, o.name)
			}
		case o.shared == nil:
			delete(m.hears, o.name)
		case m.hears[o.name] == nil || m.lied[o.name] != o.lies || !maps.EqualFunc(m.saidTo[o.name].Pods, o.shared.Pods,
			func(a, b facts.LivePod) bool {
				return a.Serving == b.Serving && a.Suspected == b.Suspected && slices.Equal(a.Addresses, b.Addresses)
			}):
			m.saidTo[o.name], m.lied[o.name] = o.shared, o.lies
			said := *o.shared
			if o.lies {
				said.Pods = maps.Clone(said.Pods)
				for key, pod := range said.Pods {
					if len(pod.Addresses) > 0 {
						pod.Addresses = []netip.Addr{netip.AddrFrom4([4]byte{10, 96, 0, 1})} // a cluster IP
						said.Pods[key] = pod
					}
				}
			}
			m.hears[o.name] = &said
		}
	}
	if m.away == never {
		silent = map[string]struct{}{}
	}
	if !maps.Equal(silent, m.silent) {
		m.silent = silent
		m.store.SetSilentNodes(silent)
		m.w.touch()
	}
}

func (m *machine) changedAt() seconds {
	at := seconds(0)
	for _, p := range m.all() {
		at = max(at, p.changed)
	}
	return at
}

// publish notes that the API says something new.
func (w *world) publish() {
	w.touch()
	w.endpoints = nil
}

// deliver writes what the API says to the wrappers that follow it.
func (w *world) deliver() {
	if w.endpoints != nil {
		return
	}
	w.encode()
	for _, m := range w.machines {
		if m.on && m.upstream() == Followed {
			m.receive()
		}
	}
}

// receive takes the API's state as it is now, as one change.
func (m *machine) receive() {
	w := m.w
	before := m.received
	m.received = m.known()
	for name, said := range m.received {
		if said.said && !said.ready && !before[name].said { // that it was ready in between has not come here
			said.said, said.mixed = false, true
			m.received[name] = said
		}
	}
	status := corev1.ConditionTrue
	if !m.nodeReady {
		status = corev1.ConditionUnknown
	}
	m.store.Hold()
	defer m.store.Release()
	m.store.NodeLabels().Replace(w.nodes)
	own := wiretest.NodeOf(m.name, "a")
	own.Status.Conditions = []corev1.NodeCondition{{
		Type: corev1.NodeReady, Status: status,
		LastHeartbeatTime: metav1.NewTime(epoch.Add(time.Duration(m.beaten) * time.Second)),
	}}
	m.store.OwnNode().Replace([]*wire.Object{wiretest.Object(own)})
	m.store.Services().Replace(w.services)
	m.store.EndpointSlices().Replace(w.endpoints)
}

// encode makes the API's objects.
func (w *world) encode() {
	w.nodes, w.services, w.endpoints = nil, nil, nil
	for _, o := range w.machines {
		w.nodes = append(w.nodes, wiretest.Node(o.name, "a"))
	}
	for i, name := range w.names {
		service := wiretest.ServiceOf(name, `["zone"]`)
		service.Spec.ClusterIP = fmt.Sprintf("10.96.0.%d", i+1)
		service.Spec.PublishNotReadyAddresses = name == published
		w.services = append(w.services, wiretest.Object(service))
		slice := wiretest.SliceOf(name+"-1", name)
		for _, o := range w.machines {
			for _, pod := range slices.Sorted(maps.Keys(o.words)) {
				said := o.words[pod]
				if said.pod.service != name {
					continue
				}
				uid := said.pod.uid
				if said.pod.static {
					uid = "mirror-of-" + uid
				}
				slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
					Addresses: []string{said.address.String()}, NodeName: ptr.To(o.name),
					Conditions: discoveryv1.EndpointConditions{
						Ready: ptr.To(said.ready || name == published), Serving: ptr.To(said.ready),
						Terminating: ptr.To(false),
					},
					TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: "ns", Name: pod, UID: types.UID(uid)},
				})
			}
		}
		w.endpoints = append(w.endpoints, wiretest.Object(slice))
	}
}

// look does what the wrapper does within a second.
func (m *machine) look() {
	if !m.on {
		return
	}
	if !m.link {
		if m.synced && (m.away == never || m.back != never) {
			before := m.atLeave
			m.atLeave = maps.Clone(m.received)
			for name, said := range m.atLeave {
				said.left = m.w.now
				m.atLeave[name] = said
			}
			for name, said := range before { // what waits for the API's agreement is still believed
				if _, waits := m.keeper.about[m.keeper.apiKeyOf(said.pod)]; waits && m.away != never {
					m.atLeave[name] = said
				}
			}
			m.away, m.back = m.w.now, never
		}
	} else if !m.synced || m.away != never && m.back == never {
		if m.w.now-m.linked >= 1 && m.w.now-m.booted >= 2 {
			m.receive()
			m.synced = true
			m.back = m.w.now
			m.w.touch()
		}
	}
	m.exchange()
	m.keeper.step(context.Background())
	if m.keeper.phase == following {
		m.away = never
	}
	if m.synced && m.link && (m.w.now-m.saved >= 5 && m.content != m.store.View.Content() || m.snapshot == nil) {
		if state, err := m.store.View.State(m.name, m.w.clock()); err == nil {
			m.snapshot, m.content, m.saved = state, m.store.View.Content(), m.w.now
			m.inSnapshot = m.received
		}
	}
	m.see()
}

// known returns the words that the API has on all pods.
func (m *machine) known() map[string]word {
	all := map[string]word{}
	for _, o := range m.w.machines {
		maps.Copy(all, o.words)
	}
	return all
}

// see reads what the wrapper shows.
func (m *machine) see() {
	if now := m.store.History.Revision(); now != m.revision || m.shown == nil {
		if m.revision != 0 {
			m.w.touch()
		}
		m.revision = now
		m.shown = map[string]map[string]netip.Addr{}
		for _, o := range m.store.History.Objects(served.EndpointSlices) {
			m.slices = max(m.slices, o.Revision)
			ready := map[string]netip.Addr{}
			err := wire.EndpointSlice.Scan(o.Body, func(e wire.Endpoint) {
				if _, name, _, ok := e.Pod(); ok && e.Ready {
					ready[string(name)] = netip.MustParseAddr(string(e.Address))
				}
			})
			if err != nil {
				panic(err)
			}
			m.shown[o.Key().Name[:len(o.Key().Name)-2]] = ready
		}
	}
}

// run lets the world run until a time. Seconds in which nothing can happen are skipped.
func (w *world) run(until seconds, judge func()) {
	for w.now < until {
		next := until
		if len(w.events) > 0 {
			next = min(next, w.events[0].at)
		}
		returns := slices.ContainsFunc(w.machines, func(m *machine) bool { return m.keeper.phase == returning })
		switch quiet := w.now - w.touched; {
		case quiet > 150 || quiet > 20 && !returns: // longer than every delay of the rule
			w.now = max(w.now+1, next-3)
		case quiet > 20:
			w.now = max(w.now+1, min(w.now+4, next))
		default:
			w.now++
		}
		for len(w.events) > 0 && w.events[0].at <= w.now {
			e := w.events[0]
			w.events = w.events[1:]
			e.do()
		}
		for _, m := range w.machines {
			m.beat()
		}
		w.deliver()
		for _, m := range w.machines {
			m.look()
		}
		judge()
	}
}
