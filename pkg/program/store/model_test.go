package store

import (
	"bytes"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"slices"

	"golang.org/x/sys/unix"
)

// model is a disk that loses its power. What was not synced may be lost, in any order and in parts of sectors; a sync
// that fails forgets what it was to write, as Linux does.
type model struct {
	random *rand.Rand
	// now has the names as programs see them, safe those that a loss of power leaves at least; after safe come the
	// steps, of which a loss of power leaves the first ones.
	now, safe map[string]*inode
	steps     []func(map[string]*inode)
	// full, noInodes, readOnly and failing say what goes wrong.
	full, noInodes, readOnly, failing bool
	// unreadable is the name of a file that cannot be read now; "" for none.
	unreadable string
	// unlisted is set while nothing says which files there are.
	unlisted bool
	// mounts is how often something was mounted.
	mounts int
	// creates is how often a file was to be made.
	creates int
	// flash is how many bytes flash has written: for each sync of a file what was new, and at least 16 KiB.
	flash int64
}

// inode is the content of a file: as programs see it, and what is on the disk for sure. Between them come writes.
type inode struct {
	seen, safe []byte
	writes     []func(content []byte) []byte
	// allocated is how far the file has space on the disk.
	allocated int64
	// fresh is how many bytes were written since the last sync.
	fresh int64
	// broken is set after a sync that failed: its blocks are bad, so that nothing more of the file gets to the disk,
	// though later syncs say so, until the machine starts again.
	broken bool
}

const sector = 512

func newModel(random *rand.Rand) *model {
	return &model{random: random, now: map[string]*inode{}, safe: map[string]*inode{}}
}

func (m *model) copy() map[string]*inode {
	all := map[string]*inode{}
	for name, node := range m.safe {
		all[name] = &inode{seen: bytes.Clone(node.safe), safe: bytes.Clone(node.safe)}
	}
	return all
}

// crash is a loss of power.
func (m *model) crash() {
	for _, step := range m.steps[:m.random.IntN(len(m.steps)+1)] {
		step(m.safe)
	}
	m.steps = nil
	for _, node := range m.safe {
		content := bytes.Clone(node.safe)
		order := m.random.Perm(len(node.writes))
		if m.random.IntN(2) == 0 {
			slices.Sort(order)
		}
		for _, i := range order {
			if m.random.IntN(3) > 0 {
				content = m.torn(content, node.writes[i](bytes.Clone(content)))
			}
		}
		node.seen, node.safe, node.writes, node.broken = bytes.Clone(content), content, nil, false
	}
	m.now = maps.Clone(m.safe)
}

// torn is part of a change: of each sector the old content, the new, zeros or anything.
func (m *model) torn(before, after []byte) []byte {
	if m.random.IntN(3) == 0 {
		return after
	}
	if m.random.IntN(4) == 0 && len(after) > 0 {
		least := min(len(before), len(after))
		after = after[:least+m.random.IntN(len(after)-least+1)]
	}
	result := bytes.Clone(after)
	for at := 0; at < len(after); at += sector {
		end := min(at+sector, len(after))
		if at < len(before) && bytes.Equal(after[at:end], before[at:min(end, len(before))]) {
			continue
		}
		switch m.random.IntN(6) {
		case 0:
			clear(result[at:end])
			copy(result[at:end], before[min(at, len(before)):min(end, len(before))])
		case 1:
			if at >= len(before) {
				clear(result[at:end])
			}
		case 2:
			if at >= len(before) {
				for i := at; i < end; i++ {
					result[i] = byte(m.random.Uint32())
				}
			}
		}
	}
	return result
}

func (m *model) step(change func(map[string]*inode)) {
	change(m.now)
	m.steps = append(m.steps, change)
}

var (
	errFull = unix.ENOSPC
	errIO   = unix.EIO
)

func (m *model) Lock() (lock, error) { return &modelLock{m, m.mounts}, nil }

type modelLock struct {
	*model

	mounts int
}

func (l *modelLock) IsThere() bool { return l.mounts == l.model.mounts }

func (*modelLock) Close() error { return nil }

func (m *model) Names() ([]string, error) {
	if m.unlisted {
		return nil, errIO
	}
	return slices.Sorted(maps.Keys(m.now)), nil
}

func (m *model) OpenRead(name string) (io.ReadCloser, int64, error) {
	node := m.now[name]
	if node == nil {
		return nil, 0, fs.ErrNotExist
	}
	if name == m.unreadable {
		return nil, 0, errIO
	}
	return io.NopCloser(bytes.NewReader(node.seen)), int64(len(node.seen)), nil
}

func (m *model) Create(name string) (file, error) {
	m.creates++
	if m.readOnly {
		return nil, unix.EROFS
	}
	if m.noInodes && m.now[name] == nil {
		return nil, errFull
	}
	node := &inode{}
	m.step(func(names map[string]*inode) { names[name] = node })
	return &modelFile{m, node}, nil
}

func (m *model) OpenWrite(name string) (file, error) {
	if m.readOnly {
		return nil, unix.EROFS
	}
	return &modelFile{m, m.now[name]}, nil
}

func (m *model) Rename(from, to string) error {
	if m.readOnly {
		return unix.EROFS
	}
	m.step(func(names map[string]*inode) {
		if names[from] != nil {
			names[to] = names[from]
			delete(names, from)
		}
	})
	return nil
}

func (m *model) Remove(name string) error {
	if m.readOnly {
		return unix.EROFS
	}
	m.step(func(names map[string]*inode) { delete(names, name) })
	return nil
}

func (m *model) Sync() error {
	if m.failing && m.random.IntN(2) == 0 {
		return errIO
	}
	for _, step := range m.steps {
		step(m.safe)
	}
	m.steps = nil
	return nil
}

type modelFile struct {
	*model

	node *inode
}

func (f *modelFile) Close() error { return nil }

func (f *modelFile) change(write func([]byte) []byte) {
	f.node.seen = write(f.node.seen)
	f.node.writes = append(f.node.writes, write)
}

func (f *modelFile) WriteAt(data []byte, at int64) (int, error) {
	if f.readOnly {
		return 0, unix.EROFS
	}
	var err error
	if f.full && at+int64(len(data)) > f.node.allocated {
		data, err = data[:f.random.IntN(len(data))], errFull
	}
	data = bytes.Clone(data)
	f.node.fresh += int64(len(data))
	f.change(func(content []byte) []byte {
		if missing := int(at) + len(data) - len(content); missing > 0 {
			content = append(content, make([]byte, missing)...)
		}
		copy(content[at:], data)
		return content
	})
	return len(data), err
}

func (f *modelFile) Truncate(size int64) error {
	if f.readOnly || f.failing && f.random.IntN(2) == 0 {
		return errIO
	}
	f.node.allocated = size
	f.change(func(content []byte) []byte {
		if int(size) <= len(content) {
			return content[:size]
		}
		return append(content, make([]byte, int(size)-len(content))...)
	})
	return nil
}

func (f *modelFile) Sync() error {
	f.flash += max(f.node.fresh, 16<<10)
	f.node.fresh = 0
	if f.node.broken {
		return nil
	}
	if f.failing && f.random.IntN(2) == 0 {
		// The pages that could not be written count as clean from now on.
		for _, write := range f.node.writes {
			if f.random.IntN(2) == 0 {
				f.node.safe = write(f.node.safe)
			}
		}
		f.node.writes, f.node.broken = nil, true
		return errIO
	}
	for _, write := range f.node.writes {
		f.node.safe = write(f.node.safe)
	}
	f.node.writes = nil
	return nil
}

func (f *modelFile) Reserve(size int64) error {
	if f.full && size > f.node.allocated {
		return errFull
	}
	f.node.allocated = max(size, f.node.allocated)
	return nil
}
