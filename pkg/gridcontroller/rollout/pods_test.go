package rollout

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestAsk: since when the pods of a site have been ready without a break, by what they tell themselves.
func TestAsk(t *testing.T) {
	t.Parallel()
	base := time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)
	at := func(minute int) metav1.Time { return metav1.NewTime(base.Add(time.Duration(minute) * time.Minute)) }
	// pod was made, and seen by its kubelet, at a minute; its container runs since started, and it is ready since
	// ready.
	pod := func(made, started, ready int, changes ...func(*corev1.Pod)) corev1.Pod {
		start := at(made)
		p := corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{CreationTimestamp: at(made)}, Spec: corev1.PodSpec{NodeName: "n"},
			Status: corev1.PodStatus{
				StartTime: &start,
				Conditions: []corev1.PodCondition{
					{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: at(made)},
					{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: at(ready)},
				},
				ContainerStatuses: []corev1.ContainerStatus{{State: corev1.ContainerState{
					Running: &corev1.ContainerStateRunning{StartedAt: at(started)},
				}}},
			},
		}
		for _, change := range changes {
			change(&p)
		}
		return p
	}
	notReady := func(p *corev1.Pod) { p.Status.Conditions[1].Status = corev1.ConditionFalse }
	unseen := func(p *corev1.Pod) { p.Status.StartTime = nil }
	going := func(p *corev1.Pod) { now := at(20); p.DeletionTimestamp = &now }
	behind := func(p *corev1.Pod) { // the node's clock is ten minutes behind
		start := at(-9)
		p.Status.StartTime = &start
		p.Status.ContainerStatuses[0].State.Running.StartedAt = at(5)
		p.Status.Conditions[1].LastTransitionTime = at(5)
	}
	sound := pod(1, 1, 2)
	for name, c := range map[string]struct {
		pods         []corev1.Pod
		node         Node
		acknowledged bool
		since        int // -1 for never
	}{
		"ready from the start":                   {[]corev1.Pod{pod(1, 1, 2)}, Node{}, true, 2},
		"a container began again":                {[]corev1.Pod{pod(1, 9, 2), pod(1, 1, 2)}, Node{}, true, 9},
		"readiness was lost for a moment":        {[]corev1.Pod{pod(1, 1, 8), pod(1, 1, 2)}, Node{}, true, 8},
		"one is not ready":                       {[]corev1.Pod{sound, pod(1, 1, 2, notReady)}, Node{}, true, -1},
		"one that goes does not count":           {[]corev1.Pod{sound, pod(1, 1, 2, notReady, going)}, Node{}, true, 2},
		"one came later":                         {[]corev1.Pod{pod(1, 1, 2), pod(9, 9, 10)}, Node{}, true, 2},
		"all came later":                         {[]corev1.Pod{pod(9, 9, 10), pod(11, 11, 12)}, Node{}, true, 10},
		"called not ready while the node was":    {[]corev1.Pod{pod(1, 1, 12)}, Node{ReadyAt: at(12).Time}, true, 1},
		"began again while the node was silent":  {[]corev1.Pod{pod(1, 11, 12)}, Node{ReadyAt: at(12).Time}, true, 11},
		"the node is silent":                     {[]corev1.Pod{pod(1, 1, 2)}, Node{Silent: true}, true, -1},
		"no kubelet has seen it":                 {[]corev1.Pod{pod(1, 1, 2, unseen, notReady)}, Node{}, false, -1},
		"it is older than the change":            {[]corev1.Pod{pod(-9, -9, -8)}, Node{}, false, -8},
		"the node's clock is ten minutes behind": {[]corev1.Pod{pod(1, 1, 2, behind)}, Node{}, true, 15},
		"there are none":                         {nil, Node{}, false, -1},
	} {
		got := Ask(c.pods, map[string]Node{"n": c.node}, at(0).Time, at(3).Time)
		want := time.Time{}
		if c.since != -1 {
			want = at(c.since).Time
		}
		if off := got.ReadySince.Sub(want).Abs(); got.Acknowledged != c.acknowledged || off > 2*time.Second ||
			got.ReadySince.IsZero() != want.IsZero() {
			t.Errorf("%s: got %+v, want %v", name, got, want)
		}
	}
}
