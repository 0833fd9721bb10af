package siteexchange

import (
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
)

const (
	// maxStreams is the most connections that others may have open at once.
	maxStreams = 128
	// firstByte is how long the first byte of a connection may take.
	firstByte = 5 * time.Second
	// maxStream is the most bytes that memberlist reads of a connection. It says about 150 bytes of every member.
	maxStream = 1 << 20
)

// door is a Transport that keeps the connections with questions for itself, and hands memberlist the others. They share
// a port. All connections of memberlist begin with its label, whose first byte is another one than that of a question.
type door struct {
	Transport
	// answer answers the question on a connection, whose first byte was read, and closes it.
	answer func(net.Conn)
	// ignored is called for every connection that is closed because there are too many.
	ignored func(reason string)

	places  chan struct{}
	streams chan net.Conn
	done    chan struct{}
	once    sync.Once
	wg      sync.WaitGroup
}

func newDoor(inner Transport, answer func(net.Conn), ignored func(reason string)) *door {
	d := &door{
		Transport: inner, answer: answer, ignored: ignored,
		places: make(chan struct{}, maxStreams), streams: make(chan net.Conn), done: make(chan struct{}),
	}
	d.wg.Go(d.run)
	return d
}

func (d *door) run() {
	for {
		select {
		case conn := <-d.Transport.StreamCh():
			select {
			case d.places <- struct{}{}:
				d.wg.Go(func() { d.open(conn) })
			default:
				d.ignored(reasonFlood)
				_ = conn.Close()
			}
		case <-d.done:
			return
		}
	}
}

// open reads the first byte of a connection, and passes it on.
func (d *door) open(conn net.Conn) {
	place := sync.OnceFunc(func() { <-d.places })
	stop := make(chan struct{})
	defer close(stop)
	go func() { // a connection does not outlive the door
		select {
		case <-d.done:
			_ = conn.Close()
		case <-stop:
		}
	}()
	first := make([]byte, 1)
	if err := conn.SetDeadline(time.Now().Add(firstByte)); err != nil {
		_ = conn.Close()
		place()
		return
	}
	if _, err := io.ReadFull(conn, first); err != nil {
		_ = conn.Close()
		place()
		return
	}
	if first[0] == questionByte {
		defer place()
		d.answer(conn)
		return
	}
	taken := &takenConn{Conn: conn, first: first, left: maxStream, place: place}
	select {
	case d.streams <- taken:
	case <-d.done:
		_ = taken.Close()
	}
}

// StreamCh implements memberlist.Transport.
func (d *door) StreamCh() <-chan net.Conn { return d.streams }

// DialTimeout implements memberlist.Transport.
func (d *door) DialTimeout(address string, timeout time.Duration) (net.Conn, error) {
	return d.DialAddressTimeout(memberlist.Address{Addr: address}, timeout)
}

// DialAddressTimeout implements memberlist.NodeAwareTransport. The connection has a deadline from the beginning:
// memberlist writes its label before it sets one.
func (d *door) DialAddressTimeout(address memberlist.Address, timeout time.Duration) (net.Conn, error) {
	conn, err := d.Transport.DialAddressTimeout(address, timeout)
	if err != nil {
		return nil, err
	}
	if err := conn.SetDeadline(time.Now().Add(timeout)); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

// Shutdown implements memberlist.Transport.
func (d *door) Shutdown() error {
	err := d.Transport.Shutdown()
	d.once.Do(func() { close(d.done) })
	d.wg.Wait()
	return err
}

// takenConn is a connection whose first byte was read, and of which no more than left bytes are.
type takenConn struct {
	net.Conn
	first []byte
	left  int
	// place gives the connection's place back.
	place func()
}

// Read implements net.Conn.
func (c *takenConn) Read(p []byte) (int, error) {
	if len(c.first) > 0 && len(p) > 0 {
		n := copy(p, c.first)
		c.first = c.first[n:]
		return n, nil
	}
	if c.left <= 0 {
		return 0, io.ErrUnexpectedEOF
	}
	n, err := c.Conn.Read(p[:min(len(p), c.left)])
	c.left -= n
	return n, err
}

// Close implements net.Conn.
func (c *takenConn) Close() error {
	c.place()
	return c.Conn.Close()
}
