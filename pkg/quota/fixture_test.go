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

func mustParse(t testing.TB, address string) netip.AddrPort {
	t.Helper()
	parsed, err := netip.ParseAddrPort(address)
	if err != nil {
		t.Fatal(err)
	}
	return parsed
}
