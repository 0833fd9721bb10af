package serve

import (
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// stallLooks is how many times within the write timeout a stallGuard looks at the writes under way. A client is cut off
// when it has accepted nothing for the write timeout, and a part of it that depends on when the write began.
const stallLooks = 4

// stallGuard cuts off clients that do not accept what is written to their watches. One timer looks after all watches.
// With a deadline of each response, every event would set one and remove it again; over HTTP/2 both are messages to the
// goroutine that serves the connection, and a timer. The zero value is ready.
type stallGuard struct {
	mu sync.Mutex // guards what follows, and the writers' own fields where a comment there says that
	// writers are those of the watches under way, each with how often its write under way was seen.
	writers map[*guardedWriter]struct{}
	// timer runs while there are writers.
	timer *time.Timer
}

// guardedWriter is a watch's response, as its stallGuard knows it.
type guardedWriter struct {
	response *http.ResponseController
	// steps counts the beginnings and ends of writes, so it is odd while there is one.
	steps atomic.Uint64
	// seen is what steps was at the last look, and looks is at how many looks before that it was the same. The guard's
	// lock guards both.
	seen  uint64
	looks int
}

// begin notes that a write begins, end that the client has accepted it.
func (g *guardedWriter) begin() { g.steps.Add(1) }

func (g *guardedWriter) end() { g.steps.Add(1) }

// stalled notes a look, and reports whether the same write was under way at so many looks before.
func (g *guardedWriter) stalled() bool {
	steps := g.steps.Load()
	if steps%2 == 0 || steps != g.seen {
		g.seen, g.looks = steps, 0
		return false
	}
	g.looks++
	return g.looks >= stallLooks
}

// longAgo is a deadline that has passed.
var longAgo = time.Unix(1, 0)

// guard looks after the writes to w until release is called, which must be before the handler returns. timeout is how
// long a write may take.
func (s *stallGuard) guard(w http.ResponseWriter, timeout time.Duration) (g *guardedWriter, release func()) {
	g = &guardedWriter{response: http.NewResponseController(w)}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.writers == nil {
		s.writers = make(map[*guardedWriter]struct{})
	}
	if len(s.writers) == 0 {
		s.schedule(timeout / stallLooks)
	}
	s.writers[g] = struct{}{}
	return g, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.writers, g)
		if len(s.writers) == 0 {
			s.timer.Stop()
		}
	}
}

// schedule looks after a while, and again and again while there are writers. The caller holds the lock.
func (s *stallGuard) schedule(interval time.Duration) {
	var timer *time.Timer
	timer = time.AfterFunc(interval, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.timer != timer || len(s.writers) == 0 {
			return // another timer runs, or none has to
		}
		for g := range s.writers {
			if g.stalled() {
				// It fails the write under way. A ResponseWriter of a test may not support it.
				_ = g.response.SetWriteDeadline(longAgo)
			}
		}
		timer.Reset(interval)
	})
	s.timer = timer
}
