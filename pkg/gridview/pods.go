package gridview

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// why returns the problem of the first of a site's pods that is not ready, in the form of the end of a sentence; "" if
// it is not known. A site's pods are recognised by the node selector from their workload, because their labels are the
// same in all sites.
func (s Surroundings) why(key, site string) string {
	problem := FirstPodProblem(s.Pods, key, site)
	switch {
	case problem == "":
		return ""
	case s.PodsOld:
		return "; when pods could last be read, " + problem
	}
	return "; " + problem
}

// FirstPodProblem returns the problem of the first of a site's pods, by name, that is not ready; "" if all are. Without
// a key it looks at all pods.
func FirstPodProblem(pods []corev1.Pod, key, site string) string {
	var first *corev1.Pod
	for i := range pods {
		pod := &pods[i]
		of, _ := SiteOf(pod.Spec.NodeSelector, key)
		if key != "" && of != site || pod.DeletionTimestamp != nil || IsReady(pod) {
			continue
		}
		if first == nil || pod.Name < first.Name {
			first = pod
		}
	}
	if first == nil {
		return ""
	}
	return fmt.Sprintf("pod %s: %s", first.Name, PodProblem(first))
}

// IsReady reports whether a pod has the condition Ready.
func IsReady(pod *corev1.Pod) bool {
	return PodCondition(pod, corev1.PodReady).Status == corev1.ConditionTrue
}

// PodCondition returns a condition of a pod; an empty one if it does not have it.
func PodCondition(pod *corev1.Pod, of corev1.PodConditionType) (found corev1.PodCondition) {
	for _, c := range pod.Status.Conditions {
		if c.Type == of {
			found = c
		}
	}
	return found
}

// PodProblem returns why a pod is not ready: it was not scheduled, a container does not start or has ended, or the
// message of its condition Ready.
func PodProblem(pod *corev1.Pod) string {
	if scheduled := PodCondition(pod, corev1.PodScheduled); scheduled.Status == corev1.ConditionFalse {
		// The rest of the message says at length that evicting others would not help either.
		message, _, _ := strings.Cut(scheduled.Message, " preemption: ")
		return phrase(scheduled.Reason, message)
	}
	for _, c := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		// Every container waits a moment with these reasons, for others or for its start.
		if w := c.State.Waiting; w != nil && w.Reason != "" && w.Reason != "ContainerCreating" &&
			w.Reason != "PodInitializing" {
			why := fmt.Sprintf("container %s: %s", c.Name, phrase(w.Reason, w.Message))
			if last := c.LastTerminationState.Terminated; last != nil {
				why += fmt.Sprintf("; it ended last with exit code %d: %s", last.ExitCode, phrase(last.Reason,
					last.Message))
			}
			return why
		}
		if t := c.State.Terminated; t != nil && t.ExitCode != 0 {
			return fmt.Sprintf("container %s ended with exit code %d: %s",
				c.Name, t.ExitCode, phrase(t.Reason, t.Message))
		}
	}
	if ready := PodCondition(pod, corev1.PodReady); ready.Reason != "" || ready.Message != "" {
		return phrase(ready.Reason, ready.Message)
	}
	return "it is " + strings.ToLower(string(pod.Status.Phase))
}

func phrase(reason, message string) string {
	if reason == "" || message == "" {
		return reason + message
	}
	return reason + ": " + message
}
