package journal

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func isLasting(key string) bool { return strings.HasPrefix(key, "gone ") }

// open opens a journal that the test closes.
func open(t *testing.T, dir string, key []byte) (*Journal, map[string][]byte, []error) {
	t.Helper()
	j, state, problems, err := Open(dir, key, isLasting)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = j.Close() })
	return j, state, problems
}

func equal(a, b map[string][]byte) bool { return maps.EqualFunc(a, b, bytes.Equal) }

// copyDir copies what is on the disk, as after a loss of power.
func copyDir(t *testing.T, from string) string {
	t.Helper()
	to := t.TempDir()
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	return to
}

func newestFile(t *testing.T, dir string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, prefix+"*"))
	if err != nil || len(found) == 0 {
		t.Fatalf("%q %v", found, err)
	}
	return slices.Max(found)
}

var key32 = bytes.Repeat([]byte{7}, 32)

// writer is a journal that is written at random.
type writer struct {
	*testing.T
	random *rand.Rand
	dir    string
	key    []byte

	journal *Journal
	state   map[string][]byte
	// history has all states that were committed, gone the keys that are lasting.
	history []map[string][]byte
	gone    []string
}

func (w *writer) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// step commits something, rewrites the journal, or opens it again.
func (w *writer) step() {
	switch w.random.IntN(12) {
	case 0:
		w.must(w.journal.Rewrite(w.state))
	case 1:
		w.must(w.journal.Close())
		var found map[string][]byte
		if w.journal, found, _ = open(w.T, w.dir, w.key); !equal(found, w.state) {
			w.Fatalf("a restart found\n%q\nnot\n%q", found, w.state)
		}
	case 2:
		name := fmt.Sprintf("gone %d", len(w.gone))
		w.gone = append(w.gone, name)
		w.commit(map[string][]byte{name: {}}, w.journal.CommitToBoth)
	default:
		changes := map[string][]byte{}
		for range 1 + w.random.IntN(4) {
			name := fmt.Sprintf("key %d", w.random.IntN(9))
			changes[name] = bytes.Repeat([]byte{byte(w.random.IntN(256))}, w.random.IntN(60))
			if w.random.IntN(4) == 0 {
				changes[name] = nil
			}
		}
		w.commit(changes, w.journal.Commit)
	}
}

func (w *writer) commit(changes map[string][]byte, commit func(map[string][]byte) error) {
	w.must(commit(changes))
	maps.Copy(w.state, changes)
	maps.DeleteFunc(w.state, func(_ string, value []byte) bool { return value == nil })
	w.history = append(w.history, maps.Clone(w.state))
}

// wasCommitted reports whether a state was committed. What is lasting may come from a later moment.
func (w *writer) wasCommitted(found map[string][]byte) bool {
	return slices.ContainsFunc(w.history, func(past map[string][]byte) bool {
		past = maps.Clone(past)
		for _, name := range w.gone {
			delete(past, name)
			if value, ok := found[name]; ok {
				past[name] = value
			}
		}
		return equal(past, found)
	})
}

// damage makes a copy whose newest file is cut off, or has another bit.
func (w *writer) damage() (path string, flipped bool) {
	path = newestFile(w.T, copyDir(w.T, w.dir))
	data, err := os.ReadFile(path)
	w.must(err)
	if flipped = w.random.IntN(2) == 0; flipped {
		data[w.random.IntN(len(data))] ^= 1 << w.random.IntN(8)
	} else {
		data = data[:w.random.IntN(len(data)+1)]
	}
	w.must(os.WriteFile(path, data, 0o600))
	return path, flipped
}

// crash opens a damaged copy, and goes on from there.
func (w *writer) crash() {
	path, flipped := w.damage()
	dir := filepath.Dir(path)
	after, found, problems, err := Open(dir, w.key, isLasting)
	if errors.Is(err, ErrKey) && flipped {
		return // the bit made it look like the other kind; it is refused and named
	}
	w.must(err)
	if !w.wasCommitted(found) {
		w.Fatalf("what is found was never committed: %q", found)
	}
	for _, problem := range problems {
		_, err := os.Stat(path + damagedSuffix)
		said := problem.Error()
		if !strings.Contains(said, path) || (err != nil && strings.Contains(said, damagedSuffix)) {
			w.Fatalf("%s is damaged: %v; %v", path, problem, err)
		}
	}
	if flipped && len(problems) == 0 && len(found) == 0 && len(w.state) > 0 {
		w.Fatal("a damaged journal is empty, and nothing is said")
	}
	if w.journal.older != nil || (flipped && len(problems) == 0) {
		for _, name := range w.gone {
			if _, ok := found[name]; !ok {
				w.Fatalf("%q is forgotten", name)
			}
		}
	}
	found["after"] = []byte("x")
	w.must(after.Commit(map[string][]byte{"after": found["after"]}))
	w.must(after.Close())
	again, once, _ := open(w.T, dir, w.key)
	if !equal(once, found) {
		w.Fatalf("after a crash and a commit there is %q, not %q", once, found)
	}
	w.must(again.Close())
}

// TestEveryPrefixIsACommit: whatever of the newest file has reached the disk, what is read is a state that was
// committed, and what is lasting is never lost, also over restarts, rewrites and a damaged byte anywhere.
func TestEveryPrefixIsACommit(t *testing.T) {
	for seed := range uint64(10) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			w := &writer{T: t, random: rand.New(rand.NewPCG(seed, 0)), dir: t.TempDir()}
			if seed%2 == 1 {
				w.key = key32
			}
			w.journal, w.state, _ = open(t, w.dir, w.key)
			w.history = append(w.history, maps.Clone(w.state))
			for range 5 + w.random.IntN(40) {
				w.step()
			}
			for range 25 {
				w.crash()
			}
		})
	}
}

// TestOtherKeys are refused, and change nothing.
func TestOtherKeys(t *testing.T) {
	other := bytes.Repeat([]byte{8}, 32)
	for _, keys := range [][2][]byte{{nil, key32}, {key32, nil}, {key32, other}} {
		dir := t.TempDir()
		j, _, _ := open(t, dir, keys[0])
		if err := j.Commit(map[string][]byte{"password": []byte("open sesame")}); err != nil {
			t.Fatal(err)
		}
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(newestFile(t, dir))
		if err != nil || (keys[0] != nil) == bytes.Contains(data, []byte("sesame")) {
			t.Errorf("the file is sealed or not, as it should not be: %v", err)
		}
		if _, _, _, err := Open(dir, keys[1], isLasting); !errors.Is(err, ErrKey) {
			t.Errorf("got %v", err)
		}
		if _, state, _ := open(t, dir, keys[0]); string(state["password"]) != "open sesame" {
			t.Errorf("the right key finds %q", state)
		}
	}
}

func TestInUse(t *testing.T) {
	dir := t.TempDir()
	open(t, dir, nil)
	if _, _, _, err := Open(dir, nil, isLasting); !errors.Is(err, ErrInUse) {
		t.Errorf("got %v", err)
	}
}

// TestItDoesNotGrow: files stay bounded, and there are two.
func TestItDoesNotGrow(t *testing.T) {
	dir := t.TempDir()
	j, state, _ := open(t, dir, nil)
	for i := range 100 {
		state["x"] = bytes.Repeat([]byte{byte(i)}, 60000)
		if err := j.Commit(map[string][]byte{"x": state["x"]}); err != nil {
			t.Fatal(err)
		}
		if j.NeedsRewrite() {
			if err := j.Rewrite(state); err != nil {
				t.Fatal(err)
			}
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 3 {
		t.Fatalf("%v %v", entries, err)
	}
	for _, entry := range entries {
		if info, err := entry.Info(); err != nil || info.Size() > slack+4*60000 {
			t.Errorf("%s has %d bytes, %v", entry.Name(), info.Size(), err)
		}
	}
}

// small is a directory on a disk of 128 kB. fill leaves about so many bytes of it, free all.
func small(t *testing.T) (dir string, fill func(left int), free func()) {
	t.Helper()
	dir = t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=128k"); err != nil {
		t.Skipf("a small disk needs root: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	other := filepath.Join(dir, "other")
	fill = func(left int) {
		t.Helper()
		var disk unix.Statfs_t
		if err := unix.Statfs(dir, &disk); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(other, make([]byte, int(disk.Bavail)*int(disk.Bsize)-left), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir, fill, func() {
		t.Helper()
		if err := os.Remove(other); err != nil {
			t.Fatal(err)
		}
	}
}

// TestADiskThatCannotBeWritten: what is there is read, and once the disk can be written everything is written again.
func TestADiskThatCannotBeWritten(t *testing.T) {
	for want, spoil := range map[unix.Errno]func(dir string, fill func(left int), free func()) (mend func()){
		unix.ENOSPC: func(_ string, fill func(left int), free func()) func() {
			fill(0)
			return free
		},
		unix.EROFS: func(dir string, _ func(left int), _ func()) func() {
			remount := func(flags uintptr) {
				if err := unix.Mount("", dir, "", unix.MS_REMOUNT|flags, ""); err != nil {
					t.Fatal(err)
				}
			}
			remount(unix.MS_RDONLY)
			return func() { remount(0) }
		},
	} {
		t.Run(want.Error(), func(t *testing.T) {
			dir, fill, free := small(t)
			state := map[string][]byte{"a": bytes.Repeat([]byte("1"), 20000)}
			first, _, _ := open(t, dir, nil)
			if err := errors.Join(first.Commit(state), first.Close()); err != nil {
				t.Fatal(err)
			}
			mend := spoil(dir, fill, free)
			j, found, problems := open(t, dir, nil)
			if !equal(found, state) || len(problems) != 1 || !errors.Is(problems[0], want) {
				t.Fatalf("got %d keys and %v", len(found), problems)
			}
			change := map[string][]byte{"b": []byte("2")}
			if err := j.Commit(change); !errors.Is(err, want) || !j.NeedsRewrite() {
				t.Errorf("got %v", err)
			}
			if err := j.Rewrite(state); !errors.Is(err, want) {
				t.Errorf("got %v", err)
			}
			mend()
			if err := errors.Join(j.Rewrite(state), j.CommitToBoth(change)); err != nil {
				t.Fatal(err)
			}
			state["b"] = change["b"]
			if _, found, problems := open(t, copyDir(t, dir), nil); !equal(found, state) || len(problems) > 0 {
				t.Errorf("got %d keys and %v", len(found), problems)
			}
		})
	}
}

// TestHalfAFrame: what follows a frame that did not fit the disk is found, in the older generation, too.
func TestHalfAFrame(t *testing.T) {
	dir, fill, free := small(t)
	j, _, _ := open(t, dir, nil)
	fill(12 << 10)
	big := map[string][]byte{"big": bytes.Repeat([]byte("1"), 20000)}
	if err := j.Commit(big); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("got %v", err)
	}
	free()
	gone := map[string][]byte{"gone x": {}}
	if err := errors.Join(j.Rewrite(big), j.CommitToBoth(gone)); err != nil {
		t.Fatal(err)
	}
	for _, left := range []string{"nothing", (*seal)(nil).magic()} {
		damaged := copyDir(t, dir)
		if err := os.WriteFile(newestFile(t, damaged), []byte(left), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, found, problems := open(t, damaged, nil); !equal(found, gone) || len(problems) != 1 {
			t.Errorf("with %q left got %q and %v", left, found, problems)
		}
	}
}
