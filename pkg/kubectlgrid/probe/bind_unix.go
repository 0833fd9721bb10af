//go:build unix

package probe

import (
	"fmt"
	"io"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

// bind binds a socket to the address source and a free port, and returns both. While kept is open the kernel knows the
// socket, even if no one answers and the dialer closes it.
func bind(fd uintptr, source netip.Addr) (bound netip.AddrPort, kept io.Closer, err error) {
	var address unix.Sockaddr
	if source.Is6() {
		address = &unix.SockaddrInet6{Addr: source.As16()}
	} else {
		address = &unix.SockaddrInet4{Addr: source.As4()}
	}
	if err := unix.Bind(int(fd), address); err != nil {
		return bound, nil, fmt.Errorf("binding to %s: %w", source, err)
	}
	name, err := unix.Getsockname(int(fd))
	if err != nil {
		return bound, nil, fmt.Errorf("asking for the port: %w", err)
	}
	switch a := name.(type) {
	case *unix.SockaddrInet4:
		bound = netip.AddrPortFrom(source, uint16(a.Port)) //nolint:gosec // a port
	case *unix.SockaddrInet6:
		bound = netip.AddrPortFrom(source, uint16(a.Port)) //nolint:gosec // a port
	default:
		return bound, nil, fmt.Errorf("a socket of the kind %T", name)
	}
	second, err := unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return bound, nil, fmt.Errorf("keeping the socket: %w", err)
	}
	return bound, os.NewFile(uintptr(second), "socket"), nil
}
