package conntrack

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/application-grid/application-grid/pkg/program/netlink"
)

// ErrNone is returned if the kernel's table does not have the connection: nothing was sent, a rule rejected it, or
// something that does not use the table handles it.
var ErrNone = errors.New("the kernel has no such connection")

// Message types and attributes of the kernel's nfnetlink_conntrack.h.
const (
	getConnection = 1<<8 | 1 // NFNL_SUBSYS_CTNETLINK, IPCTNL_MSG_CT_GET

	tupleOriginal, tupleReply              = 1, 2
	tupleIP, tupleProtocol                 = 1, 2
	ip4Source, ip4Target                   = 1, 2
	ip6Source, ip6Target                   = 3, 4
	protocolNumber, sourcePort, targetPort = 1, 2, 3
	netfilterSize, attributeSize           = 4, unix.SizeofRtAttr

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
	answer, err := netlink.Ask(unix.NETLINK_NETFILTER, getConnection, request(source, target))
	switch {
	case errors.Is(err, unix.ENOENT):
		return netip.AddrPort{}, ErrNone
	case err != nil:
		return netip.AddrPort{}, fmt.Errorf("asking for the table of connections: %w", err)
	}
	return destination(answer)
}

// request returns the query for one connection by its original addresses.
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
	return append([]byte{family, 0, 0, 0}, attribute(tupleOriginal|unix.NLA_F_NESTED, tuple)...)
}

// attribute encodes an attribute, padded to four bytes.
func attribute(kind uint16, value []byte) []byte {
	encoded := binary.NativeEndian.AppendUint16(nil, uint16(attributeSize+len(value))) //nolint:gosec // a hundred bytes
	encoded = append(binary.NativeEndian.AppendUint16(encoded, kind), value...)
	return append(encoded, make([]byte, (4-len(encoded)%4)%4)...)
}

// destination reads from the kernel's answer the address that the replies come from.
func destination(message []byte) (netip.AddrPort, error) {
	tuple := attributes(attributes(message[netfilterSize:])[tupleReply])
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
