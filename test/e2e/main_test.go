package e2e

import (
	"os"
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
	suite.Suite{Name: "e2e", Options: clusterOptions, Cluster: &shared}.Main(m)
}

func clusterOptions() (cluster.Options, error) {
	var options cluster.Options
	if err := suite.Privileged(); err != nil {
		return options, err
	}
	components, err := suite.Program("COMPONENTS_BIN", "components")
	if err != nil {
		return options, err
	}
	wrapper, err := suite.Program("WRAPPER_BIN", "application-grid-wrapper")
	if err != nil {
		return options, err
	}
	unit := func(name string) map[string]string { return map[string]string{unitLabel: name} }
	return cluster.Options{
		Components: components,
		Wrapper:    wrapper,
		Progress:   os.Stdout,
		Dir:        os.Getenv("E2E_DIR"), // to keep the logs
		Nodes: []cluster.NodeSpec{
			{Name: "a1", Labels: unit(unitA), ProxyMode: cluster.NFTables, Protocol: cluster.WatchList},
			{Name: "a2", Labels: unit(unitA), ProxyMode: cluster.IPTables, Protocol: cluster.ListThenWatch,
				Configured: true},
			{Name: "b1", Labels: unit(unitB), ProxyMode: cluster.NFTables, Protocol: cluster.ListThenWatch},
			{Name: "b2", Labels: unit(unitB), ProxyMode: cluster.IPTables, Protocol: cluster.WatchList,
				Configured: true},
		},
	}, nil
}
