package livepods

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"github.com/application-grid/application-grid/pkg/autonomy/cri"
	"github.com/application-grid/application-grid/pkg/storage/facts"
)

const (
	// interval is the time between two checks of the upstream and, while it is away, between two questions to the
	// runtime. The kubelet asks the runtime as often.
	interval = time.Second
	// noteInterval is the time between two notes while nothing changes.
	noteInterval = 10 * time.Second
	// patience is how long the runtime may take to answer, and lasts is how long an answer is valid.
	patience = 3 * time.Second
	lasts    = 30 * time.Second

	// DefaultReturnGrace limits how long after an outage a node's own state of its pods is used. A kubelet reports its
	// node within 10 s and lists its pods again within a minute.
	DefaultReturnGrace = 2 * time.Minute
	// shortOutage is how long the upstream may be away before the API server begins to suspect the node. The API server
	// waits 40 s for a report of the kubelet, which reports every 10 s.
	shortOutage = 10 * time.Second
	// settling is how long after a longer outage the upstream's agreement is ignored. A moment after the link is back
	// the API server may call the node's pods not ready, because the kubelet's last report is too old.
	settling = 30 * time.Second
	// maxReasons is the largest number of pods for which Status gives reasons.
	maxReasons = 10
)

// UpstreamState says what is known of the upstream.
type UpstreamState int

const (
	// Unknown means that no state of the upstream has arrived yet, and nothing is served.
	Unknown UpstreamState = iota
	// Followed means that the upstream's current state is served.
	Followed
	// Away means that an earlier state is served.
	Away
)

// Runtime is the node's container runtime.
type Runtime interface {
	// Pods returns all pods that the runtime runs.
	Pods(ctx context.Context) ([]cri.Pod, error)
	// Socket names the runtime that has answered last.
	Socket() string
	// Named reports whether a person has named the socket, so that its runtime is the kubelet's.
	Named() bool
	// Close closes the connection. Pods opens it again.
	Close()
}

// Neighbours are the other nodes of the site that report the state of their pods.
type Neighbours interface {
	// Words returns their reports by node name. As long as a node reports nothing new, its pointer is the same. The
	// Keeper does not change the reports.
	Words() map[string]*facts.LivePods
	// Share takes the pods of this node for them; nil if these are no longer known.
	Share(pods *facts.LivePods)
	// Wanted reports whether any of them needs to know the pods of this node.
	Wanted() bool
}

// noNeighbours are those of a node without an exchange.
type noNeighbours struct{}

func (noNeighbours) Words() map[string]*facts.LivePods { return nil }
func (noNeighbours) Share(*facts.LivePods)             {}
func (noNeighbours) Wanted() bool                      { return false }

// Observer observes what the runtime and the neighbours answer.
type Observer interface {
	// RuntimeAsked is called after every question to the runtime. err is nil if it has answered.
	RuntimeAsked(err error)
	// PodsRefused is called with the number of pods that a neighbour says have addresses of others.
	PodsRefused(count int)
}

// Config is what a Keeper is made from. All fields but Boot and Now are needed, but one of Runtime and Neighbours may
// be nil.
type Config struct {
	// NodeName is this node's name.
	NodeName string
	// Facts take the pods, and know the upstream's status of them.
	Facts *facts.Facts
	// Upstream returns what is known of the upstream at the moment.
	Upstream func() UpstreamState
	// Contact returns when the upstream last confirmed what it says of pods.
	Contact func() time.Time
	// Boot is the id of the machine's boot; "" if it is not known.
	Boot string
	// Runtime is nil if this node's own pods are not known.
	Runtime Runtime
	// Neighbours is nil without an exchange.
	Neighbours Neighbours
	// ReturnGrace limits how long after an outage the reports of this node and of neighbours are used; 0: not at all.
	ReturnGrace time.Duration
	Observer    Observer
	// Now is time.Now if nil. Only differences of its results count.
	Now func() time.Time
}

// Status is what a Keeper does.
type Status struct {
	// Used is set while this node's own state of its pods is used, Returning if the only reason is that the upstream
	// has not caught up.
	Used, Returning bool
	// AsOf is when the runtime last answered; zero if it has not.
	AsOf time.Time
	// Corrected is the number of this node's pods whose endpoints are shown differently from what the upstream says,
	// NeighboursCorrected that of its neighbours' pods.
	Corrected, NeighboursCorrected int
	// Reasons says of the first corrected pods of this node, by name, why they are shown so.
	Reasons []string
	// Neighbours are the nodes whose reports are used, sorted.
	Neighbours []string
	// Err is why the runtime could not be asked the last time, or why its answer is suspect; nil if neither.
	Err error
}

// phase is what a Keeper does at the moment.
type phase int

const (
	// starting lasts until the upstream is known to be reachable or away.
	starting phase = iota
	// following lasts while the upstream's status applies.
	following
	// away lasts while this node's own state is used for all its pods.
	away
	// returning lasts while nodes' own states are used for the pods of Keeper.about.
	returning
)

// Keeper notes how this node's pods are, judges them, and passes that and what the neighbours say to the facts.
type Keeper struct {
	config Config
	status atomic.Pointer[Status]

	// Only the goroutine of Run uses the fields below.

	phase phase
	// since is when the phase began.
	since time.Time
	// long is set in the phase returning after an outage that the API server may have noticed, and in the phase away if
	// an earlier one was such.
	long bool
	// about has the pods, by node, for which their node's own state is used: in the phase away the neighbours' pods of
	// governed Services; in the phase returning those pods of any node on which the upstream does not agree yet; and in
	// the phase following the pods of this node that run while the API server calls the node not ready.
	about map[string]map[facts.PodKey]struct{}
	// records has the pods, by the names that the runtime gives them.
	records map[facts.PodKey]*record
	// words has the neighbours' reports that are used. known has the upstream's status of their pods and of this
	// node's, by node, as of changes of the facts.
	words   map[string]*facts.LivePods
	known   map[string]map[facts.PodKey]facts.KnownPod
	changes uint64
	// nodeReady is set if the API server calls this node ready. heartbeat is the kubelet's last report; "" if none was
	// seen since the upstream came back. beat is when one arrived after another; zero before.
	nodeReady bool
	heartbeat string
	beat      time.Time
	// boot is the boot in which the notes were last true of the pods, noted is the socket of their runtime.
	boot, noted string
	// pods has the records of the pods of the runtime's last answer, as of asOf. Before the first answer it is nil, and
	// asOf is when this process began. asked is when the runtime was asked last; zero if it must be asked soon. err is
	// that of Status.
	pods        map[facts.PodKey]*record
	asOf, asked time.Time
	err         error
	// passed has the neighbours' reports that the facts have.
	passed map[string]*facts.LivePods
}

// New makes a Keeper, which sends no question before Run.
func New(config Config) *Keeper {
	if config.Neighbours == nil {
		config.Neighbours = noNeighbours{}
	}
	if config.Now == nil {
		config.Now = time.Now
	}
	k := &Keeper{
		config: config, about: make(map[string]map[facts.PodKey]struct{}), records: make(map[facts.PodKey]*record),
		changes: math.MaxUint64, asOf: config.Now(), boot: config.Boot,
	}
	k.status.Store(&Status{})
	return k
}

// Status returns what the Keeper does.
func (k *Keeper) Status() Status { return *k.status.Load() }

// Run works until ctx is done.
func (k *Keeper) Run(ctx context.Context) {
	if k.config.Runtime != nil {
		defer k.config.Runtime.Close()
	}
	wait.NonSlidingUntilWithContext(ctx, k.step, interval)
}

// step checks the state of the upstream and acts on it.
func (k *Keeper) step(ctx context.Context) {
	state := k.config.Upstream()
	if state == Unknown {
		return
	}
	if k.phase == starting {
		k.restore()
	}
	switch {
	case state == Away && k.phase != away:
		k.leave(ctx)
	case state == Followed && k.phase == away:
		k.comeBack()
	}
	changed := k.read()
	if k.phase == starting || k.phase == returning && k.agree() {
		k.follow(ctx)
	}
	wanted := k.config.Neighbours.Wanted()
	due := wanted || !k.nodeReady || len(k.about[k.config.NodeName]) > 0 || k.config.Now().Sub(k.asked) >= noteInterval
	if k.phase == following && !due {
		return
	}
	k.takeWords(k.ask(ctx))
	live := k.show(wanted)
	if changed || k.phase == returning {
		k.passWords()
	}
	k.report(live)
}

func (k *Keeper) enter(next phase) { k.phase, k.since = next, k.config.Now() }

// stored is what is in the snapshot.
type stored struct {
	Boot   string      `json:"boot,omitempty"`
	Socket string      `json:"socket,omitempty"`
	Pods   []storedPod `json:"pods"`
}

type storedPod struct {
	facts.PodKey
	Note Note
	// Heard is record.heard.
	Heard string `json:"heard,omitempty"`
}

// NotesOfBoot returns the notes of a process that asks no runtime. From them a later process that asks one knows
// whether the machine has rebooted since, so that no pod counts as running until it is seen.
func NotesOfBoot(boot string) []byte { return fmt.Appendf(nil, `{"boot":%q,"pods":[]}`, boot) }

// restore takes the notes of an earlier process, unless no runtime says what has become of the pods since.
func (k *Keeper) restore() {
	var notes stored
	err := json.Unmarshal(k.config.Facts.Notes().PodNotes, &notes)
	if err != nil || k.config.Runtime == nil {
		return
	}
	k.boot, k.noted = notes.Boot, notes.Socket
	for _, n := range notes.Pods {
		k.records[n.PodKey] = &record{Note: n.Note, heard: n.Heard}
	}
}

// leave begins an outage.
func (k *Keeper) leave(ctx context.Context) {
	if k.phase != starting {
		k.read()
		k.takeWords(false)
	}
	// The kubelet may not have reported since an earlier outage.
	k.long = k.phase == starting || k.phase == returning && k.long
	k.enter(away)
	clear(k.about)
	k.changes = math.MaxUint64 // pass all reports again
	klog.FromContext(ctx).Info("The upstream is away: nodes themselves say how their pods are reached",
		"thisNode", k.config.Runtime != nil, "neighbours", len(k.config.Neighbours.Words()))
}

// comeBack ends an outage. The upstream's status of the pods that it knew before may still date from before the outage,
// unless the outage was short, and the pod has not changed since a moment before it. A pod that was added meanwhile is
// not among them, because the upstream's status of it is new.
func (k *Keeper) comeBack() {
	now, before := k.config.Now(), k.since
	k.long = k.long || now.Sub(before) >= shortOutage
	for _, r := range k.records {
		r.from = now // the upstream's status could not change meanwhile
	}
	k.heartbeat = "" // the next one may be from before the outage
	k.enter(returning)
	about := make(map[facts.PodKey]struct{})
	for pod := range k.known[k.config.NodeName] { // as of before the outage
		r := k.find(pod)
		if k.long || r == nil || r.since.After(before.Add(-probing)) || r.judge(now).Serving != r.Ready {
			about[pod] = struct{}{}
		}
	}
	k.about[k.config.NodeName] = about
}

// agree drops the pods on which the upstream and their nodes agree, and reports whether the return has ended: none is
// left, or the grace has expired.
func (k *Keeper) agree() bool {
	here, lasted, left := k.config.NodeName, k.config.Now().Sub(k.since), 0
	if !k.nodeReady && len(k.known[here]) > 0 {
		k.long = true // the link was dead before anything noticed
		for pod := range k.known[here] {
			k.about[here][pod] = struct{}{}
		}
	}
	settled := !k.long || lasted >= settling
	for node, about := range k.about {
		maps.DeleteFunc(about, func(pod facts.PodKey, _ struct{}) bool {
			known := k.known[node][pod]
			if settled && !known.Disputed {
				return true
			}
			r := k.find(pod) // only a kubelet's report makes a pod ready
			return r != nil && !r.Ready && known.Serving
		})
		left += len(about)
	}
	return settled && left == 0 || lasted >= k.config.ReturnGrace
}

// follow makes the upstream's status apply.
func (k *Keeper) follow(ctx context.Context) {
	if k.phase == returning { // and not at the start
		klog.FromContext(ctx).Info("The upstream says how pods are reached",
			"notAgreed", len(k.about[k.config.NodeName]))
	}
	k.enter(following)
	clear(k.about)
	k.read()
	k.asked = time.Time{}
}

// read reads the API server's status of the pods and of the node, and the neighbours' reports. It reports whether those
// of the pods have changed. The node is read last: if it becomes not ready meanwhile, its pods must not seem to be so
// for another reason.
func (k *Keeper) read() (changed bool) {
	changed = k.readWords()
	ready, heartbeat := k.config.Facts.NodeReady()
	if k.nodeReady = ready; heartbeat != k.heartbeat && k.heartbeat != "" {
		k.beat = k.config.Now()
	}
	k.heartbeat = heartbeat
	return changed
}

// readWords reads the API server's status of the pods and the neighbours' reports, and reports whether any has changed.
func (k *Keeper) readWords() bool {
	here := k.config.NodeName
	words, changes := make(map[string]*facts.LivePods), k.config.Facts.Changes()
	if k.phase == returning {
		maps.Copy(words, k.words) // those who have fallen silent may not agree with the upstream yet
	}
	maps.Copy(words, k.config.Neighbours.Words())
	maps.DeleteFunc(words, func(name string, _ *facts.LivePods) bool {
		return k.phase != away && len(k.about[name]) == 0
	})
	if changes == k.changes && maps.Equal(words, k.words) {
		return false
	}
	nodes := slices.Collect(maps.Keys(words))
	if k.config.Runtime != nil {
		nodes = append(nodes, here)
	}
	known := k.config.Facts.PodsOn(nodes...)
	if k.phase == away && k.config.Upstream() != Away {
		return false // the upstream may be back, with pods that it did not know before
	}
	for name := range k.words {
		if words[name] == nil {
			k.config.Facts.SetLivePods(name, nil)
		}
	}
	before := k.known[here]
	k.words, k.known, k.changes = words, known, changes
	if !reflect.DeepEqual(known[here], before) {
		k.asked = time.Time{}
	}
	if k.phase == returning && k.long {
		for pod := range known[here] {
			r := k.find(pod)
			if _, listed := before[pod]; !listed && r != nil && r.heard == pod.UID {
				k.about[here][pod] = struct{}{} // a Service lists it again: the upstream's status may still be old
			}
		}
	}
	return true
}

// takeWords processes the API server's status of the pods, except of those for which this node's own state is used.
// That they are not ready is noted even then while the API server calls the node not ready: the link may be dead again
// before it says more. fresh is set if the runtime listed the pods a moment ago.
func (k *Keeper) takeWords(fresh bool) {
	c := contact{now: k.config.Now(), confirmed: k.config.Contact(), beat: k.beat, nodeReady: k.nodeReady}
	gone := maps.Clone(k.records)
	for key, known := range k.known[k.config.NodeName] {
		name, r, _ := facts.FindPod(k.records, key)
		delete(gone, name)
		if r == nil {
			continue
		}
		if known.Serving {
			r.Idle = known.Idle // in any phase: a Service may list the pod only since the upstream is back
		}
		_, about := k.about[k.config.NodeName][key]
		switch {
		case k.phase == away: // the last status counts for a pod without a note
			if r.heard == "" && r.Replaced == "" && known.Serving {
				r.heard, r.Ready = key.UID, true
			}
		case !about || k.phase == following:
			r.noteAddresses()
			c.fresh = fresh && k.pods[name] != nil && !r.now.Sick
			r.hear(key.UID, known, c)
		case !k.nodeReady && !known.Serving:
			r.hearOfNode(c.now)
		}
	}
	if fresh && k.config.Runtime != nil && k.isKubelets() {
		maps.DeleteFunc(k.records, func(key facts.PodKey, _ *record) bool {
			return k.pods[key] == nil && gone[key] != nil
		})
		k.boot, k.noted = k.config.Boot, k.config.Runtime.Socket()
	}
	notes := stored{Boot: k.boot, Socket: k.noted, Pods: make([]storedPod, 0, len(k.records))}
	for key, r := range k.records {
		notes.Pods = append(notes.Pods, storedPod{key, r.Note, r.heard})
	}
	slices.SortFunc(notes.Pods, func(a, b storedPod) int { return a.Compare(b.PodKey) })
	if encoded, err := json.Marshal(notes); err == nil {
		k.config.Facts.UpdateNotes(func(n *facts.Notes) { n.PodNotes = encoded })
	}
}

// ask asks the runtime, and reports whether it has answered.
func (k *Keeper) ask(ctx context.Context) bool {
	if k.config.Runtime == nil {
		return true
	}
	k.asked = k.config.Now()
	attempt, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	pods, err := k.config.Runtime.Pods(attempt)
	if ctx.Err() != nil {
		return false
	}
	k.config.Observer.RuntimeAsked(err)
	before := k.err
	k.err = err
	if errors.Is(err, cri.ErrNoPods) && k.rebooted() {
		err = nil // some runtimes keep no pod over a reboot
	}
	if err != nil {
		if before == nil { // /readyz reports later failures
			klog.FromContext(ctx).Info("Cannot ask the container runtime which pods this node runs", "err", err)
		}
		return false
	}
	k.pods, k.asOf = make(map[facts.PodKey]*record, len(pods)), k.asked
	for _, pod := range pods {
		key := facts.PodKey{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID}
		if pod.Static {
			key.UID = ""
		}
		r := k.records[key]
		if r == nil {
			r = &record{}
			k.records[key] = r
		}
		r.observe(pod, k.asOf)
		k.pods[key] = r
	}
	if k.err == nil && k.phase == following && !k.isKubelets() {
		k.err = fmt.Errorf("it runs none of the %d pods that endpoints on this node name: it may not be the kubelet's",
			len(k.known[k.config.NodeName]))
	}
	return true
}

// current returns the pods of this node, as the node shows them. In the phase following it sets which are shown so.
func (k *Keeper) current() *facts.LivePods {
	now, about := k.config.Now(), k.about[k.config.NodeName]
	live := &facts.LivePods{AsOf: k.asOf, Pods: make(map[facts.PodKey]facts.LivePod, len(k.pods))}
	silent := now.Sub(k.asOf) >= lasts
	for key, r := range k.pods {
		pod := r.judge(now)
		switch {
		case pod.Serving && silent:
			pod.Suspected, pod.Why = true, fmt.Sprintf("the runtime has not answered for %s", lasts)
		case pod.Serving && r.now.Sick:
			pod.Suspected, pod.Why = true, "the runtime does not say which addresses it has"
		}
		live.Pods[key] = pod
	}
	if k.phase == following {
		about = make(map[facts.PodKey]struct{})
		k.about[k.config.NodeName] = about
	}
	for key, known := range k.known[k.config.NodeName] {
		name, pod, runs := facts.FindPod(live.Pods, key)
		_, r, _ := facts.FindPod(k.records, key)
		if !runs {
			if k.knowsAbsent() {
				continue
			}
			name, pod = key, facts.LivePod{
				Serving: known.Serving, Idle: known.Idle, Why: "the runtime does not say whether it runs",
			}
			if r != nil && r.Ready && !known.Serving { // the API server calls the node not ready
				pod.Serving, pod.Idle = true, r.Idle
			}
			pod.Suspected = pod.Serving && (k.pods != nil || silent)
		}
		// A pod that runs is used where a Service has no other ready endpoint, if the API server calls it not ready
		// only because it calls the node so.
		if k.phase == following && r != nil && (r.Mixed || !k.nodeReady) && !known.Serving && pod.Serving {
			pod.Suspected, pod.Why = true, "it runs, and the API server calls the node not ready"
			about[key] = struct{}{}
		}
		live.Pods[name] = pod
	}
	return live
}

// isKubelets reports whether the runtime that has answered is the kubelet's, because it runs a pod of an endpoint.
func (k *Keeper) isKubelets() bool {
	known := k.known[k.config.NodeName]
	for key := range known {
		if k.find(key) != nil {
			return true
		}
	}
	return len(known) == 0
}

// rebooted reports whether no pod was seen in this boot yet.
func (k *Keeper) rebooted() bool { return k.boot != k.config.Boot }

// knowsAbsent reports whether pods that the runtime has not listed are known not to run. They are not if it has not
// answered since the process began, or if it may not be the runtime that ran the kubelet's pods. After a reboot no pod
// runs until it is seen.
func (k *Keeper) knowsAbsent() bool {
	return k.rebooted() || k.pods != nil && (k.config.Runtime.Named() || k.noted == k.config.Runtime.Socket())
}

// show judges the pods of the runtime's last answer, however old, and passes them to the facts, and to the neighbours
// that may need them. It returns the pods as they are shown.
func (k *Keeper) show(wanted bool) (live facts.LivePods) {
	if k.config.Runtime == nil {
		return live
	}
	own := k.current()
	if live = *own; k.phase == following && !wanted || k.pods == nil && !k.rebooted() {
		own = nil
	}
	k.config.Neighbours.Share(own)
	live.About = maps.Clone(k.about[k.config.NodeName])
	if own = &live; k.phase == following && len(live.About) == 0 {
		own = nil
	}
	k.config.Facts.SetLivePods(k.config.NodeName, own)
	return live
}

// report sets the Status.
func (k *Keeper) report(live facts.LivePods) {
	s := Status{
		Used:      k.phase != following || len(live.About) > 0,
		Returning: k.phase == returning, Err: k.err, Neighbours: slices.Sorted(maps.Keys(k.words)),
	}
	if k.pods != nil {
		s.AsOf = k.asOf
	}
	for node, pods := range k.known {
		for key, pod := range pods {
			if !pod.Disputed {
				continue
			}
			if node != k.config.NodeName {
				s.NeighboursCorrected++
				continue
			}
			why := "this node does not run it"
			if _, shown, runs := facts.FindPod(live.Pods, key); runs {
				why = shown.Why
			}
			s.Reasons = append(s.Reasons, fmt.Sprintf("%s/%s: %s", key.Namespace, key.Name, why))
		}
	}
	slices.Sort(s.Reasons)
	s.Corrected, s.Reasons = len(s.Reasons), s.Reasons[:min(len(s.Reasons), maxReasons)]
	k.status.Store(&s)
}

// find returns the record of an endpoint's pod; nil if the runtime does not run it.
func (k *Keeper) find(pod facts.PodKey) *record {
	_, r, _ := facts.FindPod(k.pods, pod)
	return r
}
