package snapshot

import (
	"bytes"
	"errors"
	"fmt"
	"hash/maphash"
	"iter"
	"strconv"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/utils/clock"

	"github.com/application-grid/application-grid/pkg/program/store"
	"github.com/application-grid/application-grid/pkg/storage/facts"
)

const (
	// reserve is how many revisions a process may give out before it must reserve more.
	reserve = 1 << 32
	// maxCommit is how many bytes of changes one commit may have, because they are in memory. If there are more, the
	// whole State is written, object by object.
	maxCommit = 1 << 20
	// refreshAfter is how old the AsOf of the snapshot may become before an unchanged state is written again.
	refreshAfter = time.Hour
)

// Options configure a Dir.
type Options struct {
	Path, NodeName string
	// Clock is the real clock if nil.
	Clock  clock.WithTicker
	Logger logr.Logger
}

// Dir is the state directory of a node. Its methods must not be called concurrently.
type Dir struct {
	Options

	store *store.Store
	// reserved is the revision that the store has, or is about to have.
	reserved uint64
	// content is the content that Save is writing; empty otherwise. Before the first Save it is the content of the
	// store.
	content content
	// digests has the digest of each value of the store, except keyMark and keyRevision. It is nil if what the store
	// has cannot be used: then the next Save writes everything.
	digests map[string]uint64
	seed    maphash.Seed
	// asOf is the AsOf of the Snapshot that the store has.
	asOf time.Time
	// former is set while files of the former format may exist.
	former bool
}

// ErrInUse means that another process has locked the state directory.
var ErrInUse = errors.New("another process uses the state directory; give each its own --state-dir")

// Open locks a state directory for this process, until Close, and reads it. state is nil without a usable snapshot.
// minRevision is at least as large as every revision that earlier processes gave out, as far as the directory shows.
// Other problems are only logged. The error is ErrInUse.
func Open(o Options) (d *Dir, state *facts.Snapshot, minRevision uint64, err error) {
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	d = &Dir{Options: o, digests: map[string]uint64{}, seed: maphash.MakeSeed(), former: true}
	var kept map[string][]byte
	var problems []error
	d.store, kept, problems = store.Open(store.Options{Dir: o.Path, Lasting: isLasting, State: d.everything,
		HourlyBytes: HourlyBytes, Now: o.Clock.Now})
	if errors.Is(d.store.Commit(nil), store.ErrInUse) {
		return d, nil, 0, ErrInUse
	}
	for _, problem := range problems {
		o.Logger.Error(problem, "Not all of the state directory can be used, or nothing can be written",
			"directory", o.Path)
	}
	for key, value := range kept {
		if key != keyMark && key != keyRevision {
			d.digests[key] = maphash.Bytes(d.seed, value)
		}
	}
	if len(kept) > 0 {
		d.content, err = parse(kept)
		var revisionErr error
		d.reserved, revisionErr = parseRevision(kept[keyRevision])
		err = errors.Join(err, revisionErr)
	} else {
		d.content, d.reserved, err = d.readFormer()
	}
	if err == nil && d.content.Snapshot != nil && d.content.NodeName != o.NodeName {
		err = fmt.Errorf("it is of node %q, and this is node %q", d.content.NodeName, o.NodeName)
	}
	if err != nil {
		o.Logger.Error(err, "Not using the snapshot of the state directory", "directory", o.Path)
		d.content, d.digests = content{}, nil
	}
	if state = d.content.Snapshot; state != nil {
		d.asOf = state.AsOf
	}
	return d, state, d.reserved, nil
}

// Close unlocks the directory.
func (d *Dir) Close() error { return d.store.Close() }

// everything yields all keys and values, for when the store rewrites everything.
func (d *Dir) everything() iter.Seq2[string, []byte] {
	return func(yield func(string, []byte) bool) {
		if yield(keyRevision, strconv.AppendUint(nil, d.reserved, 10)) {
			d.content.entries()(yield)
		}
	}
}

// reserveRevisions makes sure that the next process begins above revision, and above as many revisions after it as this
// process may give out until it calls reserveRevisions again. It is called before the first Save, and by Save.
func (d *Dir) reserveRevisions(revision uint64) error {
	if revision+reserve/2 <= d.reserved {
		return nil
	}
	before := d.reserved
	d.reserved = revision + reserve
	err := d.store.Commit(map[string][]byte{keyRevision: strconv.AppendUint(nil, d.reserved, 10)})
	if err != nil {
		d.reserved = before
		return fmt.Errorf("reserving revisions: %w", err)
	}
	d.removeFormer()
	return nil
}

// Save writes the differences between what the store has and a Snapshot. It writes only if there are any, or if the
// AsOf of the snapshot is too old, and reports whether it did.
func (d *Dir) Save(state *facts.Snapshot, revision uint64) (written bool, err error) {
	if d.content, err = contentOf(state); err != nil {
		return false, fmt.Errorf("encoding the snapshot: %w", err)
	}
	defer func() { d.content = content{} }()
	if err := d.reserveRevisions(revision); err != nil {
		return false, err
	}
	changes, digests, size := d.changes()
	if len(changes) == 0 && state.AsOf.Sub(d.asOf) < refreshAfter {
		return false, nil
	}
	if size > maxCommit || d.digests == nil {
		err = d.store.Rewrite()
	} else {
		changes[keyMark] = d.content.mark
		err = d.store.Commit(changes)
	}
	if err != nil {
		return false, fmt.Errorf("writing the snapshot: %w", err)
	}
	d.digests, d.asOf = digests, state.AsOf
	d.removeFormer()
	return true, nil
}

// changes returns the entries of the content that the store does not have, the digests of all entries, and the size of
// the changes. Changes beyond maxCommit are left out.
func (d *Dir) changes() (changes map[string][]byte, digests map[string]uint64, size int) {
	changes, digests = map[string][]byte{}, make(map[string]uint64, len(d.digests))
	for key, value := range d.content.entries() {
		if key == keyMark {
			continue
		}
		digest := maphash.Bytes(d.seed, value)
		digests[key] = digest
		if before, ok := d.digests[key]; ok && before == digest {
			continue
		}
		if size += len(key) + len(value); size <= maxCommit {
			changes[key] = bytes.Clone(value)
		}
	}
	for key := range d.digests {
		if _, ok := digests[key]; !ok {
			changes[key] = nil
		}
	}
	return changes, digests, size
}

// Read reads the snapshot of a directory that another process may use; nil if it has none.
func Read(path string) (*facts.Snapshot, error) {
	kept, _ := store.Read(path, nil) // the end of a file that is being written counts as a problem
	c, err := parse(kept)
	return c.Snapshot, err
}
