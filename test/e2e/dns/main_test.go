package dns

import (
	"testing"
	"time"

	"github.com/application-grid/application-grid/test/cluster"
	"github.com/application-grid/application-grid/test/suite"
)

const (
	siteLabel = "zone1"
	// stateWriteDelay is how soon after a change the wrappers write a snapshot.
	stateWriteDelay = 200 * time.Millisecond
)

// snapshots are the flags of a wrapper whose node is switched off soon after a change.
func snapshots() []string { return []string{"--state-write-delay=" + stateWriteDelay.String()} }

// sites are the sites, by node.
var sites = map[string]string{"east1": "east", "north1": "north", "west1": "west"}

// shared is the cluster of all tests.
var shared *cluster.Cluster

func TestMain(m *testing.M) {
	options := cluster.Options{WrapperTLS: true, DualStack: true}
	for _, name := range []string{"east1", "north1", "west1"} {
		options.Nodes = append(options.Nodes,
			cluster.NodeSpec{Name: name, Labels: map[string]string{siteLabel: sites[name]}, WrapperArgs: snapshots()})
	}
	suite.Suite{Name: "e2e/dns", Options: options, Cluster: &shared, Prepare: prepare,
		Programs: []string{"application-grid-wrapper", "statefulset-grid-daemon"}}.Main(m)
}
