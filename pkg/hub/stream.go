package hub

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	hubv1alpha1 "github.com/application-grid/application-grid/pkg/apis/hub.superedge.io/v1alpha1"
	"github.com/application-grid/application-grid/pkg/storage/facts"
	"github.com/application-grid/application-grid/pkg/storage/history"
	"github.com/application-grid/application-grid/pkg/topology"

	"k8s.io/apimachinery/pkg/types"
)

// stream is a client that follows the share of a node. It implements serve.Steps. Its first fields are guarded by the
// lock of the shares.
type stream struct {
	shares  *shares
	node    string
	classes []*class
	// digests are those of what the stream is sent, with all that is queued. fresh is set while that is nothing.
	digests hubv1alpha1.Digests
	fresh   bool
	// What follows is of the step under way. changed is nil without one.
	changed map[uint8]struct{}
	whole   [hubv1alpha1.Buckets]bool
	chunks  []*chunk

	mu sync.Mutex
	// queue has what is to be sent; guarded by mu. queued is how many bytes that was.
	queue  []*chunk
	queued int
	// err is why the stream is over; guarded by mu.
	err error
	// wake has a value when there may be something in the queue.
	wake chan struct{}
}

var (
	// errBehind ends a stream whose client does not take what it is sent.
	errBehind = errors.New("the client does not take what it is sent, and others need the memory")
	// errNoRoom refuses a stream while there is no memory for its first step.
	errNoRoom = errors.New("others are being sent their shares")
)

// follow begins a stream. known are the digests of what the client has; nil for nothing. restored says so to the
// client. Errors: history.ErrNotReady, errNoRoom.
func (s *shares) follow(node string, known *hubv1alpha1.Digests, restored bool) (st *stream, err error) {
	st = &stream{shares: s, node: node, wake: make(chan struct{}, 1), fresh: known == nil}
	s.read(func() {
		if !s.open {
			err = history.ErrNotReady
			return
		}
		s.joinAll(st)
		st.changed = make(map[uint8]struct{})
		if known != nil {
			st.digests = *known
		}
		s.resync(st)
		if s.budget.over() > 0 {
			s.leave(st)
			err = errNoRoom
			return
		}
		enter(s.streams, node, st, struct{}{})
		s.finish(st, restored)
	})
	return st, err
}

// read calls what reads facts and shares of one moment.
func (s *shares) read(read func()) {
	s.facts.Read(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		read()
	})
}

// Close ends the stream.
func (st *stream) Close() {
	st.end(errBehind)
	s := st.shares
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leave(st)
	remove(s.streams, st.node, st)
}

// end ends the stream, and drops what it has not been sent.
func (st *stream) end(reason error) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.err == nil {
		st.err = reason
	}
	for _, c := range st.queue {
		st.shares.budget.release(c)
	}
	st.queue, st.queued = nil, 0
	st.signal()
}

func (st *stream) signal() {
	select {
	case st.wake <- struct{}{}:
	default:
	}
}

// Changed implements serve.Steps.
func (st *stream) Changed() <-chan struct{} { return st.wake }

// Next implements serve.Steps.
func (st *stream) Next() (data [][]byte, sent func(observe func(time.Time)), err error) {
	st.mu.Lock()
	queue := st.queue
	st.queue, st.queued = nil, 0
	err = st.err
	st.mu.Unlock()
	if err != nil || len(queue) == 0 {
		return nil, nil, err
	}
	data = make([][]byte, len(queue))
	for i, c := range queue {
		data[i] = st.shares.budget.encode(c)
	}
	return data, func(observe func(time.Time)) {
		for _, c := range queue {
			st.shares.budget.release(c)
			if observe != nil && !c.received.IsZero() {
				for range c.events {
					observe(c.received)
				}
			}
		}
	}, nil
}

// Beat implements serve.Steps: a mark is a sign of life, and tells the client the newest version.
func (st *stream) Beat() {
	st.shares.mu.Lock()
	defer st.shares.mu.Unlock()
	st.shares.finish(st, false)
}

// finish ends the step under way of a stream.
func (s *shares) finish(st *stream, restored bool) {
	mark := hubv1alpha1.Mark{
		Version: s.version, Digests: make(map[uint8]uint64, len(st.changed)), Whole: st.whole, Restored: restored,
	}
	for bucket := range st.changed {
		mark.Digests[bucket] = st.digests[bucket]
	}
	st.chunks = append(st.chunks, newChunk(appendMark(nil, st.node, &mark), 0, time.Time{}))
	chunks := st.chunks
	st.changed, st.chunks, st.whole = nil, nil, [hubv1alpha1.Buckets]bool{}
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.err != nil {
		return
	}
	for _, c := range chunks {
		s.budget.take(c)
		st.queued += c.size
	}
	st.queue = append(st.queue, chunks...)
	st.signal()
}

// endLaggards ends the streams that have been sent the least, until what is queued is within the budget.
func (s *shares) endLaggards() {
	for s.budget.over() > 0 {
		var last *stream
		most := 0
		for _, streams := range s.streams {
			for st := range streams {
				st.mu.Lock()
				queued := st.queued
				st.mu.Unlock()
				if queued > most {
					last, most = st, queued
				}
			}
		}
		if last == nil {
			return // what is being written
		}
		last.end(errBehind)
		s.ended++
	}
}

// resync adds to the step of a stream the buckets whose digests differ from what the client has; all of them if it has
// nothing.
func (s *shares) resync(st *stream) {
	all := st.fresh
	st.fresh = false
	var target hubv1alpha1.Digests
	for _, c := range st.classes {
		for bucket, digest := range c.digests {
			target[bucket] += digest
		}
	}
	n := s.nodes[st.node]
	own := objectName{&kindNode, types.NamespacedName{Name: st.node}}.bucket()
	labels := objectName{&kindLabels, types.NamespacedName{Name: st.node}}.bucket()
	if n != nil {
		target[own] += n.ownDigest
		target[labels] += n.labels.digestOf()
	}
	some := false
	for bucket := range target {
		if !all && target[bucket] == st.digests[bucket] {
			continue
		}
		some = true
		st.whole[bucket] = true
		st.changed[uint8(bucket)] = struct{}{}
		if content := s.buckets[bucket].encode(); content != nil {
			st.chunks = append(st.chunks, content)
		}
	}
	st.digests = target
	if !some {
		return
	}
	if n != nil && n.own != nil && st.whole[own] {
		st.chunks = append(st.chunks, n.own)
	}
	if n != nil && n.labels != nil && st.whole[labels] {
		st.chunks = append(st.chunks, newChunk(appendFrame(nil, n.labels), 0, time.Time{}))
	}
	for _, c := range st.classes {
		if content := s.encodeClass(c, all, &st.whole); content != nil {
			st.chunks = append(st.chunks, content)
		}
	}
}

// encode is what a bucket of the common class has; nil for nothing.
func (b *bucket) encode() *chunk {
	if b.content == nil && len(b.objects) > 0 {
		var frames []byte
		for _, o := range b.objects {
			frames = appendFrame(frames, o)
		}
		b.content = newChunk(frames, 0, time.Time{})
	}
	return b.content
}

// encodeClass is what a class has in some buckets, or in all; nil for nothing.
func (s *shares) encodeClass(c *class, all bool, buckets *[hubv1alpha1.Buckets]bool) *chunk {
	if c.set == nil || len(c.digests) == 0 {
		return nil
	}
	if all && c.content != nil {
		return c.content
	}
	var frames []byte
	s.contents(c, func(o *object, _ []string) {
		if all || buckets[o.bucket()] {
			frames = appendFrame(frames, o)
		}
	})
	if len(frames) == 0 {
		return nil
	}
	content := newChunk(frames, 0, time.Time{})
	if all {
		c.content = content
	}
	return content
}

// names reports whether a stream has the labels of a node.
func (st *stream) names(node string) bool {
	if n := st.shares.nodes[node]; n == nil || n.labels == nil {
		return false
	}
	return node == st.node || slices.ContainsFunc(st.classes, func(c *class) bool { return c.named[node] > 0 })
}

// joinAll brings a stream into the classes of its node.
func (s *shares) joinAll(st *stream) {
	st.classes = append(st.classes, &s.common)
	s.common.streams[st] = struct{}{}
	if n := s.facts.Node(st.node); n != nil {
		for _, set := range s.sets {
			s.join(st, set, n, true)
		}
	}
}

// join brings a stream into the class of its node in a set, which is made if there is none. filled is set if the facts
// that the class follows from were published before.
func (s *shares) join(st *stream, set *keySet, n *facts.Node, filled bool) {
	for _, c := range st.classes {
		if c.set == set {
			return
		}
	}
	here := make(topology.Labels, len(set.keys))
	for key := range set.keys {
		if value, has := n.Labels[key]; has {
			here[key] = value
		}
	}
	if len(here) == 0 {
		return
	}
	name := n.Name
	if set.perNode {
		here = n.Labels
	} else {
		name = className(here)
	}
	c := set.classes[name]
	if c == nil {
		c = newClass(set, name, here)
		set.classes[name] = c
		if !set.perNode {
			for key, value := range here {
				enter(set.byValue, keyValue{key, value}, c, struct{}{})
			}
		}
		if filled {
			s.fill(c, st.fresh)
		}
	}
	c.streams[st] = struct{}{}
	st.classes = append(st.classes, c)
}

// className is the name of the class of nodes with these values.
func className(here topology.Labels) string {
	pairs := make([]string, 0, len(here))
	for key, value := range here {
		pairs = append(pairs, key+"="+value)
	}
	slices.Sort(pairs)
	return strings.Join(pairs, ",")
}

// leave takes a stream out of its classes. A class without streams is dropped.
func (s *shares) leave(st *stream) {
	for _, c := range st.classes {
		delete(c.streams, st)
		if c.set == nil || len(c.streams) > 0 {
			continue
		}
		delete(c.set.classes, c.name)
		for key, value := range c.here {
			if !c.set.perNode {
				remove(c.set.byValue, keyValue{key, value}, c)
			}
		}
		for name := range c.named {
			remove(s.naming, name, c)
		}
	}
	st.classes = nil
}
