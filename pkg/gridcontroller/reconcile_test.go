package gridcontroller

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
)

// TestOneApplyPerUnit: SuperEdge's controller sent one create per node, and swallowed the conflicts.
func TestOneApplyPerUnit(t *testing.T) {
	grid := deploymentGrid("demo", plain)
	f := newFixture(t, grid)
	for node, unit := range map[string]string{"n1": "east", "n2": "east", "n3": "east", "n4": "west", "n5": ""} {
		f.node(node, unit)
	}
	f.pass(grid)
	f.expectTook("apply demo-east", "apply demo-west")
	if grid.Status.Units != 2 || grid.Status.ReadyUnits != 0 || grid.Status.States["east"].Phase != v1.UnitProgressing {
		t.Errorf("got the status %+v", grid.Status)
	}
	f.expectEvent(f.told(), v1.ReasonApplied, "2 units", "east, west")

	for _, name := range []string{"demo-east", "demo-west"} {
		d := f.deployment(name)
		d.Status = appsv1.DeploymentStatus{
			ObservedGeneration: d.Generation, Replicas: 1, UpdatedReplicas: 1, ReadyReplicas: 1, AvailableReplicas: 1,
		}
		if err := f.client.Status().Update(t.Context(), d); err != nil {
			t.Fatal(err)
		}
	}
	f.pass(grid)
	if grid.Status.Units != 2 || grid.Status.ReadyUnits != 2 || grid.Status.ObservedGeneration != 1 {
		t.Errorf("got the status %+v", grid.Status)
	}
	f.expectCondition(grid.Status.Conditions, v1.ConditionReady, metav1.ConditionTrue, v1.ReasonReady)
	f.expectCondition(grid.Status.Conditions, v1.ConditionProgressing, metav1.ConditionFalse, v1.ReasonAsDesired)
	f.expectCondition(grid.Status.Conditions, v1.ConditionDegraded, metav1.ConditionFalse, v1.ReasonAsDesired)

	// Nothing more is written, not even the status, also not by a controller that has just started.
	f.expectTook()
	for range 3 {
		f.pass(grid)
	}
	f.restart()
	f.pass(grid)
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.calls) > 0 {
		t.Errorf("writes in a steady state: %q", f.calls)
	}
}

// TestRestartWithManyUnits: a controller that has just started finds more units than it writes in one pass, all as they
// should be. It reads one of them to learn that, and its status never says anything else.
func TestRestartWithManyUnits(t *testing.T) {
	grid := deploymentGrid("demo", plain)
	f := newFixture(t, grid)
	const units = perPass + 2
	for i := range units {
		f.node(fmt.Sprintf("n%d", i), fmt.Sprintf("unit-%d", i))
	}
	for range units/perPass + 1 {
		f.pass(grid)
	}
	for i := range units {
		d := f.deployment(fmt.Sprintf("demo-unit-%d", i))
		d.Status = appsv1.DeploymentStatus{
			ObservedGeneration: d.Generation, Replicas: 1, UpdatedReplicas: 1, ReadyReplicas: 1, AvailableReplicas: 1,
		}
		if err := f.client.Status().Update(t.Context(), d); err != nil {
			t.Fatal(err)
		}
	}
	f.pass(grid)
	if grid.Status.ReadyUnits != units {
		t.Fatalf("%d of %d units are ready", grid.Status.ReadyUnits, units)
	}
	f.restart()
	f.workloads["DeploymentGrid"].cache = condensedCache{f.client}
	f.mu.Lock()
	f.calls, f.reads = nil, 0
	f.mu.Unlock()
	for range 5 {
		f.pass(grid)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.calls) > 0 {
		t.Errorf("writes after a restart: %q", f.calls)
	}
	if f.reads > 1 {
		t.Errorf("%d of %d units were read past the cache", f.reads, units)
	}
}

func TestDriftIsReverted(t *testing.T) {
	grid := deploymentGrid("demo", plain)
	f := newFixture(t, grid)
	f.node("n1", "east")
	f.pass(grid)
	f.took()

	d := f.deployment("demo-east")
	d.Spec.Template.Spec.Containers[0].Image = "theirs"
	d.Spec.Replicas = ptr.To(int32(7)) // an autoscaler's: the template says nothing of it
	d.Annotations = map[string]string{"injected": "x"}
	if err := f.client.Update(t.Context(), d, client.FieldOwner("someone")); err != nil {
		t.Fatal(err)
	}
	f.pass(grid)
	f.expectTook("apply demo-east")
	d = f.deployment("demo-east")
	if d.Spec.Template.Spec.Containers[0].Image != "i" || *d.Spec.Replicas != 7 || d.Annotations["injected"] != "x" {
		t.Errorf("got %+v", d)
	}

	// What others own is no difference.
	d.Spec.Replicas = ptr.To(int32(9))
	d.Annotations["injected"] = "y"
	if err := f.client.Update(t.Context(), d, client.FieldOwner("someone")); err != nil {
		t.Fatal(err)
	}
	f.pass(grid)
	f.expectTook()

	// Nor is a field that left the template forgotten.
	f.update(grid, func() {
		grid.Spec.Template = raw(strings.Replace(plain, `"selector"`, `"minReadySeconds":5,"selector"`, 1))
	})
	f.pass(grid)
	if f.deployment("demo-east").Spec.MinReadySeconds != 5 {
		t.Error("minReadySeconds did not come")
	}
	f.update(grid, func() { grid.Spec.Template = raw(plain) })
	f.pass(grid)
	if f.deployment("demo-east").Spec.MinReadySeconds != 0 {
		t.Error("minReadySeconds did not go")
	}
}

// TestMissingTemplateConcernsItsUnit: with SuperEdge's controller it blocked all of them, for good after 15
// retries.
func TestMissingTemplateConcernsItsUnit(t *testing.T) {
	grid := deploymentGrid("demo", plain)
	grid.Spec.Templates = map[string]v1.TemplateName{"east": "canary"}
	f := newFixture(t, grid)
	f.node("n1", "east")
	f.node("n2", "west")
	for range 30 {
		f.pass(grid)
	}
	f.expectTook("apply demo-west")
	f.expectCondition(grid.Status.Conditions, v1.ConditionDegraded, metav1.ConditionTrue, v1.ReasonUnitsFailed,
		"1 of 2 units", "east", v1.ReasonTemplateNotFound, `"canary"`)
	told := f.told()
	f.expectEvent(told, "Warning", v1.ReasonTemplateNotFound, "east", "canary")
	if len(told) != 2 {
		t.Errorf("the same was told again: %q", told)
	}
	f.update(grid, func() { grid.Spec.TemplatePool = map[string]v1.Template{"canary": raw(plain)} })
	f.pass(grid)
	f.expectTook("apply demo-east")
	f.expectCondition(grid.Status.Conditions, v1.ConditionDegraded, metav1.ConditionFalse, v1.ReasonAsDesired)
	if grid.Status.States["east"].Template != "canary" {
		t.Errorf("got the state %+v", grid.Status.States["east"])
	}

	// And if it goes away again, what it made stays.
	f.update(grid, func() { grid.Spec.TemplatePool = nil })
	f.pass(grid)
	f.expectTook()
	if f.names() != "demo-east demo-west" {
		t.Errorf("got %s", f.names())
	}
}

// TestConflict: grids a and a-b both make a-b-c of the units b-c and c; SuperEdge's controller let them fight,
// and said nothing. The second one takes another name, and keeps it.
func TestConflict(t *testing.T) {
	first, second := deploymentGrid("a", plain), deploymentGrid("a-b", plain)
	f := newFixture(t, first, second)
	f.node("n1", "b-c")
	f.pass(first)
	f.expectTook("apply a-b-c")
	f.node("n2", "c")
	f.pass(second)
	f.pass(second)
	alternative := v1.DeploymentGridKind.AlternativeChildName("a-b", "c")
	f.expectTook("apply a-b-b-c", "apply "+alternative)
	if owner := metav1.GetControllerOf(f.deployment("a-b-c")); owner.Name != "a" {
		t.Errorf("it belongs to %s", owner.Name)
	}
	d := f.deployment(alternative)
	if d.Labels[v1.LabelGridUnit] != "c" || d.Spec.Template.Spec.NodeSelector["zone1"] != "c" {
		t.Errorf("got %+v", d.Labels)
	}
	f.expectCondition(second.Status.Conditions, v1.ConditionDegraded, metav1.ConditionFalse, v1.ReasonAsDesired)

	// It stays also when the name is free, the controller is another one, and its labels were removed.
	if err := f.client.Delete(t.Context(), f.deployment("a-b-c")); err != nil {
		t.Fatal(err)
	}
	delete(d.Labels, v1.LabelGridUnit)
	if err := f.client.Update(t.Context(), d, client.FieldOwner("someone")); err != nil {
		t.Fatal(err)
	}
	f.took()
	f.restart()
	f.step(2 * lastRetry)
	f.pass(second)
	f.expectTook("apply " + alternative)
	if unit := f.deployment(alternative).Labels[v1.LabelGridUnit]; unit != "c" {
		t.Errorf("got the label %q", unit)
	}
	f.step(time.Hour)
	f.pass(second)
	f.expectTook()
}

// TestUnitWithoutAName: a unit whose name cannot be part of one is made with another one; one that has this name by
// nature goes first.
func TestUnitWithoutAName(t *testing.T) {
	grid := deploymentGrid("demo", plain)
	f := newFixture(t, grid)
	name := v1.DeploymentGridKind.AlternativeChildName("demo", "Zone_A")
	f.node("n1", "Zone_A")
	f.node("n2", "east")
	f.pass(grid)
	f.expectTook("apply demo-east", "apply "+name)
	f.node("n3", strings.TrimPrefix(name, "demo-"))
	f.pass(grid)
	f.pass(grid)
	if told := grid.Status.States["Zone_A"]; told.Reason != v1.ReasonNameConflict {
		t.Errorf("got the state %+v", told)
	}
}

// TestLeftOver: a grid that was made anew waits for the child of the one before it, which is nothing to warn of.
func TestLeftOver(t *testing.T) {
	grid := deploymentGrid("demo", plain)
	old := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Name: "demo-east", Labels: map[string]string{v1.LabelGridSelector: "demo"},
		OwnerReferences: []metav1.OwnerReference{
			{
				APIVersion: v1.GroupVersion.String(), Kind: "DeploymentGrid", Name: "demo", UID: "another",
				Controller: ptr.To(true),
			},
		},
	}}
	f := newFixture(t, grid, old)
	f.node("n1", "east")
	f.pass(grid)
	f.expectTook()
	f.expectCondition(grid.Status.Conditions, v1.ConditionDegraded, metav1.ConditionFalse, v1.ReasonAsDesired)
	f.expectCondition(grid.Status.Conditions, v1.ConditionProgressing, metav1.ConditionTrue, v1.ReasonUnitsProgressing,
		"east")
	if told := f.told(); len(told) > 0 {
		t.Errorf("got the events %q", told)
	}
	if err := f.client.Delete(t.Context(), old); err != nil {
		t.Fatal(err)
	}
	f.took()
	f.pass(grid) // of the deletion's event
	f.expectTook("apply demo-east")
}

// TestRefusedTemplate is tried on one unit, not on all; once it is taken all follow at once.
func TestRefusedTemplate(t *testing.T) {
	grid := deploymentGrid("demo", plain)
	f := newFixture(t, grid)
	const units = 60
	for i := range units {
		f.node(fmt.Sprint("n", i), fmt.Sprintf("u%03d", i))
	}
	f.failing(func(call string) error {
		if strings.HasPrefix(call, "apply ") {
			return invalid("spec.selector")
		}
		return nil
	})
	tried := map[string]bool{}
	attempts := 0
	for end := f.clock.Now().Add(time.Minute); f.clock.Now().Before(end); {
		again := f.reconcile(grid)
		for _, call := range f.took() {
			tried[call] = true
			attempts++
		}
		f.step(min(max(again, 100*time.Millisecond), time.Second))
	}
	if attempts > 8 || len(tried) < 4 {
		t.Errorf("%d attempts on %d units within a minute", attempts, len(tried))
	}
	f.get(grid)
	f.expectCondition(grid.Status.Conditions, v1.ConditionDegraded, metav1.ConditionTrue, v1.ReasonUnitsFailed,
		"60 of 60", "refused this template for unit u", "field is immutable")
	f.failing(nil)
	f.took()
	f.step(2 * lastRetry)
	f.pass(grid)
	f.pass(grid)
	if took := f.took(); len(took) != units {
		t.Errorf("%d writes", len(took))
	}
}

// TestRefusedForOneUnit: what one child's own state does not go with stops no other unit.
func TestRefusedForOneUnit(t *testing.T) {
	grid := deploymentGrid("demo", plain)
	f := newFixture(t, grid)
	for i := range 20 {
		f.node(fmt.Sprint("n", i), fmt.Sprintf("u%02d", i))
	}
	f.failing(func(call string) error {
		if call == "apply demo-u00" { // the first one that is tried
			return invalid("spec.selector")
		}
		return nil
	})
	f.pass(grid)
	f.step(time.Second)
	f.pass(grid)
	if names := strings.Fields(f.names()); len(names) != 19 {
		t.Errorf("%d units have their Deployment", len(names))
	}
	f.expectCondition(grid.Status.Conditions, v1.ConditionDegraded, metav1.ConditionTrue, v1.ReasonUnitsFailed,
		"1 of 20", "u00: Rejected")
}

// TestSlowWebhook: a pass ends when its time is over, however many units are left.
func TestSlowWebhook(t *testing.T) {
	grid := deploymentGrid("demo", plain)
	f := newFixture(t, grid)
	for i := range 80 {
		f.node(fmt.Sprint("n", i), fmt.Sprintf("u%03d", i))
	}
	f.failing(func(call string) error {
		if strings.HasPrefix(call, "apply ") {
			f.step(time.Second)
		}
		return nil
	})
	begin := f.clock.Now()
	again := f.reconcile(grid)
	// those in flight, one after the other
	if took := f.clock.Now().Sub(begin); took > passBudget+(atOnce+2)*time.Second {
		t.Errorf("a pass took %s", took)
	}
	if again <= 0 || again > time.Second {
		t.Errorf("asks to be called again after %s", again)
	}
	for range 80 {
		f.reconcile(grid)
	}
	if names := strings.Fields(f.names()); len(names) != 80 {
		t.Errorf("%d units have their Deployment", len(names))
	}
}

// TestLimits: what the controller's flags do not allow is reported, and nothing is done.
func TestLimits(t *testing.T) {
	grid := deploymentGrid("demo", plain)
	f := newFixture(t, grid)
	f.node("n1", "east")
	f.node("n2", "west")
	r := f.workloads["DeploymentGrid"]
	r.limits = Limits{UnitKeys: []string{"region"}}
	f.pass(grid)
	f.expectCondition(grid.Status.Conditions, v1.ConditionDegraded, metav1.ConditionTrue, v1.ReasonNotAllowed,
		"--allowed-unit-keys", "region")
	r.limits = Limits{UnitKeys: []string{"region", "zone1"}, UnitsPerGrid: 1}
	f.pass(grid)
	f.expectCondition(grid.Status.Conditions, v1.ConditionDegraded, metav1.ConditionTrue, v1.ReasonNotAllowed,
		"makes 2 units", "--max-units-per-grid")
	f.expectTook()
	r.limits.UnitsPerGrid = 2
	f.pass(grid)
	f.expectTook("apply demo-east", "apply demo-west")
}

// TestSpecWarning: what is probably a typing error.
func TestSpecWarning(t *testing.T) {
	grid := deploymentGrid("demo", plain)
	grid.Spec.TemplatePool = map[string]v1.Template{"default": raw(plain)}
	grid.Spec.Templates = map[string]v1.TemplateName{"esat": "default"}
	f := newFixture(t, grid)
	f.node("n1", "east")
	f.pass(grid)
	f.expectCondition(grid.Status.Conditions, v1.ConditionSpecWarning, metav1.ConditionTrue, v1.ReasonNoEffect, "esat",
		"spec.templatePool.default is never used")
	f.update(grid, func() { grid.Spec.TemplatePool, grid.Spec.Templates = nil, nil })
	f.pass(grid)
	if meta.FindStatusCondition(grid.Status.Conditions, v1.ConditionSpecWarning) != nil {
		t.Error("the warning stays")
	}
}

// TestAdoption: what is labelled for the grid and has a wanted name; nothing else is changed, and nothing that
// was not made by the grid is ever deleted. SuperEdge's controller adopted by label, then deleted.
func TestAdoption(t *testing.T) {
	object := func(name, label string) *appsv1.Deployment {
		d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(name)}}
		if label != "" {
			d.Labels = map[string]string{v1.LabelGridSelector: label}
		}
		return d
	}
	grid := deploymentGrid("demo", plain)
	f := newFixture(t, grid, object("demo-east", "demo"), object("demo-west", ""), object("demo-north", "other"),
		object("demo-gone", "demo"), object("unrelated", "demo"))
	for _, unit := range []string{"east", "west", "north"} {
		f.node(unit, unit)
	}
	f.pass(grid)
	f.step(time.Hour)
	f.pass(grid)
	f.expectTook("apply demo-east")
	if owner := metav1.GetControllerOf(f.deployment("demo-east")); owner == nil || owner.Name != "demo" {
		t.Errorf("demo-east belongs to %v", owner)
	}
	if f.names() != "demo-east demo-gone demo-north demo-west unrelated" {
		t.Errorf("got %s", f.names())
	}
	f.expectCondition(grid.Status.Conditions, v1.ConditionDegraded, metav1.ConditionTrue, v1.ReasonUnitsFailed,
		"2 of 3", "north", "west", v1.LabelGridSelector+"=demo")
}

func TestGraceTime(t *testing.T) {
	grid := deploymentGrid("demo", plain)
	f := newFixture(t, grid)
	f.node("n1", "east")
	f.node("n2", "west")
	f.pass(grid)
	f.took()
	f.told()

	f.node("n1", "")
	f.pass(grid)
	state := grid.Status.States["east"]
	if state.Phase != v1.UnitRemoving || state.RemovalTime == nil ||
		!state.RemovalTime.Time.Equal(f.clock.Now().Add(5*time.Minute)) {
		t.Errorf("got the state %+v", state)
	}
	if grid.Status.Units != 1 {
		t.Errorf("got %d units", grid.Status.Units)
	}
	f.expectCondition(grid.Status.Conditions, v1.ConditionProgressing, metav1.ConditionTrue, v1.ReasonUnitsProgressing,
		"east", "removed from")
	f.expectEvent(f.told(), "Warning", v1.ReasonUnitVanished, "east", "5m0s")

	// Back in time.
	f.step(4 * time.Minute)
	f.node("n1", "east")
	f.pass(grid)
	if state := grid.Status.States["east"]; state.Phase == v1.UnitRemoving || state.RemovalTime != nil {
		t.Errorf("got the state %+v", state)
	}
	f.expectEvent(f.told(), v1.ReasonUnitReturned, "east")

	// Gone for good; a restart of the controller does not begin the time anew.
	f.node("n1", "")
	f.pass(grid)
	f.step(4 * time.Minute)
	f.restart()
	f.node("n1", "")
	f.node("n2", "west")
	if again := f.reconcile(grid); again <= 0 || again > time.Minute {
		t.Errorf("asks to be called again after %s", again)
	}
	f.expectTook()
	f.step(time.Minute)
	f.pass(grid)
	f.expectTook("delete demo-east")
	f.pass(grid)
	if _, ok := grid.Status.States["east"]; ok || f.names() != "demo-west" {
		t.Errorf("got %s, %+v", f.names(), grid.Status.States)
	}
	f.expectEvent(f.told(), v1.ReasonRemoved, "east")
}

// TestErrorsAreRetriedForEver with a growing pause, and stop no other unit.
func TestErrorsAreRetriedForEver(t *testing.T) {
	grid := deploymentGrid("demo", plain)
	grid.Spec.ProgressDeadlineSeconds = ptr.To[int32](1e6) // nobody makes pods
	f := newFixture(t, grid)
	f.node("n1", "east")
	f.node("n2", "west")
	f.failing(func(call string) error {
		if call == "apply demo-east" {
			return errBroken
		}
		return nil
	})
	attempts := 0
	begin := f.clock.Now()
	for attempts < 40 {
		again := f.reconcile(grid)
		f.reconcile(grid) // events come all the time, and are no reason to try at once
		for _, call := range f.took() {
			if call == "apply demo-east" {
				attempts++
			}
		}
		if again <= 0 || again > 2*lastRetry {
			t.Fatalf("asks to be called again after %s", again)
		}
		f.step(again)
	}
	if took := f.clock.Now().Sub(begin); took < 30*time.Minute {
		t.Errorf("40 attempts within %s", took)
	}
	f.get(grid)
	f.expectCondition(grid.Status.Conditions, v1.ConditionDegraded, metav1.ConditionTrue, v1.ReasonUnitsFailed, "east",
		errBroken.Error())
	if f.names() != "demo-west" {
		t.Errorf("got %s", f.names())
	}
	f.failing(nil)
	f.step(2 * lastRetry)
	f.pass(grid)
	f.expectTook("apply demo-east")
	f.expectCondition(grid.Status.Conditions, v1.ConditionDegraded, metav1.ConditionFalse, v1.ReasonAsDesired)
}

// TestRandomErrors: half of all writes fail while nodes move about and the controller starts anew. In the
// end all is as it should be, and nothing that was wanted all the time was ever deleted.
func TestRandomErrors(t *testing.T) {
	for seed := range uint64(20) {
		random := rand.New(rand.NewPCG(seed, 1))
		grid := deploymentGrid("demo", plain)
		grid.Spec.ProgressDeadlineSeconds = ptr.To[int32](1e6) // nobody makes pods
		grid.Spec.Removal = &v1.Removal{MaxUnits: ptr.To(intstr.FromInt32(9))}
		f := newFixture(t, grid)
		f.node("fixed", "fixed")
		var deleted []string
		f.failing(func(call string) error {
			if name, ok := strings.CutPrefix(call, "delete "); ok {
				deleted = append(deleted, name)
			}
			switch random.IntN(6) {
			case 0:
				return apierrors.NewConflict(schema.GroupResource{Resource: "deployments"}, "x", errBroken)
			case 1:
				return apierrors.NewInternalError(errBroken)
			case 2:
				return apierrors.NewTimeoutError("too late", 1)
			}
			return nil
		})
		placed := map[string]string{}
		request := reconcile.Request{NamespacedName: client.ObjectKeyFromObject(grid)}
		for range 100 {
			node, unit := fmt.Sprint("n", random.IntN(4)), []string{"", "east", "west", "north"}[random.IntN(4)]
			f.node(node, unit)
			placed[node] = unit
			if random.IntN(10) == 0 {
				f.restart()
			}
			_, _ = f.workloads["DeploymentGrid"].Reconcile(t.Context(), request) // an error is retried by the queue
			f.step(time.Duration(random.IntN(90)) * time.Second)
		}
		f.failing(nil)
		for range 5 {
			f.step(10 * time.Minute)
			f.reconcile(grid)
		}
		want := map[string]bool{"demo-fixed": true}
		for _, unit := range placed {
			if unit != "" {
				want["demo-"+unit] = true
			}
		}
		if got := f.names(); got != strings.Join(slices.Sorted(maps.Keys(want)), " ") {
			t.Errorf("seed %d: got %s, want %v", seed, got, want)
		}
		if slices.Contains(deleted, "demo-fixed") {
			t.Errorf("seed %d: a wanted Deployment was deleted", seed)
		}
		f.get(grid)
		f.expectCondition(grid.Status.Conditions, v1.ConditionDegraded, metav1.ConditionFalse, v1.ReasonAsDesired)
	}
}

// TestRejection is reported with the API server's message; a change of the template is tried at once.
func TestRejection(t *testing.T) {
	grid := deploymentGrid("demo", plain)
	f := newFixture(t, grid)
	f.node("n1", "east")
	f.failing(func(call string) error {
		if strings.HasPrefix(call, "apply ") {
			return invalid("spec.selector")
		}
		return nil
	})
	for range 5 {
		f.pass(grid)
	}
	f.expectCondition(grid.Status.Conditions, v1.ConditionDegraded, metav1.ConditionTrue, v1.ReasonUnitsFailed,
		v1.ReasonRejected, "spec.selector: field is immutable")
	f.failing(nil)
	f.took()
	f.update(grid, func() { grid.Spec.Template = raw(`{"paused":true,` + plain[1:]) })
	f.pass(grid)
	f.expectTook("apply demo-east")
}

func TestBadKey(t *testing.T) {
	grid := deploymentGrid("demo", plain)
	f := newFixture(t, grid)
	f.node("n1", "east")
	f.pass(grid)
	f.took()
	for _, key := range []string{"", "no way"} {
		f.update(grid, func() { grid.Spec.GridUniqKey = key })
		f.pass(grid)
		f.expectCondition(grid.Status.Conditions, v1.ConditionDegraded, metav1.ConditionTrue, v1.ReasonInvalidKey,
			"spec.gridUniqKey")
		f.expectEvent(f.told(), "Warning", v1.ReasonInvalidKey)
		f.expectTook() // what there is stays
	}
}

func TestNoUnits(t *testing.T) {
	grid := deploymentGrid("demo", plain)
	f := newFixture(t, grid)
	f.pass(grid)
	f.pass(grid)
	f.expectCondition(grid.Status.Conditions, v1.ConditionReady, metav1.ConditionFalse, v1.ReasonNoUnits, "zone1")
	if told := f.told(); len(told) != 1 || !strings.Contains(told[0], v1.ReasonNoUnits) {
		t.Errorf("got the events %q", told)
	}
}

func TestAutoDeleteUnusedTemplate(t *testing.T) {
	grid := deploymentGrid("demo", plain)
	grid.Spec.AutoDeleteUnusedTemplate = true
	grid.Spec.TemplatePool = map[string]v1.Template{"used": raw(plain), "byDefault": raw(plain), "unused": raw(plain)}
	grid.Spec.Templates = map[string]v1.TemplateName{"east": "used"}
	grid.Spec.DefaultTemplateName = "byDefault"
	f := newFixture(t, grid)
	f.node("n1", "east")
	f.pass(grid)
	if len(grid.Spec.TemplatePool) != 2 || !grid.Spec.TemplatePool["unused"].IsZero() {
		t.Errorf("got the pool %v", grid.Spec.TemplatePool)
	}
	f.expectEvent(f.told(), v1.ReasonTemplatesDeleted, "unused")
	f.pass(grid)
	f.expectTook("apply demo-east", "patch demo")
}

// TestDeletedGrid: its children go with it, or stay without it, as the user asked; they are not made again.
func TestDeletedGrid(t *testing.T) {
	grid := deploymentGrid("demo", plain)
	grid.Finalizers = []string{metav1.FinalizerOrphanDependents}
	f := newFixture(t, grid)
	f.node("n1", "east")
	f.pass(grid)
	if err := f.client.Delete(t.Context(), grid); err != nil {
		t.Fatal(err)
	}
	f.took()
	d := f.deployment("demo-east")
	d.OwnerReferences = nil // the garbage collector's work
	if err := f.client.Update(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	f.pass(grid)
	f.expectTook()
	if owner := metav1.GetControllerOf(f.deployment("demo-east")); owner != nil {
		t.Errorf("adopted by %s again", owner.Name)
	}
}

// TestNoAdoptionByADeletedGrid: the cache may not know of the deletion yet.
func TestNoAdoptionByADeletedGrid(t *testing.T) {
	grid := deploymentGrid("demo", plain)
	orphan := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: "demo-east", Labels: map[string]string{v1.LabelGridSelector: "demo"},
		},
	}
	f := newFixture(t, orphan)
	f.node("n1", "east")
	stale := newFixture(t, grid, orphan.DeepCopy())
	r := f.workloads["DeploymentGrid"]
	r.cache = stale.client
	f.reconcile(grid)
	f.expectTook()
}

// TestServiceFollowsEveryChange: SuperEdge's controller compared by containment, so what was removed stayed.
func TestServiceFollowsEveryChange(t *testing.T) {
	grid := serviceGrid("demo",
		`{"selector":{"app":"x","tier":"y"},"ports":[{"name":"a","port":80},{"name":"b","port":81}]}`)
	f := newFixture(t, grid)
	f.node("n1", "east")
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "demo-svc"}}
	f.pass(grid)
	f.get(service)
	if service.Annotations["topologyKeys"] != `["zone1"]` || len(service.Spec.Ports) != 2 {
		t.Errorf("got %+v", service)
	}
	service.Spec.ClusterIP = "10.0.0.1" // as the API server does
	if err := f.client.Update(t.Context(), service, client.FieldOwner("apiserver")); err != nil {
		t.Fatal(err)
	}
	f.update(grid, func() {
		grid.Spec.GridUniqKey = "region"
		grid.Spec.Template = raw(`{"selector":{"app":"x"},"ports":[{"name":"b","port":81}]}`)
		grid.Annotations = map[string]string{"note": "z"}
	})
	f.pass(grid)
	f.get(service)
	if len(service.Spec.Ports) != 1 || service.Spec.Ports[0].Port != 81 || len(service.Spec.Selector) != 1 ||
		service.Spec.ClusterIP != "10.0.0.1" {
		t.Errorf("got %+v", service.Spec)
	}
	if service.Annotations["topologyKeys"] != `["region"]` || service.Annotations["note"] != "z" ||
		service.Labels[v1.LabelGridUniqKey] != "region" {
		t.Errorf("got %+v", service.ObjectMeta)
	}
	f.update(grid, func() { grid.Annotations = nil })
	f.pass(grid)
	f.get(service)
	if _, ok := service.Annotations["note"]; ok {
		t.Error("the annotation note stayed")
	}
	f.took()
	f.pass(grid)
	f.pass(grid)
	f.expectTook()
	f.expectCondition(grid.Status.Conditions, v1.ConditionReady, metav1.ConditionTrue, v1.ReasonReady, "demo-svc")
}

func TestServiceConflict(t *testing.T) {
	grid := serviceGrid("demo", `{"ports":[{"port":80}]}`)
	theirs := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "demo-svc"}}
	f := newFixture(t, grid, theirs)
	f.pass(grid)
	f.expectTook()
	f.expectCondition(grid.Status.Conditions, v1.ConditionDegraded, metav1.ConditionTrue, v1.ReasonNameConflict,
		"demo-svc", "was not made by this grid")
	f.expectEvent(f.told(), v1.ReasonNameConflict)
}

// TestTakeOver: children of SuperEdge's controller, which used updates, lose what leaves the template too.
func TestTakeOver(t *testing.T) {
	grid := deploymentGrid("demo", plain)
	old := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: "demo-east",
			Labels: map[string]string{v1.LabelGridSelector: "demo", "old": "x"},
			OwnerReferences: []metav1.OwnerReference{
				{
					APIVersion: v1.GroupVersion.String(), Kind: "DeploymentGrid", Name: "demo", UID: grid.UID,
					Controller: ptr.To(true),
				},
			},
		},
		Spec: appsv1.DeploymentSpec{MinReadySeconds: 9},
	}
	f := newFixture(t, grid)
	f.node("n1", "east")
	if err := f.client.Create(t.Context(), old, client.FieldOwner(v1.FieldManager)); err != nil {
		t.Fatal(err)
	}
	f.pass(grid)
	f.expectTook("apply demo-east", "patch demo-east")
	d := f.deployment("demo-east")
	if d.Labels["old"] != "" || d.Spec.MinReadySeconds != 0 {
		t.Errorf("got %v, minReadySeconds %d", d.Labels, d.Spec.MinReadySeconds)
	}
	f.pass(grid)
	f.expectTook()
}

// TestSummary: conditions name the first few units, and count the rest.
func TestSummary(t *testing.T) {
	states := map[string]v1.UnitState{}
	for _, unit := range strings.Fields("a b c d e f g h") {
		states[unit] = v1.UnitState{Phase: v1.UnitFailed, Reason: v1.ReasonRejected, Message: "no"}
	}
	states["x"] = v1.UnitState{Phase: v1.UnitReady}
	var status v1.WorkloadGridStatus
	passOf(3, states).summarize(&status)
	f := &fixture{T: t}
	f.expectCondition(status.Conditions, v1.ConditionReady, metav1.ConditionFalse, v1.ReasonUnitsNotReady,
		"8 of 9 units", "a, b, c, d, e and 3 more")
	f.expectCondition(status.Conditions, v1.ConditionDegraded, metav1.ConditionTrue, v1.ReasonUnitsFailed,
		"a, b, c, d, e and 3 more: Rejected: no")
	if status.ReadyUnits != 1 || status.Units != 9 {
		t.Errorf("got %+v", status)
	}
}

func TestProgress(t *testing.T) {
	tests := []struct {
		name, spec, status string
		of                 func(name string, spec, status map[string]any) progress
		complete           bool
	}{
		{
			"replicas left out", `{}`, `{"replicas":1,"updatedReplicas":1,"availableReplicas":1}`, deploymentProgress,
			true,
		},
		{
			"old pods left", `{"replicas":1}`, `{"replicas":2,"updatedReplicas":1,"availableReplicas":1}`,
			deploymentProgress, false,
		},
		{"scaled to none", `{"replicas":0}`, `{}`, deploymentProgress, true},
		{
			"set", `{"replicas":2}`, `{"replicas":2,"updatedReplicas":2,"availableReplicas":2}`, statefulSetProgress,
			true,
		},
		{
			"set updating", `{"replicas":2}`, `{"replicas":2,"updatedReplicas":1,"availableReplicas":2}`,
			statefulSetProgress, false,
		},
		{
			"canary", `{"replicas":2,"updateStrategy":{"rollingUpdate":{"partition":1}}}`,
			`{"replicas":2,"updatedReplicas":1,"availableReplicas":2}`, statefulSetProgress, true,
		},
		{
			"on delete", `{"replicas":2,"updateStrategy":{"type":"OnDelete"}}`, `{"replicas":2,"availableReplicas":2}`,
			statefulSetProgress, true,
		},
		{
			"daemon", `{}`, `{"desiredNumberScheduled":2,"updatedNumberScheduled":2,"numberAvailable":2}`,
			daemonSetProgress, true,
		},
		{
			"daemon unavailable", `{}`, `{"desiredNumberScheduled":2,"updatedNumberScheduled":2,"numberAvailable":1}`,
			daemonSetProgress, false,
		},
	}
	for _, test := range tests {
		if got := test.of("web", parse(t, test.spec), parse(t, test.status)); got.complete != test.complete {
			t.Errorf("%s: got %+v", test.name, got)
		}
	}
}

// passOf is a pass over a grid that has found these states.
func passOf(generation int64, states map[string]v1.UnitState) *pass {
	grid := &v1.DeploymentGrid{ObjectMeta: metav1.ObjectMeta{Generation: generation}}
	grid.Spec.GridUniqKey = "zone1"
	return &pass{grid: grid, spec: &grid.Spec, memory: &gridMemory{}, states: states}
}
