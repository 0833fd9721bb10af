package e2e

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/application-grid/application-grid/test/workload"
)

// traffic is a stream of requests to a Service from every node, a new connection each.
type traffic struct {
	stop context.CancelFunc
	done sync.WaitGroup

	mu       sync.Mutex
	requests map[string]int // guarded by mu; by the node they came from
	wrong    []string       // guarded by mu; requests that failed or were answered outside of the loop
}

// startTraffic begins the stream. Each answer must come from one of the nodes that allowed has for the node
// asking; each request must succeed.
func (f *fixture) startTraffic(service *corev1.Service, allowed reach) *traffic {
	ctx, stop := context.WithCancel(f.ctx)
	t := &traffic{stop: stop, requests: map[string]int{}}
	url := workload.URL(service)
	for name, nodes := range allowed {
		node, err := shared.Node(name)
		f.must(err)
		t.done.Go(func() {
			for ctx.Err() == nil {
				// Bounded by time of its own: a request that is under way when the traffic ends is awaited.
				attempt, cancel := context.WithTimeout(context.Background(), 5*time.Second)
				answer, err := workload.Ask(attempt, node, url)
				cancel()
				t.count(name, nodes, answer, err)
				time.Sleep(2 * time.Millisecond)
			}
		})
	}
	f.Cleanup(func() { t.end() })
	return t
}

func (t *traffic) count(from, allowed string, answer workload.Answer, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.requests[from]++
	switch {
	case err != nil:
		t.wrong = append(t.wrong, fmt.Sprintf("%s: %v", from, err))
	case !slices.Contains(strings.Fields(allowed), answer.Node):
		t.wrong = append(t.wrong, fmt.Sprintf("%s was answered by %s", from, answer.Node))
	}
}

func (t *traffic) end() {
	t.stop()
	t.done.Wait()
}

// atLeast waits until every node has made that many more requests.
func (f *fixture) atLeast(t *traffic, more int) {
	f.Helper()
	t.mu.Lock()
	before := maps.Clone(t.requests)
	t.mu.Unlock()
	f.eventually(fmt.Sprintf("%d more requests from every node", more), func() error {
		t.mu.Lock()
		defer t.mu.Unlock()
		for name := range closedLoop {
			if t.requests[name] < before[name]+more {
				return fmt.Errorf("%s has made %d", name, t.requests[name]-before[name])
			}
		}
		return nil
	})
}

// expectFlawless ends the traffic; every request must have succeeded.
func (f *fixture) expectFlawless(t *traffic) {
	f.Helper()
	t.end()
	total := 0
	for _, count := range t.requests {
		total += count
	}
	if len(t.wrong) > 0 {
		f.Fatalf("%d of %d requests went wrong, the first: %s", len(t.wrong), total, t.wrong[0])
	}
	f.Logf("%d requests, none failed", total)
}
