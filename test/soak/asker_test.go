package soak

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/application-grid/application-grid/test/cluster"
	"github.com/application-grid/application-grid/test/workload"
)

const (
	// pause is that of an asker after each request; patience limits a request.
	pause    = 50 * time.Millisecond
	patience = 5 * time.Second
	// kept is how many failures are kept in words.
	kept = 20
)

// asker asks the echo Service from a node, all the time.
type asker struct {
	node *cluster.Node
	url  string

	mu sync.Mutex
	// allowed says who may answer. strict is set if an answer of another node is a failure as well. excused counts the
	// faults under way that explain failures. Guarded by mu.
	allowed func(node string) bool
	strict  bool
	excused int
	// tried, excusedFailures and failures count requests; words has the first failures. Guarded by mu.
	tried, excusedFailures, failures int
	words                            []string
}

func newAsker(node *cluster.Node, url string) *asker {
	return &asker{node: node, url: url, allowed: func(string) bool { return true }}
}

func (a *asker) start(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() {
		for ctx.Err() == nil {
			a.ask(ctx)
			time.Sleep(pause)
		}
	})
	t.Cleanup(func() {
		cancel()
		done.Wait()
	})
}

// ask makes a request and counts it. What may happen when it begins or when it ends may happen to it.
func (a *asker) ask(ctx context.Context) {
	a.mu.Lock()
	excused, strict, allowed := a.excused > 0, a.strict, a.allowed
	a.mu.Unlock()
	attempt, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	answer, err := workload.Ask(attempt, a.node, a.url)
	cancel()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.tried++
	strict = strict && a.strict
	if err == nil && (!strict || allowed(answer.Node) || a.allowed(answer.Node)) {
		return
	}
	if excused || a.excused > 0 {
		a.excusedFailures++
		return
	}
	a.failures++
	if len(a.words) < kept {
		if err == nil {
			err = fmt.Errorf("answered by %s", answer.Node)
		}
		a.words = append(a.words, fmt.Sprintf("%s %s: %v", time.Now().Format(time.TimeOnly), a.node.Name(), err))
	}
}

// allow sets who may answer.
func (a *asker) allow(allowed func(node string) bool, strict bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.allowed, a.strict = allowed, strict
}

// excuse begins a fault that explains failures, until the function that it returns is called.
func (a *asker) excuse() (end func()) {
	add := func(n int) {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.excused += n
	}
	add(1)
	return func() { add(-1) }
}

// reaches is nil if requests are answered by all the wanted nodes, and by no other.
func (a *asker) reaches(ctx context.Context, want map[string]bool) error {
	missing := map[string]bool{}
	for node, wanted := range want {
		if wanted {
			missing[node] = true
		}
	}
	for range 30 {
		attempt, cancel := context.WithTimeout(ctx, time.Second)
		answer, err := workload.Ask(attempt, a.node, a.url)
		cancel()
		if err != nil {
			return err
		}
		if !want[answer.Node] {
			return fmt.Errorf("%s is answered by %s", a.node.Name(), answer.Node)
		}
		delete(missing, answer.Node)
	}
	if len(missing) > 0 {
		return fmt.Errorf("%s does not reach %v", a.node.Name(), missing)
	}
	return nil
}
