package gridcontroller

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
)

var other = strings.ReplaceAll(plain, `"i"`, `"two"`)

// ready makes the Deployments of sites ready, as their controller does.
func (f *fixture) ready(grid string, sites ...string) {
	f.Helper()
	for _, site := range sites {
		name := grid + "-" + site
		f.report(name, running)
		f.runs(f.deployment(name), "node-"+site)
	}
}

// replicaSet is the one that a Deployment makes of its template. The newest has the highest number.
func (f *fixture) replicaSet(d *appsv1.Deployment) *appsv1.ReplicaSet {
	f.Helper()
	before := &appsv1.ReplicaSetList{}
	if err := f.client.List(f.Context(), before, client.InNamespace(namespace)); err != nil {
		f.Fatal(err)
	}
	hash := d.Spec.Template.Spec.Containers[0].Image
	set := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Name: d.Name + "-" + hash, UID: types.UID(d.Name + "-" + hash),
		Labels:      labels.Merge(d.Spec.Template.Labels, labels.Set{appsv1.DefaultDeploymentUniqueLabelKey: hash}),
		Annotations: map[string]string{deploymentRevision: fmt.Sprint(len(before.Items) + 1)},
		OwnerReferences: []metav1.OwnerReference{
			*metav1.NewControllerRef(d, appsv1.SchemeGroupVersion.WithKind("Deployment")),
		},
	}}
	if err := client.IgnoreNotFound(f.client.Delete(f.Context(), set.DeepCopy())); err != nil {
		f.Fatal(err)
	}
	f.create(set)
	return set
}

func bySet(set *appsv1.ReplicaSet) []metav1.OwnerReference {
	return []metav1.OwnerReference{*metav1.NewControllerRef(set, appsv1.SchemeGroupVersion.WithKind("ReplicaSet"))}
}

// runs makes the pod of a Deployment on a node what the Deployment says, and ready. It is a new one if its image
// changes.
func (f *fixture) runs(d *appsv1.Deployment, node string) {
	f.Helper()
	now := metav1.NewTime(f.clock.Now())
	pod := &corev1.Pod{}
	key := client.ObjectKey{Namespace: namespace, Name: d.Name}
	err := f.client.Get(f.Context(), key, pod)
	if err == nil && pod.Spec.Containers[0].Image == d.Spec.Template.Spec.Containers[0].Image {
		return
	}
	if err == nil {
		if err := f.client.Delete(f.Context(), pod); err != nil {
			f.Fatal(err)
		}
	}
	set := f.replicaSet(d)
	pod = &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: d.Name, Labels: set.Labels, CreationTimestamp: now,
			OwnerReferences: bySet(set),
		},
		Spec: corev1.PodSpec{NodeName: node, Containers: d.Spec.Template.Spec.Containers},
		Status: corev1.PodStatus{
			StartTime: &now,
			Conditions: []corev1.PodCondition{
				{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: now},
			},
			ContainerStatuses: []corev1.ContainerStatus{{State: corev1.ContainerState{
				Running: &corev1.ContainerStateRunning{StartedAt: now},
			}}},
		},
	}
	f.create(pod)
}

// image is what the Deployment of a site runs.
func (f *fixture) image(name string) string {
	f.Helper()
	return f.deployment(name).Spec.Template.Spec.Containers[0].Image
}

func (f *fixture) expectImages(grid string, want map[string]string) {
	f.Helper()
	for site, image := range want {
		if got := f.image(grid + "-" + site); got != image {
			f.Errorf("site %s runs %s, want %s", site, got, image)
		}
	}
}

func (f *fixture) expectPhase(grid *v1.DeploymentGrid, phase v1.RolloutPhase, says string) {
	f.Helper()
	f.get(grid)
	if r := grid.Status.Rollout; r == nil || r.Phase != phase || !strings.Contains(r.Message, says) {
		f.Errorf("want phase %s with %q, got %+v", phase, says, r)
	}
}

// revisions are the ControllerRevisions, by number.
func (f *fixture) revisions() []string {
	f.Helper()
	list := &appsv1.ControllerRevisionList{}
	if err := f.client.List(f.Context(), list, client.InNamespace(namespace)); err != nil {
		f.Fatal(err)
	}
	var all []string
	for _, r := range list.Items {
		all = append(all, fmt.Sprintf("%d %s", r.Revision, r.Name))
	}
	slices.Sort(all)
	return all
}

func (f *fixture) passes(grid client.Object) {
	f.Helper()
	for range 4 {
		f.pass(grid)
	}
}

// rolls has the Deployments of sites get ready with what is due.
func (f *fixture) rolls(grid client.Object, sites ...string) {
	f.Helper()
	f.passes(grid)
	f.ready(grid.GetName(), sites...)
	f.passes(grid)
}

// completes has the Deployments of sites get ready until the rollout is complete.
func (f *fixture) completes(grid *v1.DeploymentGrid, sites ...string) {
	f.Helper()
	for i := 0; i < 6 && (i == 0 || grid.Status.Rollout.Phase != v1.RolloutComplete); i++ {
		f.rolls(grid, sites...)
	}
	f.expectPhase(grid, v1.RolloutComplete, "")
}

// template changes the template of a grid, and lets the change begin.
func (f *fixture) template(grid *v1.DeploymentGrid, template string) {
	f.Helper()
	f.update(grid, func() { grid.Spec.Template = raw(template) })
	f.passes(grid)
}

// resume lets a halted rollout go on.
func (f *fixture) resume(grid *v1.DeploymentGrid) {
	f.Helper()
	f.annotate(grid, v1.AnnotationResumed, grid.Status.Rollout.HaltTime.UTC().Format(time.RFC3339))
}

// rollingIn gives a grid a rollout in waves.
func rollingIn(waves ...v1.Wave) func(*v1.DeploymentGrid) {
	return func(grid *v1.DeploymentGrid) { grid.Spec.Rollout = inWaves(waves...) }
}

// stallsSoon gives sites half a minute for a change.
func stallsSoon(grid *v1.DeploymentGrid) { grid.Spec.ProgressDeadlineSeconds = ptr.To[int32](30) }

func inWaves(waves ...v1.Wave) *v1.Rollout { return &v1.Rollout{Waves: waves} }

func named(name string, sites ...string) v1.Wave {
	w := v1.Wave{Name: name, MaxUnavailable: ptr.To(intstr.FromInt32(1))}
	if len(sites) > 0 {
		w.Sites = &v1.SiteSelector{Names: sites}
	}
	return w
}

// checked gives a wave a check.
func checked(wave v1.Wave) v1.Wave {
	wave.Check = &v1.Check{Template: raw(`{"template":{"spec":{"containers":[{"name":"c","image":"i"}]}}}`)}
	return wave
}

// TestRolloutInWaves: each wave begins when the one before is done; sites that are not due are kept, and what somebody
// changes there is reverted to their own revision.
func TestRolloutInWaves(t *testing.T) {
	canary := named("canary", "lab")
	canary.Soak, canary.Approval = &metav1.Duration{Duration: time.Minute}, v1.ApprovalManual
	sites := in("lab east west")
	f, grid := demo(t, sites, rollingIn(canary, named("rest")))
	f.completes(grid, sites...)
	first := grid.Status.CurrentRevision
	f.took()

	f.template(grid, other)
	f.expectImages("demo", map[string]string{"lab": "two", "east": "i", "west": "i"})
	f.expectTook("apply demo-lab")
	f.expectPhase(grid, v1.RolloutProgressing, "waits for lab")

	f.edit("demo-east", func(d *appsv1.Deployment) { d.Spec.Template.Spec.Containers[0].Image = "theirs" })
	f.passes(grid)
	f.expectImages("demo", map[string]string{"east": "i"})

	f.ready("demo", "lab", "east")
	f.passes(grid)
	f.expectPhase(grid, v1.RolloutSoaking, "soaks until")
	f.restart()
	f.passes(grid)
	f.ready("demo", "lab", "east") // who restarts applies one again, to see what it looks like
	f.step(time.Minute)
	f.passes(grid)
	f.expectPhase(grid, v1.RolloutAwaitingApproval, v1.AnnotationApproved)
	f.expectImages("demo", map[string]string{"east": "i", "west": "i"})
	f.took()
	f.annotate(grid, v1.AnnotationApproved, grid.Status.Rollout.Awaits)
	f.passes(grid)
	f.expectTook("apply demo-east")
	f.ready("demo", "east")
	f.passes(grid)
	f.expectTook("apply demo-west")
	f.completes(grid, "west")
	if grid.Status.CurrentRevision == first || grid.Status.CurrentRevision != grid.Status.UpdateRevision {
		t.Errorf("got %+v", grid.Status)
	}

	// Back to what was before: its revision is the newest again.
	f.template(grid, plain)
	if got := f.revisions(); len(got) != 2 || !strings.HasPrefix(got[1], "3 "+first) {
		t.Errorf("got the revisions %q, first %s", got, first)
	}
}

// TestRolloutIsAdopted without a change of what runs.
func TestRolloutIsAdopted(t *testing.T) {
	f, grid := demo(t, in("east west"))
	f.rolls(grid, "east", "west")
	before := f.deployment("demo-east")
	f.took()
	f.update(grid, func() { grid.Spec.Rollout = inWaves(named("east", "east"), named("rest")) })
	f.passes(grid)
	after := f.deployment("demo-east")
	if revision := after.Annotations[v1.AnnotationRevision]; revision != grid.Status.CurrentRevision || revision == "" {
		t.Errorf("got the annotations %v", after.Annotations)
	}
	if fmt.Sprint(before.Spec) != fmt.Sprint(after.Spec) {
		t.Error("the spec has changed")
	}
	f.expectTook("apply demo-east", "apply demo-west")
	f.expectPhase(grid, v1.RolloutComplete, "")

	f.update(grid, func() { grid.Spec.Rollout = nil })
	f.passes(grid)
	if got := f.deployment("demo-east").Annotations[v1.AnnotationRevision]; got != "" || grid.Status.Rollout != nil {
		t.Errorf("without a rollout: %q, %+v", got, grid.Status.Rollout)
	}
}

// TestRolloutHalts where the API server refuses the template, rolls back where a workload makes no progress, and the
// history is kept within its limit.
func TestRolloutHalts(t *testing.T) {
	sites := in("a b c")
	f, grid := demo(t, sites, rollingIn(named("all")), func(grid *v1.DeploymentGrid) {
		grid.Spec.RevisionHistoryLimit = ptr.To[int32](1)
	})
	f.rolls(grid, sites...)
	f.failOn("apply ", invalid("spec.selector"))
	f.template(grid, other)
	f.expectPhase(grid, v1.RolloutProgressing, "waits for a") // what is refused for a moment is no failure
	f.step(time.Hour)
	f.passes(grid)
	f.expectPhase(grid, v1.RolloutHalted, "1 failed, 0 allowed: a: Rejected")
	f.expect(grid, "Degraded=True RolloutHalted")
	f.expectEvent(f.told(), v1.ReasonRolloutHalted, "wave all")
	f.failing(nil)
	f.restart()
	f.passes(grid)
	f.expectPhase(grid, v1.RolloutHalted, "")
	f.expectImages("demo", map[string]string{"a": "i", "b": "i", "c": "i"})

	f.resume(grid)
	f.passes(grid)
	f.expectImages("demo", map[string]string{"a": "two", "b": "two", "c": "i"}) // a is accepted, and holds nobody
	f.update(grid, func() {
		grid.Spec.Rollout.OnFailure = v1.OnFailureRollback
		stallsSoon(grid)
	})
	f.step(40 * time.Second)
	f.passes(grid)
	f.passes(grid)
	f.expectImages("demo", map[string]string{"a": "i", "b": "i"})
	f.ready("demo", "a", "b")
	f.passes(grid)
	f.expectPhase(grid, v1.RolloutRolledBack, "1 failed")

	for i := range 4 {
		f.template(grid, strings.ReplaceAll(other, "two", fmt.Sprint("image", i)))
	}
	if got := f.revisions(); len(got) > 4 { // current, update, a's, and one more
		t.Errorf("got the revisions %q", got)
	}
}

// TestOverrides: replicas and images of the sites that names or labels of nodes select; a container that there is not
// is an error of these sites alone.
func TestOverrides(t *testing.T) {
	f, grid := demo(t, in("hz-1 hz-2 lab odd"), func(grid *v1.DeploymentGrid) {
		grid.Spec.Overrides = []v1.Override{
			{Name: "big", Sites: v1.SiteSelector{
				Names:        []string{"hz-*"},
				NodeSelector: &v1.NodeSelector{MatchLabels: map[string]string{"size": "big"}},
			}, Replicas: ptr.To[int32](5)},
			{Name: "new", Sites: v1.SiteSelector{Names: []string{"hz-1"}}, Images: map[string]string{"c": "new"}},
			{Name: "wrong", Sites: v1.SiteSelector{Names: []string{"odd"}}, Images: map[string]string{"none": "new"}},
		}
	})
	f.passes(grid)
	replicas := func() (all [3]int32) {
		for i, site := range in("hz-1 hz-2 lab") {
			all[i] = ptr.Deref(f.deployment("demo-"+site).Spec.Replicas, 1)
		}
		return all
	}
	if got := replicas(); got != [...]int32{5, 5, 1} {
		t.Errorf("got the replicas %d", got)
	}
	f.expectImages("demo", map[string]string{"hz-1": "new", "hz-2": "i", "lab": "i"})
	says := `spec.overrides[wrong].images: the template has no container "none"; it has c`
	state := f.expectSite(grid, "odd", v1.SiteFailed)
	if state.Reason != v1.ReasonInvalidTemplate || !strings.Contains(state.Message, says) {
		t.Errorf("got %+v", state)
	}
	f.took()
	f.note("node-lab", &nodeState{labels: map[string]string{"zone1": "lab", "size": "big"}})
	f.passes(grid)
	f.expectTook("apply demo-lab")
	if got := replicas(); got != [...]int32{5, 5, 5} {
		t.Errorf("after a label: got the replicas %d", got)
	}
}
