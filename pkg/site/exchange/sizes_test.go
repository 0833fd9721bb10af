package exchange

import (
	"bytes"
	"flag"
	"fmt"
	"net/netip"
	"runtime"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/application-grid/application-grid/pkg/storage/facts"
)

var large = flag.Bool("sizes.large", false, "also measures a site of 100 nodes, which takes minutes")

// TestSizes measures what the exchange costs in sites of 2, 10 and 100 nodes with 30 pods each
// (docs/compatibility.md), and bounds it.
func TestSizes(t *testing.T) {
	if testing.Short() || raceDetector {
		t.Skip("it measures")
	}
	processor := func() time.Duration {
		var usage syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
			t.Fatal(err)
		}
		return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
	}
	counts := []int{2, 10}
	if *large {
		counts = append(counts, 100)
	}
	for _, count := range counts {
		synctest.Test(t, func(t *testing.T) {
			l := newLAN()
			nodes := newSite(t, l, count)
			share := func(i, changed int) {
				word := &facts.LivePods{AsOf: time.Now(), Pods: map[facts.PodKey]facts.LivePod{}}
				for p := range 30 {
					name := fmt.Sprintf("workload-7f9c8d6b5-%05d-%d", i, p)
					key := facts.PodKey{Namespace: "production", Name: name, UID: fmt.Sprintf("%036d", p)}
					word.Pods[key] = facts.LivePod{
						Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, byte(i), byte(changed), byte(p + 1)})},
						Serving:   true, Why: "the API server called it ready, and it has not changed since",
					}
				}
				nodes[i].Share(word)
			}
			until := func(what string, done func() bool) time.Duration {
				begun := time.Now()
				for !done() {
					if time.Sleep(50 * time.Millisecond); time.Since(begun) > time.Minute {
						t.Fatalf("%d nodes: %s: not within a minute", count, what)
					}
				}
				return time.Since(begun)
			}
			perNode := func(lasts time.Duration) (bytes float64, cpu time.Duration) {
				before, used := l.bytes.Load(), processor()
				time.Sleep(lasts)
				seconds := lasts.Seconds() * float64(count)
				return float64(l.bytes.Load()-before) / seconds, time.Duration(float64(processor()-used) / seconds)
			}
			defer startAll(nodes)()
			for i := range nodes {
				share(i, 0)
			}
			time.Sleep(10 * time.Minute)
			followed, followedCPU := perNode(time.Hour)
			runtime.GC()
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			sent := l.bytes.Load()
			sendAway(nodes)
			known := until("all words are known", func() bool {
				for _, n := range nodes {
					if len(n.Words()) != count-1 {
						return false
					}
				}
				return true
			})
			sent = (l.bytes.Load() - sent) / int64(count)
			away, awayCPU := perNode(time.Minute)
			runtime.GC()
			runtime.ReadMemStats(&after)
			share(1, 9)
			word := nodes[1].own
			says := func(n *node) []byte {
				return encodePods(n.Words()["n1"].Pods)
			}
			changed := until("a change is known", func() bool {
				for i, n := range nodes {
					if i != 1 && !bytes.Equal(says(n), word) {
						return false
					}
				}
				return true
			})
			isolate(l, nodes[1].address)
			hidden := until("it is silent", func() bool { return nodes[0].hidden() == "n1" })
			t.Logf("%d nodes: followed %.0f bytes and %s a second; away: known after %s with %d kB, then %.0f bytes "+
				"and %s a second; a change after %s; silent after %s; %.2f MB", count, followed, followedCPU, known,
				sent/1000, away, awayCPU, changed, hidden,
				(float64(after.HeapAlloc)-float64(before.HeapAlloc))/1e6/float64(count))
			if followed > 1000 || away > 60*300 || known > 10*time.Second || changed > 5*time.Second ||
				hidden > 15*time.Second {
				t.Error("that is too much")
			}
		})
	}
}
