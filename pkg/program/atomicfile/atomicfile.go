package atomicfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// Replacement is a new file that takes the place of another one.
type Replacement struct {
	// Path is the file to replace. It need not exist.
	Path string
	// Aside is the new file, empty and open for writing. It is in the directory of Path, because a file can be renamed
	// within one file system only. Replace closes it, and removes it on failure.
	Aside *os.File
	// Mode is the mode of the new file; 0 leaves the one that Aside was made with.
	Mode fs.FileMode
	// Write writes the content.
	Write func(*os.File) error
	// Check, if set, is called when the content is on the disk. If it returns an error, the old file stays.
	Check func() error
}

// Replace writes the new file, and renames it to Path once all of it is on the disk.
func (r Replacement) Replace() (err error) {
	defer func() {
		if err != nil {
			_ = r.Aside.Close()           // the first error is the one to return
			_ = os.Remove(r.Aside.Name()) // a full disk needs the space
		}
	}()
	if err := r.Write(r.Aside); err != nil {
		return err
	}
	if r.Mode != 0 {
		if err := r.Aside.Chmod(r.Mode); err != nil {
			return err
		}
	}
	// Without Sync a machine that loses its power may keep the new name and none of the content.
	if err := r.Aside.Sync(); err != nil {
		return err
	}
	if r.Check != nil {
		if err := r.Check(); err != nil {
			return err
		}
	}
	if err := r.Aside.Close(); err != nil {
		return err
	}
	if err := os.Rename(r.Aside.Name(), r.Path); err != nil {
		return err
	}
	return SyncDir(filepath.Dir(r.Path))
}

// Write replaces a file by one with this content and mode. The directory has to be there.
func Write(path string, mode fs.FileMode, content []byte) error {
	aside, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	return Replacement{Path: path, Aside: aside, Mode: mode, Write: func(f *os.File) error {
		_, err := f.Write(content)
		return err
	}}.Replace()
}

// SyncDir writes a directory to the disk, so that a rename in it survives a loss of power.
func SyncDir(path string) error {
	dir, err := os.Open(path) //nolint:gosec // the directory of a file that the caller names
	if err != nil {
		return err
	}
	defer dir.Close()
	// Some file systems cannot sync directories.
	if err := dir.Sync(); err != nil && !errors.Is(err, syscall.EINVAL) {
		return err
	}
	return nil
}
