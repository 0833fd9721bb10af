//go:build !unix

package probe

import (
	"errors"
	"net/netip"
)

// bind is for nodes, which are Linux. kubectl-grid is built for others too, and does not call it.
func bind(uintptr, netip.Addr) (netip.AddrPort, error) {
	return netip.AddrPort{}, errors.New("not on this system")
}
