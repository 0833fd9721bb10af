package cri

import (
	"cmp"
	"net/netip"
	"time"
)

const (
	// configSource is the annotation in which the kubelet says where it has a pod from. apiSource is its value for a
	// pod of the API; any other is that of a static pod.
	configSource = "kubernetes.io/config.source"
	apiSource    = "api"

	// incomplete is how long after its newest container a pod may lack one that it had before. An init container that
	// runs longer than that is taken for the pod's only one.
	incomplete = time.Minute
)

// Pod is a pod that the runtime runs.
type Pod struct {
	Namespace, Name, UID string
	// Static says that the pod is not one of the API. What stands for it there has another UID.
	Static bool
	// Addresses are the pod's own. A pod of the node's network has none.
	Addresses []netip.Addr
	// Running is set if all containers of the pod run, those aside that have ended without an error.
	Running bool
	// Since is when the newest of the pod's sandbox and its containers was created.
	Since time.Time
}

// listing is what the runtime lists.
type listing struct {
	// current has the newest sandbox that is ready of every pod.
	current map[podID]sandbox
	// others has the other sandboxes of the pods.
	others map[podID][]sandbox
	// containers are by the id of their sandbox.
	containers map[string][]container
}

type podID struct{ namespace, name, uid string }

func newListing(sandboxes []sandbox, containers []container) *listing {
	l := &listing{
		current:    make(map[podID]sandbox),
		others:     make(map[podID][]sandbox),
		containers: make(map[string][]container),
	}
	for _, s := range sandboxes {
		pod := podID{s.namespace, s.name, s.uid}
		if s.id == "" || pod.namespace == "" || pod.name == "" || pod.uid == "" {
			continue // not made by a kubelet
		}
		if s.notReady {
			l.others[pod] = append(l.others[pod], s)
			continue
		}
		before, hasBefore := l.current[pod]
		switch {
		case !hasBefore:
			l.current[pod] = s
		case isNewer(s, before):
			l.current[pod] = s
			l.others[pod] = append(l.others[pod], before)
		default:
			l.others[pod] = append(l.others[pod], s)
		}
	}
	for _, c := range containers {
		l.containers[c.sandbox] = append(l.containers[c.sandbox], c)
	}
	return l
}

// isNewer reports whether a sandbox was made after another one of the same pod.
func isNewer(a, b sandbox) bool {
	return cmp.Or(
		cmp.Compare(a.created, b.created),
		cmp.Compare(a.attempt, b.attempt),
	) > 0
}

// latest returns the newest container of each name in a sandbox. The kubelet makes another one of the same name when
// one has ended.
func (l *listing) latest(sandbox string) map[string]container {
	latest := make(map[string]container)
	for _, c := range l.containers[sandbox] {
		before, hasBefore := latest[c.name]
		if !hasBefore || cmp.Or(
			cmp.Compare(c.created, before.created),
			cmp.Compare(c.attempt, before.attempt),
		) > 0 {
			latest[c.name] = c
		}
	}
	return latest
}

// pods returns the pods that run. A pod of which it is not known how it is reached is not running.
func (l *listing) pods(networks map[string]network, succeeded map[string]bool, now time.Time) []Pod {
	pods := make([]Pod, 0, len(l.current))
	for id, s := range l.current {
		reached, known := networks[s.id]
		if !known {
			continue
		}
		pod := Pod{
			Namespace: id.namespace, Name: id.name, UID: id.uid,
			Static: s.hasSource && s.source != apiSource, Addresses: reached.addresses,
		}
		containers := l.latest(s.id)
		created := s.created
		for _, c := range containers {
			created = max(created, c.created)
		}
		pod.Since = time.Unix(0, created)
		pod.Running = run(containers, succeeded) &&
			(now.Sub(pod.Since) >= incomplete || l.isComplete(id, containers))
		pods = append(pods, pod)
	}
	return pods
}

// run reports whether any of the containers runs, and the others run or have ended without an error.
func run(containers map[string]container, succeeded map[string]bool) bool {
	oneRuns := false
	for _, c := range containers {
		switch c.state {
		case containerRunning:
			oneRuns = true
		case containerExited:
			if !succeeded[c.id] {
				return false
			}
		default:
			return false
		}
	}
	return oneRuns
}

// isComplete reports whether a pod has all containers that it had in an earlier sandbox. After a reboot the kubelet
// runs the init containers first; a pod that has no more than these does not answer yet.
func (l *listing) isComplete(pod podID, containers map[string]container) bool {
	for _, earlier := range l.others[pod] {
		for _, c := range l.containers[earlier.id] {
			if _, found := containers[c.name]; !found {
				return false
			}
		}
	}
	return true
}
