package atomicfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// Replacement is the content of a file that takes the place of another one.
type Replacement struct {
	// Path is the file that is replaced. It need not be there.
	Path string
	// Aside is the new file, empty and open for writing, in the directory of Path: a file can be renamed within one
	// file system only. Replace closes it, and removes it if it fails.
	Aside *os.File
	// Mode is that of the new file; 0 leaves the one that Aside was made with.
	Mode fs.FileMode
	// Write writes the content.
	Write func(*os.File) error
	// Check, if set, is called when the content is on the disk. Its error keeps the old file.
	Check func() error
}

// Replace writes the new file, and gives it its name once all of it is on the disk.
func (r Replacement) Replace() (err error) {
	defer func() {
		if err != nil {
			_ = r.Aside.Close()           // the first error is the one to tell
			_ = os.Remove(r.Aside.Name()) // a full disk wants it back now
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
	// Without it a machine that loses its power may keep the new name and none of the content.
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
	return syncDir(filepath.Dir(r.Path))
}

// syncDir makes a renaming last.
func syncDir(path string) error {
	dir, err := os.Open(path) //nolint:gosec // the directory of a file that the caller names
	if err != nil {
		return err
	}
	defer dir.Close()
	// some file systems know no sync of directories
	if err := dir.Sync(); err != nil && !errors.Is(err, syscall.EINVAL) {
		return err
	}
	return nil
}
