package livepods

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/application-grid/application-grid/pkg/cri"
	"github.com/application-grid/application-grid/pkg/storage/facts"
)

const (
	// interval is the time between two looks at the upstream and, while it is away, between two questions to the
	// runtime. The kubelet asks it as often.
	interval = time.Second
	// patience is how long the runtime may take for an answer.
	patience = 3 * time.Second
	// checkInterval is the time between two questions while the upstream is followed.
	checkInterval = 5 * time.Minute

	// DefaultReturnGrace is how long after an outage the runtime's word counts at most. A kubelet reports its node
	// within 10 s and lists its pods again within a minute.
	DefaultReturnGrace = 2 * time.Minute
	// shortOutage is how long the upstream may be away before the API server begins to doubt the node. It takes 40 s
	// without a word from the kubelet, which is sent every 10 s.
	shortOutage = 10 * time.Second
	// settling is how long after a longer outage the upstream's agreement does not count yet: the API server may call
	// the node's pods not ready a moment after the link is back, because it has not heard of the kubelet.
	settling = 30 * time.Second
)

// UpstreamState says what is known of the upstream.
type UpstreamState int

const (
	// Unknown means that there is no state of the upstream yet, and nothing is served.
	Unknown UpstreamState = iota
	// Followed means that what is served is the upstream's current state.
	Followed
	// Away means that what is served is an earlier state.
	Away
)

// Facts take the pods, and know what the upstream says of them.
type Facts interface {
	// SetLivePods takes the pods of a node; nil if the upstream's word counts.
	SetLivePods(node string, pods *facts.LivePods)
	// PodsOn returns the pods that endpoints on a node name, PodsOnNodes those of several nodes.
	PodsOn(node string) map[facts.PodKey]facts.KnownPod
	PodsOnNodes(nodes map[string]struct{}) map[string]map[facts.PodKey]facts.KnownPod
	// Changes returns a number that grows whenever anything that the upstream says, or SetLivePods, has changed.
	Changes() uint64
	// HeldByOthers returns which of the addresses that nodes say their pods have are known to belong to others.
	HeldByOthers(addresses map[string][]netip.Addr) map[string]map[netip.Addr]struct{}
	// NodeReady reports whether the upstream says that this node is ready.
	NodeReady() bool
}

// Upstream says how the upstream is.
type Upstream interface {
	// State returns what is known of the upstream at the moment.
	State() UpstreamState
	// AsOf returns when the upstream last confirmed the state that is served; the zero time if that is not known.
	AsOf() time.Time
}

// Runtime is the node's container runtime.
type Runtime interface {
	// Pods returns all pods that the runtime runs.
	Pods(ctx context.Context) ([]cri.Pod, error)
	// Close closes the connection. Pods opens it again.
	Close()
}

// Neighbours are the other nodes of the site, as far as they say themselves which pods they run.
type Neighbours interface {
	// Words returns what they say, by the names of the nodes. As long as a node says nothing new, its word is the same
	// pointer. The Keeper does not change it.
	Words() map[string]*facts.LivePods
	// Share takes the pods of this node for them; nil if these are not known any more.
	Share(pods *facts.LivePods)
	// Wanted reports whether any of them needs to know the pods of this node.
	Wanted() bool
}

// Observer observes what the runtime and the neighbours answer.
type Observer interface {
	// RuntimeAsked is called after every question to the runtime. err is nil if it has answered.
	RuntimeAsked(err error)
	// PodsRefused is called with the number of pods that a neighbour says have addresses of others.
	PodsRefused(count int)
}

// Config is what a Keeper is made from. All fields are needed, but one of Runtime and Neighbours may be nil.
type Config struct {
	// NodeName is this node's name.
	NodeName string
	Facts    Facts
	Upstream Upstream
	// Runtime is nil if this node's own pods are not known.
	Runtime Runtime
	// Neighbours is nil if there is no exchange with them.
	Neighbours Neighbours
	// ReturnGrace is how long after an outage the word of the runtime, and of neighbours, counts at most; 0 for not at
	// all.
	ReturnGrace time.Duration
	Observer    Observer
}

// Status is what a Keeper does.
type Status struct {
	// Used is set while the runtime's word counts, Returning if it counts only because the upstream has not caught up.
	Used, Returning bool
	// AsOf is when the runtime last answered; zero if it has not.
	AsOf time.Time
	// Corrected is the number of this node's pods whose endpoints are shown differently from what the upstream says,
	// NeighboursCorrected that of its neighbours' pods.
	Corrected, NeighboursCorrected int
	// Neighbours are the nodes whose own word counts, sorted.
	Neighbours []string
	// Err is why the runtime could not be asked the last time, or why its answer is doubtful; nil if neither.
	Err error
}

// phase is what a Keeper does at the moment.
type phase int

const (
	// starting is the time before the upstream is known to be there or away.
	starting phase = iota
	// following is while the upstream's word counts.
	following
	// away is while the runtime's word counts for all pods of this node.
	away
	// returning is while the runtime's word counts for the pods of Keeper.about.
	returning
)

// Keeper asks the runtime, and passes what it and the neighbours say to the facts.
type Keeper struct {
	config Config

	// Only the goroutine of Run uses these.

	phase phase
	// since is when the phase began, gone when the upstream went away.
	since, gone time.Time
	// short is set in the phase returning after an outage that was too short for the API server to notice it.
	short bool
	// about has the pods for which the runtime's word counts in the phase returning. earlier has those that the
	// upstream knew when it was last found to be away.
	about, earlier map[facts.PodKey]struct{}
	// unready has the pods that the kubelet called not ready before the upstream went away, by the time since when they
	// run. A pod that has not changed since is still not ready.
	unready map[facts.PodKey]time.Time
	// doubted has the pods on which the upstream had not caught up when it went away again.
	doubted map[facts.PodKey]struct{}
	// pods is the runtime's last answer, as of asOf; nil if there is none.
	pods map[facts.PodKey]cri.Pod
	asOf time.Time
	// given is set while the facts have the runtime's word.
	given bool
	// checked is when the runtime was last asked in the phase following.
	checked time.Time
	// shared is set while the neighbours have this node's pods.
	shared bool
	// neighbours has the neighbours whose word the facts have, by name. heard is the facts' Changes when that was last
	// looked at.
	neighbours map[string]*neighbour
	heard      uint64

	mu sync.Mutex
	// status is guarded by mu.
	status Status
}

// New makes a Keeper, which asks nothing before Run.
func New(config Config) *Keeper {
	return &Keeper{config: config, neighbours: make(map[string]*neighbour)}
}

// Status returns what the Keeper does.
func (k *Keeper) Status() Status {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.status
}

// Run works until ctx is done.
func (k *Keeper) Run(ctx context.Context) {
	defer k.closeRuntime()
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	k.since = time.Now()
	for {
		k.step(ctx)
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// step looks at the upstream and does what follows.
func (k *Keeper) step(ctx context.Context) {
	state := k.config.Upstream.State()
	switch {
	case state == Unknown && k.phase == starting:
		// The answer is there when the snapshot is served.
		k.correct(ctx)
		k.hear()
	case state == Unknown:
	case state == Away:
		if k.phase != away {
			k.leave(ctx)
		}
		k.noteEarlier()
		k.correct(ctx)
		k.hear()
	case k.phase == away:
		k.comeBack()
		k.catchUp(ctx)
	case k.phase == returning:
		k.catchUp(ctx)
	default:
		if k.phase == starting {
			k.follow(ctx)
		}
		k.check(ctx)
	}
}

func (k *Keeper) enter(next phase) { k.phase, k.since = next, time.Now() }

// leave begins an outage.
func (k *Keeper) leave(ctx context.Context) {
	k.doubted, k.unready = nil, nil
	if k.phase == returning {
		k.doubted = k.about
	}
	k.gone = time.Now()
	if k.phase == starting {
		k.gone = k.config.Upstream.AsOf() // it was away before this process was there
	}
	k.enter(away)
	k.about, k.heard = nil, math.MaxUint64 // look at the neighbours' words again
	klog.FromContext(ctx).Info("The upstream is away: nodes themselves say how their pods are reached",
		"thisNode", k.config.Runtime != nil, "neighbours", k.config.Neighbours != nil)
}

// noteEarlier notes which pods the upstream knew before it went away.
func (k *Keeper) noteEarlier() {
	known := k.config.Facts.PodsOn(k.config.NodeName)
	if k.config.Upstream.State() != Away {
		return // it may have come back meanwhile, with pods that it did not know before
	}
	k.earlier = make(map[facts.PodKey]struct{}, len(known))
	for pod := range known {
		k.earlier[pod] = struct{}{}
	}
}

// comeBack ends an outage. What the upstream says of the pods that it knew is not newer than the outage yet.
func (k *Keeper) comeBack() {
	k.short = time.Since(k.gone) < shortOutage
	k.enter(returning)
	// A pod that came meanwhile is not among them: of it the upstream knows all that there is to know.
	k.about, k.earlier = k.earlier, nil
	if k.about == nil || k.config.Runtime == nil {
		k.about = make(map[facts.PodKey]struct{})
	}
	if k.pods != nil {
		k.give()
	}
}

// catchUp drops the pods of which the upstream says what their node says, and ends the return if none are left.
func (k *Keeper) catchUp(ctx context.Context) {
	if time.Since(k.since) >= k.config.ReturnGrace {
		k.follow(ctx)
		return
	}
	answered := k.correct(ctx)
	k.hearAgain()
	if !k.short && time.Since(k.since) < settling {
		return
	}
	left := k.agree()
	if answered {
		disputed(k.about, k.config.Facts.PodsOn(k.config.NodeName))
	}
	if left+len(k.about) == 0 {
		k.follow(ctx)
	}
}

// disputed leaves of a set of pods only those of which the upstream does not say what their node says.
func disputed(about map[facts.PodKey]struct{}, known map[facts.PodKey]facts.KnownPod) {
	maps.DeleteFunc(about, func(pod facts.PodKey, _ struct{}) bool { return !known[pod].Disputed })
}

// follow lets the upstream's word count.
func (k *Keeper) follow(ctx context.Context) {
	if k.phase == returning {
		klog.FromContext(ctx).Info("The upstream says how pods are reached", "notAgreed", len(k.about))
	}
	k.enter(following)
	k.about, k.earlier, k.unready, k.doubted = nil, nil, nil, nil
	if k.given {
		k.config.Facts.SetLivePods(k.config.NodeName, nil)
		k.given = false
	}
	k.forgetNeighbours()
	k.pods, k.checked = nil, time.Time{}
	k.update(func(s *Status) { s.Used, s.Returning, s.Corrected = false, false, 0 })
	k.closeRuntime()
}

func (k *Keeper) closeRuntime() {
	if k.config.Runtime != nil {
		k.config.Runtime.Close()
	}
}

// check asks the runtime now and then, so that it is known whether it could be asked, and all the time if a neighbour
// needs to know this node's pods.
func (k *Keeper) check(ctx context.Context) {
	switch {
	case k.config.Runtime == nil:
		return
	case k.config.Neighbours != nil && k.config.Neighbours.Wanted():
		if pods, err := k.ask(ctx); err == nil {
			k.pods, k.asOf = byKey(pods), time.Now()
			k.noteUnready()
			k.share(k.current())
		}
		return
	case k.shared:
		k.share(nil)
		k.pods, k.unready = nil, nil
		k.closeRuntime()
	}
	if !k.checked.IsZero() && time.Since(k.checked) < checkInterval {
		return
	}
	k.checked = time.Now()
	defer k.closeRuntime()
	pods, err := k.ask(ctx)
	if err != nil {
		return
	}
	running := byKey(pods)
	expected, found := 0, 0
	for key, known := range k.config.Facts.PodsOn(k.config.NodeName) {
		if !known.Serving {
			continue
		}
		expected++
		if _, _, ok := find(running, key); ok {
			found++
		}
	}
	if expected > 0 && found == 0 {
		err := fmt.Errorf("it runs none of the %d ready pods that endpoints on this node name: it may not be the "+
			"kubelet's", expected)
		k.update(func(s *Status) { s.Err = err })
	}
}

// ErrSilent means that the runtime did not answer in time.
var ErrSilent = errors.New("the container runtime does not answer in time")

// ask asks the runtime.
func (k *Keeper) ask(ctx context.Context) ([]cri.Pod, error) {
	attempt, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	pods, err := k.config.Runtime.Pods(attempt)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err != nil && attempt.Err() != nil {
		err = fmt.Errorf("%w (%s): %w", ErrSilent, patience, err)
	}
	k.config.Observer.RuntimeAsked(err)
	before := k.Status().Err
	k.update(func(s *Status) {
		if s.Err = err; err == nil {
			s.AsOf = time.Now()
		}
	})
	if err != nil && before == nil { // /readyz has what comes after the first failure
		klog.FromContext(ctx).Info("Cannot ask the container runtime which pods this node runs", "err", err)
	}
	return pods, err
}

func (k *Keeper) update(change func(*Status)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	change(&k.status)
}

// correct asks the runtime and passes its last answer to the facts: also an older one is newer than what the upstream
// says. It reports whether the runtime has answered now.
func (k *Keeper) correct(ctx context.Context) bool {
	if k.config.Runtime == nil {
		k.update(func(s *Status) { s.Used, s.Returning = k.phase != starting, k.phase == returning })
		return true
	}
	pods, err := k.ask(ctx)
	if err == nil {
		k.pods, k.asOf = byKey(pods), time.Now()
	}
	if k.pods != nil && ctx.Err() == nil {
		k.give()
	}
	return err == nil
}

// current returns the pods of the last answer, as this node shows them.
func (k *Keeper) current() *facts.LivePods {
	live := &facts.LivePods{AsOf: k.asOf, Pods: make(map[facts.PodKey]facts.LivePod, len(k.pods))}
	for key, pod := range k.pods {
		since, unready := k.unready[key]
		live.Pods[key] = facts.LivePod{
			Addresses: pod.Addresses, Serving: pod.Running && (!unready || !pod.Since.Equal(since)),
		}
	}
	return live
}

// share gives the neighbours the pods of this node.
func (k *Keeper) share(pods *facts.LivePods) {
	if k.config.Neighbours == nil {
		return
	}
	k.config.Neighbours.Share(pods)
	k.shared = pods != nil
}

// give passes the last answer to the facts, and to the neighbours.
func (k *Keeper) give() {
	if k.phase != returning {
		k.noteUnready()
	}
	live := k.current()
	k.share(live)
	own := *live
	own.About = maps.Clone(k.about) // the Keeper drops those that are agreed on
	k.config.Facts.SetLivePods(k.config.NodeName, &own)
	k.given = true
	corrected := 0
	for _, pod := range k.config.Facts.PodsOn(k.config.NodeName) {
		if pod.Disputed {
			corrected++
		}
	}
	k.update(func(s *Status) {
		s.Used, s.Returning, s.Corrected = k.phase != starting, k.phase == returning, corrected
	})
}

// noteUnready notes the pods that run as they did when the kubelet called them not ready: the runtime does not know
// their readiness probes.
func (k *Keeper) noteUnready() {
	k.unready = make(map[facts.PodKey]time.Time)
	if !k.config.Facts.NodeReady() {
		return // the API server calls them not ready, because it has not heard of the kubelet
	}
	asOf := k.config.Upstream.AsOf()
	for key, known := range k.config.Facts.PodsOn(k.config.NodeName) {
		own, pod, found := find(k.pods, key)
		_, doubted := k.doubted[key]
		if known.Serving || !found || doubted || pod.Since.After(asOf) || !hasAddress(pod, known.Address) {
			continue
		}
		k.unready[own] = pod.Since
	}
}

// hasAddress reports whether a pod has an address. One of the node's network has that of the node.
func hasAddress(pod cri.Pod, address string) bool {
	return len(pod.Addresses) == 0 || slices.ContainsFunc(pod.Addresses, func(a netip.Addr) bool {
		return a.String() == address
	})
}

// byKey returns pods by what endpoints call them.
func byKey(pods []cri.Pod) map[facts.PodKey]cri.Pod {
	keyed := make(map[facts.PodKey]cri.Pod, len(pods))
	for _, pod := range pods {
		key := facts.PodKey{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID}
		if pod.Static {
			key.UID = ""
		}
		keyed[key] = pod
	}
	return keyed
}

// find returns the pod of an endpoint, and its key.
func find(pods map[facts.PodKey]cri.Pod, pod facts.PodKey) (key facts.PodKey, found cri.Pod, ok bool) {
	if found, ok = pods[pod]; ok {
		return pod, found, true
	}
	key = facts.PodKey{Namespace: pod.Namespace, Name: pod.Name}
	found, ok = pods[key]
	return key, found, ok
}
