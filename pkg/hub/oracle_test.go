package hub

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/application-grid/application-grid/pkg/storage/facts"
	"github.com/application-grid/application-grid/pkg/storage/history"
	"github.com/application-grid/application-grid/pkg/upstream"
	"github.com/application-grid/application-grid/pkg/upstream/upstreamtest"
	"github.com/application-grid/application-grid/pkg/wire"
)

var (
	oracleSeeds = flag.Int("oracle-seeds", 6, "how many random worlds TestOracle plays")
	oracleFirst = flag.Uint64("oracle-first", 1, "the seed of the first of them")
	oracleSteps = flag.Int("oracle-steps", 120, "how many things happen in each of them")
)

// The states of the three resources, as the oracle has them.
type (
	// nodeStates are labels by node.
	nodeStates map[string]map[string]string
	// serviceStates are the annotations topologyKeys by Service.
	serviceStates map[string]string
	// sliceStates are slices by name.
	sliceStates map[string]sliceState
	sliceState  struct {
		service   string
		endpoints []endpointState
	}
	endpointState struct{ address, node string }
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
func (j *judge) FactsChanged(*facts.Change) {
	f := j.w.node.Facts
	if f.State(history.EndpointSlices) != history.Ready {
		return
	}
	nodes, services, all := make(nodeStates), make(serviceStates), make(sliceStates)
	f.Nodes(func(n *facts.Node) { nodes[n.Name] = n.Labels })
	f.Services(func(s *facts.Service) { services[s.Name.Name] = s.Upstream.Annotation("topologyKeys") })
	f.Objects(history.EndpointSlices, func(o *facts.Object) {
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
	if from == nil {
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
	random *rand.Rand
	backup *upstreamtest.Backup
	// saved are the states of the backup.
	saved  moment
	number int
	log    []string
}

func (w *world) note(format string, args ...any) {
	w.log = append(w.log, fmt.Sprintf(format, args...))
}

func (w *world) pick(of []string) string { return of[w.random.IntN(len(of))] }

var (
	oracleNodes    = []string{"a1", "a2", "a3", "b1", "b2", "b3"}
	oracleServices = []string{"strict", "racks", "free"}
	oracleKeys     = []string{
		`["zone"]`, `["zone"]`, `["rack"]`, `["rack","zone"]`, `["kubernetes.io/hostname","zone"]`,
		`["zone","*"]`, `[]`,
	}
)

func (w *world) putNode(name string, labels map[string]string) {
	labels["kubernetes.io/hostname"] = name
	w.truth.mu.Lock()
	next := maps.Clone(w.truth.nodes[len(w.truth.nodes)-1])
	next[name] = labels
	w.truth.nodes = append(w.truth.nodes, next)
	w.truth.mu.Unlock()
	w.cluster.Put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}})
}

func (w *world) deleteNode(name string) {
	w.truth.mu.Lock()
	next := maps.Clone(w.truth.nodes[len(w.truth.nodes)-1])
	delete(next, name)
	w.truth.nodes = append(w.truth.nodes, next)
	w.truth.mu.Unlock()
	w.cluster.Delete(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
}

func (w *world) putService(name, keys string) {
	w.truth.mu.Lock()
	next := maps.Clone(w.truth.services[len(w.truth.services)-1])
	o := &corev1.Service{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: name, Annotations: map[string]string{"topologyKeys": keys},
	}}
	if keys == "" {
		delete(next, name)
	} else {
		next[name] = keys
	}
	w.truth.services = append(w.truth.services, next)
	w.truth.mu.Unlock()
	if keys == "" {
		w.cluster.Delete(o)
	} else {
		w.cluster.Put(o)
	}
}

// putEndpoints makes a slice of a Service, with an endpoint on each of the nodes and addresses that were never used.
func (w *world) putEndpoints(name, service string, nodes ...string) {
	state := sliceState{service: service}
	o := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: service},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	for _, node := range nodes {
		w.number++
		address := fmt.Sprintf("10.%d.%d.1", w.number/250, w.number%250)
		state.endpoints = append(state.endpoints, endpointState{address, node})
		o.Endpoints = append(o.Endpoints, discoveryv1.Endpoint{Addresses: []string{address}, NodeName: ptr.To(node)})
	}
	w.truth.mu.Lock()
	next := maps.Clone(w.truth.slices[len(w.truth.slices)-1])
	next[name] = state
	if len(nodes) == 0 {
		delete(next, name)
	}
	w.truth.slices = append(w.truth.slices, next)
	w.truth.mu.Unlock()
	if len(nodes) == 0 {
		w.cluster.Delete(o)
		return
	}
	w.cluster.Put(o)
}

// happen lets something happen.
func (w *world) happen() {
	replica := w.random.IntN(len(w.replicas))
	wrapper := w.wrappers[w.random.IntN(len(w.wrappers))]
	switch n := w.random.IntN(100); {
	case n < 34:
		service := w.pick(oracleServices)
		var nodes []string
		for _, node := range oracleNodes {
			if w.random.IntN(2) == 0 {
				nodes = append(nodes, node)
			}
		}
		name := fmt.Sprint(service, "-", w.random.IntN(2))
		w.note("slice %s on %v", name, nodes)
		w.putEndpoints(name, service, nodes...)
	case n < 46:
		name := w.pick(oracleNodes)
		labels := map[string]string{"zone": w.pick([]string{"a", "b"})}
		if w.random.IntN(2) == 0 {
			labels["rack"] = w.pick([]string{"1", "2"})
		}
		w.note("node %s %v", name, labels)
		w.putNode(name, labels)
	case n < 49:
		name := w.pick(oracleNodes)
		w.note("node %s is deleted", name)
		w.deleteNode(name)
	case n < 57:
		name, keys := w.pick(oracleServices), w.pick(oracleKeys)
		if w.random.IntN(6) == 0 {
			keys = ""
		}
		w.note("service %s %s", name, keys)
		w.putService(name, keys)
	case n < 64:
		silent := w.random.IntN(2) == 0
		w.note("replica %d cut, silent %t", replica, silent)
		w.replicas[replica].link.set(true, silent)
	case n < 72:
		w.note("replica %d mended", replica)
		w.replicas[replica].link.set(false, false)
		w.replicas[replica].link.delay(0)
	case n < 75:
		w.note("replica %d slow", replica)
		w.replicas[replica].link.delay(time.Duration(w.random.IntN(8000)) * time.Millisecond)
	case n < 79:
		w.note("replica %d restarts", replica)
		w.stopReplica(replica)
		time.Sleep(time.Duration(w.random.IntN(5)) * time.Second)
		w.startReplica(replica)
	case n < 86:
		w.note("%s goes to replica %d", wrapper.name, replica)
		w.smallFleet.pick(wrapper, replica)
		wrapper.link.set(true, false)
		wrapper.link.set(false, false)
	case n < 89:
		w.note("%s cut", wrapper.name)
		wrapper.link.set(true, w.random.IntN(2) == 0)
	case n < 93:
		w.note("%s mended", wrapper.name)
		wrapper.link.set(false, false)
		wrapper.link.delay(time.Duration(w.random.IntN(2)*w.random.IntN(3000)) * time.Millisecond)
	case n < 95:
		w.note("history expires")
		w.cluster.Forget()
	case n < 97:
		w.note("all replicas are cut")
		for _, r := range w.replicas {
			r.link.set(true, false)
		}
	case n < 98:
		w.note("all streams of replica %d end", replica)
		if r := w.replicas[replica]; r.Server != nil {
			r.shares.endStreams(math.MaxInt, errShed)
		}
	case w.backup == nil:
		w.note("a backup is taken")
		w.backup, w.saved = w.cluster.Backup(), w.truth.newest()
	case slices.ContainsFunc(w.wrappers, func(other *nodeWrapper) bool { return !other.upstream.Way().Hub }):
		// Who follows the API server without a hub does not notice that it was set back.
	default:
		w.note("the API server is restored from the backup")
		w.truth.mu.Lock()
		w.truth.nodes = append(w.truth.nodes, w.truth.nodes[w.saved[0]])
		w.truth.services = append(w.truth.services, w.truth.services[w.saved[1]])
		w.truth.slices = append(w.truth.slices, w.truth.slices[w.saved[2]])
		w.truth.mu.Unlock()
		w.cluster.Restore(w.backup)
		w.backup = nil
		w.calm("after the restore")
		// A replica that nobody has asked since may take as long to notice.
		time.Sleep(calmBound)
		w.calm("after the restore")
	}
}

// calm mends everything, and expects that every wrapper shows the newest state soon.
func (w *world) calm(what string) {
	for _, r := range w.replicas {
		r.link.set(false, false)
		r.link.delay(0)
	}
	for _, wrapper := range w.wrappers {
		wrapper.link.set(false, false)
		wrapper.link.delay(0)
	}
	begin := time.Now()
	for {
		synctest.Wait()
		late := ""
		w.truth.mu.Lock()
		newest := w.truth.newest()
		for _, j := range w.judges {
			want := shownServices(w.truth.services[newest[1]]) + w.truth.shownAt(j.w.name, newest)
			j.w.node.Read(func() {
				if j.last != want {
					late = fmt.Sprintf("%s shows %s, not %s; %+v", j.w.name, j.last, want, j.w.upstream.Way())
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
			w.t.Errorf("after:\n%s\n%s after the end of all faults %s", strings.Join(w.log, "\n"), calmBound, late)
			return
		}
		time.Sleep(time.Second)
	}
}

// calmBound is how long after the last fault a wrapper may lag: as long as a silent link takes to be noticed, and the
// pauses between attempts of the replica and of the wrapper.
const calmBound = 4 * time.Minute

// TestOracle plays random worlds in virtual time: replicas lag, are cut, restart, come and go; nodes are relabelled,
// deleted and made anew; keys come into use; links flap, are slow or silent; the API server is restored from a backup.
// What a wrapper shows is always the share of one state each of the nodes, the Services and the slices, none older than
// one that was shown before, but for a restore. When things are calm it is soon that of the newest states.
func TestOracle(t *testing.T) {
	t.Parallel()
	for i := range *oracleSeeds {
		seed := *oracleFirst + uint64(i)
		for _, mode := range []upstream.HubMode{upstream.HubRequire, upstream.HubAuto} {
			t.Run(fmt.Sprint(mode, seed), func(t *testing.T) {
				t.Parallel()
				// So short that wrappers go both ways often.
				inFleet(t, 3, []string{"a1", "a2", "b1", "b2"}, mode, 15*time.Second,
					func(f *smallFleet) { playOracle(f, seed) })
			})
		}
	}
}

func playOracle(f *smallFleet, seed uint64) {
	t := &truth{
		nodes:    []nodeStates{{"a1": {"zone": "a"}, "a2": {"zone": "a"}, "b1": {"zone": "b"}}},
		services: []serviceStates{{"strict": `["zone"]`}},
		slices:   []sliceStates{{"strict-1": {"strict", []endpointState{{"10.0.0.1", "a2"}}}}},
		shown:    make(map[string]string),
	}
	w := &world{smallFleet: f, truth: t, random: rand.New(rand.NewPCG(seed, 0))}
	var once sync.Once
	fail := func(message string) {
		once.Do(func() { f.t.Errorf("after:\n%s\n%s", strings.Join(w.log, "\n"), message) })
	}
	for _, wrapper := range f.wrappers {
		j := &judge{truth: t, w: wrapper, fail: fail}
		w.judges = append(w.judges, j)
		wrapper.node.Attach(j, func() { j.FactsChanged(nil) })
	}
	for range *oracleSteps {
		if f.t.Failed() {
			return
		}
		w.happen()
		time.Sleep(time.Duration(w.random.IntN(4)*w.random.IntN(20_000)) * time.Millisecond)
		if w.random.IntN(20) == 0 {
			time.Sleep(4 * time.Minute) // in which a wrapper may try the other way
		}
		if w.random.IntN(25) == 0 {
			w.note("calm")
			w.calm("")
		}
	}
	w.note("calm at the end")
	w.calm("")
	shown, ways := 0, 0
	for _, j := range w.judges {
		shown += j.count
		ways += j.w.ways
	}
	f.t.Logf("%d states of the cluster, %d were shown; wrappers went another way %d times",
		len(t.nodes)+len(t.services)+len(t.slices), shown, ways)
}
