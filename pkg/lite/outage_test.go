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

	"github.com/application-grid/application-grid/internal/testkit/await"
	"github.com/application-grid/application-grid/internal/testkit/wiretest"
)

// TestFollowsAtOnceAfterAnOutage: what the node needs and what accounts read is followed, and what cannot be followed
// is fetched, when kube-apiserver is back, although a gateway has asked to come back much later.
func TestFollowsAtOnceAfterAnOutage(t *testing.T) {
	t.Parallel()
	f := newAccountsFixture(t)
	f.start()
	f.readAll()
	failing := func() (count, of int) {
		for _, group := range f.server.follower.groups {
			for _, state := range group.States() {
				if state.Optional {
					continue // it is fetched from time to time
				}
				if of++; state.Err != nil {
					count++
				}
			}
		}
		return count, of
	}
	f.cloud.gateway.Store(true)
	f.cloud.CloseClientConnections()
	patience.Until(t, "kube-apiserver is away for every source", func() error {
		if count, of := failing(); count < of || f.server.link.AwayUntil() == nil {
			return fmt.Errorf("for %d of %d", count, of)
		}
		return nil
	})
	f.names("late", "disk", 10)
	disk := objectScope(claims, "shop", "disk")
	patience.Until(t, "the claim of a pod cannot be fetched", func() error {
		tried := false
		for _, state := range f.server.follower.groups[byName].States() {
			if state.Name == claims.Resource && state.Err != nil {
				tried = true
			}
		}
		if !tried {
			return errors.New("nobody has tried")
		}
		return nil
	})
	f.cloud.gateway.Store(false)
	patience.Until(t, "kube-apiserver is back", func() error {
		if f.server.link.AwayUntil() != nil {
			return errors.New("it is not")
		}
		return nil
	})
	quick := await.Patience{Within: againInterval / 2, Between: patience.Between}
	quick.Until(t, "the claim is fetched", func() error {
		if _, _, ok := f.server.store.readScope(disk); !ok {
			return errors.New("it is not")
		}
		return nil
	})
	patience.Until(t, "all is followed again", func() error {
		if count, _ := failing(); count > 0 {
			return fmt.Errorf("not %d", count)
		}
		return nil
	})
}

// names lets the node have a pod with a Secret of the pod's name, and a claim.
func (f *fixture) names(name, claim string, version int) {
	pod := podOf("shop/"+name, types.UID(name))
	pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: "s", VolumeSource: corev1.VolumeSource{
		Secret: &corev1.SecretVolumeSource{SecretName: name}}}, corev1.Volume{Name: "c",
		VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim}}})
	f.cloud.says("/api/v1/namespaces/shop/secrets", list("SecretList", "v1",
		corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}}))
	f.cloud.says("/api/v1/namespaces/shop/persistentvolumeclaims/"+claim, corev1.PersistentVolumeClaim{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "PersistentVolumeClaim"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: claim, ResourceVersion: "4"}})
	to := sink{f.server.store, podScope("node0")}
	to.ChangeAt(fmt.Sprint(version), func() { to.Apply(wiretest.Object(&pod)) })
}

// TestSlowTokens hold up no Secret and no claim: a request for a token that nobody answers takes 10 seconds.
func TestSlowTokens(t *testing.T) {
	t.Parallel()
	f := running(t)
	f.cloud.slow.Store(true)
	for i, name := range []string{"first", "second"} {
		f.names(name, name, 10+i)
		patience.Until(t, "what the "+name+" pod names is known, and its token is waited for", func() error {
			switch in := (types.NamespacedName{Namespace: "shop", Name: name}); {
			case f.server.store.findObject(in, secrets) == nil, f.server.store.findObject(in, claims) == nil:
				return errors.New("it is not known")
			case f.cloud.slowed.Load() == 0:
				return errors.New("nothing is waited for")
			}
			return nil
		})
	}
	if given := f.cloud.givenUp.Load(); given > 0 {
		t.Errorf("%d requests for tokens were over before that", given)
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
