package serve

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"time"

	"k8s.io/klog/v2"
)

// Steps is the source of a stream that is already encoded and compressed: a node's share, in package hub. Its methods
// are called by one goroutine.
type Steps interface {
	// Next returns the next data to write, or none. release is called when they were written, with a function that
	// takes the arrival time of each change in them, or when they could not be, with nil. An error ends the stream.
	Next() (data [][]byte, release func(observe func(received time.Time)), err error)
	// Changed has a value when Next may have more.
	Changed() <-chan struct{}
	// Beat makes Next return a sign of life.
	Beat()
	// Close is called when the stream is over.
	Close()
}

// BeatInterval is how often a stream of Steps gets a sign of life.
const BeatInterval = 30 * time.Second

// Stream answers a WATCH from Steps. timeout is how long the stream lasts; 0 means as long as a watch does.
func (s *Server) Stream(w http.ResponseWriter, r *http.Request, resource string, steps Steps, timeout time.Duration) {
	cleanups := &cleanups{}
	defer cleanups.runUnlessDetached()
	cleanups.add(steps.Close)
	w.Header().Set("Content-Type", contentTypeProtobufWatch)
	markZipped(w)
	ctx, writes := s.beginStream(w, r, resource, timeout, cleanups)
	cleanups.runStream(ctx, func() {
		if err := s.writeSteps(ctx, writes, resource, steps); !errors.Is(err, errTimeout) {
			klog.FromContext(ctx).V(4).Info("Stream ended", "resource", resource, "reason", err)
		}
	})
}

// beginStream begins a stream, whose writes are guarded until it ends. It lasts until ctx is done: after the timeout,
// or, if that is 0, after the time of a watch.
func (s *Server) beginStream(
	w http.ResponseWriter, r *http.Request, resource string, timeout time.Duration, cleanups *cleanups,
) (ctx context.Context, writes *guardedWriter) {
	if timeout == 0 {
		timeout = defaultWatchTimeout + rand.N(defaultWatchTimeout) //nolint:gosec // jitter
	}
	if s.Observer != nil {
		cleanups.add(s.Observer.WatchStarted(resource))
	}
	w.Header().Set("Cache-Control", "no-cache, private")
	w.WriteHeader(http.StatusOK)
	writes, release := s.stalls.guard(w, s.writeTimeout())
	cleanups.add(release)
	// A stream may have nothing to write for a while, and TLS connections cannot be written to after a deadline has
	// passed, which may be that of an earlier response of the connection.
	_ = writes.response.SetWriteDeadline(time.Time{})
	ctx, cancel := context.WithTimeoutCause(r.Context(), timeout, errTimeout)
	cleanups.add(cancel)
	return ctx, writes
}

// writeSteps writes a stream until ctx is done.
func (s *Server) writeSteps(ctx context.Context, writes *guardedWriter, resource string, steps Steps) error {
	var observe func(time.Time)
	if s.Observer != nil {
		observe = func(received time.Time) { s.Observer.EventSent(resource, time.Since(received)) }
	}
	beat := time.Tick(BeatInterval)
	for {
		data, release, err := steps.Next()
		if err != nil {
			return err
		}
		if len(data) > 0 {
			if err := writeStep(writes, data); err != nil {
				release(nil)
				return err
			}
			release(observe)
			continue
		}
		select {
		case <-steps.Changed():
		case <-beat:
			steps.Beat()
		case <-s.Stopping:
			return errStopping
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func writeStep(writes *guardedWriter, data [][]byte) error {
	var buffer []byte
	for i, part := range data {
		last := i == len(data)-1
		if buffer = append(buffer, part...); len(buffer) < flushSize && !last {
			continue
		}
		if err := writes.write(buffer, last); err != nil {
			return err
		}
		buffer = buffer[:0]
	}
	return nil
}

type detachKey struct{}

// WithDetachedStreams lets the handler of a watch return when the watch has begun. detach gets the rest, the stream,
// and calls it when the handler has returned; the request is over when stream returns. A waiting goroutine's memory is
// mostly its stack, and the filters that have called a handler take half of that.
func WithDetachedStreams(ctx context.Context, detach func(stream func())) context.Context {
	return context.WithValue(ctx, detachKey{}, detach)
}

// runStream calls stream, and then makes the calls: now, or when the handler has returned, if the request's context
// detaches streams.
func (c *cleanups) runStream(ctx context.Context, stream func()) {
	detach, ok := ctx.Value(detachKey{}).(func(stream func()))
	if !ok {
		stream() // and then runUnlessDetached is called
		return
	}
	c.detached = true
	detach(func() {
		defer c.run()
		stream()
	})
}
