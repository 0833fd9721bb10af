package lite

import (
	"testing"

	"github.com/application-grid/application-grid/test/cluster"
	"github.com/application-grid/application-grid/test/suite"
)

// shared is the cluster of all tests: a control plane, without nodes.
var shared *cluster.Cluster

// controlPlane is what the clusters of this package are.
var controlPlane = cluster.Options{APIViewOnly: true, Kubelets: true, NoKwok: true, NoScheduler: true}

func TestMain(m *testing.M) {
	suite.Suite{Name: "e2e/lite", Options: controlPlane, Cluster: &shared}.Main(m)
}
