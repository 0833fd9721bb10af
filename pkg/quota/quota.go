package quota

import "sync"

// Quota is a number of places. A caller gets further ones as long as it does not hold more than are free then: alone it
// can take half of them, two can take a third each, and however many a caller holds, one who holds none gets what it
// asks for until as many callers as there are places have come. (Switches share their buffers by this rule, "dynamic
// thresholds".) So nothing needs to be reserved, and no caller needs to be known beforehand.
//
// A place may stand for a connection, or for a byte. What a caller that holds none asks for is given even if it is more
// than is free, or than there is at all: a list that is larger than the Quota must be possible, and what another caller
// holds must not be in its way. So more may be taken than there is, by what one caller asked for at once.
type Quota struct {
	limit int

	mu sync.Mutex
	// held are the places of each caller that has any, and taken their sum; guarded by mu.
	held  map[string]int
	taken int
	// refused counts; guarded by mu.
	refused uint64
}

// New makes a Quota of so many places.
func New(limit int) *Quota { return &Quota{limit: limit, held: map[string]int{}} }

// Acquire gives a caller a place, if it may have one. release gives it back; further calls of it do nothing.
func (q *Quota) Acquire(caller string) (release func(), ok bool) { return q.AcquireN(caller, 1) }

// AcquireN is Acquire for n places at once, all or none.
func (q *Quota) AcquireN(caller string, n int) (release func(), ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	free, held := q.limit-q.taken, q.held[caller]
	if held+n > free && (held > 0 || free <= 0) {
		q.refused++
		return nil, false
	}
	if n > 0 {
		q.held[caller] += n
		q.taken += n
	}
	return sync.OnceFunc(func() { q.release(caller, n) }), true
}

func (q *Quota) release(caller string, n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.taken -= n
	if q.held[caller] -= n; q.held[caller] <= 0 {
		delete(q.held, caller)
	}
}

// Stats is how many places are taken, and how often one was refused.
type Stats struct {
	Taken   int
	Refused uint64
}

// Stats returns the current figures.
func (q *Quota) Stats() Stats {
	q.mu.Lock()
	defer q.mu.Unlock()
	return Stats{Taken: q.taken, Refused: q.refused}
}
