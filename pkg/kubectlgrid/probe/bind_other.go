//go:build !unix

package probe

import (
	"errors"
	"io"
	"net/netip"
)

// bind fails. kubectl-grid, which does not call it, is built for systems without it; nodes run Linux.
func bind(uintptr, netip.Addr) (netip.AddrPort, io.Closer, error) {
	return netip.AddrPort{}, nil, errors.New("not on this system")
}
