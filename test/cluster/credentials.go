package cluster

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"

	"github.com/application-grid/application-grid/pkg/program/atomicfile"
)

// Role is an identity that kube-apiserver knows by a token.
type Role string

// The roles. RoleAdmin is in system:masters and also what the controller manager, kwok and kubelets use;
// RoleKubeProxy has ClusterRole system:node-proxier. RoleWrapper, RoleController, RoleDNSDaemon and RoleHub are the
// ServiceAccounts of manifests/, with what these grant; RoleCoreDNS has what rbac.go lists, RoleNobody nothing.
const (
	RoleAdmin      Role = "admin"
	RoleScheduler  Role = "system:kube-scheduler"
	RoleKubeProxy  Role = "system:kube-proxy"
	RoleWrapper    Role = serviceAccountPrefix + "kube-system:application-grid-wrapper"
	RoleController Role = serviceAccountPrefix + "kube-system:application-grid-controller"
	RoleDNSDaemon  Role = serviceAccountPrefix + "kube-system:statefulset-grid-daemon"
	RoleHub        Role = serviceAccountPrefix + "kube-system:application-grid-hub"
	RoleCoreDNS    Role = "coredns"
	RoleNobody     Role = "nobody"
)

// serviceAccountPrefix begins a ServiceAccount's user name; NAMESPACE:NAME follows.
const serviceAccountPrefix = "system:serviceaccount:"

// groups are those that kube-apiserver puts the role in, besides system:authenticated.
func (r Role) groups() []string {
	if r == RoleAdmin {
		return []string{"system:masters"}
	}
	if account, ok := strings.CutPrefix(string(r), serviceAccountPrefix); ok {
		namespace, _, _ := strings.Cut(account, ":")
		return []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace}
	}
	return nil
}

var roles = []Role{RoleAdmin, RoleScheduler, RoleKubeProxy, RoleWrapper, RoleController, RoleCoreDNS, RoleDNSDaemon,
	RoleHub, RoleNobody}

// certificateLifetime is longer than any cluster of this package lives.
const certificateLifetime = 10 * 365 * 24 * time.Hour

// credentials are the certificate authority, serving certificate, service account key and tokens of one
// cluster, as files in dir.
type credentials struct {
	dir    string
	ca     *x509.Certificate
	caKey  *ecdsa.PrivateKey
	caPEM  []byte
	tokens map[Role]string
	// addresses are those that the serving certificate names.
	addresses []net.IP
}

func newCredentials(dir string, addresses []net.IP) (*credentials, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("creating the directory for credentials: %w", err)
	}
	c := &credentials{dir: dir, tokens: map[Role]string{}, addresses: addresses}
	if err := c.createCA(); err != nil {
		return nil, fmt.Errorf("creating the certificate authority: %w", err)
	}
	if err := c.issueServingCertificate(); err != nil {
		return nil, fmt.Errorf("issuing the serving certificate: %w", err)
	}
	if err := c.createServiceAccountKey(); err != nil {
		return nil, fmt.Errorf("creating the service account key: %w", err)
	}
	if err := c.createTokens(); err != nil {
		return nil, fmt.Errorf("creating tokens: %w", err)
	}
	return c, nil
}

func (c *credentials) file(name string) string { return filepath.Join(c.dir, name) }

func (c *credentials) createCA() error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	config := cert.Config{CommonName: "application-grid-test-ca", NotBefore: time.Now().Add(-time.Hour)}
	if c.ca, err = cert.NewSelfSignedCACert(config, key); err != nil {
		return err
	}
	keyPEM, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		return err
	}
	if c.caPEM, err = cert.EncodeCertificates(c.ca); err != nil {
		return err
	}
	c.caKey = key
	return errors.Join(atomicfile.Write(c.file("ca.key"), 0o600, keyPEM),
		atomicfile.Write(c.file("ca.crt"), 0o600, c.caPEM))
}

// issueServingCertificate writes a new serving certificate and key over the ones before. kube-apiserver reads
// them again within a minute.
func (c *credentials) issueServingCertificate() error {
	return c.issue("apiserver", &x509.Certificate{
		Subject:     pkix.Name{CommonName: "kube-apiserver"},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		IPAddresses: c.addresses,
		DNSNames: []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc",
			"kubernetes.default.svc.cluster.local"},
	})
}

// issue writes a certificate of the authority, and its key, over the ones before: NAME.crt and NAME.key.
func (c *credentials) issue(name string, template *x509.Certificate) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	if template.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120)); err != nil {
		return err
	}
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(certificateLifetime)
	template.KeyUsage = x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, template, c.ca, &key.PublicKey, c.caKey)
	if err != nil {
		return err
	}
	keyPEM, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		return err
	}
	if err := atomicfile.Write(c.file(name+".key"), 0o600, keyPEM); err != nil {
		return err
	}
	encoded := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return atomicfile.Write(c.file(name+".crt"), 0o600, encoded)
}

func (c *credentials) createServiceAccountKey() error {
	key, err := keyutil.MakeEllipticPrivateKeyPEM()
	if err != nil {
		return err
	}
	return os.WriteFile(c.file("service-account.key"), key, 0o600)
}

func (c *credentials) createTokens() error {
	var lines strings.Builder
	for _, role := range roles {
		token := make([]byte, 16)
		if _, err := rand.Read(token); err != nil {
			return err
		}
		c.tokens[role] = hex.EncodeToString(token)
		fmt.Fprintf(&lines, "%s,%s,%s,%q\n", c.tokens[role], role, role, strings.Join(role.groups(), ","))
	}
	return os.WriteFile(c.file("tokens.csv"), []byte(lines.String()), 0o600)
}

// writeKubeconfig writes a kubeconfig for the role and the server's URL, and returns its path. The name is one
// in the directory for credentials, or an absolute path.
func (c *credentials) writeKubeconfig(name string, role Role, server string) (string, error) {
	return c.writeKubeconfigWith(name, role, server, c.tokens[role])
}

// writeKubeconfigWith is writeKubeconfig with another token than the role's.
func (c *credentials) writeKubeconfigWith(name string, role Role, server, token string) (string, error) {
	return c.writeKubeconfigOf(name, server, &clientcmdapi.AuthInfo{Token: token}, string(role))
}

// writeKubeconfigOf writes a kubeconfig for a user, and returns its path. No reader sees half of it.
func (c *credentials) writeKubeconfigOf(name, server string, user *clientcmdapi.AuthInfo, as string) (string, error) {
	const context = "embedded"
	config := clientcmdapi.NewConfig()
	config.Clusters[context] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: c.caPEM}
	config.AuthInfos[as] = user
	config.Contexts[context] = &clientcmdapi.Context{Cluster: context, AuthInfo: as}
	config.CurrentContext = context
	path := name
	if !filepath.IsAbs(name) {
		path = c.file(name)
	}
	encoded, err := clientcmd.Write(*config)
	if err == nil { // nodes that start at the same time write the same one
		err = atomicfile.Write(path, 0o600, encoded)
	}
	if err != nil {
		return "", fmt.Errorf("writing kubeconfig %s: %w", path, err)
	}
	return path, nil
}

// KubeletKubeconfig writes a kubelet's kubeconfig, with a certificate of its own, and returns its path. server is the
// URL of kube-apiserver. Only with Options.Kubelets.
func (c *Cluster) KubeletKubeconfig(node, server string) (string, error) {
	name := "kubelet-" + node
	err := c.credentials.issue(name, &x509.Certificate{
		Subject:     pkix.Name{CommonName: "system:node:" + node, Organization: []string{"system:nodes"}},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	if err != nil {
		return "", fmt.Errorf("issuing the certificate of the kubelet of %s: %w", node, err)
	}
	return c.credentials.writeKubeconfigOf(name+".kubeconfig", server, &clientcmdapi.AuthInfo{
		ClientCertificate: c.credentials.file(name + ".crt"), ClientKey: c.credentials.file(name + ".key")}, name)
}
