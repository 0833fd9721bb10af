package snapshot

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/application-grid/application-grid/pkg/storage/facts"
	"github.com/application-grid/application-grid/pkg/storage/wire"
)

// A file has this form:
//
//	8 bytes   magic
//	4 bytes   version of the format, big endian
//	          gzip: records
//	32 bytes  SHA-256 of everything before
//
// A record has its kind and the length of its value, both uvarint, and the value. Times and numbers have 8 bytes, big
// endian.
const (
	magic   = "agridsnp"
	version = 2
	// headSize is the number of bytes before the records.
	headSize = len(magic) + 4
)

// The kinds of records. A snapshot has recordRevision, recordAsOf, recordServed, recordNode, the addresses, and the
// sections, each followed by its objects and by how they were shown. Each file ends with recordEnd.
const (
	recordRevision = 1 // a number
	recordNode     = 2 // the name of the node
	recordAsOf     = 3 // microseconds since 1970
	recordSection  = 4 // the name of an input
	recordObject   = 5 // an object of the section, as a protobuf message
	recordAddress  = 6 // the IP address of a node, a space and its name
	recordServed   = 7 // a number: the revision of the history in which the state was shown
	// recordShown has two values for each object of the section: the revision at which it was shown, as the difference
	// to the object before (a varint), and the digest of what was shown (8 bytes).
	recordShown      = 8
	recordInternalIP = 9  // the name of a node of the site, and after a space each of its InternalIPs
	recordPartner    = 10 // the name of a node that exchanges facts with this one
	recordPodNotes   = 11 // what is kept of this node's pods, JSON of package livepods
	recordShareMark  = 12 // what names the state for the hub; there is none without a hub
	recordEnd        = 15
)

// maxRecord is the most bytes of one record. By default etcd stores no object above 1.5 MiB.
const maxRecord = 64 << 20

// errFormat is the error for a file that does not have this format, or is not complete.
var errFormat = errors.New("damaged, or not a snapshot")

// errVersion is the error for a complete file in another version of the format.
var errVersion = errors.New("its format is version")

// content is the content of a file.
type content struct {
	// revision is larger than every revision that was given out when the file was written.
	revision uint64
	// state is nil in a revision file.
	state *facts.State
}

// write writes a file and returns its size in bytes.
func (c content) write(to io.Writer) (int64, error) {
	sum := sha256.New()
	counted := &counter{to: io.MultiWriter(to, sum)}
	if _, err := counted.Write(binary.BigEndian.AppendUint32([]byte(magic), version)); err != nil {
		return 0, err
	}
	compressed, err := gzip.NewWriterLevel(counted, gzip.BestSpeed)
	if err != nil {
		return 0, err
	}
	records := &recordWriter{to: compressed}
	records.number(recordRevision, c.revision)
	if c.state != nil {
		records.number(recordAsOf, uint64(c.state.AsOf.UnixMicro()))
		records.number(recordServed, c.state.Revision)
		if c.state.ShareMark != nil {
			records.put(recordShareMark, c.state.ShareMark)
		}
		records.body(c.state)
	}
	records.put(recordEnd, nil)
	if records.err != nil {
		return 0, records.err
	}
	if err := compressed.Close(); err != nil {
		return 0, err
	}
	n, err := to.Write(sum.Sum(nil))
	return counted.n + int64(n), err
}

// digest returns the digest of a state without its AsOf and Revision.
func digest(state *facts.State) ([sha256.Size]byte, error) {
	sum := sha256.New()
	records := &recordWriter{to: sum}
	records.body(state)
	return [sha256.Size]byte(sum.Sum(nil)), records.err
}

// counter counts the bytes that are written through it.
type counter struct {
	to io.Writer
	n  int64
}

func (c *counter) Write(p []byte) (int, error) {
	n, err := c.to.Write(p)
	c.n += int64(n)
	return n, err
}

// recordWriter writes records until the first error.
type recordWriter struct {
	to     io.Writer
	err    error
	buffer []byte
}

// body writes the contents of a state.
func (w *recordWriter) body(state *facts.State) {
	w.put(recordNode, []byte(state.NodeName))
	for _, address := range slices.SortedFunc(maps.Keys(state.Addresses), netip.Addr.Compare) {
		w.put(recordAddress, []byte(address.String()+" "+state.Addresses[address]))
	}
	for _, name := range slices.Sorted(maps.Keys(state.InternalIPs)) {
		value := []byte(name)
		for _, address := range state.InternalIPs[name] {
			value = address.AppendTo(append(value, ' '))
		}
		w.put(recordInternalIP, value)
	}
	for _, name := range slices.Sorted(maps.Keys(state.Partners)) {
		w.put(recordPartner, []byte(name))
	}
	if len(state.PodNotes) > 0 {
		w.put(recordPodNotes, state.PodNotes)
	}
	for _, section := range state.Sections {
		w.put(recordSection, []byte(section.Input))
		for _, o := range section.Objects {
			w.buffer = wire.AppendObject(w.buffer[:0], o.Meta, o.Body, 0)
			w.put(recordObject, w.buffer)
		}
		if section.Shown != nil {
			w.put(recordShown, appendShown(w.buffer[:0], section.Shown))
		}
	}
}

func appendShown(dst []byte, all []facts.Shown) []byte {
	before := uint64(0)
	for _, shown := range all {
		//nolint:gosec // the difference may wrap around, and readShown wraps it back
		dst = binary.AppendVarint(dst, int64(shown.Revision-before))
		dst = binary.BigEndian.AppendUint64(dst, shown.Digest)
		before = shown.Revision
	}
	return dst
}

// readShown reads what appendShown wrote.
func readShown(value []byte) ([]facts.Shown, error) {
	all := []facts.Shown{}
	before := uint64(0)
	for len(value) > 0 {
		difference, n := binary.Varint(value)
		if n <= 0 || len(value) < n+8 {
			return nil, fmt.Errorf("%w: a revision that cannot be read", errFormat)
		}
		before += uint64(difference) //nolint:gosec // as above
		all = append(all, facts.Shown{Revision: before, Digest: binary.BigEndian.Uint64(value[n:])})
		value = value[n+8:]
	}
	return all, nil
}

func (w *recordWriter) number(kind, n uint64) { w.put(kind, binary.BigEndian.AppendUint64(nil, n)) }

func (w *recordWriter) put(kind uint64, value []byte) {
	if w.err != nil {
		return
	}
	head := binary.AppendUvarint(binary.AppendUvarint(make([]byte, 0, 16), kind), uint64(len(value)))
	if _, w.err = w.to.Write(head); w.err == nil {
		_, w.err = w.to.Write(value)
	}
}

// read reads a file of size bytes. It verifies the checksum before it reads a record.
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
	return readRecords(bufio.NewReaderSize(decompressed, 64<<10))
}

// readRecords reads all records up to recordEnd.
func readRecords(from *bufio.Reader) (content, error) {
	c := content{}
	state := &facts.State{}
	var value []byte
	for {
		kind, err := binary.ReadUvarint(from)
		if err != nil {
			return content{}, err
		}
		length, err := binary.ReadUvarint(from)
		if err != nil {
			return content{}, err
		}
		if length > maxRecord {
			return content{}, fmt.Errorf("%w: a record of %d bytes", errFormat, length)
		}
		if uint64(cap(value)) < length {
			value = make([]byte, length)
		}
		value = value[:length]
		if _, err := io.ReadFull(from, value); err != nil {
			return content{}, err
		}
		switch kind {
		case recordRevision:
			c.revision, err = number(value)
		case recordNode:
			c.state, state.NodeName = state, string(value)
		case recordAsOf:
			var micro uint64
			micro, err = number(value)
			state.AsOf = time.UnixMicro(int64(micro)) //nolint:gosec // bits, as they were written
		case recordSection:
			state.Sections = append(state.Sections, facts.Section{Input: string(value)})
		case recordObject:
			if len(state.Sections) == 0 {
				return content{}, fmt.Errorf("%w: an object outside of a section", errFormat)
			}
			var o *wire.Object
			if o, err = wire.ParseObject(value); err == nil {
				section := &state.Sections[len(state.Sections)-1]
				section.Objects = append(section.Objects, o)
			}
		case recordServed:
			state.Revision, err = number(value)
		case recordShareMark:
			state.ShareMark = bytes.Clone(value)
		case recordShown:
			err = addShown(state, value)
		case recordAddress:
			err = addAddress(state, string(value))
		case recordInternalIP:
			err = addInternalIPs(state, string(value))
		case recordPartner:
			if state.Partners == nil {
				state.Partners = make(map[string]struct{})
			}
			state.Partners[string(value)] = struct{}{}
		case recordPodNotes:
			state.PodNotes = bytes.Clone(value)
		case recordEnd:
			return c, nil
		default:
			err = fmt.Errorf("%w: a record of kind %d", errFormat, kind)
		}
		if err != nil {
			return content{}, err
		}
	}
}

// addShown adds the value of a recordShown to the section that was read last.
func addShown(state *facts.State, value []byte) error {
	if len(state.Sections) == 0 {
		return fmt.Errorf("%w: revisions outside of a section", errFormat)
	}
	section := &state.Sections[len(state.Sections)-1]
	var err error
	section.Shown, err = readShown(value)
	if err == nil && len(section.Shown) != len(section.Objects) {
		err = fmt.Errorf("%w: %d revisions of %d objects", errFormat, len(section.Shown), len(section.Objects))
	}
	return err
}

func addAddress(state *facts.State, value string) error {
	text, name, _ := strings.Cut(value, " ")
	address, err := netip.ParseAddr(text)
	if err != nil {
		return fmt.Errorf("%w: %w", errFormat, err)
	}
	if state.Addresses == nil {
		state.Addresses = make(map[netip.Addr]string)
	}
	state.Addresses[address] = name
	return nil
}

func addInternalIPs(state *facts.State, value string) error {
	fields := strings.Split(value, " ")
	addresses := make([]netip.Addr, 0, len(fields)-1)
	for _, text := range fields[1:] {
		address, err := netip.ParseAddr(text)
		if err != nil {
			return fmt.Errorf("%w: %w", errFormat, err)
		}
		addresses = append(addresses, address)
	}
	if state.InternalIPs == nil {
		state.InternalIPs = make(map[string][]netip.Addr)
	}
	state.InternalIPs[fields[0]] = addresses
	return nil
}

func number(value []byte) (uint64, error) {
	if len(value) != 8 {
		return 0, fmt.Errorf("%w: a number of %d bytes", errFormat, len(value))
	}
	return binary.BigEndian.Uint64(value), nil
}
