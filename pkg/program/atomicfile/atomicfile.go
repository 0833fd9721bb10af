package atomicfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// Replace renames a new file to path once all of it is on the disk, or removes it. The new file is empty and open for
// writing, and in the directory of path, because a file can be renamed within one file system only. write fills it;
// check is called when the content is on the disk. If one of them returns an error, the old file stays.
func Replace(path string, aside *os.File, write, check func() error) error {
	for _, step := range []func() error{
		write, aside.Sync, check, aside.Close, func() error { return os.Rename(aside.Name(), path) },
	} {
		// Without Sync a machine that loses its power may keep the new name and none of the content.
		if err := step(); err != nil {
			_ = aside.Close()           // the first error is the one to return
			_ = os.Remove(aside.Name()) // a full disk needs the space
			return err
		}
	}
	return SyncDir(filepath.Dir(path))
}

// Write replaces a file by one with this content and mode. The directory has to be there.
func Write(path string, mode fs.FileMode, content []byte) error {
	aside, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	return Replace(path, aside, func() error {
		_, err := aside.Write(content)
		return errors.Join(err, aside.Chmod(mode))
	}, func() error { return nil })
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
