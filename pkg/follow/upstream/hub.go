package upstream

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	hubv1alpha1 "github.com/application-grid/application-grid/pkg/apis/hub.superedge.io/v1alpha1"
	"github.com/application-grid/application-grid/pkg/follow"
	"github.com/application-grid/application-grid/pkg/storage/facts"
)

// HubMode says from where Services, slices and nodes are taken.
type HubMode string

// The modes.
const (
	// HubOff takes everything from the API server.
	HubOff HubMode = "off"
	// HubAuto takes this node's share from a hub where there is one.
	HubAuto HubMode = "auto"
	// HubRequire takes this node's share from a hub, and nothing from the API server that a hub has.
	HubRequire HubMode = "require"
)

// DefaultHubFallback is how long a hub may be away before a wrapper goes on without it. A fleet that follows the API
// server costs it more than some minutes of older endpoints cost a site.
const DefaultHubFallback = 10 * time.Minute

const (
	// hubSettling is the pause between two looks at sources until they are synced, hubInterval the one after that.
	hubSettling = 200 * time.Millisecond
	hubInterval = 5 * time.Second
	// hubProbe is the mean pause between two attempts to follow the hub, while the API server is followed. It doubles
	// with every stay at the hub that was shorter than goodStay, up to longestProbe.
	hubProbe     = 5 * time.Minute
	longestProbe = 80 * time.Minute
	goodStay     = time.Hour
	// hubProbeTimeout is how long an answer of the API server may take.
	hubProbeTimeout = 10 * time.Second
	// fillTimeout is how long the other way may take to be filled.
	fillTimeout = 10 * time.Minute
)

// HubOptions say how the hub is used.
type HubOptions struct {
	Mode HubMode
	// Config leads to the API server that the hub is behind, with the wrapper's own credentials.
	Config *rest.Config
	// FallbackAfter is how long the hub may be away before the API server is followed, in HubAuto: from that to twice
	// that, so that a fleet does not do it at one moment.
	FallbackAfter time.Duration
	// Changing, if set, is called when another way is to be followed, before anything comes from there.
	Changing func(Way)
	// Room, if set, returns how many bytes more the process may take; 0 if nothing bounds it. The API server is not
	// followed in place of the hub if the cluster would not fit.
	Room func() int64
	// Random returns numbers in [0, 1); math/rand/v2's if nil.
	Random func() float64
}

// Way is where Services, slices and nodes are taken from.
type Way struct {
	// Hub is set if it is a hub.
	Hub bool
	// Since is when that began.
	Since time.Time
	// Reason is why the hub is not followed, or why the API server is not followed in place of a hub that is away; nil
	// if all is as it is to be.
	Reason error
}

// hubWay decides which way is followed. The other way is filled while the first still serves: the facts set aside what
// comes by it. It is taken when all of it is there, as one step of the facts.
type hubWay struct {
	options HubOptions
	facts   *facts.Facts
	node    string
	// share follows the hub; nil without one. direct are the sources at the API server; that of nodes is the first.
	share  *shareSource
	direct []*follow.Source
	// elsewhere is set if the hub is not behind the API server of direct.
	elsewhere bool

	mu sync.Mutex
	// way is the one that is followed; guarded by mu.
	way Way

	// What follows belongs to the goroutine of run.

	// interval is the pause between two looks at a way that is well, probePause the mean one between two attempts to
	// follow the hub.
	interval, probePause time.Duration
	// failing is when the hub was first found to be away; zero while it is followed. patience is how long it may be so.
	failing  time.Time
	patience time.Duration
}

// newHubWay prepares the ways. The direct one gets its sources later.
func newHubWay(options Options) (*hubWay, error) {
	h := &hubWay{
		options: options.Hub, facts: options.Facts, node: options.NodeName,
		interval: hubInterval, probePause: hubProbe,
	}
	if h.options.Mode == "" || h.options.Mode == HubOff {
		return h, nil
	}
	if options.NodeName == "" {
		return nil, errors.New("without the name of this node there is no share of it")
	}
	h.elsewhere = h.options.Config.Host != options.Config.Host
	h.facts.FollowShare()
	var err error
	h.share, err = newShareSource(options, h.shown)
	h.way = Way{Hub: true, Since: time.Now()}
	return h, err
}

// Way is the one that is followed.
func (h *hubWay) Way() Way {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.way
}

// nodes is where nodes come from.
func (h *hubWay) nodes() nodeSource {
	if h.Way().Hub {
		return h.share
	}
	return h.direct[0]
}

// states are those of the way that is followed.
func (h *hubWay) states() (states []follow.State) {
	sources := h.direct
	if h.Way().Hub {
		sources = []*follow.Source{h.share.Source}
	}
	for _, s := range sources {
		states = append(states, s.State())
	}
	return states
}

// run follows the hub, or the API server, until ctx is done.
func (h *hubWay) run(ctx context.Context) {
	if h.share == nil {
		return
	}
	h.share.Start()
	var following sync.WaitGroup
	defer following.Wait()
	following.Go(func() { h.share.group.Run(ctx) })
	timer := time.NewTimer(hubSettling)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
			timer.Reset(h.look(ctx))
		}
	}
}

// look changes the way if it must, and returns the pause before the next look.
func (h *hubWay) look(ctx context.Context) time.Duration {
	if h.Way().Hub {
		reason := h.useless(ctx, time.Now())
		switch {
		case reason == nil && h.share.State().Synced:
			return h.interval
		case reason == nil:
			return hubSettling
		}
		err := h.takeDirect(ctx, reason)
		if err == nil && !h.Way().Hub {
			return h.untilProbe()
		}
		if err != nil && ctx.Err() == nil && h.Way().Reason == nil {
			klog.FromContext(ctx).Info("The API server is not followed in place of the hub", "reason", err)
		}
		h.set(func(way *Way) { way.Reason = err })
		return h.interval
	}
	if err := h.takeHub(ctx); err != nil {
		klog.FromContext(ctx).V(2).Info("The hub is not followed, going on without it", "reason", err)
		return h.untilProbe()
	}
	h.failing = time.Time{}
	return h.interval
}

func (h *hubWay) untilProbe() time.Duration {
	return time.Duration((0.5 + h.options.Random()) * float64(h.probePause))
}

// useless is why the hub is not to be followed any more; nil as long as it is.
func (h *hubWay) useless(ctx context.Context, now time.Time) error {
	state := h.share.State()
	err := state.Err
	var answer apierrors.APIStatus
	answered := errors.As(err, &answer)
	// What leads to both is away, and who follows the API server when it returns takes the whole cluster over its link.
	bothAway := err != nil && !answered && !h.elsewhere
	if err == nil || h.options.Mode == HubRequire || bothAway {
		h.failing = time.Time{}
		h.set(func(way *Way) { way.Reason = nil })
		return nil
	}
	if h.failing.IsZero() {
		h.failing = now
		h.patience = time.Duration((1 + h.options.Random()) * float64(h.options.FallbackAfter))
	}
	switch {
	case !state.Synced && (apierrors.IsNotFound(err) || apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err)):
		// There is none, or it is not for this node. A 404 of one that was followed is that of a gateway that has lost
		// it.
		return err
	case (h.facts.ShareMark() != nil || h.facts.Restored() != nil) && now.Sub(h.failing) < h.patience:
		return nil // there is something to serve
	case h.ask(ctx) != nil:
		return nil //nolint:nilerr // nor is there anything else to follow
	default:
		return fmt.Errorf("it is away since %s: %w", h.failing.UTC().Format(time.RFC3339), err)
	}
}

// ask asks the API server for this node.
func (h *hubWay) ask(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, hubProbeTimeout)
	defer cancel()
	return h.direct[0].Request("hub-probe").Param("fieldSelector", "metadata.name="+h.node).Do(ctx).Error()
}

// takeDirect fills the direct way, and takes it unless the hub has come back meanwhile. The error says why it could not
// be taken.
func (h *hubWay) takeDirect(ctx context.Context, reason error) error {
	if err := h.fits(ctx); err != nil {
		return err
	}
	from := h.share.reached()
	for _, s := range h.direct {
		s.StartAt(from[versionParts[s.Name()]])
	}
	back := func() bool { return h.share.State().Err == nil }
	err := until(ctx, fillTimeout, func() (bool, error) { return back() || h.filled(from), nil })
	if err != nil || back() {
		h.stopDirect()
		return err
	}
	h.share.Stop()
	if !h.filled(from) { // a last step came
		h.stopDirect()
		h.share.Start()
		return nil
	}
	if time.Since(h.Way().Since) < goodStay {
		h.probePause = min(2*h.probePause, longestProbe)
	} else {
		h.probePause = hubProbe
	}
	h.take(ctx, Way{Reason: reason})
	return nil
}

// until waits until something holds. The error is that of holds, or says that it took too long.
func until(ctx context.Context, patience time.Duration, holds func() (bool, error)) error {
	err := wait.PollUntilContextTimeout(ctx, hubSettling, patience, true, func(context.Context) (bool, error) {
		return holds()
	})
	if err != nil {
		return fmt.Errorf("filling the other way: %w", err)
	}
	return nil
}

// filled reports whether the direct sources have everything, and nothing that is older than the share. from is the
// version from which they began: what they listed is at least of that, or the API server was restored from a backup.
func (h *hubWay) filled(from hubv1alpha1.Version) bool {
	version := h.share.reached()
	for _, s := range h.direct {
		part := versionParts[s.Name()]
		if state := s.State(); !state.Synced || state.Err != nil ||
			version[part] != from[part] && s.Version() < version[part] {
			return false
		}
	}
	return true
}

// stopDirect stops filling the direct way.
func (h *hubWay) stopDirect() {
	for _, s := range h.direct {
		s.Stop()
	}
	h.facts.DropAside()
}

// takeHub fills the share while the API server is followed, and takes it. The error says why it was not taken.
func (h *hubWay) takeHub(ctx context.Context) error {
	filled := func() (bool, error) {
		state := h.share.State()
		return state.Synced, state.Err
	}
	h.share.Start()
	err := until(ctx, fillTimeout, filled)
	if err == nil {
		// The API server was followed meanwhile. What is taken must be at least what is shown, so nothing more is shown
		// until that has come, which takes a request that is answered with what differs.
		h.share.Stop()
		for _, s := range h.direct {
			s.Stop()
		}
		h.share.Start()
		err = until(ctx, hubProbeTimeout, filled)
	}
	if err != nil {
		h.share.Stop()
		h.facts.DropAside()
		for _, s := range h.direct {
			s.Start()
		}
		return err
	}
	h.take(ctx, Way{Hub: true})
	return nil
}

// shown is the version of what the API server has told of, while that is followed.
func (h *hubWay) shown() (version hubv1alpha1.Version) {
	if h.Way().Hub {
		return version
	}
	for _, s := range h.direct {
		part := versionParts[s.Name()]
		version[part] = max(version[part], s.Version())
	}
	return version
}

// versionParts are the parts of a version that sources have.
var versionParts = map[string]int{
	facts.InputNodes: hubv1alpha1.VersionNodes, facts.InputNode: hubv1alpha1.VersionNodes,
	facts.InputServices: hubv1alpha1.VersionServices, facts.InputEndpointSlices: hubv1alpha1.VersionSlices,
}

// take follows the other way from now on.
func (h *hubWay) take(ctx context.Context, next Way) {
	next.Since = time.Now()
	if next.Hub {
		klog.FromContext(ctx).Info("Following this node's share, from the hub")
	} else {
		klog.FromContext(ctx).Info("Following the API server, not the hub", "reason", next.Reason)
	}
	h.set(func(way *Way) { *way = next })
	if h.options.Changing != nil {
		h.options.Changing(next)
	}
	h.facts.Switch()
}

func (h *hubWay) set(change func(*Way)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	change(&h.way)
}

// asOf is when what is known was last confirmed as a whole: the earliest LastContact. The zero time if it never was.
func (h *hubWay) asOf() (earliest time.Time) {
	for i, state := range h.states() {
		if i == 0 || state.LastContact.Before(earliest) {
			earliest = state.LastContact // the zero time is before all others
		}
	}
	return earliest
}

// fits returns an error if the whole cluster would not fit the memory that is left.
func (h *hubWay) fits(ctx context.Context) error {
	if h.options.Room == nil {
		return nil
	}
	room := h.options.Room()
	if room == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, hubProbeTimeout)
	defer cancel()
	var needed int64
	for _, s := range h.direct {
		size, err := s.Estimate(ctx)
		if err != nil {
			return fmt.Errorf("asking how large the cluster is: %w", err)
		}
		needed += size
	}
	if needed > room {
		return fmt.Errorf("the whole cluster would take about %d MiB of memory, and %d MiB are left",
			needed>>20, room>>20)
	}
	return nil
}
