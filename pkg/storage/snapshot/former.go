package snapshot

import (
	"bufio"
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
	State    *facts.State
}

func (d *Dir) formerFile(prefix string) string {
	return filepath.Join(d.Path, prefix+url.PathEscape(d.NodeName))
}

func (d *Dir) readFormer() (content, uint64, error) {
	var revision uint64
	var state *facts.State
	for _, prefix := range []string{formerReserve, formerSnapshot} {
		data, err := os.ReadFile(d.formerFile(prefix))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		var read formerContent
		if err == nil {
			read, err = parseFormer(data)
		}
		if err != nil {
			return content{}, revision, fmt.Errorf("%s: %w", d.formerFile(prefix), err)
		}
		revision, state = max(revision, read.Revision), read.State
	}
	if state == nil {
		return content{}, revision, nil
	}
	c, err := contentOf(state)
	return c, revision, err
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
	end := len(data) - sha256.Size
	if end < len(formerHead) || string(data[:len(formerHead)]) != formerHead ||
		sha256.Sum256(data[:end]) != [sha256.Size]byte(data[end:]) {
		return read, errForm
	}
	unzipped, err := gzip.NewReader(bytes.NewReader(data[len(formerHead):end]))
	if err != nil {
		return read, err
	}
	from := bufio.NewReader(unzipped)
	head, err := nextFormer(from)
	if err == nil {
		err = json.Unmarshal(head, &read)
	}
	if err != nil || read.State == nil {
		return read, err
	}
	for i := range read.State.Sections {
		if err := parseFormerSection(from, &read.State.Sections[i]); err != nil {
			return read, err
		}
	}
	return read, nil
}

func nextFormer(from *bufio.Reader) ([]byte, error) {
	const most = 64 << 20
	length, err := binary.ReadUvarint(from)
	if err != nil || length > most {
		return nil, errors.Join(errForm, err)
	}
	value := make([]byte, length)
	_, err = io.ReadFull(from, value)
	return value, err
}

func parseFormerSection(from *bufio.Reader, section *facts.Section) error {
	for {
		value, err := nextFormer(from)
		if err != nil {
			return err
		}
		if len(value) == 0 {
			break
		}
		o, err := wire.ParseObject(value)
		if err != nil {
			return err
		}
		section.Objects = append(section.Objects, o)
	}
	shown, err := nextFormer(from)
	if err != nil || len(shown) == 0 {
		return err
	}
	count, revision := len(section.Objects), uint64(0)
	if len(shown) != 16*count {
		return errForm
	}
	for i := range count {
		revision += binary.BigEndian.Uint64(shown[8*i:])
		section.Shown = append(section.Shown, facts.Shown{Revision: revision,
			Digest: binary.BigEndian.Uint64(shown[8*(count+i):])})
	}
	return nil
}
