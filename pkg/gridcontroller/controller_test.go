package gridcontroller

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/application-grid/application-grid/pkg/program/restmapper"
)

// TestSetUp: the reconcilers find the index of the cached nodes, for all namespaces and for some.
func TestSetUp(t *testing.T) {
	scheme, err := newScheme()
	if err != nil {
		t.Fatal(err)
	}
	for _, namespaces := range [][]string{nil, in("shop till")} {
		c := Config{API: &rest.Config{Host: "http://127.0.0.1:1"}, Namespaces: namespaces}
		c.Manager.HealthProbeBindAddress, c.Manager.Metrics.BindAddress = "0", "0"
		mapper := restmapper.New(scheme, []schema.GroupVersionKind{corev1.SchemeGroupVersion.WithKind("Node")})
		m, err := newManager(c, scheme, mapper)
		if err != nil {
			t.Fatal(err)
		}
		if err := addReconcilers(t.Context(), m, c); err != nil {
			t.Error(err)
		}
	}
}
