package lite

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/cert"
	"k8s.io/utils/ptr"

	"github.com/application-grid/application-grid/pkg/program/atomicfile"
	"github.com/application-grid/application-grid/pkg/program/keypair"
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
	certificates, err := cert.ParseCertsPEM(config.CertData)
	if err != nil {
		return nil, fmt.Errorf("its client certificate cannot be read: %w", err)
	}
	if subject := certificates[0].Subject; nodeOf(subject) == "" {
		return nil, fmt.Errorf("its certificate is of %s, not of a kubelet (%sNAME of %s)", subject, nodePrefix,
			nodesGroup)
	}
	return certificates[0], nil
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
	pool, err := cert.NewPoolFromBytes(clusterCA)
	if err != nil {
		return fmt.Errorf("the kubeconfig names no CA of the cluster: %w", err)
	}
	s.clientCAs.Store(pool)
	return nil
}

// tlsConfig returns the configuration of a listener, with the certificate that get returns. It asks for certificates of
// the cluster's CA. They stay valid if the clock is behind.
func (s *Server) tlsConfig(get func(*tls.ClientHelloInfo) (*tls.Certificate, error)) *tls.Config {
	config := &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}, GetCertificate: get,
		ClientAuth: tls.VerifyClientCertIfGiven, Time: s.store.now,
	}
	config.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		now := config.Clone()
		now.ClientCAs = s.clientCAs.Load()
		return now, nil
	}
	return config
}

// ensureServingPair returns the serving certificate, and makes sure that it is in the directory. It is the known one,
// which the kubelet trusts, else that of the directory, else a new one. If it cannot be written, it returns both the
// certificate and the error.
func ensureServingPair(dir string, known *tls.Certificate) (tls.Certificate, error) {
	path := filepath.Join(dir, servingFile)
	pair, err := ptr.Deref(known, tls.Certificate{}), error(nil)
	if !lasts(pair) {
		pair, err = tls.LoadX509KeyPair(path, path)
	}
	if err != nil || !lasts(pair) {
		pair, err = newPair()
	}
	if err != nil {
		return tls.Certificate{}, err
	}
	certificate, private, err := keypair.PEM(pair)
	if err == nil {
		err = os.MkdirAll(dir, 0o700)
	}
	if err == nil {
		err = keepFile(filepath.Join(dir, trustFile), 0o644, certificate)
	}
	if err == nil {
		err = keepFile(path, 0o600, append(certificate, private...))
	}
	return pair, err
}

// lasts reports whether a certificate is valid for another year.
func lasts(pair tls.Certificate) bool {
	return pair.Leaf != nil && time.Now().AddDate(1, 0, 0).Before(pair.Leaf.NotAfter)
}

// newPair makes a serving certificate, which is its own CA.
func newPair() (tls.Certificate, error) {
	return keypair.SelfSigned(&x509.Certificate{
		Subject: pkix.Name{CommonName: "lite-apiserver"},
		// It must be valid for a kubelet whose clock has lost the time as well.
		NotBefore: time.Unix(0, 0), NotAfter: time.Now().AddDate(30, 0, 0),
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, IsCA: true, BasicConstraintsValid: true,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		DNSNames:    []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
	})
}

// keepFile writes a file if it is not there with this content. The disk may be full.
func keepFile(path string, mode os.FileMode, content []byte) error {
	if there, err := os.ReadFile(path); err == nil && bytes.Equal(there, content) { //nolint:gosec // in the directory
		return nil
	}
	return atomicfile.Write(path, mode, content)
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
	return keepFile(filepath.Join(dir, KubeletFile), 0o600, content)
}
