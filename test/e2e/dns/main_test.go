package dns

import (
	"os"
	"testing"
	"time"

	"github.com/application-grid/application-grid/test/cluster"
	"github.com/application-grid/application-grid/test/suite"
)

const (
	unitLabel = "zone1"
	// stateWriteDelay is how soon after a change the wrappers write a snapshot.
	stateWriteDelay = 200 * time.Millisecond
)

// snapshots are the flags of a wrapper whose node is switched off soon after a change.
func snapshots() []string { return []string{"--state-write-delay=" + stateWriteDelay.String()} }

// units are the units, by node.
var units = map[string]string{"east1": "east", "north1": "north", "west1": "west"}

// shared is the cluster of all tests.
var shared *cluster.Cluster

func TestMain(m *testing.M) {
	suite.Suite{Name: "e2e/dns", Options: clusterOptions, Cluster: &shared, Prepare: prepare}.Main(m)
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
	daemon, err := suite.Program("DNS_DAEMON_BIN", "statefulset-grid-daemon")
	if err != nil {
		return options, err
	}
	options = cluster.Options{
		Components: components, Wrapper: wrapper, WrapperTLS: true, DNSDaemon: daemon, DualStack: true,
		Progress: os.Stdout,
		Dir:      os.Getenv("E2E_DIR"), // to keep the logs
	}
	for _, name := range []string{"east1", "north1", "west1"} {
		options.Nodes = append(options.Nodes,
			cluster.NodeSpec{Name: name, Labels: map[string]string{unitLabel: units[name]}, WrapperArgs: snapshots()})
	}
	return options, nil
}
