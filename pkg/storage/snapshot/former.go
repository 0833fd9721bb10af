package snapshot

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"

	"github.com/application-grid/application-grid/pkg/storage/facts"
	"github.com/application-grid/application-grid/pkg/storage/wire"
)

// Before the store existed, a state directory had two files for each node, in the format below. They are read while the
// store is empty, and removed once it is not. This code can be removed one release after the first that has it: by then
// no node starts from such a directory.
//
// A file is formerHead, values in gzip, and the SHA-256 of everything before. A value is preceded by its length as an
// uvarint. The first one is formerContent as JSON. For each of its sections follow the objects as messages, an empty
// value, and how they were shown: the revisions, each as the difference to the one before, and then the digests, 8
// bytes each.
const (
	formerHead                    = "agridsnp\x00\x00\x00\x03"
	formerSnapshot, formerReserve = "snapshot-", "revision-"
)

type formerContent struct {
	Revision uint64
	State    *facts.Snapshot
}

func (d *Dir) formerFile(prefix string) string {
	return filepath.Join(d.Path, prefix+url.PathEscape(d.NodeName))
}

func (d *Dir) readFormer() (c content, revision uint64, err error) {
	for _, prefix := range []string{formerReserve, formerSnapshot} {
		var read formerContent
		data, err := os.ReadFile(d.formerFile(prefix))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			read, err = parseFormer(data)
		}
		if err == nil && read.State != nil {
			c, err = contentOf(read.State)
		}
		if err != nil {
			return content{}, revision, fmt.Errorf("%s: %w", d.formerFile(prefix), err)
		}
		revision = max(revision, read.Revision)
	}
	return c, revision, nil
}

// removeFormer removes the former files once the store is on the disk. If it cannot, it tries again the next time.
func (d *Dir) removeFormer() {
	if !d.former {
		return
	}
	d.former = false
	for _, prefix := range []string{formerReserve, formerSnapshot} {
		for _, suffix := range []string{"", ".new", ".rejected"} {
			if err := os.Remove(d.formerFile(prefix) + suffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
				d.former = true
			}
		}
	}
}

func parseFormer(data []byte) (read formerContent, err error) {
	const most = 256 << 20
	end := len(data) - sha256.Size
	if end < len(formerHead) || string(data[:len(formerHead)]) != formerHead ||
		sha256.Sum256(data[:end]) != [sha256.Size]byte(data[end:]) {
		return read, errForm
	}
	unzipped, err := gzip.NewReader(bytes.NewReader(data[len(formerHead):end]))
	if err != nil {
		return read, err
	}
	var from formerValues
	if from.left, err = io.ReadAll(io.LimitReader(unzipped, most)); err != nil {
		return read, err
	}
	if err := json.Unmarshal(from.next(), &read); err != nil || read.State == nil {
		return read, err
	}
	for i := range read.State.Sections {
		section := &read.State.Sections[i]
		for value := from.next(); len(value) > 0; value = from.next() {
			o, err := wire.ParseObject(value)
			if err != nil {
				return read, err
			}
			section.Objects = append(section.Objects, o)
		}
		from.next() // how they were shown: by other digests than today's, so that they are shown as new ones
	}
	return read, from.err
}

// formerValues are the values that are left. err is set if one is cut off.
type formerValues struct {
	left []byte
	err  error
}

func (f *formerValues) next() []byte {
	length, n := binary.Uvarint(f.left)
	if n <= 0 || length > uint64(len(f.left)-n) { //nolint:gosec // n is at most the length
		f.left, f.err = nil, errForm
		return nil
	}
	value := f.left[n:][:length]
	f.left = f.left[n:][length:]
	return value
}
