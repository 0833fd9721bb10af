package hub

import (
	"testing"

	"github.com/application-grid/application-grid/test/cluster"
	"github.com/application-grid/application-grid/test/suite"
)

const (
	unitLabel = "zone1"
	unitA     = "unit-a"
	unitB     = "unit-b"
)

// shared is the cluster of all tests.
var shared *cluster.Cluster

func TestMain(m *testing.M) {
	suite.Suite{
		Name: "e2e/hub", Cluster: &shared, Programs: []string{"application-grid-wrapper", "application-grid-hub"},
		Options: cluster.Options{
			AuditLog: true, WrapperArgs: []string{"--hub=require"}, HubReplicas: 2,
			Nodes: []cluster.NodeSpec{
				{Name: "a1", Labels: map[string]string{unitLabel: unitA}, ProxyMode: cluster.NFTables,
					Protocol: cluster.WatchList},
				{Name: "a2", Labels: map[string]string{unitLabel: unitA}, ProxyMode: cluster.IPTables,
					Protocol: cluster.ListThenWatch},
				{Name: "b1", Labels: map[string]string{unitLabel: unitB}, ProxyMode: cluster.NFTables,
					Protocol: cluster.WatchList},
			},
		},
	}.Main(m)
}
