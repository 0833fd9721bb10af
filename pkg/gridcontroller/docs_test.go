package gridcontroller

import (
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/application-grid/application-grid/docs/docstest"
	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
)

// TestDocumentedMetrics: docs/reference.md tells of every metric, and of none that there is not.
func TestDocumentedMetrics(t *testing.T) {
	t.Parallel()
	g := newGauges()
	g.set("DeploymentGrid", types.NamespacedName{Name: "echo"}, figures{
		waves: []v1.WaveStatus{{Name: "canary", Units: 1}},
	})
	docstest.CompareMetrics(t, "application-grid-controller", g)
}
