package gridcontroller

import (
	"fmt"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
)

// TestOrphansGoInWaves: those of a deleted grid of the same name are taken over wave by wave.
func TestOrphansGoInWaves(t *testing.T) {
	grid := deploymentGrid("demo", plain)
	grid.Spec.Rollout = inWaves(named("canary", "lab"), named("rest"))
	f := newFixture(t, grid)
	units := []string{"lab", "east", "west"}
	f.nodesIn(units...)
	f.completes(grid, units...)
	// kubectl delete dg demo --cascade=orphan
	for _, unit := range units {
		d := f.deployment("demo-" + unit)
		d.OwnerReferences = nil
		if err := f.client.Update(f.Context(), d); err != nil {
			t.Fatal(err)
		}
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
	if err := f.client.Delete(f.Context(), grid); err != nil {
		t.Fatal(err)
	}
	f.reconcile(grid)
	anew := deploymentGrid("demo", other)
	anew.UID = types.UID("anew")
	anew.Spec.Rollout = inWaves(named("canary", "lab"), named("rest"))
	if err := f.client.Create(f.Context(), anew); err != nil {
		t.Fatal(err)
	}
	f.renewing()
	f.passes(anew)
	f.expectImages("demo", map[string]string{"east": "i", "west": "i"})
}

// TestOneRefusalIsOne: what was not tried has not failed.
func TestOneRefusalIsOne(t *testing.T) {
	grid := deploymentGrid("demo", plain)
	grid.Spec.Rollout = &v1.Rollout{
		MaxFailures: ptr.To(intstr.FromInt32(2)),
		Waves:       []v1.Wave{{Name: "all", MaxUnavailable: ptr.To(intstr.FromInt32(10))}},
	}
	f := newFixture(t, grid)
	var units []string
	for i := range 20 {
		unit := fmt.Sprintf("u%02d", i)
		units = append(units, unit)
		f.node("n-"+unit, unit)
	}
	f.completes(grid, units...)
	f.failing(func(call string) error {
		if call == "apply demo-u00" { // an immutable field, or an admission policy of this one site
			return invalid("spec.selector")
		}
		return nil
	})
	f.update(grid, func() { grid.Spec.Template = raw(other) })
	f.passes(grid)
	f.expectPhase(grid, v1.RolloutProgressing, "")
}

// TestResumeAcceptsAConflict: a unit whose name is taken can be accepted, and the others go on.
func TestResumeAcceptsAConflict(t *testing.T) {
	grid := deploymentGrid("demo", plain)
	grid.Spec.Rollout = inWaves(named("all"))
	theirs := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "demo-a", UID: "theirs"}}
	f := newFixture(t, grid, theirs)
	units := []string{"a", "b", "c"}
	f.nodesIn(units...)
	f.completes(grid, "b", "c")
	f.update(grid, func() { grid.Spec.Template = raw(other) })
	f.passes(grid)
	f.expectPhase(grid, v1.RolloutHalted, "1 failed")
	f.update(grid, func() {
		grid.Generation--
		at := grid.Status.Rollout.HaltTime.UTC().Format(time.RFC3339)
		grid.Annotations = map[string]string{v1.AnnotationResumed: at}
	})
	f.completes(grid, "b", "c")
	f.expectImages("demo", map[string]string{"b": "two", "c": "two"})
}

// TestRemovalIsApprovedOnce: the same units that vanish again ask again.
func TestRemovalIsApprovedOnce(t *testing.T) {
	grid := deploymentGrid("demo", plain)
	f := newFixture(t, grid)
	f.nodesIn("a", "b", "c", "d", "e", "f")
	f.passes(grid)
	vanish := func() {
		for _, unit := range []string{"a", "b", "c"} {
			f.node("node-"+unit, "")
		}
		f.passes(grid)
	}
	vanish()
	f.expectCondition(grid.Status.Conditions, v1.ConditionDegraded, metav1.ConditionTrue, v1.ReasonMassRemoval)
	f.update(grid, func() {
		grid.Generation--
		grid.Annotations = map[string]string{v1.AnnotationApproveRemoval: f.approval(grid)}
	})
	f.passes(grid)
	f.step(6 * time.Minute)
	f.passes(grid)
	if f.names() != "demo-d demo-e demo-f" {
		t.Fatal(f.names())
	}
	for _, unit := range []string{"a", "b", "c"} { // the sites are opened again
		f.node("node-"+unit, unit)
	}
	f.passes(grid)
	f.step(90 * 24 * time.Hour)
	f.passes(grid)
	f.restart()
	f.passes(grid)
	vanish() // half a year later nodes register again without their labels
	f.step(6 * time.Minute)
	f.passes(grid)
	if f.names() != "demo-a demo-b demo-c demo-d demo-e demo-f" {
		t.Errorf("removed, and nobody approved of it this time: %s", f.names())
	}
}

// TestHeldIsNotRemoved: a workload that somebody holds outlives its unit.
func TestHeldIsNotRemoved(t *testing.T) {
	grid := deploymentGrid("demo", plain)
	f := newFixture(t, grid)
	f.node("n1", "east")
	f.node("n2", "west")
	f.passes(grid)
	d := f.deployment("demo-east")
	d.Annotations[v1.AnnotationHold] = "forensics, do not touch"
	if err := f.client.Update(f.Context(), d); err != nil {
		t.Fatal(err)
	}
	f.passes(grid)
	f.node("n1", "")
	f.passes(grid)
	f.step(6 * time.Minute)
	f.passes(grid)
	if !strings.Contains(f.names(), "demo-east") {
		t.Errorf("the held workload was deleted: %s", f.names())
	}
}

// TestServiceIsNotHeld: a hold on a ServiceGrid does not keep its Service from being changed.
func TestServiceIsNotHeld(t *testing.T) {
	grid := serviceGrid("echo", `{"selector":{"app":"x"},"ports":[{"port":80}]}`)
	grid.Annotations = map[string]string{v1.AnnotationHold: "hotfix"}
	f := newFixture(t, grid)
	f.node("n1", "east")
	f.pass(grid)
	f.update(grid, func() {
		grid.Annotations = nil
		grid.Spec.Template = raw(`{"selector":{"app":"x"},"ports":[{"port":81}]}`)
	})
	for range 5 {
		f.pass(grid)
	}
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "echo-svc"}}
	f.get(s)
	if s.Spec.Ports[0].Port != 81 && grid.Status.Conditions[0].Status == metav1.ConditionTrue {
		t.Errorf("port %d, and the grid says %q", s.Spec.Ports[0].Port, grid.Status.Conditions[0].Message)
	}
}

// TestOverrideLosesItsNodes: labels of nodes do not scale more units than may vanish.
func TestOverrideLosesItsNodes(t *testing.T) {
	grid := deploymentGrid("demo", plain)
	grid.Spec.Template = raw(strings.Replace(plain, `{"selector"`, `{"replicas":1,"selector"`, 1))
	grid.Spec.Overrides = []v1.Override{{Name: "big", Units: v1.UnitSelector{
		NodeSelector: &v1.NodeSelector{MatchLabels: map[string]string{"size": "big"}},
	}, Replicas: ptr.To[int32](5), Images: map[string]string{"c": "gpu"}}}
	grid.Spec.Rollout = inWaves(named("canary", "lab"), named("rest"))
	f := newFixture(t, grid)
	units := []string{"a", "b", "c", "d"}
	for _, unit := range units {
		f.hear("n-"+unit, map[string]string{"zone1": unit, "size": "big"})
	}
	f.passes(grid)
	for _, unit := range units {
		f.hear("n-"+unit, map[string]string{"zone1": unit}) // kubectl label nodes --all size-
	}
	f.passes(grid)
	for _, unit := range units {
		if d := f.deployment("demo-" + unit); *d.Spec.Replicas != 5 {
			t.Errorf("%s: scaled to %d, image %s within a second, in spite of waves", unit, *d.Spec.Replicas,
				d.Spec.Template.Spec.Containers[0].Image)
		}
	}
}

// TestKeyWithoutStatus: a change of gridUniqKey waits also where the status was lost.
func TestKeyWithoutStatus(t *testing.T) {
	grid := deploymentGrid("demo", plain)
	f := newFixture(t, grid)
	for _, unit := range []string{"a", "b", "c"} {
		f.hear("n-"+unit, map[string]string{"zone1": unit, "zone2": unit})
	}
	f.passes(grid)
	f.get(grid)
	grid.Status = v1.WorkloadGridStatus{}
	if err := f.client.Status().Update(f.Context(), grid); err != nil {
		t.Fatal(err)
	}
	f.update(grid, func() { grid.Spec.GridUniqKey = "zone2" })
	f.restart()
	f.passes(grid)
	if got := f.deployment("demo-a").Spec.Template.Spec.NodeSelector; got["zone1"] == "" {
		t.Errorf("moved to %v without an approval, though its label says %s", got, "zone1")
	}
}

// TestOnDeleteWaits: a revision that no pod runs is not complete.
func TestOnDeleteWaits(t *testing.T) {
	template := `{"serviceName":"s","updateStrategy":{"type":"OnDelete"},` + plain[1:]
	grid := &v1.StatefulSetGrid{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "db", UID: "u", Generation: 1},
		Spec: v1.WorkloadGridSpec{
			GridUniqKey: "zone1", Template: raw(template), Rollout: inWaves(named("canary", "lab"), named("rest")),
		},
	}
	f := newFixture(t, grid)
	f.nodesIn("lab", "east")
	ready := func() {
		for _, unit := range []string{"lab", "east"} {
			s := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "db-" + unit}}
			f.get(s)
			s.Status = appsv1.StatefulSetStatus{
				ObservedGeneration: s.Generation,
				Replicas:           1, ReadyReplicas: 1, AvailableReplicas: 1, CurrentReplicas: 1,
			}
			if err := f.client.Status().Update(f.Context(), s); err != nil {
				t.Fatal(err)
			}
		}
	}
	f.passes(grid)
	ready()
	f.passes(grid)
	f.update(grid, func() { grid.Spec.Template = raw(strings.Replace(template, `"image":"i"`, `"image":"broken"`, 1)) })
	f.passes(grid)
	ready()
	f.passes(grid)
	ready()
	f.passes(grid)
	if grid.Status.Rollout.Phase == v1.RolloutComplete {
		t.Errorf("no pod anywhere runs the change, and it is Complete; warning: %v", grid.Status.Conditions)
	}
}

// TestCrashLoopIsNoProof: pods that are ready now and then prove nothing.
func TestCrashLoopIsNoProof(t *testing.T) {
	grid := deploymentGrid("demo", plain)
	grid.Spec.ProgressDeadlineSeconds = ptr.To[int32](600)
	grid.Spec.Rollout = inWaves(named("canary", "lab"), named("rest"))
	canary := &grid.Spec.Rollout.Waves[0]
	canary.Soak = &metav1.Duration{Duration: 30 * time.Minute}
	f := newFixture(t, grid)
	f.nodesIn("lab", "east")
	f.passes(grid)
	f.ready("demo", "lab", "east")
	f.passes(grid)
	f.renewing()
	f.update(grid, func() { grid.Spec.Template = raw(other) })
	f.passes(grid)
	for range 20 { // ready for 2 s of every 5 minutes
		f.ready("demo", "lab")
		f.pass(grid)
		f.step(2 * time.Second)
		d := f.deployment("demo-lab")
		d.Status.ReadyReplicas, d.Status.AvailableReplicas = 0, 0
		if err := f.client.Status().Update(f.Context(), d); err != nil {
			t.Fatal(err)
		}
		f.pass(grid)
		f.step(5 * time.Minute)
		f.pass(grid)
		if f.image("demo-east") == "two" {
			t.Errorf("the canary was ready for 1 %% of its soak, and the next wave begins: %+v", grid.Status.Rollout)
			return
		}
	}
}

// TestSlowRename: nodes that lose their label one after the other take no more units down than may vanish in a day.
func TestSlowRename(t *testing.T) {
	grid := deploymentGrid("demo", plain)
	f := newFixture(t, grid)
	for i := range 10 {
		f.node(fmt.Sprint("n", i), fmt.Sprint("u", i))
	}
	f.passes(grid)
	for i := range 9 {
		f.node(fmt.Sprint("n", i), "") // the node is there, and its pods run
		f.passes(grid)
		f.step(6 * time.Minute)
		f.passes(grid)
	}
	if f.names() != "" {
		t.Logf("left: %s", f.names())
	}
	if len(strings.Fields(f.names())) < 9 {
		t.Errorf("9 of 10 sites removed without an approval; nodes are there and ready")
	}
}

// TestAtOnceOutlivesARewrite of the spec by the controller itself.
func TestAtOnceOutlivesARewrite(t *testing.T) {
	grid := deploymentGrid("demo", plain)
	grid.Spec.AutoDeleteUnusedTemplate = true
	grid.Spec.TemplatePool = map[string]v1.Template{"a": raw(plain)}
	grid.Spec.DefaultTemplateName = "a"
	canary := named("canary", "lab")
	canary.Approval = v1.ApprovalManual
	grid.Spec.Rollout = inWaves(canary, named("rest"))
	f := newFixture(t, grid)
	units := []string{"lab", "east", "west"}
	f.nodesIn(units...)
	f.passes(grid)
	f.ready("demo", units...)
	f.passes(grid)
	first := grid.Status.CurrentRevision
	f.update(grid, func() {
		grid.Spec.TemplatePool = map[string]v1.Template{"b": raw(other)}
		grid.Spec.DefaultTemplateName = "b"
	})
	f.passes(grid)
	f.update(grid, func() {
		grid.Generation--
		grid.Annotations = map[string]string{v1.AnnotationApproved: grid.Status.Rollout.Awaits}
	})
	f.completes(grid, units...)
	f.expectImages("demo", map[string]string{"lab": "two", "east": "two", "west": "two"})
	// kubectl grid rollout undo --at-once: Restore keeps templates of the pool that the revision does not have
	f.update(grid, func() {
		grid.Spec.TemplatePool = map[string]v1.Template{"a": raw(plain), "b": raw(other)}
		grid.Spec.DefaultTemplateName = "a"
		grid.Annotations = map[string]string{v1.AnnotationAtOnce: fmt.Sprintf("%s/%d", first, grid.Generation+1)}
	})
	f.reconcile(grid)
	f.get(grid)
	grid.Generation++ // the API server does so, as the pool has changed
	if err := f.client.Update(f.Context(), grid); err != nil {
		t.Fatal(err)
	}
	f.completes(grid, units...)
	f.expectImages("demo", map[string]string{"lab": "i", "east": "i", "west": "i"})
}

// TestOutageProvesNothing: all nodes silent for one pass begin no wave.
func TestOutageProvesNothing(t *testing.T) {
	grid := deploymentGrid("demo", plain)
	grid.Spec.Rollout = inWaves(named("canary", "lab"), named("eu", "eu1", "eu2"), named("rest"))
	f := newFixture(t, grid)
	units := []string{"lab", "eu1", "eu2", "us1", "us2"}
	f.nodesIn(units...)
	f.passes(grid)
	f.ready("demo", units...)
	f.passes(grid)
	f.renewing()
	f.update(grid, func() { grid.Spec.Template = raw(other) })
	f.passes(grid)
	f.expectImages("demo", map[string]string{"lab": "two", "eu1": "i", "us1": "i"})
	for _, unit := range units {
		f.lose("node-"+unit, unit)
	}
	f.pass(grid)
	f.nodesIn(units...)
	f.passes(grid)
	f.expectImages("demo", map[string]string{"eu1": "i", "us1": "i"})
}
