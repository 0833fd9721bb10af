package gridcontroller

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
)

// TestCRDVersion: whoever changes the CRDs raises their version, or controllers would not replace older ones: the
// number in the marker +kubebuilder:metadata:annotations of every kind, and then v1.CRDVersion.
func TestCRDVersion(t *testing.T) {
	const digest = "8f8aafb317f16a7d"
	hash := sha256.New()
	for _, k := range slices.SortedFunc(slices.Values(v1.Kinds), func(a, b v1.GridKind) int {
		return cmp.Compare(a.Kind, b.Kind)
	}) {
		crd, err := readCRD(k)
		if err != nil {
			t.Fatal(err)
		}
		if got := crdVersion(crd); got != v1.CRDVersion {
			t.Errorf("%s has version %d, want %d", crd.GetName(), got, v1.CRDVersion)
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
	for name, test := range map[string]struct {
		// fields are the managers of fields, each with its operation and subresource. mark is a label and annotation.
		fields []metav1.ManagedFieldsEntry
		mark   string
		keeps  bool
	}{
		"SuperEdge's controller": {[]metav1.ManagedFieldsEntry{
			{Manager: "application-grid-controller", Operation: "Update"},
		}, "", false},
		"ours": {[]metav1.ManagedFieldsEntry{
			{Manager: "application-grid-controller", Operation: "Apply"},
			{Manager: "kube-apiserver", Operation: "Update", Subresource: "status"},
		}, "", false},
		"kubectl apply": {[]metav1.ManagedFieldsEntry{
			{Manager: "kubectl-client-side-apply", Operation: "Update"},
		}, "", false},
		"kubectl apply --server-side": {
			[]metav1.ManagedFieldsEntry{{Manager: "kubectl", Operation: "Apply"}}, "", false,
		},
		"Argo CD, server-side": {
			[]metav1.ManagedFieldsEntry{{Manager: "argocd-controller", Operation: "Apply"}}, "", true,
		},
		"Argo CD": {nil, "argocd.argoproj.io/tracking-id", true},
		"Helm":    {nil, "app.kubernetes.io/managed-by", true},
		"Flux":    {nil, "kustomize.toolkit.fluxcd.io/name", true},
		"a label": {nil, "team", false},
	} {
		marks := map[string]string{test.mark: "x"}
		for _, meta := range []metav1.ObjectMeta{{Labels: marks}, {Annotations: marks}} {
			meta.ManagedFields = test.fields
			got := keeperOf(&apiextensionsv1.CustomResourceDefinition{ObjectMeta: meta})
			if (got != "") != test.keeps {
				t.Errorf("%s: got %q", name, got)
			}
		}
	}
	for _, annotations := range []map[string]string{nil, {"superedge.io/crd-version": "x"}} {
		if got := crdVersion(&metav1.ObjectMeta{Annotations: annotations}); got != 0 {
			t.Errorf("what has no version is older than all: got %d", got)
		}
	}
}
