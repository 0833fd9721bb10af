package dnshosts

import (
	"testing"

	"github.com/application-grid/application-grid/docs/docstest"
)

// TestDocumentedMetrics: docs/reference.md tells of every metric, and of none that there is not.
func TestDocumentedMetrics(t *testing.T) {
	t.Parallel()
	d := newDaemon("http://127.0.0.1:1", t.TempDir()+"/hosts")
	docstest.CompareMetrics(t, "statefulset-grid-daemon", d.metrics.registry)
}
