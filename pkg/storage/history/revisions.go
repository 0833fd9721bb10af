package history

import "sync/atomic"

// Revisions gives out resourceVersions. Several histories of a process may share one Revisions. Then no two of them
// give out the same revision, and a new history begins above everything that was given out before.
type Revisions struct{ last atomic.Uint64 }

// NewRevisions makes Revisions that begin above the given one.
func NewRevisions(last uint64) *Revisions {
	r := &Revisions{}
	r.last.Store(last)
	return r
}

func (r *Revisions) next() uint64 { return r.last.Add(1) }

// Last returns the newest revision that was given out.
func (r *Revisions) Last() uint64 { return r.last.Load() }

// SkipTo makes sure that the next revision is above the given one.
func (r *Revisions) SkipTo(revision uint64) {
	for {
		last := r.last.Load()
		if last >= revision || r.last.CompareAndSwap(last, revision) {
			return
		}
	}
}
