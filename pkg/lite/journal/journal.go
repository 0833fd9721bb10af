package journal

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/application-grid/application-grid/pkg/program/atomicfile"
)

const (
	// prefix begins the names of the files; the generation follows, as 16 hexadecimal digits.
	prefix = "journal-"
	// damagedSuffix ends the name of a file that could not be used.
	damagedSuffix = ".damaged"
	lockName      = "lock"
	// slack is how many bytes more than three times what it holds a file may have.
	slack = 1 << 20
)

// ErrInUse means that another process has locked the directory.
var ErrInUse = errors.New("another process uses it")

// Journal is a directory with what was committed. Its methods must not be called concurrently.
type Journal struct {
	dir  string
	seal *seal
	lock *os.File

	// newest and older are the open files; older is nil if there is none.
	newest, older *file
	// sizes has the sizes of keys and values in the newest file, live their sum.
	sizes map[string]int
	live  int64
	// written is how many bytes were written since Open.
	written int64
	// broken is why nothing can be appended any more; nil if it can.
	broken error
}

type file struct {
	*os.File

	generation uint64
	size       int64
}

// Open opens the journal in a directory, which it creates if it is missing, and returns its state. Keys for which
// lasting is true are taken from both generations. key is the key of 32 bytes with which everything is sealed, or nil.
// problems has an error for each file that is damaged, and one if nothing can be written now. The error is ErrInUse,
// ErrKey or one of the system.
func Open(dir string, key []byte, lasting func(key string) bool) (
	_ *Journal, state map[string][]byte, problems []error, err error,
) {
	j := &Journal{dir: dir, sizes: map[string]int{}}
	if j.seal, err = newSeal(key); err != nil {
		return nil, nil, nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, nil, nil, err
	}
	if err := j.takeLock(); err != nil {
		return nil, nil, nil, err
	}
	state, problems, err = j.load(lasting)
	if err != nil {
		_ = j.Close() // the other error is the one to return
		return nil, nil, nil, err
	}
	return j, state, problems, nil
}

// load reads the generations, and begins a new one.
func (j *Journal) load(lasting func(key string) bool) (state map[string][]byte, problems []error, err error) {
	generations, err := j.generations()
	if err != nil {
		return nil, nil, err
	}
	for _, generation := range generations {
		found, end, err := j.read(generation)
		if errors.Is(err, ErrKey) {
			return nil, nil, err
		}
		if err != nil {
			problems = append(problems, err)
		}
		switch {
		case found == nil:
		case state == nil:
			state = found
			j.newest, j.broken = j.reopen(generation, end)
		default:
			for key, value := range found {
				if lasting(key) {
					state[key] = value
				}
			}
		}
	}
	if state == nil {
		state = map[string][]byte{}
	}
	next := uint64(1)
	if len(generations) > 0 {
		next = generations[0] + 1
	}
	if err := j.compact(next, state); err != nil {
		if j.newest == nil {
			return nil, nil, err
		}
		j.broken = fmt.Errorf("writing %s: %w", j.name(next), err) // as on a disk that is full or read-only
		problems = append(problems, j.broken)
	}
	return state, problems, nil
}

func (j *Journal) takeLock() error {
	lock, err := os.OpenFile(filepath.Join(j.dir, lockName), os.O_CREATE|os.O_RDONLY, 0o600)
	if err != nil {
		return err
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = lock.Close() // nothing was written
		if errors.Is(err, unix.EWOULDBLOCK) {
			return ErrInUse
		}
		return err
	}
	j.lock = lock
	return nil
}

// Close closes the files and unlocks the directory.
func (j *Journal) Close() error {
	var failures []error
	for _, f := range []*file{j.newest, j.older} {
		if f != nil && f.File != nil {
			failures = append(failures, f.Close())
		}
	}
	return errors.Join(append(failures, j.lock.Close())...)
}

func (j *Journal) name(generation uint64) string {
	return filepath.Join(j.dir, fmt.Sprintf("%s%016x", prefix, generation))
}

// generations returns those that there are, the newest first.
func (j *Journal) generations() ([]uint64, error) {
	entries, err := os.ReadDir(j.dir)
	if err != nil {
		return nil, err
	}
	var found []uint64
	for _, entry := range entries {
		var generation uint64
		digits, ok := strings.CutPrefix(entry.Name(), prefix)
		if _, err := fmt.Sscanf(digits, "%016x", &generation); ok && err == nil && len(digits) == 16 {
			found = append(found, generation)
		}
	}
	slices.Sort(found)
	slices.Reverse(found)
	return found, nil
}

// read reads one generation, up to end. A damaged file is set aside, and its state is nil. The error names a file
// that is damaged, or ends in a commit that is not whole.
func (j *Journal) read(generation uint64) (state map[string][]byte, end int64, err error) {
	name := j.name(generation)
	data, err := os.ReadFile(name) //nolint:gosec // in the directory
	if err != nil {
		return nil, 0, err
	}
	state, end, err = j.parse(data, generation)
	switch {
	case errors.Is(err, ErrKey):
		return nil, 0, fmt.Errorf("%s: %w", name, err)
	case err != nil:
		err = fmt.Errorf("%s is not used, and is kept as %s: %w", name, name+damagedSuffix, err)
		return nil, 0, errors.Join(err, os.Rename(name, name+damagedSuffix))
	case end < int64(len(data)):
		err = fmt.Errorf("%s is used without its last %d bytes: they are no whole commit, as after a loss of power",
			name, int64(len(data))-end)
	}
	return state, end, err
}

// parse reads the frames of a file. end is where the last whole frame ends.
func (j *Journal) parse(data []byte, generation uint64) (state map[string][]byte, end int64, err error) {
	magic := j.seal.magic()
	begin := string(data[:min(len(data), len(magic))])
	other := (*seal)(nil)
	if j.seal == nil {
		other = &seal{}
	}
	switch begin {
	case magic:
	case other.magic():
		return nil, 0, ErrKey
	default:
		return nil, 0, errors.New("it does not begin as a journal does")
	}
	end = int64(len(magic))
	for rest := data[end:]; len(rest) > 0; {
		sealed, next, err := cutFrame(rest)
		if err != nil && state != nil && !hasFrame(rest[1:]) {
			break // what was being written when the power was lost
		}
		if err != nil {
			return nil, 0, fmt.Errorf("it is damaged at byte %d", end)
		}
		payload, err := j.seal.open(sealed, generation, end)
		if err != nil {
			return nil, 0, err
		}
		if state == nil {
			state = map[string][]byte{}
		}
		if err := apply(payload, state); err != nil {
			return nil, 0, err
		}
		end += int64(len(rest) - len(next))
		rest = next
	}
	if state == nil {
		return nil, 0, errors.New("it ends before its first frame")
	}
	return state, end, nil
}

// reopen opens a generation that was read up to end, and cuts off what follows. The error says why nothing can be
// appended.
func (j *Journal) reopen(generation uint64, end int64) (*file, error) {
	opened, err := os.OpenFile(j.name(generation), os.O_WRONLY|os.O_APPEND, 0o600)
	if err == nil {
		err = opened.Truncate(end)
	}
	return &file{opened, generation, end}, err
}

// hasFrame reports whether there is a whole frame anywhere in data.
func hasFrame(data []byte) bool {
	for ; len(data) >= frameHead; data = data[1:] {
		if _, _, err := cutFrame(data); err == nil {
			return true
		}
	}
	return false
}

// compact writes a whole state as a new generation, and keeps the one before it.
func (j *Journal) compact(generation uint64, state map[string][]byte) error {
	path := j.name(generation)
	aside, err := os.CreateTemp(j.dir, "."+prefix)
	if err != nil {
		return err
	}
	data := []byte(j.seal.magic())
	data = appendFrame(data, j.seal.close(encode(state), generation, int64(len(data))))
	if len(data) > maxPayload {
		_ = errors.Join(aside.Close(), os.Remove(aside.Name())) // the other error is the one to return
		return fmt.Errorf("the state has %d bytes, which is too much", len(data))
	}
	err = atomicfile.Replacement{Path: path, Aside: aside, Mode: 0o600, Write: func(f *os.File) error {
		_, err := f.Write(data)
		return err
	}}.Replace()
	if err != nil {
		return err
	}
	j.written += int64(len(data))
	opened, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0o600) //nolint:gosec // in the directory
	if err != nil {
		return err
	}
	if j.older != nil {
		_ = j.older.Close() // it was synced after each frame
	}
	if j.older = j.newest; j.broken != nil && j.older.Truncate(j.older.size) != nil {
		_ = j.older.Close() // what is appended after part of a frame would not be found
		j.older = nil
	}
	j.newest, j.broken = &file{opened, generation, int64(len(data))}, nil
	j.live = 0
	clear(j.sizes)
	for key, value := range state {
		j.note(key, value)
	}
	return j.removeBefore(generation)
}

// removeBefore removes the generations before the one before this.
func (j *Journal) removeBefore(generation uint64) error {
	found, err := j.generations()
	if err != nil {
		return err
	}
	for _, old := range found {
		if old+1 < generation && (j.older == nil || old != j.older.generation) {
			if err := os.Remove(j.name(old)); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	return nil
}

func (j *Journal) note(key string, value []byte) {
	j.live -= int64(j.sizes[key])
	delete(j.sizes, key)
	if value != nil {
		j.sizes[key] = len(key) + len(value)
		j.live += int64(j.sizes[key])
	}
}

// Commit appends changes, a nil value for each key that is removed, and returns when they are on the disk. After an
// error nothing more can be committed before Rewrite.
func (j *Journal) Commit(changes map[string][]byte) error { return j.commit(changes, j.newest) }

// CommitToBoth is Commit for changes that are lasting: they go to both generations.
func (j *Journal) CommitToBoth(changes map[string][]byte) error {
	if j.older == nil {
		return j.Commit(changes)
	}
	return j.commit(changes, j.newest, j.older)
}

func (j *Journal) commit(changes map[string][]byte, files ...*file) error {
	if len(changes) == 0 {
		return nil
	}
	if j.broken != nil {
		return j.broken
	}
	payload := encode(changes)
	for _, f := range files {
		frame := appendFrame(nil, j.seal.close(payload, f.generation, f.size))
		_, err := f.Write(frame)
		if err == nil {
			err = unix.Fdatasync(int(f.Fd()))
		}
		if err != nil {
			// Part of a frame may be there; what is appended after it would not be found.
			j.broken = fmt.Errorf("writing %s: %w", f.Name(), err)
			return j.broken
		}
		f.size += int64(len(frame))
		j.written += int64(len(frame))
	}
	for key, value := range changes {
		j.note(key, value)
	}
	return nil
}

// Written is how many bytes were written to files since Open.
func (j *Journal) Written() int64 { return j.written }

// NeedsRewrite reports whether the newest file is much larger than what it holds, or cannot be appended to.
func (j *Journal) NeedsRewrite() bool {
	return j.broken != nil || j.newest.size > 3*j.live+slack
}

// Rewrite writes the whole state, which must be what was committed and all later changes, to a new file.
func (j *Journal) Rewrite(state map[string][]byte) error {
	return j.compact(j.newest.generation+1, state)
}
