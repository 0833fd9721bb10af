//go:build !unix

package probe

import (
	"errors"
	"net/netip"
)

// bind fails. kubectl-grid, which does not call it, is built for systems without it; nodes run Linux.
func bind(uintptr, netip.Addr) (netip.AddrPort, error) {
	return netip.AddrPort{}, errors.New("not on this system")
}
