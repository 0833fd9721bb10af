package tlstest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Authority is a CA for one test.
type Authority struct {
	// Certificate is the CA's own certificate. PEM is the same in PEM form.
	Certificate *x509.Certificate
	PEM         []byte

	key *ecdsa.PrivateKey
}

// NewAuthority makes a CA.
func NewAuthority(t *testing.T) *Authority {
	t.Helper()
	key := newKey(t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().AddDate(10, 0, 0), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &Authority{Certificate: certificate, PEM: encode("CERTIFICATE", der), key: key}
}

// File writes the CA's certificate to a file in dir, and returns its path.
func (a *Authority) File(t *testing.T, dir string) string {
	t.Helper()
	return write(t, filepath.Join(dir, "ca.crt"), a.PEM)
}

// Issue makes a certificate for 127.0.0.1, for servers and clients, with a serial number of its own.
func (a *Authority) Issue(t *testing.T, name string) tls.Certificate {
	t.Helper()
	der, key := a.issue(t, name)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// IssueFiles makes a certificate as Issue does, and writes it and its key to files in dir.
func (a *Authority) IssueFiles(t *testing.T, dir, name string) (certFile, keyFile string) {
	t.Helper()
	der, key := a.issue(t, name)
	encodedKey, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return write(t, filepath.Join(dir, name+".crt"), encode("CERTIFICATE", der)),
		write(t, filepath.Join(dir, name+".key"), encode("EC PRIVATE KEY", encodedKey))
}

func (a *Authority) issue(t *testing.T, name string) ([]byte, *ecdsa.PrivateKey) {
	t.Helper()
	key := newKey(t)
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	return a.sign(t, template, &key.PublicKey), key
}

// IssueClient makes a client's certificate that was made two hours before it ends, with its key, in PEM form.
func (a *Authority) IssueClient(t *testing.T, name pkix.Name, end time.Time) []byte {
	t.Helper()
	key := newKey(t)
	certificate := a.Sign(t, &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: name,
		NotBefore: end.Add(-2 * time.Hour), NotAfter: end,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, key.Public())
	encodedKey, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return append(certificate, encode("EC PRIVATE KEY", encodedKey)...)
}

// Sign makes a certificate of a public key, in PEM form.
func (a *Authority) Sign(t *testing.T, template *x509.Certificate, key any) []byte {
	t.Helper()
	return encode("CERTIFICATE", a.sign(t, template, key))
}

func (a *Authority) sign(t *testing.T, template *x509.Certificate, key any) []byte {
	t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, template, a.Certificate, key, a.key)
	if err != nil {
		t.Fatal(err)
	}
	return der
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

func write(t *testing.T, path string, data []byte) string {
	t.Helper()
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
