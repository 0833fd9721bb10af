package history

import "sync/atomic"

// Revisions gives out resourceVersions. Several histories of a process may share one Revisions. Then no two of them
// give out the same revision, and a new history begins above everything that was given out before.
//
// An event has an even revision. The state after it, which lists and bookmarks report, has the odd revision that
// follows. So a client's revision shows where it comes from: an odd one comes from a list or a bookmark, and the client
// then had the same state as the table; an even one comes from an event (see order.torn).
type Revisions struct {
	events atomic.Uint64
}

// NewRevisions makes Revisions that begin above the given one.
func NewRevisions(last uint64) *Revisions {
	r := &Revisions{}
	r.SkipTo(last)
	return r
}

func (r *Revisions) next() uint64 { return r.event(r.events.Add(1)) }

func (*Revisions) event(number uint64) uint64 { return 2 * number }

func stateAfter(event uint64) uint64 { return event + 1 }

func eventBefore(state uint64) uint64 { return state - 1 }

// isState reports whether a revision belongs to a state, and not to an event.
func isState(revision uint64) bool { return revision%2 == 1 }

// Last returns the newest revision that was given out.
func (r *Revisions) Last() uint64 { return stateAfter(r.event(r.events.Load())) }

// SkipTo makes sure that the next revision is above the given one.
func (r *Revisions) SkipTo(revision uint64) {
	for {
		events := r.events.Load()
		if r.event(events) >= revision || r.events.CompareAndSwap(events, revision>>1+1) {
			return
		}
	}
}
