package dashboard

import (
	"context"
	"sync"
	"time"
)

// gathered is how long changes are gathered before readers learn of them: one change of a grid is many of its objects.
const gathered = 200 * time.Millisecond

// feed tells readers that something has changed: a revision that grows. A reader waits until there is another revision
// than the one that it has. So nothing is queued for a reader, however slow it is.
type feed struct {
	// signals has an element if something has changed since it was last received from.
	signals chan struct{}

	mu       sync.Mutex
	revision uint64        // guarded by mu
	next     chan struct{} // closed when revision grows; guarded by mu
}

func newFeed() *feed {
	return &feed{signals: make(chan struct{}, 1), revision: 1, next: make(chan struct{})}
}

// signal notes that something has changed. It never blocks.
func (f *feed) signal() {
	select {
	case f.signals <- struct{}{}:
	default:
	}
}

// run makes a revision of the changes of a while, again and again, until ctx is done.
func (f *feed) run(ctx context.Context) {
	for {
		select {
		case <-f.signals:
		case <-ctx.Done():
			return
		}
		select {
		case <-time.After(gathered):
		case <-ctx.Done():
			return
		}
		select {
		case <-f.signals: // that change is in the revision, too
		default:
		}
		f.advance()
	}
}

func (f *feed) advance() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.revision++
	close(f.next)
	f.next = make(chan struct{})
}

// latest is the newest revision, and a channel that is closed when there is a newer one.
func (f *feed) latest() (uint64, <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.revision, f.next
}
