package snapshot

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/application-grid/application-grid/internal/testkit/storagetest"
	"github.com/application-grid/application-grid/pkg/storage/facts"
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
	d, _, _ := open(t, path)
	return newAuthorOf(t, d, s)
}

// newAuthorOf is newAuthor in a directory that is open.
func newAuthorOf(t *testing.T, d *Dir, s *storagetest.Node) *author {
	t.Helper()
	a := &author{t: t, clock: d.Clock.(*clocktesting.FakeClock), asOf: epoch}
	a.Writer = &Writer{
		Dir: d, Source: s.View, Live: s.Live(), Revision: s.History.Revision, AsOf: func() time.Time { return a.asOf },
	}
	a.Delay = DefaultDelay
	a.reserveRevisions(t.Context())
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
	if a.Stats().Size == 0 || a.Stats().Bytes < uint64(a.Stats().Size) {
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
	d, restored, minRevision := open(t, path)
	next := emptyStore(minRevision)
	next.Restore(restored)
	next.View.AllowRestored()
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

// shuffle changes most of a largeStore.
func shuffle(s *storagetest.Node, seed int) {
	for i := range 16 {
		s.Services().Apply(large(i, seed))
	}
}

// TestBytesPerHour: a busy cluster, in which most of what a node sees changes all the time.
func TestBytesPerHour(t *testing.T) {
	s := largeStore(t)
	a := newAuthor(t, t.TempDir(), s)
	a.pass(time.Minute)
	for hour := range 3 {
		before := a.Stats()
		for i := range 90 {
			shuffle(s, 1000*hour+i)
			a.pass(4 * DefaultDelay)
		}
		after := a.Stats()
		bytes := after.Bytes - before.Bytes
		t.Logf("hour %d: %d writes, %d bytes on the disk", hour, after.Writes-before.Writes, after.Size)
		if most := uint64(HourlyBytes + 2<<20); hour > 0 && bytes > most || bytes > 2*most || after.Errors > 0 {
			t.Errorf("%d bytes in an hour: %+v", bytes, after)
		}
		if bytes < HourlyBytes/2 {
			t.Errorf("%d bytes in an hour: what may be written is not made use of", bytes)
		}
	}
}

// TestSmallChangesAreSmall: one change in a large state writes little, however large the state is.
func TestSmallChangesAreSmall(t *testing.T) {
	s := largeStore(t)
	a := newAuthor(t, t.TempDir(), s)
	a.pass(time.Minute)
	before := a.Stats().Bytes
	for i := range 60 {
		s.EndpointSlices().Apply(slice(t, "s001", fmt.Sprintf("10.8.%d.9", i)))
		a.pass(DefaultDelay)
	}
	if bytes := a.Stats().Bytes - before; a.Stats().Writes < 60 || bytes > 60*4<<10 {
		t.Errorf("60 changes of an endpoint take %d bytes: %+v", bytes, a.Stats())
	}
}

// TestBytesPerHourOverRestarts: a process that is started again and again writes no more than one that runs on.
func TestBytesPerHourOverRestarts(t *testing.T) {
	path := t.TempDir()
	s := largeStore(t)
	var bytes uint64
	now := epoch
	for i := range 90 {
		shuffle(s, i)
		d, _, _ := openAs(t, path, "node0", now)
		w := newAuthorOf(t, d, s)
		w.pass(4 * DefaultDelay)
		now = w.clock.Now()
		bytes += w.Stats().Bytes
		closeDir(t, d)
	}
	// The first hour has the budget of the hour before, too. A write may go beyond it by its own size.
	if most := uint64(2*HourlyBytes + 2<<20); bytes > most || bytes < HourlyBytes/2 {
		t.Errorf("%d bytes in an hour, want %d at most", bytes, most)
	}
}

// TestWritingFails and is tried again; that is known, and said.
func TestWritingFails(t *testing.T) {
	path := t.TempDir()
	s := liveStore(t, 3)
	aside := filepath.Join(path, "store-new")
	if err := os.MkdirAll(filepath.Join(aside, "in the way"), 0o700); err != nil {
		t.Fatal(err)
	}
	a := newAuthor(t, path, s)
	a.pass(10 * time.Minute)
	if got := a.Stats(); got.Err == nil || got.Errors < 9 || got.Errors > 11 || got.Writes != 0 {
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
		d, _, _ := open(t, path)
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

// TestASnapshotIsNotWrittenOfASnapshot: what is served of the disk is nothing new, and was not confirmed. Only the
// reserved revision is written.
func TestASnapshotIsNotWrittenOfASnapshot(t *testing.T) {
	path := saved(t, liveStore(t, 3))
	before := kept(t, path)
	d, restored, minRevision := open(t, path)
	s := emptyStore(minRevision)
	s.Restore(restored)
	s.View.AllowRestored()
	s.SetDoubted(facts.Dead, map[string]struct{}{"node1": {}})
	w := &Writer{
		Dir: d, Source: s.View, Live: s.Live(), Revision: s.History.Revision, AsOf: time.Now, Delay: time.Millisecond,
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	w.Run(ctx)
	if got := w.Stats(); got.Writes != 0 || got.Errors != 0 || got.Size == 0 {
		t.Errorf("got %+v", got)
	}
	after := kept(t, path)
	delete(before, keyRevision)
	delete(after, keyRevision)
	if !maps.EqualFunc(before, after, bytes.Equal) {
		t.Errorf("it is not as it was: %q", after)
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
