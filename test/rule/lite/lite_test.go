package lite

import (
	"flag"
	"log/slog"
	"math/rand/v2"
	"os"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/klog/v2"
)

var (
	seed    = flag.Uint64("lite.seed", 1, "the seed of the worlds; 0 for another one each time")
	worlds  = flag.Int("lite.worlds", 8, "how many worlds there are")
	without = flag.String("lite.without", "", "names of gateways that are left out, comma-separated")
	only    = flag.Int("lite.world", -1, "the only world of the seed that is made")
)

const rounds = 3

// failed is set when a world has failed.
var failed atomic.Bool

func TestMain(m *testing.M) {
	klog.SetSlogLogger(slog.New(slog.DiscardHandler)) // reflectors log each failure
	flag.Parse()
	if !isSet("test.parallel") {
		must(flag.Set("test.parallel", "8")) // they wait most of the time
	}
	if *seed == 0 {
		*seed = rand.Uint64()
	}
	os.Exit(m.Run())
}

func isSet(name string) (set bool) {
	flag.Visit(func(f *flag.Flag) { set = set || f.Name == name })
	return set
}

// TestPromise keeps lite-apiserver to its promise in random worlds.
func TestPromise(t *testing.T) {
	for number := range *worlds {
		if *only >= 0 && number != *only {
			continue
		}
		t.Run(strconv.Itoa(number), func(t *testing.T) {
			t.Parallel()
			if failed.Load() && flag.Lookup("test.failfast").Value.String() == "true" {
				t.Skip("a world has failed")
			}
			t.Cleanup(func() {
				if t.Failed() {
					failed.Store(true)
				}
			})
			w := newWorld(t, number, rand.New(rand.NewPCG(*seed, uint64(number))))
			w.note("-lite.seed=%d -lite.world=%d", *seed, number)
			w.machine.start()
			w.kubelet = w.newKubelet()
			defer func() { w.kubelet.stop() }()
			w.settle(30 * time.Second)
			for round := range rounds {
				w.note("round %d", round)
				w.round()
			}
			if number%4 == 1 {
				w.churn()
			}
			if most := w.machine.resident.Load(); most > 256<<10 {
				w.fail("it takes %d KiB of memory", most)
			}
			w.machine.kill()
			if w.machine.written > 96<<20 {
				w.fail("it has written %d bytes", w.machine.written)
			}
			t.Logf("%.0f s; %d MiB of memory, %d KiB written, started within %s", time.Since(w.began).Seconds(),
				w.machine.resident.Load()>>10, w.machine.written>>10, w.machine.slowest)
		})
	}
}

// round is some changes, a trouble, and an outage.
func (w *world) round() {
	w.t.Helper()
	w.changes(6)
	if w.chance(60) {
		w.settle(45 * time.Second)
	}
	w.changes(2)
	lost := w.chance(70) && w.trouble()
	if !lost && w.chance(30) {
		w.changes(2)
	}
	w.outage(lost)
	w.reconnect()
	if w.chance(20) {
		w.powerCut()
	}
	w.changes(2)
	w.settle(60 * time.Second)
}
