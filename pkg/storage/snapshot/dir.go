package snapshot

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"

	"github.com/application-grid/application-grid/pkg/program/atomicfile"
	"github.com/application-grid/application-grid/pkg/storage/facts"
)

const (
	// snapshotPrefix and revisionPrefix begin the names of a node's files; the node's name follows.
	snapshotPrefix = "snapshot-"
	revisionPrefix = "revision-"
	lockName       = "lock"
	// asideSuffix ends the name of a file that is being written, rejectedSuffix that of a file that cannot be used.
	// There is at most one of each for a file, so that they do not fill the disk.
	asideSuffix    = ".new"
	rejectedSuffix = ".rejected"

	// reserve is how many revisions a process may give out before it must reserve more.
	reserve = 1 << 32
	// maxRevision is the largest revision in a file that is accepted. The revisions above it last longer than any
	// machine.
	maxRevision = 1 << 62
)

// Dir is a state directory. Its methods must not be called concurrently.
type Dir struct {
	path     string
	nodeName string
	logger   logr.Logger
	// lock is the locked file, until Close; nil if it could not be locked.
	lock *os.File
	// foreign has the names of files in another version of the format. They are set aside when they are replaced.
	foreign map[string]bool
	// reserved is the revision in the revision file.
	reserved uint64
	// size and written describe the snapshot on disk, and are zero if there is none. asOf and sum are its AsOf and
	// digest.
	size    int64
	written time.Time
	asOf    time.Time
	sum     [sha256.Size]byte
}

// ErrInUse means that another process has locked the state directory.
var ErrInUse = errors.New("another process uses the state directory; give each its own --state-dir")

// Open creates a node's state directory if it is missing, and locks it for this process until Close. The error says why
// nothing can be written: ErrInUse, or an error of the system. Except after ErrInUse, the returned Dir can be read
// nevertheless.
func Open(path, nodeName string, logger logr.Logger) (*Dir, error) {
	d := &Dir{path: path, nodeName: nodeName, logger: logger, foreign: make(map[string]bool)}
	if err := os.MkdirAll(path, 0o700); err != nil {
		return d, fmt.Errorf("creating the state directory: %w", err)
	}
	//nolint:gosec // in the state directory
	lock, err := os.OpenFile(filepath.Join(path, lockName), os.O_CREATE|os.O_RDONLY, 0o600)
	if err != nil {
		return d, fmt.Errorf("locking the state directory: %w", err)
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = lock.Close() // nothing was written
		if errors.Is(err, unix.EWOULDBLOCK) {
			return d, ErrInUse
		}
		return d, fmt.Errorf("locking the state directory: %w", err)
	}
	d.lock = lock
	return d, nil
}

// Close unlocks the directory.
func (d *Dir) Close() error {
	if d.lock == nil {
		return nil
	}
	return d.lock.Close()
}

// file returns the name of one of the node's files.
func (d *Dir) file(prefix string) string { return prefix + url.PathEscape(d.nodeName) }

// Load reads the snapshot. state is nil if there is none, or if it cannot be used; then Load logs that and sets it
// aside. minRevision is at least as large as every revision that earlier processes gave out, as far as the directory
// knows.
func (d *Dir) Load() (state *facts.State, minRevision uint64) {
	if c, err := d.load(d.file(revisionPrefix)); err == nil {
		d.reserved = c.Revision
	}
	c, err := d.load(d.file(snapshotPrefix))
	if err != nil {
		return nil, d.reserved
	}
	d.asOf = c.State.AsOf
	if d.sum, err = digest(c.State); err != nil {
		d.logger.Error(err,
			"Cannot compute the digest of the snapshot; it will be written again even if it has not changed")
	}
	// The revision file is written before the snapshot, so its revision is not smaller, unless the file was lost.
	return c.State, max(d.reserved, c.Revision)
}

// errNone is the error for a file that does not exist.
var errNone = errors.New("there is none")

// load reads one file. It sets aside a file that cannot be used.
func (d *Dir) load(name string) (content, error) {
	path := filepath.Join(d.path, name)
	file, err := os.Open(path) //nolint:gosec // in the state directory
	if errors.Is(err, fs.ErrNotExist) {
		return content{}, errNone
	}
	var c content
	if err == nil {
		c, err = d.check(name, file)
		_ = file.Close() // only read
	}
	if err == nil {
		return c, nil
	}
	d.size, d.written = 0, time.Time{}
	if errors.Is(err, errVersion) {
		// The file stays until this version writes its own: if someone runs this version by mistake, the other version
		// finds its file unchanged.
		d.foreign[name] = true
		d.logger.Info("Not using a file of the state directory", "file", path, "reason", err)
		return content{}, err
	}
	d.logger.Error(err, "Not using a file of the state directory", "file", path, "setAside", path+rejectedSuffix)
	d.setAside(path)
	return content{}, err
}

// setAside renames a file that cannot be used, so that people can find out what is wrong with it.
func (d *Dir) setAside(path string) {
	if err := os.Rename(path, path+rejectedSuffix); err != nil {
		d.logger.Error(err, "Cannot set a file aside", "file", path)
	}
}

func (d *Dir) check(name string, file *os.File) (content, error) {
	info, err := file.Stat()
	if err != nil {
		return content{}, err
	}
	c, err := read(file, info.Size())
	switch {
	case err != nil:
		return content{}, err
	case c.Revision > maxRevision:
		return content{}, fmt.Errorf("%w: a revision of %d", errFormat, c.Revision)
	case (c.State != nil) != (name == d.file(snapshotPrefix)):
		return content{}, fmt.Errorf("%w: it is another kind of file of a state directory", errFormat)
	case c.State != nil && c.State.NodeName != d.nodeName:
		return content{}, fmt.Errorf("it is the snapshot of node %q, and this is node %q", c.State.NodeName, d.nodeName)
	}
	if name == d.file(snapshotPrefix) {
		d.size, d.written = info.Size(), info.ModTime()
	}
	return c, nil
}

// Reserve makes sure that the next process begins above revision, and above as many revisions after it as this process
// may give out until it calls Reserve again.
func (d *Dir) Reserve(revision uint64) error {
	if revision+reserve/2 <= d.reserved {
		return nil
	}
	_, err := d.replace(d.file(revisionPrefix), content{Revision: revision + reserve})
	if err != nil {
		return fmt.Errorf("reserving revisions: %w", err)
	}
	d.reserved = revision + reserve
	return nil
}

// Save replaces the snapshot, and returns its size in bytes.
func (d *Dir) Save(state *facts.State, revision uint64, now time.Time) (int64, error) {
	if err := d.Reserve(revision); err != nil {
		return 0, err
	}
	size, err := d.replace(d.file(snapshotPrefix), content{Revision: d.reserved, State: state})
	if err != nil {
		return 0, fmt.Errorf("writing the snapshot: %w", err)
	}
	d.size, d.written = size, now
	return size, nil
}

// replace replaces a file, and returns its new size in bytes.
func (d *Dir) replace(name string, c content) (size int64, err error) {
	path := filepath.Join(d.path, name)
	//nolint:gosec // in the state directory
	aside, err := os.OpenFile(path+asideSuffix, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return 0, err
	}
	err = atomicfile.Replacement{
		Path: path, Aside: aside,
		Write: func(file *os.File) error {
			err := c.write(file)
			if err == nil {
				size, err = file.Seek(0, io.SeekCurrent)
			}
			return err
		},
		Check: func() error {
			if d.foreign[name] {
				d.setAside(path)
				delete(d.foreign, name)
			}
			return nil
		},
	}.Replace()
	return size, err
}
