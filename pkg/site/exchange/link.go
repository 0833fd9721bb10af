package exchange

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
)

// A connection begins with
//
//	asker   20 bytes  hello, with a nonce
//	asked   16 bytes  its nonce
//
// From a key of the site and both nonces follow two keys for this connection, one for each direction. They also depend
// on the cluster and on who asks whom, so nothing can be replayed, reflected, or said in another's name. Then there are
// frames: 4 bytes with the length, big endian, and what AES-GCM has sealed with the number of the frame as its nonce.
// The asker sends questions, and the asked node answers each of them. It may also send an answer without a question, to
// say that it stops.

const (
	// magic begins a hello. Its last byte is the version of all that follows.
	magic = "AGX\x02"
	// nonceSize is the number of bytes of a nonce.
	nonceSize = 16
	// maxQuestion and maxAnswer are the most bytes of sealed questions and answers. A pod takes about 200.
	maxQuestion, maxAnswer = 64, 1 << 20
)

// ignoredError is why something is ignored.
type ignoredError struct {
	reason string
	err    error
}

func (e *ignoredError) Error() string { return fmt.Sprintf("%s: %v", e.reason, e.err) }
func (e *ignoredError) Unwrap() error { return e.err }

func ignore(reason, format string, args ...any) *ignoredError {
	return &ignoredError{reason: reason, err: fmt.Errorf(format, args...)}
}

// link is a connection on which the keys are agreed.
type link struct {
	net.Conn
	send, receive direction
	// key is that of the site.
	key []byte
}

// direction seals or opens what goes in one direction.
type direction struct {
	aead cipher.AEAD
	next uint64
}

func (d *direction) nonce() []byte {
	nonce := binary.BigEndian.AppendUint64(make([]byte, 4), d.next)
	d.next++
	return nonce
}

// parties are between whom a connection is.
type parties struct{ cluster, asker, asked string }

// derive returns both directions of a connection, that of questions first.
func (p parties) derive(key, nonces []byte) (questions, answers direction, err error) {
	info := fmt.Sprintf("application-grid site exchange 2\n%q %q %q", p.cluster, p.asker, p.asked)
	derived, err := hkdf.Key(sha256.New, key, nonces, info, 2*keySize)
	if err != nil {
		return direction{}, direction{}, fmt.Errorf("deriving keys: %w", err)
	}
	var both [2]direction
	for i := range both {
		block, err := aes.NewCipher(derived[i*keySize : (i+1)*keySize])
		if err != nil {
			return direction{}, direction{}, fmt.Errorf("using a key: %w", err)
		}
		if both[i].aead, err = cipher.NewGCM(block); err != nil {
			return direction{}, direction{}, fmt.Errorf("using a key: %w", err)
		}
	}
	return both[0], both[1], nil
}

// greet begins a connection as the asker.
func greet(conn net.Conn, key []byte, p parties) (*link, error) {
	nonces := make([]byte, 2*nonceSize)
	rand.Read(nonces[:nonceSize])
	if _, err := conn.Write(append([]byte(magic), nonces[:nonceSize]...)); err != nil {
		return nil, err
	}
	if _, err := io.ReadFull(conn, nonces[nonceSize:]); err != nil {
		return nil, err
	}
	questions, answers, err := p.derive(key, nonces)
	return &link{Conn: conn, send: questions, receive: answers, key: key}, err
}

// welcome begins a connection as the asked node, and returns the first question. The asker has chosen one of the keys.
func welcome(conn net.Conn, keys [][]byte, p parties) (l *link, first []byte, err error) {
	hello := make([]byte, len(magic)+nonceSize)
	if _, err := io.ReadFull(conn, hello); err != nil {
		return nil, nil, err
	}
	if !bytes.HasPrefix(hello, []byte(magic)) {
		return nil, nil, ignore(reasonFormat, "%s says no hello of this version", conn.RemoteAddr())
	}
	own := make([]byte, nonceSize)
	rand.Read(own)
	if _, err := conn.Write(own); err != nil {
		return nil, nil, err
	}
	sealed, err := readFrame(conn, maxQuestion)
	if err != nil {
		return nil, nil, err
	}
	for _, key := range keys {
		questions, answers, err := p.derive(key, append(hello[len(magic):], own...))
		if err != nil {
			return nil, nil, err
		}
		if first, err := questions.open(sealed); err == nil {
			return &link{Conn: conn, send: answers, receive: questions, key: key}, first, nil
		}
	}
	return nil, nil, ignore(reasonKey, "none of the keys opens the question of node %s", p.asker)
}

func (d *direction) open(sealed []byte) ([]byte, error) {
	return d.aead.Open(nil, d.nonce(), sealed, nil)
}

// write seals and sends a message.
func (l *link) write(message []byte) error {
	frame := make([]byte, 4, 4+len(message)+l.send.aead.Overhead())
	frame = l.send.aead.Seal(frame, l.send.nonce(), message, nil)
	binary.BigEndian.PutUint32(frame, uint32(len(frame)-4)) //nolint:gosec // a message has 1 MiB at most
	_, err := l.Write(frame)
	return err
}

// read receives and opens a message.
func (l *link) read(most int64) ([]byte, error) {
	sealed, err := readFrame(l, most)
	if err != nil {
		return nil, err
	}
	message, err := l.receive.open(sealed)
	if err != nil {
		return nil, ignore(reasonKey, "what %s has sent cannot be opened", l.RemoteAddr())
	}
	return message, nil
}

// readFrame reads a frame of no more than most bytes. It takes memory only for what has come.
func readFrame(from io.Reader, most int64) ([]byte, error) {
	var head [4]byte
	if n, err := io.ReadFull(from, head[:]); err != nil && n == 0 {
		return nil, err
	} else if err != nil {
		return nil, errCut
	}
	length := int64(binary.BigEndian.Uint32(head[:]))
	if length > most {
		return nil, ignore(reasonFormat, "a frame of %d bytes", length)
	}
	var read bytes.Buffer
	if _, err := io.CopyN(&read, from, length); err != nil {
		return nil, errCut
	}
	return read.Bytes(), nil
}

// errCut means that only a part of a frame has come. The next one cannot be found.
var errCut = errors.New("a part of a message is missing")
