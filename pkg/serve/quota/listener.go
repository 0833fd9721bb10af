package quota

import (
	"context"
	"crypto/tls"
	"net"

	"k8s.io/klog/v2"
)

// Listener accepts connections, and closes each whose caller gets no place for it. (If it stopped accepting instead,
// all callers would be locked out, and wait in the kernel's queue without an answer.)
type Listener struct {
	net.Listener

	Quota *Quota
	// Logger gets a line for every connection that is refused, at V(2).
	Logger klog.Logger
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
		if ok {
			return &countedConn{Conn: conn, caller: caller, release: release}, nil
		}
		l.Logger.V(2).Info("Closing a connection: too many are open",
			"caller", caller, "remote", conn.RemoteAddr().String())
		_ = conn.Close() // nothing was read or written
	}
}

// countedConn releases its place when it is closed.
type countedConn struct {
	net.Conn

	caller  string
	release func()
}

func (c *countedConn) Close() error {
	defer c.release()
	return c.Conn.Close()
}

type callerKey struct{}

// WithCaller is the ConnContext of an http.Server: it adds the caller of a connection of a Listener to ctx.
func WithCaller(ctx context.Context, conn net.Conn) context.Context {
	if wrapped, ok := conn.(*tls.Conn); ok {
		conn = wrapped.NetConn()
	}
	if counted, ok := conn.(*countedConn); ok {
		ctx = context.WithValue(ctx, callerKey{}, counted.caller)
	}
	return ctx
}

// Caller returns the caller that WithCaller added to ctx, "" if ctx has none.
func Caller(ctx context.Context) string {
	caller, _ := ctx.Value(callerKey{}).(string)
	return caller
}
