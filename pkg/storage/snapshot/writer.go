package snapshot

import (
	"cmp"
	"context"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/application-grid/application-grid/pkg/storage/facts"
)

const (
	// DefaultDelay is the default time between two checks for changes. Changes arrive in bursts, and one snapshot
	// covers a whole burst.
	DefaultDelay = 10 * time.Second
	// HourlyBytes limits the bytes written per hour, on average. At 768 MiB a day and a write amplification of 4, an
	// eMMC chip of 8 GiB whose cells endure 3,000 writes lasts twenty years.
	HourlyBytes = 32 << 20
	// retryAfter is how many Delays pass after an error.
	retryAfter = 6
)

// Source provides the state for snapshots. *view.View is one.
type Source interface {
	// SnapshotVersion returns a number that grows with every change that is worth a new snapshot.
	SnapshotVersion() uint64
	// Snapshot returns the state from which a node is served.
	Snapshot(nodeName string, asOf time.Time) (*facts.Snapshot, error)
}

// Writer writes the Snapshot of a Source to a Dir, but rarely: it writes at most HourlyBytes per hour, and one snapshot
// more when the process ends.
type Writer struct {
	Dir    *Dir
	Source Source
	// Live is closed once the Source has a Snapshot.
	Live <-chan struct{}
	// Revision returns the newest revision that the process gave out.
	Revision func() uint64
	// AsOf returns when the upstream last confirmed the state.
	AsOf func() time.Time
	// Delay is DefaultDelay if 0.
	Delay time.Duration

	// savedVersion is the Source's SnapshotVersion when the last snapshot was written.
	savedVersion uint64
	// next is when to try again after an error.
	next time.Time

	mu    sync.Mutex
	stats Stats
}

// Stats are figures about a Writer.
type Stats struct {
	Writes, Errors, Bytes uint64
	// Size is the size of the store on disk in bytes; 0 if it does not exist.
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
	w.Delay = cmp.Or(w.Delay, DefaultDelay)
	w.reserveRevisions(ctx)
	select {
	case <-w.Live:
	case <-ctx.Done():
	}
	ticker := w.Dir.Clock.NewTicker(w.Delay)
	defer ticker.Stop()
	for ctx.Err() == nil {
		select {
		case <-ticker.C():
			w.tick(ctx)
		case <-ctx.Done():
		}
	}
	select {
	case <-w.Live:
		if w.Source.SnapshotVersion() != w.savedVersion {
			w.write(ctx)
		}
	default:
	}
}

// reserveRevisions makes sure that the next process begins above the revisions that this one gives out.
func (w *Writer) reserveRevisions(ctx context.Context) {
	w.recordWrite(ctx, false, w.Dir.reserveRevisions(w.Revision()))
}

// tick writes a snapshot if it is time.
func (w *Writer) tick(ctx context.Context) {
	if !w.Dir.Clock.Now().Before(w.next) && w.Dir.store.Left() > 0 {
		w.write(ctx)
	}
}

// write writes a snapshot if something has changed, or if the last one is too old.
func (w *Writer) write(ctx context.Context) {
	asOf, version := w.AsOf(), w.Source.SnapshotVersion()
	if asOf.IsZero() {
		// All data came from a cache, so it is not newer than the last snapshot.
		asOf = w.Dir.asOf
	}
	if version == w.savedVersion && asOf.Sub(w.Dir.asOf) < refreshAfter {
		return
	}
	state, err := w.Source.Snapshot(w.Dir.NodeName, asOf)
	written := false
	if err == nil {
		written, err = w.Dir.Save(state, w.Revision())
	}
	if err == nil {
		w.savedVersion = version
	}
	w.recordWrite(ctx, written, err)
}

// recordWrite records the outcome of a write. An error is logged once, because a full disk stays full for long.
func (w *Writer) recordWrite(ctx context.Context, written bool, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	logger := klog.FromContext(ctx)
	switch before := w.stats.Err; {
	case err != nil && before == nil:
		logger.Error(err, "Cannot write to the state directory; will try again", "directory", w.Dir.Path)
	case err == nil && before != nil:
		logger.Info("Writing to the state directory works again", "directory", w.Dir.Path)
	}
	if err != nil {
		w.next = w.Dir.Clock.Now().Add(retryAfter * w.Delay)
		w.stats.Errors++
	}
	if written {
		w.stats.Writes++
	}
	w.stats.Err, w.stats.Size = err, w.Dir.store.Size()
	w.stats.Bytes = uint64(max(w.Dir.store.Written(), 0))
}
