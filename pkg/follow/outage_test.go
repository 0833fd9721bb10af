package follow

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// outageOf lets sources of these resources be followed, and then fail together.
func (w *world) outageOf(all ...string) {
	for _, resource := range all {
		w.add(resource, nil)
	}
	w.run()
	w.sleep(10 * time.Second)
	if heard := w.heard(); strings.Contains(heard, "hold") {
		w.t.Errorf("held at the start: %q", heard)
	}
	w.answer(refuseConnection, all...)
	w.breakWatches()
	w.sleep(time.Minute)
	w.expect("")
}

// TestOneChangeAfterAnOutage: what the first source says is held back until the last has caught up.
func TestOneChangeAfterAnOutage(t *testing.T) {
	inWorld(t, func(w *world) {
		w.outageOf("nodes", "services", "endpointslices")
		w.api.Put(service("t"))
		w.api.Delete(service("t"))
		w.api.Put(service("u"))
		w.answer(nil, "nodes", "services")
		w.until("hold")
		w.sleep(3 * quiet)
		w.expect("hold, services+t, services-t, services+u")
		w.answer(nil, "endpointslices")
		w.api.Put(slice("s-2"))
		w.until("release")
		w.expect("endpointslices+s-2, release")
		w.sleep(time.Minute)
		w.expect("")
	})
}

// TestCatchingUpWithoutAList: watches that are resumed, and stay open for a second without an event, have caught up.
func TestCatchingUpWithoutAList(t *testing.T) {
	inWorld(t, func(w *world) {
		w.outageOf("nodes", "services")
		w.answer(nil, "nodes", "services")
		w.until("hold")
		w.expect("hold")
		w.sleep(quiet - 100*time.Millisecond)
		w.expect("")
		w.sleep(200 * time.Millisecond)
		w.expect("release")
	})
}

// TestCatchingUpOnABusyCluster: where there are events all the time, there is never a second without one.
func TestCatchingUpOnABusyCluster(t *testing.T) {
	inWorld(t, func(w *world) {
		w.outageOf("nodes", "services")
		w.answer(nil, "nodes", "services")
		var held, released time.Duration
		for i := 0; released == 0 && w.now() < 5*time.Minute; i++ {
			w.api.Put(service(fmt.Sprintf("s%d", i%10)))
			w.sleep(100 * time.Millisecond)
			heard := w.heard()
			if strings.Contains(heard, "hold") {
				held = w.now()
			}
			if strings.Contains(heard, "release") {
				released = w.now()
			}
		}
		if took := released - held; held == 0 || took < settled-quiet || took > settled+quiet {
			t.Errorf("held after %s, released %s later", held, took)
		}
	})
}

// TestHoldingHasAnEnd: after 30 s without the last one, and then not again before all were well.
func TestHoldingHasAnEnd(t *testing.T) {
	inWorld(t, func(w *world) {
		w.outageOf("nodes", "services", "endpointslices")
		w.answer(nil, "nodes", "services")
		w.until("hold")
		w.expect("hold")
		w.sleep(longestHold - 100*time.Millisecond)
		w.expect("")
		w.sleep(200 * time.Millisecond)
		w.expect("release")

		// While the slices still fail, another outage of the others holds nothing.
		for range 3 {
			w.answer(refuseConnection, "nodes", "services")
			w.breakWatches()
			w.sleep(time.Minute)
			w.answer(nil, "nodes", "services")
			w.sleep(time.Minute)
			w.expect("")
		}
		// All were well: the next one does. After so long a break the slices are listed.
		w.answer(nil, "endpointslices")
		w.sleep(time.Minute)
		w.expect("endpointslices=1")
		w.answer(refuseConnection, "nodes", "services")
		w.breakWatches()
		w.sleep(time.Minute)
		w.answer(nil, "nodes", "services")
		w.sleep(time.Minute)
		w.expect("hold, release")
	})
}

// TestWhatHoldsNothing: one source alone, optional ones, and those that the upstream refuses.
func TestWhatHoldsNothing(t *testing.T) {
	t.Parallel()
	for name, fails := range map[string]func(w *world){
		"one source": func(w *world) { w.answer(refuseConnection, "services") },
		"one that is refused, and one that fails": func(w *world) {
			w.answer(status(http.StatusForbidden, metav1.StatusReasonForbidden), "nodes")
			w.answer(refuseConnection, "services")
		},
		"an optional one and another": func(w *world) { w.answer(refuseConnection, "endpoints", "services") },
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				w.add("nodes", nil)
				w.add("services", nil)
				w.add("endpoints", optional)
				w.run()
				w.sleep(10 * time.Second)
				w.heard()
				fails(w)
				w.breakWatches()
				w.sleep(5 * time.Minute)
				w.answer(nil, "services", "endpoints")
				w.sleep(5 * time.Minute)
				if heard := w.heard(); strings.Contains(heard, "hold") {
					t.Errorf("heard %q", heard)
				}
			})
		})
	}
}

// TestRefusedSourceIsNotWaitedFor: an outage ends although one source is refused since before it.
func TestRefusedSourceIsNotWaitedFor(t *testing.T) {
	inWorld(t, func(w *world) {
		w.add("nodes", nil)
		w.add("services", nil)
		w.add("endpointslices", nil)
		forbidden := status(http.StatusForbidden, metav1.StatusReasonForbidden)
		w.answer(forbidden, "endpointslices")
		w.run()
		w.sleep(time.Minute)
		w.heard()
		w.answer(refuseConnection, "nodes", "services")
		w.breakWatches()
		w.sleep(time.Minute)
		w.answer(nil, "nodes", "services")
		w.sleep(longestPause*3/2 + 2*quiet)
		w.expect("hold, release")
	})
}

// TestReleaseAtTheEnd: nothing stays held back when Run returns, or when the last missing source is stopped.
func TestReleaseAtTheEnd(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(w *world, missing *Source){
		"Run ends":              func(w *world, _ *Source) { w.end() },
		"the source is stopped": func(_ *world, missing *Source) { missing.Stop() },
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				w.add("services", nil)
				missing := w.add("nodes", nil)
				w.answer(refuseConnection, "services", "nodes")
				w.run()
				w.sleep(time.Minute)
				w.answer(nil, "services")
				w.until("services=1")
				w.expect("hold, services=1")
				end(w, missing)
				synctest.Wait()
				w.expect("release")
			})
		})
	}
}
