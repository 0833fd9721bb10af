package hub

import (
	"testing"

	"github.com/application-grid/application-grid/test/cluster"
	"github.com/application-grid/application-grid/test/suite"
)

const (
	siteLabel = "zone1"
	siteA     = "site-a"
	siteB     = "site-b"
)

// shared is the cluster of all tests.
var shared *cluster.Cluster

func TestMain(m *testing.M) {
	suite.Suite{
		Name: "e2e/hub", Cluster: &shared, Programs: []string{"application-grid-wrapper", "application-grid-hub"},
		Options: cluster.Options{
			AuditLog: true, WrapperArgs: []string{"--hub"}, HubReplicas: 2,
			Nodes: []cluster.NodeSpec{
				{Name: "a1", Labels: map[string]string{siteLabel: siteA}, ProxyMode: cluster.NFTables,
					Protocol: cluster.WatchList},
				{Name: "a2", Labels: map[string]string{siteLabel: siteA}, ProxyMode: cluster.IPTables,
					Protocol: cluster.ListThenWatch},
				{Name: "b1", Labels: map[string]string{siteLabel: siteB}, ProxyMode: cluster.NFTables,
					Protocol: cluster.WatchList},
			},
		},
	}.Main(m)
}
