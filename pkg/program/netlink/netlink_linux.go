package netlink

import (
	"encoding/binary"
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// Ask sends a message of a netlink family (netlink(7)), and returns the body of the first answer, at least 4 bytes.
// An error that the kernel answers is an unix.Errno.
func Ask(family int, kind uint16, body []byte) ([]byte, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, family)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	// The kernel answers at once. The limit is for an answer that is lost.
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 1}); err != nil {
		return nil, os.NewSyscallError("setsockopt", err)
	}
	native := binary.NativeEndian
	message := native.AppendUint32(nil, uint32(unix.NLMSG_HDRLEN+len(body))) //nolint:gosec // a hundred bytes
	message = native.AppendUint16(message, kind)
	message = native.AppendUint16(message, unix.NLM_F_REQUEST)
	message = native.AppendUint64(message, 0) // The kernel fills in the port, and one question needs no number.
	if err := unix.Sendto(fd, append(message, body...), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return nil, os.NewSyscallError("sendto", err)
	}
	buffer := make([]byte, os.Getpagesize())
	n, _, err := unix.Recvfrom(fd, buffer, 0)
	if err != nil {
		return nil, os.NewSyscallError("recvfrom", err)
	}
	return open(buffer[:n])
}

// open returns the body of an answer, or the error that it is.
func open(answer []byte) ([]byte, error) {
	if len(answer) < unix.NLMSG_HDRLEN+4 { // 4 bytes are the code of an error, and less than any other body.
		return nil, errors.New("the kernel's answer is cut short")
	}
	body := answer[unix.NLMSG_HDRLEN:]
	if binary.NativeEndian.Uint16(answer[4:]) == unix.NLMSG_ERROR {
		return nil, unix.Errno(-int32(binary.NativeEndian.Uint32(body))) //nolint:gosec // a negated errno
	}
	return body, nil
}
