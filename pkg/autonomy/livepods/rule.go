package livepods

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/application-grid/application-grid/pkg/autonomy/cri"
	"github.com/application-grid/application-grid/pkg/storage/facts"
)

// The rules that doc.go states: how a pod is shown follows from its note and from what the runtime reports now.

const (
	// stands is how long the API server's status must have been the same, in time of contact, until it applies to the
	// pod as it is now. A link may be dead for 45 s before anything notices.
	stands = time.Minute
	// probing is how long a restarted pod must run until it is no longer suspected. A kubelet's readiness probe would
	// take as long.
	probing = 10 * time.Second
	// maxFormer is the largest number of addresses that are kept of a pod, and that neighbours are told.
	maxFormer = 8
)

// Note is what is kept of a pod.
type Note struct {
	// UID is that of the pod on the node.
	UID string `json:"uid"`
	// Ready is whether the API server last called the pod ready, and Stood for how long, in time of contact, up to
	// stands.
	Ready bool          `json:"ready,omitempty"`
	Stood time.Duration `json:"stood,omitempty"`
	// Mixed is set if the API server has called the pod not ready since it called the node not ready. Stood is then the
	// time since it called the node ready again. Until that is long enough, Ready keeps its value.
	Mixed bool `json:"mixed,omitempty"`
	// IDs are those of the containers, by name, to which Ready applies; no other sandbox has the same. Former are the
	// addresses of their sandbox and of later ones; empty if none was seen in contact.
	IDs    map[string]string `json:"ids,omitempty"`
	Former []netip.Addr      `json:"former,omitempty"`
	// Idle names the Services whose endpoint of the pod was not ready when the API server last called the pod ready.
	Idle []string `json:"idle,omitempty"`
	// Needed has the names of the containers that the kubelet calls needed. Without such a report, these are the
	// containers that ran when the API server called the pod ready: true for those that are certainly needed, false for
	// those that may be of kubectl debug.
	Needed map[string]bool `json:"needed,omitempty"`
	// Extra has the names of containers that were first seen when the pod was ready without them.
	Extra map[string]bool `json:"extra,omitempty"`
	// Replaced is the API server's UID of the static pod that this one has replaced, until it has a status of this one.
	Replaced string `json:"replaced,omitempty"`
}

// record is what is known of a pod.
type record struct {
	Note
	// heard is the UID of the pod in the API server's last status; "" before the first.
	heard string
	// began is set while the pod is ready, if the API server called it not ready before. from is the time up to which
	// Stood has been counted.
	began bool
	from  time.Time
	// now is the pod's last state in the runtime, and since is when its containers last changed.
	now   cri.Pod
	since time.Time
}

// observe takes the pod's present state.
func (r *record) observe(pod cri.Pod, now time.Time) {
	if r.UID != pod.UID { // another static pod of the same name, whose needed containers are not known
		*r = record{Note: Note{UID: pod.UID, Ready: r.Ready, Former: r.Former, Replaced: cmp.Or(r.heard, r.Replaced)}}
	}
	if pod.Needed != nil {
		r.Needed = make(map[string]bool, len(pod.Needed))
		for _, name := range pod.Needed {
			r.Needed[name] = true
		}
	}
	if !maps.Equal(r.counted(r.now), r.counted(pod)) {
		r.since = now
	}
	for name, c := range pod.Containers {
		before, known := r.now.Containers[name]
		if _, needed := r.Needed[name]; needed {
			// A container of kubectl debug is never started again.
			again := known && r.now.Sandbox == pod.Sandbox && before.ID != c.ID
			r.Needed[name] = r.Needed[name] || again || c.Restarted
			continue
		}
		// The pod must have been ready without the container, and the API server's word be about what runs now.
		if !known && r.now.Sandbox == pod.Sandbox && r.Ready && len(r.Needed) > 0 &&
			(r.began || r.Stood >= stands || r.unchanged()) {
			if r.Extra == nil {
				r.Extra = make(map[string]bool)
			}
			r.Extra[name] = true
		}
	}
	if r.now = pod; len(r.Former) > 0 {
		r.noteAddresses()
	}
}

// counted returns the pod's containers without those that are ignored.
func (r *record) counted(pod cri.Pod) map[string]cri.Container {
	counted := maps.Clone(pod.Containers)
	maps.DeleteFunc(counted, func(name string, _ cri.Container) bool {
		_, needed := r.Needed[name]
		return len(r.Needed) > 0 && !needed
	})
	return counted
}

// contact says what has arrived from the API server, and when.
type contact struct {
	// now is the time, confirmed is when the API server last confirmed its status of pods, and beat is when the
	// kubelet's last report arrived; zero if none did.
	now, confirmed, beat time.Time
	// nodeReady is set if the API server calls the node ready.
	nodeReady bool
	// fresh is set if the runtime listed the pod a moment ago.
	fresh bool
}

// hear takes the API server's status of the pod, which has this UID there.
func (r *record) hear(uid string, known facts.KnownPod, c contact) {
	if r.Replaced == uid && c.confirmed.Sub(r.since) < stands {
		return // this is the former pod, unless the manifest was changed back
	}
	first := r.heard == ""
	r.heard, r.Replaced = uid, ""
	r.Mixed = r.Mixed && !first // else that was said of the former static pod
	became := known.Serving && !r.Ready
	switch {
	case !known.Serving && !c.nodeReady:
		r.hearOfNode(c.now)
		return
	case known.Serving:
		r.began, r.Mixed = r.began || r.Mixed, false
	}
	if !r.Mixed && known.Serving != r.Ready {
		r.Ready, r.began, r.Stood, r.from = known.Serving, known.Serving && !first, 0, c.now
	}
	if r.from.IsZero() {
		r.from = c.now
	}
	if c.confirmed.After(r.from) {
		r.Stood, r.from = min(r.Stood+c.confirmed.Sub(r.from), stands), c.confirmed
	}
	if r.Mixed && r.Stood >= stands {
		r.Mixed, r.Ready = false, false
	}
	if c.fresh && !r.Mixed {
		r.learn(became, c)
	}
}

// hearOfNode takes the API server's status of a pod that it calls not ready together with the node.
func (r *record) hearOfNode(now time.Time) {
	if r.Ready {
		r.Mixed, r.Stood, r.from = true, 0, now
	}
}

// learn updates the note of a pod that the runtime listed a moment ago. became is set if it has become ready since the
// API server's status before.
func (r *record) learn(became bool, c contact) {
	settled := c.confirmed.Sub(r.since) >= stands
	switch {
	case settled && !r.Ready:
		r.noteIDs()
	case settled && c.beat.Sub(r.since) >= stands:
		r.learnNeeded() // the kubelet has reported since the pod changed, and calls it ready
		r.noteIDs()
	case r.Ready && len(r.Needed) == 0, became:
		r.learnNeeded()
	}
}

// learnNeeded notes the running containers as those that may be needed, and keeps those that certainly are.
func (r *record) learnNeeded() {
	needed := make(map[string]bool)
	for name, certain := range r.Needed {
		if certain {
			needed[name] = true
		}
	}
	for name, c := range r.now.Containers {
		if c.State == cri.Running && !r.Extra[name] {
			needed[name] = r.Needed[name]
		}
	}
	if len(needed) > 0 {
		r.Needed = needed
	}
}

// noteIDs notes the pod's present ids and addresses.
func (r *record) noteIDs() { r.Former, r.IDs = r.now.Addresses, r.ids() }

// noteAddresses notes the addresses that the pod has. If they are too many, the oldest and the newest are kept, because
// the API server may have the first or the last.
func (r *record) noteAddresses() {
	for _, address := range r.now.Addresses {
		if slices.Contains(r.Former, address) {
			continue
		}
		if r.Former = slices.Clone(r.Former); len(r.Former) >= maxFormer {
			r.Former = slices.Delete(r.Former, maxFormer/2, maxFormer/2+1)
		}
		r.Former = append(r.Former, address)
	}
}

// unchanged reports whether the pod has the noted ids.
func (r *record) unchanged() bool { return maps.Equal(r.IDs, r.ids()) }

// ids returns the ids of the counted containers by name.
func (r *record) ids() map[string]string {
	ids := make(map[string]string)
	for name, c := range r.counted(r.now) {
		ids[name] = c.ID
	}
	return ids
}

// stopped returns a container of the pod that does not run although it is or may be needed; "" if all run.
func (r *record) stopped(pod cri.Pod) (name string, certain bool) {
	for _, needed := range slices.Sorted(maps.Keys(r.Needed)) {
		if pod.Containers[needed].State != cri.Running && (name == "" || r.Needed[needed] && !certain) {
			name, certain = needed, r.Needed[needed]
		}
	}
	return name, certain
}

// runsAny reports whether any container runs that may be one of the pod's own.
func (r *record) runsAny() bool {
	for name, c := range r.now.Containers {
		if c.State == cri.Running && !r.Extra[name] {
			return true
		}
	}
	return false
}

// judge returns the pod's present state, and why. The API server's status of it may be old.
func (r *record) judge(now time.Time) facts.LivePod {
	pod := facts.LivePod{Addresses: r.now.Addresses, Former: r.Former, Idle: r.Idle}
	stopped, certain := r.stopped(r.now)
	switch {
	case r.now.Kubelet != nil:
		if pod.Serving, pod.Why = *r.now.Kubelet, "the kubelet calls it not ready"; pod.Serving {
			pod.Why = "the kubelet calls it ready"
		}
		return pod
	case certain:
		pod.Why = fmt.Sprintf("its container %s does not run", stopped)
		return pod
	case !r.runsAny():
		pod.Why = "none of its containers runs"
		return pod
	}
	unchanged := r.unchanged()
	pod.Serving, pod.Suspected = true, true
	switch {
	case stopped != "":
		pod.Why = fmt.Sprintf("its container %s does not run, and may be needed", stopped)
	case unchanged && r.Ready:
		pod.Suspected, pod.Why = false, "the API server called it ready, and it has not changed since"
	case unchanged && r.Stood >= stands:
		pod.Serving, pod.Suspected = false, false
		pod.Why = "the API server called it not ready, and it has not changed since"
	case r.Replaced != "":
		pod.Why = "the API server has not yet reported on the static pod that has replaced the former one"
	case !r.Ready:
		pod.Why = "the API server last called it not ready, and it has changed since, or a short time before"
	case now.Sub(r.since) < probing:
		pod.Why = fmt.Sprintf("it was started again less than %s ago", probing)
	default:
		pod.Suspected, pod.Why = false, "it was started again, and runs"
	}
	return pod
}
