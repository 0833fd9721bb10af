package e2e

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
	site := func(name string) map[string]string { return map[string]string{siteLabel: name} }
	suite.Suite{
		Name: "e2e", Parallel: 4, Cluster: &shared, Programs: []string{"application-grid-wrapper"},
		Options: cluster.Options{Nodes: []cluster.NodeSpec{
			{Name: "a1", Labels: site(siteA), ProxyMode: cluster.NFTables, Protocol: cluster.WatchList},
			{Name: "a2", Labels: site(siteA), ProxyMode: cluster.IPTables, Protocol: cluster.ListThenWatch,
				Configured: true},
			{Name: "b1", Labels: site(siteB), ProxyMode: cluster.NFTables, Protocol: cluster.ListThenWatch},
			{Name: "b2", Labels: site(siteB), ProxyMode: cluster.IPTables, Protocol: cluster.WatchList,
				Configured: true},
		}},
	}.Main(m)
}
