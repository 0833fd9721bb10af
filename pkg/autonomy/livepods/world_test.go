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

	"github.com/application-grid/application-grid/internal/testkit/storagetest"
	"github.com/application-grid/application-grid/internal/testkit/wiretest"
	"github.com/application-grid/application-grid/pkg/autonomy/cri"
	"github.com/application-grid/application-grid/pkg/storage/facts"
	"github.com/application-grid/application-grid/pkg/storage/served"
	"github.com/application-grid/application-grid/pkg/storage/wire"
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
	former *pod
	// service is the one that selects the pod now.
	service string
	static  bool
	// fetches says that it needs something of the API to start, so that after a boot it waits for the link.
	fetches bool
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
	// failures counts the ends of its containers for the kubelet's back-off, failed is when one last ended.
	failures int
	failed   seconds
	// debugged says that a container of kubectl debug ran while the pod was not ready, or was looked at for the first
	// time: over the Container Runtime Interface nothing tells it from one of the pod's own.
	debugged bool
	// saw has the addresses that the wrapper has seen it have while it had the API.
	saw map[netip.Addr]bool
	// unprobed is until when a kubelet that has restarted calls the pod not ready, whatever it is.
	unprobed seconds
}

// six and lan are the pod's addresses of the other family and at another network.
func (p *pod) six() netip.Addr {
	a := p.address.As4()
	return netip.AddrFrom16([16]byte{0: 0xfd, 12: a[0], 13: a[1], 14: a[2], 15: a[3]})
}

func (p *pod) lan() netip.Addr {
	return netip.AddrFrom4([4]byte{172, 16, byte(len(p.uid)), p.uid[len(p.uid)-1]})
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

// failedAgain reports whether a container does not run that the kubelet has started again before.
func (p *pod) failedAgain() bool {
	for _, c := range p.containers {
		if c.main && c.restarted && c.state == cri.Exited {
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
	// told counts what the kubelet tells. left is when a wrapper was cut off that had this word, or when no Service
	// listed the pod any more.
	told int
	left seconds
	// listed are the Services that list the pod, as far as a wrapper has heard.
	listed []string
	// mixed says that it came while the API called the node not ready, or a moment after; restart that it is that of a
	// kubelet that has just restarted, and calls pods not ready that it has not probed.
	mixed, restart bool
}

// machine is a node.
type machine struct {
	w     *world
	name  string
	index int

	on, link bool
	// linked is since when the link is there, or not, mended since when it was there last; noticed is when the wrapper
	// notices that it is not, confirmed when the API has last confirmed what it says, which a watch does once a minute.
	linked, mended, noticed, confirmed seconds
	// dead is until when the kubelet does not run: nobody starts a container again, or probes.
	dead seconds
	// wipes says that the runtime knows no pod after a boot, and that the kubelet starts none without the API (CRI-O).
	wipes bool
	// stranger is until when another runtime answers than the kubelet's, answered when the runtime last did.
	stranger, answered seconds
	// deaf is until when the kubelet says nothing, although the link is there, since deafFrom.
	deaf, deafFrom seconds
	// late is how long after the link is back the kubelet is heard.
	late seconds
	pods map[string]*pod // by name
	ids  int
	// system is since when the runtime runs a pod of the system, which no endpoint names; never if there is none.
	system seconds

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
	snapshot *facts.Snapshot
	content  uint64
	saved    seconds
	synced   bool
	// away has since when the wrapper is without the upstream; never while it has it. back is since when it has it.
	// begun is when the wrapper was started.
	away, back, booted, begun seconds
	// followed is since when the keeper follows. noGrace says that nothing of the node's own counts from then on.
	followed seconds
	noGrace  bool
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
	// unasked says that the wrapper runs without --cri, named that a person has named the socket, and blank that it has
	// asked the runtime for so short a time that it knows only what the API said and what runs now.
	unasked, named, blank bool
	// shown is what it shows at changes of its history.
	shown    map[string]map[string]netip.Addr // by Service, the ready pods
	exact    map[string]map[string]string     // by Service, all pods with their addresses and conditions
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
	// sharp says that wrappers notice at once that a link is away.
	sharp bool
	// grace is how long the API waits for a kubelet until it calls the node not ready.
	grace seconds
	// names are those of the Services that each have some of the pods, more those that have all of them besides. nodes,
	// services and endpoints are the API's objects, if they were encoded.
	names, more                []string
	nodes, services, endpoints []*wire.Object
	// deleted and unselective name Services that do not exist at the moment, or whose selectors match no pod.
	deleted, unselective map[string]bool
}

// published is the name of the Service with publishNotReadyAddresses.
const published = "published"

// Services that have all pods: at their addresses of the other family or at another network, drained (serving and not
// ready), or led by another one (not ready).
const (
	family  = "six"
	network = "lan"
	drained = "drained"
	follows = "follows"
)

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
	w := &world{
		r: rand.New(rand.NewPCG(seed, 1)), names: []string{"one", "two", published},
		more: []string{family, network, drained, follows}, grace: 40 + 10*seconds(seed%2),
		deleted: map[string]bool{}, unselective: map[string]bool{},
	}
	for i := range nodes {
		m := &machine{
			w: w, name: fmt.Sprintf("n%d", i), index: i, on: true, link: true, linked: 0, nodeReady: true,
			pods: map[string]*pod{}, words: map[string]word{}, away: never, hears: map[string]*facts.LivePods{},
			silent: map[string]struct{}{}, wipes: w.r.IntN(4) == 0, noGrace: w.r.IntN(5) == 0, system: never,
		}
		if w.r.IntN(4) > 0 {
			m.system = 0
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
		faulty: r.IntN(6) == 0, fetches: r.IntN(4) == 0, started: never,
		containers: map[string]*container{}, saw: map[netip.Addr]bool{},
		down: m.w.now, changed: m.w.now,
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
				delete(p.saw, a) // it has it again
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
	for i, name := range p.mains {
		w.in(begin, func() {
			if p.sandbox != sandbox {
				return
			}
			if c := p.containers["init"]; c != nil {
				c.state = cri.Exited
			}
			p.containers[name] = &container{id: m.id("c"), state: cri.Running, main: true}
			p.changed = w.now
			w.touch()
			if i == len(p.mains)-1 {
				p.up = w.now
				m.up(p)
			}
		})
		if w.r.IntN(3) == 0 {
			begin += w.between(1, 150) // the image of the next one has to come, or the first one is a sidecar
		}
	}
	m.tell(p)
}

// up notes that all mains of a pod run.
func (m *machine) up(p *pod) {
	w := m.w
	p.started, p.changed = w.now, w.now
	p.proven = w.now + w.between(0, 8)
	p.debugged = p.debugged || p.isDebugged()
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
	p.containers[name].state = cri.Exited
	p.started, p.changed, p.down = never, w.now, w.now
	p.debugged = p.debugged || p.isDebugged()
	w.touch()
	m.tell(p)
	backoff := w.between(1, 2)
	if p.failures++; p.failures == 1 || w.now-p.failed > 600 {
		p.failures = 1
	} else {
		backoff = min(300, seconds(10)<<min(p.failures-2, 5))
	}
	p.failed = w.now
	m.again(p, name, p.sandbox, backoff)
}

// again has the kubelet start a container again after a while.
func (m *machine) again(p *pod, name, sandbox string, after seconds) {
	w := m.w
	w.in(after, func() {
		switch {
		case p.sandbox != sandbox || m.pods[p.name] != p:
		case w.now < m.dead:
			m.again(p, name, sandbox, m.dead-w.now+w.between(1, 5))
		default:
			p.containers[name] = &container{id: m.id("c"), state: cri.Running, main: true, restarted: true}
			m.up(p)
		}
	})
}

// loop has a pod crash again and again.
func (m *machine) loop(p *pod, times int) {
	if times > 0 && m.on && m.pods[p.name] == p {
		m.crash(p)
		m.w.in(m.w.between(5, 400), func() { m.loop(p, times-1) })
	}
}

// stopKubelet stops the kubelet for a while. When it is back it calls every pod not ready until it has probed it.
func (m *machine) stopKubelet(lasts seconds) {
	w := m.w
	m.dead = w.now + lasts
	m.deafen(lasts)
	w.in(lasts, func() {
		for _, p := range m.all() {
			p.unprobed = w.now + w.between(4, 20)
			w.in(p.unprobed-w.now, func() { m.tell(p) })
		}
	})
}

// isDebugged reports whether a container of kubectl debug runs in the pod.
func (p *pod) isDebugged() bool {
	for _, c := range p.containers {
		if c.debug && c.state == cri.Running {
			return true
		}
	}
	return false
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
	p.debugged = p.debugged || !p.ready(w.now) || w.now < p.unprobed
	w.in(w.between(5, 200)*w.between(1, 20), func() { c.state = cri.Exited; w.touch() })
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
		if !m.nodeReady && m.w.now-m.heard > m.w.grace {
			return
		}
		ready := p.ready(m.w.now) && m.w.now >= p.unprobed
		said := word{
			pod: p, address: p.address, ready: ready, said: ready, asOf: m.w.now, sandbox: p.sandbox,
			restart: !ready && p.ready(m.w.now),
		}
		if before := m.words[p.name]; !ready && before.pod == p && before.said && before.sandbox != p.sandbox &&
			(p.up == never || p.up == p.started) {
			said = before // that a pod is not ready yet says nothing of how it is when it runs
			said.address, said.ready = p.address, false
		}
		if ready {
			p.provenIn = p.sandbox
			p.debugged = p.debugged || p.isDebugged() && !m.words[p.name].ready
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
	case m.nodeReady && w.now-m.heard > w.grace:
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
	m.w.in(m.w.grace+2, m.w.touch)
	m.w.in(lasts, func() {
		m.w.touch()
		for _, p := range m.all() {
			m.w.in(m.w.between(0, 10), func() { m.tell(p) })
		}
	})
}

// recreate makes another sandbox for a pod that runs, as a kubelet does whose sandbox has died.
func (m *machine) recreate(p *pod) {
	if !p.runs() || m.w.now < m.dead {
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
	m.link, m.linked, m.noticed = false, m.w.now, m.w.now
	if !m.w.sharp && m.w.r.IntN(3) == 0 { // nothing comes, and nothing says so
		m.noticed += m.w.between(1, []int{45, 45, 150}[m.w.r.IntN(3)])
		m.w.in(m.noticed-m.w.now, m.w.touch)
	}
	m.w.touch()
	m.w.in(m.w.grace+2, m.w.touch) // the API calls the node not ready
}

func (m *machine) mend(late seconds) {
	m.link, m.linked, m.mended, m.late = true, m.w.now, m.w.now, late
	m.w.publish() // what was said meanwhile comes now
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
	w.in(w.grace+2, w.touch)
	for _, p := range m.all() {
		p.sandbox, p.started, p.changed, p.down = "", never, w.now, w.now
		p.address = netip.Addr{}
	}
	lasts := w.between(5, 300)
	if w.r.IntN(3) == 0 { // meanwhile a Service's pods are to run elsewhere
		service := w.names[w.r.IntN(len(w.names))]
		w.in(w.between(1, int(lasts)), func() { m.evict(service) })
	}
	w.in(lasts, func() {
		m.on, m.booted, m.dead = true, w.now, 0
		if m.system != never {
			m.system = w.now + w.between(1, 10)
		}
		for _, p := range m.all() {
			m.bring(p)
		}
		m.start()
	})
}

// evict has the API give the pods of a Service on a machine without power to other nodes. The kubelet hears of that
// when it starts with a link.
func (m *machine) evict(service string) {
	for _, p := range m.all() {
		if p.service != service || p.static || m.on || !m.link {
			continue
		}
		delete(m.words, p.name)
		delete(m.pods, p.name)
		next := m.newPod(m.id("pod"), m.w.other(service), false)
		next.sandbox = ""
		m.pods[next.name] = next
	}
	m.w.publish()
}

// other returns a Service that is not this one.
func (w *world) other(service string) string {
	i := slices.Index(w.names, service)
	return w.names[(i+1+w.r.IntN(len(w.names)-1))%len(w.names)]
}

// rewire has a person change which Service selects which pods, for good or for a while.
func (w *world) rewire() {
	m := w.machines[w.r.IntN(len(w.machines))]
	all := slices.Concat(w.names, w.more)
	service := all[w.r.IntN(len(all))]
	lasts := w.between(1, []int{10, 300}[w.r.IntN(2)])
	set := w.deleted
	switch w.r.IntN(3) {
	case 0: // the labels of a pod
		if p := m.all()[w.r.IntN(len(m.pods))]; !p.static {
			p.service = w.other(p.service)
		}
		w.publish()
		return
	case 1:
		set = w.unselective
	}
	if service == w.names[0] { // neighbours lie about its address
		set = w.unselective
	}
	if !set[service] {
		set[service] = true
		w.publish()
		w.in(lasts, func() {
			delete(set, service)
			w.publish()
		})
	}
}

// bring has the kubelet make a sandbox for a pod after a boot.
func (m *machine) bring(p *pod) {
	m.w.in(m.w.between(1, 15), func() {
		switch {
		case !m.on || m.pods[p.name] != p || p.sandbox != "":
		case (m.wipes || p.fetches && !p.static) && !m.link:
			m.bring(p)
		default:
			m.sandbox(p)
		}
	})
}

// follows reports whether the wrapper has the upstream, as far as it has noticed.
func (m *machine) follows() bool { return m.link || m.w.now < m.noticed }

// restart starts the wrapper again, if the machine runs. If the link is there its snapshot may be lost.
func (m *machine) restart() {
	if m.on {
		if m.link && m.w.r.IntN(4) == 0 {
			m.snapshot = nil
		}
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
	m.named, m.blank = w.r.IntN(3) == 0, m.blank || m.unasked || m.snapshot == nil
	if m.blank {
		for _, p := range m.all() {
			p.debugged = p.debugged || p.isDebugged()
			clear(p.saw)
		}
	}
	if m.snapshot != nil {
		m.store.Restore(m.snapshot)
		m.away, m.back, m.atLeave, m.received = w.now, never, maps.Clone(m.inSnapshot), m.inSnapshot
		for name, said := range m.atLeave {
			if len(said.listed) > 0 {
				if said.left = w.now; !m.link {
					said.left = m.linked
				}
			}
			m.atLeave[name] = said
		}
	} else {
		m.away, m.back, m.atLeave, m.received = never, never, nil, nil
	}
	m.hears, m.silent = map[string]*facts.LivePods{}, map[string]struct{}{}
	m.saidTo, m.lied = map[string]*facts.LivePods{}, map[string]bool{}
	config := Config{
		NodeName: m.name, Facts: m.store.Facts, Upstream: m.upstream, Runtime: m, Neighbours: m,
		ReturnGrace: m.grace(), Observer: m, Boot: m.boot(), Now: w.clock,
		Contact: func() time.Time { return epoch.Add(time.Duration(m.confirmed) * time.Second) },
	}
	if m.unasked {
		config.Runtime = nil
	}
	m.keeper = New(config)
}

func (m *machine) grace() time.Duration {
	if m.noGrace {
		return 0
	}
	return DefaultReturnGrace
}

// boot is the id of the machine's boot.
func (m *machine) boot() string { return fmt.Sprint(m.booted) }

func (m *machine) upstream() UpstreamState {
	switch {
	case m.synced && m.follows() && (m.away == never || m.back != never):
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
	m.answered = m.w.now
	if m.w.now < m.stranger && !m.named {
		return []cri.Pod{{Namespace: "other", Name: "other", UID: "other", Sandbox: "other"}}, nil
	}
	if m.wipes && m.system > m.w.now && !slices.ContainsFunc(m.all(), func(p *pod) bool { return p.sandbox != "" }) {
		return nil, cri.ErrNoPods
	}
	var pods []cri.Pod
	if m.w.now >= m.system {
		id := fmt.Sprintf("%s-system%d", m.name, m.booted)
		pods = append(pods, cri.Pod{
			Namespace: "kube-system", Name: "wrapper-" + m.name, UID: "wrapper", Static: true, Sandbox: id,
			Containers: map[string]cri.Container{"wrapper": {ID: id, State: cri.Running}},
		})
	}
	for _, p := range m.all() {
		if p.sandbox == "" {
			continue
		}
		if m.link && m.upstream() == Followed && m.keeper.phase == following { // else its snapshot lacks them
			p.saw[p.address] = true
		}
		running := cri.Pod{
			Namespace: "ns", Name: p.name, UID: p.uid, Static: p.static, Sandbox: p.sandbox,
			Containers: map[string]cri.Container{},
		}
		if !p.host {
			running.Addresses = []netip.Addr{p.address, p.six()}
		}
		if m.says && m.w.now >= m.dead {
			running.Needed = p.mains
			if m.w.now >= p.unprobed {
				running.Kubelet = ptr.To(p.ready(m.w.now))
			}
		}
		for name, c := range p.containers {
			running.Containers[name] = cri.Container{ID: c.id, State: c.state, Restarted: c.restarted}
		}
		pods = append(pods, running)
	}
	return pods, nil
}

// Socket implements Runtime.
func (m *machine) Socket() string {
	if m.w.now < m.stranger && !m.named {
		return "other"
	}
	return "socket"
}

// Named implements Runtime.
func (m *machine) Named() bool { return m.named }

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
		m.store.SetDoubted(facts.Silent, silent)
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
		if m.on && m.link && m.upstream() == Followed {
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

// slice returns the slice of a Service.
func (w *world) slice(name string) *discoveryv1.EndpointSlice {
	slice := wiretest.SliceOf(name+"-1", name)
	if name == family {
		slice.AddressType = discoveryv1.AddressTypeIPv6
	}
	for _, o := range w.machines {
		for _, pod := range slices.Sorted(maps.Keys(o.words)) {
			said := o.words[pod]
			if !w.lists(name, said) {
				continue
			}
			uid := said.pod.uid
			if said.pod.static {
				uid = "mirror-of-" + uid
			}
			e := said.endpoint(name)
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
				Addresses: []string{e.address.String()}, NodeName: ptr.To(o.name),
				Conditions: discoveryv1.EndpointConditions{
					Ready: ptr.To(e.ready), Serving: ptr.To(e.serving), Terminating: ptr.To(false),
				},
				TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: "ns", Name: pod, UID: types.UID(uid)},
			})
		}
	}
	return slice
}

// endpoint is one as the API has it.
type endpoint struct {
	address        netip.Addr
	ready, serving bool
}

// endpoint returns the pod's endpoint of a Service.
func (said word) endpoint(service string) endpoint {
	e := endpoint{said.address, said.ready || service == published, said.ready}
	switch service {
	case family:
		as := *said.pod
		as.address = said.address
		e.address = as.six()
	case network:
		e.address = said.pod.lan()
	case drained:
		e.ready = false
	case follows:
		e.ready, e.serving = false, false
	}
	return e
}

// lists reports whether a Service lists a pod.
func (w *world) lists(service string, said word) bool {
	switch {
	case w.deleted[service] || w.unselective[service]:
		return false
	case slices.Contains(w.more, service):
		return !said.pod.host && said.address.IsValid()
	default:
		return said.pod.service == service
	}
}

// encode makes the API's objects.
func (w *world) encode() {
	w.nodes, w.services, w.endpoints = nil, nil, nil
	for _, o := range w.machines {
		w.nodes = append(w.nodes, wiretest.Node(o.name, "a"))
	}
	for i, name := range slices.Concat(w.names, w.more) {
		if w.deleted[name] {
			continue
		}
		service := wiretest.ServiceOf(name, `["zone"]`)
		service.Spec.ClusterIP = fmt.Sprintf("10.96.0.%d", i+1)
		service.Spec.PublishNotReadyAddresses = name == published
		w.services = append(w.services, wiretest.Object(service))
		w.endpoints = append(w.endpoints, wiretest.Object(w.slice(name)))
	}
}

// look does what the wrapper does within a second.
func (m *machine) look() {
	if !m.on {
		return
	}
	if m.link && (m.w.now-m.confirmed >= 60 || m.confirmed < m.linked) {
		m.confirmed = m.w.now
	}
	if !m.follows() {
		if m.synced && (m.away == never || m.back != never) {
			before := m.atLeave
			m.atLeave = maps.Clone(m.received)
			for name, said := range m.atLeave {
				if len(said.listed) > 0 {
					said.left = m.linked
				}
				m.atLeave[name] = said
			}
			for name, said := range before { // what waits for the API's agreement is still believed
				if _, waits := m.keeper.about[m.name][m.keeper.apiKeyOf(said.pod)]; waits && m.away != never {
					m.atLeave[name] = said
				}
			}
			m.away, m.back = m.w.now, never
		}
	} else if m.link && (!m.synced || m.away != never && m.back == never) {
		if m.w.now-m.linked >= 1 && m.w.now-m.booted >= 2 {
			m.receive()
			m.synced = true
			m.back = m.w.now
			if m.unasked { // as the wrapper does
				m.store.UpdateNotes(func(n *facts.Notes) { n.PodNotes = NotesOfBoot(m.boot()) })
			}
			m.w.touch()
		}
	}
	m.exchange()
	m.keeper.step(context.Background())
	if m.keeper.phase == following {
		if m.away != never || m.followed < m.begun {
			m.followed = m.w.now
		}
		m.away = never
		m.blank = m.unasked || m.blank && (!m.link || m.w.now-max(m.linked, m.begun, m.blind()) < 200)
	}
	changed := m.content != m.store.View.SnapshotVersion()
	if m.synced && m.link && (m.w.now-m.saved >= 5 && changed || m.snapshot == nil) {
		if state, err := m.store.View.Snapshot(m.name, m.w.clock()); err == nil {
			m.snapshot, m.content, m.saved = state, m.store.View.SnapshotVersion(), m.w.now
			m.inSnapshot = m.received
		}
	}
	m.see()
}

// known returns the words of the API on all pods, as far as a Service that lists the pod has ever brought them here.
func (m *machine) known() map[string]word {
	all := map[string]word{}
	services := slices.Concat(m.w.names, m.w.more)
	for _, o := range m.w.machines {
		for name, said := range o.words {
			for _, service := range services {
				if m.w.lists(service, said) {
					said.listed = append(said.listed, service)
				}
			}
			if before, found := m.received[name]; len(said.listed) == 0 {
				if !found || before.pod != said.pod {
					continue
				}
				if said = before; len(before.listed) > 0 {
					said.listed, said.left = nil, m.w.now
				}
			}
			all[name] = said
		}
	}
	return all
}

// home returns the Service of a pod, other than those that have all pods, as far as the wrapper has heard; "" if none
// selects it.
func (m *machine) home(p *pod) string {
	for _, service := range m.received[p.name].listed {
		if slices.Contains(m.w.names, service) {
			return service
		}
	}
	return ""
}

// see reads what the wrapper shows.
func (m *machine) see() {
	if now := m.store.History.Revision(); now != m.revision || m.shown == nil {
		if m.revision != 0 {
			m.w.touch()
		}
		m.revision = now
		m.shown, m.exact = map[string]map[string]netip.Addr{}, map[string]map[string]string{}
		for _, o := range m.store.History.Objects(served.EndpointSlices) {
			m.slices = max(m.slices, o.Revision)
			ready, exact := map[string]netip.Addr{}, map[string]string{}
			err := wire.EndpointSlice.Scan(o.Body, func(e wire.Endpoint) {
				_, name, _, ok := e.Pod()
				if ok && e.Ready {
					ready[string(name)] = netip.MustParseAddr(string(e.Address))
				}
				exact[string(name)] = fmt.Sprintln(string(e.Address), e.Ready, e.Serving())
			})
			m.exact[o.Key().Name[:len(o.Key().Name)-2]] = exact
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
