//go:build !unix

package probe

import (
	"errors"
	"io"
	"net/netip"
)

// bind fails. It exists because kubectl-grid, which does not call it, is built for other systems; nodes run Linux.
func bind(uintptr, netip.Addr) (netip.AddrPort, io.Closer, error) {
	return netip.AddrPort{}, nil, errors.New("not on this system")
}
