package dnshosts

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/application-grid/application-grid/pkg/program/atomicfile"
)

// maxFileSize is the largest size of a hosts file, in bytes. A larger file was probably given by mistake.
const maxFileSize = 64 << 20

// tempPrefix begins the names of the temporary files. They are in the hosts file's directory, because a file can be
// renamed within one file system only.
const tempPrefix = ".statefulset-grid-daemon-"

// maxLinks is the largest number of symbolic links that are followed, as in Linux.
const maxLinks = 40

// mountedAlone is the error for a hosts file that itself is a mount point. Such a file cannot be replaced, only
// overwritten, and readers would see parts of it.
func mountedAlone(path string) error {
	return fmt.Errorf("%s is mounted as a single file and cannot be replaced as a whole: mount its directory %s "+
		"instead, here and in CoreDNS", path, filepath.Dir(path))
}

// File is a hosts file on disk. Its methods are for one goroutine at a time.
type File struct {
	// Path is the path of the file. If it is a symbolic link, the link stays and its target is replaced.
	Path string

	// seen is the state of the file when it was last read or written; nil if it must be read again.
	seen fs.FileInfo
	data []byte
	// wrote has the lines that were written last. overwritten counts how often other lines were found in their place,
	// the last time at overwrittenAt.
	wrote         []string
	overwritten   int
	overwrittenAt time.Time
	// beforeRename is for tests.
	beforeRename func()
}

// target returns the path of the file to which the path leads through symbolic links. The file need not exist.
func (f *File) target() (string, error) {
	path := f.Path
	for range maxLinks {
		next, err := os.Readlink(path)
		switch {
		case errors.Is(err, syscall.EINVAL), errors.Is(err, fs.ErrNotExist):
			return path, nil // it is not a link
		case err != nil:
			return "", err
		case !filepath.IsAbs(next):
			next = filepath.Dir(path) + "/" + next // not Join, because the directory may be a link before a ".."
		}
		path = next
	}
	return "", fmt.Errorf("%s leads through more than %d symbolic links", f.Path, maxLinks)
}

// Load returns the lines of the file's block, or those that were written last if the file has lost its block; nil if
// neither is there. It reads the file only if that changed since it was last read or written.
func (f *File) Load() (block []string, err error) {
	if err := f.load(); err != nil {
		return nil, fmt.Errorf("reading the hosts file: %w", err)
	}
	if block = Parse(f.data).Block; block == nil {
		block = f.wrote
	}
	return block, nil
}

func (f *File) load() error {
	file, err := os.Open(f.Path) //nolint:gosec // the user names it
	if errors.Is(err, fs.ErrNotExist) {
		f.seen, f.data = nil, nil
		return nil
	}
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil || f.seen != nil && sameVersion(info, f.seen) {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s is not a regular file but %s", f.Path, info.Mode().Type())
	}
	data, err := io.ReadAll(io.LimitReader(file, maxFileSize+1))
	if err != nil {
		return err
	}
	if len(data) > maxFileSize {
		return fmt.Errorf("%s is bigger than %d MiB: is --hostpath right?", f.Path, maxFileSize>>20)
	}
	f.seen, f.data = info, data
	return nil
}

// sameVersion reports whether a file was neither written nor replaced in between, as far as its inode shows.
func sameVersion(a, b fs.FileInfo) bool {
	return os.SameFile(a, b) && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime()) && changeTime(a) == changeTime(b)
}

func changeTime(info fs.FileInfo) syscall.Timespec {
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		return stat.Ctim
	}
	return syscall.Timespec{}
}

// errChanged means that someone else writes the file at the same time.
var errChanged = errors.New("the hosts file changed while it was about to be replaced")

// Write writes these lines as the file's block, and reports whether it replaced the file. After any failure the file is
// the complete old one or the complete new one.
func (f *File) Write(lines []string) (replaced bool, err error) {
	const tries = 5
	for range tries {
		if _, err = f.Load(); err != nil {
			return false, err
		}
		content := Parse(f.data)
		if f.wrote != nil && !slices.Equal(f.wrote, content.Block) {
			f.overwritten, f.overwrittenAt = f.overwrites()+1, time.Now()
		}
		f.wrote = content.Block
		data := content.Render(lines)
		if f.seen != nil && bytes.Equal(data, f.data) {
			return false, nil
		}
		if err = f.replace(data); err == nil {
			f.wrote = append([]string{}, lines...)
		}
		if !errors.Is(err, errChanged) {
			break
		}
	}
	if err != nil {
		f.seen = nil
		return false, fmt.Errorf("writing the hosts file: %w", err)
	}
	return true, nil
}

// overwrites returns how often other lines were found in place of the written ones, with at most rivalry in between.
func (f *File) overwrites() int {
	if time.Since(f.overwrittenAt) > rivalry {
		return 0
	}
	return f.overwritten
}

// replace replaces the file by one with this content.
func (f *File) replace(data []byte) error {
	path, err := f.target()
	if err != nil {
		return err
	}
	// If the process is killed, the next one removes the temporary file (Prepare).
	aside, err := os.CreateTemp(filepath.Dir(path), tempPrefix)
	if err != nil {
		return err
	}
	var written fs.FileInfo
	err = atomicfile.Replacement{
		Path: path, Aside: aside,
		Write: func(file *os.File) error {
			if _, err := file.Write(data); err != nil {
				return err
			}
			return f.dress(file)
		},
		Check: func() (err error) {
			if f.beforeRename != nil {
				f.beforeRename()
			}
			if f.Changed() {
				return errChanged
			}
			written, err = aside.Stat()
			return err
		},
	}.Replace()
	if errors.Is(err, syscall.EBUSY) || errors.Is(err, syscall.EXDEV) {
		return errors.Join(mountedAlone(path), err)
	}
	if err != nil {
		return err
	}
	f.seen = nil
	// Renaming has changed the inode's ctime. So seen is read again, if the file is still this one.
	now, err := os.Stat(path)
	if err == nil && os.SameFile(now, written) && now.Size() == written.Size() &&
		now.ModTime().Equal(written.ModTime()) {
		f.seen, f.data = now, data
	}
	return nil
}

// dress gives the new file the mode and the owner of the old one, and a later modification time.
//
// CoreDNS' hosts plugin rereads a file when its size or its modification time has changed. Without a later modification
// time it would keep the old version if the new one has the same size and was written within the same tick of the file
// system's clock, or after the clock was set back.
func (f *File) dress(aside *os.File) error {
	mode := fs.FileMode(0o644) // CoreDNS runs as another user
	if f.seen != nil {
		mode = f.seen.Mode().Perm()
		if stat, ok := f.seen.Sys().(*syscall.Stat_t); ok {
			// Chown needs privileges. Without them readers can still read the file.
			_ = aside.Chown(int(stat.Uid), int(stat.Gid))
		}
	}
	if err := aside.Chmod(mode); err != nil {
		return err
	}
	if f.seen == nil {
		return nil
	}
	old := f.seen.ModTime()
	wanted := time.Now()
	// Some file systems store times in steps of one or two seconds.
	for _, later := range []time.Duration{time.Microsecond, 10 * time.Millisecond, time.Second, 2 * time.Second} {
		if !wanted.After(old) {
			wanted = old.Add(later)
		}
		if err := os.Chtimes(aside.Name(), time.Time{}, wanted); err != nil {
			return err
		}
		info, err := aside.Stat()
		if err != nil {
			return err
		}
		if info.ModTime().After(old) {
			return nil
		}
		wanted = old
	}
	return fmt.Errorf("the file system at %s does not keep modification times, by which CoreDNS notices changes",
		filepath.Dir(f.Path))
}

// Changed reports whether the file changed since it was last read or written. It costs one stat.
func (f *File) Changed() bool {
	info, err := os.Stat(f.Path) //nolint:gosec // the path is what the user configured
	if err != nil {
		return f.seen != nil
	}
	return f.seen == nil || !sameVersion(info, f.seen)
}

// Prepare removes temporary files of an earlier process that was killed. It fails if the file itself is a mount point.
func (f *File) Prepare() error {
	path, err := f.target()
	if err != nil {
		return fmt.Errorf("the hosts file: %w", err)
	}
	leftovers, err := filepath.Glob(filepath.Join(filepath.Dir(path), tempPrefix+"*"))
	if err != nil {
		return fmt.Errorf("looking for temporary files next to the hosts file: %w", err)
	}
	for _, leftover := range leftovers {
		if err := os.Remove(leftover); err != nil { //nolint:gosec // beside what the user configured
			return fmt.Errorf("removing a temporary file next to the hosts file: %w", err)
		}
	}
	if isMountPoint(path) {
		return mountedAlone(path)
	}
	return nil
}

// isMountPoint reports whether a file itself is mounted. Kernels before 5.8 do not say: there the first replacement
// fails.
func isMountPoint(path string) bool {
	var file unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, path, 0, 0, &file)
	return err == nil && file.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0
}
