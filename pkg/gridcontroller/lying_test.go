package gridcontroller

import (
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
)

const lyingNodes = 6

// lyingFixture has a grid and a node in every of its units.
func lyingFixture(t *testing.T) (*fixture, *v1.DeploymentGrid) {
	t.Helper()
	grid := deploymentGrid("demo", plain)
	grid.Spec.Removal = &v1.Removal{MaxUnits: ptr.To(intstr.FromString("100%"))}
	f := newFixture(t, grid)
	for i := range lyingNodes {
		f.node(fmt.Sprint("n", i), fmt.Sprint("u", i))
	}
	f.pass(grid)
	if took := f.took(); len(took) != lyingNodes {
		t.Fatalf("got the writes %q", took)
	}
	return f, grid
}

// TestListWithoutNodes: a list of nodes that comes back empty, or without most, deletes nothing within the grace
// time, and is forgotten when the nodes return.
func TestListWithoutNodes(t *testing.T) {
	for name, keeps := range map[string]int{"none": 0, "few": 1} {
		t.Run(name, func(t *testing.T) {
			f, grid := lyingFixture(t)
			for i := keeps; i < lyingNodes; i++ {
				f.hear(fmt.Sprint("n", i), nil)
			}
			f.pass(grid)
			if int(grid.Status.Units) != keeps {
				t.Errorf("%d units, want %d", grid.Status.Units, keeps)
			}
			for range 4 {
				f.step(time.Minute)
				f.pass(grid)
			}
			f.expectTook()
			for i := keeps; i < lyingNodes; i++ {
				f.hear(fmt.Sprint("n", i), map[string]string{"zone1": fmt.Sprint("u", i)})
			}
			for range 10 {
				f.step(5 * time.Minute)
				f.pass(grid)
			}
			f.expectTook()
			if grid.Status.Units != lyingNodes {
				t.Errorf("%d units, want %d", grid.Status.Units, lyingNodes)
			}
			for unit, state := range grid.Status.States {
				if state.Phase == v1.UnitRemoving || state.RemovalTime != nil {
					t.Errorf("unit %s: %+v", unit, state)
				}
			}
		})
	}
}

// TestGraceTimeOfALie: nodes that have been missing for longer than the grace time are asked for before anything is
// deleted, and so nothing is; that cannot be asked, either; and what is gone in truth goes.
func TestGraceTimeOfALie(t *testing.T) {
	f, grid := lyingFixture(t)
	for i := range lyingNodes {
		f.hear(fmt.Sprint("n", i), nil)
	}
	f.pass(grid)
	f.step(time.Hour)
	f.pass(grid)
	f.expectTook()
	if state := grid.Status.States["u4"]; state.Phase != v1.UnitRemoving || state.Reason != v1.ReasonSyncFailed ||
		state.Message != "Deployment demo-u4 is not removed: node n4 is in the unit, which the watch of nodes has "+
			"not shown yet" {
		t.Errorf("got the state %+v", state)
	}
	f.mu.Lock()
	f.failLists = errBroken
	f.mu.Unlock()
	f.step(time.Hour)
	f.pass(grid)
	f.expectTook()
	f.mu.Lock()
	f.failLists = nil
	f.mu.Unlock()

	// An API server that knows no node at all.
	f.mu.Lock()
	clear(f.nodes)
	f.mu.Unlock()
	f.step(time.Hour)
	f.pass(grid)
	f.expectTook()

	// One that knows another one.
	f.node("other", "")
	if again := f.reconcile(grid); again <= 0 || again > 10*time.Second {
		t.Errorf("asks to be called again after %s", again)
	}
	f.step(10 * time.Second)
	f.pass(grid)
	if took := f.took(); len(took) != lyingNodes {
		t.Errorf("got the writes %q", took)
	}
}
