package store

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"iter"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

var key32 = bytes.Repeat([]byte{7}, 32)

// keeper is a program that keeps a state in a directory.
type keeper struct {
	*testing.T
	*Store

	dir   string
	key   []byte
	now   time.Time
	state map[string][]byte
}

// keep opens the store in a directory.
func keep(t *testing.T, dir string, key []byte) (*keeper, []error) {
	t.Helper()
	k := &keeper{T: t, dir: dir, key: key, now: time.Unix(1e9, 0)}
	problems := k.reopen()
	t.Cleanup(func() { _ = k.Close() })
	return k, problems
}

func (k *keeper) reopen() (problems []error) {
	if k.Store != nil {
		k.must(k.Close())
	}
	k.Store, k.state, problems = Open(Options{Dir: k.dir, Key: k.key, Lasting: isLasting, HourlyBytes: 32 << 20,
		State: func() iter.Seq2[string, []byte] { return sorted(k.state) }, Now: func() time.Time { return k.now }})
	return problems
}

func (k *keeper) must(err error) {
	k.Helper()
	if err != nil {
		k.Fatal(err)
	}
}

func (k *keeper) put(key string, value []byte) {
	k.Helper()
	k.state[key] = value
	k.must(k.Commit(map[string][]byte{key: value}))
}

// files returns the files of a directory, the newest first.
func files(t *testing.T, dir string) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, prefix+"0*"))
	if err != nil {
		t.Fatal(err)
	}
	slices.Reverse(found)
	return found
}

func change(t *testing.T, file string, with func(data []byte) []byte) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err == nil {
		err = os.WriteFile(file, with(data), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestTornCommitOfPlausibleBytes: whatever a torn commit has, the start is fast, and all before it is there.
func TestTornCommitOfPlausibleBytes(t *testing.T) {
	random := make([]byte, 20<<20)
	_, _ = rand.Read(random)
	for name, value := range map[string][]byte{
		"a length in every place":  bytes.Repeat([]byte{0, 0x0f}, 2<<20),
		"a length in every place2": bytes.Repeat([]byte{0, 0x1f}, 4<<20),
		"anything":                 random,
		"an empty frame":           append(make([]byte, 8), random[:1000]...),
	} {
		for _, key := range [][]byte{nil, key32} {
			k, _ := keep(t, t.TempDir(), key)
			for i := range 50 {
				k.put(fmt.Sprint("pod ", i), []byte("x"))
			}
			k.put("big", value)
			file := files(t, k.dir)[0]
			change(t, file, func(data []byte) []byte { return data[:len(data)-1] })
			began := time.Now()
			problems := k.reopen()
			if took := time.Since(began); took > time.Second {
				t.Errorf("%s: the start took %s", name, took)
			}
			if len(k.state) != 50 || len(problems) != 1 || !strings.Contains(problems[0].Error(), file) {
				t.Errorf("%s: %d of 50 are left, %v", name, len(k.state), problems)
			}
			info, err := os.Stat(file)
			k.must(err)
			lost := fmt.Sprintf(" %d bytes", info.Size()-k.newest.offset)
			if !strings.Contains(problems[0].Error(), lost) {
				t.Errorf("%s: %v, and not%s", name, problems, lost)
			}
			k.put("more", []byte("1"))
			if problems := k.reopen(); len(k.state) != 51 || len(problems) > 0 {
				t.Errorf("%s: %d of 51 are left, %v", name, len(k.state), problems)
			}
		}
	}
}

// TestOpeningWritesNothing: neither a start nor many of them write, and the budget goes on where it was.
func TestOpeningWritesNothing(t *testing.T) {
	k, _ := keep(t, t.TempDir(), nil)
	value := make([]byte, 3<<20)
	for i := 0; k.Left() > 0; i++ {
		_, _ = rand.Read(value)
		k.put("a", value)
	}
	before, err := os.Stat(files(t, k.dir)[0])
	k.must(err)
	for range 5 {
		if problems := k.reopen(); len(problems) > 0 || k.Left() > 0 || k.Written() > 0 {
			t.Fatalf("a start: %d bytes are left, %d were written, %v", k.Left(), k.Written(), problems)
		}
	}
	after, err := os.Stat(files(t, k.dir)[0])
	k.must(err)
	if before.Size() != after.Size() || before.ModTime() != after.ModTime() {
		t.Error("a start has written")
	}
	if k.now = k.now.Add(-time.Hour); k.reopen() != nil || k.Left() > 0 {
		t.Error("a clock that is behind gives a new budget")
	}
	if k.now = k.now.Add(2 * time.Hour); k.reopen() != nil || k.Left() == 0 {
		t.Error("after an hour there is no budget")
	}
}

// TestBudget: two hours of changes every second wear flash no more than the budget allows, whether the disk works or
// its syncs fail, and also if the program restarts every minute.
func TestBudget(t *testing.T) {
	noise := make([]byte, 1<<20+2*3600)
	_, _ = rand.Read(noise)
	for _, size := range []int{1, 100 << 10, 1 << 20} {
		for _, failing := range []bool{false, true} {
			w := newWorld(t, 1)
			w.disk.failing = failing
			for second := range 2 * 3600 {
				w.now = w.now.Add(time.Second)
				value := noise[second : second+size]
				w.state["x"] = value
				if w.store.Left() > 0 {
					_ = w.store.Commit(map[string][]byte{"x": value})
				}
				if second%60 == 0 && !failing {
					w.store, w.state, _ = open(w.options(), w.disk)
				}
			}
			// The first hour has the budget that is left from before, too. A commit may go beyond it by its own size.
			if most := int64(3*32<<20 + 8<<20); w.disk.flash > most || w.disk.flash < most/2 && !failing {
				t.Errorf("%d bytes, failing %v: %d bytes in two hours, want %d at most", size, failing, w.disk.flash,
					most)
			}
		}
	}
}

// TestLargeState: a whole state that is larger than what may be written in an hour is written, and small changes are
// on the disk soon after. However the disk works, flash bears no more than the budget, one commit and one whole state.
func TestLargeState(t *testing.T) {
	const hourly, size, hours = 2 << 20, 4 << 20, 4
	noise := make([]byte, size)
	_, _ = rand.Read(noise)
	for name, change := range map[string][]byte{"small": noise[:10], "large": noise[:100<<10],
		"compressible": bytes.Repeat([]byte("a"), 1<<20)} {
		for _, trouble := range []string{"none", "restarts", "syncs fail"} {
			w := newWorld(t, 1)
			options := w.options()
			options.HourlyBytes = hourly
			w.store, w.state, _ = open(options, w.disk)
			w.state["noise"], w.disk.failing = noise, trouble == "syncs fail"
			_ = w.store.Commit(map[string][]byte{"noise": noise})
			last, longest := w.now, time.Duration(0)
			for second := range hours * 3600 {
				if w.now = w.now.Add(time.Second); w.store.Left() > 0 {
					w.state["x"] = append(fmt.Append(nil, second), change...)
					_ = w.store.Commit(map[string][]byte{"x": w.state["x"]})
					last = w.now
				}
				longest = max(longest, w.now.Sub(last))
				if second%60 == 0 && trouble == "restarts" {
					w.store, w.state, _ = open(options, w.disk)
				}
			}
			if name == "small" && !w.disk.failing && longest > 2*time.Minute {
				t.Errorf("trouble: %s: a change is not on the disk for %s", trouble, longest)
			}
			if most := int64((hours+1)*hourly + size + 2<<20); w.disk.flash > most {
				t.Errorf("%s, trouble: %s: %d bytes in %d hours, want %d at most", name, trouble, w.disk.flash, hours,
					most)
			}
		}
	}
}

// TestKeys: with another key nothing is read and nothing is written, and with the right one everything is there.
func TestKeys(t *testing.T) {
	other := bytes.Repeat([]byte{8}, 32)
	for _, test := range []struct{ wrote, reads []byte }{{nil, key32}, {key32, nil}, {key32, other}} {
		k, _ := keep(t, t.TempDir(), test.wrote)
		k.put("a", []byte("1"))
		k.key = test.reads
		problems := k.reopen()
		if !errors.Is(errors.Join(problems...), ErrKey) || len(k.state) > 0 {
			t.Errorf("%v %v", k.state, problems)
		}
		if text := errors.Join(problems...).Error(); strings.Contains(text, "the file before it is used") {
			t.Errorf("nothing is used, but: %s", text)
		}
		if err := k.Commit(map[string][]byte{"b": {}}); !errors.Is(err, ErrKey) {
			t.Error(err)
		}
		k.key = test.wrote
		if problems := k.reopen(); len(problems) > 0 || string(k.state["a"]) != "1" {
			t.Errorf("%v %v", k.state, problems)
		}
	}
	k, _ := keep(t, t.TempDir(), key32)
	k.put("a", []byte("find me"))
	if data, err := os.ReadFile(files(t, k.dir)[0]); err != nil || bytes.Contains(data, []byte("find me")) {
		t.Error("a sealed file can be read", err)
	}
	if _, problems := keep(t, t.TempDir(), []byte("short")); len(problems) == 0 {
		t.Error("a key of 5 bytes is accepted")
	}
}

// TestForeignVersion: a file of another version stays in place, and what is older than it is not used.
func TestForeignVersion(t *testing.T) {
	k, _ := keep(t, t.TempDir(), nil)
	k.put("a", []byte("1"))
	foreign := filepath.Join(k.dir, name(9))
	content := []byte(magicPrefix + "3 plain \nand whatever it has, which is longer than a head")
	k.must(os.WriteFile(foreign, content, 0o600))
	if problems := k.reopen(); len(k.state) > 0 || len(problems) != 1 || !errors.Is(problems[0], errVersion) {
		t.Fatalf("%v %v", k.state, problems)
	}
	k.put("b", []byte("2"))
	if problems := k.reopen(); len(k.state) != 1 || string(k.state["b"]) != "2" || len(problems) != 1 {
		t.Errorf("%v %v", k.state, problems)
	}
	if data, err := os.ReadFile(foreign); err != nil || !bytes.Equal(data, content) {
		t.Errorf("%q %v", data, err)
	}
}

// TestZerosOverCommits: what a disk loses of commits costs those, and not the state before them; what it loses of the
// first state costs what came after the file before.
func TestZerosOverCommits(t *testing.T) {
	k, _ := keep(t, t.TempDir(), nil)
	value := make([]byte, 30<<10)
	for i := 0; len(files(t, k.dir)) < 2; i++ { // soon there are two generations
		_, _ = rand.Read(value)
		k.put(fmt.Sprint(i), bytes.Clone(value))
		if i > 10 {
			t.Fatal("there is one generation only")
		}
	}
	whole := maps.Clone(k.state)
	end := k.newest.offset
	k.put("more", []byte("1"))
	k.put("gone 1", []byte{})
	whole["gone 1"] = []byte{} // it is in the file before, too
	change(t, files(t, k.dir)[0], func(data []byte) []byte { clear(data[end:]); return data })
	if problems := k.reopen(); !equal(k.state, whole) || len(problems) != 1 {
		t.Errorf("%d of %d keys, %v", len(k.state), len(whole), problems)
	}
	newest := files(t, k.dir)[0]
	change(t, newest, func(data []byte) []byte { clear(data[:100]); return data })
	if problems := k.reopen(); len(k.state) == 0 || len(problems) != 1 ||
		!strings.Contains(problems[0].Error(), newest) {
		t.Errorf("%d keys, %v", len(k.state), problems)
	}
	k.put("again", []byte("1"))
	if problems := k.reopen(); string(k.state["again"]) != "1" || len(problems) > 0 {
		t.Errorf("%v", problems)
	}
}

// TestNowhere: a directory that cannot be made keeps nobody from going on, and is used once it can be made. One that is
// in use is left alone.
func TestNowhere(t *testing.T) {
	parent := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(parent, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	k, problems := keep(t, filepath.Join(parent, "store"), nil)
	if err := k.Commit(map[string][]byte{"a": {}}); len(problems) == 0 || err == nil {
		t.Errorf("%v %v", problems, err)
	}
	k.must(os.Remove(parent))
	k.put("a", []byte("1"))
	second, problems := keep(t, k.dir, nil)
	if !errors.Is(errors.Join(problems...), ErrInUse) || !errors.Is(second.Commit(k.state), ErrInUse) {
		t.Errorf("%v", problems)
	}
	if state, problems := Read(k.dir, nil); !equal(state, k.state) || len(problems) > 0 {
		t.Errorf("%v %v", state, problems)
	}
}

// TestMountedLate: a file system that is mounted on the directory after the start is not written over, and nothing is
// called written that is beneath it. If it is empty, it is used.
func TestMountedLate(t *testing.T) {
	for _, test := range []struct{ before, beneath int }{{1, 1}, {3, 1}, {1, 3}, {0, 2}} {
		parent := t.TempDir()
		dir, mounted := filepath.Join(parent, "store"), filepath.Join(parent, "mounted")
		k, _ := keep(t, mounted, nil)
		for i := range test.before {
			k.put("gone 1", []byte{})
			k.put("a", fmt.Append(nil, i))
			k.must(k.Rewrite())
		}
		before := maps.Clone(k.state)
		k.must(k.Close())
		late, _ := keep(t, dir, nil)
		for range test.beneath {
			late.put("b", []byte("1"))
			late.must(late.Rewrite())
		}
		late.must(os.Rename(dir, filepath.Join(parent, "beneath")))
		late.must(os.Rename(mounted, dir))
		for range 3 {
			late.now = late.now.Add(time.Hour)
			err := errors.Join(late.Commit(map[string][]byte{"b": []byte("2")}), late.Rewrite(),
				late.Commit(map[string][]byte{"gone 2": {}}))
			if (err == nil) != (test.before == 0) {
				t.Errorf("%+v: %v", test, err)
			}
		}
		if test.before == 0 {
			before = map[string][]byte{"b": []byte("1"), "gone 2": {}}
		}
		if state, problems := Read(dir, nil); !equal(state, before) || len(problems) > 0 {
			t.Errorf("%+v: there is %q, %v", test, state, problems)
		}
	}
}

// TestSizes: values of any size come back, a state of several frames is compressed, and what does not fit is refused.
func TestSizes(t *testing.T) {
	for _, key := range [][]byte{nil, key32} {
		k, _ := keep(t, t.TempDir(), key)
		for _, size := range []int{0, 1, 1000, frameSize - 1, frameSize, 3 * frameSize, 10 << 20} {
			k.put(fmt.Sprint(size), bytes.Repeat([]byte("pod "), size/4+1)[:size])
		}
		whole := maps.Clone(k.state)
		if problems := k.reopen(); !equal(k.state, whole) || len(problems) > 0 {
			t.Errorf("%v", problems)
		}
		if info, err := os.Stat(files(t, k.dir)[0]); err != nil || info.Size() > 1<<20 {
			t.Errorf("it is not compressed: %d bytes, %v", info.Size(), err)
		}
		if err := k.Commit(map[string][]byte{"huge": make([]byte, maxFrame)}); !errors.Is(err, errTooBig) {
			t.Error(err)
		}
		k.put("a", []byte("1"))
	}
}

// TestStaleBytes: what a disk has left of another file, at the place where the next commit would be, is no commit.
func TestStaleBytes(t *testing.T) {
	a, _ := keep(t, t.TempDir(), nil)
	b, _ := keep(t, t.TempDir(), nil)
	for _, k := range []*keeper{a, b} {
		k.put("a", []byte("1"))
	}
	end := b.newest.offset
	b.put("stale", []byte("1"))
	stale, err := os.ReadFile(files(t, b.dir)[0])
	b.must(err)
	change(t, files(t, a.dir)[0], func(data []byte) []byte { return append(data, stale[end:]...) })
	if problems := a.reopen(); len(a.state) != 1 || len(problems) != 1 {
		t.Errorf("%q %v", a.state, problems)
	}
}

// TestNoSpaceForTheState: while the whole state cannot be written, because there is no inode or less space than it
// needs, changes are appended, and what is lasting is noted. The state is not tried again every second, and nothing is
// left over.
func TestNoSpaceForTheState(t *testing.T) {
	w := newWorld(t, 1)
	value := make([]byte, 300<<10)
	grow := func() error {
		for i := range value {
			value[i] = byte(w.random.Uint32())
		}
		w.state["x"] = bytes.Clone(value)
		return w.store.Commit(map[string][]byte{"x": w.state["x"]})
	}
	for w.store.newest == nil || w.store.older == nil || !w.store.isLarge(0) {
		if err := grow(); err != nil {
			t.Fatal(err)
		}
	}
	for _, restart := range []bool{false, true} {
		w.disk.noInodes = true
		if restart {
			w.store, w.state, _ = open(w.options(), w.disk)
		}
		tried := w.disk.creates
		for second := range 60 {
			w.now = w.now.Add(time.Second)
			key := fmt.Sprintf("gone %d", second)
			w.state[key] = []byte{}
			if err := errors.Join(grow(), w.store.Commit(map[string][]byte{key: {}})); err != nil {
				t.Fatalf("restarted %v, after %d s: %v", restart, second, err)
			}
		}
		if tried = w.disk.creates - tried; tried < 1 || tried > 3 {
			t.Errorf("restarted %v: the whole state was tried %d times in a minute", restart, tried)
		}
	}
	for grown := 0; grow() == nil; grown += len(value) {
		if grown > 2*maxGrowth {
			t.Fatal("the file grows without end, and is read at each start")
		}
	}
	if err := w.store.Commit(map[string][]byte{"gone x": {}}); err != nil {
		t.Errorf("of a file that may not grow: %v", err)
	}
	w.disk.noInodes = false
	w.now = w.now.Add(time.Minute)
	if err := grow(); err != nil || w.store.isLarge(0) {
		t.Errorf("with space again: %v", err)
	}
	if names := slices.Sorted(maps.Keys(w.disk.now)); len(names) != 2 {
		t.Errorf("left over: %q", names)
	}
	w.disk.full = true
	if err := w.store.Rewrite(); err == nil || w.disk.now[asideName] != nil {
		t.Errorf("on a full disk: %v, and what was written takes space", err)
	}
}

// TestInterruptedStates: files of whole states that were begun, at whatever byte, do not pile up.
func TestInterruptedStates(t *testing.T) {
	k, _ := keep(t, t.TempDir(), nil)
	k.put("a", []byte("1"))
	for i := range 20 {
		k.must(os.WriteFile(filepath.Join(k.dir, asideName), bytes.Repeat([]byte("x"), 1000*i), 0o600))
		if problems := k.reopen(); len(problems) > 0 {
			t.Fatal(problems)
		}
		k.must(k.Rewrite())
	}
	if all, err := os.ReadDir(k.dir); err != nil || len(all) != 2 || string(k.state["a"]) != "1" {
		t.Errorf("there is %v, %v", all, err)
	}
}

// TestReserve: on a disk that gets full, right after the whole state or after a commit, there is space to note what is
// lasting.
func TestReserve(t *testing.T) {
	for _, whole := range []bool{false, true} {
		w := newWorld(t, 1)
		value := make([]byte, 100<<10)
		_, _ = rand.Read(value)
		w.state["x"] = value
		err := w.store.Commit(map[string][]byte{"x": value})
		if whole {
			err = errors.Join(err, w.store.Rewrite())
		} else {
			err = errors.Join(err, w.store.Commit(map[string][]byte{"x": value}))
		}
		if err != nil {
			t.Fatal(err)
		}
		w.disk.full, w.disk.noInodes = true, true
		for i := range 300 {
			key := fmt.Sprintf("gone %d", i)
			w.state[key] = []byte{}
			if err := w.store.Commit(map[string][]byte{key: {}}); err != nil {
				t.Fatalf("whole %v: the %dth has no space: %v", whole, i, err)
			}
		}
		if err := w.store.Commit(map[string][]byte{"y": value}); err == nil {
			t.Errorf("whole %v: what is not lasting takes the reserve", whole)
		}
	}
}

// TestNewestLastingValue: of a lasting key that both generations have, the value of the newest counts.
func TestNewestLastingValue(t *testing.T) {
	k, _ := keep(t, t.TempDir(), nil)
	k.put("a", []byte("1"))
	k.must(k.Rewrite())
	for _, value := range []string{"intended", "done"} {
		k.state["gone 1"] = []byte(value)
		k.must(k.Commit(map[string][]byte{"gone 1": []byte(value)}))
	}
	k.state["gone 2"] = []byte("1")
	k.must(k.Commit(map[string][]byte{"gone 2": []byte("1")}))
	// A loss of power between the commits to the two files leaves this.
	change(t, files(t, k.dir)[1], func(data []byte) []byte { return data[:len(data)*2/3] })
	problems := k.reopen()
	if string(k.state["gone 1"]) != "done" || string(k.state["gone 2"]) != "1" || len(problems) != 1 {
		t.Errorf("got %q, %v", k.state, problems)
	}
}

// TestRewriteIsNewer than every commit before it: what a state no longer has is not found in the older file.
func TestRewriteIsNewer(t *testing.T) {
	k, _ := keep(t, t.TempDir(), nil)
	k.put("a", []byte("1"))
	k.put("gone 1", []byte("done"))
	delete(k.state, "gone 1")
	k.must(k.Rewrite())
	if problems := k.reopen(); len(k.state) != 1 || len(problems) != 0 {
		t.Errorf("got %q, %v", k.state, problems)
	}
	if left := len(files(t, k.dir)); left != 2 {
		t.Errorf("%d files", left)
	}
}

// TestRotOverARemoval: what is removed of a lasting key counts, although the commit that removed it is damaged in the
// newest file, and so is the one after it.
func TestRotOverARemoval(t *testing.T) {
	k, _ := keep(t, t.TempDir(), nil)
	k.put("a", []byte("1"))
	k.must(k.Rewrite())
	k.put("gone 1", []byte("intended"))
	k.put("gone 2", []byte("intended"))
	end := k.newest.offset
	delete(k.state, "gone 1")
	k.must(k.Commit(map[string][]byte{"gone 1": nil}))
	k.put("gone 2", []byte("done"))
	k.put("a", []byte("2"))
	change(t, files(t, k.dir)[0], func(data []byte) []byte { data[end+20] ^= 1; return data })
	for _, a := range []string{"1", "3"} { // also after what comes later in the newest file
		problems := k.reopen()
		if _, there := k.state["gone 1"]; there || string(k.state["gone 2"]) != "done" || string(k.state["a"]) != a {
			t.Errorf("got %q, %v", k.state, problems)
		}
		k.put("a", []byte("3"))
	}
	k.must(k.Rewrite())
	change(t, files(t, k.dir)[0], func(data []byte) []byte { clear(data[:100]); return data })
	problems := k.reopen()
	if _, there := k.state["gone 1"]; there || string(k.state["gone 2"]) != "done" || len(problems) == 0 {
		t.Errorf("when the next file rots as well: %q, %v", k.state, problems)
	}
}

// TestReadOnlyForAWhile: a file that could not be opened on a read-only disk is used again, without a whole state.
func TestReadOnlyForAWhile(t *testing.T) {
	w := newWorld(t, 1)
	commit := func() error { return w.store.Commit(map[string][]byte{"gone 1": {}}) }
	if err := commit(); err != nil {
		t.Fatal(err)
	}
	w.disk.readOnly = true
	if err := commit(); err == nil {
		t.Error("it is on a read-only disk")
	}
	w.disk.readOnly, w.disk.full = false, true
	if err := commit(); err != nil {
		t.Errorf("in the reserved space: %v", err)
	}
}

// TestFailedWriteIsNoDamage: what a full disk has left of a commit is gone when the next one is on the disk.
func TestFailedWriteIsNoDamage(t *testing.T) {
	for seed := range uint64(30) {
		w := newWorld(t, seed)
		if err := w.store.Commit(map[string][]byte{"key": {}}); err != nil {
			t.Fatal(err)
		}
		random := make([]byte, 2*reserveSize)
		for i := range random {
			random[i] = byte(w.random.Uint32())
		}
		w.disk.full = true
		if err := w.store.Commit(map[string][]byte{"gone 1": random}); err == nil {
			t.Fatal("it is on a full disk")
		}
		w.disk.full = false
		w.now = w.now.Add(time.Minute)
		if err := w.store.Commit(map[string][]byte{"another": {}}); err != nil {
			t.Fatal(err)
		}
		_, state, problems := open(w.options(), w.disk)
		if _, ok := state["another"]; !ok || len(problems) > 0 {
			t.Errorf("seed %d: %q, %v", seed, state, problems)
		}
	}
}

// TestStartsInTimeOfTheState: values that compress to almost nothing, and change again and again, do not make the next
// start take much longer than reading the state takes.
func TestStartsInTimeOfTheState(t *testing.T) {
	const size, commits = 1 << 20, 60
	w := newWorld(t, 1)
	noise := make([]byte, size)
	for i := range noise {
		noise[i] = byte(w.random.Uint32())
	}
	w.state["noise"] = noise
	for i := range commits {
		w.state["letters"] = append(fmt.Appendf(nil, "%d", i), bytes.Repeat([]byte("a"), size)...)
		if err := w.store.Commit(map[string][]byte{"letters": w.state["letters"]}); err != nil {
			t.Fatal(err)
		}
	}
	for name, node := range w.disk.now {
		from, inflated := bytes.NewReader(node.seen), 0
		c := w.store.start
		if _, err := fmt.Sscanf(name, prefix+"%x", &c.generation); err != nil {
			t.Fatal(err)
		}
		if err := c.readHead(from, int64(len(node.seen))); err != nil {
			t.Fatal(err)
		}
		for from.Len() > 0 {
			entries, _, err := c.readFrame(from, int64(from.Len()))
			if err != nil {
				t.Fatal(err)
			}
			inflated += len(entries)
		}
		if limit := 3*2*size + inflation*slack + 2*size; inflated > limit {
			t.Errorf("%s has %d bytes to read, of a state of %d", name, inflated, 2*size)
		}
	}
}

// TestFileIsGone: a commit to a file that somebody has removed writes the whole state at once.
func TestFileIsGone(t *testing.T) {
	k, _ := keep(t, t.TempDir(), nil)
	k.put("a", []byte("1"))
	k.must(os.Remove(files(t, k.dir)[0]))
	k.put("b", []byte("2"))
	if problems := k.reopen(); len(k.state) != 2 || len(problems) > 0 {
		t.Errorf("%q, %v", k.state, problems)
	}
}

// TestDirectoryIsGone: a store whose directory somebody has removed writes the whole state, also if nothing changes.
func TestDirectoryIsGone(t *testing.T) {
	k, _ := keep(t, filepath.Join(t.TempDir(), "store"), nil)
	k.put("a", []byte("1"))
	k.must(os.RemoveAll(k.dir))
	k.must(k.Commit(nil))
	if problems := k.reopen(); len(k.state) != 1 || len(problems) > 0 {
		t.Errorf("%q, %v", k.state, problems)
	}
}

// sticky is a disk that does not let files go.
type sticky struct {
	*model

	sticks bool
}

func (s *sticky) Remove(name string) error {
	if s.sticks {
		return errIO
	}
	return s.model.Remove(name)
}

// TestOldFileDoesNotGo: while a file cannot be removed that may lack lasting keys, no lasting key is said to be on the
// disk. It goes when it can.
func TestOldFileDoesNotGo(t *testing.T) {
	w := newWorld(t, 1)
	disk := &sticky{model: w.disk}
	w.store, _, _ = open(w.options(), disk)
	commit := func(key string) error {
		w.state[key] = []byte{}
		return w.store.Commit(map[string][]byte{key: {}})
	}
	disk.sticks = true
	for range 3 { // the third leaves the first without use
		if err := w.store.Rewrite(); err != nil {
			t.Fatal(err)
		}
	}
	if err := commit("gone 1"); err == nil {
		t.Error("it is on the disk, beside an old file")
	}
	disk.sticks = false
	if err := commit("gone 2"); err != nil || len(disk.now) != 2 {
		t.Errorf("%v, with %d files", err, len(disk.now))
	}
}

// crowded is a disk that is full of a temporary file.
type crowded struct{ *model }

func (c crowded) Remove(name string) error {
	c.full = c.full && name != asideName
	return c.model.Remove(name)
}

// TestInterruptedStateOnAFullDisk: the temporary file of a state that a loss of power has interrupted does not keep the
// space that changes need.
func TestInterruptedStateOnAFullDisk(t *testing.T) {
	disk := newModel(nil) // no power is lost, so nothing is at random
	state := map[string][]byte{"a": []byte("1")}
	o := Options{Dir: "dir", State: func() iter.Seq2[string, []byte] { return sorted(state) }, HourlyBytes: 32 << 20}
	s, _, _ := open(o, disk)
	if err := s.Commit(state); err != nil {
		t.Fatal(err)
	}
	if _, err := disk.Create(asideName); err != nil {
		t.Fatal(err)
	}
	disk.full = true
	s, _, _ = open(o, crowded{disk})
	state["b"] = make([]byte, reserveSize)
	for range 2 {
		if err := s.Commit(state); err == nil {
			return
		}
	}
	t.Error("the disk stays full")
}
