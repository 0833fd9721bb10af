package journal

import (
	"crypto/aes"
	"crypto/cipher"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"slices"
)

// A frame is the length of its payload and the checksum of length and payload, four bytes each, big endian, and the
// payload. The payload is a list of entries: the length of the key and the key, and one more than the length of the
// value and the value, or 0 for a key that is removed. Lengths are varints. A sealed payload is that list in AES-GCM,
// after its nonce.
const (
	frameHead  = 8
	maxPayload = 1 << 30
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

var (
	// errCut means that there is no whole frame.
	errCut = errors.New("cut off or damaged")
	// ErrKey means that a file is sealed with another key, or is sealed and there is no key, or the other way round.
	ErrKey = errors.New("it was written with another key, or without one: give the key with which it was written, or " +
		"remove it")
	errEntries = errors.New("it is no list of keys and values")
)

// seal encrypts payloads; nil leaves them as they are.
type seal struct{ cipher.AEAD }

// newSeal makes a seal of a key of 32 bytes.
func newSeal(key []byte) (*seal, error) {
	if len(key) == 0 {
		return nil, nil //nolint:nilnil // without a key there is no seal
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	return &seal{aead}, err
}

// place is what a sealed payload is bound to: its file and its position there.
func place(generation uint64, offset int64) []byte {
	return fmt.Appendf(nil, "%d@%d", generation, offset)
}

// magic is what a file begins with.
func (s *seal) magic() string {
	if s == nil {
		return "application-grid journal 1 plain \n"
	}
	return "application-grid journal 1 sealed\n"
}

func (s *seal) close(payload []byte, generation uint64, offset int64) []byte {
	if s == nil {
		return payload
	}
	return s.Seal(nil, nil, payload, place(generation, offset)) //nolint:gosec // it makes its own nonce
}

func (s *seal) open(payload []byte, generation uint64, offset int64) ([]byte, error) {
	if s == nil {
		return payload, nil
	}
	opened, err := s.Open(nil, nil, payload, place(generation, offset))
	if err != nil {
		return nil, ErrKey
	}
	return opened, nil
}

// encode encodes changes; a nil value removes the key.
func encode(changes map[string][]byte) []byte {
	var payload []byte
	for _, key := range slices.Sorted(maps.Keys(changes)) {
		value := changes[key]
		payload = binary.AppendUvarint(payload, uint64(len(key)))
		payload = append(payload, key...)
		if value == nil {
			payload = binary.AppendUvarint(payload, 0)
			continue
		}
		payload = binary.AppendUvarint(payload, uint64(len(value))+1)
		payload = append(payload, value...)
	}
	return payload
}

// apply applies a payload to a state. The values share memory with the payload.
func apply(payload []byte, state map[string][]byte) error {
	for len(payload) > 0 {
		key, rest, ok := take(payload, 0)
		if !ok {
			return errEntries
		}
		value, rest, ok := take(rest, 1)
		if !ok {
			return errEntries
		}
		if value == nil {
			delete(state, string(key))
		} else {
			state[string(key)] = value
		}
		payload = rest
	}
	return nil
}

// take takes one item whose length is written with shift added. It is nil if what is written is less than shift.
func take(payload []byte, shift uint64) (item, rest []byte, ok bool) {
	length, n := binary.Uvarint(payload)
	if n <= 0 {
		return nil, nil, false
	}
	payload = payload[n:]
	if length < shift {
		return nil, payload, true
	}
	length -= shift
	if length > uint64(len(payload)) {
		return nil, nil, false
	}
	return payload[:length:length], payload[length:], true
}

func appendFrame(dst, payload []byte) []byte {
	head := len(dst)
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(payload))) //nolint:gosec // at most maxPayload
	sum := crc32.Update(crc32.Checksum(dst[head:], castagnoli), castagnoli, payload)
	dst = binary.BigEndian.AppendUint32(dst, sum)
	return append(dst, payload...)
}

// cutFrame takes the first frame of data.
func cutFrame(data []byte) (payload, rest []byte, err error) {
	if len(data) < frameHead {
		return nil, nil, errCut
	}
	length := int64(binary.BigEndian.Uint32(data))
	if length > maxPayload || length > int64(len(data)-frameHead) {
		return nil, nil, errCut
	}
	payload, rest = data[frameHead:frameHead+length], data[frameHead+length:]
	if crc32.Update(crc32.Checksum(data[:4], castagnoli), castagnoli, payload) != binary.BigEndian.Uint32(data[4:]) {
		return nil, nil, errCut
	}
	return payload, rest, nil
}
