package gridview

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
)

// TestWhyNotReady: the first pod of the site that is not ready, and what its status says.
func TestWhyNotReady(t *testing.T) {
	pod := func(name, site string, status corev1.PodStatus) corev1.Pod {
		return corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: corev1.PodSpec{NodeSelector: map[string]string{"zone1": site}}, Status: status}
	}
	condition := func(of corev1.PodConditionType, status corev1.ConditionStatus, reason,
		message string) []corev1.PodCondition {
		return []corev1.PodCondition{{Type: of, Status: status, Reason: reason, Message: message}}
	}
	waiting := func(reason, message string) []corev1.ContainerStatus {
		return []corev1.ContainerStatus{{Name: "c",
			State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}}}
	}
	ready := corev1.PodStatus{Conditions: condition(corev1.PodReady, corev1.ConditionTrue, "", "")}
	deleted := pod("p0", "east", corev1.PodStatus{})
	deleted.DeletionTimestamp = &metav1.Time{Time: now}
	for _, test := range []struct {
		name   string
		status corev1.PodStatus
		want   string
	}{
		{"no node", corev1.PodStatus{Conditions: condition(corev1.PodScheduled, corev1.ConditionFalse, "Unschedulable",
			"0/3 nodes are available: 3 taints. preemption: 0/3 nodes")}, "Unschedulable: 0/3 nodes are available: 3 " +
			"taints."},
		{"no image", corev1.PodStatus{ContainerStatuses: waiting("ImagePullBackOff", "Back-off pulling image")},
			"container c: ImagePullBackOff: Back-off pulling image"},
		{"first container", corev1.PodStatus{InitContainerStatuses: waiting("CrashLoopBackOff", ""),
			ContainerStatuses: waiting("PodInitializing", "")}, "container c: CrashLoopBackOff"},
		{"ended", corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{Name: "c",
			State: corev1.ContainerState{
				Terminated: &corev1.ContainerStateTerminated{ExitCode: 137, Reason: "OOMKilled"},
			}}}},
			"container c ended with exit code 137: OOMKilled"},
		{"not ready",
			corev1.PodStatus{Conditions: condition(corev1.PodReady, corev1.ConditionFalse, "ContainersNotReady",
				"containers with unready status: [c]")}, "ContainersNotReady: containers with unready status: [c]"},
		{"new", corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: waiting("ContainerCreating", "")},
			"it is pending"},
	} {
		g := grid(1)
		g.Status = v1.WorkloadGridStatus{
			ObservedGeneration: 1, Conditions: conditions(metav1.ConditionFalse, v1.ReasonSitesNotReady, ""),
			States: map[string]v1.SiteState{"east": {Phase: v1.SiteProgressing, Replicas: 2, ReadyReplicas: 1}},
		}
		s := Surroundings{Now: now,
			Pods: []corev1.Pod{pod("p2", "east", corev1.PodStatus{}), pod("p1", "east", test.status),
				pod("p", "west", corev1.PodStatus{}), pod("a", "east", ready), deleted}}
		answer := Workloads(v1.DeploymentGridKind, g, s)
		if got, want := answer.Sites[0].Problem, "1 of 2 pods not ready; pod p1: "+test.want; got != want {
			t.Errorf("%s: got %q, want %q", test.name, got, want)
		}
	}
}
