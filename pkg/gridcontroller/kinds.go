package gridcontroller

import (
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/application-grid/application-grid/pkg/apis/enumerate"
	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/gridcontroller/gridchild"
)

// progressOf has functions that read the progress from the spec and status of a live child, by the child's kind.
// Services have no pods, and none.
var progressOf = map[string]func(name string, spec, status map[string]any) progress{
	v1.DeploymentGridKind.Child.Kind:  deploymentProgress,
	v1.StatefulSetGridKind.Child.Kind: statefulSetProgress,
	v1.DaemonSetGridKind.Child.Kind:   daemonSetProgress,
}

// progress is the progress of the child's own controller.
type progress struct {
	replicas, updated, ready, available int64
	// none is set if a person wants no pods: spec.replicas is 0. For a DaemonSet see pass.excludes.
	none bool
	// complete is set if all pods of the spec exist and are available. A rollout that waits for the user (a partition,
	// OnDelete) is complete. strays is how many nodes have a pod of a DaemonSet whose status does not count it, because
	// a taint keeps new ones away.
	complete bool
	strays   int64
	// waits describes pods that wait until a person replaces them; empty if none do.
	waits string
	// stranded is how many pods have the template of an abandoned attempt: neither the newest template nor the former
	// one. With podManagementPolicy OrderedReady they are not replaced while one is not ready.
	stranded int64
	// serves is set if enough pods are available, new or old ones.
	serves bool
	// stuck is why the child's controller makes no progress. Its Reason is empty if the controller does not report
	// that.
	stuck gridchild.Error
}

// onDelete is the update strategy with which a person replaces pods.
const onDelete = "OnDelete"

// waitForDeletion describes the pods that wait until a person deletes them; "" if none do.
func (p *progress) waitForDeletion(which string) string {
	if p.updated >= p.replicas {
		return ""
	}
	return fmt.Sprintf("%d of %d pods wait until somebody deletes them (OnDelete): %s", p.replicas-p.updated,
		p.replicas, which)
}

// podsOfSet names the first pods of a StatefulSet, which may be somebody else's and want billions.
func podsOfSet(name string, spec map[string]any, pods int64) string {
	first := integer(spec, "ordinals", "start")
	names := make([]string, 0, 3)
	for ordinal := range min(pods, 3) {
		names = append(names, fmt.Sprintf("%s-%d", name, first+ordinal))
	}
	return enumerate.FirstOf(names, int(pods))
}

func integer(object map[string]any, fields ...string) int64 {
	value, _, _ := unstructured.NestedInt64(object, fields...) // 0 if the field is not a number
	return value
}

// replicasOf returns spec.replicas, whose default is 1.
func replicasOf(spec map[string]any) int64 {
	if _, ok := spec["replicas"]; !ok {
		return 1
	}
	return integer(spec, "replicas")
}

func countPods(spec, status map[string]any) progress {
	return progress{
		replicas: replicasOf(spec), none: replicasOf(spec) == 0, updated: integer(status, "updatedReplicas"),
		ready: integer(status, "readyReplicas"), available: integer(status, "availableReplicas"),
	}
}

func deploymentProgress(_ string, spec, status map[string]any) progress {
	p := countPods(spec, status)
	p.complete = p.updated >= p.replicas && p.available >= p.replicas && integer(status, "replicas") <= p.updated
	p.serves = p.available >= p.replicas
	conditions, _ := status["conditions"].([]any)
	for _, condition := range conditions {
		c, _ := condition.(map[string]any) // nil if it is none
		reason, _ := c["reason"].(string)
		message, _ := c["message"].(string)
		switch {
		case c["type"] == "Available" && c["status"] == "True":
			p.serves = true
		// A ReplicaFailure says why pods cannot be created, so it takes precedence over the lack of progress.
		case c["type"] == "ReplicaFailure" && c["status"] == "True",
			c["type"] == "Progressing" && c["status"] == "False" && reason != "DeploymentPaused" &&
				p.stuck.Reason == "":
			p.stuck = gridchild.Error{Reason: reason, Message: gridchild.Shorten(message)}
		}
	}
	return p
}

func statefulSetProgress(name string, spec, status map[string]any) progress {
	p := countPods(spec, status)
	toUpdate := p.replicas
	if strategy, _, _ := unstructured.NestedString(spec, "updateStrategy", "type"); strategy == onDelete {
		which := fmt.Sprintf("those with controller-revision-hash!=%s", status["updateRevision"])
		if p.updated == 0 {
			which = podsOfSet(name, spec, p.replicas)
		}
		toUpdate, p.waits = 0, p.waitForDeletion(which)
	} else if partition := integer(spec, "updateStrategy", "rollingUpdate", "partition"); partition > 0 {
		toUpdate -= partition
		if p.updated < p.replicas {
			p.waits = fmt.Sprintf("updateStrategy.rollingUpdate.partition is %d, and keeps %s as before", partition,
				podsOfSet(name, spec, min(partition, p.replicas)))
		}
	}
	if policy, _, _ := unstructured.NestedString(spec, "podManagementPolicy"); policy != "Parallel" {
		p.stranded = integer(status, "replicas") - p.updated
		if status["currentRevision"] != status["updateRevision"] {
			p.stranded -= integer(status, "currentReplicas")
		}
	}
	p.complete = p.updated >= toUpdate && p.available >= p.replicas && integer(status, "replicas") <= p.replicas
	p.serves = p.available > 0 || p.replicas == 0
	return p
}

func daemonSetProgress(_ string, spec, status map[string]any) progress {
	p := progress{
		replicas: integer(status, "desiredNumberScheduled"), updated: integer(status, "updatedNumberScheduled"),
		ready: integer(status, "numberReady"), available: integer(status, "numberAvailable"),
		strays: integer(status, "numberMisscheduled"),
	}
	strategy, _, _ := unstructured.NestedString(spec, "updateStrategy", "type")
	if strategy == onDelete {
		// The status of a DaemonSet does not name the newest revision.
		p.waits = p.waitForDeletion("those without the newest controller-revision-hash")
	}
	p.complete = (p.updated >= p.replicas || strategy == onDelete) && p.available >= p.replicas
	p.serves = p.available > 0
	return p
}
