package quota

import (
	"cmp"
	"context"
	"crypto/tls"
	"net"
	"slices"
	"sync"
	"sync/atomic"

	"k8s.io/klog/v2"
)

// Listener accepts connections, and closes each whose caller gets no place for it. (If it stopped accepting instead,
// all callers would be locked out, and wait in the kernel's queue without an answer.)
type Listener struct {
	net.Listener

	Quota *Quota
	// Logger gets a line for every connection that is refused, at V(2).
	Logger klog.Logger
	// Replaces is set if a connection without a place gets that of older ones that Keep was not called for: of the same
	// caller, or of all callers if this one has none. Those that Prefer was called for come last.
	Replaces bool

	mu sync.Mutex
	// replaceable are the open connections that Keep was not called for, the oldest first; guarded by mu.
	replaceable []*countedConn
}

// Accept implements net.Listener.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		caller := callerOf(conn)
		release, ok := l.Quota.Acquire(caller)
		for !ok && l.closeOldest(caller) {
			release, ok = l.Quota.Acquire(caller)
		}
		if ok {
			return l.track(&countedConn{Conn: conn, caller: caller, release: release}), nil
		}
		l.Logger.V(2).Info("Closing a connection: too many are open",
			"caller", caller, "remote", conn.RemoteAddr().String())
		_ = conn.Close() // nothing was read or written
	}
}

func (l *Listener) track(conn *countedConn) net.Conn {
	if l.Replaces {
		conn.keep = sync.OnceFunc(func() { l.keep(conn) })
		l.mu.Lock()
		defer l.mu.Unlock()
		l.replaceable = append(l.replaceable, conn)
	}
	return conn
}

func (l *Listener) keep(conn *countedConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.replaceable = slices.DeleteFunc(l.replaceable, func(c *countedConn) bool { return c == conn })
}

// closeOldest closes the connection that a new one of a caller replaces, and reports whether there was one.
func (l *Listener) closeOldest(caller string) bool {
	l.mu.Lock()
	open := slices.Clone(l.replaceable)
	l.mu.Unlock()
	if len(open) == 0 {
		return false
	}
	rank := func(c *countedConn) int {
		switch own, preferred := c.caller == caller, c.preferred.Load(); {
		case own && !preferred:
			return 0
		case own:
			return 1
		case !preferred:
			return 2
		default:
			return 3
		}
	}
	// Of equal ones it is the first.
	oldest := slices.MinFunc(open, func(a, b *countedConn) int { return cmp.Compare(rank(a), rank(b)) })
	_ = oldest.Close() // its place counts
	return true
}

// countedConn releases its place when it is closed.
type countedConn struct {
	net.Conn

	caller  string
	release func()
	// keep protects the connection from being replaced; nil if none is.
	keep func()
	// preferred is set once Prefer was called.
	preferred atomic.Bool
}

func (c *countedConn) Close() error {
	defer c.release()
	if c.keep != nil {
		c.keep()
	}
	return c.Conn.Close()
}

type connKey struct{}

// WithCaller is the ConnContext of an http.Server: it adds a connection of a Listener to ctx, for Caller,
// Keep and Prefer.
func WithCaller(ctx context.Context, conn net.Conn) context.Context {
	if wrapped, ok := conn.(*tls.Conn); ok {
		conn = wrapped.NetConn()
	}
	if counted, ok := conn.(*countedConn); ok {
		ctx = context.WithValue(ctx, connKey{}, counted)
	}
	return ctx
}

// Caller returns the caller of the connection in ctx, "" without one.
func Caller(ctx context.Context) string {
	if counted, ok := ctx.Value(connKey{}).(*countedConn); ok {
		return counted.caller
	}
	return ""
}

// Prefer makes newer connections replace the one in ctx only after all others of the same caller.
func Prefer(ctx context.Context) {
	if counted, ok := ctx.Value(connKey{}).(*countedConn); ok {
		counted.preferred.Store(true)
	}
}

// Keep protects the connection in ctx from being replaced by a newer one.
func Keep(ctx context.Context) {
	if counted, ok := ctx.Value(connKey{}).(*countedConn); ok && counted.keep != nil {
		counted.keep()
	}
}
