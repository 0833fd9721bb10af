package workload

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
)

// Traffic is a stream of requests to a Service from nodes, a new connection each.
type Traffic struct {
	url   string
	pause time.Duration
	ctx   context.Context //nolint:containedctx // it is what ends the streams
	stop  context.CancelFunc
	done  sync.WaitGroup

	mu     sync.Mutex
	tried  map[string]int // guarded by mu; by the node they came from
	failed []string       // guarded by mu; requests that nobody answered, or somebody who should not have
}

// requestTimeout limits one request of the traffic.
const requestTimeout = 5 * time.Second

// StartTraffic begins the traffic to a URL, with this pause after each request, until ctx or End ends it. Nothing
// is sent before From.
func StartTraffic(ctx context.Context, url string, pause time.Duration) *Traffic {
	ctx, stop := context.WithCancel(ctx)
	return &Traffic{url: url, pause: pause, ctx: ctx, stop: stop, tried: map[string]int{}}
}

// From adds a stream from a node, until the function that it returns is called. Every request must be answered by a
// pod on one of the allowed nodes.
func (t *Traffic) From(node Source, allowed []string) (end func()) {
	ctx, cancel := context.WithCancel(t.ctx)
	stopped := make(chan struct{})
	t.done.Go(func() {
		defer close(stopped)
		for ctx.Err() == nil {
			// Bounded by a time of its own: a request that is under way when the traffic ends is awaited.
			attempt, cancel := context.WithTimeout(context.WithoutCancel(ctx), requestTimeout)
			answer, err := Ask(attempt, node, t.url)
			cancel()
			t.count(node.Name(), allowed, answer, err)
			time.Sleep(t.pause)
		}
	})
	return func() {
		cancel()
		<-stopped
	}
}

func (t *Traffic) count(from string, allowed []string, answer Answer, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.tried[from]++
	now := time.Now().Format("15:04:05.000")
	switch {
	case err != nil:
		t.failed = append(t.failed, fmt.Sprintf("%s %s: %v", now, from, err))
	case !slices.Contains(allowed, answer.Node):
		t.failed = append(t.failed, fmt.Sprintf("%s %s was answered by %s", now, from, answer.Node))
	}
}

// Tried is how many requests have been made from the node.
func (t *Traffic) Tried(node string) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.tried[node]
}

// End ends the traffic and returns how many requests were made, and what is to be said of each that failed.
func (t *Traffic) End() (tried int, failed []string) {
	t.stop()
	t.done.Wait()
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, count := range t.tried {
		tried += count
	}
	return tried, slices.Clone(t.failed)
}
