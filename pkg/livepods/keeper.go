package livepods

import (
	"context"
	"errors"
	"fmt"
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
	// PodsOn returns the pods that endpoints on a node name.
	PodsOn(node string) map[facts.PodKey]facts.KnownPod
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

// Observer observes questions to the runtime.
type Observer interface {
	// RuntimeAsked is called after every question. err is nil if the runtime has answered.
	RuntimeAsked(err error)
}

// Config is what a Keeper is made from. All fields are needed.
type Config struct {
	// NodeName is this node's name.
	NodeName string
	Facts    Facts
	Upstream Upstream
	Runtime  Runtime
	// ReturnGrace is how long after an outage the runtime's word counts at most; 0 for not at all.
	ReturnGrace time.Duration
	Observer    Observer
}

// Status is what a Keeper does.
type Status struct {
	// Used is set while the runtime's word counts, Returning if it counts only because the upstream has not caught up.
	Used, Returning bool
	// AsOf is when the runtime last answered; zero if it has not.
	AsOf time.Time
	// Corrected is the number of pods whose endpoints are shown differently from what the upstream says.
	Corrected int
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

// Keeper asks the runtime, and passes what it says to the facts.
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

	mu sync.Mutex
	// status is guarded by mu.
	status Status
}

// New makes a Keeper, which asks nothing before Run.
func New(config Config) *Keeper { return &Keeper{config: config} }

// Status returns what the Keeper does.
func (k *Keeper) Status() Status {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.status
}

// Run works until ctx is done.
func (k *Keeper) Run(ctx context.Context) {
	defer k.config.Runtime.Close()
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
	case state == Unknown:
	case state == Away:
		if k.phase != away {
			k.leave(ctx)
		}
		k.noteEarlier()
		k.correct(ctx)
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
	k.about = nil
	klog.FromContext(ctx).Info("The upstream is away: the container runtime says how this node's pods are reached")
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
	if k.about == nil {
		k.about = make(map[facts.PodKey]struct{})
	}
	if k.pods != nil {
		k.give()
	}
}

// catchUp drops the pods of which the upstream says what the runtime says, and ends the return if none are left.
func (k *Keeper) catchUp(ctx context.Context) {
	if time.Since(k.since) >= k.config.ReturnGrace {
		k.follow(ctx)
		return
	}
	if !k.correct(ctx) || (!k.short && time.Since(k.since) < settling) {
		return
	}
	known := k.config.Facts.PodsOn(k.config.NodeName)
	left := make(map[facts.PodKey]struct{})
	for pod := range k.about {
		if known[pod].Disputed {
			left[pod] = struct{}{}
		}
	}
	k.about = left
	if len(left) == 0 {
		k.follow(ctx)
	}
}

// follow lets the upstream's word count.
func (k *Keeper) follow(ctx context.Context) {
	if k.phase == returning {
		klog.FromContext(ctx).Info("The upstream says how this node's pods are reached", "notAgreed", len(k.about))
	}
	k.enter(following)
	k.about, k.earlier, k.unready, k.doubted = nil, nil, nil, nil
	if k.given {
		k.config.Facts.SetLivePods(k.config.NodeName, nil)
		k.given = false
	}
	k.pods, k.checked = nil, time.Time{}
	k.update(func(s *Status) { s.Used, s.Returning, s.Corrected = false, false, 0 })
	k.config.Runtime.Close()
}

// check asks the runtime now and then, so that it is known whether it could be asked.
func (k *Keeper) check(ctx context.Context) {
	if !k.checked.IsZero() && time.Since(k.checked) < checkInterval {
		return
	}
	k.checked = time.Now()
	defer k.config.Runtime.Close()
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
	pods, err := k.ask(ctx)
	if err == nil {
		k.pods, k.asOf = byKey(pods), time.Now()
	}
	if k.pods != nil && ctx.Err() == nil {
		k.give()
	}
	return err == nil
}

// give passes the last answer to the facts.
func (k *Keeper) give() {
	live := &facts.LivePods{AsOf: k.asOf, Pods: make(map[facts.PodKey]facts.LivePod, len(k.pods)), About: k.about}
	for key, pod := range k.pods {
		live.Pods[key] = facts.LivePod{Addresses: pod.Addresses, Serving: pod.Running}
	}
	if k.phase != returning {
		k.noteUnready()
	}
	for key, since := range k.unready {
		if pod, found := k.pods[key]; found && pod.Since.Equal(since) {
			live.Pods[key] = facts.LivePod{Addresses: pod.Addresses, Serving: false}
		}
	}
	k.config.Facts.SetLivePods(k.config.NodeName, live)
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
