package proxy

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// authority is a CA for one test.
type authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &authority{certificate: certificate, key: key}
}

// file writes the CA's certificate.
func (a *authority) file(t *testing.T, dir string) string {
	t.Helper()
	return writePEM(t, filepath.Join(dir, "ca.crt"), "CERTIFICATE", a.certificate.Raw)
}

// issue writes a certificate for loopback, for servers and clients, with a serial number of its own.
func (a *authority) issue(t *testing.T, dir, name string) (certFile, keyFile string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, &key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	encodedKey, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return writePEM(t, filepath.Join(dir, name+".crt"), "CERTIFICATE", der), writePEM(t, filepath.Join(dir, name+".key"), "EC PRIVATE KEY", encodedKey)
}

func writePEM(t *testing.T, name, kind string, der []byte) string {
	t.Helper()
	if err := os.WriteFile(name, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// tlsGet asks for /livez with a connection of its own and tells the server's certificate and the protocol.
func tlsGet(w *wrapper, ca *authority, clientFiles ...string) (serial, protocol string, err error) {
	config := &tls.Config{RootCAs: x509.NewCertPool(), MinVersion: tls.VersionTLS12}
	config.RootCAs.AddCert(ca.certificate)
	if len(clientFiles) > 0 {
		certificate, err := tls.LoadX509KeyPair(clientFiles[0], clientFiles[1])
		if err != nil {
			return "", "", err
		}
		// Given whatever the server says that it accepts, as a client that means harm would.
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &certificate, nil }
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
	ca := newAuthority(t)
	certFile, keyFile := ca.issue(t, dir, "serving")
	w := start(t, smallCluster(), func(c *Config) {
		c.TLS = &TLSFiles{Cert: certFile, Key: keyFile, ClientCA: ca.file(t, dir)}
	})
	clientCert, clientKey := ca.issue(t, dir, "client")
	strangersCert, strangersKey := newAuthority(t).issue(t, dir, "stranger")
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
	ca, clients := newAuthority(t), newAuthority(t)
	certFile, keyFile := ca.issue(t, dir, "serving")
	caFile := clients.file(t, t.TempDir())
	w := start(t, smallCluster(), func(c *Config) { c.TLS = &TLSFiles{Cert: certFile, Key: keyFile, ClientCA: caFile} })
	clientCert, clientKey := clients.issue(t, dir, "client")
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
	ca.issue(t, dir, "serving")
	eventually(t, func() string {
		serial, _, err := tlsGet(w, ca, clientCert, clientKey)
		if err != nil || serial == first {
			return fmt.Sprintf("the new certificate is not served: %v", err)
		}
		return ""
	})
	// Clients of the old CA are no longer let in once it is another.
	next := newAuthority(t)
	writePEM(t, caFile, "CERTIFICATE", next.certificate.Raw)
	nextCert, nextKey := next.issue(t, dir, "next")
	eventually(t, func() string {
		if _, _, err := tlsGet(w, ca, nextCert, nextKey); err != nil {
			return err.Error()
		}
		return ""
	})
	if _, _, err := tlsGet(w, ca, clientCert, clientKey); err == nil {
		t.Error("a client of the CA that was replaced is answered")
	}
}
