package gridcontroller

import (
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
)

// kind is what the kinds of children differ in.
type kind struct {
	// grid is the kind of the grid, child that of what it makes.
	grid  string
	child schema.GroupVersionKind
	// checkName says why a child cannot have the name; empty if it can.
	checkName func(name string) string
	// progress reads spec and status of a live child; nil for what has no pods.
	progress func(spec, status map[string]any) progress
}

// workload is a kind of grid with a child per unit.
type workload struct {
	kind
	// object makes an empty grid, list an empty list of them.
	object func() client.Object
	list   func() client.ObjectList
	// spec and status are those of such a grid.
	spec   func(client.Object) *v1.WorkloadGridSpec
	status func(client.Object) *v1.WorkloadGridStatus
}

// progress is how far the child's own controller has come.
type progress struct {
	replicas, updated, ready, available int64
	// complete: all pods are there, as the spec says, and available. A rollout that waits for the user (a
	// partition, OnDelete) is complete.
	complete bool
}

var apps = schema.GroupVersion{Group: "apps", Version: "v1"}

// workloads are the kinds of grids that have a child per unit.
var workloads = []workload{
	{
		kind: kind{
			grid: "DeploymentGrid", child: apps.WithKind("Deployment"),
			// The ReplicaSet's name is longer by a hash of up to 10 characters and a hyphen.
			checkName: func(name string) string { return subdomain(name, validation.DNS1123SubdomainMaxLength-11) },
			progress:  deploymentProgress,
		},
		object: func() client.Object { return &v1.DeploymentGrid{} },
		list:   func() client.ObjectList { return &v1.DeploymentGridList{} },
		spec:   func(o client.Object) *v1.WorkloadGridSpec { return &o.(*v1.DeploymentGrid).Spec },     //nolint:forcetypeassert // this kind's
		status: func(o client.Object) *v1.WorkloadGridStatus { return &o.(*v1.DeploymentGrid).Status }, //nolint:forcetypeassert // this kind's
	},
	{
		kind: kind{
			grid: "StatefulSetGrid", child: apps.WithKind("StatefulSet"),
			checkName: statefulSetName,
			progress:  statefulSetProgress,
		},
		object: func() client.Object { return &v1.StatefulSetGrid{} },
		list:   func() client.ObjectList { return &v1.StatefulSetGridList{} },
		spec:   func(o client.Object) *v1.WorkloadGridSpec { return &o.(*v1.StatefulSetGrid).Spec },     //nolint:forcetypeassert // this kind's
		status: func(o client.Object) *v1.WorkloadGridStatus { return &o.(*v1.StatefulSetGrid).Status }, //nolint:forcetypeassert // this kind's
	},
	{
		kind: kind{
			grid: "DaemonSetGrid", child: apps.WithKind("DaemonSet"),
			// The ControllerRevision's name is longer by a hash.
			checkName: func(name string) string { return subdomain(name, validation.DNS1123SubdomainMaxLength-11) },
			progress:  daemonSetProgress,
		},
		object: func() client.Object { return &v1.DaemonSetGrid{} },
		list:   func() client.ObjectList { return &v1.DaemonSetGridList{} },
		spec:   func(o client.Object) *v1.WorkloadGridSpec { return &o.(*v1.DaemonSetGrid).Spec },     //nolint:forcetypeassert // this kind's
		status: func(o client.Object) *v1.WorkloadGridStatus { return &o.(*v1.DaemonSetGrid).Status }, //nolint:forcetypeassert // this kind's
	},
}

// services is the kind of grid with one Service.
var services = kind{
	grid: "ServiceGrid", child: schema.GroupVersionKind{Version: "v1", Kind: "Service"},
	checkName: func(name string) string {
		return first(validation.IsDNS1035Label(name))
	},
}

func subdomain(name string, longest int) string {
	if len(name) > longest {
		return fmt.Sprintf("must be no more than %d characters", longest)
	}
	return first(validation.IsDNS1123Subdomain(name))
}

// statefulSetName: the set's name begins its pods' host names, and with a hash of up to 10 characters and a
// hyphen it is a label's value.
func statefulSetName(name string) string {
	const longest = validation.LabelValueMaxLength - 11
	if len(name) > longest {
		return fmt.Sprintf("must be no more than %d characters", longest)
	}
	return first(validation.IsDNS1123Label(name))
}

func first(problems []string) string {
	if len(problems) == 0 {
		return ""
	}
	return problems[0]
}

func integer(object map[string]any, fields ...string) int64 {
	value, _, err := unstructured.NestedInt64(object, fields...)
	if err != nil {
		return 0
	}
	return value
}

// replicasOf is spec.replicas, which is 1 if it is not there.
func replicasOf(spec map[string]any) int64 {
	if _, ok := spec["replicas"]; !ok {
		return 1
	}
	return integer(spec, "replicas")
}

func deploymentProgress(spec, status map[string]any) progress {
	p := progress{
		replicas: replicasOf(spec), updated: integer(status, "updatedReplicas"),
		ready: integer(status, "readyReplicas"), available: integer(status, "availableReplicas"),
	}
	p.complete = p.updated >= p.replicas && p.available >= p.replicas && integer(status, "replicas") <= p.updated
	return p
}

func statefulSetProgress(spec, status map[string]any) progress {
	p := progress{
		replicas: replicasOf(spec), updated: integer(status, "updatedReplicas"),
		ready: integer(status, "readyReplicas"), available: integer(status, "availableReplicas"),
	}
	toUpdate := p.replicas
	if strategy, _, _ := unstructured.NestedString(spec, "updateStrategy", "type"); strategy == "OnDelete" {
		toUpdate = 0
	} else {
		toUpdate -= integer(spec, "updateStrategy", "rollingUpdate", "partition")
	}
	p.complete = p.updated >= toUpdate && p.available >= p.replicas && integer(status, "replicas") <= p.replicas
	return p
}

func daemonSetProgress(spec, status map[string]any) progress {
	p := progress{
		replicas: integer(status, "desiredNumberScheduled"), updated: integer(status, "updatedNumberScheduled"),
		ready: integer(status, "numberReady"), available: integer(status, "numberAvailable"),
	}
	strategy, _, _ := unstructured.NestedString(spec, "updateStrategy", "type")
	p.complete = (p.updated >= p.replicas || strategy == "OnDelete") && p.available >= p.replicas && integer(status, "numberMisscheduled") == 0
	return p
}
