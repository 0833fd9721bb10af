package proxy

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/application-grid/application-grid/internal/testkit/tlstest"
)

// tlsGet asks for /livez with a connection of its own and tells the server's certificate and the protocol.
func tlsGet(w *wrapper, ca *tlstest.Authority, clientFiles ...string) (serial, protocol string, err error) {
	config := &tls.Config{RootCAs: x509.NewCertPool(), MinVersion: tls.VersionTLS12}
	config.RootCAs.AddCert(ca.Certificate)
	if len(clientFiles) > 0 {
		certificate, err := tls.LoadX509KeyPair(clientFiles[0], clientFiles[1])
		if err != nil {
			return "", "", err
		}
		// Given whatever the server says that it accepts, as a client that means harm would.
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return &certificate, nil
		}
	}
	transport := &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: true}
	defer transport.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+w.address+"/livez", nil)
	if err != nil {
		return "", "", err
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return "", "", err
	}
	defer response.Body.Close()
	if body, err := io.ReadAll(response.Body); err != nil || string(body) != "ok" {
		return "", "", fmt.Errorf("got %q, %w", body, err)
	}
	return response.TLS.PeerCertificates[0].SerialNumber.String(), response.Proto, nil
}

// TestClientCAIsEnforced: SuperEdge's wrapper put it where it checks nothing.
func TestClientCAIsEnforced(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ca := tlstest.NewAuthority(t)
	certFile, keyFile := ca.IssueFiles(t, dir, "serving")
	w := start(t, smallCluster(), func(c *Config) {
		c.TLS = &TLSFiles{Cert: certFile, Key: keyFile, ClientCA: ca.File(t, dir)}
	})
	clientCert, clientKey := ca.IssueFiles(t, dir, "client")
	strangersCert, strangersKey := tlstest.NewAuthority(t).IssueFiles(t, dir, "stranger")
	if _, protocol, err := tlsGet(w, ca, clientCert, clientKey); err != nil || protocol != "HTTP/2.0" {
		t.Errorf("with a certificate of the CA: %s, %v", protocol, err)
	}
	if _, _, err := tlsGet(w, ca); err == nil {
		t.Error("without a certificate: answered")
	}
	if _, _, err := tlsGet(w, ca, strangersCert, strangersKey); err == nil {
		t.Error("with a certificate of another CA: answered")
	}
}

// TestTLSFilesAreReloaded: renewed files are served without a restart; what cannot be used changes nothing.
func TestTLSFilesAreReloaded(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ca, clients := tlstest.NewAuthority(t), tlstest.NewAuthority(t)
	certFile, keyFile := ca.IssueFiles(t, dir, "serving")
	caFile := clients.File(t, t.TempDir())
	w := start(t, smallCluster(), func(c *Config) { c.TLS = &TLSFiles{Cert: certFile, Key: keyFile, ClientCA: caFile} })
	clientCert, clientKey := clients.IssueFiles(t, dir, "client")
	first, _, err := tlsGet(w, ca, clientCert, clientKey)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(certFile, []byte("half a certif"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 20 {
		if serial, _, err := tlsGet(w, ca, clientCert, clientKey); err != nil || serial != first {
			t.Fatalf("with files that cannot be used: %s, %v", serial, err)
		}
	}
	ca.IssueFiles(t, dir, "serving")
	soon.UntilQuiet(t, func() string {
		serial, _, err := tlsGet(w, ca, clientCert, clientKey)
		if err != nil || serial == first {
			return fmt.Sprintf("the new certificate is not served: %v", err)
		}
		return ""
	})
	// Clients of the old CA are no longer let in once it is another.
	next := tlstest.NewAuthority(t)
	next.File(t, filepath.Dir(caFile))
	nextCert, nextKey := next.IssueFiles(t, dir, "next")
	soon.UntilQuiet(t, func() string {
		if _, _, err := tlsGet(w, ca, nextCert, nextKey); err != nil {
			return err.Error()
		}
		return ""
	})
	if _, _, err := tlsGet(w, ca, clientCert, clientKey); err == nil {
		t.Error("a client of the CA that was replaced is answered")
	}
}
