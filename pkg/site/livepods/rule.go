package livepods

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/application-grid/application-grid/pkg/site/cri"
	"github.com/application-grid/application-grid/pkg/storage/facts"
)

// The rule: the API's word on a pod stands until this node has itself seen that pod change. A change is seen by the ids
// and states of the pod's sandbox and containers, never by a clock that may be wrong.

const (
	// confirmed is how long the API server must go on to call a pod ready until it is believed that it means what was
	// seen of the pod before. What happens on a node reaches the EndpointSlices within seconds.
	confirmed = 30 * time.Second
	// probing is how long a pod that was started again must run until it is as good as others: a kubelet's readiness
	// probe would take as long.
	probing = 10 * time.Second
	// unproven is how long a pod that was never called ready must run without a change until it counts as ready: its
	// init containers may be what runs.
	unproven = time.Minute
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

// sight is how a pod was seen.
type sight struct {
	at      time.Time
	sandbox string
	ran     map[string]string
}

// record is what is known of a pod.
type record struct {
	Note
	// firm is set once it was confirmed which containers have to run.
	firm bool
	// noted is when the last word was taken.
	noted time.Time
	// seen is how the pod was first seen as it is now, since the API calls it ready.
	seen sight
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
	if r.UID != pod.UID {
		*r = record{Note: Note{UID: pod.UID}} // another static pod of the same name
	}
	if r.since.IsZero() || r.now.Sandbox != pod.Sandbox || !maps.Equal(r.counted(r.now), r.counted(pod)) {
		r.since = now
	}
	r.now = pod
}

// counted returns the containers that count.
func (r *record) counted(pod cri.Pod) map[string]cri.Container {
	if len(r.Ran) == 0 {
		return pod.Containers
	}
	counted := make(map[string]cri.Container, len(r.Ran))
	for name := range r.Ran {
		if c, found := pod.Containers[name]; found {
			counted[name] = c
		}
	}
	return counted
}

// note takes the API's word on the pod, as it is seen now.
func (r *record) note(ready bool, now time.Time) {
	if !ready {
		r.seen = sight{}
		if r.starts(now) {
			return // that it is not ready yet says nothing of how it is a moment later
		}
	}
	became := ready && !r.Ready
	r.Ready, r.Newest, r.noted = ready, r.now.Sandbox, now
	if !ready {
		return
	}
	ran := running(r.now)
	if r.seen.sandbox != r.now.Sandbox || !maps.Equal(r.seen.ran, ran) {
		r.seen = sight{now, r.now.Sandbox, ran}
	}
	// If it has just become ready, then as it is now, but for what happened within the last seconds.
	if lasts := now.Sub(r.seen.at) >= confirmed; became || lasts {
		r.adopt(r.seen, lasts)
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

// adopt takes a sight for what the API's word is about. Once it was confirmed which containers have to run, these stay
// the same as long as the pod lives, but for those that the API turns out not to need.
func (r *record) adopt(seen sight, confirmed bool) {
	ran := maps.Clone(seen.ran)
	if r.firm {
		maps.DeleteFunc(ran, func(name, _ string) bool { return r.Ran[name] == "" })
	}
	if len(ran) == 0 || r.firm && !confirmed && len(ran) < len(r.Ran) {
		return
	}
	r.Sandbox, r.Ran, r.firm = seen.sandbox, ran, r.firm || confirmed
}

// interrupt notes that the API's word is not to be believed any more. What was not confirmed is all there is.
func (r *record) interrupt() {
	if len(r.Ran) == 0 {
		r.adopt(r.seen, false)
	}
	r.seen = sight{}
}

// verdict says how a pod is, and why.
type verdict struct {
	serving, doubted bool
	// changed is set if the pod is not as it was when the API's word was given.
	changed bool
	why     string
}

// assume takes the API's word on a pod of which there is no note: if it has the address that the API knows, it is taken
// to be as it was when the word was given.
func (r *record) assume(ready, sameAddress bool, now time.Time) {
	if r.Ready = ready; !sameAddress {
		return
	}
	r.Newest = r.now.Sandbox
	if ready {
		r.adopt(sight{now, r.now.Sandbox, running(r.now)}, false)
	}
}

// judge says how the pod is now. The API's word is not to be believed.
func (r *record) judge(now time.Time) verdict {
	switch r.now.Kubelet {
	case cri.Ready:
		return verdict{serving: true, changed: !r.Ready, why: "the kubelet calls it ready"}
	case cri.NotReady:
		return verdict{changed: r.Ready, why: "the kubelet calls it not ready"}
	case cri.Unsaid:
	}
	for _, name := range slices.Sorted(maps.Keys(r.Ran)) {
		c, found := r.now.Containers[name]
		switch {
		case r.Newest == r.now.Sandbox && !r.Ready:
		case !found:
			return verdict{changed: true, why: fmt.Sprintf("its container %s is not there yet", name)}
		case c.State != cri.Running:
			return verdict{changed: true, why: fmt.Sprintf("its container %s does not run", name)}
		}
	}
	runs := now.Sub(r.since)
	switch {
	case r.Ready && r.Sandbox == r.now.Sandbox && maps.Equal(r.Ran, ids(r.counted(r.now))):
		return verdict{serving: true, why: "the API server called it ready, and it has not changed since"}
	case !r.Ready && r.Newest == r.now.Sandbox:
		return verdict{why: "the API server called it not ready, and its sandbox is the same"}
	case len(r.Ran) == 0 && !allRun(r.now):
		return verdict{changed: true, why: "not all of its containers run"}
	case len(r.Ran) == 0 && runs < unproven:
		return verdict{
			serving: r.Ready, doubted: r.Ready, changed: true,
			why: fmt.Sprintf("it is not known which of its containers have to run, and they run for less than %s",
				unproven),
		}
	case runs < probing:
		return verdict{
			serving: true, doubted: true, changed: true,
			why: fmt.Sprintf("it was started again less than %s ago", probing),
		}
	default:
		return verdict{serving: true, changed: true, why: "it was started again, and runs"}
	}
}

func ids(containers map[string]cri.Container) map[string]string {
	all := make(map[string]string, len(containers))
	for name, c := range containers {
		all[name] = c.ID
	}
	return all
}

// allRun reports whether any of the containers runs, and the others run or have ended without an error.
func allRun(pod cri.Pod) bool {
	oneRuns := false
	for _, c := range pod.Containers {
		switch c.State {
		case cri.Running:
			oneRuns = true
		case cri.Succeeded:
		case cri.Waiting, cri.Failed:
			return false
		}
	}
	return oneRuns
}

// live returns the pod as it is shown.
func (r *record) live(v verdict) facts.LivePod {
	return facts.LivePod{Addresses: r.now.Addresses, Serving: v.serving, Doubted: v.doubted, Why: v.why}
}
