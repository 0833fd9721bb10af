package store

import (
	"bytes"
	"flag"
	"fmt"
	"iter"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

var worlds = flag.Int("store.worlds", 40, "how many random worlds the oracle plays")

func isLasting(key string) bool { return strings.HasPrefix(key, "gone ") }

// world is a program that keeps its state in a store, on a disk that fails.
type world struct {
	*testing.T
	seed   uint64
	random *rand.Rand
	disk   *model
	key    []byte
	store  *Store
	now    time.Time

	// state is the program's, pending what is not on the disk of it.
	state, pending map[string][]byte
	// history has each state without what is lasting that a commit was tried with, acked the first that may be found.
	history []map[string][]byte
	acked   int
	// in has the number of the newest of these states that is in each generation for sure.
	in map[uint64]int
	// lasting has the lasting keys of which it is sure whether they are on the disk, false for removed ones.
	lasting map[string]bool
	gone    int
	// room is set while a disk that may be full now had space when the last commit was made.
	room bool
	// unsaid are changes of lasting keys that could not be committed yet.
	unsaid map[string][]byte
	// copies are of the disk, with what was sure then.
	copies []worldCopy
	// cuts counts the losses of power, kept what was lasting before each of them.
	cuts, kept int
}

type worldCopy struct {
	disk    map[string]*inode
	lasting map[string]bool
	history []map[string][]byte
}

func newWorld(t *testing.T, seed uint64) *world {
	t.Helper()
	random := rand.New(rand.NewPCG(seed, 43))
	w := &world{T: t, seed: seed, random: random, disk: newModel(random), now: time.Unix(1e9, 0),
		history: []map[string][]byte{{}}, in: map[uint64]int{}, lasting: map[string]bool{}}
	if seed%3 == 0 {
		w.key = bytes.Repeat([]byte{7}, 32)
	}
	w.open()
	return w
}

func (w *world) options() Options {
	return Options{Dir: "dir", Key: w.key, Lasting: isLasting, HourlyBytes: 32 << 20,
		State: func() iter.Seq2[string, []byte] { return sorted(w.state) },
		Now:   func() time.Time { return w.now }}
}

// split divides a state into what is lasting and the rest.
func split(state map[string][]byte) (rest map[string][]byte, lasting map[string]bool) {
	rest, lasting = map[string][]byte{}, map[string]bool{}
	for key, value := range state {
		if isLasting(key) {
			lasting[key] = true
		} else {
			rest[key] = value
		}
	}
	return rest, lasting
}

func equal(a, b map[string][]byte) bool { return maps.EqualFunc(a, b, bytes.Equal) }

// open is a start of the program, and judges what it finds.
func (w *world) open() []error {
	began := time.Now()
	var found map[string][]byte
	var problems []error
	w.store, found, problems = open(w.options(), w.disk)
	if took := time.Since(began); took > 5*time.Second {
		w.Fatalf("seed %d: the start took %s", w.seed, took)
	}
	rest, lasting := split(found)
	at := -1
	for i := len(w.history) - 1; i >= w.acked && at < 0; i-- {
		if equal(w.history[i], rest) {
			at = i
		}
	}
	if at < 0 {
		w.Fatalf("seed %d: after a crash there is what was not committed, or is older than what was said to be on "+
			"the disk: %v %v", w.seed, slices.Sorted(maps.Keys(rest)), problems)
	}
	for key, there := range w.lasting {
		if lasting[key] != there {
			w.Fatalf("seed %d: %s is on the disk: %v, and was to be: %v: %v", w.seed, key, lasting[key], there,
				problems)
		}
	}
	w.state, w.pending, w.unsaid, w.room = found, map[string][]byte{}, nil, false
	w.history, w.acked = append(w.history[:0:0], w.history[:at+1]...), at
	w.sure()
	return problems
}

// sure notes that the newest generation has what is on the disk for sure.
func (w *world) sure() {
	if w.store.newest != nil {
		w.in[w.store.newest.generation] = w.acked
	}
}

// crash is a loss of power.
func (w *world) crash() {
	w.disk.crash()
	w.cuts++
	w.kept += len(w.lasting)
}

func (w *world) change() {
	key := fmt.Sprintf("key %d", w.random.IntN(12))
	if w.random.IntN(4) == 0 {
		delete(w.state, key)
		w.pending[key] = nil
		return
	}
	value := make([]byte, w.random.IntN(12<<10))
	if w.random.IntN(40) == 0 {
		value = make([]byte, 300<<10)
	}
	if w.random.IntN(2) == 0 {
		for i := range value {
			value[i] = byte(w.random.Uint32())
		}
	}
	w.state[key], w.pending[key] = value, value
}

func (w *world) commit() {
	rest, _ := split(w.state)
	w.history = append(w.history, rest)
	commit := func() error { return w.store.Commit(w.pending) }
	if w.random.IntN(8) == 0 {
		commit = w.store.Rewrite
	}
	if len(w.pending) > 0 && commit() == nil {
		w.acked = len(w.history) - 1
		w.sure()
		w.pending = map[string][]byte{}
		w.room = !w.disk.full && !w.disk.failing
	}
}

// confirm commits a lasting key, or removes one.
func (w *world) confirm() {
	changes := w.unsaid
	w.unsaid = nil
	if changes == nil {
		changes = map[string][]byte{}
	}
	if _, there := split(w.state); len(there) > 0 && w.random.IntN(3) == 0 {
		keys := slices.Sorted(maps.Keys(there))
		key := keys[w.random.IntN(len(keys))]
		delete(w.state, key)
		changes[key] = nil
	} else {
		key := fmt.Sprintf("gone %d", w.gone)
		w.gone++
		w.state[key], changes[key] = []byte{}, []byte{}
	}
	rest, _ := split(w.state)
	w.history = append(w.history, rest) // the state may be written as a whole
	err := w.store.Commit(changes)
	for key, value := range changes {
		if w.lasting[key] = value != nil; err != nil {
			delete(w.lasting, key)
		}
	}
	if err != nil {
		if w.room && !w.disk.failing && !w.disk.readOnly {
			w.Fatalf("seed %d: on a full disk what is lasting has no space: %v", w.seed, err)
		}
		w.unsaid = changes
	}
}

func (w *world) trouble() {
	d := w.disk
	w.room = w.room && !d.failing
	d.full, d.noInodes, d.readOnly, d.failing = false, false, false, false
	switch w.random.IntN(8) {
	case 0:
		d.full = true
	case 1:
		d.noInodes = true
	case 2:
		d.readOnly = true
	case 3, 4:
		d.failing = true
	}
}

// rot damages the newest file, or lets it be unreadable at one start. The one before it has an older state, and what is
// lasting.
func (w *world) rot() {
	if w.store.older == nil || w.store.newest == nil {
		return
	}
	before := w.store.newest
	w.crash()
	node := w.disk.now[name(before.generation)]
	if node == nil || int64(len(node.seen)) < before.first.offset {
		w.Fatalf("seed %d: a file that was synced is lost", w.seed)
	}
	if w.random.IntN(3) == 0 { // it can be read again later, if it is still there then
		history := w.history
		w.disk.unreadable, w.acked = name(before.generation), w.in[w.store.older.generation]
		w.open()
		w.disk.unreadable, w.history = "", history
		return
	}
	at := w.random.Int64N(before.first.offset)
	switch w.random.IntN(3) {
	case 0:
		at = w.random.Int64N(int64(headSize))
	case 1:
		at = w.random.Int64N(int64(len(node.seen)))
	}
	node.seen[at] ^= 1 << w.random.IntN(8)
	node.safe = bytes.Clone(node.seen)
	w.acked = w.in[w.store.older.generation]
	w.in[before.generation] = w.acked // what it has of later states is not known
	if problems := w.open(); len(problems) == 0 {
		w.Fatalf("seed %d: nobody says that a file is damaged", w.seed)
	}
}

// unlist has a start before the directory is mounted: nothing says which files there are, or another directory is in
// its place. What is said until the next start may be lost, but nothing of what was there.
func (w *world) unlist() {
	w.crash()
	known, state := w.state, map[string][]byte{"key 0": {}, "gone late": {}}
	early := w.random.IntN(2) == 0
	there, safe := w.disk.now, w.disk.safe
	if w.disk.unlisted = !early; early { // there is another directory at the path
		w.disk.now, w.disk.safe = map[string]*inode{}, map[string]*inode{}
	}
	late, found, problems := open(Options{Dir: "dir", Key: w.key, Lasting: isLasting, HourlyBytes: 32 << 20,
		State: func() iter.Seq2[string, []byte] { return sorted(state) }, Now: w.options().Now}, w.disk)
	if len(found) > 0 || len(problems) == 0 && !early {
		w.Fatalf("seed %d: nobody says that a directory cannot be read", w.seed)
	}
	if w.disk.unlisted = false; early {
		for range w.random.IntN(6) {
			_ = late.Rewrite()
		}
		w.disk.now, w.disk.safe, w.disk.steps = there, safe, nil
		w.disk.mounts++
	}
	for key, value := range state {
		if err := late.Commit(map[string][]byte{key: value}); err == nil && len(known) > 0 {
			w.Fatalf("seed %d: what there was is replaced", w.seed)
		}
	}
	w.open()
}

// rollback puts an older copy of the disk in its place.
func (w *world) rollback() {
	if len(w.copies) == 0 {
		return
	}
	from := w.copies[w.random.IntN(len(w.copies))]
	w.disk.safe = map[string]*inode{}
	for name, node := range from.disk {
		w.disk.safe[name] = &inode{seen: bytes.Clone(node.safe), safe: bytes.Clone(node.safe)}
	}
	w.disk.steps, w.disk.now = nil, maps.Clone(w.disk.safe)
	w.acked, w.in = 0, map[uint64]int{}
	w.lasting, w.history = maps.Clone(from.lasting), slices.Clone(from.history)
	w.open()
}

// bounds judges what is on the disk.
func (w *world) bounds() {
	size, files := int64(0), len(w.disk.now)
	for _, node := range w.disk.now {
		size += int64(len(node.seen))
	}
	const state = 13 * 300 << 10
	if limit := int64(4 * (3*state + slack)); files > 5 || size > limit {
		w.Fatalf("seed %d: %d files of %d bytes, want %d at most", w.seed, files, size, limit)
	}
}

// TestOracle plays a program on a disk that is full, read-only or fails, and loses its power at any moment. After each
// start the state is one that a commit was tried with, and not older than the last one of which Commit said that it is
// on the disk. What is lasting is never lost, also if the first state of the newest file rots.
func TestOracle(t *testing.T) {
	cuts, kept := 0, 0
	for seed := range uint64(*worlds) {
		w := newWorld(t, seed)
		for range 150 {
			w.now = w.now.Add(time.Duration(w.random.IntN(60)) * time.Second)
			switch w.random.IntN(30) {
			case 0, 1:
				w.crash()
				w.open()
			case 2:
				w.trouble()
			case 3:
				w.rot()
			case 4:
				w.copies = append(w.copies, worldCopy{w.disk.copy(), maps.Clone(w.lasting), slices.Clone(w.history)})
			case 5:
				if w.random.IntN(4) == 0 {
					w.rollback()
				}
			case 6:
				if w.store.newest != nil {
					w.unlist()
				}
			case 7, 8:
				w.confirm()
			case 9, 10, 11, 12, 13, 14:
				w.commit()
			default:
				w.change()
			}
			w.bounds()
		}
		cuts, kept = cuts+w.cuts, kept+w.kept
	}
	t.Logf("%d losses of power, after which %d lasting keys were there", cuts, kept)
	if cuts < 5**worlds || kept < 20**worlds {
		t.Error("these are too few")
	}
}

// TestUncertainRename: while the name of a new file may or may not be on the disk, what is committed is found,
// whichever of the two files a loss of power leaves.
func TestUncertainRename(t *testing.T) {
	uncertain := 0
	for seed := range uint64(120) {
		w := newWorld(t, seed)
		for range 3 {
			w.change()
			w.commit()
		}
		w.disk.failing = true
		names := len(w.disk.steps)
		if err := w.store.Rewrite(); err != nil && len(w.disk.steps) > names {
			uncertain++
		}
		w.disk.failing, w.room = false, false
		w.now = w.now.Add(time.Second) // no whole state is tried again yet
		for range 3 {
			w.change()
			w.commit()
			w.confirm()
		}
		w.disk.crash()
		w.open()
	}
	if uncertain < 30 {
		t.Errorf("%d of 120 worlds had what is to be judged", uncertain)
	}
}
