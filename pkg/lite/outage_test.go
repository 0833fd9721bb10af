package lite

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/application-grid/application-grid/pkg/storage/wire/wiretest"
)

// TestFollowsAtOnceAfterAnOutage: what a node always needs is followed when kube-apiserver is back, although a gateway
// has asked to come back much later.
func TestFollowsAtOnceAfterAnOutage(t *testing.T) {
	t.Parallel()
	f := running(t)
	failing := func() (count int) {
		for _, source := range f.server.follower.fixed {
			if source.State().Err != nil {
				count++
			}
		}
		return count
	}
	f.cloud.gateway.Store(true)
	f.cloud.CloseClientConnections()
	patience.Until(t, "kube-apiserver is away for every source", func() error {
		if count := failing(); count < len(f.server.follower.fixed) || f.server.link.Away() == nil {
			return fmt.Errorf("for %d", count)
		}
		return nil
	})
	f.cloud.gateway.Store(false)
	patience.Until(t, "all is followed again", func() error {
		if count := failing(); count > 0 {
			return fmt.Errorf("not %d", count)
		}
		return nil
	})
}

// TestSlowTokens hold up no Secret: a request for a token that nobody answers takes 10 seconds.
func TestSlowTokens(t *testing.T) {
	t.Parallel()
	f := running(t)
	f.cloud.slow.Store(true)
	to := sink{f.server.store, podsOf("node0")}
	for i, name := range []string{"first", "second"} {
		pod := podOf("shop/"+name, types.UID(name))
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: "s", VolumeSource: corev1.VolumeSource{
			Secret: &corev1.SecretVolumeSource{SecretName: name}}})
		f.cloud.says("/api/v1/namespaces/shop/secrets", list("SecretList", "v1",
			corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}}))
		to.At(fmt.Sprint(10+i), func() { to.Apply(wiretest.Object(&pod)) })
		patience.Until(t, "the Secret of the "+name+" pod is known, and its token is waited for", func() error {
			switch {
			case f.server.store.find(secrets, types.NamespacedName{Namespace: "shop", Name: name}) == nil:
				return errors.New("it is not known")
			case f.cloud.slowed.Load() == 0:
				return errors.New("nothing is waited for")
			}
			return nil
		})
	}
	if given := f.cloud.givenUp.Load(); given > 0 {
		t.Errorf("%d requests for tokens were over before the Secrets were known", given)
	}
}

// TestRenewedCertificate: a client certificate that is new in the kubelet's kubeconfig gets into the one that the
// kubelet is led here by.
func TestRenewedCertificate(t *testing.T) {
	t.Parallel()
	f := running(t)
	renewed := f.issue(f.authority, "system:node:node0", nodesGroup)
	f.writeKubeconfig(renewed)
	patience.Until(t, "it is in kubelet.conf", func() error {
		content, err := os.ReadFile(filepath.Join(f.config.Dir, KubeletFile))
		if err == nil && !bytes.Contains(content, []byte(renewed)) {
			err = fmt.Errorf("it is not: %s", strings.TrimSpace(string(content)))
		}
		return err
	})
}
