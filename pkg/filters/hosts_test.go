package filters

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func newHosts(t *testing.T, allowed ...string) Hosts {
	t.Helper()
	hosts, err := NewHosts(allowed)
	if err != nil {
		t.Fatal(err)
	}
	return hosts
}

// TestHosts holds every way to write a host against what is accepted.
func TestHosts(t *testing.T) {
	t.Parallel()
	hosts := newHosts(t, "Wrapper.Example.", "10.1.2.3", "fd00::1", "[fd00::2]")
	for _, accepted := range []string{
		"localhost", "localhost:51006", "LocalHost:1", "localhost.", "localhost.:51006", "localhost:",
		"127.0.0.1", "127.0.0.1:51006", "127.3.2.1:80", "[::1]", "[::1]:51006", "[0:0:0:0:0:0:0:1]:1",
		"[::ffff:127.0.0.1]:51006",
		"wrapper.example", "WRAPPER.EXAMPLE.:8443", "10.1.2.3:51006", "[::ffff:10.1.2.3]", "[fd00::1]:51006",
		"[fd00::2]", "[FD00:0::1]",
	} {
		if !hosts.Contain(accepted) {
			t.Errorf("%q is refused", accepted)
		}
	}
	for _, refused := range []string{
		"", ":", ":51006", "attacker.example", "attacker.example:51006", "localhost.attacker.example",
		"attacker.example.localhost", "localhost..",
		"notlocalhost", "localhost@attacker.example", "attacker.example@localhost", "localhost:51006@attacker.example",
		"localhost:51006:80",
		"localhost:x", "localhost: 80", " localhost", "localhost ", "localhost,attacker.example", "localhost/",
		"local%68ost", "localhost\x00",
		// Linux connects to the loopback for these, and a browser sends them as they are.
		"0.0.0.0", "0.0.0.0:51006", "[::]", "[::]:51006", "[::ffff:0.0.0.0]",
		// What resolvers, but no browser's Host, may mean by 127.0.0.1.
		"127.1", "2130706433", "0x7f.1", "0177.0.0.1", "127.0.0.1.", "127.0.0.01",
		"::1", "::1:51006", "[::1", "::1]", "[::1]x", "[::1]]:1", "[[::1]]", "[::1%25lo]:51006", "[::1%lo]",
		"[127.0.0.1]", "[localhost]",
		"128.0.0.1", "10.1.2.4", "[fd00::3]", "169.254.169.254",
	} {
		if hosts.Contain(refused) {
			t.Errorf("%q is accepted", refused)
		}
	}
}

func TestAllowedHostsAreChecked(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{
		"", "*", "*.example", "host:51006", "http://host", "a b", "10.0.0.0/8", "::1%lo", "[10.0.0.1]:80", "host/",
	} {
		if _, err := NewHosts([]string{bad}); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("%q", bad)) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// ask sends a request as it is written, with line ends made right, and reads the answer.
func ask(t *testing.T, address, request string) (int, string) {
	t.Helper()
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, strings.ReplaceAll(request, "\n", "\r\n")); err != nil {
		t.Fatal(err)
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatalf("%q: %v", request, err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatalf("%q: %v", request, err)
	}
	return response.StatusCode, string(body)
}

// spoken is a request as it comes over a connection, and what the answer is and says.
type spoken struct {
	request string
	code    int
	says    string
}

// toLocalhost begins requests that name an accepted host.
const toLocalhost = "GET / HTTP/1.1\nHost: localhost\n"

// serveHosts serves the filters as package proxy does, and returns the address.
func serveHosts(t *testing.T) string {
	t.Helper()
	hosts := newHosts(t, "wrapper.example")
	server := httptest.NewUnstartedServer(WithAllowedHosts(hosts)(WithoutCrossOrigin(hosts)(mark("inside"))))
	server.Config.DisableGeneralOptionsHandler = true
	server.Start()
	t.Cleanup(server.Close)
	return server.Listener.Addr().String()
}

func expectAnswers(t *testing.T, address string, requests []spoken) {
	t.Helper()
	for _, r := range requests {
		if code, body := ask(t, address, r.request+"Connection: close\n\n"); code != r.code ||
			!strings.Contains(body, r.says) {
			t.Errorf("%q:\n%d %s, want %d %s", r.request, code, body, r.code, r.says)
		}
	}
}

// TestHostsOverHTTP sends request lines and headers over a connection, so that the server has parsed them.
func TestHostsOverHTTP(t *testing.T) {
	t.Parallel()
	address := serveHosts(t)
	_, port, _ := strings.Cut(address, ":")
	expectAnswers(t, address, []spoken{
		{toLocalhost, 200, "inside"},
		{"GET / HTTP/1.1\nHost: " + address + "\n", 200, "inside"},
		{"GET / HTTP/1.1\nHost: [::1]:51006\n", 200, "inside"},
		{"GET / HTTP/1.1\nHost: wrapper.example\n", 200, "inside"},
		{"GET / HTTP/1.1\nHost: attacker.example:51006\n", 403, "attacker.example:51006"},
		{"GET / HTTP/1.1\nHost: attacker.example:51006\n", 403, "http://localhost:" + port},
		{"GET / HTTP/1.1\nHost: attacker.example:51006\n", 403, "--allowed-hosts"},
		{toLocalhost + "X-Forwarded-Host: attacker.example\nForwarded: host=attacker.example\n", 200, "inside"},
		{"GET / HTTP/1.1\nHost: attacker.example\nX-Forwarded-Host: localhost\n", 403, "attacker.example"},
		// The server's own: no Host, more than one, or one that is none.
		{"GET / HTTP/1.1\n", 400, "missing required Host header"},
		{toLocalhost + "Host: attacker.example\n", 400, "400 Bad Request"},
		{"GET / HTTP/1.1\nHost:\n", 403, `the host \"\"`},
		{"GET / HTTP/1.0\n", 403, `the host \"\"`},
		{"GET / HTTP/1.0\nHost: localhost\n", 200, "inside"},
		// An absolute request line beats the header (RFC 9112, 3.2.2).
		{"GET http://localhost:51006/ HTTP/1.1\nHost: attacker.example\n", 200, "inside"},
		{"GET http://attacker.example/ HTTP/1.1\nHost: localhost\n", 403, "attacker.example"},
		{"GET http://attacker.example@localhost/ HTTP/1.1\nHost: localhost\n", 403, "user name"},
		{"GET http://localhost@attacker.example/ HTTP/1.1\nHost: localhost\n", 403, "user name"},
		{"GET http:///path HTTP/1.1\nHost: attacker.example\n", 403, "attacker.example"},
		{"GET / HTTP/1.1\nHost: localhost@attacker.example\n", 400, "malformed Host header"},
		{"CONNECT attacker.example:443 HTTP/1.1\nHost: localhost\n", 403, "attacker.example"},
		{"GET //attacker.example/ HTTP/1.1\nHost: localhost\n", 200, "inside"}, // a path, whatever it looks like
		{"OPTIONS * HTTP/1.1\nHost: attacker.example\n", 403, "attacker.example"},
	})
	w := answer(WithAllowedHosts(newHosts(t))(mark("inside")), request(t, "GET", "http://attacker.example/"))
	if status := statusOf(t, w); status.Reason != metav1.StatusReasonForbidden {
		t.Errorf("refused with %+v", status)
	}
	long := strings.Repeat("a", 60<<10)
	if code, body := ask(t, address, "GET / HTTP/1.1\nHost: "+long+"\nConnection: close\n\n"); code != 403 ||
		len(body) > 1000 {
		t.Errorf("a long name: %d, %d bytes", code, len(body))
	}
}

// TestWebPagesOverHTTP: requests that a web page of another host makes are refused.
func TestWebPagesOverHTTP(t *testing.T) {
	t.Parallel()
	const origin = toLocalhost + "Origin: "
	const fetchSite = toLocalhost + "Sec-Fetch-Site: "
	expectAnswers(t, serveHosts(t), []spoken{
		{origin + "http://attacker.example\n", 403, "Origin: http://attacker.example"},
		{origin + "null\n", 403, "Origin: null"},
		{origin + "\n", 403, "Origin"},
		{origin + "http://localhost\nOrigin: http://attacker.example\n", 403, "attacker.example"},
		{origin + "http://localhost http://attacker.example\n", 403, "attacker.example"},
		{origin + "http://localhost@attacker.example\n", 403, "attacker.example"},
		{origin + "http://attacker.example/localhost\n", 403, "attacker.example"},
		{origin + "capacitor://localhost\n", 403, "capacitor"},
		{origin + "chrome-extension://abcdef\n", 403, "chrome-extension"},
		{origin + "//localhost\n", 403, "localhost"},
		{origin + "localhost\n", 403, "localhost"},
		{"GET / HTTP/1.1\nHost: localhost:51006\nOrigin: http://localhost:51006\n", 200, "inside"},
		{"GET / HTTP/1.1\nHost: localhost:51006\nOrigin: https://[::1]\n", 200, "inside"},
		{"OPTIONS / HTTP/1.1\nHost: localhost\nOrigin: http://attacker.example\n" +
			"Access-Control-Request-Method: POST\n", 403, "attacker.example"},
		// The names of both are the attacker's: without TLS nothing vouches for the name that is asked.
		{"GET / HTTP/1.1\nHost: attacker.example\nOrigin: http://attacker.example\n", 403, "attacker.example"},

		{fetchSite + "cross-site\n", 403, "Sec-Fetch-Site: cross-site"},
		{fetchSite + "same-site\n", 403, "Sec-Fetch-Site: same-site"},
		{fetchSite + "none\nSec-Fetch-Site: cross-site\n", 403, "cross-site"},
		{fetchSite + "Cross-Site\n", 403, "Cross-Site"},
		{fetchSite + "none\n", 200, "inside"},
		{fetchSite + "same-origin\nOrigin: http://localhost\n", 200, "inside"},
		{origin + "http://localhost\nSec-Fetch-Site: cross-site\n", 403, "cross-site"},
	})
}

// TestSameOriginOverTLS: over TLS the certificate vouches for the name that is asked.
func TestSameOriginOverTLS(t *testing.T) {
	t.Parallel()
	handler := WithoutCrossOrigin(newHosts(t))(mark("inside"))
	for _, test := range []struct {
		origin string
		tls    *tls.ConnectionState
		code   int
	}{
		{"https://edge-1.example:51006", &tls.ConnectionState{}, 200},
		{"https://edge-1.example:51006", nil, 403},
		{"http://edge-1.example:51006", &tls.ConnectionState{}, 403},
		{"https://edge-1.example", &tls.ConnectionState{}, 403},
		{"https://edge-2.example:51006", &tls.ConnectionState{}, 403},
	} {
		r := request(t, "GET", "/")
		r.Host, r.TLS = "edge-1.example:51006", test.tls
		r.Header.Set("Origin", test.origin)
		if w := answer(handler, r); w.Code != test.code {
			t.Errorf("%+v: %d %s", test, w.Code, w.Body)
		}
	}
}
