package store

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// prefix begins the names of the files; the generation follows, as 16 hexadecimal digits.
	prefix = "store-"
	// asideName is the file that is being written.
	asideName = prefix + "new"

	// slack is how many bytes more than three times its first state a file may have; less while it is the only one.
	slack, slackAlone = 1 << 20, 64 << 10
	// inflation is about how many times larger the entries of a file are than the file.
	inflation = 8
	// maxGrowth is how much a file may grow while no new one can be written. It is bounded because the file is read at
	// every start.
	maxGrowth = 64 << 20
	// reserveSize is how much disk space is reserved for lasting keys.
	reserveSize = 64 << 10
	// retryAfter is the pause after a failure to write the whole state.
	retryAfter = 30 * time.Second
)

// errLate means that the directory could not be read at the start, or that it was mounted later. The state may lack
// what is there.
var errLate = errors.New("it has files that were not there when this program started: restart the program, so that " +
	"they are read")

// Options configure a Store.
type Options struct {
	// Dir is made if it is missing.
	Dir string
	// Key is the key of 32 bytes with which everything is sealed; nil for none.
	Key []byte
	// Lasting says which keys are never forgotten; nil for none.
	Lasting func(key string) bool
	// State returns all keys and values, including the changes that are passed to Commit.
	State func() iter.Seq2[string, []byte]
	// StateSaved is called when all that State last returned is on the disk; nil for none. It must not call the
	// Store.
	StateSaved func()
	// HourlyBytes is the budget.
	HourlyBytes int64
	// Now is time.Now if nil.
	Now func() time.Time
}

// Store is a directory with the committed state. Its methods must not be called concurrently.
type Store struct {
	options Options
	// start has the seal for new files.
	start position
	disk  disk
	lock  lock
	// blocked is why nothing will ever be written; nil otherwise.
	blocked error
	// moved is set while the directory is another one than before, and does not have the state.
	moved bool

	// newest and older are the files to which changes are appended. newest is nil if no file exists, or after it has
	// failed.
	newest, older *generation
	// highest is the largest generation that there was at the start, or has been written since.
	highest uint64
	// foreign are the generations of files in another version of the format.
	foreign map[uint64]bool
	// untidy is set while a file without all lasting keys may exist, or may reappear after a loss of power.
	untidy bool
	// failure is why the last attempt to write the whole state failed, and retry is when to try again.
	failure error
	retry   time.Time

	// number is that of the last transaction. A commit to both files has the same number in both.
	number  uint64
	budget  budget
	written int64
}

// generation is a file, and where its last whole transaction ends.
type generation struct {
	position

	// first is where the first state ends, and base its number.
	first position
	base  uint64
	// torn is set while other bytes may follow the last transaction.
	torn bool
}

// Open opens the store in a directory, and returns its state. The problems are about files that cannot be used or
// written; the store works nevertheless. If nothing will ever be written, Commit returns ErrInUse or ErrKey.
func Open(o Options) (s *Store, state map[string][]byte, problems []error) {
	return open(o, directory(o.Dir))
}

func open(o Options, disk disk) (s *Store, state map[string][]byte, problems []error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	s = &Store{options: o, disk: disk, foreign: map[uint64]bool{},
		budget: budget{hourly: o.HourlyBytes, left: o.HourlyBytes, at: o.Now()}}
	var err error
	if s.start.seal, err = newSeal(o.Key); err == nil {
		s.lock, err = disk.Lock()
	}
	if err != nil {
		problems = append(problems, fmt.Errorf("%s cannot be written: %w", o.Dir, err))
	}
	if errors.Is(err, ErrInUse) || s.start.seal == nil && len(o.Key) > 0 {
		s.blocked = err
		return s, map[string][]byte{}, problems
	}
	state, found := s.load()
	return s, state, append(problems, found...)
}

// Read reads the state of a directory that another process may use.
func Read(dir string, key []byte) (state map[string][]byte, problems []error) {
	seal, err := newSeal(key)
	if err != nil {
		return nil, []error{err}
	}
	s := &Store{options: Options{Dir: dir}, disk: directory(dir), start: position{seal: seal},
		foreign: map[uint64]bool{}}
	return s.load()
}

func name(generation uint64) string { return fmt.Sprintf("%s%016x", prefix, generation) }

// generations returns the numbers of the existing files, the newest first.
func (s *Store) generations() ([]uint64, error) {
	names, err := s.disk.Names()
	var found []uint64
	for _, n := range names {
		generation, err := strconv.ParseUint(strings.TrimPrefix(n, prefix), 16, 64)
		if err == nil && n == name(generation) {
			found = append(found, generation)
		}
	}
	slices.Sort(found)
	slices.Reverse(found)
	return found, err
}

// numbered is the value of a key, nil if it was removed, and the number of its transaction.
type numbered struct {
	value  []byte
	number uint64
}

// load reads the generations.
func (s *Store) load() (state map[string][]byte, problems []error) {
	generations, err := s.generations()
	if err != nil {
		problems = append(problems, err)
	}
	var newest *generation
	var all map[string]numbered
	damaged := false
loop:
	for _, number := range generations {
		s.highest = max(s.highest, number)
		of := s.isLasting
		if newest == nil {
			of = func(string) bool { return true }
		}
		g, found, err := s.read(number, of)
		if err != nil {
			problems = append(problems, fmt.Errorf("%s/%s: %w", s.options.Dir, name(number), err))
		}
		switch {
		case g == nil && newest == nil && errors.Is(err, ErrKey):
			s.blocked = err
			break loop
		case g == nil && errors.Is(err, errVersion):
			if s.foreign[number] = true; newest == nil {
				break loop // the other files are older than this one
			}
		case g == nil:
			damaged = true
		case newest == nil:
			newest, all = g, found
			if s.newest = g; damaged { // a new generation must have a higher number than the damaged one
				s.newest, s.older = nil, g
			}
		default:
			if s.older == nil {
				s.older = g
			}
			// If the end of the newest file was damaged, the older one still has what is lasting. The newest must not
			// become the older one without that.
			for key, value := range found {
				if value.number > max(all[key].number, newest.base) {
					all[key] = value
					s.newest, s.older = nil, g
				}
			}
			break loop
		}
	}
	s.budget.load(all[markKey].value)
	delete(all, markKey)
	state = make(map[string][]byte, len(all))
	for key, kept := range all {
		if kept.value != nil {
			state[key] = kept.value
		}
	}
	return state, problems
}

func (s *Store) isLasting(key string) bool { return s.options.Lasting != nil && s.options.Lasting(key) }

// read reads one file, and returns the wanted keys. If its first state cannot be read, the generation is nil. A damaged
// file is an error.
func (s *Store) read(number uint64, wanted func(key string) bool) (*generation, map[string]numbered, error) {
	from, size, err := s.disk.OpenRead(name(number))
	if err != nil {
		return nil, nil, err
	}
	defer from.Close() // only read
	g := &generation{position: s.start}
	g.generation = number
	if err := g.readHead(from, size); err != nil {
		return nil, nil, err
	}
	state := map[string]numbered{}
	for buffered := bufio.NewReaderSize(from, 64<<10); g.offset < size; {
		next := g.position
		var entries []entry
		if entries, err = next.read(buffered, size); err != nil {
			break
		}
		transaction := numberOf(entries)
		for _, e := range entries {
			if wanted(e.key) {
				state[e.key] = numbered{e.value, transaction}
			}
		}
		g.position = next
		if g.first.offset == 0 {
			g.first, g.base = g.position, transaction
		}
		s.number = max(s.number, transaction)
	}
	switch {
	case g.first.offset > 0 && err == nil:
		return g, state, nil
	case g.first.offset > 0:
		g.torn = true
		return g, state, fmt.Errorf("it is used without its last %d bytes, which are no whole commit, as after a loss "+
			"of power: %w", size-g.offset, err)
	case errors.Is(err, ErrKey):
		return nil, nil, err
	default:
		return nil, nil, fmt.Errorf("its first state cannot be read, so the file before it is used: %w",
			cmp.Or(err, errEnd))
	}
}

// Close unlocks the directory. All commits are on the disk already.
func (s *Store) Close() error {
	if s.lock == nil {
		return nil
	}
	return s.lock.Close()
}

// abandon gives up a file: it is not written or synced again.
func (s *Store) abandon(g *generation) {
	if g == s.newest {
		s.newest = nil
	} else {
		s.older = nil
	}
}

// Commit appends changes, with a nil value for each removed key, and returns when they are on the disk. After an error
// they are not, and must be committed again. Without changes the error is why nothing could be written. Lasting keys
// are committed without others: they go to both generations, and may use the reserved space. If somebody has removed
// the directory, or has mounted another one there, Commit writes the whole state also without changes.
func (s *Store) Commit(changes map[string][]byte) error {
	if err := s.ensureLock(); err != nil || len(changes) == 0 && !s.moved {
		return err
	}
	s.number++
	lasting := true
	for key := range changes {
		lasting = lasting && s.isLasting(key)
	}
	rewritten := false
	if s.needsState() || s.isLarge(0) && s.budget.owed == 0 {
		err := s.rewrite((*budget).owe)
		if rewritten = err == nil; s.newest == nil {
			return err
		}
		// Even if the state cannot be written, changes can.
	}
	if !rewritten {
		if !lasting && s.isLarge(maxGrowth) {
			return s.failure
		}
		err := s.append(s.newest, changes, lasting)
		if err != nil && s.newest == nil {
			err = s.rewrite((*budget).owe)
		}
		if err != nil {
			return err
		}
	}
	if older := s.older; lasting && older != nil && s.append(older, changes, true) != nil {
		// A file without all lasting keys must not be used. The changes are in the newest file.
		s.abandon(older)
		s.untidy = true
	}
	if lasting && s.untidy {
		return s.tidy()
	}
	return nil
}

// ensureLock locks the directory if that failed before, or if it is another one than before. The error is why nothing
// is written.
func (s *Store) ensureLock() (err error) {
	if s.lock != nil && !s.lock.IsThere() {
		_ = s.lock.Close() // what counts was synced
		s.lock, s.newest, s.older, s.highest, s.moved = nil, nil, nil, 0, true
	}
	if s.blocked == nil && s.lock == nil {
		s.lock, err = s.disk.Lock()
		return err
	}
	return s.blocked
}

// needsState reports whether the next commit writes the whole state, because no file may be appended to.
func (s *Store) needsState() bool { return s.newest == nil || s.isLarge(maxGrowth) }

// Rewrite writes the whole state as the next generation, in place of changes. It is charged as changes are. Commit
// writes the whole state by itself when the newest file is too large.
func (s *Store) Rewrite() error {
	if err := s.ensureLock(); err != nil {
		return err
	}
	s.number++
	return s.rewrite((*budget).spend)
}

// Size returns the size in bytes of the files in use.
func (s *Store) Size() (size int64) {
	for _, g := range []*generation{s.newest, s.older} {
		if g != nil {
			size += g.offset
		}
	}
	return size
}

// isLarge reports whether the newest file is larger by so many bytes than when the state is written to the next one.
// What it has when it is inflated counts as well.
func (s *Store) isLarge(by int64) bool {
	g, more := s.newest, int64(slack)
	if s.older == nil {
		more = slackAlone
	}
	return g.offset > 3*g.first.offset+more+by || g.inflated > 3*g.first.inflated+inflation*more+by
}

// append appends one transaction to a file. After an error the file does not have the transaction, or is abandoned.
func (s *Store) append(g *generation, changes map[string][]byte, lasting bool) error {
	// It is closed again, because an open file would prevent unmounting the file system, or making it read-only.
	to, err := s.disk.OpenWrite(name(g.generation))
	if err != nil {
		if !errors.Is(err, unix.EROFS) { // a read-only disk damages no file
			s.abandon(g)
		}
		return err
	}
	defer to.Close() // what counts is synced
	if g.torn {
		if err := to.Truncate(g.offset); err != nil {
			s.abandon(g)
			return err
		}
		g.torn = false
	}
	if !lasting {
		if err := to.Reserve(g.offset + sizeOf(changes) + reserveSize); err != nil {
			_ = s.disk.Remove(asideName) // a loss of power may have left it; the next commit has its space
			return err
		}
	}
	next := g.position
	err = next.write(io.NewOffsetWriter(to, g.offset), sorted(changes), s.markAfter((*budget).spend))
	s.charge(next.offset-g.offset, (*budget).spend)
	if err != nil {
		g.torn = true
		return err
	}
	if err := to.Sync(); err != nil {
		// The kernel has dropped the data that it could not write: another sync would succeed without it.
		s.abandon(g)
		return err
	}
	g.position = next
	return nil
}

func sorted(changes map[string][]byte) iter.Seq2[string, []byte] {
	return func(yield func(string, []byte) bool) {
		for _, key := range slices.Sorted(maps.Keys(changes)) {
			if !yield(key, changes[key]) {
				return
			}
		}
	}
}

func sizeOf(changes map[string][]byte) (size int64) {
	for key, value := range changes {
		size += int64(len(key) + len(value))
	}
	return size
}

// rewrite writes the whole state as the next generation, unless that failed a moment ago.
func (s *Store) rewrite(by charge) error {
	if s.failure != nil && s.options.Now().Before(s.retry) {
		return s.failure
	}
	s.failure = s.writeState(by)
	s.retry = s.options.Now().Add(retryAfter)
	return s.failure
}

func (s *Store) writeState(by charge) error {
	there, err := s.generations()
	if err != nil {
		return err
	}
	if len(there) > 0 && there[0] > s.highest {
		return errLate
	}
	s.highest++
	g := &generation{position: s.start}
	g.generation = s.highest
	if err := s.writeFirst(g, by); err != nil {
		_ = s.disk.Remove(asideName) // a full disk needs the space
		return err
	}
	if err = s.disk.Rename(asideName, name(g.generation)); err == nil {
		err = s.disk.Sync()
	}
	if err != nil {
		// After a loss of power either of the two files may remain, so neither is appended to.
		s.abandon(s.newest)
		_ = s.disk.Remove(name(g.generation)) // else each attempt would leave one
		return err
	}
	g.first, g.base = g.position, s.number
	if s.newest != nil {
		s.older = s.newest
	}
	s.newest, s.moved = g, false
	if s.options.StateSaved != nil {
		s.options.StateSaved()
	}
	_ = s.tidy() // if it fails, the next lasting commit tries again
	return nil
}

// writeFirst writes the first state of a generation to a file with the temporary name.
func (s *Store) writeFirst(g *generation, by charge) error {
	aside, err := s.disk.Create(asideName)
	if err != nil {
		s.charge(0, by)
		return err
	}
	defer aside.Close() // what counts is synced
	to := io.NewOffsetWriter(aside, 0)
	if _, err = to.Write(g.begin()); err == nil {
		err = g.write(to, s.options.State(), s.markAfter(by))
	}
	if s.charge(g.offset, by); err == nil {
		err = aside.Sync()
	}
	if err == nil {
		_ = aside.Reserve(g.offset + reserveSize) // if it fails, so will the next commit
	}
	return err
}

// tidy removes the generations that are no longer needed, and returns when they cannot reappear.
func (s *Store) tidy() error {
	there, err := s.generations()
	for _, number := range there {
		used := s.newest != nil && number == s.newest.generation || s.older != nil && number == s.older.generation
		if !used && !s.foreign[number] {
			err = errors.Join(err, s.disk.Remove(name(number)))
		}
	}
	err = errors.Join(err, s.disk.Sync())
	s.untidy = err != nil
	return err
}
