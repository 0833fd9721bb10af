// Package probe finds out to which endpoints of a Service a node's rules send connections, by opening connections.
// `application-grid-wrapper probe` runs it on a node for `kubectl grid prove`, prints a Result, and `kubectl grid
// prove` reads that.
//
// A client cannot see to which endpoint a Service's address was translated, and a response may not show who sent it. So
// after each connection, while its socket is open, Connect asks the kernel where it sent the connection. That works for
// every TCP Service, sends no data to it, and also covers connections that were not answered.
package probe

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"syscall"
	"time"
)

// Result counts where connections went. It is small enough for the status of a pod, which has 4 KiB for it.
type Result struct {
	// Asked is how many connections were tried.
	Asked int `json:"asked"`
	// Reached counts answered connections by the address to which they were sent, and Silent counts unanswered ones.
	// Connections to addresses beyond maxAddresses are counted in Others.
	Reached map[string]int `json:"reached,omitempty"`
	Silent  map[string]int `json:"silent,omitempty"`
	Others  int            `json:"others,omitempty"`
	// Nobody is how many connections were refused: by the node, as kube-proxy does for a Service without endpoints, or
	// by an endpoint where no program listens, because the kernel forgets such a connection at once.
	Nobody int `json:"nobody,omitempty"`
	// Untranslated is how many connections kept the Service's address, because no rule translated it.
	Untranslated int `json:"untranslated,omitempty"`
	// Error is why the probe ended early; the counts up to then are valid.
	Error string `json:"error,omitempty"`
}

// maxAddresses is the largest number of addresses in a Result: at 40 bytes each they fit into a pod's status.
const maxAddresses = 70

// Options configure Connect.
type Options struct {
	// Target is the Service's address and port.
	Target netip.AddrPort
	// Requests is how many connections are tried, one after the other.
	Requests int
	// Timeout limits one connection.
	Timeout time.Duration
	// Destination returns where the kernel sent a connection, as conntrack.Destination does.
	Destination func(source, target netip.AddrPort) (netip.AddrPort, error)
	// None is the error of Destination for a connection that the kernel does not know.
	None error
}

// Connect connects to the target again and again.
func Connect(ctx context.Context, o Options) Result {
	result := Result{Reached: map[string]int{}, Silent: map[string]int{}}
	for range o.Requests {
		if ctx.Err() != nil {
			result.Error = "it was interrupted"
			break
		}
		result.Asked++
		sent, answered, err := once(ctx, o)
		switch {
		case errors.Is(err, o.None) && answered:
			result.Untranslated++
		case errors.Is(err, o.None):
			result.Nobody++
		case err != nil:
			result.Asked--
			result.Error = err.Error()
			return result
		case sent == o.Target:
			result.Untranslated++
		case answered:
			result.count(result.Reached, sent)
		default:
			result.count(result.Silent, sent)
		}
	}
	return result
}

func (r *Result) count(counts map[string]int, address netip.AddrPort) {
	if counts[address.String()] == 0 && len(r.Reached)+len(r.Silent) == maxAddresses {
		r.Others++
		return
	}
	counts[address.String()]++
}

// once connects once, and returns where the connection was sent and whether it was answered.
func once(ctx context.Context, o Options) (sent netip.AddrPort, answered bool, err error) {
	source, err := localAddress(ctx, o.Target)
	if err != nil {
		return sent, false, err
	}
	var bound netip.AddrPort
	var kept io.Closer
	var bindErr error
	dialer := net.Dialer{Timeout: o.Timeout, KeepAlive: -1, Control: func(_, _ string, c syscall.RawConn) error {
		// If no one answers, the dialer has closed the socket when it returns.
		if err := c.Control(func(fd uintptr) { bound, kept, bindErr = bind(fd, source) }); err != nil {
			return err
		}
		return bindErr
	}}
	connection, dialErr := dialer.DialContext(ctx, "tcp", o.Target.String())
	if connection != nil {
		defer connection.Close()
	}
	if kept != nil {
		defer kept.Close()
	}
	if bindErr != nil || !bound.IsValid() {
		return sent, false, fmt.Errorf("making a socket: %w", errors.Join(bindErr, dialErr))
	}
	sent, err = o.Destination(bound, o.Target)
	return sent, dialErr == nil, err
}

// localAddress returns the address that connections to the target come from. It sends no packet.
func localAddress(ctx context.Context, target netip.AddrPort) (netip.Addr, error) {
	connection, err := new(net.Dialer).DialContext(ctx, "udp", target.String())
	if err != nil {
		return netip.Addr{}, fmt.Errorf("no route to %s: %w", target, err)
	}
	defer connection.Close()
	local, err := netip.ParseAddrPort(connection.LocalAddr().String())
	if err != nil {
		return netip.Addr{}, err
	}
	return local.Addr().Unmap(), nil
}
