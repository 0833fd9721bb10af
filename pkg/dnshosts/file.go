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

	"github.com/application-grid/application-grid/pkg/program/atomicfile"
)

// maxFileSize is the largest size of a hosts file, in bytes. A larger file was probably given by mistake.
const maxFileSize = 64 << 20

// tempPrefix begins the names of the temporary files. They are in the hosts file's directory, because a file can be
// renamed within one file system only.
const tempPrefix = ".statefulset-grid-daemon-"

// File is a hosts file on disk. Its methods are for one goroutine at a time.
type File struct {
	// Path is the path of the file. If it is a symbolic link, the link stays and its target is replaced.
	Path string

	// seen is the state of the file when it was last read or written; nil if it was not there, or if that failed.
	seen fs.FileInfo
	// wrote has the lines that were written last. overwritten counts how often other lines were found in their place,
	// the last time at overwrittenAt.
	wrote         []string
	overwritten   int
	overwrittenAt time.Time
	// beforeRename is for tests.
	beforeRename func()
}

// Load returns the lines of the file's block, or those that were written last if the file has lost its block; nil if
// neither is there.
func (f *File) Load() (block []string, err error) {
	data, err := f.load(os.O_RDONLY)
	if err != nil {
		return nil, fmt.Errorf("reading the hosts file: %w", err)
	}
	if block = Parse(data).Block; block == nil {
		block = f.wrote
	}
	return block, nil
}

// load reads the file, opened with these flags. Without os.O_CREATE it need not exist.
func (f *File) load(flags int) ([]byte, error) {
	f.seen = nil
	file, err := os.OpenFile(f.Path, flags, newMode) //nolint:gosec // the user names it
	if errors.Is(err, fs.ErrNotExist) && flags&os.O_CREATE == 0 {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s is not a regular file but %s", f.Path, info.Mode().Type())
	case info.Size() > maxFileSize:
		return nil, fmt.Errorf("%s is bigger than %d MiB: is --hostpath right?", f.Path, maxFileSize>>20)
	}
	data, err := io.ReadAll(file)
	if err == nil {
		f.seen = info
	}
	return data, err
}

// sameVersion reports whether a file was neither written nor replaced in between, as far as its inode shows.
func sameVersion(a, b fs.FileInfo) bool {
	return os.SameFile(a, b) && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime())
}

// errChanged means that someone else writes the file at the same time.
var errChanged = errors.New("the hosts file changed while it was about to be replaced")

// Write writes these lines as the file's block, and reports whether it replaced the file. After any failure the file is
// the complete old one or the complete new one. The old one is empty if there was none.
func (f *File) Write(lines []string) (replaced bool, err error) {
	const tries = 5
	for range tries {
		if replaced, err = f.tryWrite(lines); !errors.Is(err, errChanged) {
			break
		}
	}
	if err != nil {
		return false, fmt.Errorf("writing the hosts file: %w", err)
	}
	return replaced, nil
}

func (f *File) tryWrite(lines []string) (replaced bool, err error) {
	before, err := f.load(os.O_RDONLY | os.O_CREATE) // a link may lead to a file that is not there yet
	if err != nil {
		return false, err
	}
	content := Parse(before)
	if f.wrote != nil && !slices.Equal(f.wrote, content.Block) {
		f.overwritten, f.overwrittenAt = f.overwrites()+1, time.Now()
	}
	f.wrote = content.Block
	data := content.Render(lines)
	if bytes.Equal(data, before) {
		return false, nil
	}
	if err := f.replace(data); err != nil {
		return false, err
	}
	f.wrote = append([]string{}, lines...)
	return true, nil
}

// overwrites returns how often other lines were found in place of the written ones, with at most rivalry in between.
func (f *File) overwrites() int {
	if time.Since(f.overwrittenAt) > rivalry {
		return 0
	}
	return f.overwritten
}

// replace replaces the file, which was read, by one with this content.
func (f *File) replace(data []byte) error {
	path, err := filepath.EvalSymlinks(f.Path)
	if err != nil {
		return err
	}
	// If the process is killed, the next one removes the temporary file (RemoveLeftovers).
	aside, err := os.CreateTemp(filepath.Dir(path), tempPrefix)
	if err != nil {
		return err
	}
	var written fs.FileInfo
	err = atomicfile.Replace(path, aside, func() error {
		if _, err := aside.Write(data); err != nil {
			return err
		}
		return f.dress(aside)
	}, func() (err error) {
		if f.beforeRename != nil {
			f.beforeRename()
		}
		if f.Changed() {
			return errChanged
		}
		written, err = aside.Stat()
		return err
	})
	if errors.Is(err, syscall.EBUSY) || errors.Is(err, syscall.EXDEV) {
		// Such a file can only be overwritten, and readers would see parts of it.
		return fmt.Errorf("%s is mounted as a single file and cannot be replaced as a whole: mount its directory %s "+
			"instead, here and in CoreDNS: %w", path, filepath.Dir(path), err)
	}
	if err == nil {
		f.seen = written
	}
	return err
}

// newMode is the mode of a new file: CoreDNS runs as another user.
const newMode fs.FileMode = 0o644

// dress gives the new file the mode and the owner of the old one, and a later modification time.
//
// CoreDNS' hosts plugin rereads a file when its size or its modification time has changed. Without a later modification
// time it would keep the old version if the new one has the same size and was written within the same tick of the file
// system's clock, or after the clock was set back.
func (f *File) dress(aside *os.File) error {
	mode, old := f.seen.Mode().Perm(), f.seen.ModTime()
	if f.seen.Size() == 0 { // it was just made, within the umask
		mode = newMode
	}
	if stat, ok := f.seen.Sys().(*syscall.Stat_t); ok {
		// Chown needs privileges. Without them readers can still read the file.
		_ = aside.Chown(int(stat.Uid), int(stat.Gid))
	}
	if err := aside.Chmod(mode); err != nil {
		return err
	}
	// Some file systems store times in steps of one or two seconds.
	for _, wanted := range []time.Time{time.Now(), old.Add(2 * time.Second)} {
		if err := os.Chtimes(aside.Name(), time.Time{}, wanted); err != nil {
			return err
		}
		if info, err := aside.Stat(); err != nil || info.ModTime().After(old) {
			return err
		}
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

// RemoveLeftovers removes temporary files of an earlier process that was killed, as far as it can.
func (f *File) RemoveLeftovers() {
	path, err := filepath.EvalSymlinks(f.Path)
	if err != nil {
		return // no earlier process has written it
	}
	leftovers, _ := filepath.Glob(filepath.Join(filepath.Dir(path), tempPrefix+"*"))
	for _, leftover := range leftovers {
		_ = os.Remove(leftover) //nolint:gosec // beside what the user configured
	}
}
