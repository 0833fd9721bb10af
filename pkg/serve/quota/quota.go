package quota

import "sync"

// Quota is a number of places. A caller gets more places as long as it holds no more than are left free afterwards. So
// one caller alone can take half of the places, two can take a third each, and a caller that holds none gets one as
// long as any is free. (Network switches share their buffers by this rule, which is called "dynamic
// thresholds".) Nothing needs to be reserved, and no caller needs to be known beforehand.
//
// A place may be a connection, or a byte. As long as any is free, a caller that holds none gets any number of places,
// even more than are free, or more than the Quota has: a list that is larger than the Quota must be possible. So the
// places taken may exceed the Quota by one request.
type Quota struct {
	limit int

	mu sync.Mutex
	// held has the places of each caller that has any, and taken is their sum; guarded by mu.
	held  map[string]int
	taken int
	// refused counts the requests that were refused; guarded by mu.
	refused uint64
}

// New makes a Quota of limit places.
func New(limit int) *Quota { return &Quota{limit: limit, held: map[string]int{}} }

// Acquire gives a caller a place, if it may have one. release releases it; further calls of it do nothing.
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

// Stats has how many places are taken, and how often a request for places was refused.
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
