package rollout

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// skew is how far apart times may be that two clocks, or two reports of one kubelet, give to one moment.
const skew = time.Minute

// Pods is what the pods of a site tell. ReadySince is since when they have been ready without a break; zero if one is
// not ready, or if there are none. Acknowledged: a kubelet has seen one that came with the change.
type Pods struct {
	Acknowledged bool
	ReadySince   time.Time
}

// Node is the state of a node: whether the control plane has lost contact with it, and when its kubelet last became
// ready.
type Node struct {
	Silent  bool
	ReadyAt time.Time
}

// Ask reads what the pods of a site tell. They are all pods of its workload on its nodes; since is when the site got
// the change, and ready when it was first ready with it, zero if it never was. Pods that came later are no break,
// unless no other is left. What silent nodes had is not known.
func Ask(pods []corev1.Pod, nodes map[string]Node, since, ready time.Time) Pods {
	var out Pods
	var first, later time.Time
	sound := true
	for i := range pods {
		pod := &pods[i]
		if pod.Status.StartTime != nil && pod.CreationTimestamp.After(since.Add(-skew)) {
			out.Acknowledged = true
		}
		node, known := nodes[pod.Spec.NodeName]
		if !known || node.Silent || pod.DeletionTimestamp != nil || pod.Status.Phase == corev1.PodFailed ||
			pod.Status.Phase == corev1.PodSucceeded {
			continue
		}
		unbroken, ok := unbrokenSince(pod, node)
		switch {
		case !ok:
			sound = false
		case !ready.IsZero() && pod.CreationTimestamp.After(ready):
			if later.IsZero() || unbroken.Before(later) {
				later = unbroken
			}
		case unbroken.After(first):
			first = unbroken
		}
	}
	switch {
	case !sound:
	case first.IsZero():
		out.ReadySince = later
	default:
		out.ReadySince = first
	}
	return out
}

// unbrokenSince returns since when a pod has been ready, and none of its containers has restarted. That the control
// plane called it not ready while its node was silent is no break. The times are the node's: a clock that is behind
// shows by a kubelet that saw the pod before it was scheduled.
func unbrokenSince(pod *corev1.Pod, node Node) (time.Time, bool) {
	var readyAt, scheduled time.Time
	ready := false
	for _, condition := range pod.Status.Conditions {
		switch condition.Type {
		case corev1.PodReady:
			ready, readyAt = condition.Status == corev1.ConditionTrue, condition.LastTransitionTime.Time
		case corev1.PodScheduled:
			scheduled = condition.LastTransitionTime.Time
		default:
		}
	}
	if !ready {
		return time.Time{}, false
	}
	var behind time.Duration
	if start := pod.Status.StartTime; start != nil && !scheduled.IsZero() {
		behind = max(scheduled.Sub(start.Time)-time.Second, 0)
	}
	var since time.Time
	// An init container that runs is a sidecar.
	for _, status := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		if status.State.Running != nil && status.State.Running.StartedAt.After(since) {
			since = status.State.Running.StartedAt.Time
		}
	}
	returned := readyAt.Sub(node.ReadyAt).Abs() <= skew
	if readyAt.After(since) && (!returned || since.IsZero()) {
		since = readyAt
	}
	return since.Add(behind), true
}
