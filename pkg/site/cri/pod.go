package cri

import (
	"cmp"
	"net/netip"
)

const (
	// configSource is the annotation in which the kubelet says where it has a pod from. apiSource is its value for a
	// pod of the API; any other is that of a static pod.
	configSource = "kubernetes.io/config.source"
	apiSource    = "api"
)

// Pod is a pod that the runtime runs.
type Pod struct {
	Namespace, Name, UID string
	// Static says that the pod is not one of the API. What stands for it there has another UID.
	Static bool
	// Addresses are the pod's own. A pod of the node's network has none.
	Addresses []netip.Addr
	// Sandbox is the id of the pod's sandbox. It changes with every boot.
	Sandbox string
	// Containers has the newest container of each name in the sandbox. It must not be changed.
	Containers map[string]Container
	// Kubelet is the kubelet's own word on the pod, if it gives one.
	Kubelet Readiness
}

// Readiness is a kubelet's word on a pod.
type Readiness uint8

// What a kubelet says of a pod.
const (
	Unsaid Readiness = iota
	Ready
	NotReady
)

// Container is a container of a pod.
type Container struct {
	// ID changes whenever the container is started again.
	ID    string
	State ContainerState
}

// ContainerState says how a container is.
type ContainerState uint8

// The states of containers.
const (
	// Waiting is a container that was made and not started, or of which the runtime does not know how it is.
	Waiting ContainerState = iota
	Running
	// Succeeded is a container that has ended without an error, Failed one that has ended with one.
	Succeeded
	Failed
)

// listing is what the runtime lists.
type listing struct {
	// current has the newest sandbox that is ready of every pod.
	current map[podID]sandbox
	// any is set if the runtime knows any pod, also one that has ended.
	any bool
	// containers are by the id of their sandbox.
	containers map[string][]container
}

type podID struct{ namespace, name, uid string }

func newListing(sandboxes []sandbox, containers []container) *listing {
	l := &listing{current: make(map[podID]sandbox), containers: make(map[string][]container)}
	for _, s := range sandboxes {
		pod := podID{s.namespace, s.name, s.uid}
		if s.id == "" || pod.namespace == "" || pod.name == "" || pod.uid == "" {
			continue // not made by a kubelet
		}
		l.any = true
		if before, hasBefore := l.current[pod]; s.state == 0 && (!hasBefore || isNewer(
			s.attempt, before.attempt, s.created, before.created)) {
			l.current[pod] = s
		}
	}
	for _, c := range containers {
		l.containers[c.sandbox] = append(l.containers[c.sandbox], c)
	}
	return l
}

// isNewer reports whether one of two sandboxes of a pod, or of two containers of one name, was made after the other.
// Clocks count only where the kubelet has not counted: they may be set back.
func isNewer(attempt, otherAttempt uint64, created, otherCreated int64) bool {
	return cmp.Or(cmp.Compare(attempt, otherAttempt), cmp.Compare(created, otherCreated)) > 0
}

// latest returns the newest container of each name in a sandbox. The kubelet makes another one of the same name when
// one has ended.
func (l *listing) latest(sandbox string) map[string]container {
	latest := make(map[string]container)
	for _, c := range l.containers[sandbox] {
		before, hasBefore := latest[c.name]
		if !hasBefore || isNewer(c.attempt, before.attempt, c.created, before.created) {
			latest[c.name] = c
		}
	}
	return latest
}

// pods returns the pods that run. A pod of which it is not known how it is reached is not running.
func (l *listing) pods(networks map[string]network, succeeded map[string]bool) []Pod {
	pods := make([]Pod, 0, len(l.current))
	for id, s := range l.current {
		reached, known := networks[s.id]
		if !known {
			continue
		}
		pod := Pod{
			Namespace: id.namespace, Name: id.name, UID: id.uid,
			Static: s.hasSource && s.source != apiSource, Addresses: reached.addresses,
			Sandbox: s.id, Containers: make(map[string]Container),
		}
		for name, c := range l.latest(s.id) {
			pod.Containers[name] = Container{ID: c.id, State: stateOf(c, succeeded)}
		}
		pods = append(pods, pod)
	}
	return pods
}

func stateOf(c container, succeeded map[string]bool) ContainerState {
	switch {
	case c.state == containerRunning:
		return Running
	case c.state != containerExited:
		return Waiting
	case succeeded[c.id]:
		return Succeeded
	default:
		return Failed
	}
}
