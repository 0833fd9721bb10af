package snapshot

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/go-logr/logr"

	"github.com/application-grid/application-grid/pkg/atomicfile"
	"github.com/application-grid/application-grid/pkg/storage"
)

const (
	snapshotName = "snapshot"
	revisionName = "revision"
	// asideSuffix is the ending of a file that is being written, rejectedSuffix that of one that is no good.
	// There is one of each at most, so that they do not fill the disk.
	asideSuffix    = ".new"
	rejectedSuffix = ".rejected"

	// reserve is how many revisions a process may give out before it has to reserve more.
	reserve = 1 << 32
	// maxRevision is what a revision on disk may be. The rest lasts for ever.
	maxRevision = 1 << 62
)

// Dir is a state directory. Its methods are not for several goroutines at once.
type Dir struct {
	path     string
	nodeName string
	logger   logr.Logger
	// reserved is the revision in the file.
	reserved uint64
	// size and written are those of the snapshot there is; 0 if there is none. asOf and sum are what it says.
	size    int64
	written time.Time
	asOf    time.Time
	sum     [sha256.Size]byte
}

// Open prepares a node's state directory, which is created if it is missing. The error says why nothing can be
// kept there; what is there can be read nevertheless.
func Open(path, nodeName string, logger logr.Logger) (*Dir, error) {
	d := &Dir{path: path, nodeName: nodeName, logger: logger}
	if err := os.MkdirAll(path, 0o700); err != nil {
		return d, fmt.Errorf("creating the state directory: %w", err)
	}
	return d, nil
}

// Load reads the snapshot; nil if there is none that may be served. One that may not is set aside, and that is
// logged. minRevision is above every revision that earlier processes gave out, as far as the directory knows.
func (d *Dir) Load() (state *storage.State, minRevision uint64) {
	if c, err := d.load(revisionName); err == nil {
		d.reserved = c.revision
	}
	c, err := d.load(snapshotName)
	if err != nil {
		return nil, d.reserved
	}
	d.asOf = c.state.AsOf
	if d.sum, err = digest(c.state); err != nil {
		d.logger.Error(err, "Writing the same snapshot again")
	}
	// The file "revision" is written first; this helps where it was lost.
	return c.state, max(d.reserved, c.revision)
}

// errNone is told for a file that is not there.
var errNone = errors.New("there is none")

// load reads one file. A bad one is set aside.
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
	rejected := path + rejectedSuffix
	d.logger.Error(err, "Not using a file of the state directory", "file", path, "setAside", rejected)
	if err := os.Rename(path, rejected); err != nil {
		d.logger.Error(err, "Cannot set it aside", "file", path)
	}
	d.size, d.written = 0, time.Time{}
	return content{}, err
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
	case c.revision > maxRevision:
		return content{}, fmt.Errorf("%w: a revision of %d", errFormat, c.revision)
	case (c.state != nil) != (name == snapshotName):
		return content{}, fmt.Errorf("%w: it is another file of a state directory", errFormat)
	case c.state != nil && c.state.NodeName != d.nodeName:
		return content{}, fmt.Errorf("it is of the node %q, this is %q", c.state.NodeName, d.nodeName)
	}
	if name == snapshotName {
		d.size, d.written = info.Size(), info.ModTime()
	}
	return c, nil
}

// Reserve keeps for this process the revisions from its first on; the next process begins above them.
func (d *Dir) Reserve(revision uint64) error {
	if revision+reserve/2 <= d.reserved {
		return nil
	}
	_, err := d.replace(revisionName, content{revision: revision + reserve})
	if err != nil {
		return fmt.Errorf("reserving revisions: %w", err)
	}
	d.reserved = revision + reserve
	return nil
}

// Save replaces the snapshot, and returns its size in bytes.
func (d *Dir) Save(state *storage.State, revision uint64, now time.Time) (int64, error) {
	if err := d.Reserve(revision); err != nil {
		return 0, err
	}
	size, err := d.replace(snapshotName, content{revision: d.reserved, state: state})
	if err != nil {
		return 0, fmt.Errorf("writing the snapshot: %w", err)
	}
	d.size, d.written = size, now
	return size, nil
}

// replace puts content in a file's place.
func (d *Dir) replace(name string, c content) (size int64, err error) {
	path := filepath.Join(d.path, name)
	aside, err := os.OpenFile(path+asideSuffix, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600) //nolint:gosec // in the state directory
	if err != nil {
		return 0, err
	}
	err = atomicfile.Replacement{Path: path, Aside: aside, Write: func(file *os.File) (err error) {
		size, err = c.write(file)
		return err
	}}.Replace()
	return size, err
}
