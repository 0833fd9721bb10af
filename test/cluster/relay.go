package cluster

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
)

// Relay forwards the connections of a loopback port of the host to an address inside the cluster's namespace.
// It copies bytes, so TLS is between the client and kube-apiserver.
type Relay struct {
	listener net.Listener
	dial     func(ctx context.Context) (net.Conn, error)
	cancel   context.CancelFunc

	mu     sync.Mutex
	closed bool                  // guarded by mu
	conns  map[net.Conn]struct{} // guarded by mu; both ends of every connection
}

// StartRelay begins to forward the connections of a free loopback port of the host to what dial opens, until Close.
func StartRelay(ctx context.Context, dial func(ctx context.Context) (net.Conn, error)) (*Relay, error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listening on a loopback port for a relay: %w", err)
	}
	return relayFrom(ctx, listener, dial), nil
}

// relayFrom begins to forward the connections that a listener accepts to what dial opens, until Close.
func relayFrom(ctx context.Context, listener net.Listener, dial func(ctx context.Context) (net.Conn, error)) *Relay {
	// The relay lives as long as the cluster, not as the call that starts it.
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	r := &Relay{listener: listener, dial: dial, cancel: cancel, conns: map[net.Conn]struct{}{}}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return // closed
			}
			go r.forward(ctx, conn)
		}
	}()
	return r
}

// StandIn has kube-apiserver answer at an address of the node, or that of its wrapper, which must not run, until Close:
// so does a load balancer in front of both. It is for wrappers that serve TLS, whose certificate is kube-apiserver's.
func (n *Node) StandIn(ctx context.Context, address string) (*Relay, error) {
	listener, err := n.Listen(ctx, cmp.Or(address, n.wrapperAddress))
	if err != nil {
		return nil, fmt.Errorf("standing in at %s: %w", n.Name(), err)
	}
	return relayFrom(ctx, listener, func(ctx context.Context) (net.Conn, error) {
		return n.dial()(ctx, "tcp", strings.TrimPrefix(n.APIServerURL(), "https://"))
	}), nil
}

// Address is where the relay listens, host:port.
func (r *Relay) Address() string { return r.listener.Addr().String() }

func (r *Relay) forward(ctx context.Context, outside net.Conn) {
	defer r.drop(outside)
	if !r.keep(outside) {
		return
	}
	inside, err := r.dial(ctx)
	if err != nil {
		return // kube-apiserver is down; the client sees a closed connection
	}
	defer r.drop(inside)
	if !r.keep(inside) {
		return
	}
	done := make(chan struct{}, 2)
	transfer := func(to, from net.Conn) {
		_, _ = io.Copy(to, from) // either end went away, which ends the connection
		done <- struct{}{}
	}
	go transfer(inside, outside)
	go transfer(outside, inside)
	<-done
}

func (r *Relay) keep(conn net.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.closed {
		r.conns[conn] = struct{}{}
	}
	return !r.closed
}

func (r *Relay) drop(conn net.Conn) {
	_ = conn.Close()
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.conns, conn)
}

// Close ends the relay and its connections.
func (r *Relay) Close() {
	_ = r.listener.Close()
	r.cancel()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	for conn := range r.conns {
		_ = conn.Close()
	}
}
