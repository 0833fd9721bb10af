package hub

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	hubv1alpha1 "github.com/application-grid/application-grid/pkg/apis/hub.superedge.io/v1alpha1"
	"github.com/application-grid/application-grid/pkg/storage/facts"
	"github.com/application-grid/application-grid/pkg/storage/wire"
	"github.com/application-grid/application-grid/pkg/topology"
)

// shares has the share of every node, and the streams of the nodes that follow theirs.
//
// A share is a function of the facts and of the node. It is the sum of classes: the common one, which every node has,
// and one class for each set of keys of a Service, which all nodes with the same values of these keys share, whatever
// their other labels. A node's own object is in a class of its own, in the set own. A class stores digests and no
// objects: its objects are computed from the facts, and its changes from the facts before and after a change (step.go).
// The digests of a share are the sums of those of its classes.
//
// A step of the facts is one step of every stream that it touches. The changes of a class are encoded once for all its
// streams. A stream that begins gets the buckets whose digests differ, whole; one whose node was relabelled gets what
// it has not in the classes that it comes into.
type shares struct {
	source *facts.Facts
	// maxQueued limits queued, the bytes that have not been sent to open streams yet. Each chunk counts once.
	maxQueued int64
	queued    atomic.Int64
	// reached is the version up to which no further change has happened: that of the last changes, or a later one.
	reached atomic.Pointer[hubv1alpha1.Version]

	// mu guards the fields below, and everything reachable from them. It is taken after the lock of the facts, never
	// before.
	mu sync.Mutex
	// version has the resourceVersions of the last changes.
	version hubv1alpha1.Version

	// common is the class of all nodes, and has all streams. buckets have its objects.
	common  *class
	buckets [hubv1alpha1.Buckets]bucket
	// sets are by name. own is the one in which every node has a class with its own object.
	sets   map[string]*keySet
	own    *keySet
	slices map[*facts.EndpointSet]placement
	nodes  map[string]node
	// behind counts the streams that were ended because they were behind.
	behind int
}

// class is a part that the shares of some nodes have in common.
type class struct {
	// set is nil for the common class. name is unique within the set.
	set  *keySet
	name string
	// here are the values of the set's keys.
	here    topology.Labels
	digests map[uint8]uint64
	// nodeRefs counts the objects of the class for which the labels of a node are needed.
	nodeRefs map[string]int
	streams  map[*stream]struct{}
	// chunks are the encoded objects of the class; nil if they were not needed since it last changed.
	chunks []*chunk
}

const (
	// maxSets is the largest number of sets of keys with their own classes. Services with other keys are in one set,
	// restSet, in which every node has a class.
	maxSets = 16
	restSet = "*"
	// ownKey is the key whose value is the name of each node. It is not a label key.
	ownKey = ""
)

// keySet is a set of topology keys that Services have.
type keySet struct {
	name string
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
	// chunks are all of them, encoded; nil if they were not needed since the objects last changed.
	chunks []*chunk
}

// placement is a slice as of the last step. The zero value is that of a slice outside of all shares.
type placement struct {
	upstream *wire.Object
	keys     topology.Keys
	// set is the one whose classes have the endpoints; nil if the slice is in every share, whole.
	set *keySet

	// parts are the endpoints of a Service with keys, labelsOf the labels of their nodes; see splitFor.
	parts    *wire.Parts
	labelsOf func(node []byte) topology.Labels
}

// node is a node as of the last step; the zero value is that of an unknown one.
type node struct{ labels, own *object }

func newShares(f *facts.Facts, maxQueued int) *shares {
	s := &shares{
		source: f, maxQueued: int64(maxQueued), common: newClass(nil, "", nil), sets: make(map[string]*keySet),
		slices: make(map[*facts.EndpointSet]placement), nodes: make(map[string]node),
	}
	s.own = lockedShares{shares: s}.getOrAddSet(topology.Keys{ownKey})
	for i := range s.buckets {
		s.buckets[i].objects = make(map[objectName]*object)
	}
	s.reached.Store(&hubv1alpha1.Version{})
	f.Attach(s, func(facts.Reader) {})
	return s
}

func newClass(set *keySet, name string, here topology.Labels) *class {
	return &class{
		set: set, name: name, here: here, digests: make(map[uint8]uint64), nodeRefs: make(map[string]int),
		streams: make(map[*stream]struct{}),
	}
}

// lockedShares is the shares with a Reader, while the facts do not change.
type lockedShares struct {
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
	reached := &hubv1alpha1.Version{}
	for part, r := range followed {
		s.version[part], reached[part] = s.source.Input(r.Resource).Versions()
	}
	lockedShares{s, in}.publish(c)
	s.reached.Store(reached)
}

// getOrAddSet returns the set of keys. If it does not exist, it makes it, and all streams join its classes.
func (s lockedShares) getOrAddSet(keys topology.Keys) *keySet {
	keys = slices.Compact(slices.Sorted(slices.Values(keys)))
	name := strings.Join(keys, ",")
	if s.sets[name] == nil && len(s.sets) > maxSets { // and that of single nodes
		name, keys = restSet, nil
	}
	set := s.sets[name]
	if set == nil {
		set = &keySet{
			name: name, keys: keys, classes: make(map[string]*class),
			byValue: make(map[keyValue]map[*class]struct{}),
		}
		s.sets[name] = set
		for st := range s.common.streams {
			s.join(st, set) // into a class that has nothing yet
		}
	}
	return set
}

// addSlices counts slices in a set, which may be nil. A set without slices is dropped; its classes are empty.
func (s *shares) addSlices(set *keySet, more int) {
	if set == nil {
		return
	}
	if set.slices += more; set.slices > 0 {
		return
	}
	delete(s.sets, set.name)
	for st := range s.common.streams {
		st.classes = slices.DeleteFunc(st.classes, func(c *class) bool { return c.set == set })
	}
}

// joinClasses sets a stream's classes to those of its node.
func (s lockedShares) joinClasses(st *stream) {
	s.common.streams[st] = struct{}{}
	st.classes = []*class{s.common}
	for _, set := range s.sets {
		s.join(st, set)
	}
}

// withName returns the labels of a node with its name.
func withName(name string, labels topology.Labels) topology.Labels {
	all := topology.Labels{ownKey: name}
	maps.Copy(all, labels)
	return all
}

// join adds a stream to the class of its node in a set, and makes the class if it does not exist.
func (s lockedShares) join(st *stream, set *keySet) {
	here := withName(st.node, s.facts.LabelsOf([]byte(st.node)))
	if set.keys != nil {
		maps.DeleteFunc(here, func(key, _ string) bool { return !slices.Contains(set.keys, key) })
	}
	if len(here) == 0 {
		return
	}
	name := fmt.Sprint(here) // in the order of the keys
	c := set.classes[name]
	if c == nil {
		c = newClass(set, name, here)
		set.classes[name] = c
		for key, value := range here {
			pair := keyValue{key, value}
			if set.byValue[pair] == nil {
				set.byValue[pair] = make(map[*class]struct{}, 1)
			}
			set.byValue[pair][c] = struct{}{}
		}
		s.fillClass(c)
	}
	c.streams[st] = struct{}{}
	st.classes = append(st.classes, c)
}

// leave removes a stream from classes. A class of a set without streams is dropped.
func (s *shares) leave(st *stream, left []*class) {
	for _, c := range left {
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
}

// fillClass computes the chunks of a new class.
func (s lockedShares) fillClass(c *class) {
	c.chunks = encode(nil, func(yield func(*object) bool) {
		s.visitObjects(c, func(o *object) {
			c.digests[o.bucket()] += o.digest
			for _, name := range o.nodeNames {
				c.nodeRefs[name]++
			}
			yield(o)
		})
	})
}

// visitObjects calls visit for every object of a class. It is called with both locks held.
func (s lockedShares) visitObjects(c *class, visit func(*object)) {
	if c == s.common {
		for i := range s.buckets {
			for _, o := range s.buckets[i].objects {
				visit(o)
			}
		}
		return
	}
	if own := s.nodes[c.here[ownKey]].own; own != nil && c.set == s.own {
		visit(own)
	}
	parts := &wire.Parts{} // of one slice after the other
	for o := range s.slicesOf(c) {
		if part := s.slices[o].splitFor(parts, s.facts.LabelsOf).part(c); part != nil {
			visit(part)
		}
	}
	for name := range c.nodeRefs {
		if labels := s.nodes[name].labels; labels != nil {
			visit(labels)
		}
	}
}

// slicesOf returns the slices with parts in a class of a set.
func (s lockedShares) slicesOf(c *class) map[*facts.EndpointSet]struct{} {
	found := make(map[*facts.EndpointSet]struct{})
	if c.set.slices == 0 {
		return found
	}
	for key, value := range c.here {
		for n := range s.facts.NodesWith(key, value) {
			for _, o := range n.Objects {
				if p := s.slices[o]; p.set == c.set && slices.Contains(p.keys, key) {
					found[o] = struct{}{}
				}
			}
		}
	}
	return found
}

// splitFor returns the slice, split into parts, for a time when nodes had these labels.
func (p placement) splitFor(parts *wire.Parts, labelsOf func(node []byte) topology.Labels) placement {
	var body []byte // without keys nothing is taken apart
	if p.keys.Governed() {
		body = p.upstream.Body
	}
	if parts.Split(body) != nil {
		return placement{} // which the facts, that have read it, do not hold
	}
	p.parts, p.labelsOf = parts, labelsOf
	return p
}

// part returns the part of the slice in a class: the endpoints that any of the Service's keys matches, or all, if it is
// in every share; nil if the class has none. If the Service has keys, the labels of the endpoints' nodes are needed.
func (p placement) part(c *class) *object {
	if p.upstream == nil || p.set != c.set {
		return nil
	}
	var places []int
	var names []string
	for i, endpoint := range p.parts.Endpoints {
		if p.set == nil || p.keys.Rank(c.here, p.labelsOf(endpoint.NodeName)) != topology.NoRank {
			places, names = append(places, i), append(names, string(endpoint.NodeName))
		}
	}
	body := p.upstream.Body
	if p.set != nil {
		if places == nil {
			return nil
		}
		body = p.parts.Body(places)
	}
	part := newObject(&kindSlice, p.upstream, body)
	part.nodeNames = names
	return part
}

// classes counts those of sets of keys.
func (s *shares) classes() (n int) {
	for _, set := range s.sets {
		n += len(set.classes)
	}
	return n - len(s.own.classes)
}
