package filters

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"
)

// TestSlowBody: one that does not end is broken off and answered; one that is merely slow is not, and its
// connection goes on to be of use after the time that the body had.
func TestSlowBody(t *testing.T) {
	const timeout = 300 * time.Millisecond
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		// An answer that comes long after the body.
		time.Sleep(2 * timeout)
		_, _ = fmt.Fprintf(w, "got %q", body)
	}))
	defer upstream.Close()
	address, err := url.Parse(upstream.URL)
	if err != nil {
		t.Fatal(err)
	}
	forward := Forward(Target{URL: address, Transport: &http.Transport{}})
	server := httptest.NewServer(WithRequestInfo()(WithBodyLimit(timeout)(forward)))
	defer server.Close()

	dial := func() (net.Conn, *bufio.Reader) {
		conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
		return conn, bufio.NewReader(conn)
	}
	ask := func(conn net.Conn, reader *bufio.Reader, body string, pause time.Duration) (int, string) {
		t.Helper()
		fmt.Fprintf(conn, "POST /api/v1/namespaces/ns/events HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n", len("abcdef"))
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
		defer response.Body.Close()
		answer, err := io.ReadAll(response.Body)
		if err != nil {
			t.Fatal(err)
		}
		return response.StatusCode, string(answer)
	}
	conn, reader := dial()
	for range 2 {
		if code, body := ask(conn, reader, "abcdef", timeout/20); code != http.StatusOK || body != `got "abcdef"` {
			t.Errorf("slow: %d %s", code, body)
		}
	}
	conn, reader = dial()
	if code, body := ask(conn, reader, "abc", 0); code != http.StatusRequestTimeout || !strings.Contains(body, errSlowBody.Error()) {
		t.Errorf("endless: %d %s", code, body)
	}
}
