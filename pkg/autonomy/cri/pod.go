package cri

import (
	"net/netip"
	"slices"

	"github.com/application-grid/application-grid/pkg/storage/facts"
)

const (
	// configSource is the annotation that gives the source from which the kubelet has a pod. apiSource is its value for
	// a pod of the API; static pods have other values.
	configSource = "kubernetes.io/config.source"
	apiSource    = "api"
)

// Pod is a pod that the runtime runs.
type Pod struct {
	Namespace, Name, UID string
	// Static says that the pod is a static pod. Its mirror pod in the API has another UID.
	Static bool
	// Addresses are the pod's own. A pod of the node's network has none.
	Addresses []netip.Addr
	// Sandbox is the id of the pod's sandbox. It changes with every boot.
	Sandbox string
	// Sick is set if the runtime lists the sandbox and cannot say which addresses it has.
	Sick bool
	// Containers has the newest container of each name in the sandbox. It must not be changed.
	Containers map[string]Container
	// Kubelet is whether the kubelet itself calls the pod ready; nil if it does not say.
	Kubelet *bool
	// Needed has the names of the containers without which the pod is not ready, as listed by the kubelet; nil without
	// that list.
	Needed []string
}

// Container is a container of a pod.
type Container struct {
	// ID changes whenever the container is started again.
	ID    string
	State ContainerState
	// Restarted says that the kubelet has started a container of this name in the sandbox before. It starts a container
	// of kubectl debug only once, unless the runtime has lost it in a reboot.
	Restarted bool
}

// ContainerState is the state of a container, with the runtime's number. Others than these are those of containers that
// are only created, or whose state the runtime does not know.
type ContainerState uint64

// The states of containers.
const (
	Running ContainerState = 1
	Exited  ContainerState = 2
)

// currentOf returns the pods of the newest sandboxes that are ready, by the sandbox's id, without their containers.
func currentOf(sandboxes []sandbox) (map[string]*Pod, error) {
	slices.SortStableFunc(sandboxes, func(a, b sandbox) int { return a.compare(b.age) })
	newest := make(map[facts.PodKey]*Pod)
	known := false
	for i, s := range sandboxes {
		key := facts.PodKey{Namespace: s.Namespace, Name: s.Name, UID: s.UID}
		if s.Sandbox == "" || s.Namespace == "" || s.Name == "" || s.UID == "" {
			continue // not made by a kubelet
		}
		known = true
		if s.state == 0 {
			newest[key] = &sandboxes[i].Pod
		}
	}
	if !known {
		return nil, ErrNoPods
	}
	current := make(map[string]*Pod, len(newest))
	for _, pod := range newest {
		pod.Containers = make(map[string]Container)
		current[pod.Sandbox] = pod
	}
	return current, nil
}

// addContainers adds the newest container of each name: the kubelet makes another one when one has ended.
func addContainers(current map[string]*Pod, containers []container) {
	slices.SortStableFunc(containers, func(a, b container) int { return a.compare(b.age) })
	for _, c := range containers {
		if pod := current[c.sandbox]; pod != nil {
			_, c.Restarted = pod.Containers[c.name]
			pod.Containers[c.name] = c.Container
		}
	}
}
