package lite

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
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
				var l *link
				send := func(err error) error {
					response, err := watching{failing{err}, l}.RoundTrip(
						httptest.NewRequestWithContext(t.Context(), http.MethodPut, "/", http.NoBody))
					if err == nil {
						return response.Body.Close()
					}
					return err
				}
				l = newLink(func(context.Context) error {
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

// TestBadRequestsLeaveTheLink: what a stranger sends does not take kube-apiserver away from the kubelet.
func TestBadRequestsLeaveTheLink(t *testing.T) {
	f := running(t)
	client := f.clientFor(f.kubelet())
	for _, request := range []string{
		"PUT / HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer x\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer x\r\nContent-Length: 1000\r\n\r\nten bytes.",
	} {
		for range 10 {
			connection, err := (&tls.Dialer{Config: &tls.Config{
				MinVersion: tls.VersionTLS12, InsecureSkipVerify: true,
			}}).DialContext(t.Context(), "tcp", f.config.Address)
			f.must(err)
			_, err = fmt.Fprint(connection, request)
			f.must(err)
			f.must(connection.(*tls.Conn).CloseWrite())
			_, _ = bufio.NewReader(connection).ReadString('\n') // an answer, or the end
			_ = connection.Close()
			if f.server.link.Away() != nil {
				t.Fatalf("kube-apiserver is taken for away after %q", request)
			}
		}
	}
	_, err := client.CoreV1().Nodes().Patch(t.Context(), "node0", types.MergePatchType, []byte("{}"),
		metav1.PatchOptions{})
	f.must(err)
}
