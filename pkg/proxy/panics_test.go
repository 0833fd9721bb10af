package proxy

import (
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
)

// counter is a counter that a test can read.
type counter struct {
	prometheus.Counter

	n atomic.Int64
}

func (c *counter) Inc() { c.n.Add(1) }

// TestBrokenSteps: after steps that panicked the upstream is listed again once, soon; with an object that makes a step
// panic at every list it is listed ever more rarely.
func TestBrokenSteps(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var lists atomic.Int64
		var mended atomic.Bool
		b, counted := newPanickedSteps(logr.Discard()), &counter{}
		b.count = counted
		b.relist = func() {
			lists.Add(1)
			if !mended.Load() {
				b.stepPanicked(errors.New("again"))
			}
		}
		b.stepPanicked(errors.New("a step"))
		b.stepPanicked(errors.New("another one"))
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if lists.Load() != 1 || counted.n.Load() != 3 {
			t.Errorf("%d lists after %v steps", lists.Load(), counted.n.Load())
		}
		time.Sleep(24 * time.Hour)
		synctest.Wait()
		if in := lists.Load(); in < 24*3 || in > 24*6+8 {
			t.Errorf("%d lists in a day", in)
		}
		mended.Store(true)
		time.Sleep(time.Hour)
		synctest.Wait()
		was := lists.Load()
		time.Sleep(time.Hour)
		synctest.Wait()
		if lists.Load() != was {
			t.Errorf("%d lists without a step that panicked", lists.Load()-was)
		}
	})
}
