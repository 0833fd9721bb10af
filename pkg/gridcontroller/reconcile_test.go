package gridcontroller

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/gridcontroller/gridchild"
)

// TestOneApplyPerSite: SuperEdge's controller sent one create per node, and swallowed the conflicts.
func TestOneApplyPerSite(t *testing.T) {
	f, grid := demo(t, nil)
	for node, site := range map[string]string{"n1": "east", "n2": "east", "n3": "east", "n4": "west", "n5": ""} {
		f.node(node, site)
	}
	f.pass(grid)
	f.expectTook("apply demo-east", "apply demo-west")
	f.expectSite(grid, "east", v1.SiteProgressing)
	if grid.Status.Sites != 2 || grid.Status.ReadySites != 0 {
		t.Errorf("got the status %+v", grid.Status)
	}
	f.expectEvent(f.told(), v1.ReasonApplied, "2 sites", "east, west")

	f.report("demo-east", running)
	f.report("demo-west", running)
	f.pass(grid)
	if grid.Status.Sites != 2 || grid.Status.ReadySites != 2 || grid.Status.ObservedGeneration != 1 {
		t.Errorf("got the status %+v", grid.Status)
	}
	f.expect(grid, "Ready=True Ready")
	f.expect(grid, "Progressing=False AsDesired")
	f.expectWell(grid)

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

// TestRestartWithManySites: a controller that has just started finds many sites, all as they should be. It reads one of
// them to learn that, and its status never says anything else.
func TestRestartWithManySites(t *testing.T) {
	sites := numbered(258)
	f, grid := demo(t, sites)
	f.pass(grid)
	f.pass(grid)
	for _, site := range sites {
		f.report("demo-"+site, running)
	}
	f.pass(grid)
	if int(grid.Status.ReadySites) != len(sites) {
		t.Fatalf("%d of %d sites are ready", grid.Status.ReadySites, len(sites))
	}
	f.restart()
	f.reconcilers["DeploymentGrid"].cache = condensedCache{f.client}
	f.mu.Lock()
	f.calls, f.reads = nil, 0
	f.mu.Unlock()
	for range 5 {
		f.pass(grid)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.calls) > 0 || f.reads > 2 { // of the grid, and of one child
		t.Errorf("after a restart: the writes %q, and %d of %d sites were read past the cache", f.calls, f.reads,
			len(sites))
	}
}

func TestDriftIsReverted(t *testing.T) {
	f, grid := demo(t, in("east"))
	f.pass(grid)
	f.took()
	f.edit("demo-east", func(d *appsv1.Deployment) {
		d.Spec.Template.Spec.Containers[0].Image = "theirs"
		d.Spec.Replicas = ptr.To(int32(7)) // an autoscaler's: the template says nothing of it
		d.Annotations = map[string]string{"injected": "x"}
	})
	f.pass(grid)
	f.expectTook("apply demo-east")
	d := f.deployment("demo-east")
	if f.image("demo-east") != "i" || *d.Spec.Replicas != 7 || d.Annotations["injected"] != "x" {
		t.Errorf("got %+v", d)
	}

	// What others own is no difference.
	f.edit("demo-east", func(d *appsv1.Deployment) {
		d.Spec.Replicas = ptr.To(int32(9))
		d.Annotations["injected"] = "y"
	})
	f.pass(grid)
	f.expectTook()

	// Nor is a field that left the template forgotten.
	for _, step := range []struct {
		template string
		want     int32
	}{{with(`"minReadySeconds":5`), 5}, {plain, 0}} {
		f.update(grid, func() { grid.Spec.Template = raw(step.template) })
		f.pass(grid)
		if got := f.deployment("demo-east").Spec.MinReadySeconds; got != step.want {
			t.Errorf("minReadySeconds is %d, want %d", got, step.want)
		}
	}
}

// TestMissingTemplateConcernsItsSite: with SuperEdge's controller it blocked all of them, for good after 15
// retries.
func TestMissingTemplateConcernsItsSite(t *testing.T) {
	f, grid := demo(t, in("east west"), func(grid *v1.DeploymentGrid) {
		grid.Spec.Templates = map[string]v1.TemplateName{"east": "canary"}
	})
	for range 30 {
		f.pass(grid)
	}
	f.expectTook("apply demo-west")
	f.expect(grid, "Degraded=True SitesFailed", "1 of 2 sites", "east", v1.ReasonTemplateNotFound,
		"spec.templatePool.canary")
	told := f.told()
	f.expectEvent(told, "Warning", v1.ReasonTemplateNotFound, "east", "canary")
	if len(told) != 2 {
		t.Errorf("the same was told again: %q", told)
	}
	f.update(grid, func() { grid.Spec.TemplatePool = map[string]v1.Template{"canary": raw(plain)} })
	f.pass(grid)
	f.expectTook("apply demo-east")
	f.expectWell(grid)
	if grid.Status.States["east"].Template != "canary" {
		t.Errorf("got the state %+v", grid.Status.States["east"])
	}

	// And if it goes away again, what it made stays.
	f.update(grid, func() { grid.Spec.TemplatePool = nil })
	f.pass(grid)
	f.expectTook()
	f.expectNames("demo-east demo-west")
}

// TestConflict: grids a and a-b both make a-b-c of the sites b-c and c; SuperEdge's controller let them fight,
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
	if d.Labels[v1.LabelGridSite] != "c" || d.Spec.Template.Spec.NodeSelector["zone1"] != "c" {
		t.Errorf("got %+v", d.Labels)
	}
	f.expectWell(second)

	// It stays also when the name is free, the controller is another one, and its labels were removed.
	f.delete(f.deployment("a-b-c"))
	f.edit(alternative, func(d *appsv1.Deployment) { delete(d.Labels, v1.LabelGridSite) })
	f.took()
	f.restart()
	f.step(2 * lastRetry)
	f.pass(second)
	f.expectTook("apply " + alternative)
	if site := f.deployment(alternative).Labels[v1.LabelGridSite]; site != "c" {
		t.Errorf("got the label %q", site)
	}
	f.step(time.Hour)
	f.pass(second)
	f.expectTook()
}

// TestSiteWithoutAName: a site whose name cannot be part of one is made with another one; one that has this name by
// nature goes first.
func TestSiteWithoutAName(t *testing.T) {
	f, grid := demo(t, in("Zone_A east"))
	name := v1.DeploymentGridKind.AlternativeChildName("demo", "Zone_A")
	f.pass(grid)
	f.expectTook("apply demo-east", "apply "+name)
	f.nodesIn(strings.TrimPrefix(name, "demo-"))
	f.pass(grid)
	f.pass(grid)
	if told := grid.Status.States["Zone_A"]; told.Reason != v1.ReasonNameConflict {
		t.Errorf("got the state %+v", told)
	}
}

// ownedBy is a Deployment that a grid of the name demo controls.
func ownedBy(uid types.UID) *appsv1.Deployment {
	return &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Name: "demo-east", Labels: map[string]string{v1.LabelGridSelector: "demo"},
		OwnerReferences: []metav1.OwnerReference{{
			APIVersion: v1.GroupVersion.String(), Kind: "DeploymentGrid", Name: "demo", UID: uid,
			Controller: ptr.To(true),
		}},
	}}
}

// TestLeftOver: a grid that was recreated waits for the child of the one before it, which is nothing to warn of.
func TestLeftOver(t *testing.T) {
	grid, old := deploymentGrid("demo", plain), ownedBy("another")
	f := newFixture(t, grid, old)
	f.nodesIn("east")
	f.pass(grid)
	f.expectTook()
	f.expectWell(grid)
	f.expect(grid, "Progressing=True SitesProgressing", "east")
	if told := f.told(); len(told) > 0 {
		t.Errorf("got the events %q", told)
	}
	f.delete(old)
	f.took()
	f.pass(grid) // of the deletion's event
	f.expectTook("apply demo-east")
}

// TestRefusedTemplate is tried on one site, not on all; once it is taken all follow at once. Another template is tried
// at once.
func TestRefusedTemplate(t *testing.T) {
	sites := numbered(60)
	f, grid := demo(t, sites)
	f.failOn("apply ", invalid("spec.selector"))
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
		t.Errorf("%d attempts on %d sites within a minute", attempts, len(tried))
	}
	f.get(grid)
	f.expect(grid, "Degraded=True SitesFailed", "60 of 60", "refused this template for site u",
		v1.ReasonRejected, "spec.selector: field is immutable")
	f.failing(nil)
	f.step(2 * lastRetry)
	f.pass(grid)
	f.pass(grid)
	if took := f.took(); len(took) != len(sites) {
		t.Errorf("%d writes", len(took))
	}

	f.failOn("apply ", invalid("spec.selector"))
	f.update(grid, func() { grid.Spec.Template = raw(other) })
	f.pass(grid)
	f.failing(nil)
	f.took()
	f.update(grid, func() { grid.Spec.Template = raw(with(`"paused":true`)) })
	f.pass(grid)
	if took := f.took(); len(took) != len(sites) {
		t.Errorf("%d writes of another template", len(took))
	}
}

// TestRefusedForOneSite: what one child's own state does not go with stops no other site.
func TestRefusedForOneSite(t *testing.T) {
	f, grid := demo(t, numbered(20))
	f.failOn("apply demo-u000", invalid("spec.selector")) // the first one that is tried
	f.pass(grid)
	f.step(time.Second)
	f.pass(grid)
	if names := strings.Fields(f.names()); len(names) != 19 {
		t.Errorf("%d sites have their Deployment", len(names))
	}
	f.expect(grid, "Degraded=True SitesFailed", "1 of 20", "u000: Rejected")
}

// TestSlowWebhook: a pass ends when its time is over, however many sites are left.
func TestSlowWebhook(t *testing.T) {
	f, grid := demo(t, numbered(80))
	f.failing(func(call string) error {
		if strings.HasPrefix(call, "apply ") {
			f.step(time.Second)
		}
		return nil
	})
	begin := f.clock.Now()
	again := f.reconcile(grid)
	// those in flight, one after the other
	if took := f.clock.Now().Sub(begin); took > passBudget+(maxWrites+2)*time.Second {
		t.Errorf("a pass took %s", took)
	}
	if again <= 0 || again > time.Second {
		t.Errorf("asks to be called again after %s", again)
	}
	for range 80 {
		f.reconcile(grid)
	}
	if names := strings.Fields(f.names()); len(names) != 80 {
		t.Errorf("%d sites have their Deployment", len(names))
	}
}

// TestLimits: what the controller's flags do not allow is reported, and nothing is done.
func TestLimits(t *testing.T) {
	f, grid := demo(t, in("east west"))
	r := f.reconcilers["DeploymentGrid"]
	r.config.Limits = Limits{SiteKeys: []string{"region"}}
	f.pass(grid)
	f.expect(grid, "Degraded=True NotAllowed", "--allowed-site-keys", "region")
	r.config.Limits = Limits{SiteKeys: []string{"region", "zone1"}, SitesPerGrid: 1}
	f.pass(grid)
	f.expect(grid, "Degraded=True NotAllowed", "makes 2 sites", "--max-sites-per-grid")
	f.expectTook()
	r.config.Limits.SitesPerGrid = 2
	f.pass(grid)
	f.expectTook("apply demo-east", "apply demo-west")
}

// TestSpecWarning: what is probably a typing error.
func TestSpecWarning(t *testing.T) {
	f, grid := demo(t, in("east"), func(grid *v1.DeploymentGrid) {
		grid.Spec.TemplatePool = map[string]v1.Template{"default": raw(plain)}
		grid.Spec.Templates = map[string]v1.TemplateName{"esat": "default"}
	})
	f.pass(grid)
	f.expect(grid, "SpecWarning=True NoEffect", "esat", "spec.templatePool.default is never used")
	f.update(grid, func() { grid.Spec.TemplatePool, grid.Spec.Templates = nil, nil })
	f.pass(grid)
	if meta.FindStatusCondition(grid.Status.Conditions, v1.ConditionSpecWarning) != nil {
		t.Error("the warning stays")
	}
}

// TestAdoption: what is labelled for the grid and has a wanted name; nothing else is changed, and nothing that
// was not made by the grid is ever deleted. SuperEdge's controller adopted by label, then deleted.
func TestAdoption(t *testing.T) {
	grid := deploymentGrid("demo", plain)
	objects := []client.Object{grid}
	for name, label := range map[string]string{
		"demo-east": "demo", "demo-west": "", "demo-north": "other", "demo-gone": "demo", "unrelated": "demo",
	} {
		d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(name)}}
		if label != "" {
			d.Labels = map[string]string{v1.LabelGridSelector: label}
		}
		objects = append(objects, d)
	}
	f := newFixture(t, objects...)
	f.nodesIn("east", "west", "north")
	f.pass(grid)
	f.step(time.Hour)
	f.pass(grid)
	f.expectTook("apply demo-east")
	if owner := metav1.GetControllerOf(f.deployment("demo-east")); owner == nil || owner.Name != "demo" {
		t.Errorf("demo-east belongs to %v", owner)
	}
	f.expectNames("demo-east demo-gone demo-north demo-west unrelated")
	f.expect(grid, "Degraded=True SitesFailed", "2 of 3", "north", "west", v1.LabelGridSelector+"=demo")
}

func TestGraceTime(t *testing.T) {
	f, grid := demo(t, in("east west"))
	f.pass(grid)
	f.took()
	f.told()

	f.node("node-east", "")
	f.pass(grid)
	state := f.expectSite(grid, "east", v1.SiteRemoving)
	if state.RemovalTime == nil || !state.RemovalTime.Time.Equal(f.clock.Now().Add(5*time.Minute)) {
		t.Errorf("got the state %+v", state)
	}
	if grid.Status.Sites != 1 {
		t.Errorf("got %d sites", grid.Status.Sites)
	}
	f.expect(grid, "Progressing=True SitesProgressing", "east", "removed from")
	f.expectEvent(f.told(), "Warning", v1.ReasonSiteVanished, "east", "5m0s")

	// Back in time.
	f.step(4 * time.Minute)
	f.nodesIn("east")
	f.pass(grid)
	if state := f.expectSite(grid, "east", v1.SiteProgressing); state.RemovalTime != nil {
		t.Errorf("got the state %+v", state)
	}
	f.expectEvent(f.told(), v1.ReasonSiteReturned, "east")

	// Gone for good; a restart of the controller does not begin the time again.
	f.node("node-east", "")
	f.pass(grid)
	f.step(4 * time.Minute)
	f.restart()
	if again := f.reconcile(grid); again <= 0 || again > time.Minute {
		t.Errorf("asks to be called again after %s", again)
	}
	f.expectTook()
	f.step(time.Minute)
	f.pass(grid)
	f.expectTook("delete demo-east")
	f.pass(grid)
	if _, ok := grid.Status.States["east"]; ok {
		t.Errorf("got %+v", grid.Status.States)
	}
	f.expectNames("demo-west")
	f.expectEvent(f.told(), v1.ReasonRemoved, "east")
}

// longDeadline keeps sites from being stalled: nobody makes pods.
func longDeadline(grid *v1.DeploymentGrid) { grid.Spec.ProgressDeadlineSeconds = ptr.To[int32](1e6) }

// TestErrorsAreRetriedForEver with a growing pause, and stop no other site.
func TestErrorsAreRetriedForEver(t *testing.T) {
	f, grid := demo(t, in("east west"), longDeadline)
	f.failOn("apply demo-east", errBroken)
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
	f.expect(grid, "Degraded=True SitesFailed", "east", errBroken.Error())
	f.expectNames("demo-west")
	f.failing(nil)
	f.step(2 * lastRetry)
	f.pass(grid)
	f.expectTook("apply demo-east")
	f.expectWell(grid)
}

// TestRandomErrors: half of all writes fail while nodes move about and the controller restarts. In the
// end all is as it should be, and nothing that was wanted all the time was ever deleted.
func TestRandomErrors(t *testing.T) {
	for seed := range uint64(20) {
		random := rand.New(rand.NewPCG(seed, 1))
		f, grid := demo(t, in("fixed"), longDeadline, func(grid *v1.DeploymentGrid) {
			grid.Spec.Removal = &v1.Removal{MaxSites: ptr.To(intstr.FromInt32(9))}
		})
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
		for range 100 {
			node, site := fmt.Sprint("n", random.IntN(4)), []string{"", "east", "west", "north"}[random.IntN(4)]
			f.node(node, site)
			placed[node] = site
			if random.IntN(10) == 0 {
				f.restart()
			}
			_, _ = f.try(grid) // an error is retried by the queue
			f.step(time.Duration(random.IntN(90)) * time.Second)
		}
		f.failing(nil)
		for range 5 {
			f.step(10 * time.Minute)
			f.reconcile(grid)
		}
		want := map[string]bool{"demo-fixed": true}
		for _, site := range placed {
			if site != "" {
				want["demo-"+site] = true
			}
		}
		if got := f.names(); got != strings.Join(slices.Sorted(maps.Keys(want)), " ") {
			t.Errorf("seed %d: got %s, want %v", seed, got, want)
		}
		if slices.Contains(deleted, "demo-fixed") {
			t.Errorf("seed %d: a wanted Deployment was deleted", seed)
		}
		f.get(grid)
		f.expectWell(grid)
	}
}

func TestBadKey(t *testing.T) {
	f, grid := demo(t, in("east"))
	f.pass(grid)
	f.took()
	for _, key := range []string{"", "no way"} {
		f.update(grid, func() { grid.Spec.GridUniqKey = key })
		f.pass(grid)
		f.expect(grid, "Degraded=True InvalidKey", "spec.gridUniqKey")
		f.expectEvent(f.told(), "Warning", v1.ReasonInvalidKey)
		f.expectTook() // what there is stays
	}
}

func TestNoSites(t *testing.T) {
	f, grid := demo(t, nil)
	f.pass(grid)
	f.pass(grid)
	f.expect(grid, "Ready=False NoSites", "zone1")
	if told := f.told(); len(told) != 1 || !strings.Contains(told[0], v1.ReasonNoSites) {
		t.Errorf("got the events %q", told)
	}
}

// TestSiteOfAnEmptyValue: an empty value of the label is a site, after which no workload can be named. The other sites
// have theirs.
func TestSiteOfAnEmptyValue(t *testing.T) {
	f, grid := demo(t, in("east"))
	f.note("unnamed", &nodeState{labels: map[string]string{"zone1": ""}})
	f.pass(grid)
	f.expectNames("demo-east")
	f.expect(grid, "Degraded=True SitesFailed", `1 of 2 sites failed: "": InvalidName: no Deployment can be named`,
		"after this site", "zone1", "give it a value")
	f.expectSite(grid, "", v1.SiteFailed)
	f.update(grid, func() { grid.Spec.Rollout = inWaves(named("first", "east"), named("rest")) })
	f.rolls(grid, "east")
	f.template(grid, other)
	f.completes(grid, "east")
	f.step(time.Hour)
	f.passes(grid)
	f.expectPhase(grid, v1.RolloutComplete, "")
	f.expectSite(grid, "", v1.SiteFailed)
}

func TestAutoDeleteUnusedTemplate(t *testing.T) {
	f, grid := demo(t, in("east"), func(grid *v1.DeploymentGrid) {
		grid.Spec.AutoDeleteUnusedTemplate = true
		grid.Spec.TemplatePool = map[string]v1.Template{
			"used": raw(plain), "byDefault": raw(plain), "unused": raw(plain),
		}
		grid.Spec.Templates = map[string]v1.TemplateName{"east": "used"}
		grid.Spec.DefaultTemplateName = "byDefault"
	})
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
	f, grid := demo(t, in("east"), func(grid *v1.DeploymentGrid) {
		grid.Finalizers = []string{metav1.FinalizerOrphanDependents}
	})
	f.pass(grid)
	f.delete(grid)
	f.took()
	f.edit("demo-east", func(d *appsv1.Deployment) { d.OwnerReferences = nil }) // the garbage collector's work
	f.pass(grid)
	f.expectTook()
	if owner := metav1.GetControllerOf(f.deployment("demo-east")); owner != nil {
		t.Errorf("adopted by %s again", owner.Name)
	}
}

// TestRecreatedGrid: nothing is remembered of the grid before it that had the same name.
func TestRecreatedGrid(t *testing.T) {
	f, grid := demo(t, in("east"))
	f.pass(grid)
	f.delete(grid)
	f.delete(f.deployment("demo-east"))
	again := deploymentGrid("demo", other)
	again.UID = "again"
	f.create(again)
	f.pass(again)
	f.expectImages("demo", map[string]string{"east": "two"})
}

// TestNoAdoptionByADeletedGrid: the cache may not know of the deletion yet.
func TestNoAdoptionByADeletedGrid(t *testing.T) {
	grid, orphan := deploymentGrid("demo", plain), ownedBy("")
	orphan.OwnerReferences = nil
	f := newFixture(t, orphan)
	f.nodesIn("east")
	f.reconcilers["DeploymentGrid"].cache = newFixture(t, grid, orphan.DeepCopy()).client
	f.reconcile(grid)
	f.expectTook()
}

// TestServiceFollowsEveryChange: SuperEdge's controller compared by containment, so what was removed stayed. A hold on
// the grid does not keep its Service from being changed.
func TestServiceFollowsEveryChange(t *testing.T) {
	grid := serviceGrid("demo",
		`{"selector":{"app":"x","tier":"y"},"ports":[{"name":"a","port":80},{"name":"b","port":81}]}`)
	f := newFixture(t, grid)
	f.nodesIn("east")
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
		grid.Annotations = map[string]string{"note": "z", v1.AnnotationHold: "hotfix"}
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
	f.expect(grid, "Ready=True Ready", "demo-svc")
}

func TestServiceConflict(t *testing.T) {
	grid := serviceGrid("demo", `{"ports":[{"port":80}]}`)
	theirs := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "demo-svc"}}
	f := newFixture(t, grid, theirs)
	f.pass(grid)
	f.expectTook()
	f.expect(grid, "Degraded=True NameConflict", "demo-svc", "was not made by this grid")
	f.expectEvent(f.told(), v1.ReasonNameConflict)
	f.step(time.Hour)
	f.pass(grid)
	if told := f.told(); len(told) > 0 {
		t.Errorf("the same was told again: %q", told)
	}
}

// TestTakeOver: children of SuperEdge's controller, which used updates, lose what leaves the template too.
func TestTakeOver(t *testing.T) {
	f, grid := demo(t, in("east"))
	old := ownedBy(grid.UID)
	old.Labels["old"], old.Spec.MinReadySeconds = "x", 9
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

// TestSiteLabelOfChildren: what the controller creates selects its own site's pods, unless siteLabel is false. A
// workload that exists keeps its selector and its pods' labels, so that no pod is replaced. Only a grid that asks for
// the label gets a warning.
func TestSiteLabelOfChildren(t *testing.T) {
	for name, test := range map[string]struct {
		siteLabel *bool
		created   string
		warning   string
	}{
		"by default":   {nil, "west", ""},
		"true":         {new(true), "west", "demo-east"},
		"switched off": {new(false), "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			f, grid := demo(t, in("east west"), func(grid *v1.DeploymentGrid) { grid.Spec.SiteLabel = test.siteLabel })
			old := ownedBy(grid.UID)
			if err := f.client.Create(t.Context(), old, client.FieldOwner(v1.FieldManager)); err != nil {
				t.Fatal(err)
			}
			f.pass(grid)
			for child, want := range map[string]string{"demo-east": "", "demo-west": test.created} {
				d := f.deployment(child)
				selected, inPods := "", d.Spec.Template.Labels[v1.LabelGridSite]
				if d.Spec.Selector != nil {
					selected = d.Spec.Selector.MatchLabels[v1.LabelGridSite]
				}
				if selected != want || inPods != want {
					t.Errorf("%s selects site %q, its pods have %q, want %q", child, selected, inPods, want)
				}
			}
			warned := ""
			for _, c := range grid.Status.Conditions {
				if c.Type == v1.ConditionSpecWarning {
					warned = c.Message
				}
			}
			if (warned != "") != (test.warning != "") {
				t.Errorf("got the warning %q", warned)
			}
		})
	}
}

// TestSummary: conditions name the first few sites, and count the rest.
func TestSummary(t *testing.T) {
	states := map[string]v1.SiteState{"x": {Phase: v1.SiteReady}}
	for _, site := range in("a b c d e f g h") {
		states[site] = v1.SiteState{Phase: v1.SiteFailed, Reason: v1.ReasonRejected, Message: "no"}
	}
	grid := summaryOf(states)
	f := &fixture{TB: t}
	f.expect(grid, "Ready=False SitesNotReady", "8 of 9 sites", "a, b, c, d, e and 3 more")
	f.expect(grid, "Degraded=True SitesFailed", "a, b, c, d, e and 3 more: Rejected: no")
	if grid.Status.ReadySites != 1 || grid.Status.Sites != 9 {
		t.Errorf("got %+v", grid.Status)
	}
}

// summaryOf is a grid whose sites were found in these states.
func summaryOf(states map[string]v1.SiteState) *v1.DeploymentGrid {
	grid := deploymentGrid("demo", plain)
	p := &pass{grid: grid, spec: &grid.Spec, memory: newMemory(grid)}
	assigned := &assigned{pass: p, update: gridchild.NewTemplates("", p.spec, gridchild.Cluster{})}
	newReport(&synced{planned: &planned{assigned: assigned}}, states).summarize(&grid.Status)
	return grid
}

// former is a cache whose reads of single objects show a former state of an object, while it is set.
type former struct {
	client.Reader
	object client.Object
}

func (c *former) Get(ctx context.Context, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
	if c.object != nil && key.Name == c.object.GetName() && reflect.TypeOf(o) == reflect.TypeOf(c.object) {
		reflect.ValueOf(o).Elem().Set(reflect.ValueOf(c.object.DeepCopyObject()).Elem())
		return nil
	}
	return c.Reader.Get(ctx, key, o, options...)
}

// labelled is a cache that has only objects with the label of children.
type labelled struct{ client.Reader }

func (c labelled) Get(ctx context.Context, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
	err := c.Reader.Get(ctx, key, o, options...)
	if u, ok := o.(*unstructured.Unstructured); ok && err == nil && u.GetLabels()[v1.LabelGridSelector] == "" {
		return apierrors.NewNotFound(schema.GroupResource{}, key.Name)
	}
	return err
}

func (c labelled) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	err := c.Reader.List(ctx, list, options...)
	if u, ok := list.(*unstructured.UnstructuredList); ok {
		u.Items = slices.DeleteFunc(u.Items, func(item unstructured.Unstructured) bool {
			return item.GetLabels()[v1.LabelGridSelector] == ""
		})
	}
	return err
}

// TestLabelOfAChildIsRemoved: the cache does not show the child any more, whose selector lacks the site.
func TestLabelOfAChildIsRemoved(t *testing.T) {
	f, grid := demo(t, in("east"))
	old := ownedBy(grid.UID)
	delete(old.Labels, v1.LabelGridSelector)
	f.create(old)
	f.reconcilers["DeploymentGrid"].cache = labelled{f.client}
	f.pass(grid)
	f.step(cacheLag)
	f.pass(grid)
	d := f.deployment("demo-east")
	if d.Labels[v1.LabelGridSelector] != "demo" || d.Labels[v1.LabelGridSite] != "east" {
		t.Errorf("its labels are %v", d.Labels)
	}
	if d.Spec.Selector != nil && d.Spec.Selector.MatchLabels[v1.LabelGridSite] != "" {
		t.Errorf("its selector is %v", d.Spec.Selector)
	}
}

// TestDeletedBeforeItWasAdopted: the cache still shows an orphan whose selector lacks the site. The workload that is
// made in its place is not made for its selector.
func TestDeletedBeforeItWasAdopted(t *testing.T) {
	f, grid := demo(t, in("east"))
	old := ownedBy("")
	old.OwnerReferences, old.UID = nil, "old"
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(old)
	if err != nil {
		t.Fatal(err)
	}
	deleted := &unstructured.Unstructured{Object: object}
	deleted.SetGroupVersionKind(v1.DeploymentGridKind.Child)
	cache := &former{f.reconcilers["DeploymentGrid"].cache, deleted}
	f.reconcilers["DeploymentGrid"].cache = cache
	f.pass(grid)
	f.expectTook()
	cache.object = nil
	f.step(cacheLag)
	f.pass(grid)
	f.expectTook("apply demo-east")
	if d := f.deployment("demo-east"); d.Spec.Selector.MatchLabels[v1.LabelGridSite] != "east" {
		t.Errorf("its selector is %v", d.Spec.Selector)
	}
}
