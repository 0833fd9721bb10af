// Package keypair makes certificates that sign themselves.
package keypair

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"

	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

// SelfSigned makes a key, and the certificate of a template that it signs.
func SelfSigned(template *x509.Certificate) (pair tls.Certificate, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return pair, fmt.Errorf("making a key: %w", err)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return pair, fmt.Errorf("making a certificate: %w", err)
	}
	leaf, err := x509.ParseCertificate(der)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, err
}

// PEM encodes a pair whose leaf is known.
func PEM(pair tls.Certificate) (certificate, key []byte, err error) {
	key, err = keyutil.MarshalPrivateKeyToPEM(pair.PrivateKey)
	return pem.EncodeToMemory(&pem.Block{Type: cert.CertificateBlockType, Bytes: pair.Leaf.Raw}), key, err
}
