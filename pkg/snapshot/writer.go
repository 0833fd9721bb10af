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
	// DefaultDelay gathers changes: they come in bursts.
	DefaultDelay = 10 * time.Second
	// HourlyBytes is how much is written in an hour, on the average: 768 MiB a day, of which an eMMC chip of
	// 8 GiB that endures 3,000 writes of every cell lasts twenty years at a write amplification of 4.
	HourlyBytes = 32 << 20
	// refreshAfter is when a state that did not change is written again, for its AsOf.
	refreshAfter = time.Hour
	// retryAfter is how many Delays pass after an error.
	retryAfter = 6
)

// Source is what snapshots are taken of. *view.View is one.
type Source interface {
	// Content grows when something changes that is worth a new snapshot at once.
	Content() uint64
	// State is what a node is served from.
	State(nodeName string, asOf time.Time) (*facts.State, error)
}

// Writer writes the State of a Source to a Dir, rarely: in every hour at most HourlyBytes and one snapshot, and one
// when the process ends.
type Writer struct {
	Dir    *Dir
	Source Source
	// Live is closed once the Source has a State.
	Live <-chan struct{}
	// Revision is the newest that the process gave out.
	Revision func() uint64
	// AsOf is when the upstream last confirmed the state.
	AsOf func() time.Time
	// Delay is DefaultDelay if 0.
	Delay time.Duration
	// Clock is the real one if nil.
	Clock clock.WithTicker

	// content is the Store's as of the last writing, and saved the digest of what was written, as of asOf.
	content uint64
	saved   [sha256.Size]byte
	asOf    time.Time
	// next is when the next writing may be.
	next time.Time

	mu    sync.Mutex
	stats Stats
}

// Stats are figures about the writing.
type Stats struct {
	Writes, Errors, Bytes uint64
	// Size is that of the snapshot on disk in bytes, 0 if there is none.
	Size int64
	// Err is why the last writing failed; nil if it did not.
	Err error
}

// Stats are the figures so far.
func (w *Writer) Stats() Stats {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.stats
}

// Run writes until ctx is done, and then a last time if there is something new.
func (w *Writer) Run(ctx context.Context) {
	w.prepare(ctx)
	select {
	case <-w.Live:
	case <-ctx.Done():
		select {
		case <-w.Live:
			w.write(ctx, true)
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
			w.write(ctx, true)
			return
		}
	}
}

// prepare goes on from where an earlier process ended: one that is started again and again writes no more than
// one that runs on.
func (w *Writer) prepare(ctx context.Context) {
	if w.Clock == nil {
		w.Clock = clock.RealClock{}
	}
	if w.Delay == 0 {
		w.Delay = DefaultDelay
	}
	if w.Dir.size > 0 {
		// In the future if the clock was set back. What is added to now does not depend on the clock any more.
		now := w.Clock.Now()
		w.next = now.Add(pause(w.Delay, w.Dir.size) - max(now.Sub(w.Dir.written), 0))
		w.saved, w.asOf = w.Dir.sum, w.Dir.asOf
	}
	w.note(func(s *Stats) { s.Size = w.Dir.size })
	if err := w.Dir.Reserve(w.Revision()); err != nil {
		klog.FromContext(ctx).Error(err, "Nothing can be kept in the state directory, trying again",
			"directory", w.Dir.path)
		w.note(func(s *Stats) { s.Errors, s.Err = s.Errors+1, err })
	}
}

// tick writes if it is time.
func (w *Writer) tick(ctx context.Context) {
	if !w.Clock.Now().Before(w.next) {
		w.write(ctx, false)
	}
}

// pause is the time after the writing of a snapshot in which none is written.
func pause(delay time.Duration, size int64) time.Duration {
	return max(delay, time.Duration(float64(size)/HourlyBytes*float64(time.Hour)))
}

// write writes if there is something new.
func (w *Writer) write(ctx context.Context, last bool) {
	asOf, content := w.AsOf(), w.Source.Content()
	if asOf.IsZero() {
		// All that came is a cache's: it is as old as what was kept before, or older.
		asOf = w.asOf
	}
	stale := asOf.Sub(w.asOf) >= refreshAfter
	if content == w.content && (last || !stale) {
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
		// Once: a disk that is full stays so for long.
		if before == nil {
			logger.Error(err, "Nothing can be kept in the state directory, trying again", "directory", w.Dir.path)
		}
		w.next = now.Add(retryAfter * w.Delay)
		w.note(func(s *Stats) { s.Errors, s.Err = s.Errors+1, err })
		return
	}
	if before != nil {
		logger.Info("A snapshot is kept again", "directory", w.Dir.path)
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
