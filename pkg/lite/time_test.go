package lite

import (
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/application-grid/application-grid/internal/testkit/tlstest"
)

const fiveYears = 5 * 365 * 24 * time.Hour

var node0 = pkix.Name{CommonName: "system:node:node0", Organization: []string{nodesGroup}}

// rebootBehind commits, reboots without the cloud, and with a clock that is behind by so much, as without a battery.
// The node's certificate is one that is valid until an hour from the true time.
func (f *fixture) rebootBehind(behind time.Duration) {
	f.Helper()
	truth := time.Now().Add(behind)
	f.setLastContact(truth)
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

// TestClockBehind: after a reboot with a clock that has lost the time, the kubelet and the server accept each other's
// certificates, and tokens are judged by when kube-apiserver was last heard.
func TestClockBehind(t *testing.T) {
	t.Parallel()
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
			pods, err := f.podsOfNode0(client)
			if err != nil || len(pods) != 1 {
				t.Errorf("behind by %s: got %v, %v", behind, pods, err)
			}
			for _, audiences := range [][]string{nil, {"vault"}} {
				granted, err := f.tokenFor(client, "u1", audiences...)
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
	t.Parallel()
	f := running(t)
	f.stop()
	f.cloud.end()
	file := f.issueUntil(f.authority, node0, time.Now().Add(-time.Minute))
	both, err := os.ReadFile(file)
	f.must(err)
	certificate, key := pem.Decode(both)
	f.must(os.WriteFile(file, append(key, pem.EncodeToMemory(certificate)...), 0o600)) // the key may be the first
	f.writeKubeconfig(file)
	f.start()
	_, err = f.podsOfNode0(f.clientFor(f.kubelet()))
	if err == nil || apierrors.ReasonForError(err) != metav1.StatusReasonUnknown {
		t.Errorf("the handshake has not failed: %v", err)
	}
	reasons := strings.Join(f.report().Reasons, "; ")
	if !strings.Contains(reasons, "the kubelet's certificate has expired at") {
		t.Errorf("/readyz says %q", reasons)
	}
}

// TestNewAuthority of the cluster: the kubelet is answered with a certificate of the new CA once its kubeconfig names
// both, and /readyz says so as long as it does not.
func TestNewAuthority(t *testing.T) {
	t.Parallel()
	f := running(t)
	next := tlstest.NewAuthority(t)
	config := f.kubelet()
	config.CertFile = f.issue(next, "system:node:node0", nodesGroup)
	config.KeyFile = config.CertFile
	client := f.clientFor(config)
	ask := func() error {
		_, err := f.podsOfNode0(client)
		return err
	}
	f.writeKubeconfig(config.CertFile)
	if reasons := strings.Join(f.report().Reasons, "; "); ask() == nil ||
		!strings.Contains(reasons, "does not sign the kubelet's certificate") {
		t.Errorf("/readyz says %q", reasons)
	}
	f.writeKubeconfig(config.CertFile, next)
	patience.Until(t, "the kubelet is answered", ask)
	if reasons := f.report().Reasons; len(reasons) > 0 {
		t.Errorf("/readyz says %q", reasons)
	}
}

// TestFetchedAgain: what cannot be followed is fetched again after an outage, in which it may have changed.
func TestFetchedAgain(t *testing.T) {
	t.Parallel()
	f := running(t)
	f.cloud.says("/api/v1/namespaces/shop/persistentvolumeclaims/disk", corev1.PersistentVolumeClaim{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "PersistentVolumeClaim"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "disk", ResourceVersion: "4"},
		Spec:       corev1.PersistentVolumeClaimSpec{VolumeName: "another"}})
	f.server.link.NoteAway()
	patience.Until(t, "the claim is fetched again", func() error {
		claim, _ := f.server.store.volumeOf(types.NamespacedName{Namespace: "shop", Name: "disk"})
		if claim.Spec.VolumeName != "another" {
			return fmt.Errorf("it names %s", claim.Spec.VolumeName)
		}
		return nil
	})
}
