package gridcontroller

import (
	"encoding/json"
	"fmt"
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
	if err := f.client.Status().Update(f.Context(), d); err != nil {
		f.Fatal(err)
	}
}

var running = appsv1.DeploymentStatus{Replicas: 1, UpdatedReplicas: 1, ReadyReplicas: 1, AvailableReplicas: 1}

// TestStalledByCondition: the child's controller says that it cannot go on, while the old pod serves.
func TestStalledByCondition(t *testing.T) {
	for reason, condition := range map[string]appsv1.DeploymentCondition{
		"ProgressDeadlineExceeded": {
			Type: appsv1.DeploymentProgressing, Status: corev1.ConditionFalse, Reason: "ProgressDeadlineExceeded",
			Message: "timed out progressing",
		},
		"FailedCreate": {
			Type: appsv1.DeploymentReplicaFailure, Status: corev1.ConditionTrue, Reason: "FailedCreate",
			Message: "exceeded quota",
		},
	} {
		grid := deploymentGrid("demo", plain)
		f := newFixture(t, grid, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: namespace, Name: "demo-east-1", Labels: map[string]string{"app": "x"},
			},
			Spec: corev1.PodSpec{NodeSelector: map[string]string{"zone1": "east"}},
			Status: corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: []corev1.ContainerStatus{{
				Name: "c",
				State: corev1.ContainerState{
					Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: "no such image"},
				},
			}}},
		})
		f.node("n1", "east")
		f.node("n2", "west")
		f.pass(grid)
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
			"1 of 2 units make no progress", "east: " + reason, condition.Message,
			"pod demo-east-1: container c: ImagePullBackOff: no such image",
		}
		f.expectCondition(grid.Status.Conditions, v1.ConditionStalled, metav1.ConditionTrue, v1.ReasonUnitsStalled,
			says...)
		f.expectCondition(grid.Status.Conditions, v1.ConditionDegraded, metav1.ConditionTrue, v1.ReasonUnitsStalled,
			says...)
		f.expectCondition(grid.Status.Conditions, v1.ConditionReady, metav1.ConditionFalse, v1.ReasonUnitsNotReady,
			"1 of 2", "east")
		f.expectCondition(grid.Status.Conditions, v1.ConditionAvailable, metav1.ConditionTrue, v1.ReasonReady)
		f.expectCondition(grid.Status.Conditions, v1.ConditionProgressing, metav1.ConditionFalse, v1.ReasonAsDesired)
		f.expectEvent(f.told(), "Warning", reason, "east")
		if grid.Status.FailedUnits != 1 {
			t.Errorf("got %d failed units", grid.Status.FailedUnits)
		}
		f.report("demo-east", running)
		f.pass(grid)
		f.expectCondition(grid.Status.Conditions, v1.ConditionStalled, metav1.ConditionFalse, v1.ReasonAsDesired)
		f.expectCondition(grid.Status.Conditions, v1.ConditionReady, metav1.ConditionTrue, v1.ReasonReady)
	}
}

// TestStalledByTime: no change for the grid's deadline, also across a restart of the controller; progress begins it
// anew.
func TestStalledByTime(t *testing.T) {
	grid := deploymentGrid("demo", strings.Replace(plain, `{"selector"`, `{"replicas":3,"selector"`, 1))
	grid.Spec.ProgressDeadlineSeconds = ptr.To[int32](100)
	f := newFixture(t, grid)
	f.node("n1", "east")
	f.pass(grid)
	f.report("demo-east", appsv1.DeploymentStatus{
		Replicas: 3, UpdatedReplicas: 3, ReadyReplicas: 1, AvailableReplicas: 1,
	})
	f.pass(grid)
	f.step(90 * time.Second)
	f.report("demo-east", appsv1.DeploymentStatus{
		Replicas: 3, UpdatedReplicas: 3, ReadyReplicas: 2, AvailableReplicas: 2,
	})
	f.pass(grid)
	f.step(90 * time.Second)
	f.restart()
	f.pass(grid)
	if phase := grid.Status.States["east"].Phase; phase != v1.UnitProgressing {
		t.Errorf("it is %s", phase)
	}
	if again := f.reconcile(grid); again <= 0 || again > 10*time.Second {
		t.Errorf("asks to be called again after %s", again)
	}
	f.step(10 * time.Second)
	f.pass(grid)
	f.expectCondition(grid.Status.Conditions, v1.ConditionStalled, metav1.ConditionTrue, v1.ReasonUnitsStalled,
		"no progress for 1m40s; 2 of 3 pods are ready, 3 updated")
	f.update(grid, func() {
		grid.Spec.Template = raw(strings.Replace(plain, `{"selector"`, `{"replicas":2,"selector"`, 1))
	})
	f.pass(grid)
	if phase := grid.Status.States["east"].Phase; phase != v1.UnitProgressing {
		t.Errorf("it is %s after a change of the template", phase)
	}
}

// TestUnreachable: a unit whose nodes have all fallen silent is counted apart, and fails nothing.
func TestUnreachable(t *testing.T) {
	grid := deploymentGrid("demo", plain)
	f := newFixture(t, grid)
	for _, unit := range []string{"east", "west", "north"} {
		f.node(unit, unit)
	}
	f.pass(grid)
	f.report("demo-west", running)
	f.report("demo-north", running)
	f.lose("east", "east")
	for range 3 {
		f.step(time.Hour)
		f.pass(grid)
	}
	if state := grid.Status.States["east"]; state.Phase != v1.UnitUnreachable || grid.Status.UnreachableUnits != 1 ||
		grid.Status.ReadyUnits != 2 || grid.Status.Units != 3 || grid.Status.FailedUnits != 0 {
		t.Errorf("got %+v", grid.Status)
	}
	f.expectCondition(grid.Status.Conditions, v1.ConditionReady, metav1.ConditionTrue, v1.ReasonReady,
		"all 2 units are ready", "1 more cannot be reached: east")
	f.expectCondition(grid.Status.Conditions, v1.ConditionAvailable, metav1.ConditionTrue, v1.ReasonReady)
	f.expectCondition(grid.Status.Conditions, v1.ConditionDegraded, metav1.ConditionFalse, v1.ReasonAsDesired)
	f.expectCondition(grid.Status.Conditions, v1.ConditionProgressing, metav1.ConditionFalse, v1.ReasonAsDesired)

	f.lose("west", "west")
	f.lose("north", "north")
	f.pass(grid)
	f.expectCondition(grid.Status.Conditions, v1.ConditionReady, metav1.ConditionUnknown, v1.ReasonUnitsUnreachable,
		"none of 3 units")

	// Back again, it has the whole deadline.
	f.node("east", "east")
	f.pass(grid)
	if state := grid.Status.States["east"]; state.Phase != v1.UnitProgressing ||
		!state.ProgressTime.Time.Equal(f.clock.Now()) {
		t.Errorf("got the state %+v", state)
	}
}

// TestLargeStatus: what is ready is counted and not listed, and what does not fit is left out, and said to be.
func TestLargeStatus(t *testing.T) {
	for name, test := range map[string]struct {
		state                  v1.UnitState
		listed, ready, omitted int
	}{
		"ready": {
			v1.UnitState{Phase: v1.UnitReady, Replicas: 2, ReadyReplicas: 2, UpdatedReplicas: 2, AvailableReplicas: 2},
			1, 9999, 0,
		},
		"failing": {
			v1.UnitState{Phase: v1.UnitFailed, Reason: v1.ReasonRejected, Message: strings.Repeat("m", 400)}, 0, 0, 0,
		},
	} {
		states := map[string]v1.UnitState{}
		for i := range 10_000 {
			states[fmt.Sprintf("unit-%05d", i)] = test.state
		}
		states["unit-00000"] = v1.UnitState{Phase: v1.UnitStalled, Reason: "x", Message: "y"}
		var status v1.WorkloadGridStatus
		passOf(1, states).summarize(&status)
		fit(&status, largestStates)
		data, err := json.Marshal(status)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("10,000 units, %s: %d listed, %d ready ones and %d others not; %d bytes",
			name, len(status.States), status.UnlistedReadyUnits, status.UnlistedUnits, len(data))
		if len(data) > largestStates+(64<<10) ||
			len(status.States)+int(status.UnlistedReadyUnits)+int(status.UnlistedUnits) != 10_000 {
			t.Errorf("%s: %d bytes, %d+%d+%d units",
				name, len(data), len(status.States), status.UnlistedReadyUnits, status.UnlistedUnits)
		}
		if test.listed > 0 && (len(status.States) != test.listed || int(status.UnlistedReadyUnits) != test.ready) {
			t.Errorf("%s: %d listed, %d ready and unlisted", name, len(status.States), status.UnlistedReadyUnits)
		}
		if status.States["unit-00000"].Phase != v1.UnitStalled {
			t.Errorf("%s: the unit that is stalled is left out", name)
		}
	}
}

// TestStrandedPods: those that an undo leaves in a StatefulSet, by the status that kube-controller-manager writes.
func TestStrandedPods(t *testing.T) {
	for _, c := range []struct {
		name, spec, status string
		stranded           int64
	}{
		{
			"a change is on its way", `{}`,
			`{"replicas":3,"updatedReplicas":1,"currentReplicas":2,"currentRevision":"a","updateRevision":"b"}`, 0,
		},
		{
			"it was given up", `{}`,
			`{"replicas":3,"updatedReplicas":2,"currentReplicas":2,"currentRevision":"a","updateRevision":"a"}`, 1,
		},
		{
			"another change came instead", `{}`,
			`{"replicas":3,"currentReplicas":2,"currentRevision":"a","updateRevision":"c"}`, 1,
		},
		{
			"they are replaced all at once", `{"podManagementPolicy":"Parallel"}`,
			`{"replicas":3,"updatedReplicas":2,"currentReplicas":2,"currentRevision":"a","updateRevision":"a"}`, 0,
		},
	} {
		var spec, status map[string]any
		for text, into := range map[string]*map[string]any{c.spec: &spec, c.status: &status} {
			if err := utiljson.Unmarshal([]byte(text), into); err != nil {
				t.Fatal(err)
			}
		}
		if p := statefulSetProgress("web", spec, status); p.stranded != c.stranded {
			t.Errorf("%s: %d pods are stranded, want %d", c.name, p.stranded, c.stranded)
		}
	}
}

// TestWaitingPods: the status names the pods that wait for a person.
func TestWaitingPods(t *testing.T) {
	for _, c := range []struct{ spec, status, want string }{
		{
			`{"replicas":5,"updateStrategy":{"type":"OnDelete"}}`, `{"replicas":5}`,
			"5 of 5 pods wait until somebody deletes them (OnDelete): web-0, web-1, web-2 and 2 more",
		},
		{
			`{"replicas":5,"updateStrategy":{"type":"OnDelete"}}`,
			`{"replicas":5,"updatedReplicas":1,"updateRevision":"b"}`,
			"4 of 5 pods wait until somebody deletes them (OnDelete): those with controller-revision-hash!=b",
		},
		{`{"replicas":1,"updateStrategy":{"type":"OnDelete"}}`, `{"replicas":1,"updatedReplicas":1}`, ""},
		{
			`{"replicas":3,"ordinals":{"start":4},"updateStrategy":{"rollingUpdate":{"partition":2}}}`,
			`{"replicas":3,"updatedReplicas":1}`,
			"updateStrategy.rollingUpdate.partition is 2, and keeps web-4, web-5 as before",
		},
	} {
		if p := statefulSetProgress("web", parse(t, c.spec), parse(t, c.status)); p.waits != c.want {
			t.Errorf("got %q, want %q", p.waits, c.want)
		}
	}
}

// TestCheckToleratesTaints: the Job of a check runs where its unit's pods do, unless its template has tolerations.
func TestCheckToleratesTaints(t *testing.T) {
	const containers = `"containers":[{"name":"c","image":"i"}]`
	for own, want := range map[string]string{"": "edge", `"tolerations":[],`: ""} {
		template := strings.Replace(plain, `"spec":{`, `"spec":{"tolerations":[{"key":"edge","operator":"Exists"}],`, 1)
		grid := deploymentGrid("demo", template)
		wave := named("lab", "lab")
		wave.Check = &v1.Check{Template: raw(`{"template":{"spec":{` + own + containers + `}}}`)}
		grid.Spec.Rollout = inWaves(wave)
		f := newFixture(t, grid)
		f.node("node-lab", "lab")
		f.passes(grid)
		f.ready("demo", "lab")
		f.passes(grid)
		f.update(grid, func() { grid.Spec.Template = raw(strings.Replace(template, `"i"`, `"j"`, 1)) })
		f.passes(grid)
		f.ready("demo", "lab")
		f.passes(grid)
		jobs := &batchv1.JobList{}
		if err := f.client.List(f.Context(), jobs); err != nil || len(jobs.Items) != 1 {
			t.Fatalf("%d Jobs, %v", len(jobs.Items), err)
		}
		pod, got := jobs.Items[0].Spec.Template.Spec, ""
		for _, toleration := range pod.Tolerations {
			got += toleration.Key
		}
		if got != want || pod.NodeSelector["zone1"] != "lab" {
			t.Errorf("got the tolerations %q, want %q; nodeSelector %v", got, want, pod.NodeSelector)
		}
	}
}
