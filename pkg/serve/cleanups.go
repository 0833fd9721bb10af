package serve

import "context"

type detachKey struct{}

// WithDetachedStreams lets the handler of a watch return when the watch has begun. detach gets the rest, the stream,
// and calls it when the handler has returned; the request is over when stream returns. A waiting goroutine's memory is
// mostly its stack, and the filters that have called a handler take half of that.
func WithDetachedStreams(ctx context.Context, detach func(stream func())) context.Context {
	return context.WithValue(ctx, detachKey{}, detach)
}

// cleanups are the calls to make when a request is over.
type cleanups struct {
	calls    []func()
	detached bool
}

// add adds a call. It comes before those that were added earlier.
func (c *cleanups) add(call func()) { c.calls = append(c.calls, call) }

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

// runUnlessDetached makes the calls, unless a detached stream does.
func (c *cleanups) runUnlessDetached() {
	if !c.detached {
		c.run()
	}
}

func (c *cleanups) run() {
	for _, call := range c.calls {
		defer call() // all of them, also if one panics
	}
}
