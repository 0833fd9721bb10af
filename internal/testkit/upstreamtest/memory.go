package upstreamtest

import (
	"context"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
)

// Memory is a transport that carries requests to a Handler through pipes instead of a network, which a bubble of
// testing/synctest could not wait for. A Handler that panics breaks off its response, or refuses the connection if it
// has not begun one.
type Memory struct{ Handler http.Handler }

// errRefused is the error of a request whose connection is refused.
var errRefused = errors.New("connection refused")

// RoundTrip implements http.RoundTripper.
func (m Memory) RoundTrip(r *http.Request) (*http.Response, error) {
	near, far := net.Pipe()
	server := &http.Server{Handler: m.Handler, ErrorLog: log.New(io.Discard, "", 0)} //nolint:gosec // of a test
	go func() { _ = server.Serve(&single{Conn: far}) }()
	transport := &http.Transport{
		DisableKeepAlives: true, // so that both ends of the connection end with the request
		DialContext:       func(context.Context, string, string) (net.Conn, error) { return near, nil },
	}
	response, err := transport.RoundTrip(r)
	if err != nil && r.Context().Err() == nil {
		err = errRefused // and not the end of a connection, which a client may take for the end of a watch
	}
	return response, err
}

// single is a listener that has one connection.
type single struct {
	net.Conn

	accepted bool
}

// Accept implements net.Listener.
func (s *single) Accept() (net.Conn, error) {
	if s.accepted {
		return nil, io.EOF
	}
	s.accepted = true
	return s.Conn, nil
}

// Close implements net.Listener. The server closes the connection itself.
func (s *single) Close() error { return nil }

// Addr implements net.Listener.
func (s *single) Addr() net.Addr { return s.LocalAddr() }
