package gridcontroller

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
)

// halfway makes a grid in the middle of a rollout: the site lab has the change, and east and west have not.
func halfway(t *testing.T) (*fixture, *v1.DeploymentGrid) {
	t.Helper()
	t.Parallel()
	f, grid := demo(t, threeSites, rollingIn(named("canary", "lab"), named("rest")))
	f.rolls(grid, threeSites...)
	f.template(grid, other)
	f.expectImages("demo", onlyLab)
	return f, grid
}

// threeSites are the sites of that grid, onlyLab are their images then.
var (
	threeSites = in("lab east west")
	onlyLab    = map[string]string{"lab": "two", "east": "i", "west": "i"}
)

// TestDeletedWorkloads: each comes back with the revision of its site.
func TestDeletedWorkloads(t *testing.T) {
	f, grid := halfway(t)
	f.delete(f.deployment("demo-east"))
	f.delete(f.deployment("demo-lab"))
	f.passes(grid)
	f.passes(grid)
	f.expectImages("demo", onlyLab)
}

// TestRemovedRollout: all sites get the change at once, and a rollout that is given again is adopted.
func TestRemovedRollout(t *testing.T) {
	f, grid := halfway(t)
	f.update(grid, func() { grid.Spec.Rollout = nil })
	f.passes(grid)
	f.expectImages("demo", map[string]string{"lab": "two", "east": "two", "west": "two"})
	if grid.Status.Rollout != nil || grid.Status.UpdateRevision == "" ||
		grid.Status.CurrentRevision != grid.Status.UpdateRevision {
		f.Errorf("got %+v", grid.Status)
	}
	f.ready("demo", threeSites...)
	f.update(grid, func() { grid.Spec.Rollout = inWaves(named("all")) })
	f.rolls(grid, threeSites...) // the annotation is written
	f.expectPhase(grid, v1.RolloutComplete, "")
}

// TestNoHistory: revisions that sites have are kept all the same.
func TestNoHistory(t *testing.T) {
	f, grid := halfway(t)
	f.update(grid, func() { grid.Spec.RevisionHistoryLimit = ptr.To[int32](0) })
	f.passes(grid)
	if got := f.revisions(); len(got) != 2 {
		f.Errorf("got the revisions %q, and sites have two", got)
	}
	f.completes(grid, threeSites...)
	if got := f.revisions(); len(got) != 1 {
		f.Errorf("got the revisions %q", got)
	}
}

// TestDeletedRevision: sites that have it stay as they are until they get another one.
func TestDeletedRevision(t *testing.T) {
	f, grid := halfway(t)
	f.delete(&appsv1.ControllerRevision{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Name: grid.Status.CurrentRevision,
	}})
	f.restart()
	f.passes(grid)
	f.expectImages("demo", onlyLab)
	f.expect(grid, "Degraded=True SitesFailed", "east, west",
		"ControllerRevision "+grid.Status.CurrentRevision+" is gone")
	f.completes(grid, threeSites...)
}

// TestHeldWorkload: its site is deferred.
func TestHeldWorkload(t *testing.T) {
	f, grid := halfway(t)
	f.edit("demo-east", func(d *appsv1.Deployment) { d.Annotations[v1.AnnotationHold] = "" })
	f.passes(grid)
	if f.expectSite(grid, "east", v1.SiteHeld); grid.Status.Rollout.Deferred != 1 {
		f.Errorf("got %+v", grid.Status.Rollout)
	}
}

// TestEmptyWaves: a wave without sites waits for an approval, and a condition names what has no effect.
func TestEmptyWaves(t *testing.T) {
	f, grid := halfway(t)
	f.update(grid, func() {
		grid.Spec.Rollout.Waves = []v1.Wave{
			named("canary", "lba"), named("first", "lab", "east"), named("second", "east", "west"),
			named("rest"),
		}
		grid.Spec.Overrides = []v1.Override{{
			Name: "big", Sites: v1.SiteSelector{Names: []string{"hz-*"}}, Replicas: ptr.To[int32](5),
		}}
	})
	f.passes(grid)
	f.expectPhase(grid, v1.RolloutAwaitingApproval, "the wave's sites select none")
	f.expect(grid, "SpecWarning=True NoEffect", "spec.rollout.waves[canary] has no site",
		"spec.overrides[big] selects no site",
		"more than one of spec.rollout.waves names east; the first one counts")
	f.expectImages("demo", map[string]string{"east": "i", "west": "i"})
}

// TestOverrideOfOneSite: what is wrong with one site's override stops no other site.
func TestOverrideOfOneSite(t *testing.T) {
	f, grid := halfway(t)
	f.update(grid, func() {
		grid.Spec.Rollout.MaxFailures = ptr.To(intstr.FromInt32(1))
		grid.Spec.Overrides = []v1.Override{{
			Name: "odd", Sites: v1.SiteSelector{Names: []string{"east"}},
			Images: map[string]string{"none": "x"},
		}}
	})
	for range 5 {
		f.step(10 * time.Minute)
		f.ready("demo", threeSites...)
		f.passes(grid)
	}
	f.expectImages("demo", map[string]string{"lab": "two", "east": "i", "west": "two"})
	if state := f.expectSite(grid, "east", v1.SiteFailed); state.Reason != v1.ReasonInvalidTemplate {
		f.Errorf("got %+v", state)
	}
}

// TestDeletedGridInARollout: nothing more is done to its workloads.
func TestDeletedGridInARollout(t *testing.T) {
	f, grid := halfway(t)
	f.took()
	grid.Finalizers = []string{"example.org/x"}
	if err := f.client.Update(f.Context(), grid); err != nil {
		f.Fatal(err)
	}
	f.delete(grid)
	f.tries(grid)
	f.expectTook("delete demo")
}

// TestShortOutage: an outage fails no site, and the rollout goes on after it.
func TestShortOutage(t *testing.T) {
	f, grid := halfway(t)
	f.lose(threeSites...)
	f.pass(grid)
	f.expectPhase(grid, v1.RolloutOutage, "3 of the 3 sites")
	f.nodesIn(threeSites...)
	f.passes(grid)
	f.expectImages("demo", onlyLab)
}

// TestOrphansGoInWaves: those of a deleted grid of the same name are taken over wave by wave.
func TestOrphansGoInWaves(t *testing.T) {
	sites := in("lab east west")
	waves := rollingIn(named("canary", "lab"), named("rest"))
	f, grid := demo(t, sites, waves)
	f.completes(grid, sites...)
	// kubectl delete dg demo --cascade=orphan
	for _, site := range sites {
		f.edit("demo-"+site, func(d *appsv1.Deployment) { d.OwnerReferences = nil })
	}
	list := &appsv1.ControllerRevisionList{}
	if err := f.client.List(f.Context(), list); err != nil {
		t.Fatal(err)
	}
	for i := range list.Items {
		list.Items[i].OwnerReferences = nil
		if err := f.client.Update(f.Context(), &list.Items[i]); err != nil {
			t.Fatal(err)
		}
	}
	f.delete(grid)
	f.reconcile(grid)
	again := deploymentGrid("demo", other)
	again.UID = types.UID("again")
	waves(again)
	f.create(again)
	f.passes(again)
	f.expectImages("demo", map[string]string{"east": "i", "west": "i"})
}

// TestOneRefusalIsOne: what was not tried has not failed.
func TestOneRefusalIsOne(t *testing.T) {
	sites := numbered(20)
	f, grid := demo(t, sites, func(grid *v1.DeploymentGrid) {
		grid.Spec.Rollout = &v1.Rollout{
			MaxFailures: ptr.To(intstr.FromInt32(2)),
			Waves:       []v1.Wave{{Name: "all", MaxUnavailable: ptr.To(intstr.FromInt32(10))}},
		}
	})
	f.completes(grid, sites...)
	f.failOn("apply demo-u000", invalid("spec.selector")) // or an admission policy of this one site
	f.template(grid, other)
	f.expectPhase(grid, v1.RolloutProgressing, "")
}

// TestResumeAcceptsAConflict: a site whose name is taken can be accepted, and the others go on.
func TestResumeAcceptsAConflict(t *testing.T) {
	f, grid := demo(t, in("a b c"), rollingIn(named("all")))
	theirs := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "demo-a", UID: "theirs"}}
	f.create(theirs)
	for range 2 { // the new grid waits for a, and so does the change
		f.rolls(grid, "b", "c")
		f.step(time.Hour)
		f.passes(grid)
		f.expectPhase(grid, v1.RolloutHalted, "1 failed")
		f.template(grid, other)
	}
	f.step(time.Hour)
	f.passes(grid)
	f.expectPhase(grid, v1.RolloutHalted, "1 failed")
	f.resume(grid)
	f.completes(grid, "b", "c")
	f.expectImages("demo", map[string]string{"b": "two", "c": "two"})
}

// TestOverrideLosesItsNodes: labels of nodes do not scale more sites than may vanish.
func TestOverrideLosesItsNodes(t *testing.T) {
	sites := in("a b c d")
	f, grid := demo(t, nil, rollingIn(named("canary", "lab"), named("rest")), func(grid *v1.DeploymentGrid) {
		grid.Spec.Template = raw(with(`"replicas":1`))
		grid.Spec.Overrides = []v1.Override{{Name: "big", Sites: v1.SiteSelector{
			NodeSelector: &v1.NodeSelector{MatchLabels: map[string]string{"size": "big"}},
		}, Replicas: ptr.To[int32](5), Images: map[string]string{"c": "gpu"}}}
	})
	for _, site := range sites {
		f.note("node-"+site, &nodeState{labels: map[string]string{"zone1": site, "size": "big"}})
	}
	f.passes(grid)
	f.nodesIn(sites...) // kubectl label nodes --all size-
	f.passes(grid)
	for _, site := range sites {
		if d := f.deployment("demo-" + site); *d.Spec.Replicas != 5 {
			t.Errorf("%s: scaled to %d, image %s within a second, in spite of waves", site, *d.Spec.Replicas,
				d.Spec.Template.Spec.Containers[0].Image)
		}
	}
}

// TestOnDeleteWaits: a revision that no pod runs is not complete.
func TestOnDeleteWaits(t *testing.T) {
	template := with(`"serviceName":"s","updateStrategy":{"type":"OnDelete"}`)
	grid := &v1.StatefulSetGrid{ObjectMeta: objectMeta("db"), Spec: v1.WorkloadGridSpec{
		GridUniqKey: "zone1", Template: raw(template), Rollout: inWaves(named("canary", "lab"), named("rest")),
	}}
	f := newFixture(t, grid)
	f.nodesIn("lab", "east")
	passes := func() {
		f.passes(grid)
		for _, site := range in("lab east") {
			s := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "db-" + site}}
			f.get(s)
			s.Status = appsv1.StatefulSetStatus{
				ObservedGeneration: s.Generation,
				Replicas:           1, ReadyReplicas: 1, AvailableReplicas: 1, CurrentReplicas: 1,
			}
			f.updateStatus(s)
		}
	}
	passes()
	f.passes(grid)
	f.update(grid, func() { grid.Spec.Template = raw(strings.Replace(template, `"image":"i"`, `"image":"broken"`, 1)) })
	passes()
	passes()
	f.passes(grid)
	if grid.Status.Rollout.Phase == v1.RolloutComplete {
		t.Errorf("no pod anywhere runs the change, and it is Complete; warning: %v", grid.Status.Conditions)
	}
}

// TestCrashLoopIsNoProof: pods that are ready now and then make no progress, and prove nothing.
func TestCrashLoopIsNoProof(t *testing.T) {
	canary := named("canary", "lab")
	canary.Soak = &metav1.Duration{Duration: 30 * time.Minute}
	f, grid := demo(t, in("lab east"), rollingIn(canary, named("rest")))
	f.rolls(grid, "lab", "east")
	f.template(grid, other)
	for range 20 { // ready for 2 s of every 5 minutes
		f.ready("demo", "lab")
		f.pass(grid)
		f.step(2 * time.Second)
		f.report("demo-lab", appsv1.DeploymentStatus{Replicas: 1, UpdatedReplicas: 1})
		f.pass(grid)
		f.step(5 * time.Minute)
		f.pass(grid)
	}
	f.expectImages("demo", map[string]string{"east": "i"})
}

// TestAtOnceOutlivesARewrite of the spec by the controller itself.
func TestAtOnceOutlivesARewrite(t *testing.T) {
	canary := named("canary", "lab")
	canary.Approval = v1.ApprovalManual
	sites := in("lab east west")
	f, grid := demo(t, sites, rollingIn(canary, named("rest")), func(grid *v1.DeploymentGrid) {
		grid.Spec.AutoDeleteUnusedTemplate = true
		grid.Spec.TemplatePool = map[string]v1.Template{"a": raw(plain)}
		grid.Spec.DefaultTemplateName = "a"
	})
	f.rolls(grid, sites...)
	first := grid.Status.CurrentRevision
	f.update(grid, func() {
		grid.Spec.TemplatePool = map[string]v1.Template{"b": raw(other)}
		grid.Spec.DefaultTemplateName = "b"
	})
	f.rolls(grid, "lab")
	f.annotate(grid, v1.AnnotationApproved, grid.Status.Rollout.Awaits)
	f.completes(grid, sites...)
	f.expectImages("demo", map[string]string{"lab": "two", "east": "two", "west": "two"})
	// kubectl grid rollout undo --at-once: Restore keeps templates of the pool that the revision does not have
	f.update(grid, func() {
		grid.Spec.TemplatePool = map[string]v1.Template{"a": raw(plain), "b": raw(other)}
		grid.Spec.DefaultTemplateName = "a"
		grid.Annotations = map[string]string{v1.AnnotationAtOnce: fmt.Sprintf("%s/%d", first, grid.Generation+1)}
	})
	f.reconcile(grid)
	f.update(grid, func() {}) // the API server counts a generation, as the pool has changed
	f.completes(grid, sites...)
	f.expectImages("demo", map[string]string{"lab": "i", "east": "i", "west": "i"})
}

// TestLossIsApprovedLate: a change scales all sites to 0, and a person approves of that hours later. No site has failed
// until then.
func TestLossIsApprovedLate(t *testing.T) {
	t.Parallel()
	f, grid := demo(t, threeSites, rollingIn(named("all")), func(grid *v1.DeploymentGrid) {
		grid.Spec.Template = raw(with(`"replicas":1`))
	})
	f.completes(grid, threeSites...)
	f.template(grid, `{"replicas":0,`+other[1:])
	for range 8 {
		f.step(30 * time.Minute)
		f.passes(grid)
	}
	f.expectPhase(grid, v1.RolloutProgressing, "east: the loss that the change means for it waits for an approval")
	f.expect(grid, "Degraded=True MassRemoval", "are to be scaled to 0")
	f.restart()
	f.passes(grid)
	f.expectPhase(grid, v1.RolloutProgressing, "waits for an approval")
	f.approve(grid, f.approval(grid))
	f.passes(grid)
	f.expectImages("demo", map[string]string{"east": "two"})
}

// TestKeyIsMendedLate: a site is about to get a change when somebody misspells gridUniqKey, and notices hours later. It
// has not failed.
func TestKeyIsMendedLate(t *testing.T) {
	t.Parallel()
	for _, key := range []string{"zone", "not a key"} {
		f, grid := demo(t, threeSites, rollingIn(named("all")))
		f.completes(grid, threeSites...)
		f.update(grid, func() { grid.Spec.Template = raw(other) })
		f.pass(grid)
		f.expectImages("demo", map[string]string{"east": "i"})
		f.update(grid, func() { grid.Spec.GridUniqKey = key })
		f.passes(grid)
		f.step(3 * time.Hour)
		f.passes(grid)
		f.update(grid, func() { grid.Spec.GridUniqKey = "zone1" })
		f.passes(grid)
		f.expectPhase(grid, v1.RolloutProgressing, "waits for east")
		f.expectImages("demo", map[string]string{"east": "two", "lab": "i"})
	}
}

// TestHotfixDuringARestart: a person changes the image of a site that does not work while the controller restarts. For
// a moment it is ready with that, which proves nothing.
func TestHotfixDuringARestart(t *testing.T) {
	f, grid := halfway(t)
	f.edit("demo-lab", func(d *appsv1.Deployment) { d.Spec.Template.Spec.Containers[0].Image = "hotfix" })
	f.ready("demo", "lab")
	f.restart()
	f.pass(grid)
	f.report("demo-lab", appsv1.DeploymentStatus{Replicas: 1, UpdatedReplicas: 1})
	f.passes(grid)
	f.expectImages("demo", onlyLab)
	f.ready("demo", "lab")
	f.step(10 * time.Second)
	f.passes(grid)
	f.expectImages("demo", map[string]string{"lab": "two", "east": "two"})
}

// TestErrorOfAPass: the revisions cannot be read for hours. The grid says why nothing happens, and no site fails when
// they can again.
func TestErrorOfAPass(t *testing.T) {
	t.Parallel()
	f, grid := demo(t, threeSites, rollingIn(named("all")))
	f.completes(grid, threeSites...)
	f.update(grid, func() { grid.Spec.Template = raw(other) })
	f.pass(grid)
	f.failOn("list revisions", errors.New("no connection"))
	f.update(grid, func() { grid.Spec.RevisionHistoryLimit = ptr.To[int32](5) })
	f.tries(grid)
	f.step(3 * time.Hour)
	f.tries(grid)
	f.expect(grid, "Degraded=True SyncFailed", "no connection")
	f.failing(nil)
	f.passes(grid)
	f.expectPhase(grid, v1.RolloutProgressing, "waits for east")
	f.expectImages("demo", map[string]string{"east": "two", "lab": "i"})
}
