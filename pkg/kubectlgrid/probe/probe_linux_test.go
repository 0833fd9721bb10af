package probe

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/application-grid/application-grid/pkg/kubectlgrid/probe/conntrack"
)

// TestSilent: the kernel still has the socket of a connection that nobody answered when it is asked for it.
func TestSilent(t *testing.T) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	if err := unix.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	address, _ := name.(*unix.SockaddrInet4)
	target := netip.AddrPortFrom(netip.AddrFrom4(address.Addr), uint16(address.Port))
	// The queue of a listener that never accepts has one place. After that the kernel does not answer.
	for full := false; !full; {
		connection, err := net.DialTimeout("tcp", target.String(), 100*time.Millisecond)
		if full = err != nil; !full {
			t.Cleanup(func() { _ = connection.Close() })
		}
	}
	Connect(t.Context(), Options{Target: target, Requests: 2, Timeout: 100 * time.Millisecond, None: errNone,
		Destination: func(source, _ netip.AddrPort) (netip.AddrPort, error) {
			// As if the socket had been connected to the target in place of this address.
			sent, err := conntrack.Destination(source, netip.MustParseAddrPort("10.96.0.10:80"))
			if err != nil || sent != target {
				t.Errorf("got %s, %v; want %s", sent, err, target)
			}
			return sent, err
		}})
}
