package restmapper

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestNew(t *testing.T) {
	t.Parallel()
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	core := corev1.SchemeGroupVersion
	policies := schema.GroupVersionKind{Group: "g", Version: "v1", Kind: "Policy"}
	leases := schema.GroupVersionKind{Group: "g", Version: "v1", Kind: "Lease"}
	mapper := New(scheme, []schema.GroupVersionKind{core.WithKind("Node"), policies}, leases)
	for kind, want := range map[schema.GroupVersionKind]struct {
		resource string
		scope    meta.RESTScope
	}{
		core.WithKind("Pod"):      {"pods", meta.RESTScopeNamespace},
		core.WithKind("PodList"):  {"podlists", meta.RESTScopeNamespace},
		core.WithKind("Node"):     {"nodes", meta.RESTScopeRoot},
		core.WithKind("NodeList"): {"nodelists", meta.RESTScopeRoot},
		policies:                  {"policies", meta.RESTScopeRoot},
		leases:                    {"leases", meta.RESTScopeNamespace},
	} {
		got, err := mapper.RESTMapping(kind.GroupKind(), kind.Version)
		if err != nil || got.Resource.Resource != want.resource || got.Scope != want.scope {
			t.Errorf("%s: got %+v, %v, want %+v", kind, got, err, want)
		}
	}
}
