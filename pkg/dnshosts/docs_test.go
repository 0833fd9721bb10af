package dnshosts

import (
	"testing"

	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/application-grid/application-grid/docs/docstest"
)

// TestDocumentedMetrics: docs/reference.md tells of every metric, and of none that there is not.
func TestDocumentedMetrics(t *testing.T) {
	t.Parallel()
	d, err := New(
		Config{
			Connection: fixed(&rest.Config{Host: "http://127.0.0.1:1"}), NodeName: "node0",
			Path: t.TempDir() + "/hosts",
		},
		klog.Background(),
	)
	if err != nil {
		t.Fatal(err)
	}
	docstest.CompareMetrics(t, "statefulset-grid-daemon", d.metrics.registry)
}
