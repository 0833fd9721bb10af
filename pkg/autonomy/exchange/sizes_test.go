package exchange

import (
	"bytes"
	"flag"
	"fmt"
	"net/netip"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/application-grid/application-grid/internal/testkit/liveheap"
	"github.com/application-grid/application-grid/pkg/storage/facts"
)

var large = flag.Bool("sizes.large", false, "also measures a site of 100 nodes, which takes minutes")

// measured is a site whose costs are measured.
type measured struct {
	*testing.T
	*lan

	nodes []*node
}

// share lets a node say that 30 pods run; a part of their addresses is changed.
func (m *measured) share(node, changed int) {
	word := &facts.LivePods{AsOf: time.Now(), Pods: map[facts.PodKey]facts.LivePod{}}
	for p := range 30 {
		name := fmt.Sprintf("workload-7f9c8d6b5-%05d-%d", node, p)
		key := facts.PodKey{Namespace: "production", Name: name, UID: fmt.Sprintf("%036d", p)}
		word.Pods[key] = facts.LivePod{
			Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, byte(node), byte(changed), byte(p + 1)})},
			Serving:   true, Why: "the API server called it ready, and it has not changed since",
		}
	}
	m.nodes[node].Share(word)
}

// until returns how long it takes until all nodes are done.
func (m *measured) until(what string, done func(i int, n *node) bool) time.Duration {
	m.Helper()
	allDone := func() bool {
		for i, n := range m.nodes {
			if !done(i, n) {
				return false
			}
		}
		return true
	}
	begun := time.Now()
	for !allDone() {
		if time.Sleep(50 * time.Millisecond); time.Since(begun) > time.Minute {
			m.Fatalf("%d nodes: %s: not within a minute", len(m.nodes), what)
		}
	}
	return time.Since(begun)
}

// perNode returns the traffic and the processor time of a node in a second.
func (m *measured) perNode(lasts time.Duration) (bytes float64, cpu time.Duration) {
	m.Helper()
	before, used := m.bytes.Load(), m.processor()
	time.Sleep(lasts)
	seconds := lasts.Seconds() * float64(len(m.nodes))
	return float64(m.bytes.Load()-before) / seconds, time.Duration(float64(m.processor()-used) / seconds)
}

func (m *measured) processor() time.Duration {
	m.Helper()
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		m.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// TestSizes measures what the exchange costs in sites of 2, 10 and 100 nodes with 30 pods each
// (docs/compatibility.md), and bounds it.
func TestSizes(t *testing.T) {
	if testing.Short() || raceDetector {
		t.Skip("it measures")
	}
	counts := []int{2, 10}
	if *large {
		counts = append(counts, 100)
	}
	for _, count := range counts {
		synctest.Test(t, func(t *testing.T) {
			l := newLAN()
			m := &measured{t, l, newSite(t, l, count)}
			defer startAll(m.nodes)()
			m.measure()
		})
	}
}

func (m *measured) measure() {
	count := len(m.nodes)
	for i := range m.nodes {
		m.share(i, 0)
	}
	time.Sleep(10 * time.Minute)
	followed, followedCPU := m.perNode(time.Hour)
	before, sent := liveheap.Size(), m.bytes.Load()
	sendAway(m.nodes)
	known := m.until("all words are known", func(_ int, n *node) bool { return len(n.Words()) == count-1 })
	sent = (m.bytes.Load() - sent) / int64(count)
	away, awayCPU := m.perNode(time.Minute)
	after := liveheap.Size()
	m.share(1, 9)
	word := m.nodes[1].own
	changed := m.until("a change is known", func(i int, n *node) bool {
		return i == 1 || bytes.Equal(encodePods(n.Words()["n1"].Pods), word)
	})
	isolate(m.lan, m.nodes[1].address)
	hidden := m.until("it is silent", func(i int, n *node) bool { return i > 0 || n.hidden() == "n1" })
	m.Logf("%d nodes: followed %.0f bytes and %s a second; away: known after %s with %d kB, then %.0f bytes and %s a "+
		"second; a change after %s; silent after %s; %.2f MB", count, followed, followedCPU, known, sent/1000, away,
		awayCPU, changed, hidden, float64(after-before)/1e6/float64(count))
	if followed > 1000 || away > 60*300 || known > 10*time.Second || changed > 5*time.Second ||
		hidden > 15*time.Second {
		m.Error("that is too much")
	}
}
