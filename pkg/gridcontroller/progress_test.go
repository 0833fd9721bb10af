package gridcontroller

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/utils/ptr"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
)

// report writes the status of a Deployment as its controller would.
func (f *fixture) report(name string, status appsv1.DeploymentStatus) {
	f.Helper()
	d := f.deployment(name)
	status.ObservedGeneration = d.Generation
	d.Status = status
	f.updateStatus(d)
}

var running = appsv1.DeploymentStatus{Replicas: 1, UpdatedReplicas: 1, ReadyReplicas: 1, AvailableReplicas: 1}

// TestStalledByCondition: the child's controller says that it cannot go on, while the old pod serves.
func TestStalledByCondition(t *testing.T) {
	for _, condition := range []appsv1.DeploymentCondition{
		{
			Type: appsv1.DeploymentProgressing, Status: corev1.ConditionFalse, Reason: "ProgressDeadlineExceeded",
			Message: "timed out progressing",
		},
		{
			Type: appsv1.DeploymentReplicaFailure, Status: corev1.ConditionTrue, Reason: "FailedCreate",
			Message: "exceeded quota",
		},
	} {
		f, grid := demo(t, in("east west"))
		f.pass(grid)
		set := f.replicaSet(f.deployment("demo-east"))
		f.create(&corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: namespace, Name: "demo-east-1", Labels: set.Labels, OwnerReferences: bySet(set),
			},
			Spec: corev1.PodSpec{NodeSelector: map[string]string{"zone1": "east"}},
			Status: corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: []corev1.ContainerStatus{{
				Name: "c",
				State: corev1.ContainerState{
					Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: "no such image"},
				},
			}}},
		})
		f.report("demo-west", running)
		f.report("demo-east", appsv1.DeploymentStatus{
			Replicas: 2, UpdatedReplicas: 1, ReadyReplicas: 1, AvailableReplicas: 1,
			Conditions: []appsv1.DeploymentCondition{
				{Type: appsv1.DeploymentAvailable, Status: corev1.ConditionTrue}, condition,
			},
		})
		f.told()
		f.pass(grid)
		says := []string{
			"1 of 2 sites make no progress", "east: " + condition.Reason, condition.Message,
			"pod demo-east-1: container c: ImagePullBackOff: no such image",
		}
		f.expect(grid, "Stalled=True SitesStalled", says...)
		f.expect(grid, "Degraded=True SitesStalled", says...)
		f.expect(grid, "Ready=False SitesNotReady", "1 of 2", "east")
		f.expect(grid, "Available=True Ready")
		f.expect(grid, "Progressing=False AsDesired")
		f.expectEvent(f.told(), "Warning", condition.Reason, "east")
		if grid.Status.FailedSites != 1 {
			t.Errorf("got %d failed sites", grid.Status.FailedSites)
		}
		f.report("demo-east", running)
		f.pass(grid)
		f.expect(grid, "Stalled=False AsDesired")
		f.expect(grid, "Ready=True Ready")
	}
}

// TestStalledByTime: no change for the grid's deadline, also across a restart of the controller; progress begins it
// again.
func TestStalledByTime(t *testing.T) {
	f, grid := demo(t, in("east"), func(grid *v1.DeploymentGrid) {
		grid.Spec.Template = raw(with(`"replicas":3`))
		grid.Spec.ProgressDeadlineSeconds = ptr.To[int32](100)
	})
	f.pass(grid)
	for ready := range int32(2) {
		f.report("demo-east", appsv1.DeploymentStatus{
			Replicas: 3, UpdatedReplicas: 3, ReadyReplicas: ready + 1, AvailableReplicas: ready + 1,
		})
		f.pass(grid)
		f.step(90 * time.Second)
	}
	f.restart()
	f.pass(grid)
	f.expectSite(grid, "east", v1.SiteProgressing)
	if again := f.reconcile(grid); again <= 0 || again > 10*time.Second {
		t.Errorf("asks to be called again after %s", again)
	}
	f.step(10 * time.Second)
	f.pass(grid)
	f.expect(grid, "Stalled=True SitesStalled", "no progress for 1m40s; 2 of 3 pods are ready, 3 updated")
	f.update(grid, func() { grid.Spec.Template = raw(with(`"replicas":2`)) })
	f.pass(grid)
	f.expectSite(grid, "east", v1.SiteProgressing)
}

// TestUnreachable: a site whose nodes have all fallen silent is counted apart, and fails nothing.
func TestUnreachable(t *testing.T) {
	f, grid := demo(t, in("east west north"))
	f.pass(grid)
	f.report("demo-west", running)
	f.report("demo-north", running)
	f.lose("east")
	for range 3 {
		f.step(time.Hour)
		f.pass(grid)
	}
	f.expectSite(grid, "east", v1.SiteUnreachable)
	if s := grid.Status; s.UnreachableSites != 1 || s.ReadySites != 2 || s.Sites != 3 || s.FailedSites != 0 {
		t.Errorf("got %+v", s)
	}
	f.expect(grid, "Ready=True Ready", "all 2 sites are ready", "1 more cannot be reached: east")
	f.expect(grid, "Available=True Ready")
	f.expectWell(grid)
	f.expect(grid, "Progressing=False AsDesired")

	f.lose("west", "north")
	f.pass(grid)
	f.expect(grid, "Ready=Unknown SitesUnreachable", "none of 3 sites")

	// Back again, it has the whole deadline.
	f.nodesIn("east")
	f.pass(grid)
	if state := f.expectSite(grid, "east", v1.SiteProgressing); !state.ProgressTime.Time.Equal(f.clock.Now()) {
		t.Errorf("got the state %+v", state)
	}
}

// TestLargeStatus: what is ready is counted and not listed, and what does not fit is left out, and said to be.
func TestLargeStatus(t *testing.T) {
	for _, state := range []v1.SiteState{
		{Phase: v1.SiteReady, Replicas: 2, ReadyReplicas: 2, UpdatedReplicas: 2, AvailableReplicas: 2},
		{Phase: v1.SiteFailed, Reason: v1.ReasonRejected, Message: strings.Repeat("m", 400)},
	} {
		states := map[string]v1.SiteState{}
		for i := range 10_000 {
			states[fmt.Sprintf("site-%05d", i)] = state
		}
		states["site-00000"] = v1.SiteState{Phase: v1.SiteStalled, Reason: "x", Message: "y"}
		status := &summaryOf(states).Status
		shrinkStatus(status, largestStates)
		data, err := json.Marshal(status)
		if err != nil {
			t.Fatal(err)
		}
		listed, ready, omitted := len(status.States), int(status.UnlistedReadySites), int(status.UnlistedSites)
		if len(data) > largestStates+(64<<10) || listed+ready+omitted != 10_000 {
			t.Errorf("%s: %d bytes, %d+%d+%d sites", state.Phase, len(data), listed, ready, omitted)
		}
		if state.Phase == v1.SiteReady && (listed != 1 || ready != 9999) {
			t.Errorf("%d listed, %d ready and unlisted", listed, ready)
		}
		if status.States["site-00000"].Phase != v1.SiteStalled {
			t.Errorf("%s: the site that is stalled is left out", state.Phase)
		}
	}
}

// progressCase is a workload's spec and status, as the controllers of Kubernetes write them, and what is read of them.
type progressCase struct {
	name, spec, status string
	want               progress // its complete, stranded and waits
}

func expectProgress(t *testing.T, of func(name string, spec, status map[string]any) progress, cases []progressCase) {
	t.Helper()
	for _, test := range cases {
		got, want := of("web", parse(t, test.spec), parse(t, test.status)), test.want
		if got.complete != want.complete || got.stranded != want.stranded || got.waits != want.waits {
			t.Errorf("%s: got %+v", test.name, got)
		}
	}
}

func TestDeploymentProgress(t *testing.T) {
	expectProgress(t, deploymentProgress, []progressCase{
		{"replicas left out", `{}`, `{"replicas":1,"updatedReplicas":1,"availableReplicas":1}`,
			progress{complete: true}},
		{"old pods left", `{"replicas":1}`, `{"replicas":2,"updatedReplicas":1,"availableReplicas":1}`, progress{}},
		{"scaled to none", `{"replicas":0}`, `{}`, progress{complete: true}},
	})
}

func TestDaemonSetProgress(t *testing.T) {
	expectProgress(t, daemonSetProgress, []progressCase{
		{"daemon", `{}`, `{"desiredNumberScheduled":2,"updatedNumberScheduled":2,"numberAvailable":2}`,
			progress{complete: true}},
		{"daemon unavailable", `{}`,
			`{"desiredNumberScheduled":2,"updatedNumberScheduled":2,"numberAvailable":1}`, progress{}},
		{"a node is tainted", `{}`, `{"desiredNumberScheduled":1,"updatedNumberScheduled":1,"numberAvailable":1,
			"numberMisscheduled":1}`, progress{complete: true}},
		{"the template fits no node, which a pass judges", `{}`, `{}`, progress{complete: true}},
	})
}

// TestStatefulSetProgress also has the pods that an undo leaves in a StatefulSet, and those that wait for a person.
func TestStatefulSetProgress(t *testing.T) {
	onDelete := `{"replicas":5,"updateStrategy":{"type":"OnDelete"}}`
	expectProgress(t, statefulSetProgress, []progressCase{
		{"set", `{"replicas":2}`, `{"replicas":2,"updatedReplicas":2,"availableReplicas":2}`, progress{complete: true}},
		{"set updating", `{"replicas":2}`,
			`{"replicas":2,"updatedReplicas":1,"availableReplicas":2,"currentReplicas":1,"updateRevision":"b"}`,
			progress{}},
		{"canary", `{"replicas":2,"updateStrategy":{"rollingUpdate":{"partition":1}}}`,
			`{"replicas":2,"updatedReplicas":1,"availableReplicas":2,"currentReplicas":1,"updateRevision":"b"}`,
			progress{complete: true, waits: "updateStrategy.rollingUpdate.partition is 1, and keeps web-0 as before"}},
		{"canary of others",
			`{"replicas":3,"ordinals":{"start":4},"updateStrategy":{"rollingUpdate":{"partition":2}}}`,
			`{"replicas":3,"updatedReplicas":1,"currentReplicas":2,"updateRevision":"b"}`,
			progress{waits: "updateStrategy.rollingUpdate.partition is 2, and keeps web-4, web-5 as before"}},
		{"on delete", onDelete, `{"replicas":5,"currentReplicas":5,"availableReplicas":5,"updateRevision":"b"}`,
			progress{complete: true,
				waits: "5 of 5 pods wait until somebody deletes them (OnDelete): web-0, web-1, web-2 and 2 more"}},
		{"some are deleted", onDelete,
			`{"replicas":5,"updatedReplicas":1,"currentReplicas":4,"availableReplicas":5,"updateRevision":"b"}`,
			progress{complete: true, waits: "4 of 5 pods wait until somebody deletes them (OnDelete): those with " +
				"controller-revision-hash!=b"}},
		{"all are deleted", onDelete, `{"replicas":5,"updatedReplicas":5,"availableReplicas":5}`,
			progress{complete: true}},
		{"a change is on its way", `{}`,
			`{"replicas":3,"updatedReplicas":1,"currentReplicas":2,"currentRevision":"a","updateRevision":"b"}`,
			progress{}},
		{"it was given up", `{}`,
			`{"replicas":3,"updatedReplicas":2,"currentReplicas":2,"currentRevision":"a","updateRevision":"a"}`,
			progress{stranded: 1}},
		{"another change came instead", `{}`,
			`{"replicas":3,"currentReplicas":2,"currentRevision":"a","updateRevision":"c"}`, progress{stranded: 1}},
		{"they are replaced all at once", `{"podManagementPolicy":"Parallel"}`,
			`{"replicas":3,"updatedReplicas":2,"currentReplicas":2,"currentRevision":"a","updateRevision":"a"}`,
			progress{}},
	})
}

func parse(t *testing.T, text string) map[string]any {
	t.Helper()
	var value map[string]any
	if err := utiljson.Unmarshal([]byte(text), &value); err != nil {
		t.Fatal(err)
	}
	return value
}

// job is the only Job.
func (f *fixture) job() *batchv1.Job {
	f.Helper()
	jobs := &batchv1.JobList{}
	if err := f.client.List(f.Context(), jobs); err != nil || len(jobs.Items) != 1 {
		f.Fatalf("%d Jobs, %v", len(jobs.Items), err)
	}
	return &jobs.Items[0]
}

// TestCheckToleratesTaints: the Job of a check runs where its site's pods do, unless its template has tolerations.
func TestCheckToleratesTaints(t *testing.T) {
	const containers = `"containers":[{"name":"c","image":"i"}]`
	for own, want := range map[string]string{"": "edge", `"tolerations":[],`: ""} {
		tolerating := strings.NewReplacer(`"spec":{`, `"spec":{"tolerations":[{"key":"edge","operator":"Exists"}],`)
		wave := named("lab", "lab")
		wave.Check = &v1.Check{Template: raw(`{"template":{"spec":{` + own + containers + `}}}`)}
		f, grid := demo(t, in("lab"), func(grid *v1.DeploymentGrid) {
			grid.Spec.Template, grid.Spec.Rollout = raw(tolerating.Replace(plain)), inWaves(wave)
		})
		f.rolls(grid, "lab")
		f.update(grid, func() { grid.Spec.Template = raw(tolerating.Replace(other)) })
		f.rolls(grid, "lab")
		pod, got := f.job().Spec.Template.Spec, ""
		for _, toleration := range pod.Tolerations {
			got += toleration.Key
		}
		if got != want || pod.NodeSelector["zone1"] != "lab" {
			t.Errorf("got the tolerations %q, want %q; nodeSelector %v", got, want, pod.NodeSelector)
		}
	}
}

// TestWhatAJobDoesNotSay: only a condition of a Job that is true ends a check.
func TestWhatAJobDoesNotSay(t *testing.T) {
	wave := checked(named("lab", "lab"))
	f, grid := demo(t, in("lab"), func(grid *v1.DeploymentGrid) { grid.Spec.Rollout = inWaves(wave) })
	f.rolls(grid, "lab")
	f.update(grid, func() { grid.Spec.Template = raw(other) })
	f.rolls(grid, "lab")
	for _, c := range []struct {
		says  batchv1.JobConditionType
		is    corev1.ConditionStatus
		phase v1.RolloutPhase
	}{
		{batchv1.JobComplete, corev1.ConditionFalse, v1.RolloutSoaking},
		{batchv1.JobFailed, corev1.ConditionUnknown, v1.RolloutSoaking},
		{batchv1.JobSuspended, corev1.ConditionTrue, v1.RolloutSoaking},
		{batchv1.JobComplete, corev1.ConditionTrue, v1.RolloutComplete},
	} {
		job := f.job()
		job.Status.Conditions = []batchv1.JobCondition{{Type: c.says, Status: c.is}}
		f.updateStatus(job)
		f.step(time.Minute)
		f.passes(grid)
		f.expectPhase(grid, c.phase, "")
	}
}

// TestHeardTime: the deadline passes only while a site can be reached and is not ready, and begins again when a node of
// it comes back.
func TestHeardTime(t *testing.T) {
	missing := appsv1.DeploymentStatus{Replicas: 1, UpdatedReplicas: 1}
	f, grid := demo(t, in("east"), stallsSoon)
	f.pass(grid)
	f.report("demo-east", running)
	f.pass(grid)
	f.step(29 * time.Second)
	f.report("demo-east", missing)
	f.pass(grid)
	f.step(2 * time.Second)
	f.pass(grid)
	f.expectSite(grid, "east", v1.SiteProgressing) // it was ready for nearly all of the deadline

	f.node("second", "east")
	f.lose("east")
	f.step(time.Minute)
	f.pass(grid)
	f.expectSite(grid, "east", v1.SiteStalled)
	f.nodesIn("east")
	f.pass(grid)
	f.expectSite(grid, "east", v1.SiteProgressing)

	// A Deployment exceeds its own deadline while its site is silent with the change.
	f, grid = demo(t, in("east west"), rollingIn(named("rest")), stallsSoon)
	f.completes(grid, "east", "west")
	f.template(grid, other)
	f.runs(f.deployment("demo-east"), "node-east")
	f.lose("east")
	f.passes(grid)
	f.step(time.Hour)
	missing.Conditions = []appsv1.DeploymentCondition{{
		Type: appsv1.DeploymentProgressing, Status: corev1.ConditionFalse, Reason: "ProgressDeadlineExceeded",
		Message: "timed out progressing",
	}}
	f.report("demo-east", missing)
	f.passes(grid)
	f.nodesIn("east")
	f.passes(grid)
	f.step(20 * time.Second)
	f.passes(grid)
	if s := grid.Status.Rollout; s.Phase != v1.RolloutProgressing || s.Failed > 0 {
		t.Errorf("it is back: %s %q", s.Phase, s.Message)
	}
	f.step(15 * time.Second)
	f.passes(grid)
	f.expectPhase(grid, v1.RolloutHalted, "1 failed, 0 allowed: east: ")
}

// TestScalingIsNoProgress: an autoscaler changes the replicas of a site that never gets ready, again and again. The
// site is reported all the same.
func TestScalingIsNoProgress(t *testing.T) {
	f, grid := demo(t, in("east"), stallsSoon)
	f.pass(grid)
	for i := range int32(10) {
		f.edit("demo-east", func(d *appsv1.Deployment) { d.Spec.Replicas = ptr.To(1 + i%2) })
		f.report("demo-east", appsv1.DeploymentStatus{Replicas: 1, UpdatedReplicas: 1})
		f.step(10 * time.Second)
		f.pass(grid)
	}
	f.expectSite(grid, "east", v1.SiteStalled)
}

// TestPodsOfAnotherSet: a StatefulSet that somebody made may want billions of pods. The controller names three.
func TestPodsOfAnotherSet(t *testing.T) {
	allocated := testing.AllocsPerRun(1, func() { podsOfSet("web", nil, math.MaxInt32) })
	got := podsOfSet("web", nil, math.MaxInt32)
	if allocated > 100 || got != "web-0, web-1, web-2 and 2147483644 more" {
		t.Errorf("%q, with %.0f allocations", got, allocated)
	}
}
