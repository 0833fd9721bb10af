package lite

import (
	"crypto/x509/pkix"
	"net/http"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

const fiveYears = 5 * 365 * 24 * time.Hour

var node0 = pkix.Name{CommonName: "system:node:node0", Organization: []string{nodesGroup}}

// rebootBehind commits, reboots without the cloud, and with a clock that is behind by so much, as without a battery.
// The node's certificate is one that is valid until an hour from the true time.
func (f *fixture) rebootBehind(behind time.Duration) {
	f.Helper()
	truth := time.Now().Add(behind)
	f.server.store.mu.Lock()
	f.server.store.hear(truth)
	f.server.store.mu.Unlock()
	f.stop() // which commits
	f.cloud.end()
	f.writeKubeconfig(f.issueUntil(f.authority, node0, truth.Add(time.Hour)))
	f.start()
}

// kubeletBehind is the kubelet's client, which looks at the server's certificate with a clock that is behind.
func (f *fixture) kubeletBehind(behind time.Duration) kubernetes.Interface {
	f.Helper()
	config, err := rest.TLSConfigFor(f.kubelet())
	f.must(err)
	config.Time = func() time.Time { return time.Now().Add(-behind) }
	client, err := kubernetes.NewForConfigAndClient(&rest.Config{Host: "https://" + f.config.Address},
		&http.Client{Transport: &http.Transport{TLSClientConfig: config}})
	f.must(err)
	return client
}

// tokenFor asks for the pod's token as the kubelet does.
func (f *fixture) tokenFor(client kubernetes.Interface, audiences ...string) (*authenticationv1.TokenRequest, error) {
	f.Helper()
	seconds := int64(3600)
	return client.CoreV1().ServiceAccounts("shop").CreateToken(f.Context(), "till", &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds, Audiences: audiences,
			BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: "till",
				UID: "u1"}},
	}, metav1.CreateOptions{})
}

// TestClockBehind: after a reboot with a clock that has lost the time, the kubelet and the server accept each other's
// certificates, and tokens are judged by when kube-apiserver was last heard.
func TestClockBehind(t *testing.T) {
	for _, behind := range []time.Duration{0, 30 * time.Minute, fiveYears} {
		for _, expired := range []bool{false, true} {
			f := newFixture(t)
			f.cloud.expiry = time.Now().Add(behind + 30*time.Minute)
			if expired {
				f.cloud.expiry = time.Now().Add(behind - time.Minute)
			}
			f.start()
			f.followed()
			f.rebootBehind(behind)
			client := f.kubeletBehind(behind)
			pods, err := client.CoreV1().Pods("").List(t.Context(), metav1.ListOptions{
				FieldSelector: "spec.nodeName=node0"})
			if err != nil || len(pods.Items) != 1 {
				t.Errorf("behind by %s: got %v, %v", behind, pods, err)
			}
			for _, audiences := range [][]string{nil, {"vault"}} {
				granted, err := f.tokenFor(client, audiences...)
				refused := apierrors.IsServiceUnavailable(err) && strings.Contains(err.Error(), "has expired at")
				if refused != expired || (err == nil && strings.Count(granted.Status.Token, ".") != 2) {
					t.Errorf("behind by %s, a token for %q that has expired: %v: %v", behind, audiences, expired, err)
				}
			}
		}
	}
}

// TestExpiredCertificate of the node: the handshake fails, and /readyz says why.
func TestExpiredCertificate(t *testing.T) {
	f := newFixture(t)
	f.start()
	f.followed()
	f.stop()
	f.cloud.end()
	f.writeKubeconfig(f.issueUntil(f.authority, node0, time.Now().Add(-time.Minute)))
	f.start()
	client, err := kubernetes.NewForConfig(f.kubelet())
	f.must(err)
	_, err = client.CoreV1().Pods("").List(t.Context(), metav1.ListOptions{FieldSelector: "spec.nodeName=node0"})
	if err == nil || apierrors.ReasonForError(err) != metav1.StatusReasonUnknown {
		t.Errorf("the handshake has not failed: %v", err)
	}
	reasons := strings.Join(f.server.report().Reasons, "; ")
	if !strings.Contains(reasons, "the kubelet's certificate has expired at") {
		t.Errorf("/readyz says %q", reasons)
	}
}
