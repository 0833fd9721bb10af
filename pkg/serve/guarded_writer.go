package serve

import (
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// stallChecks is how many times within the write timeout a stallGuard checks the running writes. A client is cut off
// when it has accepted nothing for the write timeout, plus a part of it that depends on when the write began.
const stallChecks = 4

// stallGuard cuts off clients that do not accept the events of their watches. It uses one timer for all watches. With a
// deadline for each response, every event would set and remove one; over HTTP/2 both cost a message to the goroutine
// that serves the connection, and a timer. The zero value is ready to use.
type stallGuard struct {
	mu sync.Mutex // guards what follows, and the writers' own fields where a comment there says that
	// writers are the writers of the running watches.
	writers map[*guardedWriter]struct{}
	// timer runs while there are writers. It is nil before the first.
	timer *time.Timer
}

// guardedWriter is the response of a watch under a stallGuard.
type guardedWriter struct {
	http.ResponseWriter

	response *http.ResponseController
	// steps counts the beginnings and ends of writes, so it is odd during a write.
	steps atomic.Uint64
	// seen is the value of steps at the last check, and checks is at how many checks before that it was the same. The
	// guard's lock guards both.
	seen   uint64
	checks int
}

// write writes data, if there is any, and flushes the response if that is due.
func (g *guardedWriter) write(data []byte, flush bool) (err error) {
	g.steps.Add(1)
	if len(data) > 0 {
		_, err = g.Write(data)
	}
	if err == nil && flush {
		err = g.response.Flush()
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errClientGone, err)
	}
	g.steps.Add(1)
	return nil
}

// stalled makes a check, and reports whether the same write was running at the last stallChecks checks.
func (g *guardedWriter) stalled() bool {
	steps := g.steps.Load()
	if steps%2 == 0 || steps != g.seen {
		g.seen, g.checks = steps, 0
		return false
	}
	g.checks++
	return g.checks >= stallChecks
}

// longAgo is a deadline that has passed.
var longAgo = time.Unix(1, 0)

// guard guards the writes to w until release is called, which must be before the handler returns. timeout is how long a
// write may take.
func (s *stallGuard) guard(w http.ResponseWriter, timeout time.Duration) (g *guardedWriter, release func()) {
	g = &guardedWriter{ResponseWriter: w, response: http.NewResponseController(w)}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.timer == nil {
		s.writers = make(map[*guardedWriter]struct{})
		s.timer = time.AfterFunc(timeout/stallChecks, func() { s.check(timeout / stallChecks) })
	} else if len(s.writers) == 0 {
		s.timer.Reset(timeout / stallChecks)
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

// check makes a check of the writers, and again after an interval as long as there are any.
func (s *stallGuard) check(interval time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.writers) == 0 {
		return
	}
	for g := range s.writers {
		if g.stalled() {
			// It fails the write under way. A ResponseWriter of a test may not support it.
			_ = g.response.SetWriteDeadline(longAgo)
		}
	}
	s.timer.Reset(interval)
}
