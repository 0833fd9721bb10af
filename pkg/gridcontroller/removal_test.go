package gridcontroller

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
)

// sites makes a grid with this many units, and a node in each and one in none.
func sites(t *testing.T, count int, removal *v1.Removal) (*fixture, *v1.DeploymentGrid) {
	t.Helper()
	grid := deploymentGrid("demo", plain)
	grid.Spec.Removal = removal
	grid.Spec.ProgressDeadlineSeconds = ptr.To[int32](1e6) // nobody makes pods
	f := newFixture(t, grid)
	f.node("other", "")
	for i := range count {
		f.node(fmt.Sprint("n", i), fmt.Sprint("u", i))
	}
	f.pass(grid)
	f.pass(grid)
	if took := f.took(); len(took) != count {
		t.Fatalf("got the writes %q", took)
	}
	return f, grid
}

// approval is what condition Degraded asks for.
func (f *fixture) approval(grid *v1.DeploymentGrid) string {
	f.Helper()
	for _, c := range grid.Status.Conditions {
		if c.Type == v1.ConditionDegraded {
			_, after, _ := strings.Cut(c.Message, v1.AnnotationApproveRemoval+"=")
			token, _, _ := strings.Cut(after, ";")
			return token
		}
	}
	return ""
}

func (f *fixture) approve(grid *v1.DeploymentGrid, token string) {
	f.Helper()
	f.update(grid, func() {
		grid.Annotations = map[string]string{v1.AnnotationApproveRemoval: token}
		grid.Generation-- // annotations are none of the spec
	})
}

// TestMassRemovalWaits: someone takes the label from all nodes. Nothing goes until it is approved, in the words that
// are told, for the units that are told.
func TestMassRemovalWaits(t *testing.T) {
	f, grid := sites(t, 20, nil)
	for i := range 15 {
		f.node(fmt.Sprint("n", i), "")
	}
	for range 3 {
		f.step(time.Hour)
		f.pass(grid)
	}
	f.expectTook()
	f.expectCondition(grid.Status.Conditions, v1.ConditionDegraded, metav1.ConditionTrue, v1.ReasonMassRemoval,
		"15 units have no node", "u0, u1, u10, u11, u12 and 10 more", "only 2 of 20",
		v1.AnnotationApproveRemoval+"=15-")
	f.expectEvent(f.told(), "Warning", v1.ReasonMassRemoval)
	if state := grid.Status.States["u3"]; state.Phase != v1.UnitRemoving || state.Reason != v1.ReasonMassRemoval {
		t.Errorf("got the state %+v", state)
	}
	// A wrong approval, and one that was good for fewer units, are none. Nor does a restart forget.
	before := f.approval(grid)
	f.approve(grid, "15")
	f.pass(grid)
	f.node("n15", "")
	f.approve(grid, before)
	f.restart()
	f.step(time.Hour)
	f.pass(grid)
	f.expectTook()
	f.expectCondition(grid.Status.Conditions, v1.ConditionDegraded, metav1.ConditionTrue, v1.ReasonMassRemoval, "=16-")

	f.approve(grid, f.approval(grid))
	f.failing(func(call string) error { // half of it goes wrong, and another controller goes on
		if strings.HasPrefix(call, "delete demo-u1") {
			return errBroken
		}
		return nil
	})
	f.pass(grid)
	f.restart()
	f.failing(nil)
	f.step(10 * time.Minute)
	f.pass(grid)
	f.pass(grid)
	if names := strings.Fields(f.names()); len(names) != 4 {
		t.Errorf("left: %s", names)
	}
	f.expectCondition(grid.Status.Conditions, v1.ConditionDegraded, metav1.ConditionFalse, v1.ReasonAsDesired)

	// The approval is not good for another time.
	for i := 16; i < 19; i++ {
		f.node(fmt.Sprint("n", i), "")
	}
	f.pass(grid)
	f.step(time.Hour)
	f.pass(grid)
	if names := strings.Fields(f.names()); len(names) != 4 {
		t.Errorf("left: %s", names)
	}
}

// TestMassRemovalIsUndone: nodes that come back need no approval.
func TestMassRemovalIsUndone(t *testing.T) {
	f, grid := sites(t, 5, nil)
	for i := range 5 {
		f.node(fmt.Sprint("n", i), "")
	}
	f.pass(grid)
	f.expectCondition(grid.Status.Conditions, v1.ConditionDegraded, metav1.ConditionTrue, v1.ReasonMassRemoval)
	for i := range 5 {
		f.node(fmt.Sprint("n", i), fmt.Sprint("u", i))
	}
	f.step(time.Hour)
	f.pass(grid)
	f.expectTook()
	f.expectCondition(grid.Status.Conditions, v1.ConditionDegraded, metav1.ConditionFalse, v1.ReasonAsDesired)
}

// TestFewUnitsGo without an approval: a tenth of them a day, however slowly, and whether or not the controller
// restarts.
func TestFewUnitsGo(t *testing.T) {
	f, grid := sites(t, 60, nil)
	for i := range 3 {
		f.node(fmt.Sprint("n", 2*i), "")
		f.node(fmt.Sprint("n", 2*i+1), "")
		f.pass(grid)
		f.step(6 * time.Minute)
		f.pass(grid)
		if i == 2 {
			f.expectTook()
			f.expectCondition(grid.Status.Conditions, v1.ConditionDegraded, metav1.ConditionTrue, v1.ReasonMassRemoval)
			break
		}
		f.expectTook(fmt.Sprint("delete demo-u", 2*i), fmt.Sprint("delete demo-u", 2*i+1))
		f.restart()
	}
	f.step(24 * time.Hour)
	f.pass(grid)
	f.expectTook("delete demo-u4", "delete demo-u5")
}

// TestNoGrace: without a grace time units that vanish one after the other are counted together all the same.
func TestNoGrace(t *testing.T) {
	f, grid := sites(t, 30, &v1.Removal{GraceSeconds: ptr.To[int32](0), MaxUnits: ptr.To(intstr.FromInt32(4))})
	for i := range 10 {
		f.node(fmt.Sprint("n", i), "")
		f.pass(grid)
	}
	if took := f.took(); len(took) != 4 {
		t.Errorf("got the writes %q", took)
	}
	f.expectCondition(grid.Status.Conditions, v1.ConditionDegraded, metav1.ConditionTrue, v1.ReasonMassRemoval)
}

func TestRetain(t *testing.T) {
	f, grid := sites(t, 3, &v1.Removal{Policy: v1.RemovalRetain})
	for i := range 3 {
		f.node(fmt.Sprint("n", i), "")
	}
	for range 3 {
		f.step(time.Hour)
		f.pass(grid)
	}
	f.expectTook()
	if state := grid.Status.States["u1"]; state.Phase != v1.UnitRetained || grid.Status.Units != 0 {
		t.Errorf("got the state %+v of %d units", state, grid.Status.Units)
	}
	f.expectCondition(grid.Status.Conditions, v1.ConditionDegraded, metav1.ConditionFalse, v1.ReasonAsDesired)
}

// TestChangedKey: a typing error in gridUniqKey that is a legal key takes no site down, and moves none.
func TestChangedKey(t *testing.T) {
	f, grid := sites(t, 10, nil)
	// of the same name under both keys
	f.note("n0", &nodeState{labels: map[string]string{"zone1": "u0", "zone2": "u0"}})
	f.update(grid, func() { grid.Spec.GridUniqKey = "zone2" })
	for range 3 {
		f.step(time.Hour)
		f.pass(grid)
	}
	f.restart()
	f.pass(grid)
	f.expectTook()
	f.expectCondition(grid.Status.Conditions, v1.ConditionDegraded, metav1.ConditionTrue, v1.ReasonMassRemoval,
		"from zone1 to zone2", "10 units", "=10-")
	if grid.Status.GridUniqKey != "zone1" || grid.Status.Units != 10 {
		t.Errorf("got %d units of %s", grid.Status.Units, grid.Status.GridUniqKey)
	}
	approval := f.approval(grid)

	// It is mended.
	f.update(grid, func() { grid.Spec.GridUniqKey = "zone1" })
	f.pass(grid)
	f.expectTook()
	f.expectCondition(grid.Status.Conditions, v1.ConditionDegraded, metav1.ConditionFalse, v1.ReasonAsDesired)

	// It is meant. What was approved of was another edit.
	f.update(grid, func() { grid.Spec.GridUniqKey = "zone2" })
	f.approve(grid, approval)
	f.pass(grid)
	f.expectTook()
	f.approve(grid, f.approval(grid))
	f.mu.Lock()
	clear(f.nodes)
	f.nodes["n0"] = map[string]string{"zone1": "u0", "zone2": "u0"}
	f.mu.Unlock()
	f.pass(grid)
	f.expectTook("apply demo-u0")
	if selector := f.deployment("demo-u0").Spec.Template.Spec.NodeSelector; !maps.Equal(selector, map[string]string{
		"zone2": "u0",
	}) {
		t.Errorf("got the node selector %v", selector)
	}
	f.restart() // what was approved is in the status
	f.step(time.Hour)
	f.pass(grid)
	f.pass(grid)
	if f.names() != "demo-u0" {
		t.Errorf("left: %s", f.names())
	}
}

func TestRemovalLimit(t *testing.T) {
	for _, test := range []struct {
		max   intstr.IntOrString
		units int
		want  int
	}{
		{intstr.FromString("10%"), 5, 1}, {intstr.FromString("10%"), 99, 9}, {intstr.FromString("0%"), 99, 1},
		{intstr.FromInt32(0), 9, 1}, {intstr.FromInt32(7), 5, 7}, {intstr.FromString("nonsense"), 1000, 1},
		{intstr.FromString("100%"), 12, 12},
	} {
		if got := (removal{max: test.max}).limit(test.units); got != test.want {
			t.Errorf("%s of %d: got %d, want %d", test.max.String(), test.units, got, test.want)
		}
	}
	if a, b := token([]string{"a", "b"}), token([]string{"b", "a"}); a != b ||
		slices.Contains([]string{token([]string{"a", "c"}), token([]string{"a"})}, a) {
		t.Error("an approval is for the units that it was given for, in whatever order")
	}
}
