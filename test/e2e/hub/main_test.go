package hub

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

var (
	// shared is the cluster of all tests.
	shared *cluster.Cluster
	// components is the path of what kubectl is among.
	components string
)

func TestMain(m *testing.M) {
	suite.Suite{Name: "e2e/hub", Options: clusterOptions, Cluster: &shared}.Main(m)
}

func clusterOptions() (cluster.Options, error) {
	options := cluster.Options{
		Progress: os.Stdout, Dir: os.Getenv("E2E_DIR"), AuditLog: true, WrapperArgs: []string{"--hub=require"},
		HubReplicas: 2,
		Nodes: []cluster.NodeSpec{
			{Name: "a1", Labels: map[string]string{unitLabel: unitA}, ProxyMode: cluster.NFTables,
				Protocol: cluster.WatchList},
			{Name: "a2", Labels: map[string]string{unitLabel: unitA}, ProxyMode: cluster.IPTables,
				Protocol: cluster.ListThenWatch},
			{Name: "b1", Labels: map[string]string{unitLabel: unitB}, ProxyMode: cluster.NFTables,
				Protocol: cluster.WatchList},
		},
	}
	if err := suite.Privileged(); err != nil {
		return options, err
	}
	for _, program := range []struct {
		path           *string
		variable, name string
	}{
		{&options.Components, "COMPONENTS_BIN", "components"},
		{&options.Wrapper, "WRAPPER_BIN", "application-grid-wrapper"},
		{&options.Hub, "HUB_BIN", "application-grid-hub"},
	} {
		var err error
		if *program.path, err = suite.Program(program.variable, program.name); err != nil {
			return options, err
		}
	}
	components = options.Components
	return options, nil
}
