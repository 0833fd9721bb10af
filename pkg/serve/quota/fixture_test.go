package quota

import (
	"net"
	"net/netip"
	"testing"
)

// addressed is a connection that has addresses only.
type addressed struct {
	net.Conn

	remote, local net.Addr
}

func (a addressed) RemoteAddr() net.Addr { return a.remote }
func (a addressed) LocalAddr() net.Addr  { return a.local }

func mustParse(tb testing.TB, address string) netip.AddrPort {
	tb.Helper()
	parsed, err := netip.ParseAddrPort(address)
	if err != nil {
		tb.Fatal(err)
	}
	return parsed
}
