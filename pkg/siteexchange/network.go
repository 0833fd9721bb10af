package siteexchange

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
)

// Transport carries the packets and connections of an Exchange.
type Transport = memberlist.Transport

// Listen opens a Transport at an address. admit is called for every packet and every connection that comes; what it
// does not admit is dropped unread.
type Listen func(local netip.AddrPort, admit func(from netip.Addr) bool) (Transport, error)

const (
	// maxPacket is the largest packet that is read. memberlist sends no larger ones.
	maxPacket = 2 << 10
	// acceptPause is the pause after a connection could not be accepted, for example because there are no files left.
	acceptPause = 100 * time.Millisecond
)

// network is the Transport of UDP and TCP. memberlist has one too, which allocates 64 KiB for every packet before it
// looks at the sender, and lets the kernel choose the address from which it connects.
type network struct {
	local   netip.AddrPort
	admit   func(from netip.Addr) bool
	udp     *net.UDPConn
	tcp     *net.TCPListener
	packets chan *memberlist.Packet
	streams chan net.Conn
	// done is closed by Shutdown.
	done chan struct{}
	once sync.Once
	wg   sync.WaitGroup
}

// listenNetwork is a Listen.
func listenNetwork(local netip.AddrPort, admit func(from netip.Addr) bool) (Transport, error) {
	tcp, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(local))
	if err != nil {
		return nil, fmt.Errorf("listening on TCP: %w", err)
	}
	udp, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(local))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("listening on UDP: %w", err), tcp.Close())
	}
	n := &network{
		local: local, admit: admit, udp: udp, tcp: tcp,
		packets: make(chan *memberlist.Packet), streams: make(chan net.Conn), done: make(chan struct{}),
	}
	n.wg.Go(n.receive)
	n.wg.Go(n.accept)
	return n, nil
}

func (n *network) receive() {
	buffer := make([]byte, maxPacket+1)
	for {
		size, from, err := n.udp.ReadFromUDPAddrPort(buffer)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		// Other errors concern a packet that was sent before: nobody listens at its destination.
		if err != nil || size == 0 || size > maxPacket || !n.admit(from.Addr().Unmap()) {
			continue
		}
		packet := &memberlist.Packet{
			Buf: append([]byte(nil), buffer[:size]...), From: net.UDPAddrFromAddrPort(from), Timestamp: time.Now(),
		}
		select {
		case n.packets <- packet:
		case <-n.done:
			return
		}
	}
}

func (n *network) accept() {
	for {
		conn, err := n.tcp.AcceptTCP()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			select {
			case <-time.After(acceptPause):
				continue
			case <-n.done:
				return
			}
		}
		if from, ok := addressOf(conn.RemoteAddr()); !ok || !n.admit(from) {
			_ = conn.Close()
			continue
		}
		select {
		case n.streams <- conn:
		case <-n.done:
			_ = conn.Close()
			return
		}
	}
}

// addressOf returns the IP address of a peer.
func addressOf(peer net.Addr) (netip.Addr, bool) {
	parsed, err := netip.ParseAddrPort(peer.String())
	return parsed.Addr().Unmap(), err == nil
}

// FinalAdvertiseAddr implements memberlist.Transport.
func (n *network) FinalAdvertiseAddr(string, int) (net.IP, int, error) {
	return n.local.Addr().AsSlice(), int(n.local.Port()), nil
}

// PacketCh implements memberlist.Transport.
func (n *network) PacketCh() <-chan *memberlist.Packet { return n.packets }

// StreamCh implements memberlist.Transport.
func (n *network) StreamCh() <-chan net.Conn { return n.streams }

// WriteTo implements memberlist.Transport.
func (n *network) WriteTo(packet []byte, address string) (time.Time, error) {
	to, err := netip.ParseAddrPort(address)
	if err != nil {
		return time.Time{}, fmt.Errorf("sending a packet: %w", err)
	}
	_, err = n.udp.WriteToUDPAddrPort(packet, to)
	return time.Now(), err
}

// DialTimeout implements memberlist.Transport. The connection comes from the address that the others know.
func (n *network) DialTimeout(address string, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	dialer := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(n.local.Addr(), 0))}
	return dialer.DialContext(ctx, "tcp", address)
}

// Shutdown implements memberlist.Transport.
func (n *network) Shutdown() error {
	var err error
	n.once.Do(func() {
		close(n.done)
		err = errors.Join(n.udp.Close(), n.tcp.Close())
		n.wg.Wait()
	})
	return err
}
