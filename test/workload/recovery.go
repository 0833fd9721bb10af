package workload

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	// askTimeout is how long an answer may take on a busy machine. A connection that began before the rules were there
	// never gets one.
	askTimeout = 3 * time.Second
	// recoveryPause is the one after every connection.
	recoveryPause = 5 * time.Millisecond
)

// Recovery is how the connections of a node went since a moment.
type Recovery struct {
	Tried int
	// Failed says of each connection that failed when it began, and why.
	Failed []string
	// Last is when the last connection that failed began, without the time in which something on this machine waited
	// for a processor (see Starved); 0 if none has failed.
	Last time.Duration
	// Nodes and Pods count the answers by who gave them.
	Nodes, Pods map[string]int
}

// Recover connects to an echo Service again and again until the given time has passed since a moment.
func Recover(ctx context.Context, from Source, url string, since time.Time, until time.Duration) Recovery {
	r := Recovery{Nodes: map[string]int{}, Pods: map[string]int{}}
	starved := Starved()
	for ; time.Since(since) < until && ctx.Err() == nil; time.Sleep(recoveryPause) {
		r.Tried++
		begun, waited := time.Since(since), Starved()-starved
		attempt, cancel := context.WithTimeout(ctx, askTimeout)
		answer, err := Ask(attempt, from, url)
		cancel()
		if err != nil {
			r.Last = max(begun-waited, 1)
			r.Failed = append(r.Failed, fmt.Sprintf("%s: %v", begun.Round(time.Millisecond), err))
			continue
		}
		r.Nodes[answer.Node]++
		r.Pods[answer.Pod]++
	}
	return r
}

// SiteRecovers connects from all nodes of a site to an echo Service that has a pod on each, from now on. The last
// connection may fail within the first time; connections are tried for the second one after that. The report says how
// it went from each node, the error from which it did not go well.
func SiteRecovers[N Source](
	ctx context.Context, nodes []N, url string, within, observed time.Duration,
) (report string, err error) {
	since := time.Now()
	recoveries := make([]Recovery, len(nodes))
	names := make([]string, len(nodes))
	var wg sync.WaitGroup
	for i, node := range nodes {
		names[i] = node.Name()
		wg.Go(func() { recoveries[i] = Recover(ctx, node, url, since, within+observed) })
	}
	wg.Wait()
	slices.Sort(names)
	var lines strings.Builder
	var errs []error
	for i, r := range recoveries {
		fmt.Fprintf(&lines, "%s: %s\n", nodes[i].Name(), r)
		if r.Last > within {
			errs = append(errs, fmt.Errorf("%s: a connection failed after more than %s", nodes[i].Name(), within))
		}
		if answered := slices.Sorted(maps.Keys(r.Nodes)); !slices.Equal(answered, names) {
			errs = append(errs, fmt.Errorf("%s: the nodes %v have answered, and not %v", nodes[i].Name(), answered,
				names))
		}
	}
	return lines.String(), errors.Join(errs...)
}

// String says how it went, with the first failure and the last ones.
func (r Recovery) String() string {
	text := fmt.Sprintf("%d of %d connections failed, the last %s after that moment; the nodes %v answered",
		len(r.Failed), r.Tried, r.Last.Round(time.Millisecond), r.Nodes)
	if len(r.Failed) > 0 {
		text += "; first " + r.Failed[0] + ", last " + strings.Join(r.Failed[max(len(r.Failed)-5, 0):], "; ")
	}
	return text
}
