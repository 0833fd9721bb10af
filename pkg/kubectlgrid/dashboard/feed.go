package dashboard

import (
	"context"
	"sync"
	"time"
)

// gathered is how long changes are collected before readers learn of them, because one change of a grid changes many
// objects.
const gathered = 200 * time.Millisecond

// feed notifies readers of changes by a revision that grows. A reader waits for another revision than its own. So
// nothing is queued for a reader, however slow it is.
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

// run makes one revision of all changes within the time gathered, again and again, until ctx is done.
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

// latest returns the newest revision, and a channel that is closed when a newer one exists.
func (f *feed) latest() (uint64, <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.revision, f.next
}
