package proxy

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"k8s.io/klog/v2"

	"github.com/application-grid/application-grid/internal/testkit/tlstest"
)

// TestHostsOfOtherAddresses: where TLS keeps browsers off names that the certificate does not have, any name is good,
// unless names were given.
func TestHostsOfOtherAddresses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	certFile, keyFile := tlstest.NewAuthority(t).IssueFiles(t, dir, "serving")
	for _, test := range []struct {
		address string
		allowed []string
		host    string
		code    int
	}{
		{"0.0.0.0:0", nil, "edge-1.example:51006", http.StatusOK},
		{"0.0.0.0:0", []string{"edge-1.example"}, "edge-1.example:51006", http.StatusOK},
		{"0.0.0.0:0", []string{"edge-1.example"}, "edge-2.example:51006", http.StatusForbidden},
		{"0.0.0.0:0", []string{"edge-1.example"}, "localhost", http.StatusOK},
		{"127.0.0.1:0", nil, "edge-1.example:51006", http.StatusForbidden},
		{"[::1]:0", nil, "edge-1.example:51006", http.StatusForbidden},
		{"localhost:0", nil, "edge-1.example:51006", http.StatusForbidden},
	} {
		p := newProxy(t, Config{
			BindAddress: test.address, AllowedHosts: test.allowed, TLS: &TLSFiles{Cert: certFile, Key: keyFile},
		})
		w := httptest.NewRecorder()
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/livez", nil)
		r.Host = test.host
		p.chain().ServeHTTP(w, r)
		if w.Code != test.code {
			t.Errorf("%+v: %d %s", test, w.Code, w.Body)
		}
	}
	if _, err := New(Config{BindAddress: "localhost:0", AllowedHosts: []string{"host:80"}},
		klog.Background()); err == nil || !strings.Contains(err.Error(), "--allowed-hosts") {
		t.Errorf("a name with a port: %v", err)
	}
}

// TestWatchesAreBounded takes the seat of a local process that opens all watches that it can get: it is told to come
// back later, others are not, and when its watches end there is room for new ones.
func TestWatchesAreBounded(t *testing.T) {
	t.Parallel()
	w := startReady(t, smallCluster(), func(c *Config) { c.MaxWatches = 10 })
	ctx, cancel := context.WithCancel(t.Context())
	for range 5 { // root has half of them
		response := w.open(ctx, http.MethodGet, "/api/v1/services?watch=true", "")
		defer response.Body.Close()
		if response.StatusCode != http.StatusOK {
			t.Fatalf("within the limit: %s", response.Status)
		}
	}
	for _, path := range []string{
		"/api/v1/services?watch=1", "/api/v1/watch/services", "/apis/networking.k8s.io/v1/servicecidrs?watch=true",
		"/api/v1/namespaces/n/pods/p/log?follow=true",
	} {
		response := w.open(t.Context(), http.MethodGet, path, "")
		_ = response.Body.Close()
		if response.StatusCode != http.StatusTooManyRequests || response.Header.Get("Retry-After") == "" {
			t.Errorf("%s over the limit: %s", path, response.Status)
		}
	}
	w.expect(http.StatusOK, "/api/v1/services")
	if _, body := w.get("/metrics"); !strings.Contains(body, "\napplication_grid_wrapper_watches 5\n") ||
		!strings.Contains(body, "\napplication_grid_wrapper_watches_refused_total 4\n") {
		t.Error("what is refused is not counted")
	}
	cancel()
	soon.UntilQuiet(t, func() string {
		response := w.open(t.Context(), http.MethodGet, "/api/v1/services?watch=true&timeoutSeconds=1", "")
		_ = response.Body.Close()
		if response.StatusCode != http.StatusOK {
			return response.Status
		}
		return ""
	})
}

// TestConnectionsAreBounded: who opens connections without end is cut off; what others have goes on.
func TestConnectionsAreBounded(t *testing.T) {
	t.Parallel()
	w := startReady(t, smallCluster(), func(c *Config) { c.MaxConnections = 10 })
	var cut int
	var open []net.Conn
	for range 12 {
		conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", w.address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(patience))
		_, _ = io.WriteString(conn, "GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
		response, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			cut++
			continue
		}
		_ = response.Body.Close()
		open = append(open, conn)
	}
	if len(open) > 5 || cut < 7 { // the connections of expectReady may be among the five
		t.Errorf("%d connections are open, %d were cut", len(open), cut)
	}
	for _, conn := range open {
		_ = conn.Close()
	}
	soon.UntilQuiet(t, func() string {
		if taken := w.proxy.connections.Stats().Taken; taken > 0 {
			return fmt.Sprintf("%d connections are open", taken)
		}
		return ""
	})
	if _, body := w.get("/metrics"); !strings.Contains(body,
		fmt.Sprintf("\napplication_grid_wrapper_connections_refused_total %d\n", cut)) {
		t.Error("what is refused is not counted")
	}
}
