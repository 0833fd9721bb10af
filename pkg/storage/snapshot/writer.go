package snapshot

import (
	"context"
	"crypto/sha256"
	"sync"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/application-grid/application-grid/pkg/storage/facts"
)

const (
	// DefaultDelay is the default time between two checks for changes. Changes come in bursts, and one snapshot has all
	// of a burst.
	DefaultDelay = 10 * time.Second
	// HourlyBytes is the most bytes written per hour, on the average. At 768 MiB a day and a write amplification of 4,
	// an eMMC chip of 8 GiB whose cells endure 3,000 writes lasts twenty years.
	HourlyBytes = 32 << 20
	// refreshAfter is how old the AsOf of the snapshot may become before an unchanged state is written again.
	refreshAfter = time.Hour
	// retryAfter is how many Delays pass after an error.
	retryAfter = 6
)

// Source provides the state of which snapshots are taken. *view.View is one.
type Source interface {
	// Content returns a number that grows with every change that is worth a new snapshot.
	Content() uint64
	// State returns the state from which a node is served.
	State(nodeName string, asOf time.Time) (*facts.State, error)
}

// Writer writes the State of a Source to a Dir, but rarely: it writes at most HourlyBytes per hour (or one snapshot, if
// that is larger), and one snapshot more when the process ends.
type Writer struct {
	Dir    *Dir
	Source Source
	// Live is closed once the Source has a State.
	Live <-chan struct{}
	// Revision returns the newest revision that the process gave out.
	Revision func() uint64
	// AsOf returns when the upstream last confirmed the state.
	AsOf func() time.Time
	// Delay is DefaultDelay if 0.
	Delay time.Duration
	// Clock is the real clock if nil.
	Clock clock.WithTicker

	// content is the Source's Content when the last snapshot was written. saved is the digest of that snapshot, and
	// asOf its AsOf.
	content uint64
	saved   [sha256.Size]byte
	asOf    time.Time
	// next is when the next snapshot may be written.
	next time.Time

	mu    sync.Mutex
	stats Stats
}

// Stats are figures about a Writer.
type Stats struct {
	Writes, Errors, Bytes uint64
	// Size is the size of the snapshot on disk in bytes, 0 if there is none.
	Size int64
	// Err is why the last write failed; nil if it did not.
	Err error
}

// Stats returns the figures so far.
func (w *Writer) Stats() Stats {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.stats
}

// Run writes snapshots until ctx is done, and then a last one if something has changed.
func (w *Writer) Run(ctx context.Context) {
	w.prepare(ctx)
	select {
	case <-w.Live:
	case <-ctx.Done():
		select {
		case <-w.Live:
			w.writeLast(ctx)
		default:
		}
		return
	}
	ticker := w.Clock.NewTicker(w.Delay)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C():
			w.tick(ctx)
		case <-ctx.Done():
			w.writeLast(ctx)
			return
		}
	}
}

// prepare continues where an earlier process ended, so that a process that restarts again and again writes no more than
// one that keeps running.
func (w *Writer) prepare(ctx context.Context) {
	if w.Clock == nil {
		w.Clock = clock.RealClock{}
	}
	if w.Delay == 0 {
		w.Delay = DefaultDelay
	}
	if w.Dir.size > 0 {
		// If the clock was set back, the snapshot was written in the future; it then counts as written now.
		now := w.Clock.Now()
		w.next = now.Add(pause(w.Delay, w.Dir.size) - max(now.Sub(w.Dir.written), 0))
		w.saved, w.asOf = w.Dir.sum, w.Dir.asOf
	}
	w.note(func(s *Stats) { s.Size = w.Dir.size })
	if err := w.Dir.Reserve(w.Revision()); err != nil {
		klog.FromContext(ctx).Error(err, "Cannot write to the state directory; will try again", "directory", w.Dir.path)
		w.note(func(s *Stats) { s.Errors, s.Err = s.Errors+1, err })
	}
}

// tick writes a snapshot if it is time.
func (w *Writer) tick(ctx context.Context) {
	if !w.Clock.Now().Before(w.next) {
		w.write(ctx)
	}
}

// writeLast writes a last snapshot if something has changed.
func (w *Writer) writeLast(ctx context.Context) {
	if w.Source.Content() != w.content {
		w.write(ctx)
	}
}

// pause returns how long no snapshot is written after one of size bytes.
func pause(delay time.Duration, size int64) time.Duration {
	return max(delay, time.Duration(float64(size)/HourlyBytes*float64(time.Hour)))
}

// write writes a snapshot if something has changed, or if the last one is too old.
func (w *Writer) write(ctx context.Context) {
	asOf, content := w.AsOf(), w.Source.Content()
	if asOf.IsZero() {
		// All data came from a cache, so it is no newer than the last snapshot.
		asOf = w.asOf
	}
	stale := asOf.Sub(w.asOf) >= refreshAfter
	if content == w.content && !stale {
		return
	}
	state, err := w.Source.State(w.Dir.nodeName, asOf)
	var sum [sha256.Size]byte
	if err == nil {
		sum, err = digest(state)
	}
	if err == nil && sum == w.saved && !stale {
		w.content = content
		return
	}
	var size int64
	now := w.Clock.Now()
	if err == nil {
		size, err = w.Dir.Save(state, w.Revision(), now)
	}
	logger := klog.FromContext(ctx)
	before := w.Stats().Err
	if err != nil {
		// It is logged once: a disk that is full stays full for long.
		if before == nil {
			logger.Error(err, "Cannot write to the state directory; will try again", "directory", w.Dir.path)
		}
		w.next = now.Add(retryAfter * w.Delay)
		w.note(func(s *Stats) { s.Errors, s.Err = s.Errors+1, err })
		return
	}
	if before != nil {
		logger.Info("Writing to the state directory works again", "directory", w.Dir.path)
	}
	logger.V(4).Info("Wrote a snapshot", "bytes", size)
	w.content, w.saved, w.asOf = content, sum, asOf
	w.next = now.Add(pause(w.Delay, size))
	w.note(func(s *Stats) {
		s.Writes, s.Bytes, s.Size, s.Err = s.Writes+1, s.Bytes+uint64(max(size, 0)), size, nil
	})
}

func (w *Writer) note(change func(*Stats)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change(&w.stats)
}
