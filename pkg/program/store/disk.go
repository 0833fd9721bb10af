package store

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/application-grid/application-grid/pkg/program/atomicfile"
)

// ErrInUse means that another process has locked the directory.
var ErrInUse = errors.New("another process uses it")

// disk is the interface of a Store to a directory. Tests use a model instead.
type disk interface {
	// Lock makes the directory if it is missing, and locks it for this process. The error may be ErrInUse.
	Lock() (lock, error)
	// Names returns the names of the files.
	Names() ([]string, error)
	// OpenRead opens a file for reading, and returns its size.
	OpenRead(name string) (io.ReadCloser, int64, error)
	// Create makes an empty file, and replaces one of the same name. Open opens one for writing.
	Create(name string) (file, error)
	OpenWrite(name string) (file, error)
	Rename(from, to string) error
	Remove(name string) error
	// Sync returns when the names are on the disk.
	Sync() error
}

// lock is a directory that is locked until Close.
type lock interface {
	io.Closer
	// IsThere reports whether the directory is still the one at its path: something else may have been mounted there.
	IsThere() bool
}

// file is a file that is open for writing.
type file interface {
	io.WriterAt
	io.Closer
	Truncate(size int64) error
	// Sync returns when the written data is on the disk.
	Sync() error
	// Reserve makes sure that the disk has space for a file of that size. It does not change the length of the file.
	Reserve(size int64) error
}

// directory is a disk that is a real directory.
type directory string

func (d directory) path(name string) string { return filepath.Join(string(d), name) }

func (d directory) Lock() (lock, error) {
	if err := d.make(); err != nil {
		return nil, err
	}
	// The directory itself is locked, which needs no extra inode.
	opened, err := os.Open(string(d))
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(opened.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = opened.Close() // nothing was written
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, ErrInUse
		}
		return nil, err
	}
	return lockedDirectory{opened}, nil
}

type lockedDirectory struct{ *os.File }

func (d lockedDirectory) IsThere() bool {
	locked, err := d.Stat()
	there, statErr := os.Stat(d.Name())
	return err == nil && statErr == nil && os.SameFile(locked, there)
}

// make makes the directory. A new directory must be on the disk before its files are.
func (d directory) make() error {
	if _, err := os.Stat(string(d)); err == nil {
		return nil
	}
	err := os.MkdirAll(string(d), 0o700)
	for parent := d; err == nil && parent != directory(filepath.Dir(string(parent))); {
		parent = directory(filepath.Dir(string(parent)))
		_ = parent.Sync() // a parent that this process may not open existed before
	}
	return err
}

func (d directory) Names() ([]string, error) {
	entries, err := os.ReadDir(string(d))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	names := make([]string, len(entries))
	for i, entry := range entries {
		names[i] = entry.Name()
	}
	return names, err
}

func (d directory) OpenRead(name string) (io.ReadCloser, int64, error) {
	f, err := os.Open(d.path(name))
	if err != nil {
		return nil, 0, err
	}
	info, err := f.Stat()
	if err != nil {
		_ = f.Close() // only read
		return nil, 0, err
	}
	return f, info.Size(), nil
}

func (d directory) Create(name string) (file, error) {
	f, err := os.OpenFile(d.path(name), os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	return openFile{f}, err
}

func (d directory) OpenWrite(name string) (file, error) {
	f, err := os.OpenFile(d.path(name), os.O_WRONLY, 0o600)
	return openFile{f}, err
}

func (d directory) Rename(from, to string) error { return os.Rename(d.path(from), d.path(to)) }

func (d directory) Remove(name string) error { return os.Remove(d.path(name)) }

func (d directory) Sync() error { return atomicfile.SyncDir(string(d)) }

type openFile struct{ *os.File }

func (f openFile) Sync() error { return unix.Fdatasync(int(f.Fd())) }

func (f openFile) Reserve(size int64) error {
	err := unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, size)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) {
		return nil // such a file system has no reserve
	}
	return err
}
