package cri

import "net/netip"

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

// ContainerState is the state of a container.
type ContainerState uint8

// The states of containers.
const (
	// Waiting is the state of a container that was created and not started, or whose state the runtime does not know.
	Waiting ContainerState = iota
	Running
	Exited
)

// currentOf returns the newest sandbox that is ready of every pod, by id.
func currentOf(sandboxes []sandbox) (map[string]*sandbox, error) {
	type podID struct{ namespace, name, uid string }
	newest := make(map[podID]*sandbox)
	known := false
	for i := range sandboxes {
		s := &sandboxes[i]
		pod := podID{s.Namespace, s.Name, s.UID}
		if s.Sandbox == "" || pod.namespace == "" || pod.name == "" || pod.uid == "" {
			continue // not made by a kubelet
		}
		known = true
		if before := newest[pod]; s.state == 0 && (before == nil || s.isAfter(before.age)) {
			newest[pod] = s
		}
	}
	if !known {
		return nil, ErrNoPods
	}
	current := make(map[string]*sandbox, len(newest))
	for _, s := range newest {
		current[s.Sandbox] = s
	}
	return current, nil
}

// podsOf returns the pods that run. A pod without a network is not one of them.
func podsOf(current map[string]*sandbox, containers []container, networks map[string][]netip.Addr) []Pod {
	// The kubelet makes another container of the same name when one has ended.
	latest := make(map[string]map[string]container)
	for _, c := range containers {
		of := latest[c.sandbox]
		if of == nil {
			of = make(map[string]container)
			latest[c.sandbox] = of
		}
		before, again := of[c.name]
		if again && before.isAfter(c.age) {
			c = before
		}
		c.Restarted = again
		of[c.name] = c
	}
	pods := make([]Pod, 0, len(current))
	for id, s := range current {
		addresses, known := networks[id]
		if !known && !s.Sick {
			continue
		}
		pod := s.Pod
		pod.Addresses, pod.Containers = addresses, make(map[string]Container, len(latest[id]))
		for name, c := range latest[id] {
			pod.Containers[name] = c.Container
		}
		pods = append(pods, pod)
	}
	return pods
}
