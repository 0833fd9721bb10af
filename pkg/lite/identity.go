package lite

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/keyutil"

	"github.com/application-grid/application-grid/pkg/program/atomicfile"
)

const (
	nodePrefix = "system:node:"
	nodesGroup = "system:nodes"
	// Files of the state directory.
	servingFile = "serving.pem"
	trustFile   = "ca.crt"
	// KubeletFile is the name of the kubeconfig for the kubelet, in the state directory.
	KubeletFile = "kubelet.conf"
)

// caller is who sends a request.
type caller int

const (
	stranger caller = iota
	// theKubelet has presented the node's own certificate.
	theKubelet
	// withToken has no certificate but a token, which kube-apiserver judges.
	withToken
)

// identify returns who sends a request. A certificate is accepted if the cluster's CA signed it for this node.
func (s *Server) identify(r *http.Request) caller {
	switch {
	case r.TLS == nil:
		return stranger
	case len(r.TLS.VerifiedChains) > 0:
		if nodeOf(r.TLS.VerifiedChains[0][0].Subject) == s.store.node {
			return theKubelet
		}
		return stranger
	case bearerOf(r) != "":
		return withToken
	default:
		return stranger
	}
}

// nodeOf returns the name of a certificate's node; "" if it is not a kubelet's.
func nodeOf(subject pkix.Name) string {
	name, ok := strings.CutPrefix(subject.CommonName, nodePrefix)
	if !ok || !slices.Contains(subject.Organization, nodesGroup) {
		return ""
	}
	return name
}

// kubeletCertificate returns the client certificate of a kubelet's kubeconfig.
func kubeletCertificate(path string) (*x509.Certificate, error) {
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		return nil, err
	}
	if err := rest.LoadTLSFiles(config); err != nil {
		return nil, err
	}
	for block, rest := pem.Decode(config.CertData); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			continue
		}
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err == nil && nodeOf(certificate.Subject) == "" {
			err = fmt.Errorf("its certificate is of %s, not of a kubelet (%sNAME of %s)", certificate.Subject,
				nodePrefix, nodesGroup)
		}
		return certificate, err
	}
	return nil, errors.New("it has no client certificate")
}

// CheckCertificate returns why the kubelet of a kubeconfig cannot start with its certificate, or why a server with
// these clientCAs does not answer the kubelet; with nil it does not check the latter. Otherwise it returns nil.
func CheckCertificate(kubeconfig string, now time.Time, clientCAs *x509.CertPool) error {
	certificate, err := kubeletCertificate(kubeconfig)
	switch {
	case err != nil:
		return fmt.Errorf("the kubelet's certificate cannot be read: %w", err)
	case !now.Before(certificate.NotAfter):
		return fmt.Errorf("the kubelet's certificate has expired at %s: it starts again only when kube-apiserver "+
			"signs a new one", certificate.NotAfter.UTC().Format(time.RFC3339))
	case clientCAs == nil:
		return nil
	}
	_, err = certificate.Verify(x509.VerifyOptions{Roots: clientCAs, CurrentTime: now,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	if err != nil {
		return fmt.Errorf("the CA in the kubelet's kubeconfig does not sign the kubelet's certificate, so the kubelet "+
			"is not answered here: %w", err)
	}
	return nil
}

// useCA makes the CA of the kubeconfig, which may have changed, verify clients.
func (s *Server) useCA() error {
	clusterCA, err := s.connection.CA()
	if err != nil {
		return err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(clusterCA) {
		return errors.New("the kubeconfig names no CA of the cluster")
	}
	s.clientCAs.Store(pool)
	return nil
}

// tlsConfig returns the configuration of a listener, with the certificate that get returns. It asks for certificates of
// the cluster's CA. They stay valid if the clock is behind.
func (s *Server) tlsConfig(get func(*tls.ClientHelloInfo) (*tls.Certificate, error)) *tls.Config {
	config := tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}, GetCertificate: get,
		ClientAuth: tls.VerifyClientCertIfGiven, Time: s.store.now,
	}
	current := config.Clone()
	current.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		now := config.Clone()
		now.ClientCAs = s.clientCAs.Load()
		return now, nil
	}
	return current
}

// servingPair returns the serving certificate. It makes one at the first start, or if it cannot be read. If it cannot
// write the new one, it returns both the certificate and the error.
func servingPair(dir string) (tls.Certificate, error) {
	path := filepath.Join(dir, servingFile)
	pair, err := tls.LoadX509KeyPair(path, path)
	if err == nil && time.Now().AddDate(1, 0, 0).Before(pair.Leaf.NotAfter) {
		return pair, nil
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: "lite-apiserver"},
		// It must be valid for a kubelet whose clock has lost the time as well.
		NotBefore: time.Unix(0, 0), NotAfter: time.Now().AddDate(30, 0, 0),
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, IsCA: true, BasicConstraintsValid: true,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		DNSNames:    []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return tls.Certificate{}, err
	}
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	private, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		return tls.Certificate{}, err
	}
	if pair, err = tls.X509KeyPair(certificate, private); err != nil {
		return tls.Certificate{}, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return pair, err
	}
	if err := atomicfile.Write(filepath.Join(dir, trustFile), 0o644, certificate); err != nil {
		return pair, err
	}
	return pair, atomicfile.Write(path, 0o600, append(certificate, private...))
}

// writeKubeconfig writes the kubelet's kubeconfig: the one of kube-apiserver, with this server in its place.
func writeKubeconfig(from, dir, address string) error {
	config, err := clientcmd.LoadFromFile(from)
	if err != nil {
		return err
	}
	for name := range config.Clusters {
		config.Clusters[name] = &clientcmdapi.Cluster{Server: "https://" + address,
			CertificateAuthority: filepath.Join(dir, trustFile)}
	}
	if err := clientcmd.ResolveLocalPaths(config); err != nil {
		return err
	}
	content, err := clientcmd.Write(*config)
	if err != nil {
		return err
	}
	path := filepath.Join(dir, KubeletFile)
	if there, err := os.ReadFile(path); err == nil && bytes.Equal(there, content) { //nolint:gosec // in the directory
		return nil // the disk may be full
	}
	return atomicfile.Write(path, 0o600, content)
}
