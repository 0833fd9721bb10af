package hub

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/application-grid/application-grid/internal/testkit/upstreamtest"
	"github.com/application-grid/application-grid/pkg/storage/facts"
	"github.com/application-grid/application-grid/pkg/storage/served"
	"github.com/application-grid/application-grid/pkg/storage/wire"
)

var (
	oracleSeeds = flag.Int("oracle-seeds", 6, "how many random worlds TestOracle plays")
	oracleFirst = flag.Uint64("oracle-first", 1, "the seed of the first of them")
	oracleSteps = flag.Int("oracle-steps", 120, "how many things happen in each of them")
)

// shownServices and shownSlices are what a node shows of these states, by the rule and nothing else. A slice without
// endpoints is not told from one that is not there.
func shownServices(services serviceStates) string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(services)) {
		b.WriteString(name + services[name] + ";")
	}
	return b.String()
}

func shownSlices(node string, nodes nodeStates, services serviceStates, all sliceStates) string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(all)) {
		annotation, known := services[all[name].service]
		if !known {
			continue
		}
		var keys []string
		if err := json.Unmarshal([]byte(annotation), &keys); err != nil {
			panic(err)
		}
		matches := func(e endpointState, key string) bool {
			ours, ok := nodes[node][key]
			theirs, both := nodes[e.node][key]
			return key == "*" || ok && both && ours == theirs
		}
		decides := func(key string) bool {
			for _, s := range all {
				if s.service == all[name].service && slices.ContainsFunc(s.endpoints,
					func(e endpointState) bool { return matches(e, key) }) {
					return true
				}
			}
			return false
		}
		i := slices.IndexFunc(keys, decides)
		first := true
		for _, e := range all[name].endpoints {
			if len(keys) == 0 || i >= 0 && matches(e, keys[i]) {
				if first {
					b.WriteString("|" + name)
				}
				first = false
				b.WriteString(" " + e.address)
			}
		}
	}
	return b.String()
}

// truth has every state that each resource had.
type truth struct {
	mu       sync.Mutex
	nodes    []nodeStates
	services []serviceStates
	slices   []sliceStates
	shown    map[string]string
	// aside is set while a restore has taken some replicas back, and others have not noticed it.
	aside bool
}

func (t *truth) shownAt(node string, at moment) string {
	key := fmt.Sprint(node, at)
	if _, known := t.shown[key]; !known {
		t.shown[key] = shownSlices(node, t.nodes[at[0]], t.services[at[1]], t.slices[at[2]])
	}
	return t.shown[key]
}

func (t *truth) newest() moment {
	return moment{len(t.nodes) - 1, len(t.services) - 1, len(t.slices) - 1}
}

// moment names a state of each of nodes, Services and slices.
type moment [3]int

func (m moment) notBefore(other moment) bool {
	return m[0] >= other[0] && m[1] >= other[1] && m[2] >= other[2]
}

// judge judges what one wrapper shows. It is a facts.Watcher, so it misses no step.
type judge struct {
	*truth

	w    *nodeWrapper
	fail func(string)

	last string
	// from are the earliest moments that what was shown may have been of; nil for any.
	from  []moment
	count int
}

// FactsChanged implements facts.Watcher.
func (j *judge) FactsChanged(in facts.Reader, _ *facts.Change) {
	if in.Readable(served.EndpointSlices) != nil {
		return
	}
	nodes, services, all := make(nodeStates), make(serviceStates), make(sliceStates)
	in.Nodes(func(n *facts.Node) { nodes[n.Name] = n.Labels })
	in.Services(func(s *facts.Service) { services[s.Name.Name] = s.Upstream.Annotations()["topologyKeys"] })
	in.Objects(served.EndpointSlices, func(o *facts.EndpointSet) {
		state := sliceState{service: o.Upstream.Labels[discoveryv1.LabelServiceName]}
		_ = o.Codec().Scan(o.Upstream.Body, func(e wire.Endpoint) {
			state.endpoints = append(state.endpoints, endpointState{string(e.Address), string(e.NodeName)})
		})
		all[o.Upstream.Name] = state
	})
	ofServices, ofSlices := shownServices(services), shownSlices(j.w.name, nodes, services, all)
	shown := ofServices + ofSlices
	if shown == j.last {
		return
	}
	j.last = shown
	j.count++
	j.mu.Lock()
	defer j.mu.Unlock()
	from := j.from
	if from == nil || j.aside {
		from = []moment{{}}
	}
	var found []moment
	newest := j.newest()
	for _, f := range from {
		for s := f[1]; s <= newest[1]; s++ {
			if shownServices(j.services[s]) != ofServices {
				continue
			}
			for e := f[2]; e <= newest[2]; e++ {
				for n := f[0]; n <= newest[0]; n++ {
					at := moment{n, s, e}
					if slices.ContainsFunc(found, at.notBefore) {
						continue
					}
					if j.shownAt(j.w.name, at) == ofSlices {
						found = slices.DeleteFunc(found, func(m moment) bool { return m.notBefore(at) })
						found = append(found, at)
					}
				}
			}
		}
	}
	if len(found) == 0 {
		j.fail(fmt.Sprintf("%s shows what is no share of states that were, or an older one than before "+
			"(from %v to %v): %s", j.w.name, j.from, newest, j.last))
	}
	j.from = found
}

// world plays what happens.
type world struct {
	*smallFleet

	truth  *truth
	judges []*judge
	backup *upstreamtest.Backup
	// saved are the states of the backup.
	saved moment

	random *rand.Rand
	number int
	// log is guarded by the fleet's lock, because judges read it.
	log []string
}

func (w *world) logStep(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.log = append(w.log, fmt.Sprintf(format, args...))
}

func (w *world) story() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.Join(w.log, "\n")
}

func (w *world) below(n int) int { return w.random.IntN(n) }

func (w *world) pick(of []string) string { return of[w.below(len(of))] }

var (
	oracleNodes    = []string{"a1", "a2", "a3", "b1", "b2", "b3"}
	oracleServices = []string{"strict", "racks", "free"}
	// oracleResources are those that an API server may know too little of.
	oracleResources = []string{"nodes", "services", "endpointslices"}
	oracleKeys      = []string{
		`["zone"]`, `["zone"]`, `["rack"]`, `["rack","zone"]`, `["kubernetes.io/hostname","zone"]`,
		`["zone","*"]`, `[]`,
	}
)

// next appends a state of a resource: the last one with a change.
func next[K comparable, V any, S ~map[K]V](states *[]S, change func(S)) {
	state := maps.Clone((*states)[len(*states)-1])
	change(state)
	*states = append(*states, state)
}

// set has a name stand for a value, or for none.
func set[V any, S ~map[string]V](name string, value V, none bool) func(S) {
	return func(state S) {
		if none {
			delete(state, name)
		} else {
			state[name] = value
		}
	}
}

// putNode changes the labels of a node, or removes it.
func (w *world) putNode(name string, labels map[string]string) {
	if labels != nil {
		labels["kubernetes.io/hostname"] = name
	}
	w.truth.mu.Lock()
	defer w.truth.mu.Unlock()
	next(&w.truth.nodes, set[map[string]string, nodeStates](name, labels, labels == nil))
	w.cluster.putNode(name, labels)
}

func (w *world) putService(name, keys string) {
	w.truth.mu.Lock()
	defer w.truth.mu.Unlock()
	next(&w.truth.services, set[string, serviceStates](name, keys, keys == ""))
	w.cluster.putService(name, keys)
}

// putEndpoints makes a slice of a Service, with an endpoint on each of the nodes and addresses that were never used.
func (w *world) putEndpoints(name, service string, nodes ...string) {
	w.truth.mu.Lock()
	defer w.truth.mu.Unlock()
	state := sliceState{service: service}
	for _, node := range nodes {
		w.number++
		address := fmt.Sprintf("10.%d.%d.1", w.number/250, w.number%250)
		state.endpoints = append(state.endpoints, endpointState{address, node})
	}
	next(&w.truth.slices, set[sliceState, sliceStates](name, state, len(nodes) == 0))
	w.cluster.putSlice(name, state)
}

// change changes something in the cluster.
func (w *world) change() {
	switch n := w.below(57); {
	case n < 34:
		service := w.pick(oracleServices)
		var nodes []string
		for _, node := range oracleNodes {
			if w.below(2) == 0 {
				nodes = append(nodes, node)
			}
		}
		name := fmt.Sprint(service, "-", w.below(2))
		w.logStep("slice %s on %v", name, nodes)
		w.putEndpoints(name, service, nodes...)
	case n < 46:
		name := w.pick(oracleNodes)
		labels := map[string]string{"zone": w.pick([]string{"a", "b"})}
		if w.below(2) == 0 {
			labels["rack"] = w.pick([]string{"1", "2"})
		}
		w.logStep("node %s %v", name, labels)
		w.putNode(name, labels)
	case n < 49:
		name := w.pick(oracleNodes)
		w.logStep("node %s is deleted", name)
		w.putNode(name, nil)
	default:
		name, keys := w.pick(oracleServices), w.pick(oracleKeys)
		if w.below(6) == 0 {
			keys = ""
		}
		w.logStep("service %s %s", name, keys)
		w.putService(name, keys)
	}
}

// happen lets something happen.
func (w *world) happen() {
	replica := w.below(len(w.replicas))
	wrapper := w.wrappers[w.below(len(w.wrappers))]
	switch n := w.below(112); {
	case n < 57:
		w.change()
	case n < 64:
		silent := w.below(2) == 0
		w.logStep("replica %d cut, silent %t", replica, silent)
		w.replicas[replica].link.set(true, silent)
	case n < 72:
		w.logStep("replica %d mended", replica)
		w.replicas[replica].link.set(false, false)
		w.replicas[replica].link.delay(0)
	case n < 75:
		w.logStep("replica %d slow", replica)
		w.replicas[replica].link.delay(time.Duration(w.below(8000)) * time.Millisecond)
	case n < 79:
		w.logStep("replica %d restarts", replica)
		w.stopReplica(replica)
		time.Sleep(time.Duration(w.below(5)) * time.Second)
		w.startReplica(replica)
	case n < 86:
		w.logStep("%s goes to replica %d", wrapper.name, replica)
		w.smallFleet.pick(wrapper, replica)
		wrapper.link.set(true, false)
		wrapper.link.set(false, false)
	case n < 89:
		w.logStep("%s cut", wrapper.name)
		wrapper.link.set(true, w.below(2) == 0)
	case n < 93:
		w.logStep("%s mended", wrapper.name)
		wrapper.link.set(false, false)
		wrapper.link.delay(time.Duration(w.below(2)*w.below(3000)) * time.Millisecond)
	case n < 95:
		w.logStep("history expires")
		w.cluster.Forget()
	case n < 97:
		w.logStep("all replicas are cut")
		for _, r := range w.replicas {
			r.link.set(true, false)
		}
	case n < 98:
		w.logStep("all streams of replica %d end", replica)
		if r := w.replicas[replica]; r.Server != nil {
			r.shares.endStreams(errBehind)
		}
	case n < 101:
		w.otherServer(replica)
	case n < 104:
		resource := w.pick(oracleResources)
		w.logStep("the cache of the other API server stops at these %s", resource)
		w.cluster.Lag(resource)
	case n < 106:
		w.logStep("the cache of the other API server catches up")
		w.cluster.CatchUp()
	case n < 109:
		w.hubAway()
	case w.backup == nil:
		w.logStep("a backup is taken")
		w.backup, w.saved = w.cluster.Backup(), w.truth.newest()
	default:
		w.restore()
	}
}

// otherServer lets a replica come to one of the two API servers at its next requests. One of them has a watch cache
// that may lag.
func (w *world) otherServer(replica int) {
	servers, which := []http.Handler{w.cluster, w.cluster.Lagging()}, w.below(2)
	w.logStep("replica %d comes to the API server %d", replica, which)
	w.replicas[replica].link.lead(servers[which])
}

// hubAway lets the hub be away, and come back. The replicas come back slow.
func (w *world) hubAway() {
	w.logStep("the hub is away")
	for _, r := range w.replicas {
		r.link.set(true, false)
	}
	for range 3 {
		w.change()
		time.Sleep(time.Duration(w.below(30)) * time.Second)
	}
	w.logStep("the hub is back, and slow")
	w.cluster.CatchUp()
	for _, r := range w.replicas {
		r.link.set(false, false)
		r.link.delay(time.Duration(w.below(3000)) * time.Millisecond)
	}
}

// restore sets the API server back. Nothing else changes until everybody has noticed: an API server that has gone on
// past the version that somebody knows from before cannot be told from one that was never set back.
func (w *world) restore() {
	w.calm("")
	for _, r := range w.replicas {
		r.link.set(w.below(3) == 0, w.below(2) == 0)
	}
	w.logStep("the API server is restored from the backup")
	w.setAside(true)
	w.truth.mu.Lock()
	w.truth.nodes = append(w.truth.nodes, w.truth.nodes[w.saved[0]])
	w.truth.services = append(w.truth.services, w.truth.services[w.saved[1]])
	w.truth.slices = append(w.truth.slices, w.truth.slices[w.saved[2]])
	w.cluster.Restore(w.backup)
	w.backup = nil
	w.truth.mu.Unlock()
	w.calm("after the restore")
	// A replica that nobody has asked since may take as long to notice.
	time.Sleep(calmBound)
	w.calm("after the restore")
	w.setAside(false)
}

// setAside has the judges not judge what is older, or ends that.
func (w *world) setAside(aside bool) {
	w.truth.mu.Lock()
	defer w.truth.mu.Unlock()
	w.truth.aside = aside
}

// mend mends all links, and lets all API servers know everything.
func (w *world) mend() {
	w.cluster.CatchUp()
	for _, r := range w.replicas {
		r.link.set(false, false)
		r.link.delay(0)
	}
	for _, wrapper := range w.wrappers {
		wrapper.link.set(false, false)
		wrapper.link.delay(0)
	}
}

// calm mends everything, and expects that every wrapper shows the newest state soon.
func (w *world) calm(what string) {
	w.mend()
	begin := time.Now()
	for {
		synctest.Wait()
		late := ""
		w.truth.mu.Lock()
		newest := w.truth.newest()
		for _, j := range w.judges {
			want := shownServices(w.truth.services[newest[1]]) + w.truth.shownAt(j.w.name, newest)
			j.w.node.Read(func(facts.Reader) {
				if j.last != want {
					late = fmt.Sprintf("%s shows %s, not %s", j.w.name, j.last, want)
				}
				if what != "" && j.last == want {
					j.from = []moment{newest} // a restore takes everybody back
				}
			})
		}
		w.truth.mu.Unlock()
		if late == "" {
			return
		}
		if time.Since(begin) > calmBound {
			w.t.Errorf("after:\n%s\n%s after the end of all faults %s", w.story(), calmBound, late)
			return
		}
		time.Sleep(time.Second)
	}
}

// calmBound is how long after the last fault a wrapper may lag: as long as a silent link takes to be noticed, and the
// pauses between attempts of the replica and of the wrapper.
const calmBound = 4 * time.Minute

// TestOracle plays random worlds in virtual time: replicas lag, are cut, restart, come and go; nodes are relabelled,
// deleted and recreated; keys come into use; links flap, are slow or silent; the API server is restored from a backup.
// What a wrapper shows is always the share of one state each of the nodes, the Services and the slices, none older than
// one that was shown before, but for a restore. When things are calm it is soon that of the newest states.
func TestOracle(t *testing.T) {
	t.Parallel()
	for i := range *oracleSeeds {
		seed := *oracleFirst + uint64(i)
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			inFleet(t, 3, []string{"a1", "a2", "b1", "b2"}, func(f *smallFleet) { playOracle(f, seed) })
		})
	}
}

func playOracle(f *smallFleet, seed uint64) {
	t := &truth{
		nodes: []nodeStates{firstNodes}, services: []serviceStates{firstServices}, slices: []sliceStates{firstSlices},
		shown: make(map[string]string),
	}
	w := &world{smallFleet: f, truth: t, random: rand.New(rand.NewPCG(seed, 0))}
	var once sync.Once
	fail := func(message string) {
		once.Do(func() { f.t.Errorf("after:\n%s\n%s", w.story(), message) })
	}
	for _, wrapper := range f.wrappers {
		j := &judge{truth: t, w: wrapper, fail: fail}
		w.judges = append(w.judges, j)
		wrapper.node.Attach(j, func(in facts.Reader) { j.FactsChanged(in, nil) })
	}
	for range *oracleSteps {
		if f.t.Failed() {
			return
		}
		w.happen()
		time.Sleep(time.Duration(w.below(4)*w.below(20_000)) * time.Millisecond)
		if w.below(25) == 0 {
			w.logStep("calm")
			w.calm("")
		}
	}
	w.logStep("calm at the end")
	w.calm("")
	shown := 0
	for _, j := range w.judges {
		shown += j.count
	}
	f.t.Logf("%d states of the cluster, %d were shown", len(t.nodes)+len(t.services)+len(t.slices), shown)
}
