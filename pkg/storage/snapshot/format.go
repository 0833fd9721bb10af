package snapshot

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	kjson "sigs.k8s.io/json"

	"github.com/application-grid/application-grid/pkg/storage/facts"
	"github.com/application-grid/application-grid/pkg/storage/wire"
)

// A file has this form:
//
//	8 bytes   magic
//	4 bytes   version of the format, big endian
//	          gzip: values
//	32 bytes  SHA-256 of everything before
//
// A value has its length before it, as an uvarint. The first one is the content as JSON. Then come, for each of its
// sections, the objects as protobuf messages, an empty value, and what encodeShown returns.
const (
	magic = "agridsnp"
	// version grows when anything of the form changes, also a name in facts.State.
	version = 3
	// headSize is the number of bytes before the values.
	headSize = len(magic) + 4
)

// maxValue is the most bytes of one value. By default etcd stores no object above 1.5 MiB.
const maxValue = 64 << 20

// errFormat is the error for a file that does not have this format, or is not complete.
var errFormat = errors.New("damaged, or not a snapshot")

// errVersion is the error for a complete file in another version of the format.
var errVersion = errors.New("its format is version")

// content is the content of a file.
type content struct {
	// Revision is larger than every revision that was given out when the file was written.
	Revision uint64
	// State is nil in a revision file.
	State *facts.State
}

// write writes a file.
func (c content) write(to io.Writer) error {
	sum := sha256.New()
	summed := io.MultiWriter(to, sum)
	if _, err := summed.Write(binary.BigEndian.AppendUint32([]byte(magic), version)); err != nil {
		return err
	}
	compressed, err := gzip.NewWriterLevel(summed, gzip.BestSpeed)
	if err != nil {
		return err
	}
	if err := c.writeValues(compressed); err != nil {
		return err
	}
	if err := compressed.Close(); err != nil {
		return err
	}
	_, err = to.Write(sum.Sum(nil))
	return err
}

// digest returns the digest of a state without its AsOf, Revision and ShareMark.
func digest(state *facts.State) ([sha256.Size]byte, error) {
	same := *state
	same.AsOf, same.Revision, same.ShareMark = time.Time{}, 0, nil
	sum := sha256.New()
	err := content{State: &same}.writeValues(sum)
	return [sha256.Size]byte(sum.Sum(nil)), err
}

// writeValues writes all values. Equal contents have equal values, because JSON sorts the keys of maps.
func (c content) writeValues(to io.Writer) error {
	head, err := json.Marshal(c)
	if err != nil {
		return err
	}
	out := bufio.NewWriter(to)
	put := func(value []byte) {
		_, _ = out.Write(binary.AppendUvarint(out.AvailableBuffer(), uint64(len(value)))) // Flush returns the error
		_, _ = out.Write(value)
	}
	put(head)
	if c.State != nil {
		var buffer []byte
		for _, section := range c.State.Sections {
			for _, o := range section.Objects {
				buffer = wire.AppendObject(buffer[:0], o.Meta, o.Body, 0)
				put(buffer)
			}
			put(nil)
			put(encodeShown(section.Shown))
		}
	}
	return out.Flush()
}

// encodeShown returns the revisions and then the digests, 8 bytes each, big endian. Each revision is the difference to
// the one before, which compresses well.
func encodeShown(shown []facts.Shown) []byte {
	value := make([]byte, 0, 16*len(shown))
	before := uint64(0)
	for _, s := range shown {
		value = binary.BigEndian.AppendUint64(value, s.Revision-before)
		before = s.Revision
	}
	for _, s := range shown {
		value = binary.BigEndian.AppendUint64(value, s.Digest)
	}
	return value
}

// decodeShown reads what encodeShown returned for that many objects, or for an input that is not shown.
func decodeShown(value []byte, objects int) ([]facts.Shown, error) {
	if len(value) == 0 {
		return nil, nil
	}
	if len(value) != 16*objects {
		return nil, fmt.Errorf("%w: %d bytes say how %d objects were shown", errFormat, len(value), objects)
	}
	shown := make([]facts.Shown, objects)
	revision := uint64(0)
	for i := range shown {
		revision += binary.BigEndian.Uint64(value[8*i:])
		shown[i] = facts.Shown{Revision: revision, Digest: binary.BigEndian.Uint64(value[8*(objects+i):])}
	}
	return shown, nil
}

// read reads a file of size bytes. It verifies the checksum before it reads a value.
func read(file io.ReadSeeker, size int64) (content, error) {
	var none content
	if size < int64(headSize+sha256.Size) {
		return none, fmt.Errorf("%w: %d bytes are too few", errFormat, size)
	}
	payload := size - sha256.Size
	head := make([]byte, headSize)
	sum := sha256.New()
	if _, err := io.ReadFull(io.TeeReader(file, sum), head); err != nil {
		return none, err
	}
	if !bytes.HasPrefix(head, []byte(magic)) {
		return none, fmt.Errorf("%w: it does not begin with %q", errFormat, magic)
	}
	if _, err := io.CopyN(sum, file, payload-int64(headSize)); err != nil {
		return none, err
	}
	expected := make([]byte, sha256.Size)
	if _, err := io.ReadFull(file, expected); err != nil {
		return none, err
	}
	if !bytes.Equal(sum.Sum(nil), expected) {
		return none, fmt.Errorf("%w: its checksum is wrong", errFormat)
	}
	if v := binary.BigEndian.Uint32(head[len(magic):]); v != version {
		return none, fmt.Errorf("%w %d, this program reads %d", errVersion, v, version)
	}
	if _, err := file.Seek(int64(headSize), io.SeekStart); err != nil {
		return none, err
	}
	decompressed, err := gzip.NewReader(io.LimitReader(file, payload-int64(headSize)))
	if err != nil {
		return none, err
	}
	return readValues(bufio.NewReaderSize(decompressed, 64<<10))
}

// readValues reads all values.
func readValues(from *bufio.Reader) (content, error) {
	values := valueReader{from: from}
	head, err := values.next()
	if err != nil {
		return content{}, err
	}
	var c content
	strict, err := kjson.UnmarshalStrict(head, &c, kjson.DisallowUnknownFields)
	if err = cmp.Or(err, errors.Join(strict...)); err != nil {
		return content{}, fmt.Errorf("%w: %w", errFormat, err)
	}
	if c.State != nil {
		for i := range c.State.Sections {
			if err := values.section(&c.State.Sections[i]); err != nil {
				return content{}, err
			}
		}
	}
	if _, err := from.ReadByte(); !errors.Is(err, io.EOF) {
		return content{}, fmt.Errorf("%w: it does not end after the last section", errFormat)
	}
	return c, nil
}

// valueReader reads values.
type valueReader struct {
	from   *bufio.Reader
	buffer []byte
}

// next returns the next value, which is overwritten by the one after it.
func (r *valueReader) next() ([]byte, error) {
	length, err := binary.ReadUvarint(r.from)
	if err != nil {
		return nil, err
	}
	if length > maxValue {
		return nil, fmt.Errorf("%w: a value of %d bytes", errFormat, length)
	}
	r.buffer = slices.Grow(r.buffer[:0], int(length))[:length]
	_, err = io.ReadFull(r.from, r.buffer)
	return r.buffer, err
}

// section reads the objects of a section, and how they were shown.
func (r *valueReader) section(section *facts.Section) error {
	for {
		value, err := r.next()
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
	value, err := r.next()
	if err == nil {
		section.Shown, err = decodeShown(value, len(section.Objects))
	}
	return err
}
