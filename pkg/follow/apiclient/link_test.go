package apiclient

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// failing is a transport that fails.
type failing struct{ err error }

// RoundTrip implements http.RoundTripper.
func (f failing) RoundTrip(*http.Request) (*http.Response, error) { return nil, f.err }

// TestLink: an error of a request that may be its sender's fault causes a probe, and only that decides.
func TestLink(t *testing.T) {
	refused := &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	malformed := errors.New("http2: invalid Upgrade request header")
	for name, test := range map[string]struct {
		request, probe error
		// away is whether it is away at once, later after the probe. probes is how many there may be in a second of
		// such requests and ten without.
		away, later bool
		probes      int32
	}{
		"nobody listens":     {refused, refused, true, true, 15},
		"the sender's fault": {malformed, nil, false, false, 6},
		"the server is gone": {malformed, malformed, false, true, 15},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var probes atomic.Int32
				var l *Link
				send := func(err error) error {
					response, err := l.Watch(failing{err}).RoundTrip(
						httptest.NewRequestWithContext(t.Context(), http.MethodPut, "/", http.NoBody))
					if err == nil {
						return response.Body.Close()
					}
					return err
				}
				l = NewLink(func(context.Context) error {
					probes.Add(1)
					if test.probe == nil {
						return nil
					}
					return send(test.probe)
				})
				go l.Run(t.Context()) // until the test's end
				synctest.Wait()
				_ = send(test.request)
				if away := l.Away() != nil; away != test.away {
					t.Errorf("at once it is away: %v", away)
				}
				for range 1000 {
					time.Sleep(time.Millisecond)
					_ = send(test.request)
				}
				time.Sleep(10 * time.Second)
				if away := l.Away() != nil; away != test.later {
					t.Errorf("later it is away: %v", away)
				}
				if probes := probes.Load(); probes == 0 || probes > test.probes {
					t.Errorf("it was probed %d times", probes)
				}
			})
		})
	}
}

// TestLinkAsksTheServer: a probe is a request that no cache answers. What a gateway says in place of an API server
// counts as away, and what an API server says counts as there, also if it refuses. What waits is called when it is
// back.
func TestLinkAsksTheServer(t *testing.T) {
	var code atomic.Int64
	code.Store(http.StatusCreated)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost || r.URL.Path != reviewPath {
			t.Errorf("a probe is %s %s", r.Method, r.URL.Path)
		}
		w.WriteHeader(int(code.Load()))
	}))
	defer server.Close()
	connection, err := Options{Program: "x", Master: server.URL, QPS: 1, Burst: 1}.Connect()
	if err != nil {
		t.Fatal(err)
	}
	link, err := connection.Link()
	if err != nil {
		t.Fatal(err)
	}
	back := 0
	link.OnBack(func() { back++ })
	for _, test := range []struct {
		code int
		away bool
		back int
	}{
		{http.StatusCreated, false, 0}, {http.StatusServiceUnavailable, true, 0}, {http.StatusBadGateway, true, 0},
		{http.StatusTooManyRequests, false, 1}, {http.StatusInternalServerError, true, 1},
		{http.StatusUnauthorized, false, 2}, {http.StatusNotFound, false, 2},
	} {
		code.Store(int64(test.code))
		link.Ask(t.Context())
		if away := link.Away() != nil; away != test.away || back != test.back {
			t.Errorf("%d: away %v, back %d times", test.code, away, back)
		}
	}
	server.Close()
	if link.Ask(t.Context()); link.Away() == nil {
		t.Error("nobody listens, and it is not away")
	}
}
