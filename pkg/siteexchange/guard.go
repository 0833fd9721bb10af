package siteexchange

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"

	"github.com/hashicorp/go-msgpack/v2/codec"
)

// memberlist trusts whoever has the key: an empty message ends its process, and a few bytes can make it take many MiB.
// So a guard opens every message before, and refuses what the wrappers of a site do not send each other.

// Types of memberlist's messages.
const (
	typePing = iota
	typeIndirectPing
	typeAck
	typeSuspect
	typeAlive
	typeDead
	typeState
	typeCompound
	_ // a user's
	_ // a compressed one
	typeEncrypted
	typeNack
	typeChecksum
	typeError
	// typeLabel begins every packet and every connection, followed by the length of the label and the label.
	typeLabel = 244
)

const (
	// sealedWay is the way in which messages are sealed: AES-GCM without padding. It comes first, then the nonce.
	sealedWay = 1
	// maxStream is the most bytes of a message on a connection. memberlist says about 150 bytes of every node.
	maxStream = 512 << 10
	// maxStates is the most nodes of such a message. There may be some that have left the site.
	maxStates = 2 * maxMembers
	// checksumSize is the size of a checksum with its type.
	checksumSize = 5
)

// guard inspects messages for memberlist.
type guard struct {
	keys  *keyFile
	label string
}

// packet returns why a packet is refused; nil if it is not.
func (g *guard) packet(packet []byte) *ignoredError {
	sealed, err := g.unlabelled(packet)
	if err != nil {
		return err
	}
	message, err := g.open(sealed, []byte(g.label))
	if err != nil {
		return err
	}
	if len(message) >= checksumSize && message[0] == typeChecksum {
		message = message[checksumSize:]
	}
	if len(message) == 0 || message[0] != typeCompound {
		return partOfPacket(message)
	}
	return compound(message[1:])
}

// unlabelled returns what comes after the label of a packet.
func (g *guard) unlabelled(packet []byte) ([]byte, *ignoredError) {
	switch {
	case len(packet) == 0 || packet[0] != typeLabel:
		return nil, ignore(reasonKey, "a packet without a label")
	case len(packet) < 2 || len(packet) < 2+int(packet[1]):
		return nil, ignore(reasonFormat, "a packet with a part of a label")
	}
	end := 2 + int(packet[1])
	if label := packet[2:end]; string(label) != g.label {
		return nil, ignore(reasonKey, "a packet of another cluster, with the label %q", label)
	}
	return packet[end:], nil
}

func (g *guard) open(sealed, authenticated []byte) ([]byte, *ignoredError) {
	if len(sealed) == 0 || sealed[0] != sealedWay {
		return nil, ignore(reasonFormat, "a message that is not sealed, or in another way")
	}
	message, err := g.keys.keys().openMessage(sealed[1:], authenticated)
	if err != nil {
		return nil, ignore(reasonKey, "a message of memberlist: %w", err)
	}
	return message, nil
}

// compound returns why a packet with several messages is refused; nil if it is not.
func compound(message []byte) *ignoredError {
	if len(message) == 0 || len(message) < 1+2*int(message[0]) {
		return ignore(reasonFormat, "several messages that are cut")
	}
	count := int(message[0])
	lengths, rest := message[1:1+2*count], message[1+2*count:]
	for ; len(lengths) > 0; lengths = lengths[2:] {
		length := int(binary.BigEndian.Uint16(lengths))
		if length > len(rest) {
			return ignore(reasonFormat, "several messages that are cut")
		}
		if err := partOfPacket(rest[:length]); err != nil {
			return err
		}
		rest = rest[length:]
	}
	return nil
}

// partOfPacket returns why a single message of a packet is refused; nil if it is not.
func partOfPacket(message []byte) *ignoredError {
	if len(message) == 0 {
		return ignore(reasonFormat, "an empty message")
	}
	switch message[0] {
	case typePing, typeIndirectPing, typeAck, typeNack, typeSuspect, typeAlive, typeDead:
		return nil
	default:
		return ignore(reasonFormat, "a packet with a message of type %d", message[0])
	}
}

// streamLabel reads the label of a connection of which first was read before. It returns its bytes.
func (g *guard) streamLabel(first []byte, from io.Reader) ([]byte, error) {
	label := make([]byte, 2+len(g.label))
	if _, err := io.ReadFull(from, label[copy(label, first):]); err != nil {
		return nil, err
	}
	if label[0] != typeLabel || int(label[1]) != len(g.label) || string(label[2:]) != g.label {
		return nil, ignore(reasonKey, "a connection of another cluster, or not of memberlist")
	}
	return label, nil
}

// stream reads the only message that comes on a connection, after the label. It returns its bytes.
func (g *guard) stream(from io.Reader) ([]byte, error) {
	const headSize = 5 // the type and the length
	head := make([]byte, headSize)
	if _, err := io.ReadFull(from, head); err != nil {
		return nil, err
	}
	length := binary.BigEndian.Uint32(head[1:])
	if head[0] != typeEncrypted || length > maxStream {
		return nil, ignore(reasonFormat, "a message of type %d and %d bytes on a connection", head[0], length)
	}
	sealed, err := readExactly(from, int64(length))
	if err != nil {
		return nil, err
	}
	message, ignored := g.open(sealed, slices.Concat(head, []byte(g.label)))
	if ignored == nil {
		ignored = onStream(message)
	}
	if ignored != nil {
		return nil, ignored
	}
	return slices.Concat(head, sealed), nil
}

// onStream returns why a message on a connection is refused; nil if it is not.
func onStream(message []byte) *ignoredError {
	if len(message) == 0 {
		return ignore(reasonFormat, "an empty message on a connection")
	}
	switch message[0] {
	case typePing, typeAck, typeError:
		return nil
	case typeState:
	default:
		return ignore(reasonFormat, "a message of type %d on a connection", message[0])
	}
	var head struct{ Nodes, UserStateLen int }
	err := codec.NewDecoderBytes(message[1:], &codec.MsgpackHandle{}).Decode(&head)
	switch {
	case err != nil:
		return ignore(reasonFormat, "the state of the nodes: %w", err)
	case head.Nodes < 0 || head.Nodes > maxStates || head.UserStateLen != 0:
		return ignore(reasonFormat, "the state of %d nodes, with %d bytes of a user's", head.Nodes, head.UserStateLen)
	}
	return nil
}

// guardedConn is a connection of which memberlist reads the message that a guard lets pass, and nothing else.
type guardedConn struct {
	net.Conn
	guard *guard
	// first is the byte that was read before. It is nil on a connection that this node has made, whose other end sends
	// no label.
	first []byte
	// inspected is called after the message has come. refused is nil if the guard let it pass.
	inspected func(refused *ignoredError)
	// closed, if set, is called when the connection is closed.
	closed func()
	// rest is what memberlist has not read yet. taken is set once the message was read; err is why it was refused.
	rest  []byte
	taken bool
	err   error
}

// Read implements net.Conn. memberlist calls it on one goroutine.
func (c *guardedConn) Read(p []byte) (int, error) {
	if !c.taken {
		c.taken = true
		c.rest, c.err = c.take()
		var refused *ignoredError
		if errors.As(c.err, &refused) || c.err == nil {
			c.inspected(refused)
		}
	}
	if c.err != nil {
		return 0, fmt.Errorf("the guard: %w", c.err)
	}
	if len(c.rest) == 0 {
		return 0, io.EOF
	}
	n := copy(p, c.rest)
	c.rest = c.rest[n:]
	return n, nil
}

// take reads all that memberlist may read.
func (c *guardedConn) take() ([]byte, error) {
	if c.first == nil {
		return c.guard.stream(c.Conn)
	}
	label, err := c.guard.streamLabel(c.first, c.Conn)
	if err != nil {
		return nil, err
	}
	message, err := c.guard.stream(c.Conn)
	return slices.Concat(label, message), err
}

// Close implements net.Conn.
func (c *guardedConn) Close() error {
	if c.closed != nil {
		c.closed()
	}
	return c.Conn.Close()
}
