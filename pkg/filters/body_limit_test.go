package filters

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// pipeListener hands out the far ends of pipes, so that a server and its clients can live in a bubble of synctest.
type pipeListener chan net.Conn

// Accept implements net.Listener.
func (l pipeListener) Accept() (net.Conn, error) {
	conn, ok := <-l
	if !ok {
		return nil, net.ErrClosed
	}
	return conn, nil
}

// Close implements net.Listener.
func (l pipeListener) Close() error { close(l); return nil }

// Addr implements net.Listener.
func (l pipeListener) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "pipe"} }

// TestSlowBody: one that does not end is broken off and answered; one that is merely slow is not, and its
// connection goes on to be of use after the time that the body had.
func TestSlowBody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const timeout = time.Minute
		upstream := upstreamFunc(func(r *http.Request) (*http.Response, error) {
			body, err := io.ReadAll(r.Body)
			if err != nil {
				return nil, err
			}
			// An answer that comes long after the body.
			time.Sleep(2 * timeout)
			return &http.Response{
				StatusCode: http.StatusOK, Header: http.Header{},
				Body: io.NopCloser(strings.NewReader(fmt.Sprintf("got %q", body))),
			}, nil
		})
		forward := Forward(Target{URL: &url.URL{Scheme: "https", Host: "upstream.example"}, Transport: upstream,
			Link: &linkStub{}})
		listener := make(pipeListener)
		server := &http.Server{Handler: WithBodyLimit(timeout)(forward), ReadHeaderTimeout: timeout}
		served := make(chan error)
		go func() { served <- server.Serve(listener) }()
		dial := func() (net.Conn, *bufio.Reader) {
			near, far := net.Pipe()
			listener <- far
			return near, bufio.NewReader(near)
		}
		ask := func(conn net.Conn, reader *bufio.Reader, body string, pause time.Duration) (int, string) {
			t.Helper()
			_, _ = fmt.Fprintf(conn,
				"POST /api/v1/namespaces/ns/events HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n", len("abcdef"))
			for _, b := range []byte(body) {
				if _, err := conn.Write([]byte{b}); err != nil {
					t.Fatal(err)
				}
				time.Sleep(pause)
			}
			response, err := http.ReadResponse(reader, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = response.Body.Close() }()
			answer, err := io.ReadAll(response.Body)
			if err != nil {
				t.Fatal(err)
			}
			return response.StatusCode, string(answer)
		}
		slow, slowReader := dial()
		for range 2 {
			if code, body := ask(slow, slowReader, "abcdef", timeout/8); code != http.StatusOK ||
				body != `got "abcdef"` {
				t.Errorf("slow: %d %s", code, body)
			}
		}
		endless, endlessReader := dial()
		began := time.Now()
		if code, body := ask(endless, endlessReader, "abc", 0); code != http.StatusRequestTimeout ||
			!strings.Contains(body, errSlowBody.Error()) {
			t.Errorf("endless: %d %s", code, body)
		}
		if took := time.Since(began); took != timeout {
			t.Errorf("endless: broken off after %s, want %s", took, timeout)
		}
		_ = slow.Close()
		_ = endless.Close()
		if err := server.Close(); err != nil {
			t.Error(err)
		}
		<-served
	})
}
