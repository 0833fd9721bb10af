package proxy

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/application-grid/application-grid/internal/testkit/tlstest"
)

// signer is an API server that answers requests for certificates, as far as approve lets it.
type signer struct {
	t  *testing.T
	ca *tlstest.Authority

	mu       sync.Mutex
	requests []*certificatesv1.CertificateSigningRequest // guarded by mu
	// approve is guarded by mu.
	approve func(*certificatesv1.CertificateSigningRequest) error
}

func (s *signer) decide(approve func(*certificatesv1.CertificateSigningRequest) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.approve = approve
}

func (s *signer) asked() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.requests)
}

func (s *signer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	path, isRequest := strings.CutPrefix(r.URL.Path, "/apis/certificates.k8s.io/v1/certificatesigningrequests")
	if !isRequest {
		http.NotFound(w, r)
		return
	}
	if r.Header.Get("Authorization") != "Bearer token-of-the-wrapper" {
		s.t.Errorf("%s %s is not in the wrapper's name", r.Method, r.URL)
	}
	var made *certificatesv1.CertificateSigningRequest
	if r.Method == http.MethodPost {
		made = &certificatesv1.CertificateSigningRequest{}
		body, err := io.ReadAll(r.Body)
		if err != nil || json.Unmarshal(body, made) != nil {
			s.t.Errorf("a request that cannot be read: %s (%v)", body, err)
		}
		made.Name = fmt.Sprint(made.GenerateName, len(s.requests))
		s.requests = append(s.requests, made)
	} else {
		for _, known := range s.requests {
			if path == "/"+known.Name {
				made = known
			}
		}
	}
	var err error = apierrors.NewNotFound(certificatesv1.Resource("certificatesigningrequests"), path)
	if made != nil {
		err = s.approve(made)
	}
	w.Header().Set("Content-Type", "application/json")
	if err != nil {
		var status apierrors.APIStatus
		errors.As(err, &status)
		w.WriteHeader(int(status.Status().Code))
		s.write(w, status.Status())
		return
	}
	made.TypeMeta = metav1.TypeMeta{APIVersion: "certificates.k8s.io/v1", Kind: "CertificateSigningRequest"}
	s.write(w, made)
}

func (s *signer) write(w io.Writer, answer any) {
	if err := json.NewEncoder(w).Encode(answer); err != nil {
		s.t.Error(err)
	}
}

// sign signs a request as kube-controller-manager does.
func (s *signer) sign(made *certificatesv1.CertificateSigningRequest) error {
	if made.Spec.SignerName != "kubernetes.io/kubelet-serving" {
		s.t.Errorf("the signer is %s", made.Spec.SignerName)
	}
	block, _ := pem.Decode(made.Spec.Request)
	request, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		s.t.Fatal(err)
	}
	made.Status.Certificate = s.ca.Sign(s.t, &x509.Certificate{
		SerialNumber: big.NewInt(7), Subject: request.Subject, DNSNames: request.DNSNames,
		IPAddresses: request.IPAddresses, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}, request.PublicKey)
	return nil
}

func forbid(*certificatesv1.CertificateSigningRequest) error {
	return apierrors.NewForbidden(certificatesv1.Resource("certificatesigningrequests"), "", nil)
}

func pend(*certificatesv1.CertificateSigningRequest) error { return nil }

func deny(made *certificatesv1.CertificateSigningRequest) error {
	made.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{
		{Type: certificatesv1.CertificateDenied, Message: "not today"},
	}
	return nil
}

// newCertificate makes a certificate of node0 in dir, whose requests go to the signer.
func (s *signer) newCertificate(dir string, hosts ...string) *servingCertificate {
	s.t.Helper()
	server := httptest.NewServer(s)
	s.t.Cleanup(server.Close)
	c, err := newServingCertificate(Config{
		NodeName: "node0", BindAddress: "localhost:51006", AllowedHosts: hosts, TLS: &TLSFiles{Dir: dir},
	}, &rest.Config{Host: server.URL, BearerToken: "token-of-the-wrapper"}, s.ca.PEM)
	if err != nil {
		s.t.Fatal(err)
	}
	return c
}

// verifies reports whether what is served is trusted by the CAs in PEM, for all the hosts.
func verifies(c *servingCertificate, ca []byte, hosts ...string) error {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca)
	pair, err := tls.LoadX509KeyPair(c.file(), c.file())
	for _, host := range hosts {
		if err == nil {
			_, err = pair.Leaf.Verify(x509.VerifyOptions{Roots: pool, DNSName: host})
		}
	}
	return err
}

// TestCertificateIsTheClustersOnceItIsApproved, and before that one of a CA of its own, which the kubeconfig trusts.
func TestCertificateIsTheClustersOnceItIsApproved(t *testing.T) {
	t.Parallel()
	s := &signer{t: t, ca: tlstest.NewAuthority(t), approve: pend}
	dir := filepath.Join(t.TempDir(), "tls")
	c := s.newCertificate(dir, "192.0.2.1", "wrapper.example.org")
	hosts := []string{"127.0.0.1", "::1", "localhost", "192.0.2.1", "wrapper.example.org"}
	config, err := clientcmd.LoadFromFile(filepath.Join(dir, "kubeconfig"))
	if err == nil {
		err = clientcmd.ResolveLocalPaths(config)
	}
	if err != nil || len(config.Clusters) != 1 || len(config.AuthInfos) != 1 {
		t.Fatalf("the kubeconfig is %+v (%v)", config, err)
	}
	cluster, user := config.Clusters[program], config.AuthInfos[program]
	if cluster.Server != "https://127.0.0.1:51006" || user.TokenFile != tokenFile {
		t.Errorf("the kubeconfig has %+v and %+v", cluster, user)
	}
	trusted := func() []byte {
		t.Helper()
		content, err := os.ReadFile(cluster.CertificateAuthority)
		if err != nil {
			t.Fatal(err)
		}
		return content
	}
	if err := verifies(c, trusted(), hosts...); err != nil {
		t.Errorf("before a request: %v", err)
	}
	for range 3 {
		if err := c.requestOrCollect(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := verifies(c, s.ca.PEM, hosts...); err == nil || s.asked() != 1 {
		t.Errorf("before the approval: %d requests, and the cluster's CA verifies", s.asked())
	}
	s.decide(s.sign)
	for range 3 {
		if err := c.requestOrCollect(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := verifies(c, s.ca.PEM, hosts...); err != nil || s.asked() != 1 {
		t.Errorf("after the approval: %d requests, %v", s.asked(), err)
	}
	if err := verifies(c, trusted(), hosts...); err != nil {
		t.Errorf("the kubeconfig's CA after the approval: %v", err)
	}
	if again := s.newCertificate(dir, "192.0.2.1", "wrapper.example.org"); again.isDue(again.leaf()) {
		t.Error("the next process requests one although it has one")
	}
	for _, host := range []string{"192.0.2.2", "other.example.org"} {
		copied := filepath.Join(t.TempDir(), "tls")
		if err := os.CopyFS(copied, os.DirFS(dir)); err != nil {
			t.Fatal(err)
		}
		if other := s.newCertificate(copied, host); !other.isDue(other.leaf()) {
			t.Errorf("a process for %s uses the certificate without it", host)
		}
	}
}

// TestCertificateOfItsOwnStaysWhereRequestsAreRefused, and the API server is not asked again and again.
func TestCertificateOfItsOwnStaysWhereRequestsAreRefused(t *testing.T) {
	t.Parallel()
	for name, approve := range map[string]func(*certificatesv1.CertificateSigningRequest) error{
		"forbidden": forbid, "denied": deny,
	} {
		s := &signer{t: t, ca: tlstest.NewAuthority(t), approve: approve}
		c := s.newCertificate(t.TempDir())
		before := c.leaf()
		for range 4 {
			c.advance(t.Context())
		}
		if after := c.leaf(); s.asked() != 1 || !after.Equal(before) {
			t.Errorf("%s: %d requests, or another certificate", name, s.asked())
		}
		c.notBefore = time.Now()
		c.advance(t.Context())
		if s.asked() != 2 {
			t.Errorf("%s: %d requests after the pause", name, s.asked())
		}
	}
}

func TestCertificateIsRenewedWhenAThirdIsLeft(t *testing.T) {
	t.Parallel()
	c := &servingCertificate{node: "node0"}
	subject := c.subject()
	of := func(subject pkix.Name, left time.Duration) *x509.Certificate {
		return &x509.Certificate{
			Subject: subject, NotBefore: time.Now().Add(left - 90*time.Minute), NotAfter: time.Now().Add(left),
		}
	}
	for _, want := range []struct {
		leaf *x509.Certificate
		due  bool
	}{
		{nil, true}, {of(subject, 31*time.Minute), false}, {of(subject, 29*time.Minute), true},
		{of(pkix.Name{CommonName: "system:node:node1"}, time.Hour), true},
	} {
		if got := c.isDue(want.leaf); got != want.due {
			t.Errorf("%+v: due %t, want %t", want.leaf, got, want.due)
		}
	}
}

// TestServesACertificateOfItsOwn: TLS needs no file.
func TestServesACertificateOfItsOwn(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	w := start(t, smallCluster(), func(c *Config) { c.TLS = &TLSFiles{Dir: dir} })
	pool := x509.NewCertPool()
	ca, err := os.ReadFile(filepath.Join(dir, "ca.crt"))
	if err != nil || !pool.AppendCertsFromPEM(ca) {
		t.Fatalf("the CA is %s (%v)", ca, err)
	}
	client := http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}}
	defer client.CloseIdleConnections()
	response, err := client.Get("https://" + w.address + "/livez")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		t.Errorf("got %s", response.Status)
	}
}
