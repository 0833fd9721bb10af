package gridcontroller

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
)

// newSites makes a grid with this many sites, and a node in each and one in none.
func newSites(t *testing.T, count int, removal *v1.Removal) (*fixture, *v1.DeploymentGrid) {
	t.Helper()
	f, grid := demo(t, numbered(count), longDeadline, func(grid *v1.DeploymentGrid) { grid.Spec.Removal = removal })
	f.node("other", "")
	f.pass(grid)
	f.pass(grid)
	if took := f.took(); len(took) != count {
		t.Fatalf("got the writes %q", took)
	}
	return f, grid
}

// anyNumber lets any number of sites vanish.
func anyNumber() *v1.Removal { return &v1.Removal{MaxSites: ptr.To(intstr.FromString("100%"))} }

// vanish takes the nodes of sites out of all sites.
func (f *fixture) vanish(sites ...string) {
	for _, site := range sites {
		f.node("node-"+site, "")
	}
}

// hide tells the reconcilers that the nodes of sites are gone, which is not so.
func (f *fixture) hide(sites ...string) {
	for _, site := range sites {
		f.note("node-"+site, nil)
	}
}

// waits are three passes, an hour before each.
func (f *fixture) waits(grid *v1.DeploymentGrid) {
	f.Helper()
	for range 3 {
		f.step(time.Hour)
		f.pass(grid)
	}
}

// approval is what condition Degraded asks for.
func (f *fixture) approval(grid *v1.DeploymentGrid) string {
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
	f.annotate(grid, v1.AnnotationApproveRemoval, token)
}

// TestMassRemovalWaits: someone takes the label from all nodes. Nothing goes until it is approved, in the words that
// are told, for the sites that are told.
func TestMassRemovalWaits(t *testing.T) {
	f, grid := newSites(t, 20, nil)
	sites := numbered(20)
	f.vanish(sites[:15]...)
	f.waits(grid)
	f.expectTook()
	f.expect(grid, "Degraded=True MassRemoval", "15 sites have no node", "u000, u001, u002, u003, u004 and 10 more",
		"only 2 of 20", v1.AnnotationApproveRemoval+"=15-")
	f.expectEvent(f.told(), "Warning", v1.ReasonMassRemoval)
	if state := f.expectSite(grid, "u003", v1.SiteRemoving); state.Reason != v1.ReasonMassRemoval {
		t.Errorf("got the state %+v", state)
	}
	// A wrong approval, and one that was good for fewer sites, are none. Nor does a restart forget.
	before := f.approval(grid)
	f.approve(grid, "15")
	f.pass(grid)
	f.vanish(sites[15])
	f.approve(grid, before)
	f.restart()
	f.step(time.Hour)
	f.pass(grid)
	f.expectTook()
	f.expect(grid, "Degraded=True MassRemoval", "=16-")

	f.approve(grid, f.approval(grid))
	f.failOn("delete demo-u01", errBroken) // half of it goes wrong, and another controller goes on
	f.pass(grid)
	f.restart()
	f.failing(nil)
	f.step(10 * time.Minute)
	f.pass(grid)
	f.pass(grid)
	f.expectNames("demo-u016 demo-u017 demo-u018 demo-u019")
	f.expectWell(grid)

	// The approval is not good for another time.
	f.vanish(sites[16:19]...)
	f.pass(grid)
	f.step(time.Hour)
	f.pass(grid)
	f.expectNames("demo-u016 demo-u017 demo-u018 demo-u019")
}

// TestRemovalIsApprovedOnce: nodes that come back need no approval, and the same sites that vanish again ask again.
func TestRemovalIsApprovedOnce(t *testing.T) {
	f, grid := newSites(t, 6, nil)
	sites := numbered(6)
	f.vanish(sites...)
	f.pass(grid)
	f.expect(grid, "Degraded=True MassRemoval")
	f.nodesIn(sites...)
	f.step(time.Hour)
	f.pass(grid)
	f.expectTook()
	f.expectWell(grid)

	f.vanish(sites[:3]...)
	f.pass(grid)
	f.approve(grid, f.approval(grid))
	f.pass(grid)
	f.step(6 * time.Minute)
	f.pass(grid)
	f.expectNames("demo-u003 demo-u004 demo-u005")
	f.nodesIn(sites...) // the sites are opened again
	f.pass(grid)
	f.step(90 * 24 * time.Hour)
	f.pass(grid)
	f.restart()
	f.pass(grid)
	f.vanish(sites[:3]...) // half a year later nodes register again without their labels
	f.pass(grid)
	f.step(6 * time.Minute)
	f.pass(grid)
	f.expectNames("demo-u000 demo-u001 demo-u002 demo-u003 demo-u004 demo-u005")
}

// TestFewSitesGo without an approval: a tenth of them a day, however slowly, and whether or not the controller
// restarts.
func TestFewSitesGo(t *testing.T) {
	f, grid := newSites(t, 60, nil)
	sites := numbered(6)
	for i := range 3 {
		f.vanish(sites[2*i], sites[2*i+1])
		f.pass(grid)
		f.step(6 * time.Minute)
		f.pass(grid)
		if i == 2 {
			f.expectTook()
			f.expect(grid, "Degraded=True MassRemoval")
			break
		}
		f.expectTook("delete demo-"+sites[2*i], "delete demo-"+sites[2*i+1])
		f.restart()
	}
	f.step(24 * time.Hour)
	f.pass(grid)
	f.expectTook("delete demo-u004", "delete demo-u005")
}

// TestNoGrace: without a grace time sites that vanish one after the other are counted together all the same.
func TestNoGrace(t *testing.T) {
	f, grid := newSites(t, 30, &v1.Removal{GraceSeconds: ptr.To[int32](0), MaxSites: ptr.To(intstr.FromInt32(4))})
	for _, site := range numbered(10) {
		f.vanish(site)
		f.pass(grid)
	}
	if took := f.took(); len(took) != 4 {
		t.Errorf("got the writes %q", took)
	}
	f.expect(grid, "Degraded=True MassRemoval")
}

func TestRetain(t *testing.T) {
	f, grid := newSites(t, 3, &v1.Removal{Policy: v1.RemovalRetain})
	f.vanish(numbered(3)...)
	f.waits(grid)
	f.expectTook()
	f.expectSite(grid, "u001", v1.SiteRetained)
	if grid.Status.Sites != 0 {
		t.Errorf("got %d sites", grid.Status.Sites)
	}
	f.expectWell(grid)
}

// TestChangedKey: a typing error in gridUniqKey that is a legal key takes no site down, and moves none, also where the
// status was lost.
func TestChangedKey(t *testing.T) {
	f, grid := newSites(t, 10, nil)
	both := map[string]string{"zone1": "u000", "zone2": "u000"} // a site of the same name under both keys
	f.note("node-u000", &nodeState{labels: both})
	f.update(grid, func() { grid.Spec.GridUniqKey = "zone2" })
	expectHeld := func() {
		t.Helper()
		f.expectTook()
		f.expect(grid, "Degraded=True MassRemoval", "from zone1 to zone2", "10 sites", "=10-")
		f.expect(grid, "Ready=False MassRemoval", "so nothing is changed")
	}
	f.waits(grid)
	f.restart()
	f.pass(grid)
	expectHeld()
	if grid.Status.GridUniqKey != "zone1" || grid.Status.Sites != 10 {
		t.Errorf("got %d sites of %s", grid.Status.Sites, grid.Status.GridUniqKey)
	}
	grid.Status = v1.WorkloadGridStatus{}
	f.updateStatus(grid)
	f.restart()
	f.pass(grid)
	expectHeld()
	approval := f.approval(grid)

	// It is mended.
	f.update(grid, func() { grid.Spec.GridUniqKey = "zone1" })
	f.pass(grid)
	f.expectTook()
	f.expectWell(grid)

	// It is meant. What was approved of was another edit.
	f.update(grid, func() { grid.Spec.GridUniqKey = "zone2" })
	f.approve(grid, approval)
	f.pass(grid)
	f.expectTook()
	f.approve(grid, f.approval(grid))
	f.mu.Lock()
	f.nodes = map[string]map[string]string{"node-u000": both}
	f.mu.Unlock()
	f.pass(grid)
	f.expectTook("apply demo-u000")
	selector := f.deployment("demo-u000").Spec.Template.Spec.NodeSelector
	if !maps.Equal(selector, map[string]string{"zone2": "u000"}) {
		t.Errorf("got the node selector %v", selector)
	}
	f.restart() // what was approved is in the status
	f.step(time.Hour)
	f.pass(grid)
	f.pass(grid)
	f.expectNames("demo-u000")
}

func TestRemovalLimit(t *testing.T) {
	for _, test := range []struct {
		max   intstr.IntOrString
		sites int
		want  int
	}{
		{intstr.FromString("10%"), 5, 1}, {intstr.FromString("10%"), 99, 9}, {intstr.FromString("0%"), 99, 1},
		{intstr.FromInt32(0), 9, 1}, {intstr.FromInt32(7), 5, 7}, {intstr.FromString("nonsense"), 1000, 1},
		{intstr.FromString("100%"), 12, 12},
	} {
		if got := lossLimit(&test.max, test.sites); got != test.want {
			t.Errorf("%s of %d: got %d, want %d", test.max.String(), test.sites, got, test.want)
		}
	}
	if a, b := approvalToken([]string{"a", "b"}), approvalToken([]string{"b", "a"}); a != b ||
		slices.Contains([]string{approvalToken([]string{"a", "c"}), approvalToken([]string{"a"})}, a) {
		t.Error("an approval is for the sites that it was given for, in whatever order")
	}
}

// TestHold: a workload that somebody holds stays as it is, also when its site vanishes, and is told of; it is synced
// again when it is not held.
func TestHold(t *testing.T) {
	f, grid := demo(t, in("east west"))
	f.rolls(grid, "east", "west")
	for reason, says := range map[string]string{"hotfix": "hotfix", "": "no reason is given"} {
		f.edit("demo-east", func(d *appsv1.Deployment) {
			d.Annotations[v1.AnnotationHold] = reason
			d.Spec.Template.Spec.Containers[0].Image = "hotfix"
		})
		f.passes(grid)
		if state := f.expectSite(grid, "east", v1.SiteHeld); state.Message != says {
			t.Errorf("got %+v", state)
		}
		f.vanish("east")
		f.passes(grid)
		f.step(6 * time.Minute)
		f.passes(grid)
		f.expectImages("demo", map[string]string{"east": "hotfix"})
		f.nodesIn("east")
		f.edit("demo-east", func(d *appsv1.Deployment) { delete(d.Annotations, v1.AnnotationHold) })
		f.passes(grid)
		f.expectImages("demo", map[string]string{"east": "i"})
	}
}

// TestListWithoutNodes: a list of nodes that comes back empty, or without most, deletes nothing within the grace
// time, and is forgotten when the nodes return.
func TestListWithoutNodes(t *testing.T) {
	for name, keeps := range map[string]int{"none": 0, "few": 1} {
		t.Run(name, func(t *testing.T) {
			f, grid := newSites(t, 6, anyNumber())
			sites := numbered(6)
			f.hide(sites[keeps:]...)
			f.pass(grid)
			if int(grid.Status.Sites) != keeps {
				t.Errorf("%d sites, want %d", grid.Status.Sites, keeps)
			}
			for range 4 {
				f.step(time.Minute)
				f.pass(grid)
			}
			f.expectTook()
			f.nodesIn(sites...)
			f.waits(grid)
			f.expectTook()
			if grid.Status.Sites != 6 {
				t.Errorf("%d sites, want 6", grid.Status.Sites)
			}
			for site, state := range grid.Status.States {
				if state.Phase == v1.SiteRemoving || state.RemovalTime != nil {
					t.Errorf("site %s: %+v", site, state)
				}
			}
		})
	}
}

// TestGraceTimeOfALie: nodes that have been missing for longer than the grace time are asked for before anything is
// deleted, and so nothing is; that cannot be asked, either; and what is gone in truth goes.
func TestGraceTimeOfALie(t *testing.T) {
	f, grid := newSites(t, 6, anyNumber())
	f.hide(numbered(6)...)
	f.pass(grid)
	f.step(time.Hour)
	f.pass(grid)
	f.expectTook()
	state := f.expectSite(grid, "u004", v1.SiteRemoving)
	if state.Reason != v1.ReasonSyncFailed || state.Message != "Deployment demo-u004 is not removed: node node-u004 "+
		"is in the site, which the watch of nodes has not shown yet" {
		t.Errorf("got the state %+v", state)
	}
	// An API server that does not answer, and one that knows no node at all.
	for _, change := range []func(){func() { f.failLists = errBroken }, func() { f.failLists = nil; clear(f.nodes) }} {
		f.mu.Lock()
		change()
		f.mu.Unlock()
		f.step(time.Hour)
		f.pass(grid)
		f.expectTook()
	}
	// One that knows another one.
	f.node("other", "")
	if again := f.reconcile(grid); again <= 0 || again > 10*time.Second {
		t.Errorf("asks to be called again after %s", again)
	}
	f.step(10 * time.Second)
	f.pass(grid)
	if took := f.took(); len(took) != 6 {
		t.Errorf("got the writes %q", took)
	}
}
