package proxy

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
	"k8s.io/klog/v2"

	"github.com/application-grid/application-grid/pkg/program/atomicfile"
)

// program is the name under which the wrapper requests certificates, and in kubeconfigs.
const program = "application-grid-wrapper"

// The files of TLSFiles.Dir.
const (
	servingFile    = "serving.pem"
	trustFile      = "ca.crt"
	kubeconfigFile = "kubeconfig"
)

const (
	// ownLifetime is how long a certificate of the wrapper's own CA is valid. A new one has a new CA, which clients
	// read when they start.
	ownLifetime = 10 * 365 * 24 * time.Hour
	// certificateInterval is the time between two checks whether a request was granted, or a certificate is due.
	certificateInterval = 10 * time.Second
	// refusedInterval is how long the wrapper requests no certificate after one was refused.
	refusedInterval = time.Hour
	// tokenFile is the file with the token of a pod's service account.
	tokenFile = "/var/run/secrets/kubernetes.io/serviceaccount/" + corev1.ServiceAccountTokenKey
)

// servingCertificate keeps the wrapper's serving certificate in a directory. It requests one from the cluster, of the
// signer kubernetes.io/kubelet-serving, which the ca.crt of any pod verifies where the cluster has one CA. Until the
// request is approved, the certificate is signed by a CA that is made for it.
//
// k8s.io/client-go/util/certificate could make the requests, but it imports the clients of all APIs of Kubernetes,
// which would make this program half as large again.
type servingCertificate struct {
	dir, node, server string
	addresses         []net.IP
	names             []string
	client            rest.Interface
	// clusterCA has the CAs of the API server, in PEM.
	clusterCA []byte

	// request is the name of the request under way, "" for none; key is its private key in PEM.
	request string
	key     []byte
	// notBefore is when the next request may be made. refused is why the last one was not granted, "" if it was.
	notBefore time.Time
	refused   string
}

// newServingCertificate makes the missing files. upstream has the wrapper's own credentials, clusterCA the CAs of the
// API server. Its errors say what to change.
func newServingCertificate(config Config, upstream *rest.Config, clusterCA []byte) (*servingCertificate, error) {
	host, port, err := net.SplitHostPort(config.BindAddress)
	if err != nil {
		return nil, fmt.Errorf("--bind-address %q is not host:port: %w", config.BindAddress, err)
	}
	c := &servingCertificate{
		dir: config.TLS.Dir, node: config.NodeName, clusterCA: clusterCA,
		addresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback}, names: []string{"localhost"},
	}
	switch address := net.ParseIP(host); {
	case address == nil, address.IsUnspecified():
		host = "127.0.0.1"
	case !address.IsLoopback():
		c.addresses = append(c.addresses, address)
	}
	c.server = "https://" + net.JoinHostPort(host, port)
	for _, host := range config.AllowedHosts {
		if address := net.ParseIP(host); address != nil {
			c.addresses = append(c.addresses, address)
		} else {
			c.names = append(c.names, host)
		}
	}
	scheme := runtime.NewScheme()
	if err := certificatesv1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	own := rest.CopyConfig(upstream)
	own.APIPath, own.GroupVersion = "/apis", &certificatesv1.SchemeGroupVersion
	own.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	if c.client, err = rest.RESTClientFor(own); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(c.dir, 0o755); err != nil { //nolint:gosec // clients read the CA
		return nil, fmt.Errorf("--cert-dir: %w", err)
	}
	if err := c.ensure(); err != nil {
		return nil, fmt.Errorf("--cert-dir %s: %w", c.dir, err)
	}
	return c, nil
}

func (c *servingCertificate) file() string { return filepath.Join(c.dir, servingFile) }

// leaf returns the certificate that is served; nil if none is valid.
func (c *servingCertificate) leaf() *x509.Certificate {
	pair, err := tls.LoadX509KeyPair(c.file(), c.file())
	if err != nil || !time.Now().Before(pair.Leaf.NotAfter) {
		return nil
	}
	hosts := slices.Clone(c.names)
	for _, address := range c.addresses {
		hosts = append(hosts, address.String())
	}
	if slices.ContainsFunc(hosts, func(host string) bool { return pair.Leaf.VerifyHostname(host) != nil }) {
		return nil
	}
	return pair.Leaf
}

// subject returns the subject that the signer requires.
func (c *servingCertificate) subject() pkix.Name {
	return pkix.Name{CommonName: "system:node:" + c.node, Organization: []string{"system:nodes"}}
}

// isDue reports whether a certificate has to be requested: the present one is not the cluster's, or less than a third
// of its lifetime is left.
func (c *servingCertificate) isDue(leaf *x509.Certificate) bool {
	return leaf == nil || leaf.Subject.CommonName != c.subject().CommonName ||
		time.Until(leaf.NotAfter) < leaf.NotAfter.Sub(leaf.NotBefore)/3
}

// ensure makes a certificate with its own CA, if no certificate can be served.
func (c *servingCertificate) ensure() error {
	if c.leaf() != nil {
		return nil
	}
	certificate, key, err := cert.GenerateSelfSignedCertKeyWithOptions(cert.SelfSignedCertKeyOptions{
		Host: program, AlternateIPs: c.addresses, AlternateDNS: c.names, MaxAge: ownLifetime,
	})
	if err != nil {
		return fmt.Errorf("making a certificate: %w", err)
	}
	_, ca := pem.Decode(certificate)
	return c.save(certificate, key, ca)
}

// save replaces the files. Those for clients come first: a certificate is trusted before it is served.
func (c *servingCertificate) save(certificate, key, ca []byte) error {
	err := c.write(trustFile, 0o644, append(slices.Clip(ca), c.clusterCA...))
	if err == nil {
		err = c.writeKubeconfig()
	}
	if err == nil {
		err = c.write(servingFile, 0o600, append(slices.Clip(certificate), key...))
	}
	return err
}

// writeKubeconfig writes a kubeconfig for clients in pods, with the credentials of their service account.
func (c *servingCertificate) writeKubeconfig() error {
	config := clientcmdapi.NewConfig()
	config.Clusters[program] = &clientcmdapi.Cluster{Server: c.server, CertificateAuthority: trustFile}
	config.AuthInfos[program] = &clientcmdapi.AuthInfo{TokenFile: tokenFile}
	config.Contexts[program] = &clientcmdapi.Context{Cluster: program, AuthInfo: program}
	config.CurrentContext = program
	encoded, err := clientcmd.Write(*config)
	if err != nil {
		return err
	}
	return c.write(kubeconfigFile, 0o644, encoded)
}

func (c *servingCertificate) write(name string, mode fs.FileMode, content []byte) error {
	return atomicfile.Write(filepath.Join(c.dir, name), mode, content)
}

// advance takes the next step towards a certificate of the cluster.
func (c *servingCertificate) advance(ctx context.Context) {
	err := c.ensure()
	if err == nil {
		err = c.requestOrCollect(ctx)
	}
	if err == nil || ctx.Err() != nil {
		return
	}
	c.request, c.notBefore = "", time.Now().Add(refusedInterval)
	if c.refused != err.Error() { // log each reason once
		klog.FromContext(ctx).Info("No serving certificate of the cluster; serving the one that is there",
			"reason", err, "nextRequest", refusedInterval)
	}
	c.refused = err.Error()
}

// requestOrCollect makes a request, if one is due, or collects its certificate. The error is why it has no certificate.
func (c *servingCertificate) requestOrCollect(ctx context.Context) error {
	switch {
	case c.request != "":
		return c.collectIssued(ctx)
	case c.node == "" || time.Now().Before(c.notBefore) || !c.isDue(c.leaf()):
		return nil
	}
	var err error
	if c.key, err = keyutil.MakeEllipticPrivateKeyPEM(); err != nil {
		return fmt.Errorf("making a key: %w", err)
	}
	key, err := keyutil.ParsePrivateKeyPEM(c.key)
	if err != nil {
		return fmt.Errorf("reading a key: %w", err)
	}
	subject := c.subject()
	encoded, err := cert.MakeCSR(key, &subject, c.names, c.addresses)
	if err != nil {
		return fmt.Errorf("making a request: %w", err)
	}
	made := &certificatesv1.CertificateSigningRequest{}
	err = c.client.Post().Resource(requests).Body(&certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{GenerateName: program + "-"},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request: encoded, SignerName: certificatesv1.KubeletServingSignerName,
			Usages: []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageServerAuth},
		},
	}).Do(ctx).Into(made)
	if err != nil {
		return refusalOf(ctx, fmt.Errorf("requesting a certificate: %w", err))
	}
	c.request = made.Name
	klog.FromContext(ctx).Info("Requested a serving certificate; approve it with kubectl certificate approve NAME",
		"name", made.Name, "signer", made.Spec.SignerName)
	return nil
}

// collectIssued takes the requested certificate, once it was issued.
func (c *servingCertificate) collectIssued(ctx context.Context) error {
	made := &certificatesv1.CertificateSigningRequest{}
	err := c.client.Get().Resource(requests).Name(c.request).Do(ctx).Into(made)
	switch {
	case apierrors.IsNotFound(err): // kube-controller-manager removes old ones
		c.request = ""
		return nil
	case err != nil:
		return refusalOf(ctx, fmt.Errorf("asking for the certificate: %w", err))
	case len(made.Status.Certificate) > 0:
		if _, err := tls.X509KeyPair(made.Status.Certificate, c.key); err != nil {
			return fmt.Errorf("the certificate of request %s: %w", c.request, err)
		}
		c.request, c.refused = "", ""
		// Clients that start from now on no longer trust the CA of the former certificate.
		return c.save(made.Status.Certificate, c.key, nil)
	}
	for _, condition := range made.Status.Conditions {
		if condition.Type != certificatesv1.CertificateApproved {
			return fmt.Errorf("request %s: %s: %s", c.request, condition.Type, condition.Message)
		}
	}
	return nil
}

const requests = "certificatesigningrequests"

// refusalOf returns an error if it is the API server's refusal. After other errors, such as those of a cut link, the
// next attempt follows soon.
func refusalOf(ctx context.Context, err error) error {
	if apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) || apierrors.IsInvalid(err) ||
		apierrors.IsNotFound(err) {
		return err
	}
	klog.FromContext(ctx).V(4).Info("No certificate yet; will try again", "reason", err)
	return nil
}
