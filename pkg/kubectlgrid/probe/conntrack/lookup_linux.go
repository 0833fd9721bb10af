package conntrack

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

// ErrNone is returned if the kernel's table does not have the connection: nothing was sent, a rule rejected it, or
// something that does not use the table handles it.
var ErrNone = errors.New("the kernel has no such connection")

// Message types and attributes of the kernel's nfnetlink_conntrack.h.
const (
	getConnection = 1<<8 | 1 // NFNL_SUBSYS_CTNETLINK, IPCTNL_MSG_CT_GET

	tupleOriginal, tupleReply                = 1, 2
	tupleIP, tupleProtocol                   = 1, 2
	ip4Source, ip4Target                     = 1, 2
	ip6Source, ip6Target                     = 3, 4
	protocolNumber, sourcePort, targetPort   = 1, 2, 3
	headerSize, netfilterSize, attributeSize = unix.SizeofNlMsghdr, 4, unix.SizeofRtAttr

	// typeMask removes the flags NLA_F_NESTED and NLA_F_NET_BYTEORDER from an attribute's type.
	typeMask = 0x3fff
)

// Destination returns where the TCP connection from source to target was sent: the endpoint's address if the socket was
// connected to another address, or a rule translated target, else target. The kernel knows it from the first packet on,
// even if no answer came, the former while the socket is open.
func Destination(source, target netip.AddrPort) (netip.AddrPort, error) {
	if remote, found, err := connected(source); err != nil || found && remote != target {
		return remote, err
	}
	answer, err := ask(request(source, target))
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("asking for the table of connections: %w", err)
	}
	return destination(answer)
}

// ask sends a message to the kernel, and returns the answer.
func ask(message []byte) ([]byte, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	// The kernel answers at once. The limit is for an answer that is lost.
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 2}); err != nil {
		return nil, os.NewSyscallError("setsockopt", err)
	}
	if err := unix.Sendto(fd, message, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return nil, os.NewSyscallError("sendto", err)
	}
	buffer := make([]byte, os.Getpagesize())
	n, _, err := unix.Recvfrom(fd, buffer, 0)
	return buffer[:max(n, 0)], os.NewSyscallError("recvfrom", err)
}

// request returns the message that queries one connection by its original addresses.
func request(source, target netip.AddrPort) []byte {
	family, from, to := byte(unix.AF_INET), uint16(ip4Source), uint16(ip4Target)
	if target.Addr().Is6() {
		family, from, to = unix.AF_INET6, ip6Source, ip6Target
	}
	addresses := append(attribute(from, source.Addr().AsSlice()), attribute(to, target.Addr().AsSlice())...)
	ports := append(attribute(protocolNumber, []byte{unix.IPPROTO_TCP}),
		attribute(sourcePort, binary.BigEndian.AppendUint16(nil, source.Port()))...)
	ports = append(ports, attribute(targetPort, binary.BigEndian.AppendUint16(nil, target.Port()))...)
	tuple := append(attribute(tupleIP|unix.NLA_F_NESTED, addresses),
		attribute(tupleProtocol|unix.NLA_F_NESTED, ports)...)
	body := append([]byte{family, 0, 0, 0}, attribute(tupleOriginal|unix.NLA_F_NESTED, tuple)...)

	message := binary.NativeEndian.AppendUint32(nil, uint32(headerSize+len(body))) //nolint:gosec // a hundred bytes
	message = binary.NativeEndian.AppendUint16(message, getConnection)
	message = binary.NativeEndian.AppendUint16(message, unix.NLM_F_REQUEST)
	message = binary.NativeEndian.AppendUint32(message, 1) // sequence
	message = binary.NativeEndian.AppendUint32(message, 0) // the kernel fills in the port
	return append(message, body...)
}

// attribute encodes an attribute, padded to four bytes.
func attribute(kind uint16, value []byte) []byte {
	encoded := binary.NativeEndian.AppendUint16(nil, uint16(attributeSize+len(value))) //nolint:gosec // a hundred bytes
	encoded = append(binary.NativeEndian.AppendUint16(encoded, kind), value...)
	return append(encoded, make([]byte, (4-len(encoded)%4)%4)...)
}

// destination reads from the kernel's answer the address that the replies come from.
func destination(message []byte) (netip.AddrPort, error) {
	if len(message) < headerSize+netfilterSize { // which is also the size of an error's code
		return netip.AddrPort{}, errors.New("the kernel's answer is cut short")
	}
	if kind := binary.NativeEndian.Uint16(message[4:]); kind == unix.NLMSG_ERROR {
		code := -int32(binary.NativeEndian.Uint32(message[headerSize:])) //nolint:gosec // a negative errno
		if errno := unix.Errno(code); errno != unix.ENOENT {             //nolint:gosec // an errno
			return netip.AddrPort{}, fmt.Errorf("asking for the table of connections: %w", errno)
		}
		return netip.AddrPort{}, ErrNone
	}
	tuple := attributes(attributes(message[headerSize+netfilterSize:])[tupleReply])
	addresses, ports := attributes(tuple[tupleIP]), attributes(tuple[tupleProtocol])
	raw := addresses[ip4Source]
	if raw == nil {
		raw = addresses[ip6Source]
	}
	address, ok := netip.AddrFromSlice(raw)
	if port := ports[sourcePort]; ok && len(port) == 2 {
		return netip.AddrPortFrom(address, binary.BigEndian.Uint16(port)), nil
	}
	return netip.AddrPort{}, errors.New("the kernel's answer names no address")
}

// attributes returns the attributes in a message or in another attribute, by kind.
func attributes(data []byte) map[uint16][]byte {
	found := map[uint16][]byte{}
	for len(data) >= attributeSize {
		size := int(binary.NativeEndian.Uint16(data))
		if size < attributeSize || size > len(data) {
			return found
		}
		found[binary.NativeEndian.Uint16(data[2:])&typeMask] = data[attributeSize:size]
		data = data[min((size+3)&^3, len(data)):]
	}
	return found
}
