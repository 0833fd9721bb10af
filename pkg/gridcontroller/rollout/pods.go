package rollout

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/application-grid/application-grid/pkg/gridview"
)

const (
	// mostPods is the largest number of pods of a site that are compared to find an interruption.
	mostPods = 10
	// podMark and containersMark are the lengths of the parts of a mark: the hashes of a pod's UID and its containers.
	podMark, containersMark = 6, 4
)

// Pods is the state of a site's pods at a time of the controller's clock.
type Pods struct {
	At time.Time
	// Acknowledged: a kubelet has seen a pod of the newest template.
	Acknowledged bool
	// Marks identify the ready pods on reachable nodes, Unready the other ones there, without those that are being
	// deleted. Current is how many of the ready ones have the newest template, if the workload's pods show that, and
	// Lacking how many reachable nodes want a pod and have none of those.
	Marks, Unready   []string
	Current, Lacking int
	// Silent are the marks of the pods on silent nodes, Missing how many of them are not ready.
	Silent  []string
	Missing int
}

// Node is a node of a site. Wants: the pods of a DaemonSet fit it.
type Node struct{ Silent, Wants bool }

// SummarizePods summarizes the pods of a site: all pods of its workload on its nodes, and those without a node. newest
// reports whether a pod was made of the newest template, and at is when the pods were read.
func SummarizePods(pods []corev1.Pod, nodes map[string]Node, newest func(*corev1.Pod) bool, at time.Time) Pods {
	out, served := Pods{At: at}, map[string]bool{}
	for i := range pods {
		pod := &pods[i]
		if pod.Status.StartTime != nil && newest(pod) {
			out.Acknowledged = true
		}
		ready := gridview.IsReady(pod)
		switch over := pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded; {
		case nodes[pod.Spec.NodeName].Silent:
			out.Silent = append(out.Silent, markOf(pod))
			if !ready || pod.DeletionTimestamp != nil {
				out.Missing++
			}
		case over, pod.DeletionTimestamp != nil:
		case ready:
			out.Marks = append(out.Marks, markOf(pod))
			if newest(pod) {
				out.Current++
				served[pod.Spec.NodeName] = true
			}
		default:
			out.Unready = append(out.Unready, markOf(pod))
		}
	}
	for name, node := range nodes {
		if node.Wants && !node.Silent && !served[name] {
			out.Lacking++
		}
	}
	slices.Sort(out.Marks)
	return out
}

// markOf identifies a pod and its containers. A sidecar is an init container that runs.
func markOf(pod *corev1.Pod) string {
	var ids strings.Builder
	for _, status := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		if status.State.Running != nil {
			fmt.Fprintf(&ids, "%s=%s/%d\n", status.Name, status.ContainerID, status.RestartCount)
		}
	}
	return hashOf(string(pod.UID)+"\n"+pod.Name, podMark) + hashOf(ids.String(), containersMark)
}

// readyWhereHeard reports whether each reachable node that the template fits, and at least one, has a pod of the newest
// template, and all pods there are such, and ready.
func (p *Pods) readyWhereHeard() bool {
	return p.Current > 0 && len(p.Unready) == 0 && p.Current == len(p.Marks) && p.Lacking == 0
}

// since compares with the marks of earlier pods. same is set if all of them are still ready, with the same containers.
// replaced is set if one of them no longer exists.
func (p *Pods) since(before []string) (same, replaced bool) {
	same = true
	for _, mark := range before {
		if slices.Contains(p.Marks, mark) {
			continue
		}
		same = false
		there := func(other string) bool { return strings.HasPrefix(other, mark[:podMark]) }
		replaced = replaced || !slices.ContainsFunc(p.Marks, there) && !slices.ContainsFunc(p.Unready, there)
	}
	return same, replaced
}
