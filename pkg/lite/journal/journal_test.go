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

// TestEveryPrefixIsACommit: whatever of the newest file has reached the disk, what is read is a state that was
// committed, and what is lasting is never lost, also over restarts, rewrites and a damaged byte anywhere.
func TestEveryPrefixIsACommit(t *testing.T) {
	for seed := range uint64(10) {
		random := rand.New(rand.NewPCG(seed, 0))
		var key []byte
		if seed%2 == 1 {
			key = key32
		}
		dir := t.TempDir()
		j, state, _ := open(t, dir, key)
		history := []map[string][]byte{maps.Clone(state)}
		gone := map[string]bool{}
		for range 5 + random.IntN(40) {
			switch random.IntN(12) {
			case 0:
				if err := j.Rewrite(state); err != nil {
					t.Fatal(err)
				}
			case 1:
				if err := j.Close(); err != nil {
					t.Fatal(err)
				}
				var again map[string][]byte
				j, again, _ = open(t, dir, key)
				if !equal(again, state) {
					t.Fatalf("seed %d: a restart found\n%q\nnot\n%q", seed, again, state)
				}
			case 2:
				name := fmt.Sprintf("gone %d", len(gone))
				gone[name] = true
				state[name] = []byte{}
				if err := j.Commit(map[string][]byte{name: {}}, true); err != nil {
					t.Fatal(err)
				}
			default:
				changes := map[string][]byte{}
				for range 1 + random.IntN(4) {
					name := fmt.Sprintf("key %d", random.IntN(9))
					changes[name] = bytes.Repeat([]byte{byte(random.IntN(256))}, random.IntN(60))
					state[name] = changes[name]
					if random.IntN(4) == 0 {
						changes[name] = nil
						delete(state, name)
					}
				}
				if err := j.Commit(changes, false); err != nil {
					t.Fatal(err)
				}
			}
			history = append(history, maps.Clone(state))
		}
		was := func(found map[string][]byte) bool {
			return slices.ContainsFunc(history, func(past map[string][]byte) bool {
				past = maps.Clone(past)
				for name := range gone { // what is lasting may come from a later moment
					past[name] = []byte{}
				}
				for name := range gone {
					if _, ok := found[name]; !ok {
						delete(past, name)
					}
				}
				return equal(past, found)
			})
		}
		for range 25 {
			crashed := copyDir(t, dir)
			path := newestFile(t, crashed)
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			flipped := random.IntN(2) == 0
			if flipped {
				data[random.IntN(len(data))] ^= 1 << random.IntN(8)
			} else {
				data = data[:random.IntN(len(data)+1)]
			}
			if err := os.WriteFile(path, data, 0o600); err != nil {
				t.Fatal(err)
			}
			after, found, problems, err := Open(crashed, key, isLasting)
			if errors.Is(err, ErrKey) && flipped {
				continue // the bit made it look like the other kind; it is refused and named
			}
			if err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			if len(found) == 0 && len(problems) == 0 && len(state) > 0 && flipped {
				t.Fatalf("seed %d: a damaged journal is empty, and nothing is said", seed)
			}
			if !was(found) {
				t.Fatalf("seed %d: what is found was never committed: %q", seed, found)
			}
			if flipped {
				for name := range gone {
					if _, ok := found[name]; !ok && len(problems) == 0 {
						t.Fatalf("seed %d: %q is forgotten", seed, name)
					}
				}
			}
			// It goes on from there.
			if err := after.Commit(map[string][]byte{"after": []byte("x")}, false); err != nil {
				t.Fatal(err)
			}
			if err := after.Close(); err != nil {
				t.Fatal(err)
			}
			found["after"] = []byte("x")
			if again, once, _ := open(t, crashed, key); !equal(once, found) {
				t.Fatalf("seed %d: after a crash and a commit there is %q, not %q", seed, once, found)
			} else if err := again.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestTheOlderGenerationIsUsed when the newest is damaged before its end, with what is lasting of later moments.
func TestTheOlderGenerationIsUsed(t *testing.T) {
	dir := t.TempDir()
	j, _, _ := open(t, dir, nil)
	state := map[string][]byte{"a": []byte("1")}
	commit := func(name, value string, lasting bool) {
		t.Helper()
		state[name] = []byte(value)
		if err := j.Commit(map[string][]byte{name: []byte(value)}, lasting); err != nil {
			t.Fatal(err)
		}
	}
	commit("a", "1", false)
	if err := j.Rewrite(state); err != nil {
		t.Fatal(err)
	}
	commit("b", "2", false)
	commit("gone x", "", true)
	commit("c", "3", false)
	damaged := copyDir(t, dir)
	path := newestFile(t, damaged)
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	data[bytes.Index(data, []byte("2"))+len("2")-1] ^= 0xff
	if i := bytes.LastIndex(data, []byte("b\x022")); i >= 0 {
		t.Fatal("not damaged where it was to be")
	}
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	_, found, problems := open(t, damaged, nil)
	want := map[string][]byte{"a": []byte("1"), "gone x": {}}
	if len(problems) != 1 || !strings.Contains(problems[0].Error(), path) || !equal(found, want) {
		t.Errorf("got %q and %v", found, problems)
	}
	if _, err := os.Stat(path + damagedSuffix); err != nil {
		t.Error(err)
	}
}

// TestOtherKeys are refused, and change nothing.
func TestOtherKeys(t *testing.T) {
	other := bytes.Repeat([]byte{8}, 32)
	for _, keys := range [][2][]byte{{nil, key32}, {key32, nil}, {key32, other}} {
		dir := t.TempDir()
		j, _, _ := open(t, dir, keys[0])
		if err := j.Commit(map[string][]byte{"password": []byte("open sesame")}, false); err != nil {
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
		if err := j.Commit(map[string][]byte{"x": state["x"]}, false); err != nil {
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
