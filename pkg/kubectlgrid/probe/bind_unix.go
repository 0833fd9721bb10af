//go:build unix

package probe

import (
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// bind binds a socket to the address source and a free port, and returns both.
func bind(fd uintptr, source netip.Addr) (netip.AddrPort, error) {
	var address unix.Sockaddr
	if source.Is6() {
		address = &unix.SockaddrInet6{Addr: source.As16()}
	} else {
		address = &unix.SockaddrInet4{Addr: source.As4()}
	}
	if err := unix.Bind(int(fd), address); err != nil {
		return netip.AddrPort{}, fmt.Errorf("binding to %s: %w", source, err)
	}
	bound, err := unix.Getsockname(int(fd))
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("asking for the port: %w", err)
	}
	switch a := bound.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(source, uint16(a.Port)), nil //nolint:gosec // a port
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(source, uint16(a.Port)), nil //nolint:gosec // a port
	}
	return netip.AddrPort{}, fmt.Errorf("a socket of the kind %T", bound)
}
