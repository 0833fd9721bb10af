package servingcert

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"slices"
	"time"

	"k8s.io/client-go/util/cert"

	"github.com/application-grid/application-grid/pkg/program/keypair"
)

const (
	// Lifetime is how long a certificate is valid. It is renewed when a third of that is left.
	Lifetime = 90 * 24 * time.Hour
	// settling is how long a new certificate is trusted before it is served: longer than an API server takes to see a
	// change of an APIService, and a replica a change of a Secret.
	settling = 5 * time.Minute
	// clockSkew is how long before it was made a certificate becomes valid.
	clockSkew = time.Hour
)

// The keys of the Secret: the certificate that is served, with the usual names, and the next one.
const (
	keyCertificate     = "tls.crt"
	keyPrivate         = "tls.key"
	keyNextCertificate = "next.crt"
	keyNextPrivate     = "next.key"
)

// pair is a certificate with its key, in the form of a Secret.
type pair struct {
	certificate, key []byte
	parsed           *x509.Certificate
}

// parsePair reads a pair. The error comes with nil.
func parsePair(certificate, key []byte) (*pair, error) {
	both, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		return nil, err
	}
	return &pair{certificate, key, both.Leaf}, nil
}

// newPair makes a self-signed certificate. The first name is its subject.
func newPair(names []string, now time.Time) (*pair, error) {
	made, err := keypair.SelfSigned(&x509.Certificate{
		Subject: pkix.Name{CommonName: names[0]}, DNSNames: names,
		NotBefore: now.Add(-clockSkew), NotAfter: now.Add(Lifetime),
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true,
	})
	if err != nil {
		return nil, err
	}
	certificate, key, err := keypair.PEM(made)
	return &pair{certificate, key, made.Leaf}, err
}

// validFor reports whether the certificate may be served under all the names.
func (p *pair) validFor(names []string, now time.Time) bool {
	if slices.ContainsFunc(names, func(name string) bool { return p.parsed.VerifyHostname(name) != nil }) {
		return false
	}
	return now.Before(p.parsed.NotAfter) && !now.Before(p.parsed.NotBefore)
}

// made returns when the certificate was made.
func (p *pair) made() time.Time { return p.parsed.NotBefore.Add(clockSkew) }

// state is the content of the Secret, and the certificates that the API server trusts.
type state struct {
	// current is the certificate that is served, and next the one that will be; nil without a certificate.
	current, next *pair
	// bundle is the caBundle.
	bundle []byte
}

// parseState reads the data of the Secret. It ignores unusable data, which are recreated.
func parseState(data map[string][]byte, bundle []byte) state {
	s := state{bundle: bundle}
	s.current, _ = parsePair(data[keyCertificate], data[keyPrivate])
	s.next, _ = parsePair(data[keyNextCertificate], data[keyNextPrivate])
	return s
}

// data returns the data for the Secret.
func (s state) data() map[string][]byte {
	data := map[string][]byte{keyCertificate: s.current.certificate, keyPrivate: s.current.key}
	if s.next != nil {
		data[keyNextCertificate], data[keyNextPrivate] = s.next.certificate, s.next.key
	}
	return data
}

// advance returns the next state. A certificate is trusted for a while before it is served, and as long as it is valid,
// because another replica may still serve it.
func (s state) advance(names []string, now time.Time) (state, error) {
	var err error
	if s.next != nil && !s.next.validFor(names, now) {
		s.next = nil
	}
	switch {
	case s.current == nil || !s.current.validFor(names, now):
		s.next = nil
		if s.current, err = newPair(names, now); err != nil {
			return s, err
		}
	case s.next == nil && s.current.parsed.NotAfter.Sub(now) < Lifetime/3:
		if s.next, err = newPair(names, now); err != nil {
			return s, err
		}
	case s.next != nil && now.Sub(s.next.made()) >= settling && bytes.Contains(s.bundle, s.next.certificate):
		s.current, s.next = s.next, nil
	}
	s.bundle, err = s.trusted(now)
	return s, err
}

// maxOthers is how many certificates besides those of the Secret are trusted, because one that was just replaced may
// still be served.
const maxOthers = 2

// trusted returns the bundle of the valid certificates, the newest last.
func (s state) trusted(now time.Time) ([]byte, error) {
	own := []*x509.Certificate{s.current.parsed}
	if s.next != nil {
		own = append(own, s.next.parsed)
	}
	bundle, _ := cert.ParseCertsPEM(s.bundle) // up to what cannot be read
	var others []*x509.Certificate
	for _, c := range bundle {
		if now.Before(c.NotAfter) && !slices.ContainsFunc(own, c.Equal) && !slices.ContainsFunc(others, c.Equal) {
			others = append(others, c)
		}
	}
	return cert.EncodeCertificates(append(others[max(0, len(others)-maxOthers):], own...)...)
}
