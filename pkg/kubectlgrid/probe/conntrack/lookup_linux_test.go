package conntrack

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
)

// reply is what the kernel answers for a connection that was sent to an endpoint.
func reply(source, target netip.AddrPort) []byte {
	message := request(source, target)
	// The kernel's answer has the tuple of the replies too; here the one of the request becomes it.
	message[headerSize+netfilterSize+2] = tupleReply
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
	failure := func(errno unix.Errno) []byte {
		message := make([]byte, headerSize+4)
		binary.NativeEndian.PutUint16(message[4:], unix.NLMSG_ERROR)
		binary.NativeEndian.PutUint32(message[headerSize:], uint32(-int32(errno)))
		return message
	}
	if _, err := destination(failure(unix.ENOENT)); !errors.Is(err, ErrNone) {
		t.Errorf("got %v", err)
	}
	if _, err := destination(failure(unix.EPERM)); !errors.Is(err, unix.EPERM) {
		t.Errorf("got %v", err)
	}
	whole := reply(netip.MustParseAddrPort("10.244.1.7:8080"), netip.MustParseAddrPort("10.0.0.1:40000"))
	for n := range whole {
		if got, err := destination(whole[:n]); err == nil {
			t.Errorf("%d bytes of %d are read as %v", n, len(whole), got)
		}
	}
}
