package conntrack

import (
	"errors"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
)

// TestConnected: the kernel's table has where a socket is connected to, while it is open.
func TestConnected(t *testing.T) {
	loopback := map[string]syscall.Sockaddr{
		"127.0.0.1:0": &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}},
		"[::1]:0":     &syscall.SockaddrInet6{Addr: [16]byte{15: 1}},
	}
	for address := range loopback {
		listener, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = listener.Close() })
		dialer := net.Dialer{Control: func(_, _ string, c syscall.RawConn) (err error) {
			// Connections may share a port that the kernel chooses when they connect.
			failed := c.Control(func(fd uintptr) { err = syscall.Bind(int(fd), loopback[address]) })
			return errors.Join(failed, err)
		}}
		connection, err := dialer.DialContext(t.Context(), "tcp", listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		source := netip.MustParseAddrPort(connection.LocalAddr().String())
		remote, found, err := connected(source)
		if err != nil || !found || remote.String() != listener.Addr().String() {
			t.Errorf("%s: got %s, %t, %v; want %s", source, remote, found, err, listener.Addr())
		}
		// One that was connected elsewhere than it asked for: no rule matters.
		elsewhere := netip.MustParseAddrPort("10.96.0.10:53")
		if got, err := Destination(source, elsewhere); err != nil || got != remote {
			t.Errorf("got %s, %v; want %s", got, err, remote)
		}
		unbound := netip.AddrPortFrom(source.Addr(), 1)
		if got, found, err := connected(unbound); found || err != nil {
			t.Errorf("%s: got %s, %v", unbound, got, err)
		}
	}
}

// TestFindSocket: lines that are none are passed over.
func TestFindSocket(t *testing.T) {
	const table = "  sl  local_address rem_address   st\n\n 0: 0100007F:XX 0100007F:1F90 01\n 1: 0100007F 0:0 01\n" +
		" 2: 0100007F:1F91\n"
	if got, found, err := findSocket(strings.NewReader(table), netip.MustParseAddrPort("127.0.0.1:8081")); found ||
		err != nil {
		t.Errorf("got %s, %v", got, err)
	}
}
