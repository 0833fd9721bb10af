package quota

import "sync"

// Quota is a number of places. A caller gets a further one as long as it holds fewer than are free: alone it can
// take half of them, two can take a third each, and however many a caller holds, one who holds none gets a place
// until as many callers as there are places have come. (Switches share their buffers by this rule, "dynamic
// thresholds".) So nothing needs to be reserved, and no caller needs to be known beforehand.
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
func (q *Quota) Acquire(caller string) (release func(), ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.held[caller] >= q.limit-q.taken {
		q.refused++
		return nil, false
	}
	q.held[caller]++
	q.taken++
	return sync.OnceFunc(func() { q.release(caller) }), true
}

func (q *Quota) release(caller string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.taken--
	if q.held[caller]--; q.held[caller] == 0 {
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
