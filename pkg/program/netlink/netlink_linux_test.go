package netlink

import (
	"encoding/binary"
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

// TestOpen: the body of an answer, the error of another, and what is no answer.
func TestOpen(t *testing.T) {
	answer := func(kind uint16, body uint32) []byte {
		message := make([]byte, unix.NLMSG_HDRLEN)
		binary.NativeEndian.PutUint16(message[4:], kind)
		return binary.NativeEndian.AppendUint32(message, body)
	}
	errno := unix.EPERM
	if _, err := open(answer(unix.NLMSG_ERROR, uint32(-int32(errno)))); !errors.Is(err, unix.EPERM) {
		t.Errorf("got %v", err)
	}
	whole := answer(20, 7)
	if body, err := open(whole); err != nil || binary.NativeEndian.Uint32(body) != 7 {
		t.Errorf("got %v, %v", body, err)
	}
	for n := range whole {
		if body, err := open(whole[:n]); err == nil {
			t.Errorf("%d bytes are read as %v", n, body)
		}
	}
}

// TestAsk: the kernel answers a question that it does not know with an error.
func TestAsk(t *testing.T) {
	if body, err := Ask(unix.NETLINK_ROUTE, unix.RTM_GETLINK, make([]byte, unix.SizeofIfInfomsg)); err == nil {
		t.Errorf("no interface was asked for, and the kernel answers %v", body)
	} else if errno := unix.Errno(0); !errors.As(err, &errno) {
		t.Errorf("got %v", err)
	}
}
