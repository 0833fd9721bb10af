package gridcontroller

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/gridcontroller/gridchild"
)

// deaf answers no lists of pods while set, and counts reads of Jobs.
type deaf struct {
	client.Reader
	on   bool
	jobs int
}

func (d *deaf) List(ctx context.Context, list client.ObjectList, o ...client.ListOption) error {
	switch list.(type) {
	case *corev1.PodList:
		if d.on {
			return errors.New("etcdserver: request timed out")
		}
	case *batchv1.JobList:
		d.jobs++
	}
	return d.Reader.List(ctx, list, o...)
}

func (d *deaf) Get(ctx context.Context, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
	if _, ok := o.(*batchv1.Job); ok {
		d.jobs++
	}
	return d.Reader.Get(ctx, key, o, options...)
}

// TestQuestionIsAskedAgain: the API server cannot list pods in the second in which a site falls silent that has not
// seen the change.
func TestQuestionIsAskedAgain(t *testing.T) {
	for _, on := range []bool{false, true} {
		f, grid := demo(t, in("lab a b c d e"), rollingIn(named("canary", "lab"), named("rest")))
		f.completes(grid, in("lab a b c d e")...)
		d := &deaf{Reader: liveReader{f}}
		f.reconcilers["DeploymentGrid"].apiReader = d
		f.step(time.Hour)
		f.template(grid, other)
		f.ready("demo", "lab")
		f.passes(grid)
		f.passes(grid)
		f.expectImages("demo", map[string]string{"lab": "two", "a": "two", "b": "i"})
		f.replicaSet(f.deployment("demo-a")) // its pods are not there yet
		d.on = on
		f.lose("a")
		f.passes(grid)
		d.on = false
		for range 20 {
			f.step(20 * time.Second)
			f.passes(grid)
		}
		if f.image("demo-a") != "i" {
			t.Errorf("deaf=%t: no kubelet has seen the change, and the workload is not put back", on)
		}
	}
}

// restBegun makes a grid whose change has passed the canary lab. The sites of the rest have it, and are not ready.
func restBegun(t *testing.T) (*fixture, *v1.DeploymentGrid) {
	t.Helper()
	f, grid := demo(t, in("lab a b c d e"), rollingIn(named("canary", "lab"), named("rest")))
	f.completes(grid, in("lab a b c d e")...)
	f.template(grid, other)
	f.ready("demo", "lab")
	f.passes(grid)
	f.passes(grid)
	return f, grid
}

// TestControllerClockIsWrong: the controller's clock is two minutes ahead of the API server's, which dates pods, or
// behind. A workload is put back if its site falls silent before a kubelet has started the pod of the change, and only
// then.
func TestControllerClockIsWrong(t *testing.T) {
	for _, ahead := range []time.Duration{0, 2 * time.Minute, -2 * time.Minute} {
		f, grid := restBegun(t)
		f.step(-ahead)
		f.replicaSet(f.deployment("demo-a"))
		if ahead >= 0 { // with the clock behind, a pod of before looks new
			f.runs(f.deployment("demo-a"), "node-a")
		}
		f.step(ahead)
		f.lose("a")
		for range 4 {
			f.step(20 * time.Second)
			f.passes(grid)
		}
		if got, seen := f.image("demo-a"), ahead >= 0; (got == "two") != seen {
			t.Errorf("ahead by %s: it runs %s; its kubelet has seen the change: %t", ahead, got, seen)
		}
	}
}

// TestNewestTemplateOfAStatefulSet: its pods have the name of its newest ControllerRevision. That of an older template
// becomes the newest again when the template comes back.
func TestNewestTemplateOfAStatefulSet(t *testing.T) {
	grid := &v1.StatefulSetGrid{ObjectMeta: objectMeta("db"), Spec: v1.WorkloadGridSpec{
		GridUniqKey: "zone1", Template: raw(plain), Rollout: inWaves(named("all")),
	}}
	f := newFixture(t, grid)
	f.nodesIn("lab")
	f.passes(grid)
	set := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "db-lab"}}
	f.get(set)
	by := []metav1.OwnerReference{*metav1.NewControllerRef(set, appsv1.SchemeGroupVersion.WithKind("StatefulSet"))}
	for name, number := range map[string]int64{"db-lab-one": 3, "db-lab-two": 2} {
		f.create(&appsv1.ControllerRevision{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: namespace, Name: name, Labels: set.Spec.Template.Labels, OwnerReferences: by,
			},
			Revision: number,
		})
	}
	f.step(time.Minute)
	r := f.reconcilers["StatefulSetGrid"]
	p := r.newPass(grid, gridchild.NewOwner(r.GridKind, grid), newMemory(grid))
	children, err := p.childrenOf(t.Context(), p.owner)
	if err != nil {
		t.Fatal(err)
	}
	assigned, err := p.assign(t.Context(), children)
	if err != nil {
		t.Fatal(err)
	}
	newest, err := assigned.newestTemplate(t.Context(), "lab")
	if err != nil {
		t.Fatal(err)
	}
	for hash, want := range map[string]bool{"db-lab-one": true, "db-lab-two": false, "": false} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Labels: map[string]string{appsv1.ControllerRevisionHashLabelKey: hash}, OwnerReferences: by,
		}}
		if newest(pod) != want {
			t.Errorf("a pod of %q is of the newest template: %t", hash, !want)
		}
	}
}

// TestSilentWhenScaled: a site falls silent in the second in which somebody has scaled its workload. The workload's
// controller has not observed that yet. The kubelet has seen the change, so the workload is not put back.
func TestSilentWhenScaled(t *testing.T) {
	f, grid := restBegun(t)
	f.runs(f.deployment("demo-a"), "node-a")
	f.edit("demo-a", func(d *appsv1.Deployment) {
		d.Generation++
		d.Spec.Replicas = ptr.To[int32](2)
	})
	f.lose("a")
	f.passes(grid)
	f.report("demo-a", appsv1.DeploymentStatus{Replicas: 2, UpdatedReplicas: 2})
	for range 4 {
		f.step(20 * time.Second)
		f.passes(grid)
	}
	f.expectImages("demo", map[string]string{"a": "two"})
	f.expectPhase(grid, v1.RolloutAwaitingApproval, "fell silent")
}

// TestApprovedSilencePardonsNoFailure: a person approves that a site is silent; it comes back, and is broken by the
// change.
func TestApprovedSilencePardonsNoFailure(t *testing.T) {
	f, grid := demo(t, in("lab a b c d e"), rollingIn(named("canary", "lab"), named("rest")), stallsSoon)
	f.completes(grid, in("lab a b c d e")...)
	f.template(grid, other)
	f.ready("demo", "lab")
	f.passes(grid)
	f.passes(grid)
	f.runs(f.deployment("demo-a"), "node-a") // its kubelet has seen it
	f.lose("a")
	f.passes(grid)
	f.expectPhase(grid, v1.RolloutAwaitingApproval, "fell silent")
	f.annotate(grid, v1.AnnotationApproved, grid.Status.Rollout.Awaits)
	f.passes(grid)
	f.nodesIn("a") // it is back, and its pods are not ready
	f.ready("demo", "b")
	for range 10 {
		f.step(time.Minute)
		f.passes(grid)
		f.ready("demo", "b", "c", "d", "e")
	}
	if grid.Status.Rollout.Phase == v1.RolloutComplete {
		t.Errorf("a is Stalled with the change, maxFailures is 0, and the rollout goes on to its end")
	}
}

// TestChecksAreListed counts reads of Jobs while 40 checks run for a minute in which nothing happens but a report of a
// pod a second.
func TestChecksAreListed(t *testing.T) {
	sites := numbered(40)
	wave := v1.Wave{Name: "all", MaxUnavailable: ptr.To(intstr.FromString("100%"))}
	wave = checked(wave)
	f, grid := demo(t, sites, rollingIn(wave))
	f.completes(grid, sites...)
	d := &deaf{Reader: liveReader{f}}
	f.reconcilers["DeploymentGrid"].apiReader = d
	f.template(grid, other)
	f.rolls(grid, sites...)
	d.jobs = 0
	for range 60 {
		f.pass(grid)
	}
	if d.jobs == 0 || d.jobs > 10 {
		t.Errorf("Jobs were read %d times", d.jobs)
	}
}

// TestForbiddenOnce: one 403, such as an API server gives for a moment after it has started (crds.go says so).
func TestForbiddenOnce(t *testing.T) {
	for _, on := range []v1.OnFailure{v1.OnFailureHalt, v1.OnFailureRollback} {
		waves := rollingIn(named("canary", "lab"), named("rest"))
		f, grid := demo(t, in("lab east west"), waves, func(g *v1.DeploymentGrid) { g.Spec.Rollout.OnFailure = on })
		f.completes(grid, in("lab east west")...)
		once := true
		f.failing(func(call string) error {
			if once && strings.HasPrefix(call, "apply demo-east") {
				once = false
				return apierrors.NewForbidden(schema.GroupResource{Group: "apps", Resource: "deployments"}, "demo-east",
					errors.New(`RBAC: clusterrole.rbac.authorization.k8s.io "application-grid:controller" not found`))
			}
			return nil
		})
		f.template(grid, other)
		for range 10 {
			f.rolls(grid, in("lab east west")...)
		}
		f.step(time.Hour)
		f.passes(grid)
		if grid.Status.Rollout.Phase != v1.RolloutComplete {
			t.Errorf("one 403 that lasted for one request ended the rollout: %s", grid.Status.Rollout.Phase)
		}
	}
}

// TestCheckBesideALostNode: a site of two nodes, one of which is gone; its check always fails.
func TestCheckBesideALostNode(t *testing.T) {
	wave := checked(named("canary", "lab"))
	f, grid := demo(t, in("lab east"), rollingIn(wave, named("rest")), stallsSoon)
	f.completes(grid, in("lab east")...)
	f.loseNode("node-lab-2", "lab")
	f.template(grid, other)
	jobs := 0
	for range 20 { // each Job fails a minute after it was made
		f.rolls(grid, "lab", "east")
		list := &batchv1.JobList{}
		if err := f.client.List(f.Context(), list); err != nil {
			t.Fatal(err)
		}
		for i := range list.Items {
			job := &list.Items[i]
			if len(job.Status.Conditions) == 0 {
				jobs++
				at := metav1.NewTime(f.clock.Now())
				job.Status.StartTime = &at
				job.Status.Conditions = []batchv1.JobCondition{{
					Type: batchv1.JobFailed, Status: corev1.ConditionTrue, Reason: "BackoffLimitExceeded",
				}}
				f.updateStatus(job)
			}
		}
		f.step(time.Minute)
	}
	f.get(grid)
	if grid.Status.Rollout.Phase != v1.RolloutHalted {
		t.Errorf("the check failed %d times , and the site has not failed", jobs)
	}
}

// TestCheckOfANodeThatIsBack: the only node of a site is away for as long as the Job of its check may take. When it is
// back, the pod of the Job is deleted. That is not the site's failure.
func TestCheckOfANodeThatIsBack(t *testing.T) {
	wave := checked(named("canary", "lab"))
	f, grid := demo(t, in("lab east"), rollingIn(wave, named("rest")))
	f.completes(grid, in("lab east")...)
	f.template(grid, other)
	f.rolls(grid, "lab")
	job := f.job()
	job.Status.StartTime = ptr.To(metav1.NewTime(f.clock.Now()))
	f.step(time.Minute)
	f.lose("lab")
	f.passes(grid)
	f.step(20 * time.Minute)
	job.Status.Conditions = []batchv1.JobCondition{{
		Type: batchv1.JobFailed, Status: corev1.ConditionTrue, Reason: batchv1.JobReasonDeadlineExceeded,
	}}
	f.updateStatus(job)
	f.note("node-lab", &nodeState{
		labels: map[string]string{"zone1": "lab"}, since: f.clock.Now(),
	})
	f.passes(grid)
	f.step(20 * time.Second)
	f.passes(grid)
	if s := grid.Status.Rollout; s.Failed > 0 || len(f.job().Status.Conditions) > 0 {
		t.Errorf("%s %q, and its Job says %v", s.Phase, s.Message, f.job().Status.Conditions)
	}
}

// reportDaemonSet sets the status of a DaemonSet, whose controller has seen its spec, and returns the DaemonSet.
func (f *fixture) reportDaemonSet(name string, desired, updated, available int32) *appsv1.DaemonSet {
	f.Helper()
	d := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	f.get(d)
	d.Status = appsv1.DaemonSetStatus{
		ObservedGeneration: d.Generation, DesiredNumberScheduled: desired, CurrentNumberScheduled: desired,
		UpdatedNumberScheduled: updated, NumberAvailable: available, NumberReady: available,
	}
	f.updateStatus(d)
	return d
}

// madeBy is the metadata of an object of a DaemonSet of the site lab, for the template with that hash.
func madeBy(d *appsv1.DaemonSet, name, hash string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: namespace, Name: name, UID: types.UID(name),
		Labels: map[string]string{
			"app": "x", v1.LabelGridSite: "lab", appsv1.DefaultDaemonSetUniqueLabelKey: hash,
			"pod-template-generation": "1",
		},
		OwnerReferences: []metav1.OwnerReference{
			*metav1.NewControllerRef(d, appsv1.SchemeGroupVersion.WithKind("DaemonSet")),
		},
	}
}

// podOf is the pod of a DaemonSet on a node.
func podOf(d *appsv1.DaemonSet, node, hash string, ready corev1.ConditionStatus) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: madeBy(d, node+"-"+hash, hash), Spec: corev1.PodSpec{NodeName: node},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{
			{Type: corev1.PodReady, Status: ready},
		}},
	}
}

// TestDaemonSetGoesBackBesideASilentNode: a template that comes back has its hash of before, and its pods an older
// number.
func TestDaemonSetGoesBackBesideASilentNode(t *testing.T) {
	grid := daemonSetGrid(plain, named("all"))
	f := newFixture(t, grid)
	f.node("lab-a", "lab")
	f.node("lab-b", "lab")
	f.passes(grid)
	d := f.reportDaemonSet("agent-lab", 2, 2, 2)
	one := &appsv1.ControllerRevision{ObjectMeta: madeBy(d, "agent-lab-one", "one"), Revision: 1}
	two := &appsv1.ControllerRevision{ObjectMeta: madeBy(d, "agent-lab-two", "two"), Revision: 2}
	f.create(one, two, podOf(d, "lab-a", "one", corev1.ConditionTrue), podOf(d, "lab-b", "two", corev1.ConditionTrue))
	f.passes(grid)
	f.update(grid, func() { grid.Spec.Template = raw(other) })
	f.passes(grid)
	f.loseNode("lab-a", "lab")
	f.reportDaemonSet("agent-lab", 2, 1, 1)
	f.update(grid, func() { grid.Spec.Template = raw(plain) })
	f.pass(grid)
	f.pass(grid)
	f.update(d, func() { d.Generation++ })
	f.passes(grid)
	f.update(one, func() { one.Revision = 3 })
	f.reportDaemonSet("agent-lab", 2, 1, 1)
	f.step(askPause)
	f.passes(grid)
	if phase := grid.Status.Rollout.Phase; phase == v1.RolloutComplete {
		t.Error("node b runs the abandoned template, and the rollout is complete")
	}
	f.delete(podOf(d, "lab-b", "two", corev1.ConditionTrue))
	f.create(podOf(d, "lab-b", "one", corev1.ConditionTrue))
	f.step(askPause)
	f.passes(grid)
	if r := grid.Status.Rollout; r.Phase != v1.RolloutComplete {
		t.Errorf("node b runs the template that came back, and the rollout is %s: %s", r.Phase, r.Message)
	}
}

// TestDaemonSetIsCheckedBesideASilentNode: a node of the site falls silent while its check runs. The check is still
// followed. Otherwise its deadline would pass without it, and the site would fail.
func TestDaemonSetIsCheckedBesideASilentNode(t *testing.T) {
	wave := checked(named("all"))
	grid := daemonSetGrid(plain, wave)
	f := newFixture(t, grid)
	f.node("lab-a", "lab")
	f.node("lab-b", "lab")
	f.passes(grid)
	d := f.reportDaemonSet("agent-lab", 2, 2, 2)
	f.passes(grid)
	f.update(grid, func() { grid.Spec.Template = raw(other) })
	f.passes(grid)
	f.loseNode("lab-a", "lab")
	f.create(&appsv1.ControllerRevision{ObjectMeta: madeBy(d, "agent-lab-two", "two"), Revision: 2},
		podOf(d, "lab-a", "two", corev1.ConditionFalse), podOf(d, "lab-b", "two", corev1.ConditionTrue))
	f.reportDaemonSet("agent-lab", 2, 2, 1)
	f.step(askPause)
	f.passes(grid)
	job := f.job()
	job.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobComplete, Status: corev1.ConditionTrue}}
	f.updateStatus(job)
	f.step(askPause)
	f.passes(grid)
	if r := grid.Status.Rollout; r.Phase != v1.RolloutComplete {
		t.Errorf("node b has passed the check, and the rollout is %s: %s", r.Phase, r.Message)
	}
}

// TestDaemonSetWithASilentNode: of the site's three nodes one had the change and fell silent, one has it, one does not:
// the silent one uses up the DaemonSet's maxUnavailable.
func TestDaemonSetWithASilentNode(t *testing.T) {
	for name, c := range map[string]struct {
		desired, updated, available int32
		says                        string
	}{
		"a reachable node has the old pod":           {3, 2, 2, "node c, which is reachable, runs the old version"},
		"the silent node is none of the DaemonSet's": {2, 1, 1, "of two nodes, both reachable, one has the change"},
	} {
		t.Run(name, func(t *testing.T) {
			grid := daemonSetGrid(plain, named("canary", "lab"), named("rest"))
			f := newFixture(t, grid)
			for _, n := range in("a b c") {
				f.node("lab-"+n, "lab")
			}
			f.node("east-a", "east")
			f.passes(grid)
			f.reportDaemonSet("agent-lab", c.desired, c.desired, c.desired)
			f.reportDaemonSet("agent-east", 1, 1, 1)
			f.passes(grid)
			f.update(grid, func() { grid.Spec.Template = raw(other) })
			f.pass(grid)
			f.pass(grid)
			f.loseNode("lab-a", "lab")
			f.reportDaemonSet("agent-lab", c.desired, c.updated, c.available)
			f.passes(grid)
			f.passes(grid)
			east := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "agent-east"}}
			f.get(east)
			if image := east.Spec.Template.Spec.Containers[0].Image; image == "two" {
				t.Errorf("the canary counts as proven, and the next wave has begun: %s", c.says)
			}
		})
	}
}

// lagging is a cache that stands still while frozen.
type lagging struct {
	client.Reader
	frozen *bool
	seen   map[string]*unstructured.UnstructuredList
}

func (l *lagging) List(ctx context.Context, list client.ObjectList, o ...client.ListOption) error {
	u, ok := list.(*unstructured.UnstructuredList)
	if !ok {
		return l.Reader.List(ctx, list, o...)
	}
	key := u.GroupVersionKind().String() + fmt.Sprint(len(o))
	if *l.frozen && l.seen[key] != nil {
		u.Items = l.seen[key].DeepCopy().Items
		return nil
	}
	if err := l.Reader.List(ctx, list, o...); err != nil {
		return err
	}
	l.seen[key] = u.DeepCopy()
	return nil
}

// TestStatusInAStaleCache: a workload is applied again, the status says so, and the cache does not show that status yet
// when the workload is found to be ready, as it was before. An event of the status causes no pass.
func TestStatusInAStaleCache(t *testing.T) {
	f, grid := demo(t, in("east"))
	f.pass(grid)
	f.ready("demo", "east")
	f.pass(grid)
	f.expectSite(grid, "east", v1.SiteReady)
	before := grid.DeepCopy()
	f.edit("demo-east", func(d *appsv1.Deployment) { d.Spec.Template.Spec.Containers[0].Image = "else" })
	f.pass(grid)
	f.expectSite(grid, "east", v1.SiteProgressing)
	f.ready("demo", "east")
	cache := &former{f.reconcilers["DeploymentGrid"].cache, before}
	f.reconcilers["DeploymentGrid"].cache = cache
	f.step(time.Second)
	again := f.reconcile(grid)
	cache.object = nil
	if f.step(again); again > 0 {
		f.reconcile(grid)
	}
	f.get(grid)
	f.expectSite(grid, "east", v1.SiteReady)
}

// TestIdleSiteInAStaleCache: a site without replicas gets the change, and the cache shows that a second later.
func TestIdleSiteInAStaleCache(t *testing.T) {
	sites := in("a b c d e z")
	wave := named("rest")
	wave.Soak = &metav1.Duration{Duration: 10 * time.Minute}
	f, grid := demo(t, sites, rollingIn(named("canary", "a", "b", "c", "d", "e"), wave), func(g *v1.DeploymentGrid) {
		g.Spec.Rollout.Waves[0].Soak = &metav1.Duration{Duration: 10 * time.Minute}
		g.Spec.Rollout.Waves[0].MaxUnavailable = nil
	})
	f.completes(grid, sites...)
	f.edit("demo-z", func(d *appsv1.Deployment) { d.Spec.Replicas = ptr.To[int32](0) })
	f.report("demo-z", appsv1.DeploymentStatus{})
	f.passes(grid)
	frozen := false
	f.reconcilers["DeploymentGrid"].cache = &lagging{f.client, &frozen, map[string]*unstructured.UnstructuredList{}}
	f.template(grid, other)
	for range 400 {
		f.ready("demo", "a", "b", "c", "d", "e")
		f.step(10 * time.Second)
		before := f.image("demo-z")
		f.pass(grid)
		if before == "i" && f.image("demo-z") == "two" {
			break
		}
	}
	proven := grid.Status.Rollout.Proven
	frozen = true // what the cache showed before the apply: the list is from this pass
	f.step(600 * time.Millisecond)
	f.reconcile(grid)
	f.get(grid)
	frozen = false
	least := grid.Status.Rollout.Proven
	if least < proven {
		t.Errorf("the cache lagged for 0.6 s, and %d proven sites became %d", proven, least)
	}
}

// TestProvenWorkloadIsDeleted: somebody deletes the Deployment of a proven site.
func TestProvenWorkloadIsDeleted(t *testing.T) {
	canary := named("canary", "lab")
	canary.Approval = v1.ApprovalManual
	f, grid := demo(t, in("lab east"), rollingIn(canary, named("rest")))
	f.completes(grid, in("lab east")...)
	f.template(grid, other)
	f.rolls(grid, "lab")
	f.expectPhase(grid, v1.RolloutAwaitingApproval, "")
	f.expectImages("demo", map[string]string{"lab": "two"})
	for _, paused := range []bool{false, true} {
		f.update(grid, func() { grid.Spec.Rollout.Paused = paused })
		f.rolls(grid, "lab")
		f.delete(f.deployment("demo-lab"))
		var seen []string
		for range 6 {
			f.step(300 * time.Millisecond)
			f.reconcile(grid)
			if d := f.names(); strings.Contains(d, "demo-lab") {
				seen = append(seen, f.image("demo-lab"))
			}
		}
		f.get(grid)
		if seen[0] != "two" {
			t.Errorf("paused=%t: the proven site's Deployment comes back with the version before: %v", paused, seen)
		}
	}
}

// TestQuotaForAMoment: for a second a quota refuses the surge pod of a rolling update, until the old pod is gone.
func TestQuotaForAMoment(t *testing.T) {
	f, grid := demo(t, in("lab east"), rollingIn(named("canary", "lab"), named("rest")))
	f.completes(grid, in("lab east")...)
	f.template(grid, other)
	f.report("demo-lab", appsv1.DeploymentStatus{
		Replicas: 1, ReadyReplicas: 1, AvailableReplicas: 1, Conditions: []appsv1.DeploymentCondition{{
			Type: appsv1.DeploymentReplicaFailure, Status: corev1.ConditionTrue, Reason: "FailedCreate",
			Message: "exceeded quota",
		}},
	})
	f.pass(grid)
	f.step(time.Second)
	for range 5 {
		f.rolls(grid, "lab", "east")
	}
	if grid.Status.Rollout.Phase != v1.RolloutComplete {
		t.Errorf("a ReplicaFailure that lasted a second ended the rollout")
	}
}

// TestNewGridThatRunsNowhere: a new grid none of whose pods ever runs.
func TestNewGridThatRunsNowhere(t *testing.T) {
	f, grid := demo(t, in("lab east"), rollingIn(named("canary", "lab"), named("rest")))
	f.passes(grid)
	if grid.Status.Rollout.Phase == v1.RolloutComplete && grid.Status.ReadySites == 0 {
		t.Errorf("no pod has run anywhere, and the rollout is Complete")
	}
	f.completes(grid, "lab", "east")
}

// TestNodeRegistersAgain: at the level of the controller.
func TestNodeRegistersAgain(t *testing.T) {
	canary := named("canary", "lab1", "lab2")
	canary.Soak = &metav1.Duration{Duration: 30 * time.Minute}
	f, grid := demo(t, in("lab1 lab2 east"), rollingIn(canary, named("rest")))
	f.completes(grid, in("lab1 lab2 east")...)
	f.template(grid, other)
	for range 60 {
		f.step(time.Minute)
		f.ready("demo", "lab1")
		f.passes(grid)
		if grid.Status.Rollout.Proven == 1 {
			break
		}
	}
	f.passes(grid)
	f.expectImages("demo", map[string]string{"lab1": "two", "lab2": "two", "east": "i"})
	gone := func(site string) {
		f.mu.Lock()
		delete(f.nodes, "node-"+site)
		f.mu.Unlock()
		f.note("node-"+site, nil)
	}
	gone("lab1") // kubectl delete node: the site is closed
	gone("lab2") // kubectl delete node, and the kubelet registers it again
	f.passes(grid)
	f.nodesIn("lab2")
	f.passes(grid)
	f.expectImages("demo", map[string]string{"east": "i"}) // lab2 never was ready
}

// TestCheckOfALongName: the name of a check's Job is cut off at a dot.
func TestCheckOfALongName(t *testing.T) {
	wave := checked(named("canary", "lab"))
	grid := deploymentGrid(strings.Repeat("a", 39)+".b", plain)
	grid.Spec.Rollout = inWaves(wave)
	f := newFixture(t, grid)
	f.nodesIn("lab")
	f.rolls(grid, "lab")
	f.template(grid, other)
	f.rolls(grid, "lab")
	if name := f.job().Name; strings.Contains(name, ".-") {
		t.Errorf("the name %s is not valid", name)
	}
}

// TestGridIsMadeAgain: a grid is deleted and made again at once. The garbage collector has not removed what the former
// one left.
func TestGridIsMadeAgain(t *testing.T) {
	f, grid := demo(t, in("lab"), rollingIn(named("all")))
	f.completes(grid, "lab")
	f.delete(grid)
	f.reconcile(grid)
	again := deploymentGrid("demo", plain)
	again.UID, again.Spec.Rollout = "again", inWaves(named("all"))
	f.create(again)
	f.tries(again)
	f.expectWell(again)
	if again.Status.UpdateRevision == "" {
		t.Errorf("got %+v", again.Status)
	}
}

// TestRolloutInTheMidstOfAChange: a grid gets a rollout while not all sites have its change.
func TestRolloutInTheMidstOfAChange(t *testing.T) {
	f, grid := demo(t, in("a b c"))
	f.rolls(grid, in("a b c")...)
	first := grid.Status.CurrentRevision
	f.failOn("apply demo-c", errBroken)
	f.update(grid, func() { grid.Spec.Template = raw(other) })
	f.tries(grid)
	if s := grid.Status; s.CurrentRevision != first || s.UpdateRevision == first {
		t.Errorf("c does not have it, and the status says %s, %s", s.CurrentRevision, s.UpdateRevision)
	}
	f.failing(nil)
	f.update(grid, func() { grid.Spec.Rollout = inWaves(named("all")) })
	f.pass(grid)
	if s := grid.Status; s.CurrentRevision != first {
		t.Errorf("c does not have it, and the status says %s", s.CurrentRevision)
	}
	f.expectImages("demo", map[string]string{"a": "two", "b": "two"})
	f.completes(grid, in("a b c")...)
	f.expectImages("demo", map[string]string{"a": "two", "b": "two", "c": "two"})
}

// TestDaemonSetRunsNowhere: a template that fits no node is no wish for no pods.
func TestDaemonSetRunsNowhere(t *testing.T) {
	grid := daemonSetGrid(plain, named("canary", "lab"), named("rest"))
	grid.Spec.ProgressDeadlineSeconds = ptr.To[int32](20)
	f := newFixture(t, grid)
	f.nodesIn("lab", "shop")
	f.passes(grid)
	f.reportDaemonSet("agent-lab", 1, 1, 1)
	f.reportDaemonSet("agent-shop", 1, 1, 1)
	f.passes(grid)
	f.update(grid, func() {
		grid.Spec.Template = raw(strings.Replace(plain, `"spec":{`, `"spec":{"nodeSelector":{"no":"where"},`, 1))
	})
	f.passes(grid)
	f.reportDaemonSet("agent-lab", 0, 0, 0)
	for range 10 {
		f.step(5 * time.Second)
		f.passes(grid)
	}
	if r := grid.Status.Rollout; r.Phase != v1.RolloutHalted || !strings.Contains(r.Message, "fits no node") {
		t.Errorf("%s %s", r.Phase, r.Message)
	}
}

// TestSelectorOfTheKey: each workload selects its own site's nodes, whatever the template selects by the grid's key. So
// a template that names one site there takes the pods of no other.
func TestSelectorOfTheKey(t *testing.T) {
	sites := []string{"a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"}
	grid := daemonSetGrid(plain)
	f := newFixture(t, grid)
	f.nodesIn(sites...)
	f.passes(grid)
	for _, site := range sites {
		f.reportDaemonSet("agent-"+site, 1, 1, 1)
	}
	f.passes(grid)
	f.update(grid, func() {
		grid.Spec.Template = raw(strings.Replace(plain, `"spec":{`,
			`"spec":{"nodeSelector":{"zone1":"a"},"priority":1,`, 1))
	})
	f.passes(grid)
	degraded := apimeta.FindStatusCondition(grid.Status.Conditions, v1.ConditionDegraded)
	if degraded != nil && degraded.Status == metav1.ConditionTrue {
		t.Errorf("%s: %s", degraded.Reason, degraded.Message)
	}
	f.node("node-late", "late")
	f.passes(grid)
	f.reportDaemonSet("agent-late", 0, 0, 0)
	f.passes(grid)
	if apimeta.IsStatusConditionTrue(grid.Status.Conditions, v1.ConditionReady) {
		t.Error("the pods of a site that the template does not name are not missed")
	}
}

// TestDaemonSetOfSomeSites: sites whose nodes the template has never fitted are none of it, with waves and without.
// A grid that fits no node at all is not ready.
func TestDaemonSetOfSomeSites(t *testing.T) {
	for _, waves := range []bool{false, true} {
		for _, where := range []string{"lab", "nowhere"} {
			grid := daemonSetGrid(strings.Replace(plain, `"spec":{`, `"spec":{"nodeSelector":{"room":"`+where+`"},`, 1))
			grid.Spec.ProgressDeadlineSeconds = ptr.To[int32](20)
			if waves {
				grid.Spec.Rollout = inWaves(named("canary", "lab"), named("rest"))
			}
			f := newFixture(t, grid)
			f.nodesIn("lab", "shop")
			for _, site := range []string{"lab", "shop"} {
				f.note("node-"+site, &nodeState{
					labels: map[string]string{"zone1": site, "room": site},
				})
			}
			f.passes(grid)
			pods := int32(0)
			if where == "lab" {
				pods = 1
			}
			f.reportDaemonSet("agent-lab", pods, pods, pods)
			f.reportDaemonSet("agent-shop", 0, 0, 0)
			for range 4 {
				f.step(5 * time.Second)
				f.passes(grid)
			}
			ready := apimeta.IsStatusConditionTrue(grid.Status.Conditions, v1.ConditionReady)
			if ready != (where == "lab") {
				t.Errorf("waves %v, %s: ready %v: %+v", waves, where, ready, grid.Status.Conditions)
			}
			if r := grid.Status.Rollout; waves && (r.Phase == v1.RolloutComplete) != ready {
				t.Errorf("%s: %s %s", where, r.Phase, r.Message)
			}
		}
	}
}

// TestOldGridInTheCache: for minutes the cache does not have the last changes of a grid, and a controller that goes on,
// or has just started, undoes nothing.
func TestOldGridInTheCache(t *testing.T) {
	for name, restarts := range map[string]bool{"goes on": false, "starts": true} {
		t.Run(name, func(t *testing.T) {
			f, grid := demo(t, in("east"))
			f.pass(grid)
			before := grid.DeepCopy()
			f.template(grid, other)
			f.pass(grid)
			f.took()
			if restarts {
				f.restart()
			}
			f.reconcilers["DeploymentGrid"].cache = &former{f.client, before}
			for range 3 {
				f.step(time.Minute)
				f.reconcile(grid)
			}
			f.expectTook()
			f.expectImages("demo", map[string]string{"east": "two"})
		})
	}
}
