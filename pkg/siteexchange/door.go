package siteexchange

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
)

const (
	// maxStreams is the most connections that others may have open at once, maxStreamsOf the most of one node.
	// memberlist and the questions need four.
	maxStreams, maxStreamsOf = 128, 8
	// firstByte is how long the first byte of a connection may take.
	firstByte = 5 * time.Second
)

// doorConfig is what a door is made from.
type doorConfig struct {
	guard  *guard
	limits *limits
	// member reports whether a node of the site has an address.
	member func(netip.Addr) bool
	// answer answers the question on a connection, whose first byte was read, and closes it.
	answer func(net.Conn)
	// inspected is called after the guard has seen a message that came from an address over a network, UDP or TCP.
	// refused is nil if it let the message pass.
	inspected func(from netip.Addr, network string, refused *ignoredError)
	// ignored is called for everything else that is ignored.
	ignored func(reason string)
}

// The networks.
const (
	networkUDP = "udp"
	networkTCP = "tcp"
)

// door is a Transport that keeps the connections with questions for itself, and hands memberlist the others, which
// share the port with them. All connections of memberlist begin with its label, whose first byte is another one than
// that of a question. memberlist gets what the guard lets pass, and sends to nodes of the site only: by its protocol
// any node can make another one send packets anywhere.
type door struct {
	Transport
	config doorConfig

	packets chan *memberlist.Packet
	streams chan net.Conn
	done    chan struct{}
	once    sync.Once
	wg      sync.WaitGroup

	mu sync.Mutex
	// open counts the connections from each address, all counts all. Both are guarded by mu.
	open map[netip.Addr]int
	all  int
}

func newDoor(inner Transport, config doorConfig) *door {
	d := &door{
		Transport: inner, config: config,
		packets: make(chan *memberlist.Packet), streams: make(chan net.Conn), done: make(chan struct{}),
		open: make(map[netip.Addr]int),
	}
	d.wg.Go(d.takePackets)
	d.wg.Go(d.takeStreams)
	return d
}

func (d *door) takePackets() {
	for {
		select {
		case packet := <-d.Transport.PacketCh():
			if !d.passes(packet) {
				continue
			}
			select {
			case d.packets <- packet:
			case <-d.done:
				return
			}
		case <-d.done:
			return
		}
	}
}

// passes reports whether memberlist gets a packet.
func (d *door) passes(packet *memberlist.Packet) bool {
	from, ok := addressOf(packet.From)
	if !ok || !d.config.limits.packets.allow(from) {
		d.config.ignored(reasonFlood)
		return false
	}
	refused := d.config.guard.packet(packet.Buf)
	d.config.inspected(from, networkUDP, refused)
	return refused == nil
}

// guarded returns a connection of which memberlist reads what the guard lets pass.
func (d *door) guarded(conn net.Conn) *guardedConn {
	return &guardedConn{Conn: conn, guard: d.config.guard, inspected: func(refused *ignoredError) {
		if from, ok := addressOf(conn.RemoteAddr()); ok {
			d.config.inspected(from, networkTCP, refused)
		}
	}}
}

func (d *door) takeStreams() {
	for {
		select {
		case conn := <-d.Transport.StreamCh():
			leave, ok := d.enter(conn)
			if !ok {
				d.config.ignored(reasonFlood)
				_ = conn.Close()
				continue
			}
			d.wg.Go(func() { d.welcome(conn, leave) })
		case <-d.done:
			return
		}
	}
}

// enter takes a place for a connection, and returns a function that gives it back. ok is false if there is none.
func (d *door) enter(conn net.Conn) (leave func(), ok bool) {
	from, ok := addressOf(conn.RemoteAddr())
	if !ok || !d.config.limits.connections.allow(from) {
		return nil, false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.all == maxStreams || d.open[from] == maxStreamsOf {
		return nil, false
	}
	d.all++
	d.open[from]++
	return sync.OnceFunc(func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.all--
		if d.open[from]--; d.open[from] == 0 {
			delete(d.open, from)
		}
	}), true
}

// welcome reads the first byte of a connection, and passes it on.
func (d *door) welcome(conn net.Conn, leave func()) {
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
		leave()
		return
	}
	if _, err := io.ReadFull(conn, first); err != nil {
		_ = conn.Close()
		leave()
		return
	}
	if first[0] == questionByte {
		defer leave()
		d.config.answer(conn)
		return
	}
	guarded := d.guarded(conn)
	guarded.first, guarded.closed = first, leave
	select {
	case d.streams <- guarded:
	case <-d.done:
		_ = guarded.Close()
	}
}

// PacketCh implements memberlist.Transport.
func (d *door) PacketCh() <-chan *memberlist.Packet { return d.packets }

// StreamCh implements memberlist.Transport.
func (d *door) StreamCh() <-chan net.Conn { return d.streams }

// refuse returns an error if no node of the site has the address of a destination. It is one of the network, so that
// memberlist takes the node for dead if it was one of the site.
func (d *door) refuse(operation, network, to string) error {
	address, err := netip.ParseAddrPort(to)
	if err == nil && !d.config.member(address.Addr().Unmap()) {
		err = &net.OpError{
			Op: operation, Net: network,
			Err: fmt.Errorf("%s is not the address of one node of the site", address.Addr()),
		}
	}
	return err
}

// WriteTo implements memberlist.Transport.
func (d *door) WriteTo(packet []byte, address string) (time.Time, error) {
	if err := d.refuse("write", networkUDP, address); err != nil {
		return time.Time{}, err
	}
	return d.Transport.WriteTo(packet, address)
}

// DialTimeout implements memberlist.Transport.
func (d *door) DialTimeout(address string, timeout time.Duration) (net.Conn, error) {
	conn, err := d.dial(address, timeout)
	if err != nil {
		return nil, err
	}
	return d.guarded(conn), nil
}

// dial makes a connection to a node of the site. It has a deadline from the beginning: memberlist writes its label
// before it sets one.
func (d *door) dial(address string, timeout time.Duration) (net.Conn, error) {
	if err := d.refuse("dial", networkTCP, address); err != nil {
		return nil, err
	}
	conn, err := d.Transport.DialTimeout(address, timeout)
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
