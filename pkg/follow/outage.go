package follow

import (
	"sync"
	"time"
)

// longestHold is the longest time for which changes are held back.
const longestHold = 30 * time.Second

// phase is the phase of an outage.
type phase int

const (
	// phaseWell means that nothing is held back. Sources may have failed.
	phaseWell phase = iota
	// phaseHolding means that Hold was called, and Release was not.
	phaseHolding
	// phaseSpent means that Release was called because longestHold had passed. Nothing is held back again until all
	// needed sources have caught up.
	phaseSpent
)

// outage decides when changes from the sources of a Group are held back.
type outage struct {
	// barrier may be nil.
	barrier Barrier

	// mu is also held while the barrier is called, so that its calls alternate.
	mu    sync.Mutex
	phase phase
	// lost has the needed sources that failed and have not caught up since.
	lost  map[*Source]struct{}
	timer *time.Timer
}

// noteFailure notes that a needed source failed.
func (o *outage) noteFailure(s *Source) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.lost[s] = struct{}{}
}

// holdIfNeeded is called before an answer to a source goes to the Sink. It begins to hold back changes if this source
// and another one had failed.
func (o *outage) holdIfNeeded(s *Source) {
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

// noteCaughtUp notes that a source has caught up, or is no longer followed.
func (o *outage) noteCaughtUp(s *Source) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.lost, s)
	o.endIfOver()
}

// end releases the changes that are held back. It is called at the end of Group.Run.
func (o *outage) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	clear(o.lost)
	o.endIfOver()
}

// endIfOver ends the outage if no source is lost. The caller holds the lock.
func (o *outage) endIfOver() {
	switch {
	case len(o.lost) > 0:
	case o.phase == phaseHolding:
		o.release(phaseWell)
	default:
		o.phase = phaseWell
	}
}

// release calls Barrier.Release. The caller holds the lock.
func (o *outage) release(next phase) {
	o.timer.Stop()
	o.phase = next
	if o.barrier != nil {
		o.barrier.Release()
	}
}
