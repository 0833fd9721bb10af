package history

import (
	"math/rand/v2"
	"sync/atomic"
	"time"
)

// Revisions gives out resourceVersions. Several histories of a process may share one Revisions. Then no two of them
// give out the same revision, and a new history begins above everything that was given out before.
//
// An event has an even revision. The state after it, which lists and bookmarks report, has the odd revision that
// follows. So a client's revision shows where it comes from: an odd one comes from a list or a bookmark, and the client
// then had the same state as the table; an even one comes from an event (see order.torn).
type Revisions struct {
	events atomic.Uint64
	// mark is in every revision, in the markBits bits above the lowest one; see Marks. markBits is 0 without marks.
	mark     uint64
	markBits uint
}

// NewRevisions makes Revisions that begin above the given one.
func NewRevisions(last uint64) *Revisions {
	r := &Revisions{}
	r.SkipTo(last)
	return r
}

// next returns a new revision for an event.
func (r *Revisions) next() uint64 { return r.event(r.events.Add(1)) }

// event returns the revision of an event.
func (r *Revisions) event(number uint64) uint64 { return 2 * (number<<r.markBits | r.mark) }

// gaveOut reports whether a revision has the mark of r. A client that presents another one has it from elsewhere.
func (r *Revisions) gaveOut(revision uint64) bool {
	return revision>>1&(1<<r.markBits-1) == r.mark
}

// stateAfter returns the revision of the state after an event.
func stateAfter(event uint64) uint64 { return event + 1 }

// eventBefore returns the revision of the event before a state.
func eventBefore(state uint64) uint64 { return state - 1 }

// isState reports whether a revision belongs to a state, and not to an event.
func isState(revision uint64) bool { return revision%2 == 1 }

// Last returns the newest revision that was given out.
func (r *Revisions) Last() uint64 { return stateAfter(r.event(r.events.Load())) }

// SkipTo makes sure that the next revision is above the given one.
func (r *Revisions) SkipTo(revision uint64) {
	for {
		events := r.events.Load()
		if r.event(events) >= revision || r.events.CompareAndSwap(events, revision>>(1+r.markBits)+1) {
			return
		}
	}
}

const (
	// historyMarkBits is how many bits of a revision tell histories apart. With 20 bits revisions stay below 2^63
	// until the year 2106.
	historyMarkBits = 20
	// eventsPerSecond times the Unix time is the number from which a new history counts its events. So a history with
	// fewer events per second on average stays below those that begin after it. Otherwise only the mark tells their
	// revisions apart.
	eventsPerSecond = 1 << 10
)

// Marks gives every history Revisions with a mark of its own. It is for clients that may change from one history to
// another, even in another process. A client that presents a revision with another mark was served from another
// history. It gets ErrExpired, and lists again. Otherwise its revision could be taken for that of a state that it never
// had.
//
// Within a process, no two of a million histories in a row have the same mark. Two histories of different processes
// have the same mark with a probability of one in a million.
type Marks struct{ given atomic.Uint64 }

// NewMarks makes Marks that begin with a random one.
func NewMarks() *Marks {
	m := &Marks{}
	m.given.Store(rand.Uint64()) //nolint:gosec // it tells histories apart, and guards nothing
	return m
}

// Revisions returns the Revisions of one new history. now is the current time.
func (m *Marks) Revisions(now time.Time) *Revisions {
	r := &Revisions{mark: m.given.Add(1) & (1<<historyMarkBits - 1), markBits: historyMarkBits}
	r.events.Store(uint64(max(now.Unix(), 0)) * eventsPerSecond)
	return r
}
