package hub

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	hubv1alpha1 "github.com/application-grid/application-grid/pkg/apis/hub.superedge.io/v1alpha1"
	"github.com/application-grid/application-grid/pkg/storage/facts"
	"github.com/application-grid/application-grid/pkg/storage/served"
	"github.com/application-grid/application-grid/pkg/storage/wire"
	"github.com/application-grid/application-grid/pkg/topology"
)

// shares has the share of every node, and the streams of those that follow theirs.
//
// A share is a function of the facts and of the node. It is the sum of classes: the common one, which every node has;
// the node's own; and one for each set of keys that Services have, which nodes with the same values of these keys have
// in common, whatever other keys there are. A class has digests and no objects: what it has follows from the facts, and
// what a change makes of it from the facts before and after the change (step.go). The digests of a share are the sums
// of those of its classes.
//
// A step of the facts is one step of every stream that it touches. What a class has to say is encoded once for all its
// streams. A stream that begins, or whose node was relabelled, gets the buckets whose digests differ, whole.
type shares struct {
	source *facts.Facts
	// maxQueued bounds queued, the bytes of what open streams have not been sent. Each chunk counts once.
	maxQueued int64
	queued    atomic.Int64

	// mu guards what follows, and what is reachable from it. It is taken after the lock of the facts, never before.
	mu sync.Mutex
	// open is set once the facts are complete. Before that there is nothing to share.
	open bool
	// version has the resourceVersions of the last changes; progress is at least that, and goes on without changes.
	version, progress hubv1alpha1.Version
	// progressed is closed, and replaced, when progress changes.
	progressed chan struct{}

	// common is the class of all nodes, buckets have its objects. Its streams are all that there are.
	common  class
	buckets [hubv1alpha1.Buckets]bucket
	sets    map[string]*keySet
	slices  map[*facts.Object]*placed
	nodes   map[string]*node
	// behind counts the streams that were ended because they were behind.
	behind int
}

// class is a part that the shares of some nodes have in common.
type class struct {
	// set is nil for the common class and for those of single nodes. name is unique within the set.
	set  *keySet
	name string
	// here are the values of the set's keys.
	here    topology.Labels
	digests map[uint8]uint64
	// names counts the objects of the class for which the labels of a node are needed.
	names   map[string]int
	streams map[*stream]struct{}
	// content is what the class has, encoded, since it last changed; nil if nobody asked for it.
	content []*chunk
}

// maxSets is the most sets of keys that have classes of their own. Services with others are in one set, in which every
// node is a class.
const maxSets = 16

// restSet is the name of that set.
const restSet = "*"

// keySet is a set of topology keys that Services have together.
type keySet struct {
	// keys are nil in the rest set.
	keys topology.Keys
	// slices counts those whose endpoints are in the shares of the set's classes.
	slices  int
	classes map[string]*class
	// byValue has the classes with a value of a key.
	byValue map[keyValue]map[*class]struct{}
}

type keyValue struct{ key, value string }

// bucket has objects of the common class.
type bucket struct {
	objects map[objectName]*object
	// content is all of them, encoded; nil if nobody asked since they last changed.
	content *chunk
}

// placed is a slice as of the last step.
type placed struct {
	upstream *wire.Object
	keys     topology.Keys
	// everywhere is set if the slice is in every share, set if its endpoints are in the shares of some.
	everywhere bool
	set        *keySet
}

// node is a node as of the last step.
type node struct {
	// class is of the node alone: it has both of what follows.
	class

	// labels and own are nil for a node that is not known.
	labels, own *object
}

func newShares(f *facts.Facts, maxQueued int) *shares {
	s := &shares{
		source: f, maxQueued: int64(maxQueued), progressed: make(chan struct{}),
		common: newClass(nil, "", nil), sets: make(map[string]*keySet), slices: make(map[*facts.Object]*placed),
		nodes: make(map[string]*node),
	}
	f.Attach(s, func(facts.Reader) {})
	return s
}

func newClass(set *keySet, name string, here topology.Labels) class {
	return class{
		set: set, name: name, here: here, digests: make(map[uint8]uint64), names: make(map[string]int),
		streams: make(map[*stream]struct{}),
	}
}

// versionInputs are the inputs that bring the parts of a version.
var versionInputs = [len(hubv1alpha1.Version{})]string{
	hubv1alpha1.VersionNodes:    facts.InputNodes,
	hubv1alpha1.VersionServices: facts.InputServices,
	hubv1alpha1.VersionSlices:   facts.InputEndpointSlices,
}

// reading are the shares while the facts do not change, with the Reader of that time.
type reading struct {
	*shares

	facts facts.Reader
}

// FactsChanged implements facts.Watcher.
func (s *shares) FactsChanged(in facts.Reader, c *facts.Change) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if in.Held() {
		return
	}
	before := s.progress
	for part, input := range versionInputs {
		s.version[part], s.progress[part] = s.source.Input(input).Versions()
	}
	if s.progress != before {
		close(s.progressed)
		s.progressed = make(chan struct{})
	}
	s.open = s.open || in.State(served.EndpointSlices) == served.Ready
	reading{s, in}.publish(c)
}

// reached returns the version that the shares have reached; progressed is closed when it changes.
func (s *shares) reached() (version hubv1alpha1.Version, progressed <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.progress, s.progressed
}

// node returns what is known of a node.
func (s *shares) node(name string) *node {
	n := s.nodes[name]
	if n == nil {
		n = &node{class: newClass(nil, name, nil)}
		s.nodes[name] = n
	}
	return n
}

// forget drops a node of which nothing is known, and that nobody follows.
func (s *shares) forget(n *node) {
	if n.own == nil && len(n.streams) == 0 {
		delete(s.nodes, n.name)
	}
}

// setOf returns the set of keys, which it makes if there is none. All streams come into its classes then.
func (s reading) setOf(keys topology.Keys) *keySet {
	keys = slices.Compact(slices.Sorted(slices.Values(keys)))
	name := strings.Join(keys, ",")
	if s.sets[name] == nil && len(s.sets) >= maxSets {
		name, keys = restSet, nil
	}
	set := s.sets[name]
	if set == nil {
		set = &keySet{
			keys: keys, classes: make(map[string]*class), byValue: make(map[keyValue]map[*class]struct{}),
		}
		s.sets[name] = set
		for st := range s.common.streams {
			s.join(st, set)
		}
	}
	return set
}

// dropSets drops the sets that no slice is in any more, whose classes are empty.
func (s *shares) dropSets() {
	for name, set := range s.sets {
		if set.slices > 0 {
			continue
		}
		delete(s.sets, name)
		for _, c := range set.classes {
			for st := range c.streams {
				st.classes = slices.DeleteFunc(st.classes, func(other *class) bool { return other == c })
			}
		}
	}
}

// joinAll brings a stream into the classes of its node. encode says whether it will be sent all of them.
func (s reading) joinAll(st *stream, encode bool) {
	for _, c := range []*class{&s.common, &s.node(st.node).class} {
		c.streams[st] = struct{}{}
		st.classes = append(st.classes, c)
	}
	for _, set := range s.sets {
		if c := s.join(st, set); c != nil && len(c.streams) == 1 {
			s.fill(c, encode)
		}
	}
}

// join brings a stream into the class of its node in a set, which is made if there is none; nil if the node has none.
func (s reading) join(st *stream, set *keySet) *class {
	n := s.facts.Node(st.node)
	if n == nil {
		return nil
	}
	name, here := n.Name, n.Labels
	if set.keys != nil {
		here = make(topology.Labels, len(set.keys))
		for _, key := range set.keys {
			if value, has := n.Labels[key]; has {
				here[key] = value
			}
		}
		name = fmt.Sprint(here) // in the order of the keys
	}
	if len(here) == 0 {
		return nil
	}
	c := set.classes[name]
	if c == nil {
		made := newClass(set, name, here)
		c = &made
		set.classes[name] = c
		for key, value := range here {
			pair := keyValue{key, value}
			if set.byValue[pair] == nil {
				set.byValue[pair] = make(map[*class]struct{}, 1)
			}
			set.byValue[pair][c] = struct{}{}
		}
	}
	c.streams[st] = struct{}{}
	st.classes = append(st.classes, c)
	return c
}

// leave takes a stream out of its classes. A class of a set that has no streams is dropped.
func (s *shares) leave(st *stream) {
	for _, c := range st.classes {
		delete(c.streams, st)
		if c.set == nil || len(c.streams) > 0 {
			continue
		}
		delete(c.set.classes, c.name)
		for key, value := range c.here {
			pair := keyValue{key, value}
			if delete(c.set.byValue[pair], c); len(c.set.byValue[pair]) == 0 {
				delete(c.set.byValue, pair)
			}
		}
	}
	st.classes = nil
	s.forget(s.node(st.node))
}

// fill computes what a new class has, and encodes it if a stream is about to be sent all of it.
func (s reading) fill(c *class, encode bool) {
	content := s.encode(c, func(o *object) bool {
		c.digests[o.bucket()] += o.digest
		for _, name := range o.names {
			c.names[name]++
		}
		return encode
	})
	if encode {
		c.content = content
	}
}

// encode encodes the objects of a class that are wanted.
func (s reading) encode(c *class, wants func(*object) bool) (content []*chunk) {
	var frames []byte
	s.visit(c, func(o *object) {
		switch {
		case !wants(o):
		case o.encoded != nil:
			content = append(content, o.encoded)
		default:
			frames = appendFrame(frames, o)
		}
	})
	if frames != nil {
		content = append(content, newChunk(frames, 0, time.Time{}))
	}
	return content
}

// visit calls visit for every object that a class has. It is called with both locks held.
func (s reading) visit(c *class, visit func(*object)) {
	switch {
	case c == &s.common:
		for i := range s.buckets {
			for _, o := range s.buckets[i].objects {
				visit(o)
			}
		}
	case c.set == nil:
		if n := s.nodes[c.name]; n.own != nil {
			visit(n.own)
			visit(n.labels)
		}
	default:
		s.visitSlices(c, visit)
		for name := range c.names {
			if n := s.nodes[name]; n != nil && n.labels != nil {
				visit(n.labels)
			}
		}
	}
}

// visitSlices calls visit for what a class of a set has of slices.
func (s reading) visitSlices(c *class, visit func(*object)) {
	seen := make(map[*facts.Object]struct{})
	for key, value := range c.here {
		for n := range s.facts.NodesWith(key, value) {
			for _, o := range n.Objects() {
				p := s.slices[o]
				if _, again := seen[o]; again || p.set != c.set {
					continue
				}
				seen[o] = struct{}{}
				if part := endpointsOf(p, s.facts.LabelsOf).part(c); part != nil {
					visit(part)
				}
			}
		}
	}
}

// endpoints are those of a slice, at a time when nodes had these labels.
type endpoints struct {
	*placed

	parts    *wire.Parts
	labelsOf func(node []byte) topology.Labels
}

// endpointsOf takes a slice apart, which may be nil.
func endpointsOf(p *placed, labelsOf func(node []byte) topology.Labels) endpoints {
	if p == nil {
		return endpoints{parts: &wire.Parts{}}
	}
	parts, err := wire.SplitSlice(p.upstream.Body)
	if err != nil {
		panic("hub: a slice that was readable is no longer: " + err.Error())
	}
	return endpoints{p, parts, labelsOf}
}

// part is what a class has of the endpoints: those that any of the Service's keys matches; nil for none.
func (e endpoints) part(c *class) *object {
	if e.placed == nil || e.set != c.set {
		return nil
	}
	var here []keyValue
	for _, key := range e.keys {
		if value, has := c.here[key]; has {
			here = append(here, keyValue{key, value})
		}
	}
	var places []int
	for i, endpoint := range e.parts.Endpoints {
		there := e.labelsOf(endpoint.NodeName)
		if slices.ContainsFunc(here, func(ours keyValue) bool {
			value, has := there[ours.key]
			return has && value == ours.value
		}) {
			places = append(places, i)
		}
	}
	if places == nil {
		return nil
	}
	part := newObject(&kindSlice, e.upstream, e.parts.Body(places))
	for _, i := range places {
		part.names = append(part.names, string(e.parts.Endpoints[i].NodeName))
	}
	return part
}

// whole is what the common class has of the endpoints: all, or nil. The labels of their nodes are needed if a key comes
// before the one that matches every endpoint.
func (e endpoints) whole() *object {
	if e.placed == nil || !e.everywhere {
		return nil
	}
	whole := newObject(&kindSlice, e.upstream, e.upstream.Body)
	if slices.Contains(e.keys, topology.Any) {
		for _, endpoint := range e.parts.Endpoints {
			whole.names = append(whole.names, string(endpoint.NodeName))
		}
	}
	return whole
}

// sharesStats are figures of shares.
type sharesStats struct {
	open                                          bool
	streams, nodes, classes, sets, queued, behind int
}

func (s *shares) stats() sharesStats {
	s.mu.Lock()
	defer s.mu.Unlock()
	stats := sharesStats{
		open: s.open, streams: len(s.common.streams), sets: len(s.sets), queued: int(s.queued.Load()), behind: s.behind,
	}
	for _, n := range s.nodes {
		if len(n.streams) > 0 {
			stats.nodes++
		}
	}
	for _, set := range s.sets {
		stats.classes += len(set.classes)
	}
	return stats
}
