package serve

import (
	"context"
	"errors"
	"net/http"
	"time"

	"k8s.io/klog/v2"
)

// Steps is the source of a stream that is already encoded and compressed. Its methods are called by one goroutine.
type Steps interface {
	// Next returns the next data to write, or none. sent is called when they were written, with a function that takes
	// the arrival time of each change in them. An error ends the stream.
	Next() (data [][]byte, sent func(observe func(received time.Time)), err error)
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
	end := &ending{}
	defer end.unlessLater()
	end.then(steps.Close)
	w.Header().Set("Content-Type", contentTypeProtobufWatch)
	markZipped(w)
	ctx, writes := s.begin(w, r, resource, timeout, end)
	end.after(ctx, func() {
		if err := s.writeSteps(ctx, writes, resource, steps); !errors.Is(err, errTimeout) {
			klog.FromContext(ctx).V(4).Info("Stream ended", "resource", resource, "reason", err)
		}
	})
}

// writeSteps writes a stream until ctx is done.
func (s *Server) writeSteps(ctx context.Context, writes *guardedWriter, resource string, steps Steps) error {
	var observe func(time.Time)
	if s.Observer != nil {
		observe = func(received time.Time) { s.Observer.EventSent(resource, time.Since(received)) }
	}
	beat := time.Tick(BeatInterval)
	for {
		data, sent, err := steps.Next()
		if err != nil {
			return err
		}
		if len(data) > 0 {
			if err := writeStep(writes, data); err != nil {
				sent(nil)
				return err
			}
			sent(observe)
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
