package history

import "sync/atomic"

// Revisions gives out resourceVersions. All histories of a process draw from one, so that no two of them give out the
// same, and a history that is made anew begins above everything that was given out before.
//
// An event has an even revision. The state after it, which lists and bookmarks report, has the odd one that follows. So a
// client that presents a revision says how it came by it: an odd one is from a list or a bookmark, and the client's
// state was that of the table; an even one is from an event, see order.torn.
type Revisions struct{ events atomic.Uint64 }

// NewRevisions gives out revisions above the given one.
func NewRevisions(last uint64) *Revisions {
	r := &Revisions{}
	r.SkipTo(last)
	return r
}

// next is a new revision, for an event.
func (r *Revisions) next() uint64 { return 2 * r.events.Add(1) }

// stateAfter is the revision of the state after an event.
func stateAfter(event uint64) uint64 { return event + 1 }

// eventBefore is the revision of the event that led to a state.
func eventBefore(state uint64) uint64 { return state - 1 }

// isState reports whether a revision is that of a state, not of an event.
func isState(revision uint64) bool { return revision%2 == 1 }

// Last is the newest revision that was given out.
func (r *Revisions) Last() uint64 { return stateAfter(2 * r.events.Load()) }

// SkipTo makes sure that the next revision is above the given one.
func (r *Revisions) SkipTo(revision uint64) {
	for {
		events := r.events.Load()
		if 2*events >= revision || r.events.CompareAndSwap(events, revision/2+1) {
			return
		}
	}
}
