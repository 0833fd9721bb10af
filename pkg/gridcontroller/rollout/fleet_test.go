package rollout_test

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/application-grid/application-grid/pkg/gridcontroller/rollout"
)

// evicted is how long a node is silent before its pods are deleted, if they do not tolerate that.
const evicted = noticed + 5*time.Minute

// kind is the kind of a workload.
type kind int

const (
	deployment kind = iota
	statefulSet
	daemonSet
)

// shape is what the workloads of a world are like.
type shape struct {
	kind kind
	// nodes is the largest number of nodes of a site, replicas the number of pods of a Deployment or StatefulSet.
	nodes, replicas int
	// parallel: a StatefulSet does not wait for one pod before it makes the next. onDelete: a person replaces pods.
	// evicts: pods do not tolerate a node that is silent.
	parallel, onDelete, evicts bool
	// tolerates: a DaemonSet wants a pod also on nodes that are silent.
	tolerates bool
	// partition is how many pods of a StatefulSet keep what was before, by revision; some have one if partitions.
	partitions bool
	partition  map[string]int
}

func (w *world) newShape() shape {
	s := shape{nodes: 1, replicas: 1, partition: map[string]int{}}
	if w.IntN(3) == 0 {
		return s
	}
	s.kind, s.nodes, s.replicas = kind(w.IntN(3)), 1+w.IntN(3), 1+w.IntN(3)
	s.parallel, s.evicts = w.IntN(2) == 0, w.IntN(2) == 0
	s.tolerates = s.kind == daemonSet && w.IntN(2) == 0
	s.onDelete = s.kind != deployment && w.IntN(4) == 0
	s.partitions = s.kind == statefulSet && !s.onDelete && !w.friendly && w.IntN(4) == 0
	return s
}

// node is a machine of a site. It is silent since silentAt. tainted: a person keeps new pods away. notReady: its
// kubelet says that it is not ready. added: a DaemonSet wants a pod there now, or again, and has had none yet.
type node struct {
	name                     string
	silentAt                 time.Time
	tainted, notReady, added bool
}

func (n *node) heard() bool { return n.silentAt.IsZero() }

// pod is one of a workload. of is the UID of the workload, node is nil until the pod is scheduled.
type pod struct {
	id, of, ordinal, restarts  int
	revision                   string
	node                       *node
	deleting                   bool
	madeAt, startedAt, readyAt time.Time
	told                       struct {
		started, ready bool
		restarts       int
	}
}

// fleet is what runs at a site. former is the revision that the workload had before. base is how many pods there have
// been since they run without a break: what more there are after scaling interrupts nothing.
type fleet struct {
	replicas, base int
	// scaled: the workload's controller has not seen its replicas, so its status is of others.
	scaled    bool
	nodes     []*node
	pods      []*pod
	former    string
	appliedAt time.Time
	// good is how long all pods have run the revision goodOf without a break. A silence, and what follows from it until
	// all run again, are no break: returning is set meanwhile.
	good      time.Duration
	goodOf    string
	returning bool
	// best are the largest numbers of pods that were updated and ready since the workload was applied, progressAt is
	// when one grew. completeAt is since when the workload is complete.
	best                   [2]int
	bestOf                 string
	progressAt, completeAt time.Time
	rested                 time.Duration
	silent                 int
	// mendedAt is since when what it runs works, which it did not before; zero once its workload has shown that, by
	// progress or by being complete.
	mendedAt time.Time
}

// heard reports whether no node is silent.
func (f *fleet) heard() bool {
	return !slices.ContainsFunc(f.nodes, func(n *node) bool { return !n.heard() })
}

func (w *world) knownSilent(n *node) bool { return !n.heard() && w.now.Sub(n.silentAt) >= noticed }

// lost reports whether the control plane knows that all nodes of a site are silent.
func (w *world) lost(p *place) bool {
	return !slices.ContainsFunc(p.nodes, func(n *node) bool { return !w.knownSilent(n) })
}

// wants reports whether a DaemonSet's controller wants a pod on a node.
func (w *world) wants(p *place, n *node) bool {
	s := &w.shape
	return p.fate[p.revision] != nowhere && !n.tainted && (s.tolerates || (!n.notReady && !w.knownSilent(n)))
}

// taint has a person keep new pods from a node, but for the last one of a site.
func (w *world) taint(p *place) {
	n := p.nodes[w.IntN(len(p.nodes))]
	others := slices.ContainsFunc(p.nodes, func(other *node) bool { return other != n && !other.tainted })
	w.setTaint(p, n, !n.tainted && others)
	w.note("%s tainted: %t", n.name, n.tainted)
}

func (w *world) setTaint(p *place, n *node, tainted bool) {
	n.tainted, n.added = tainted, n.tainted && !tainted
	w.prove(p, 0)
}

func (w *world) partly(p *place) bool {
	return !w.lost(p) && slices.ContainsFunc(p.nodes, w.knownSilent)
}

// cut has one node of a site fall silent, or all.
func (w *world) cut(p *place) {
	one, all := w.IntN(len(p.nodes)), w.IntN(2) == 0
	for i, n := range p.nodes {
		if n.heard() && (all || i == one) {
			n.silentAt = w.now
			w.note("%s falls silent", n.name)
		}
	}
}

func (w *world) hear(p *place) {
	if p.heard() {
		return
	}
	w.note("%s is reachable again", p.name)
	for _, n := range p.nodes {
		booted := w.IntN(2) == 0
		for _, pod := range p.pods {
			if pod.node == n && !n.heard() && booted {
				pod.restarts++
			}
		}
		n.added, n.silentAt = n.added || (w.shape.kind == daemonSet && !n.heard()), time.Time{}
	}
}

// live lets a second pass at a site.
func (w *world) live(p *place) {
	w.control(p)
	for _, n := range p.nodes {
		n.notReady = slices.ContainsFunc(p.pods, func(pod *pod) bool {
			return pod.node == n && p.fate[pod.revision] == breaks && !pod.startedAt.IsZero()
		})
	}
	for _, pod := range p.pods {
		w.run(p, pod)
	}
	p.pods = slices.DeleteFunc(p.pods, func(pod *pod) bool {
		return pod.deleting && (pod.node == nil || pod.node.heard())
	})
	w.follow(p)
	w.prove(p, time.Second)
}

// control is what the workload's controller does.
func (w *world) control(p *place) {
	s := &w.shape
	for _, pod := range p.pods {
		gone := s.evicts && s.kind != daemonSet && pod.node != nil && !pod.node.heard() &&
			w.now.Sub(pod.node.silentAt) >= evicted
		pod.deleting = pod.deleting || gone || !p.exists || p.idle || pod.of != p.uid
	}
	if !p.exists || p.idle || w.IntN(4) > 0 {
		return
	}
	p.scaled = false
	switch s.kind {
	case deployment:
		w.controlDeployment(p)
	case statefulSet:
		w.controlSet(p)
	case daemonSet:
		w.controlDaemons(p)
	}
}

func (w *world) make(p *place, revision string, ordinal int, on *node) {
	p.pods = append(p.pods, &pod{
		id: w.unique(), of: p.uid, ordinal: ordinal, revision: revision, node: on, madeAt: w.now,
	})
}

func (w *world) controlDeployment(p *place) {
	var old []*pod
	all, updated, ready := 0, 0, 0
	for _, pod := range p.pods {
		if pod.deleting {
			continue
		}
		if all++; pod.told.ready {
			ready++
		}
		if pod.revision == p.revision {
			updated++
		} else {
			old = append(old, pod)
		}
	}
	if updated < p.replicas && all <= p.replicas {
		w.make(p, p.revision, 0, nil)
	}
	for _, pod := range old {
		if !pod.told.ready || ready > p.replicas {
			pod.deleting = true
			return
		}
	}
	for _, pod := range p.pods {
		if updated > p.replicas && pod.revision == p.revision && !pod.deleting {
			pod.deleting = true
			return
		}
	}
}

func (w *world) controlSet(p *place) {
	partition := w.shape.partition[p.revision]
	var all []*pod
	for _, pod := range p.pods {
		pod.deleting = pod.deleting || pod.ordinal >= p.replicas
	}
	for ordinal := range p.replicas {
		i := slices.IndexFunc(p.pods, func(pod *pod) bool { return pod.ordinal == ordinal })
		if i < 0 {
			revision := p.revision
			if ordinal < partition && p.former != "" {
				revision = p.former
			}
			if w.make(p, revision, ordinal, nil); !w.shape.parallel {
				return
			}
			continue
		}
		if all = append(all, p.pods[i]); !w.shape.parallel && (!p.pods[i].told.ready || p.pods[i].deleting) {
			return
		}
	}
	if w.shape.onDelete {
		return
	}
	for _, pod := range slices.Backward(all) {
		if pod.ordinal < partition {
			continue
		}
		if pod.revision != p.revision && !pod.deleting {
			pod.deleting = true
			return
		}
		if !pod.told.ready || pod.deleting {
			return
		}
	}
}

func (w *world) controlDaemons(p *place) {
	missing := 0
	var old []*pod
	for _, n := range p.nodes {
		i := slices.IndexFunc(p.pods, func(pod *pod) bool { return pod.node == n })
		switch {
		case i < 0 && w.wants(p, n):
			missing++
			w.make(p, p.revision, 0, n)
			continue
		case i < 0:
			continue
		}
		pod := p.pods[i]
		pod.deleting = pod.deleting || p.fate[p.revision] == nowhere
		if !pod.told.ready || pod.deleting {
			missing++
		}
		if pod.revision != p.revision && !pod.deleting && !w.shape.onDelete {
			old = append(old, pod)
		}
	}
	for _, pod := range old {
		switch {
		case !pod.told.ready:
			pod.deleting = true
		case missing == 0: // maxUnavailable is 1
			missing++
			pod.deleting = true
		}
	}
}

// run is what a node does with a pod, and what the control plane knows of it.
func (w *world) run(p *place, pod *pod) {
	if pod.node == nil { // the scheduler knows only what the control plane does
		n := p.nodes[w.IntN(len(p.nodes))]
		if w.knownSilent(n) || pod.deleting || n.tainted || n.notReady || p.fate[pod.revision] == nowhere {
			return
		}
		pod.node = n
	}
	if !pod.node.heard() {
		if w.knownSilent(pod.node) {
			pod.told.ready = false
		}
		if pod.startedAt.IsZero() {
			return
		}
	} else if pod.startedAt.IsZero() {
		pod.startedAt = w.now
	}
	if w.shape.onDelete && pod.revision != p.revision && pod.of == p.uid && w.IntN(60) == 0 {
		pod.deleting = true // a person does that
	}
	age, ready := w.now.Sub(pod.startedAt), true
	switch p.fate[pod.revision] {
	case dead:
		ready = false
	case breaks:
		ready = age < 20*time.Second
	case crashes:
		if n := int(age / (70 * time.Second)); n > pod.restarts {
			pod.restarts, pod.readyAt = n, time.Time{}
		}
	case cutsOff:
		if pod.node.heard() {
			pod.node.silentAt = w.now
			p.turns = 0
			w.note("%s is cut off", pod.node.name)
		}
	default:
	}
	switch ready = ready && age >= 8*time.Second && !pod.node.notReady; {
	case !ready:
		pod.readyAt = time.Time{}
	case pod.readyAt.IsZero():
		pod.readyAt = w.now
	}
	if pod.node.heard() {
		pod.told.started, pod.told.ready, pod.told.restarts = true, ready, pod.restarts
	}
}

// serving are the pods that run what the workload names, and how many there should be: a DaemonSet has them on each
// node that is not known to be silent. An edit that is reverted before it replaces one interrupts nothing.
func (w *world) serving(p *place) (all []*pod, want int) {
	want = p.replicas
	if w.shape.kind == daemonSet {
		want = 0
		for _, n := range p.nodes {
			if !w.knownSilent(n) && !n.tainted && p.fate[p.revision] != nowhere {
				want++
			}
		}
	}
	for _, pod := range p.pods {
		surplus := w.shape.kind == statefulSet && pod.ordinal >= p.replicas // it is about to be deleted
		if pod.of == p.uid && pod.revision == p.named() && !pod.deleting && !pod.readyAt.IsZero() && !surplus &&
			(w.shape.kind != daemonSet || !w.knownSilent(pod.node)) {
			all = append(all, pod)
		}
	}
	return all, want
}

// prove notes that a site has proven what it runs, if it has, after some time has passed.
func (w *world) prove(p *place, passed time.Duration) {
	all, want := w.serving(p)
	runs := p.exists && !p.idle && want > 0 && len(all) >= want
	base := want
	if p.good == 0 {
		p.base = p.replicas
	}
	if w.shape.kind != daemonSet {
		base = min(p.base, want)
	}
	again := base == want &&
		slices.ContainsFunc(all, func(pod *pod) bool { return pod.readyAt.Equal(w.now) && !pod.node.added })
	added := 0 // the first pods on other nodes interrupt nothing
	for _, n := range p.nodes {
		n.added = n.added && !slices.ContainsFunc(all, func(pod *pod) bool { return pod.node == n })
		if n.added {
			added++
		}
	}
	goesOn := p.exists && !p.idle && len(all) > 0 && len(all)+added >= base && !again
	is := fmt.Sprint(p.named(), "/", p.uid)
	p.returning = p.returning || !p.heard()
	switch {
	case p.goodOf != is:
		p.good, p.goodOf, p.returning = 0, is, !p.heard()
	case p.returning:
	case !goesOn:
		p.good = 0
	}
	if runs || goesOn {
		p.good += passed
	}
	if !runs {
		return
	}
	p.returning = !p.heard()
	checked := w.checkOf(p) == nil || p.checked[w.checkName(p)] == p.uid
	if checked && p.good+2*time.Second >= w.soak(p) { // times in a status are whole seconds, twice in a silence
		p.proof[p.named()] = p.uid
	}
}

// allWork reports whether every pod runs something that works there.
func (p *place) allWork() bool {
	return !slices.ContainsFunc(p.pods, func(pod *pod) bool { return p.fate[pod.revision] != works })
}

// triedAt is since when the workload has a pod of its revision, on a node that has received it; zero if it has none.
func (p *place) triedAt() (at time.Time) {
	for _, pod := range p.pods {
		if pod.of == p.uid && pod.revision == p.revision && pod.node != nil && pod.startedAt.After(at) {
			at = pod.startedAt
		}
	}
	return at
}

// wanted is how many pods a workload is to have, as its status says.
func (w *world) wanted(p *place) (want int) {
	switch {
	case p.idle:
		return 0
	case w.shape.kind == daemonSet:
		for _, n := range p.nodes {
			if w.wants(p, n) {
				want++
			}
		}
		return want
	}
	return p.replicas
}

// counts are those of the workload's status.
func (w *world) counts(p *place) (want, all, updated, available int) {
	want = w.wanted(p)
	for _, pod := range p.pods {
		if pod.of != p.uid || (pod.deleting && w.shape.kind != statefulSet) ||
			(w.shape.kind == daemonSet && !w.wants(p, pod.node)) {
			continue
		}
		all++
		if pod.revision == p.revision && !pod.deleting {
			updated++
		}
		if pod.told.ready {
			available++
		}
	}
	return want, all, updated, available
}

// complete reports whether the workload is, and what waits for a person.
func (w *world) complete(p *place) (complete bool, waits string) {
	want, all, updated, available := w.counts(p)
	needs := want
	if w.shape.kind == statefulSet {
		needs -= min(want, w.shape.partition[p.revision])
	}
	if w.shape.onDelete {
		needs = 0
	}
	if needs < want && updated < want {
		waits = "somebody"
	}
	if w.shape.kind == daemonSet { // its status does not count the pods of nodes that are not ready
		strays := slices.ContainsFunc(p.pods, func(pod *pod) bool { return pod.node.notReady && !w.wants(p, pod.node) })
		return updated >= needs && available >= want && want > 0 && !strays, waits
	}
	most := want
	if w.shape.kind == deployment {
		most = updated
	}
	return updated >= needs && available >= want && all <= most, waits
}

// follow notes when the workload made progress.
func (w *world) follow(p *place) {
	_, _, updated, available := w.counts(p)
	complete, _ := w.complete(p)
	is := fmt.Sprint(p.revision, "/", p.uid, "/", p.idle)
	silent := 0
	for _, n := range p.nodes {
		if w.knownSilent(n) {
			silent++
		}
	}
	ready := time.Duration(0)
	if !complete && !p.completeAt.IsZero() {
		ready = w.now.Sub(p.completeAt)
		p.rested += ready
	}
	if !p.exists || p.bestOf != is || ready >= deadline || w.lost(p) {
		p.best, p.bestOf, p.progressAt, p.rested = [2]int{}, is, w.now, 0
	}
	if silent < p.silent {
		p.rested = w.now.Sub(p.progressAt)
	}
	p.silent = silent
	switch {
	case !complete:
		p.completeAt = time.Time{}
	case p.completeAt.IsZero():
		p.completeAt = w.now
	}
	for i, count := range []int{updated, available} {
		if count > p.best[i] {
			p.best[i], p.progressAt, p.rested = count, w.now, 0
		}
	}
	if complete || p.progressAt.After(p.mendedAt) {
		p.mendedAt = time.Time{}
	}
}

// lookAtPods is what the controller reads of a site's workload and nodes.
func (w *world) lookAtPods(p *place, s *rollout.Site) {
	for _, n := range p.nodes {
		if at := n.silentAt.Add(noticed); w.knownSilent(n) && at.After(s.SilentSince) {
			s.SilentSince = at
		}
	}
	if s.Silent, s.Partly = w.lost(p), w.partly(p); !s.Silent {
		s.SilentSince = time.Time{}
	}
	if w.follow(p); !p.exists {
		return
	}
	s.PerNode, s.Progress = w.shape.kind == daemonSet, p.progressAt.Add(w.skew)
	complete, waits := w.complete(p)
	observed := w.now.After(p.appliedAt.Add(time.Second)) && !p.scaled
	current := s.Revision == p.named() && observed
	s.Ready = current && !s.Silent && complete && waits == ""
	if current && !s.Ready {
		s.Waits = waits
	}
	if current && !complete && !s.Silent && w.now.Sub(p.progressAt)-p.rested >= deadline {
		s.Broken, s.Tried = "no progress", p.revision
	}
}

// counted reports whether a pod counts as one of a site's workload. What a deleted Deployment has left has the names of
// the new one's ReplicaSets, and a StatefulSet waits for the end of such pods.
func (w *world) counted(p *place, pod *pod) bool {
	return pod.of == p.uid || w.shape.kind == deployment || (w.shape.kind == statefulSet && pod.deleting)
}

// answer is what the API server says of a site's pods. The clocks of nodes are wrong by hours.
func (w *world) answer(p *place) rollout.Pods {
	nodes := map[string]rollout.Node{}
	for _, n := range p.nodes {
		wants := p.fate[p.revision] != nowhere && !n.tainted
		nodes[n.name] = rollout.Node{Silent: w.knownSilent(n), Wants: wants}
	}
	var all []corev1.Pod
	for _, pod := range p.pods {
		if !w.counted(p, pod) || (pod.node == nil && !w.partly(p)) {
			continue
		}
		var api corev1.Pod
		api.UID, api.CreationTimestamp = types.UID(fmt.Sprint(pod.id)), metav1.NewTime(pod.madeAt)
		api.Labels = map[string]string{"revision": fmt.Sprint(pod.of, pod.revision)}
		if pod.deleting {
			api.DeletionTimestamp = &metav1.Time{Time: w.now}
		}
		if pod.node != nil {
			api.Spec.NodeName = pod.node.name
		}
		if pod.told.started {
			wrong := metav1.NewTime(pod.startedAt.Add(5 * time.Hour))
			api.Status.StartTime = &wrong
			api.Status.ContainerStatuses = []corev1.ContainerStatus{{
				ContainerID: fmt.Sprint(pod.id, pod.told.restarts), RestartCount: int32(pod.told.restarts),
				State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: wrong}},
			}}
		}
		if pod.told.ready {
			api.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		}
		all = append(all, api)
	}
	newest := func(api *corev1.Pod) bool {
		return api.Labels["revision"] == fmt.Sprint(p.uid, w.shown(p))
	}
	return rollout.SummarizePods(all, nodes, newest, w.clock())
}

// describe describes a site, its nodes and its pods.
func (w *world) describe(p *place) string {
	text := fmt.Sprintf("%+v, workload %d %s of %s, good for %s", w.shape, p.uid, p.revision, p.progressAt, p.good)
	for _, n := range p.nodes {
		text += fmt.Sprintf("; %s heard: %t, tainted: %t", n.name, n.heard(), n.tainted)
	}
	for _, pod := range p.pods {
		on := "nowhere"
		if pod.node != nil {
			on = pod.node.name
		}
		text += fmt.Sprintf("; pod %d.%d of %d with %s on %s from %s, ready %s, deleting: %t, told %v", pod.id,
			pod.ordinal, pod.of, pod.revision, on, pod.madeAt.Format(time.TimeOnly),
			pod.readyAt.Format(time.TimeOnly), pod.deleting, pod.told)
	}
	return text
}
