package gridcontroller

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestCRDVersion: whoever changes the CRDs raises their version, or controllers would not replace older ones: the
// number in the marker +kubebuilder:metadata:annotations of every kind, and then here.
func TestCRDVersion(t *testing.T) {
	const version, digest = 6, "92dba5eb448cbe51"
	crds, err := readCRDs()
	if err != nil {
		t.Fatal(err)
	}
	hash := sha256.New()
	for _, crd := range crds {
		if got := crdVersion(crd); got != version {
			t.Errorf("%s has version %d, want %d", crd.GetName(), got, version)
		}
		data, err := json.Marshal(crd.Object["spec"])
		if err != nil {
			t.Fatal(err)
		}
		hash.Write(data)
	}
	if got := hex.EncodeToString(hash.Sum(nil)[:8]); got != digest {
		t.Errorf("the CRDs have changed (digest %s): raise their version", got)
	}
}

func TestKeeperOf(t *testing.T) {
	entry := func(manager string, operation metav1.ManagedFieldsOperationType, sub string) metav1.ManagedFieldsEntry {
		return metav1.ManagedFieldsEntry{Manager: manager, Operation: operation, Subresource: sub}
	}
	for name, test := range map[string]struct {
		meta  metav1.ObjectMeta
		keeps bool
	}{
		"SuperEdge's controller": {
			metav1.ObjectMeta{
				ManagedFields: []metav1.ManagedFieldsEntry{entry("application-grid-controller", "Update", "")},
			},
			false,
		},
		"ours": {
			metav1.ObjectMeta{
				ManagedFields: []metav1.ManagedFieldsEntry{
					entry("application-grid-controller", "Apply", ""), entry("kube-apiserver", "Update", "status"),
				},
			},
			false,
		},
		"kubectl apply": {
			metav1.ObjectMeta{
				ManagedFields: []metav1.ManagedFieldsEntry{entry("kubectl-client-side-apply", "Update", "")},
			},
			false,
		},
		"kubectl apply --server-side": {
			metav1.ObjectMeta{ManagedFields: []metav1.ManagedFieldsEntry{entry("kubectl", "Apply", "")}}, false,
		},
		"Argo CD, server-side": {
			metav1.ObjectMeta{ManagedFields: []metav1.ManagedFieldsEntry{entry("argocd-controller", "Apply", "")}},
			true,
		},
		"Argo CD": {
			metav1.ObjectMeta{Annotations: map[string]string{"argocd.argoproj.io/tracking-id": "x"}}, true,
		},
		"Helm": {
			metav1.ObjectMeta{Labels: map[string]string{"app.kubernetes.io/managed-by": "Helm"}}, true,
		},
		"Flux": {
			metav1.ObjectMeta{Labels: map[string]string{"kustomize.toolkit.fluxcd.io/name": "x"}}, true,
		},
	} {
		if got := keeperOf(&apiextensionsv1.CustomResourceDefinition{
			ObjectMeta: test.meta,
		}); (got != "") != test.keeps {
			t.Errorf("%s: got %q", name, got)
		}
	}
	if slices.Contains(
		[]int{
			crdVersion(&metav1.ObjectMeta{}),
			crdVersion(&metav1.ObjectMeta{Annotations: map[string]string{"superedge.io/crd-version": "x"}}),
		},
		1,
	) {
		t.Error("what has no version is older than all")
	}
}
