package livepods

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/application-grid/application-grid/pkg/autonomy/cri"
	"github.com/application-grid/application-grid/pkg/storage/facts"
)

// The rule: the API's word on a pod stands until this node has itself seen that pod change. A change is seen by the ids
// and states of the pod's sandbox and containers, never by a clock that may be wrong.

const (
	// confirmed is how long the API server must go on to call a pod ready, while one of its containers does not run,
	// until it is believed that the container is not needed. What happens on a node reaches the EndpointSlices within
	// seconds.
	confirmed = 30 * time.Second
	// probing is how long a pod that was started again must run until it is as good as others: a kubelet's readiness
	// probe would take as long.
	probing = 10 * time.Second
)

// Note is what is kept of a pod while the API's word on it is to be believed.
type Note struct {
	// UID is that of the pod on the node.
	UID string `json:"uid"`
	// Ready is the API's word.
	Ready bool `json:"ready,omitempty"`
	// Sandbox is the sandbox that the API last called ready, and Ran are the ids of the containers that ran in it then,
	// by name. A container whose name comes up later, such as one of kubectl debug, counts for nothing.
	Sandbox string            `json:"sandbox,omitempty"`
	Ran     map[string]string `json:"ran,omitempty"`
	// Newest is the newest sandbox on which there was a word.
	Newest string `json:"newest,omitempty"`
}

// record is what is known of a pod.
type record struct {
	Note
	// firm is set once it was confirmed which containers have to run.
	firm bool
	// noted is when the last word was taken.
	noted time.Time
	// now is how the pod was seen last, and since when it is so.
	now   cri.Pod
	since time.Time
}

// running returns the ids of the containers that run, by name.
func running(pod cri.Pod) map[string]string {
	ran := make(map[string]string)
	for name, c := range pod.Containers {
		if c.State == cri.Running {
			ran[name] = c.ID
		}
	}
	return ran
}

// observe takes how the pod is seen now.
func (r *record) observe(pod cri.Pod, now time.Time) {
	if r.UID != pod.UID { // another static pod of the same name, of which it is not known what has to run
		*r = record{Note: Note{UID: pod.UID, Ready: r.Ready || len(r.Ran) > 0, Newest: r.Newest}}
	}
	if r.since.IsZero() || r.now.Sandbox != pod.Sandbox || !maps.Equal(r.counted(r.now), r.counted(pod)) {
		r.since = now
	}
	r.now = pod
}

// counted returns the containers that count.
func (r *record) counted(pod cri.Pod) map[string]cri.Container {
	counted := maps.Clone(pod.Containers)
	maps.DeleteFunc(counted, func(name string, _ cri.Container) bool { return len(r.Ran) > 0 && r.Ran[name] == "" })
	return counted
}

// note takes the API's word on the pod, as it is seen now.
func (r *record) note(ready bool, now time.Time) {
	if !ready && r.starts(now) {
		return // that it is not ready yet says nothing of how it is a moment later
	}
	became, first := ready && !r.Ready, r.Newest == ""
	r.Ready, r.Newest, r.noted = ready, r.now.Sandbox, now
	lasts := now.Sub(r.since) >= confirmed
	if !ready || !became && !lasts && !first && r.Sandbox != r.now.Sandbox {
		return // the word may be about the sandbox before
	}
	ran := running(r.now)
	if r.firm { // these stay the same as long as the pod lives, but for those that the API turns out not to need
		maps.DeleteFunc(ran, func(name, _ string) bool { return r.Ran[name] == "" })
	}
	for name := range r.Ran {
		if ran[name] == "" && !lasts {
			return // the word is from before it ended
		}
	}
	if len(ran) > 0 {
		r.Sandbox, r.Ran, r.firm = r.now.Sandbox, ran, r.firm || lasts
	}
}

// starts reports whether a pod that was called ready has another sandbox, in which its containers were started a moment
// ago or not yet, and did not end.
func (r *record) starts(now time.Time) bool {
	if !r.Ready || r.Sandbox == r.now.Sandbox || len(r.Ran) == 0 {
		return false
	}
	waits := now.Sub(r.since) < confirmed
	for name := range r.Ran {
		switch c, found := r.now.Containers[name]; {
		case !found || c.State == cri.Waiting:
			waits = true
		case c.State != cri.Running:
			return false
		}
	}
	return waits
}

// judge says how the pod is now, and why. The API's word is not to be believed.
func (r *record) judge(now time.Time) facts.LivePod {
	pod := facts.LivePod{Addresses: r.now.Addresses}
	switch {
	case r.now.Kubelet != nil:
		if pod.Serving, pod.Why = *r.now.Kubelet, "the kubelet calls it not ready"; pod.Serving {
			pod.Why = "the kubelet calls it ready"
		}
		return pod
	case !r.Ready && len(r.Ran) == 0:
		pod.Why = "the API server has never called it ready"
		return pod
	case !r.Ready && r.Newest == r.now.Sandbox:
		pod.Why = "the API server called it not ready, and its sandbox is the same"
		return pod
	}
	unchanged := r.Ready && r.Sandbox == r.now.Sandbox
	for _, name := range slices.Sorted(maps.Keys(r.Ran)) {
		c, found := r.now.Containers[name]
		switch {
		case !found:
			pod.Why = fmt.Sprintf("its container %s is not there yet", name)
			return pod
		case c.State != cri.Running:
			pod.Why = fmt.Sprintf("its container %s does not run", name)
			return pod
		}
		unchanged = unchanged && c.ID == r.Ran[name]
	}
	pod.Serving = true
	switch {
	case len(r.Ran) == 0:
		pod.Serving, pod.Suspected = len(running(r.now)) > 0, true
		pod.Why = "it is not known which of its containers have to run"
	case unchanged:
		pod.Why = "the API server called it ready, and it has not changed since"
	case now.Sub(r.since) < probing:
		pod.Suspected, pod.Why = true, fmt.Sprintf("it was started again less than %s ago", probing)
	default:
		pod.Why = "it was started again, and runs"
	}
	return pod
}

// seemsChanged reports whether the pod has changed a short time ago.
func (r *record) seemsChanged(now time.Time) bool {
	pod := r.judge(now)
	return pod.Suspected || pod.Serving != r.Ready
}
