package quota

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// callerOf names the caller at the other end of a connection: the user, for a process of this host; else the IPv4
// address, or the IPv6 /64 prefix, because a host can use any address of its prefix.
func callerOf(conn net.Conn) string {
	remote, known := conn.RemoteAddr().(*net.TCPAddr)
	local, both := conn.LocalAddr().(*net.TCPAddr)
	if !known || !both {
		return "unknown"
	}
	address := remote.AddrPort().Addr().Unmap()
	if address.IsLoopback() || address == local.AddrPort().Addr().Unmap() {
		uid, err := peerUser(remote.AddrPort(), local.AddrPort())
		if err != nil {
			// All callers that cannot be identified count as one.
			return "unknown"
		}
		return "user " + strconv.FormatUint(uint64(uid), 10)
	}
	if address.Is6() {
		prefix, err := address.WithZone("").Prefix(64)
		if err == nil {
			return prefix.String()
		}
	}
	return address.String()
}

var (
	errNoSocket  = errors.New("no such socket")
	errMalformed = errors.New("the kernel's answer is malformed")
)

// Sizes and numbers of linux/inet_diag.h and linux/sock_diag.h, which x/sys/unix does not have.
const (
	sockDiagByFamily = 20
	diagRequestSize  = 56
	diagMessageSize  = 72
	tcpEstablished   = 1
	tcpAllStates     = 0xffffffff
	// diagPatience is how long the kernel may take to answer.
	diagPatience = time.Second
)

// peerUser returns the user of the socket at the other end of a connection on this host. That is the socket whose local
// address is remote. The kernel answers this (sock_diag(7)) with one look-up in its table, and requires no privileges.
// Under systemd's PrivateUsers= all users other than root are 65534.
func peerUser(remote, local netip.AddrPort) (uid uint32, err error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.NETLINK_INET_DIAG)
	if err != nil {
		return 0, fmt.Errorf("asking whose socket it is: %w", err)
	}
	defer unix.Close(fd)
	timeout := unix.NsecToTimeval(diagPatience.Nanoseconds())
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout); err != nil {
		return 0, fmt.Errorf("asking whose socket it is: %w", err)
	}
	if err := unix.Sendto(fd, diagRequest(remote, local), 0, &unix.SockaddrNetlink{
		Family: unix.AF_NETLINK,
	}); err != nil {
		return 0, fmt.Errorf("asking whose socket it is: %w", err)
	}
	answer := make([]byte, 4096)
	n, _, err := unix.Recvfrom(fd, answer, 0)
	if err != nil {
		return 0, fmt.Errorf("asking whose socket it is: %w", err)
	}
	return parseDiag(answer[:n], remote)
}

// diagRequest returns the query for the one TCP socket between two addresses: a nlmsghdr and an inet_diag_req_v2.
func diagRequest(source, destination netip.AddrPort) []byte {
	request := make([]byte, unix.NLMSG_HDRLEN, unix.NLMSG_HDRLEN+diagRequestSize)
	native.PutUint32(request[0:], uint32(unix.NLMSG_HDRLEN+diagRequestSize))
	native.PutUint16(request[4:], sockDiagByFamily)
	native.PutUint16(request[6:], unix.NLM_F_REQUEST)
	family := byte(unix.AF_INET6)
	if source.Addr().Unmap().Is4() {
		family = unix.AF_INET
	}
	request = append(request, family, unix.IPPROTO_TCP, 0, 0)
	request = native.AppendUint32(request, tcpAllStates)
	request = binary.BigEndian.AppendUint16(request, source.Port())
	request = binary.BigEndian.AppendUint16(request, destination.Port())
	for _, address := range []netip.Addr{source.Addr().Unmap(), destination.Addr().Unmap()} {
		var field [16]byte
		copy(field[:], address.AsSlice())
		request = append(request, field[:]...)
	}
	request = native.AppendUint32(request, 0)       // any interface
	return native.AppendUint64(request, ^uint64(0)) // no cookie
}

// parseDiag reads the user from the answer: a nlmsghdr, followed by an inet_diag_msg or an error.
func parseDiag(answer []byte, source netip.AddrPort) (uid uint32, err error) {
	if len(answer) < unix.NLMSG_HDRLEN {
		return 0, errMalformed
	}
	kind, message := native.Uint16(answer[4:]), answer[unix.NLMSG_HDRLEN:]
	switch {
	case kind == unix.NLMSG_ERROR && len(message) >= 4:
		//nolint:gosec // a negated errno
		return 0, fmt.Errorf("%w: %w", errNoSocket, unix.Errno(-int32(native.Uint32(message))))
	case kind != sockDiagByFamily || len(message) < diagMessageSize:
		return 0, errMalformed
	// A socket that its process has closed has no user, and the kernel reports 0, which is root.
	case message[1] != tcpEstablished || binary.BigEndian.Uint16(message[4:]) != source.Port():
		return 0, errNoSocket
	}
	return native.Uint32(message[64:]), nil
}

// native is the byte order of this machine, which the kernel uses.
var native = binary.NativeEndian
