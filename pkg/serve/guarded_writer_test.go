package serve

import (
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"
)

// cuttable is a response whose client may be cut off.
type cuttable struct {
	*httptest.ResponseRecorder

	cut chan time.Time
}

// SetWriteDeadline is for http.ResponseController.
func (c cuttable) SetWriteDeadline(deadline time.Time) error {
	if deadline.Before(time.Now()) {
		c.cut <- time.Now()
	}
	return nil
}

// TestStallGuard: who accepts nothing is cut off after the write timeout, and nobody else is.
func TestStallGuard(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const timeout = time.Minute
		var guard stallGuard
		var releases []func()
		writer := func() (*guardedWriter, cuttable) {
			w := cuttable{httptest.NewRecorder(), make(chan time.Time, 100)}
			g, release := guard.guard(w, timeout)
			releases = append(releases, release)
			return g, w
		}
		expectQuiet := func(who string, w cuttable) {
			t.Helper()
			if len(w.cut) > 0 {
				t.Errorf("%s is cut off", who)
			}
		}
		_, idle := writer()
		busy, reads := writer()
		stalled, hangs := writer()
		time.Sleep(7 * time.Second)
		begin := time.Now()
		stalled.steps.Add(1)
		for time.Since(begin) < 3*timeout/2 {
			// Each write takes almost as long as it may.
			busy.steps.Add(1)
			time.Sleep(timeout - time.Second)
			busy.steps.Add(1)
		}
		expectQuiet("who has nothing to accept", idle)
		expectQuiet("who accepts slowly", reads)
		select {
		case at := <-hangs.cut:
			if took := at.Sub(begin); took < timeout || took > timeout+timeout/stallChecks {
				t.Errorf("cut off after %s", took)
			}
		default:
			t.Error("who accepts nothing is not cut off")
		}
		for _, release := range releases {
			release()
		}
		releases = nil
		// Who comes later is looked after as well.
		late, next := writer()
		late.steps.Add(1)
		time.Sleep(2 * timeout)
		if len(next.cut) == 0 {
			t.Error("a later one is not cut off")
		}
		// Nobody touches the response of a handler that has returned.
		releases[0]()
		before := len(next.cut)
		time.Sleep(2 * timeout)
		if len(next.cut) > before {
			t.Error("one that is over is cut off")
		}
	})
}
