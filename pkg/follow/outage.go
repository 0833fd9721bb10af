package follow

import (
	"sync"
	"time"
)

// longestHold is how long what sources say is held back at most.
const longestHold = 30 * time.Second

// phase is where an outage has got to.
type phase int

const (
	// phaseWell: nothing is held back. Sources may have failed.
	phaseWell phase = iota
	// phaseHolding: Hold was called, and Release was not.
	phaseHolding
	// phaseSpent: Release was called because the time was up. Nothing is held back before all needed sources were
	// well at one time.
	phaseSpent
)

// outage decides when what the sources of a Group say is held back.
type outage struct {
	// barrier may be nil.
	barrier Barrier

	// mu is also held while the barrier is called, so that its calls alternate.
	mu    sync.Mutex
	phase phase
	// lost are the needed sources that failed and have not caught up since.
	lost  map[*Source]struct{}
	timer *time.Timer
}

// failed notes that a needed source failed.
func (o *outage) failed(s *Source) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.lost == nil {
		o.lost = make(map[*Source]struct{})
	}
	o.lost[s] = struct{}{}
}

// answered is called before what a source says after a failure is handed on.
func (o *outage) answered(s *Source) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if _, lost := o.lost[s]; !lost || o.phase != phaseWell || len(o.lost) < 2 {
		return
	}
	o.phase = phaseHolding
	if o.barrier != nil {
		o.barrier.Hold()
	}
	var timer *time.Timer
	timer = time.AfterFunc(longestHold, func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		if o.phase == phaseHolding && o.timer == timer {
			o.release(phaseSpent)
		}
	})
	o.timer = timer
}

// caughtUp notes that a source has caught up, or is not followed any more.
func (o *outage) caughtUp(s *Source) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.lost, s)
	if len(o.lost) > 0 {
		return
	}
	if o.phase == phaseHolding {
		o.release(phaseWell)
	}
	o.phase = phaseWell
}

// end releases what is held back.
func (o *outage) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	clear(o.lost)
	if o.phase == phaseHolding {
		o.release(phaseWell)
	}
	o.phase = phaseWell
}

// release ends the holding back. The caller holds the lock.
func (o *outage) release(next phase) {
	o.timer.Stop()
	o.phase = next
	if o.barrier != nil {
		o.barrier.Release()
	}
}
