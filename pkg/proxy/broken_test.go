package proxy

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
)

// TestBrokenSteps: after steps that panicked the upstream is listed again once, soon; with an object that makes a step
// panic at every list it is listed ever more rarely.
func TestBrokenSteps(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		lists := 0
		b := newBrokenSteps(logr.Discard())
		b.relist = func() {
			lists++
			b.note(errors.New("again"))
		}
		b.note(errors.New("a step"))
		b.note(errors.New("another one"))
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if lists != 1 || b.counted() != 3 {
			t.Errorf("%d lists after %v steps", lists, b.counted())
		}
		time.Sleep(24 * time.Hour)
		synctest.Wait()
		if lists < 24*3 || lists > 24*6+8 {
			t.Errorf("%d lists in a day", lists)
		}
		b.relist = func() {}
		time.Sleep(time.Hour)
	})
}
