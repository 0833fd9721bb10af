package store

import (
	"bufio"
	"bytes"
	"compress/flate"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"iter"
	"slices"
	"strconv"
	"strings"
)

// A file is a head and transactions. The head is a line of text, and a salt. A transaction is one or more frames. The
// last one has the end mark; without it the transaction is ignored. The first transaction of a file is the whole state,
// each later one a commit.
//
// A frame is the length of its body and a checksum, four bytes each, big endian, and the body. The checksum covers the
// checksum before it, the length and the body; the first one covers the head. So bytes from a value, or from another
// file, are never taken for a frame: their checksum follows another one.
//
// A body is a byte of flags and entries, compressed if that makes them smaller. A sealed body is the nonce and the body
// in AES-GCM, bound to the file and the position. An entry is the length of the key and the key, and one more than the
// length of the value and the value, or 0 for a key that is removed. Lengths are varints.
const (
	magicPrefix = "application-grid store "
	version     = 2 // the first one
	magicPlain  = magicPrefix + "2 plain \n"
	magicSealed = magicPrefix + "2 sealed\n"
	saltSize    = 16
	headSize    = len(magicPlain) + saltSize
	frameHead   = 8

	// frameSize is about how many bytes of entries a frame has. A larger entry has a frame of its own.
	frameSize = 256 << 10
	// maxFrame is the largest size of a frame in bytes, before and after it is compressed.
	maxFrame = 64 << 20

	flagEnd        = 1
	flagCompressed = 2
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

var (
	// errEnd means that no valid frame follows.
	errEnd = errors.New("cut off or damaged")
	// ErrKey means that the newest file is sealed with another key, or that only one of the file and this Store has a
	// key.
	ErrKey = errors.New("it was written with another key, or without one: give the key with which it was written, or " +
		"remove it")
	// errVersion means that a file is of another version of the format.
	errVersion = errors.New("it is in another version of the format: it stays in place and is not used")
	errForm    = errors.New("it does not begin as a file of a store does")
	errTooBig  = fmt.Errorf("a value has more than %d bytes", maxFrame)
)

// newSeal makes a cipher of a key of 32 bytes; nil without a key.
func newSeal(key []byte) (cipher.AEAD, error) {
	if len(key) == 0 {
		return nil, nil //nolint:nilnil // without a key nothing is sealed
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCMWithRandomNonce(block)
}

// position is a position in a file: where the next frame begins, and the checksum before it.
type position struct {
	seal       cipher.AEAD
	generation uint64
	offset     int64
	// inflated is how many bytes of entries are before it, which is what reading them costs.
	inflated int64
	sum      [4]byte
}

func (c *position) checksum(length, body []byte) (sum [4]byte) {
	s := crc32.Update(crc32.Checksum(c.sum[:], castagnoli), castagnoli, length)
	binary.BigEndian.PutUint32(sum[:], crc32.Update(s, castagnoli, body))
	return sum
}

// place returns the data to which a sealed body is bound.
func (c *position) place() []byte { return fmt.Appendf(nil, "%d@%d", c.generation, c.offset) }

// begin makes the head of a file.
func (c *position) begin() []byte {
	magic := magicPlain
	if c.seal != nil {
		magic = magicSealed
	}
	salt := make([]byte, saltSize)
	_, _ = rand.Read(salt) // it never fails
	head := append([]byte(magic), salt...)
	c.skipHead(head)
	return head
}

// skipHead sets the position to the end of a head.
func (c *position) skipHead(head []byte) {
	binary.BigEndian.PutUint32(c.sum[:], crc32.Checksum(head, castagnoli))
	c.offset = int64(len(head))
}

// readHead reads the head of a file of so many bytes.
func (c *position) readHead(from io.Reader, size int64) error {
	head := make([]byte, headSize)
	n, err := io.ReadFull(from, head)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) {
		return err
	}
	switch begin := string(head[:min(n, len(magicPlain))]); {
	case n == headSize && begin == magicPlain && c.seal == nil, n == headSize && begin == magicSealed && c.seal != nil:
		c.skipHead(head)
		return nil
	case n == headSize && (begin == magicPlain || begin == magicSealed):
		return ErrKey
	case c.isForeign(head[:n], from, size):
		return errVersion
	default:
		return errForm
	}
}

// isForeign reports whether a file is of a later version of the format. If its first frame follows a head of this
// version, only the number of the version is damaged.
func (c *position) isForeign(head []byte, from io.Reader, size int64) bool {
	line, ok := strings.CutPrefix(string(head), magicPrefix)
	number, _, _ := strings.Cut(line, " ")
	if later, err := strconv.ParseUint(number, 10, 64); !ok || err != nil || later <= version {
		return false
	}
	copy(head[len(magicPrefix):], strconv.Itoa(version))
	c.skipHead(head)
	_, _, err := c.readFrame(from, size-c.offset)
	return err != nil && !errors.Is(err, ErrKey)
}

// frame makes the next frame, of entries that are not larger than one may be.
func (c *position) frame(entries []byte, flags byte) []byte {
	small := entries
	if compressed := compress(entries); len(compressed) < len(entries) {
		small, flags = compressed, flags|flagCompressed
	}
	body := append([]byte{flags}, small...)
	if c.seal != nil {
		body = c.seal.Seal(nil, nil, body, c.place()) //nolint:gosec // it makes its own nonce
	}
	length := binary.BigEndian.AppendUint32(nil, uint32(len(body))) //nolint:gosec // at most maxFrame
	c.sum = c.checksum(length, body)
	whole := bytes.Join([][]byte{length, c.sum[:], body}, nil)
	c.offset += int64(len(whole))
	c.inflated += int64(len(entries))
	return whole
}

func compress(entries []byte) []byte {
	const worthwhile = 256
	if len(entries) < worthwhile {
		return entries
	}
	var small bytes.Buffer
	to, _ := flate.NewWriter(&small, flate.BestSpeed) // a valid level
	_, _ = to.Write(entries)                          // a buffer takes everything
	_ = to.Close()
	return small.Bytes()
}

// readFrame reads the next frame of a file. left is how many bytes the file has left. The error is errEnd if no whole
// frame follows, ErrKey if the frame is sealed with another key, or one of the system.
func (c *position) readFrame(from io.Reader, left int64) (entries []byte, flags byte, err error) {
	if left < frameHead {
		return nil, 0, errEnd
	}
	head := make([]byte, frameHead)
	if _, err := io.ReadFull(from, head); err != nil {
		return nil, 0, err
	}
	size := int64(binary.BigEndian.Uint32(head))
	if size == 0 || size > maxFrame || size > left-frameHead {
		return nil, 0, errEnd
	}
	body := make([]byte, size)
	if _, err := io.ReadFull(from, body); err != nil {
		return nil, 0, err
	}
	sum := c.checksum(head[:4], body)
	if !bytes.Equal(sum[:], head[4:]) {
		return nil, 0, errEnd
	}
	if c.seal != nil {
		if body, err = c.seal.Open(nil, nil, body, c.place()); err != nil || len(body) == 0 {
			return nil, 0, ErrKey
		}
	}
	c.sum, c.offset = sum, c.offset+frameHead+size
	flags, entries = body[0], body[1:]
	if flags&flagCompressed != 0 {
		// Entries that are too long are cut, so that they end within an entry, which is an error.
		entries, err = io.ReadAll(io.LimitReader(flate.NewReader(bytes.NewReader(entries)), maxFrame))
	}
	c.inflated += int64(len(entries))
	return entries, flags, err
}

// write writes one transaction, with a nil value for each removed key. mark returns the value of markKey, and is called
// when the size of the transaction is known. After an error a part of it may have been written.
func (c *position) write(to io.Writer, entries iter.Seq2[string, []byte], mark func(bytes int64) []byte) error {
	var frame []byte
	begin := c.offset
	flush := func(flags byte) error {
		_, err := to.Write(c.frame(frame, flags))
		frame = frame[:0]
		return err
	}
	for key, value := range entries {
		if len(key)+len(value) > maxFrame-frameSize {
			return errTooBig
		}
		if len(frame) > 0 && len(frame)+len(key)+len(value) > frameSize {
			if err := flush(0); err != nil {
				return err
			}
		}
		frame = appendEntry(frame, key, value)
	}
	frame = appendEntry(frame, markKey, mark(c.offset-begin+int64(len(frame))))
	return flush(flagEnd)
}

func appendEntry(to []byte, key string, value []byte) []byte {
	to = append(binary.AppendUvarint(to, uint64(len(key))), key...)
	if value == nil {
		return binary.AppendUvarint(to, 0)
	}
	return append(binary.AppendUvarint(to, uint64(len(value))+1), value...)
}

// entry is one change.
type entry struct {
	key   string
	value []byte
}

// read reads the next transaction. The error is errEnd if no whole one follows.
func (c *position) read(from *bufio.Reader, size int64) ([]entry, error) {
	var all []entry
	for {
		entries, flags, err := c.readFrame(from, size-c.offset)
		if err != nil {
			return nil, err
		}
		for left := bytes.NewBuffer(entries); left.Len() > 0; {
			key, keyErr := take(left, 0)
			value, err := take(left, 1)
			if keyErr != nil || err != nil {
				return nil, errEnd
			}
			all = append(all, entry{string(key), value})
		}
		if flags&flagEnd != 0 {
			return all, nil
		}
	}
}

// take reads one item whose length is encoded with shift added. The item is nil if the encoded number is less than
// shift.
func take(from *bytes.Buffer, shift uint64) ([]byte, error) {
	length, err := binary.ReadUvarint(from)
	if err != nil || length < shift {
		return nil, err
	}
	if length -= shift; length > uint64(from.Len()) { //nolint:gosec // never negative
		return nil, io.ErrUnexpectedEOF
	}
	return slices.Clip(from.Next(int(length))), nil //nolint:gosec // at most the length of the buffer
}
