package quota

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/application-grid/application-grid/pkg/program/netlink"
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

var errNoSocket = errors.New("no such socket")

// Sizes and numbers of linux/inet_diag.h and linux/sock_diag.h, which x/sys/unix does not have.
const (
	sockDiagByFamily = 20
	diagMessageSize  = 72
	tcpEstablished   = 1
	tcpAllStates     = 0xffffffff
)

// peerUser returns the user of the socket at the other end of a connection on this host. That is the socket whose local
// address is remote. The kernel answers this (sock_diag(7)) with one look-up in its table, and requires no privileges.
// Under systemd's PrivateUsers= all users other than root are 65534.
func peerUser(remote, local netip.AddrPort) (uid uint32, err error) {
	answer, err := netlink.Ask(unix.NETLINK_INET_DIAG, sockDiagByFamily, diagRequest(remote, local))
	if err != nil {
		return 0, fmt.Errorf("asking whose socket it is: %w", err)
	}
	return parseDiag(answer, remote)
}

// diagRequest returns the query for the one TCP socket between two addresses, an inet_diag_req_v2.
func diagRequest(source, destination netip.AddrPort) []byte {
	family := byte(unix.AF_INET6)
	if source.Addr().Unmap().Is4() {
		family = unix.AF_INET
	}
	request := binary.NativeEndian.AppendUint32([]byte{family, unix.IPPROTO_TCP, 0, 0}, tcpAllStates)
	request = binary.BigEndian.AppendUint16(request, source.Port())
	request = binary.BigEndian.AppendUint16(request, destination.Port())
	for _, address := range []netip.Addr{source.Addr().Unmap(), destination.Addr().Unmap()} {
		var field [16]byte
		copy(field[:], address.AsSlice())
		request = append(request, field[:]...)
	}
	request = binary.NativeEndian.AppendUint32(request, 0)       // any interface
	return binary.NativeEndian.AppendUint64(request, ^uint64(0)) // no cookie
}

// parseDiag reads the user from the answer, an inet_diag_msg.
func parseDiag(answer []byte, source netip.AddrPort) (uid uint32, err error) {
	// A socket that its process has closed has no user, and the kernel reports 0, which is root.
	if len(answer) < diagMessageSize || answer[1] != tcpEstablished ||
		binary.BigEndian.Uint16(answer[4:]) != source.Port() {
		return 0, errNoSocket
	}
	return binary.NativeEndian.Uint32(answer[64:]), nil
}
