package faults

import (
	"fmt"
	"testing"

	"github.com/application-grid/application-grid/test/cluster"
)

const (
	// stateSize is that of the state directories that get full, in bytes.
	stateSize = 2 << 20
	// writeErrors counts the snapshots that could not be written, writesDone those that could.
	writeErrors = `application_grid_wrapper_snapshot_writes_total{result="error"}`
	writesDone  = `application_grid_wrapper_snapshot_writes_total{result="ok"}`
)

// expectMore waits until a counter of the wrapper has risen above a value.
func (s *site) expectMore(metric string, than float64) {
	s.Helper()
	s.Eventually(metric+" rises", func() error {
		if value, _ := s.metric(metric); value <= than {
			return fmt.Errorf("it is %v", value)
		}
		return nil
	})
}

// unwritable is a fault of the disk. What changes while it lasts is shown at once, but is not in the snapshot. A
// wrapper that is killed offline then serves the snapshot to whoever restarts; kube-proxy, which has seen a newer
// state, is not taken back to it.
func unwritable(name string, inflict, relieve func(*cluster.Node) error) fault {
	return fault{
		name: name, bound: deadline * 3 / 2, restarts: true,
		node: cluster.NodeSpec{StateDirSize: stateSize},
		inflict: func(s *site) {
			s.Kept(writeDelay, s.node)
			s.Must(inflict(s.node))
		},
		during: func(s *site) {
			s.Helper()
			s.awaitConverged() // although it cannot be written
			s.expectMore(writeErrors, 0)
			cutLink(s)
			s.restartOffline()
			if !s.hasConverged() {
				s.Errorf("kube-proxy was taken back to an older state: it reaches %s", s.reach(s.canary))
			}
		},
		relieve: func(s *site) {
			s.Must(relieve(s.node))
			restoreLink(s)
		},
		after: func(s *site) {
			s.expectSynced()
			s.expectMore(writesDone, 0)
		},
	}
}

func TestDisk(t *testing.T) {
	runAll(t, []fault{
		unwritable("disk full", (*cluster.Node).FillStateDir, (*cluster.Node).EmptyStateDir),
		unwritable("state directory read-only", (*cluster.Node).ForbidStateWrites, (*cluster.Node).AllowStateWrites),
	})
}
