package serve

import "context"

type laterKey struct{}

// WithLater lets the handler of a watch return when the watch has begun. later gets the rest, the stream, and calls it
// when the handler has returned; the request is over when stream returns. A waiting goroutine's memory is mostly its
// stack, and the filters that have called a handler take half of that.
func WithLater(ctx context.Context, later func(stream func())) context.Context {
	return context.WithValue(ctx, laterKey{}, later)
}

// ending has the calls to make when a request is over.
type ending struct {
	calls []func()
	later bool
}

// then adds a call. It comes before those that were added earlier.
func (e *ending) then(call func()) { e.calls = append(e.calls, call) }

// after calls stream, and then makes the calls: now, or later if the request's context asks for that.
func (e *ending) after(ctx context.Context, stream func()) {
	later, ok := ctx.Value(laterKey{}).(func(stream func()))
	if !ok {
		stream() // and then unlessLater is called
		return
	}
	e.later = true
	later(func() {
		defer e.end()
		stream()
	})
}

// unlessLater makes the calls, unless after does.
func (e *ending) unlessLater() {
	if !e.later {
		e.end()
	}
}

func (e *ending) end() {
	for _, call := range e.calls {
		defer call() // all of them, also if one panics
	}
}
