package hub

import (
	"errors"
	"maps"
	"slices"
	"time"

	hubv1alpha1 "github.com/application-grid/application-grid/pkg/apis/hub.superedge.io/v1alpha1"
	"github.com/application-grid/application-grid/pkg/serve"
	"github.com/application-grid/application-grid/pkg/storage/facts"
	"github.com/application-grid/application-grid/pkg/storage/served"
)

// stream is a client that follows the share of a node. It implements serve.Steps.
type stream struct {
	shares *shares
	node   string
	// closed is called when the stream is over.
	closed func()
	// wake has a value when the queue may not be empty.
	wake chan struct{}

	// classes are those of the node, queue has the chunks to send, and err is why the stream has ended. They are
	// guarded by the lock of the shares.
	classes []*class
	queue   []*chunk
	err     error
}

var (
	// errBehind ends a stream whose client does not accept its data.
	errBehind = errors.New("the client does not take what it is sent, and others need the memory")
	// errClosed ends a stream that is over.
	errClosed = errors.New("the stream is over")
)

// beginStream begins a stream. known are the digests of the client's state; nil if it has none. closed is called when
// the stream has ended. The error is that of read.
func (s *shares) beginStream(node string, known *hubv1alpha1.Digests, closed func()) (st *stream, err error) {
	st = &stream{shares: s, node: node, wake: make(chan struct{}, 1), closed: closed}
	err = s.whenReady(func(s lockedShares) {
		s.joinClasses(st)
		s.resync(st, known)
	})
	return st, err
}

// whenReady calls a function that reads facts and shares of one moment. It returns an error if the shares are not
// complete yet, or if the memory does not suffice for a first step.
func (s *shares) whenReady(read func(lockedShares)) (err error) {
	s.source.Read(func(in facts.Reader) {
		s.mu.Lock()
		defer s.mu.Unlock()
		switch {
		case in.Readable(served.EndpointSlices) != nil:
			err = serve.NotReady("the hub is not synced with the API server yet")
		case s.queued.Load() > s.maxQueued:
			err = tooMany("others are being sent their shares")
		default:
			read(lockedShares{s, in})
		}
	})
	return err
}

func (st *stream) Close() {
	st.shares.mu.Lock()
	st.end(errClosed)
	st.shares.mu.Unlock()
	st.closed()
}

// end ends the stream, and drops its unsent chunks. It is called with the lock of the shares held.
func (st *stream) end(reason error) {
	if st.err == nil {
		st.err = reason
	}
	st.shares.leave(st, st.classes)
	for _, c := range st.queue {
		st.shares.releaseChunk(c)
	}
	st.classes, st.queue = nil, nil
	st.signal()
}

func (s *shares) endStreams(reason error) (ended int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ended = len(s.common.streams)
	for st := range s.common.streams {
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

func (st *stream) Changed() <-chan struct{} { return st.wake }

func (st *stream) Next() (data [][]byte, release func(observe func(time.Time)), err error) {
	st.shares.mu.Lock()
	queue := st.queue
	st.queue, err = nil, st.err
	st.shares.mu.Unlock()
	if err != nil || len(queue) == 0 {
		return nil, nil, err
	}
	data = make([][]byte, len(queue))
	for i, c := range queue {
		data[i] = c.member
	}
	return data, func(observe func(time.Time)) {
		for _, c := range queue {
			st.shares.releaseChunk(c)
			if observe != nil && !c.received.IsZero() {
				for range c.events {
					observe(c.received)
				}
			}
		}
	}, nil
}

// Beat implements serve.Steps: the end of a step is a sign of life, and has the newest version.
func (st *stream) Beat() {
	st.shares.mu.Lock()
	defer st.shares.mu.Unlock()
	mark := &hubv1alpha1.Bookmark{Ends: true, Version: st.shares.version}
	st.queueStep([]*chunk{newChunk(appendBookmark(nil, mark))})
}

// queueStep queues a step. While the queued bytes exceed maxQueued, streams with more than their part of it are ended.
func (st *stream) queueStep(step []*chunk) {
	if st.err != nil {
		return
	}
	s := st.shares
	for _, c := range step {
		if c.queued.Add(1) == 1 {
			s.queued.Add(int64(len(c.member)))
		}
	}
	st.queue = append(st.queue, step...)
	if s.queued.Load() > s.maxQueued {
		var unsent int64
		for _, c := range st.queue {
			unsent += int64(len(c.member))
		}
		if unsent > s.maxQueued/int64(len(s.common.streams)) {
			st.end(errBehind)
			s.behind++
		}
	}
	st.signal()
}

// releaseChunk counts a chunk that was sent to a stream, or that will not be sent.
func (s *shares) releaseChunk(c *chunk) {
	if c.queued.Add(-1) == 0 {
		s.queued.Add(-int64(len(c.member)))
	}
}

// digests returns the digests of the share as of the last step.
func (st *stream) digests() *hubv1alpha1.Digests {
	digests := &hubv1alpha1.Digests{}
	for _, c := range st.classes {
		for bucket, digest := range c.digests {
			digests[bucket] += digest
		}
	}
	return digests
}

// resync queues a step with all objects of the buckets whose digests differ from the client's; of all buckets if known
// is nil.
func (s lockedShares) resync(st *stream, known *hubv1alpha1.Digests) {
	mark := hubv1alpha1.Bookmark{Ends: true, Version: s.version, Added: make(map[uint8]uint64, hubv1alpha1.Buckets)}
	for bucket, digest := range st.digests() {
		if known == nil || known[bucket] != digest {
			mark.Whole[bucket], mark.Added[uint8(bucket)] = true, digest
		}
	}
	var chunks []*chunk
	if slices.Contains(mark.Whole[:], true) {
		for _, c := range st.classes {
			chunks = append(chunks, s.chunks(c, mark.Whole[:])...)
		}
	}
	st.queueStep(append(chunks, newChunk(appendBookmark(nil, &mark))))
}

// chunks returns the objects of a class in the wanted buckets, nil for all of them. The result for all buckets is
// kept, except for a class of the set own, which has one stream.
func (s lockedShares) chunks(c *class, wanted []bool) (chunks []*chunk) {
	all := !slices.Contains(wanted, false)
	switch {
	case c == s.common:
		for i := range s.buckets {
			b := &s.buckets[i]
			if wanted[i] && b.chunks == nil {
				b.chunks = encode(nil, maps.Values(b.objects))
			}
			if wanted[i] {
				chunks = append(chunks, b.chunks...)
			}
		}
		return chunks
	case all && c.chunks != nil:
		return c.chunks
	}
	chunks = encode(nil, func(yield func(*object) bool) {
		s.visitObjects(c, func(o *object) {
			if all || wanted[o.bucket()] {
				yield(o)
			}
		})
	})
	if all && c.set != s.own {
		c.chunks = chunks
	}
	return chunks
}
