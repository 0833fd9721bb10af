package snapshot

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/application-grid/application-grid/pkg/storage/facts"
	"github.com/application-grid/application-grid/pkg/storage/storagetest"
	"github.com/application-grid/application-grid/pkg/storage/wire"
)

// author is a Writer with a clock of its own.
type author struct {
	*Writer

	t     *testing.T
	clock *clocktesting.FakeClock
	asOf  time.Time
}

func newAuthor(t *testing.T, path string, s *storagetest.Node) *author {
	t.Helper()
	d := open(t, path)
	d.Load()
	return newAuthorOf(t, d, s)
}

// newAuthorOf is newAuthor in a directory that was loaded.
func newAuthorOf(t *testing.T, d *Dir, s *storagetest.Node) *author {
	t.Helper()
	a := &author{t: t, clock: clocktesting.NewFakeClock(epoch), asOf: epoch}
	a.Writer = &Writer{
		Dir: d, Source: s.View, Live: s.Live(), Revision: s.History.Revision, AsOf: func() time.Time { return a.asOf },
		Clock: a.clock,
	}
	a.prepare(t.Context())
	return a
}

// pass lets time pass, with the upstream there all the while.
func (a *author) pass(time time.Duration) {
	for range int(time / DefaultDelay) {
		a.clock.Step(DefaultDelay)
		a.asOf = a.clock.Now()
		a.tick(a.t.Context())
	}
}

func (a *author) expectWrites(what string, writes uint64) {
	a.t.Helper()
	if got := a.Stats(); got.Writes != writes || got.Errors != 0 {
		a.t.Fatalf("%s: got %+v, want %d writes", what, got, writes)
	}
}

// TestWritesOnlyWhatIsNew, for the flash's sake.
func TestWritesOnlyWhatIsNew(t *testing.T) {
	path := t.TempDir()
	s := liveStore(t, 3)
	a := newAuthor(t, path, s)
	a.pass(10 * time.Minute)
	a.expectWrites("a new directory", 1)
	if a.Stats().Size == 0 || a.Stats().Bytes != uint64(a.Stats().Size) {
		t.Errorf("got %+v", a.Stats())
	}

	s.EndpointSlices().Apply(slice(t, "s001", "10.9.9.9"))
	a.pass(10 * time.Minute)
	a.expectWrites("one change", 2)
	s.NodeLabels().Apply(node(t, "node2", "b", ""))
	a.pass(10 * time.Minute)
	a.expectWrites("what does not concern this node", 2)
	rollout := sliceOf("s001", "10.9.9.9", "10.1.1.2", 7)
	s.EndpointSlices().Apply(rollout)
	a.pass(10 * time.Minute)
	a.expectWrites("a rollout in another site", 2)
	for i := range 10 {
		s.OwnNode().Apply(node(t, "node0", "a", fmt.Sprint(i)))
		a.pass(time.Minute)
	}
	a.expectWrites("reports of the node's status", 2)
	a.pass(2 * time.Hour)
	a.expectWrites("once an hour it is said again as of when it is true", 4)
	asOf := a.asOf
	for range 300 {
		a.clock.Step(time.Minute)
		a.tick(t.Context())
	}
	a.expectWrites("with the upstream away nothing is confirmed", 4)
	closeDir(t, a.Dir)
	if restored := loaded(t, path); restored.AsOf.Before(asOf.Add(-time.Hour)) || restored.AsOf.After(asOf) {
		t.Errorf("the snapshot is as of %s, the upstream was last heard of at %s", restored.AsOf, asOf)
	}

	// The next process begins with the snapshot, and the upstream says the same again; of what it begins with it writes
	// nothing before that.
	d := open(t, path)
	restored, minRevision := d.Load()
	next := emptyStore(minRevision)
	next.Restore(restored)
	next.View.ServeRestored()
	again := newAuthorOf(t, d, next)
	again.clock.SetTime(a.clock.Now())
	again.AsOf = func() time.Time { return asOf }
	pass := func() {
		for range 100 {
			again.clock.Step(DefaultDelay)
			select {
			case <-next.Live():
				again.tick(t.Context())
			default:
			}
		}
	}
	pass()
	svcs, slices3 := objects(t, 3)
	slices3[1] = rollout
	next.Services().Replace(svcs)
	next.EndpointSlices().Replace(slices3)
	next.OwnNode().Replace([]*wire.Object{node(t, "node0", "a", "9")})
	next.NodeLabels().Replace([]*wire.Object{
		node(t, "node0", "a", ""), node(t, "node1", "b", ""), node(t, "node2", "b", ""),
	})
	pass()
	again.expectWrites("a restarted process finds it as it is", 0)
	next.Services().Remove("ns", "s000")
	pass()
	again.expectWrites("and writes what is new", 1)
	closeDir(t, d)
	if got := loaded(t, path); len(sectionOf(got, facts.InputServices).Objects) != 2 ||
		got.Revision != next.History.Revision() {
		t.Errorf("got %+v", got)
	}
}

// TestRevisionsAreWorthASnapshot: an object that went and came back as it was has another revision, which is what a
// client compares.
func TestRevisionsAreWorthASnapshot(t *testing.T) {
	s := liveStore(t, 3)
	a := newAuthor(t, t.TempDir(), s)
	a.pass(10 * time.Minute)
	a.expectWrites("a new directory", 1)
	svcs, _ := objects(t, 3)
	s.Services().Remove("ns", "s001")
	s.Services().Apply(svcs[1])
	a.pass(10 * time.Minute)
	a.expectWrites("deleted and created again", 2)
}

// TestBytesPerHour: a node of a busy cluster.
func TestBytesPerHour(t *testing.T) {
	s := largeStore(t)
	a := newAuthor(t, t.TempDir(), s)
	for hour := range 3 {
		before := a.Stats()
		for i := range 360 {
			s.EndpointSlices().Apply(slice(t, "s001", fmt.Sprintf("10.%d.%d.9", hour, i%256)))
			a.pass(DefaultDelay)
		}
		after := a.Stats()
		bytes := after.Bytes - before.Bytes
		t.Logf("hour %d: %d writes of %d bytes", hour, after.Writes-before.Writes, after.Size)
		if bytes > uint64(HourlyBytes+after.Size) || after.Errors > 0 {
			t.Errorf("%d bytes in an hour, snapshots of %d: %+v", bytes, after.Size, after)
		}
		if bytes < HourlyBytes/2 {
			t.Errorf("%d bytes in an hour: what may be written is not made use of", bytes)
		}
	}
}

// TestBytesPerHourOverRestarts: a process that is started again and again writes no more than one that runs on.
func TestBytesPerHourOverRestarts(t *testing.T) {
	path := t.TempDir()
	s := largeStore(t)
	var bytes uint64
	var size int64
	now := epoch
	for i := range 360 {
		s.EndpointSlices().Apply(slice(t, "s001", fmt.Sprintf("10.8.%d.9", i%256)))
		d := open(t, path)
		d.Load()
		w := &Writer{
			Dir: d, Source: s.View, Live: s.Live(), Revision: s.History.Revision, AsOf: func() time.Time { return now },
		}
		clock := clocktesting.NewFakeClock(now)
		w.Clock = clock
		w.prepare(t.Context())
		clock.Step(DefaultDelay)
		w.tick(t.Context())
		now = clock.Now()
		if got := w.Stats(); got.Writes > 0 {
			bytes, size = bytes+got.Bytes, got.Size
			// the file system's clock is not ours
			if err := os.Chtimes(filepath.Join(path, snapshotFile), now, now); err != nil {
				t.Fatal(err)
			}
		}
		closeDir(t, d)
	}
	if bytes > uint64(HourlyBytes+size) || bytes < HourlyBytes/2 {
		t.Errorf("%d bytes in an hour, snapshots of %d", bytes, size)
	}
}

// TestWritingFails and is tried again; that is known, and said.
func TestWritingFails(t *testing.T) {
	path := t.TempDir()
	s := liveStore(t, 3)
	a := newAuthor(t, path, s)
	aside := filepath.Join(path, snapshotFile+asideSuffix)
	if err := os.Mkdir(aside, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(aside, "full"), 0o700); err != nil {
		t.Fatal(err)
	}
	a.pass(10 * time.Minute)
	if got := a.Stats(); got.Err == nil || got.Errors != 10 || got.Writes != 0 {
		t.Fatalf("got %+v", got)
	}
	if err := os.RemoveAll(aside); err != nil {
		t.Fatal(err)
	}
	a.pass(2 * time.Minute)
	if got := a.Stats(); got.Err != nil || got.Writes != 1 {
		t.Fatalf("got %+v", got)
	}
}

// TestLastWrite: a process that stops writes what it knows, whenever it wrote last, and not more.
func TestLastWrite(t *testing.T) {
	for _, live := range []bool{true, false} {
		path := t.TempDir()
		s := emptyStore(0)
		if live {
			fill(t, s, 3)
		}
		d := open(t, path)
		d.Load()
		w := &Writer{Dir: d, Source: s.View, Live: s.Live(), Revision: s.History.Revision, AsOf: time.Now}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		w.Run(ctx)
		closeDir(t, d)
		if restored := loaded(t, path); (restored != nil) != live {
			t.Errorf("live %v: got %v", live, restored)
		}
	}
}

// TestASnapshotIsNotWrittenOfASnapshot: what is served of the disk is nothing new, and was not confirmed.
func TestASnapshotIsNotWrittenOfASnapshot(t *testing.T) {
	path := saved(t, liveStore(t, 3))
	before, err := os.ReadFile(filepath.Join(path, snapshotFile))
	if err != nil {
		t.Fatal(err)
	}
	d := open(t, path)
	restored, minRevision := d.Load()
	s := emptyStore(minRevision)
	s.Restore(restored)
	s.View.ServeRestored()
	s.SetDeadNodes(map[string]struct{}{"node1": {}})
	w := &Writer{
		Dir: d, Source: s.View, Live: s.Live(), Revision: s.History.Revision, AsOf: time.Now, Delay: time.Millisecond,
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	w.Run(ctx)
	if got := w.Stats(); got.Writes != 0 || got.Errors != 0 || got.Size != int64(len(before)) {
		t.Errorf("got %+v", got)
	}
	if after, err := os.ReadFile(filepath.Join(path, snapshotFile)); err != nil || !bytes.Equal(after, before) {
		t.Errorf("it is not as it was: %v", err)
	}
}

// TestCacheGivesNoDate: a state that came from a cache only is not newer than the snapshot before.
func TestCacheGivesNoDate(t *testing.T) {
	path := t.TempDir()
	s := liveStore(t, 3)
	a := newAuthor(t, path, s)
	a.pass(time.Minute)
	closeDir(t, a.Dir)
	before := loaded(t, path).AsOf

	b := newAuthor(t, path, s)
	b.asOf = time.Time{}
	s.EndpointSlices().Apply(slice(t, "s001", "10.9.9.9"))
	for range 100 {
		b.clock.Step(time.Minute)
		b.tick(t.Context())
	}
	b.expectWrites("a change", 1)
	closeDir(t, b.Dir)
	if state := loaded(t, path); state == nil || !state.AsOf.Equal(before) {
		t.Errorf("dated %v, want %v", state, before)
	}
}
