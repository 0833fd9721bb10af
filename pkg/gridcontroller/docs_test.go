package gridcontroller

import (
	"testing"

	"github.com/application-grid/application-grid/docs/docstest"
)

// TestDocumentedMetrics: docs/reference.md tells of every metric, and of none that there is not.
func TestDocumentedMetrics(t *testing.T) {
	t.Parallel()
	docstest.CompareMetrics(t, "application-grid-controller", newFixture(t).metrics())
}
