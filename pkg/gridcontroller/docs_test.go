package gridcontroller

import (
	"testing"

	"github.com/application-grid/application-grid/docs/docstest"
	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
)

// TestDocumentedMetrics: docs/reference.md tells of every metric, and of none that there is not.
func TestDocumentedMetrics(t *testing.T) {
	t.Parallel()
	grid := deploymentGrid("echo", plain)
	grid.Status.Rollout = &v1.RolloutStatus{
		Phase: v1.RolloutProgressing, Waves: []v1.WaveStatus{{Name: "canary", Sites: 1}},
	}
	docstest.CompareMetrics(t, "application-grid-controller", newFixture(t, grid).metrics())
}
