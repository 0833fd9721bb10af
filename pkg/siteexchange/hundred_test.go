package siteexchange

import (
	"fmt"
	"runtime"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

const (
	// large is the number of nodes of a large site, podsEach that of the pods of each.
	large, podsEach = 100, 30
	// idleBytes is the most bytes a second that a node of a large site may send while its upstream is followed,
	// outageBytes the most that it may send altogether until all know all pods.
	idleBytes, outageBytes = 2000, 2 << 20
	// largeSettle is how long the nodes of a large site may take to hear of anything.
	largeSettle = 15 * time.Second
)

// TestHundredNodes: what an exchange among a hundred nodes costs. Bytes are those that are sent, with the headers of IP
// and UDP or TCP. The time of the processor is that of all nodes, over a network in memory, without system calls.
func TestHundredNodes(t *testing.T) {
	if testing.Short() || raceDetector {
		t.Skip("it takes 20 s, and minutes with the race detector")
	}
	synctest.Test(t, func(t *testing.T) {
		l := newLAN()
		nodes := newSite(t, l, large)
		stop := startAll(nodes)
		defer stop()
		until := func(what string, all func(*node) bool) {
			t.Helper()
			begun := time.Now()
			for done := false; !done; {
				time.Sleep(100 * time.Millisecond)
				done = true
				for _, n := range nodes {
					done = done && all(n)
				}
				if time.Since(begun) > largeSettle {
					t.Fatalf("%s: not within %s", what, largeSettle)
				}
			}
			t.Logf("%s: after %s", what, time.Since(begun))
		}
		spent := newMeter(l)
		until("all take part", func(n *node) bool { return len(n.Status().Alive) == large-1 })
		spent.log(t, "until all take part")

		time.Sleep(time.Minute)
		spent = newMeter(l)
		time.Sleep(5 * time.Minute)
		if bytes := spent.log(t, "while the upstream is followed") / large / 300; bytes > idleBytes {
			t.Errorf("%d bytes a second and node are more than %d", bytes, idleBytes)
		}

		spent = newMeter(l)
		for i, n := range nodes {
			n.away.Store(true)
			var pods []string
			for pod := range podsEach {
				pods = append(pods, fmt.Sprintf("deployment-%04d-5d4f8c7b9-x%d=10.%d.0.%d", pod, pod, i, pod+1))
			}
			n.runs(pods...)
		}
		until("all know all pods", func(n *node) bool { return len(n.Words()) == large-1 })
		if bytes := spent.log(t, "until all know all pods") / large; bytes > outageBytes {
			t.Errorf("%d bytes for each node are more than %d", bytes, outageBytes)
		}
		var memory runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&memory)
		t.Logf("a node that knows all pods takes %d bytes of the heap", memory.HeapAlloc/large)

		spent = newMeter(l)
		time.Sleep(time.Minute)
		spent.log(t, "while the upstream is away")
		nodes[1].runs("other=10.1.0.1")
		spent = newMeter(l)
		until("all know that the pods of one node have changed", func(n *node) bool {
			return n == nodes[1] || n.hears("n1") == "other=10.1.0.1"
		})
		spent.log(t, "until all know that")
	})
}

// meter measures what is spent.
type meter struct {
	lan                  *lan
	since                time.Time
	cpu                  time.Duration
	bytes, packets, conn int64
}

func newMeter(l *lan) meter {
	return meter{l, time.Now(), cpuTime(), l.bytes.Load(), l.packets.Load(), l.connections.Load()}
}

func cpuTime() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		panic(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// log logs what was spent since the meter was made, and returns the bytes of all nodes.
func (m meter) log(t *testing.T, what string) int64 {
	t.Helper()
	took, bytes := time.Since(m.since), m.lan.bytes.Load()-m.bytes
	each := func(all int64) float64 { return float64(all) / large / took.Seconds() }
	t.Logf("%s (%s): a node sends %.0f bytes, %.2f packets and %.3f connections a second, %d bytes in all, and "+
		"computes %.2f ms a second", what, took, each(bytes), each(m.lan.packets.Load()-m.packets),
		each(m.lan.connections.Load()-m.conn), bytes/large, each(int64(cpuTime()-m.cpu))/1e6)
	return bytes
}
