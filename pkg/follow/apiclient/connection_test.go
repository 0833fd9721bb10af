package apiclient

import (
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"
)

// server answers with who asked, and streams until it is ended.
func server(t *testing.T, name string) *httptest.Server {
	t.Helper()
	ended := make(chan struct{})
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s %s %q\n", name, r.URL.EscapedPath(), r.Header.Get("Authorization"))
		if strings.HasSuffix(r.URL.Path, "/stream") {
			_ = http.NewResponseController(w).Flush()
			select {
			case <-ended:
			case <-r.Context().Done():
			}
		}
	}))
	t.Cleanup(func() {
		close(ended)
		s.Close()
	})
	return s
}

// writeKubeconfig replaces a kubeconfig, as by a rename.
func writeKubeconfig(t *testing.T, path string, s *httptest.Server, prefix, token string) {
	t.Helper()
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: c, user: u}}]
clusters: [{name: c, cluster: {server: %q, certificate-authority-data: %s}}]
users: [{name: u, user: {token: %q}}]
`, s.URL+prefix, base64.StdEncoding.EncodeToString(authority), token)
	if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// begun asks for a URL, and returns what the answer begins with, and the rest of it.
func begun(t *testing.T, client *http.Client, url string) (unread io.ReadCloser, begin string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	line := make([]byte, 200)
	n, _ := response.Body.Read(line)
	return response.Body, strings.TrimSpace(string(line[:n]))
}

func connect(t *testing.T, kubeconfig string) *Connection {
	t.Helper()
	c, err := Options{Program: "p", Kubeconfig: kubeconfig, QPS: 1, Burst: 1}.Connect()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// clients are two of a Connection: one with its credentials, and one without any.
type clients struct {
	*Connection

	own, anonymous *http.Client
}

func clientsOf(t *testing.T, c *Connection) clients {
	t.Helper()
	config, err := c.Config()
	if err != nil {
		t.Fatal(err)
	}
	own, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	transport, err := c.Transport(rest.AnonymousClientConfig)
	if err != nil {
		t.Fatal(err)
	}
	return clients{c, own, &http.Client{Transport: transport}}
}

// expect reads the kubeconfig again, and expects what each client is answered then.
func (c clients) expect(t *testing.T, what, own, anonymous string) {
	t.Helper()
	c.reload(logr.Discard())
	for client, want := range map[*http.Client]string{c.own: own, c.anonymous: anonymous} {
		body, got := begun(t, client, c.first(t)+"/a%2Fb")
		_ = body.Close()
		if got != want {
			t.Errorf("%s: got %q, want %q", what, got, want)
		}
	}
}

// TestConnectionFollowsItsKubeconfig: another token, another server, and a file that is none.
func TestConnectionFollowsItsKubeconfig(t *testing.T) {
	t.Parallel()
	one, two := server(t, "one"), server(t, "two")
	path := filepath.Join(t.TempDir(), "kubeconfig")
	writeKubeconfig(t, path, one, "", "first")
	c := clientsOf(t, connect(t, path))
	changes := 0
	c.OnChange(func() { changes++ })
	c.expect(t, "at first", `one /a%2Fb "Bearer first"`, `one /a%2Fb ""`)
	if changes != 0 {
		t.Error("a file that is the same is a change")
	}
	if got := c.Credentials(); got != "the token in "+path {
		t.Errorf("the credentials are %s", got)
	}
	stream, _ := begun(t, c.own, c.first(t)+"/stream")
	defer stream.Close()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = io.Copy(io.Discard, stream)
	}()

	writeKubeconfig(t, path, one, "", "second")
	c.expect(t, "another token", `one /a%2Fb "Bearer second"`, `one /a%2Fb ""`)

	if err := os.WriteFile(path, []byte("nonsense: ["), 0o600); err != nil {
		t.Fatal(err)
	}
	c.expect(t, "a file that is none", `one /a%2Fb "Bearer second"`, `one /a%2Fb ""`)
	if c.Problem() == nil {
		t.Error("nothing is wrong with a kubeconfig that is none")
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	c.expect(t, "no file", `one /a%2Fb "Bearer second"`, `one /a%2Fb ""`)

	// The same content again is no change, but all is well.
	writeKubeconfig(t, path, one, "", "second")
	c.reload(logr.Discard())
	if err := c.Problem(); err != nil {
		t.Error(err)
	}
	select {
	case <-ended:
		t.Error("a stream was broken, though the server is the same")
	default:
	}

	writeKubeconfig(t, path, two, "/under", "third")
	c.expect(t, "another server", `two /under/a%2Fb "Bearer third"`, `two /under/a%2Fb ""`)
	select {
	case <-ended:
	case <-time.After(patience):
		t.Error("a stream from the old server goes on")
	}
	if changes < 2 {
		t.Errorf("%d changes were told", changes)
	}
}

// first is the server for which requests are made.
func (c *Connection) first(t *testing.T) string {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	return strings.TrimSuffix(c.transports[0].first.String(), "/")
}

// TestConnectionChangesUnderWay: requests go on while the file changes again and again.
func TestConnectionChangesUnderWay(t *testing.T) {
	t.Parallel()
	one := server(t, "one")
	path := filepath.Join(t.TempDir(), "kubeconfig")
	writeKubeconfig(t, path, one, "", "0")
	c := connect(t, path)
	transport, err := c.Transport(func(own *rest.Config) *rest.Config { return own })
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				r, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, one.URL+"/x", nil)
				response, err := transport.RoundTrip(r)
				if err != nil {
					t.Error(err)
					return
				}
				_, _ = io.Copy(io.Discard, response.Body)
				_ = response.Body.Close()
			}
		})
	}
	for i := range 20 {
		writeKubeconfig(t, path, one, "", fmt.Sprint(i+1))
		c.reload(logr.Discard())
	}
	close(done)
	wg.Wait()
}
