package hub

import (
	"errors"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	hubv1alpha1 "github.com/application-grid/application-grid/pkg/apis/hub.superedge.io/v1alpha1"
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
	// step is the step under way.
	step streamStep
	// closed, if set, is called when the stream is over.
	closed func()

	mu sync.Mutex
	// queue has what is to be sent, err is why the stream is over. Both are guarded by mu.
	queue []*chunk
	err   error
	// wake has a value when there may be something in the queue.
	wake chan struct{}
}

// streamStep is a step of a stream: the buckets whose digests it changes, those that it has whole, and what is sent.
// changed is nil while nothing is under way.
type streamStep struct {
	changed map[uint8]struct{}
	whole   [hubv1alpha1.Buckets]bool
	chunks  []*chunk
}

var (
	// errBehind ends a stream whose client does not take what it is sent.
	errBehind = errors.New("the client does not take what it is sent, and others need the memory")
	// errNoRoom refuses a stream while there is no memory for its first step.
	errNoRoom = tooMany("others are being sent their shares")
)

// follow begins a stream. known are the digests of what the client has; nil for nothing. restored says so to the
// client. closed is called when the stream is over. Errors: errNotSynced, errNoRoom.
func (s *shares) follow(
	node string, known *hubv1alpha1.Digests, restored bool, closed func(),
) (st *stream, err error) {
	st = &stream{
		shares: s, node: node, wake: make(chan struct{}, 1), fresh: known == nil, closed: closed,
		step: streamStep{changed: make(map[uint8]struct{})},
	}
	if known != nil {
		st.digests = *known
	}
	s.read(func() {
		switch {
		case !s.open:
			err = errNotSynced
		case s.queued.Load() > s.maxQueued:
			err = errNoRoom
		default:
			s.joinAll(st)
			s.resync(st)
			s.finish(st, restored)
		}
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

// Close implements serve.Steps.
func (st *stream) Close() {
	st.end(errBehind)
	s := st.shares
	s.mu.Lock()
	s.leave(st)
	s.mu.Unlock()
	if st.closed != nil {
		st.closed()
	}
}

// end ends the stream, and drops what it has not been sent.
func (st *stream) end(reason error) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.err == nil {
		st.err = reason
	}
	for _, c := range st.queue {
		st.shares.release(c)
	}
	st.queue = nil
	st.signal()
}

// endStreams ends at most n streams, in no order, and returns how many.
func (s *shares) endStreams(n int, reason error) (ended int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for st := range s.common.streams {
		if ended == n {
			break
		}
		ended++
		s.leave(st)
		st.end(reason)
	}
	return ended
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
	st.queue, err = nil, st.err
	st.mu.Unlock()
	if err != nil || len(queue) == 0 {
		return nil, nil, err
	}
	data = make([][]byte, len(queue))
	for i, c := range queue {
		data[i] = c.member
	}
	return data, func(observe func(time.Time)) {
		for _, c := range queue {
			st.shares.release(c)
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
	s := st.shares
	s.mu.Lock()
	defer s.mu.Unlock()
	s.finish(st, false)
}

// finish ends the step under way of a stream.
func (s *shares) finish(st *stream, restored bool) {
	mark := hubv1alpha1.Mark{
		Version: s.version, Digests: make(map[uint8]uint64, len(st.step.changed)), Whole: st.step.whole,
		Restored: restored,
	}
	for bucket := range st.step.changed {
		mark.Digests[bucket] = st.digests[bucket]
	}
	chunks := st.step.chunks
	chunks = append(chunks, newChunk(appendMark(nil, st.node, &mark), 0, time.Time{}))
	st.step = streamStep{}
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.err != nil {
		return
	}
	for _, c := range chunks {
		s.take(c)
	}
	st.queue = append(st.queue, chunks...)
	st.signal()
}

// take counts a chunk in the queue of a stream, release one that was sent or is not to be sent any more.
func (s *shares) take(c *chunk) {
	if c.queued.Add(1) == 1 {
		s.queued.Add(int64(len(c.member)))
	}
}

func (s *shares) release(c *chunk) {
	if c.queued.Add(-1) == 0 {
		s.queued.Add(-int64(len(c.member)))
	}
}

// endLaggards ends the streams that have been sent the least, until what is queued is within its bound.
func (s *shares) endLaggards() {
	for s.queued.Load() > s.maxQueued {
		var last *stream
		most := 0
		for st := range s.common.streams {
			if waiting := st.waiting(); waiting > most {
				last, most = st, waiting
			}
		}
		if last == nil {
			return // what is being written
		}
		s.leave(last)
		last.end(errBehind)
		s.behind++
	}
}

// waiting is how many bytes the stream has not been sent.
func (st *stream) waiting() (bytes int) {
	st.mu.Lock()
	defer st.mu.Unlock()
	for _, c := range st.queue {
		bytes += len(c.member)
	}
	return bytes
}

// resync adds to the step of a stream the buckets whose digests differ from what the client has; all of them if it has
// nothing.
func (s *shares) resync(st *stream) {
	var target hubv1alpha1.Digests
	for _, c := range st.classes {
		for bucket, digest := range c.digests {
			target[bucket] += digest
		}
	}
	for bucket := range target {
		if st.fresh || target[bucket] != st.digests[bucket] {
			st.step.whole[bucket] = true
			st.step.changed[uint8(bucket)] = struct{}{}
		}
	}
	all := st.fresh
	st.digests, st.fresh = target, false
	if len(st.step.changed) == 0 {
		return
	}
	for _, c := range st.classes {
		st.step.chunks = append(st.step.chunks, s.content(c, all, &st.step.whole)...)
	}
}

// content is what a class has in some buckets, or in all.
func (s *shares) content(c *class, all bool, buckets *[hubv1alpha1.Buckets]bool) (chunks []*chunk) {
	if c == &s.common {
		for i := range s.buckets {
			if !buckets[i] {
				continue
			}
			if content := s.buckets[i].encode(); content != nil {
				chunks = append(chunks, content)
			}
		}
		return chunks
	}
	if n := s.nodes[c.name]; c.set == nil && n.own != nil && buckets[n.own.bucket()] {
		chunks = append(chunks, n.ownContent)
	}
	content := c.content
	if content == nil || !all {
		content = s.encode(c, func(o *object) bool { return buckets[o.bucket()] })
	}
	if all && c.set != nil { // that of one node has one stream
		c.content = content
	}
	if content == nil {
		return chunks
	}
	return append(chunks, content)
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

// ownName is the name of a node's own object.
func ownName(node string) objectName { return objectName{&kindNode, types.NamespacedName{Name: node}} }
