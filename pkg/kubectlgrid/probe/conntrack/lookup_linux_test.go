package conntrack

import (
	"errors"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
)

// reply is what the kernel answers for a connection that was sent to an endpoint.
func reply(source, target netip.AddrPort) []byte {
	message := request(source, target)
	// The kernel's answer has the tuple of the replies too; here the one of the request becomes it.
	message[netfilterSize+2] = tupleReply
	return message
}

// TestDestination: who the replies come from, for both families, and what is no answer.
func TestDestination(t *testing.T) {
	for endpoint, client := range map[string]string{
		"10.244.1.7:8080": "10.0.0.1:40000", "[fd00:10:244::7]:80": "[fd00::1]:40000",
	} {
		want := netip.MustParseAddrPort(endpoint)
		if got, err := destination(reply(want, netip.MustParseAddrPort(client))); err != nil || got != want {
			t.Errorf("got %v, %v; want %v", got, err, want)
		}
	}
	whole := reply(netip.MustParseAddrPort("10.244.1.7:8080"), netip.MustParseAddrPort("10.0.0.1:40000"))
	for n := netfilterSize; n < len(whole); n++ {
		if got, err := destination(whole[:n]); err == nil {
			t.Errorf("%d bytes of %d are read as %v", n, len(whole), got)
		}
	}
}

// TestUnknownConnection: a connection that the kernel does not have is none, and not a failure.
func TestUnknownConnection(t *testing.T) {
	nobody := netip.MustParseAddrPort("127.0.0.1:1")
	switch got, err := Destination(nobody, nobody); {
	case err == nil:
		t.Errorf("it leads to %s", got)
	case !errors.Is(err, ErrNone):
		var errno unix.Errno
		if !errors.As(err, &errno) || errno == unix.ENOENT {
			t.Fatal(err)
		}
		t.Skipf("the kernel answers root only, and has to have the table: %v", err)
	}
}
