package proxy

import (
	"net/http"
	"testing"

	"github.com/application-grid/application-grid/docs/docstest"
)

// TestDocumentedMetrics: docs/reference.md tells of every metric, and of none that there is not.
func TestDocumentedMetrics(t *testing.T) {
	t.Parallel()
	w := startReady(t, smallCluster(), func(c *Config) { c.StateDir = t.TempDir() })
	if code, _ := w.get("/api/v1/services"); code != http.StatusOK {
		t.Fatal(code)
	}
	docstest.CompareMetrics(t, "application-grid-wrapper", w.proxy.metrics.registry)
}
