package livepods

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"
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
	// returning lasts while this node's own state is used for the pods of Keeper.about.
	returning
)

// Keeper notes how this node's pods are, judges them, and passes that and what the neighbours say to the facts.
type Keeper struct {
	config Config

	// Only the goroutine of Run uses these.

	phase phase
	// since is when the phase began.
	since time.Time
	// long is set in the phase returning after an outage that the API server may have noticed, and in the phase away if
	// an earlier one was such.
	long bool
	// about has the pods for which this node's own state is used in the phase returning, and in the phase following
	// while the API server calls the node not ready.
	about map[facts.PodKey]struct{}
	// records has the pods, by the names that the runtime gives them.
	records map[facts.PodKey]*record
	// known has the upstream's status of this node's pods, as of changes of the facts. news is set until it has been
	// processed.
	known   map[facts.PodKey]facts.KnownPod
	changes uint64
	news    bool
	// heartbeat is the kubelet's last report, and beat when it arrived; zero if none has since this process started.
	heartbeat string
	beat      time.Time
	// boot is the boot in which the notes were last true of the pods, noted is the socket of their runtime.
	boot, noted string
	// pods has the records of the pods of the runtime's last answer, as of asOf. Before the first answer it is nil, and
	// asOf is when this process began. asked is when the runtime was asked last.
	pods        map[facts.PodKey]*record
	asOf, asked time.Time
	// neighbours has the neighbours whose reports the facts have, by name. heard has their last reports, and heardAt is
	// the facts' Changes then.
	neighbours map[string]*neighbour
	heard      map[string]*facts.LivePods
	heardAt    uint64

	mu sync.Mutex
	// status is guarded by mu.
	status Status
}

// New makes a Keeper, which sends no question before Run.
func New(config Config) *Keeper {
	if config.Neighbours == nil {
		config.Neighbours = noNeighbours{}
	}
	if config.Now == nil {
		config.Now = time.Now
	}
	return &Keeper{
		config: config, neighbours: make(map[string]*neighbour), records: make(map[facts.PodKey]*record),
		changes: math.MaxUint64, heardAt: math.MaxUint64, asOf: config.Now(), boot: config.Boot,
	}
}

// Status returns what the Keeper does.
func (k *Keeper) Status() Status {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.status
}

func (k *Keeper) update(change func(*Status)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	change(&k.status)
}

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
	case state == Away:
		k.ask(ctx)
		if k.phase != away {
			k.leave(ctx)
		}
		k.readWords()
		k.takeLast()
		k.give()
		k.hear()
	case k.phase == away:
		k.comeBack()
		k.catchUp(ctx)
	case k.phase == returning:
		k.catchUp(ctx)
	case k.phase == starting:
		k.follow(ctx)
		k.updateNotes(ctx)
	default:
		k.updateNotes(ctx)
	}
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
		k.readWords()
		k.takeWords(false)
	}
	// The kubelet may not have reported since an earlier outage.
	k.long = k.phase == starting || k.phase == returning && k.long
	k.enter(away)
	k.about, k.heardAt = nil, math.MaxUint64 // look at the neighbours' words again
	klog.FromContext(ctx).Info("The upstream is away: nodes themselves say how their pods are reached",
		"thisNode", k.config.Runtime != nil, "neighbours", len(k.config.Neighbours.Words()))
}

// comeBack ends an outage. The upstream's status of the pods that it knew before may still date from before the outage,
// unless the outage was short and the pod has not changed. A pod that was added meanwhile is not among them, because
// the upstream's status of it is new.
func (k *Keeper) comeBack() {
	now := k.config.Now()
	k.long = k.long || now.Sub(k.since) >= shortOutage
	for _, r := range k.records {
		r.from = now // the upstream's status could not change meanwhile
	}
	before := k.since
	k.enter(returning)
	k.about = make(map[facts.PodKey]struct{})
	if k.config.Runtime != nil {
		for pod := range k.known { // as of before the outage
			if r := k.find(pod); k.long || r == nil || k.seemsChanged(r, before) {
				k.about[pod] = struct{}{}
			}
		}
	}
}

// seemsChanged reports whether a pod has changed after that time, or a moment before it.
func (k *Keeper) seemsChanged(r *record, before time.Time) bool {
	pod := r.judge(k.config.Now())
	return pod.Suspected || pod.Serving != r.Ready || r.since.After(before.Add(-probing))
}

// catchUp drops the pods on which the upstream and their node agree, and ends the return when all are dropped.
func (k *Keeper) catchUp(ctx context.Context) {
	now := k.config.Now()
	if now.Sub(k.since) >= k.config.ReturnGrace {
		k.follow(ctx)
		return
	}
	answered := k.ask(ctx)
	k.readWords()
	if ready, _ := k.config.Facts.NodeReady(); !ready && k.config.Runtime != nil {
		k.long = true // the link was dead before anything noticed
		for pod := range k.known {
			k.about[pod] = struct{}{}
		}
	}
	k.give()
	k.hear()
	settled := !k.long || now.Sub(k.since) >= settling
	if answered {
		maps.DeleteFunc(k.about, func(pod facts.PodKey, _ struct{}) bool {
			r, known := k.find(pod), k.known[pod] // only a kubelet's report makes a pod ready
			return settled && !known.Disputed || r != nil && !r.Ready && known.Serving
		})
		k.takeWords(true)
	}
	if settled {
		k.agree()
	}
	if settled && len(k.neighbours)+len(k.about) == 0 {
		k.follow(ctx)
	}
}

// follow makes the upstream's status apply.
func (k *Keeper) follow(ctx context.Context) {
	if k.phase == returning {
		klog.FromContext(ctx).Info("The upstream says how pods are reached", "notAgreed", len(k.about))
	}
	k.enter(following)
	k.standIn()
	for name := range k.neighbours {
		k.forget(name)
	}
	k.giveNeighbours()
	k.asked = time.Time{}
}

// updateNotes updates the notes while the API server's status applies, and shares the pods with neighbours that need
// them.
func (k *Keeper) updateNotes(ctx context.Context) {
	if k.config.Runtime == nil {
		return
	}
	now := k.config.Now()
	k.readWords()
	ready, heartbeat := k.config.Facts.NodeReady()
	if heartbeat != k.heartbeat {
		if k.heartbeat != "" {
			k.beat = now
		}
		k.heartbeat = heartbeat
	}
	wanted := k.config.Neighbours.Wanted()
	if !k.news && !wanted && ready && len(k.about) == 0 && now.Sub(k.asked) < noteInterval {
		return
	}
	if k.config.Upstream() != Followed {
		return
	}
	answered := k.ask(ctx)
	k.takeWords(answered)
	k.standIn()
	if wanted {
		k.config.Neighbours.Share(k.current())
	} else {
		k.config.Neighbours.Share(nil)
	}
	if answered {
		k.verify()
	}
}

// readWords reads the API server's status of the pods, if anything has changed.
func (k *Keeper) readWords() {
	changes := k.config.Facts.Changes()
	if changes == k.changes {
		return
	}
	known := k.config.Facts.PodsOn(k.config.NodeName)[k.config.NodeName]
	k.news = k.news || !maps.EqualFunc(known, k.known, func(a, b facts.KnownPod) bool {
		return a.Serving == b.Serving && slices.Equal(a.Idle, b.Idle)
	})
	before := k.known
	k.known, k.changes = known, changes
	if k.phase != returning || !k.long {
		return
	}
	for pod := range known {
		r := k.find(pod)
		if _, listed := before[pod]; !listed && r != nil && r.heard == pod.UID {
			k.about[pod] = struct{}{} // a Service lists it again: the upstream's status may still be old
		}
	}
}

// takeWords processes the API server's status of the pods, except those for which this node's own state is used. That
// they are not ready is noted even then while the API server calls the node not ready: the link may be dead again
// before it says more. fresh is set if the runtime listed the pods a moment ago.
func (k *Keeper) takeWords(fresh bool) {
	k.news = false
	k.noteIdle()
	ready, _ := k.config.Facts.NodeReady()
	c := contact{now: k.config.Now(), confirmed: k.config.Contact(), beat: k.beat, nodeReady: ready}
	gone := maps.Clone(k.records)
	for key, known := range k.known {
		name, r, _ := facts.FindPod(k.records, key)
		delete(gone, name)
		_, about := k.about[key]
		switch {
		case r == nil:
		case !about || k.phase == following:
			r.noteAddresses()
			c.fresh = fresh && k.pods[name] != nil && !r.now.Sick
			r.hear(key.UID, known, c)
		case !ready && !known.Serving:
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
		k.config.Facts.Note(func(n *facts.Notes) { n.PodNotes = encoded })
	}
}

// noteIdle notes in which Services the endpoint of a ready pod is not ready. This applies to this node's own state as
// well: a Service may have been made, or may list the pod, only since the upstream is back.
func (k *Keeper) noteIdle() {
	for key, known := range k.known {
		if _, r, _ := facts.FindPod(k.records, key); r != nil && known.Serving {
			r.Idle = known.Idle
		}
	}
}

// takeLast takes the API server's last status of pods without a note.
func (k *Keeper) takeLast() {
	for key, known := range k.known {
		if _, r, _ := facts.FindPod(k.records, key); r != nil && r.heard == "" && r.Replaced == "" && known.Serving {
			r.heard, r.Ready = key.UID, true
		}
	}
}

// standIn shows pods that run although the API server calls them not ready, if the only reason is that it calls the
// node not ready. They are suspected, so they are used where a Service has no other ready endpoint. Otherwise the
// upstream's status applies.
func (k *Keeper) standIn() {
	k.about = make(map[facts.PodKey]struct{})
	live := k.current()
	ready, _ := k.config.Facts.NodeReady()
	for key, known := range k.known {
		name, pod, runs := facts.FindPod(live.Pods, key)
		if r := k.records[name]; runs && r != nil && (r.Mixed || !ready) && !known.Serving && pod.Serving {
			pod.Suspected = true
			pod.Why = "it runs, and the API server calls the node not ready"
			live.Pods[name] = pod
			k.about[key] = struct{}{}
		}
	}
	if len(k.about) == 0 {
		k.config.Facts.SetLivePods(k.config.NodeName, nil)
		k.update(func(s *Status) { s.Used, s.Returning, s.Corrected, s.Reasons = false, false, 0, nil })
		return
	}
	k.pass(live)
}

// verify sets the status' error if the runtime runs none of the node's pods.
func (k *Keeper) verify() {
	expected := 0
	for _, known := range k.known {
		if known.Serving {
			expected++
		}
	}
	if expected > 0 && !k.isKubelets() {
		err := fmt.Errorf("it runs none of the %d ready pods that endpoints on this node name: it may not be the "+
			"kubelet's", expected)
		k.update(func(s *Status) { s.Err = err })
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
	if err != nil && attempt.Err() != nil {
		err = fmt.Errorf("the container runtime does not answer in time (%s): %w", patience, err)
	}
	k.config.Observer.RuntimeAsked(err)
	before := k.Status().Err
	k.update(func(s *Status) {
		if s.Err = err; err == nil {
			s.AsOf = k.asked
		}
	})
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
			r = &record{Note: Note{UID: pod.UID}}
			k.records[key] = r
		}
		r.observe(pod, k.asOf)
		k.pods[key] = r
	}
	return true
}

// current returns the pods of this node, as the node shows them.
func (k *Keeper) current() *facts.LivePods {
	now := k.config.Now()
	k.readWords()
	k.noteIdle()
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
	for key, known := range k.known {
		if _, _, runs := facts.FindPod(live.Pods, key); runs || k.knowsAbsent() {
			continue
		}
		pod := facts.LivePod{Serving: known.Serving, Idle: known.Idle, Why: "the runtime does not say whether it runs"}
		if _, r, _ := facts.FindPod(k.records, key); r != nil && r.Ready && !known.Serving {
			// the API server calls the node not ready
			pod.Serving, pod.Idle = true, r.Idle
		}
		pod.Suspected = pod.Serving && (k.pods != nil || silent)
		live.Pods[key] = pod
	}
	return live
}

// isKubelets reports whether the runtime that has answered is the kubelet's, because it runs a pod of an endpoint.
func (k *Keeper) isKubelets() bool {
	for key := range k.known {
		if k.find(key) != nil {
			return true
		}
	}
	return len(k.known) == 0
}

// rebooted reports whether no pod was seen in this boot yet.
func (k *Keeper) rebooted() bool { return k.boot != k.config.Boot }

// knowsAbsent reports whether pods that the runtime has not listed are known not to run. They are not if it has not
// answered since the process began, or if it may not be the runtime that ran the kubelet's pods. After a reboot no pod
// runs until it is seen.
func (k *Keeper) knowsAbsent() bool {
	return k.rebooted() || k.pods != nil && (k.config.Runtime.Named() || k.noted == k.config.Runtime.Socket())
}

// give judges the pods of the runtime's last answer, however old, and passes them to the facts and to the neighbours.
func (k *Keeper) give() {
	if k.config.Runtime == nil {
		k.update(func(s *Status) { s.Used, s.Returning = true, k.phase == returning })
		return
	}
	live := k.current()
	if k.pods != nil || k.rebooted() {
		k.config.Neighbours.Share(live)
	}
	k.pass(live)
}

func (k *Keeper) pass(live *facts.LivePods) {
	own := *live
	own.About = maps.Clone(k.about) // a copy, because the Keeper drops pods from about
	k.config.Facts.SetLivePods(k.config.NodeName, &own)
	var reasons []string
	k.readWords()
	for key, pod := range k.known {
		if !pod.Disputed {
			continue
		}
		why := "this node does not run it"
		if _, shown, runs := facts.FindPod(live.Pods, key); runs {
			why = shown.Why
		}
		reasons = append(reasons, fmt.Sprintf("%s/%s: %s", key.Namespace, key.Name, why))
	}
	slices.Sort(reasons)
	k.update(func(s *Status) {
		s.Used, s.Returning, s.Corrected = true, k.phase == returning, len(reasons)
		s.Reasons = reasons[:min(len(reasons), maxReasons)]
	})
}

// find returns the record of an endpoint's pod; nil if the runtime does not run it.
func (k *Keeper) find(pod facts.PodKey) *record {
	_, r, _ := facts.FindPod(k.pods, pod)
	return r
}
