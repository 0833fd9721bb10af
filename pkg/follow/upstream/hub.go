package upstream

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
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
	// hubProbeTimeout is how long an answer of the API server may take, or what came last while a way was filled.
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
	// Changing is called when another way is to be followed, before anything comes from there.
	Changing func(Way)
	// Room returns how many bytes more the process may take; 0 if nothing bounds it. The API server is not
	// followed in place of the hub if the cluster would not fit.
	Room func() int64
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
	// sources are those of each way, by whether it is a hub; the first has the nodes. share is the only one at the hub,
	// and of its group; both are nil without a hub.
	sources map[bool][]*follow.Source
	share   *follow.Source
	group   *follow.Group
	// elsewhere is set if the hub is not behind the API server.
	elsewhere bool

	// way is the one that is followed.
	way atomic.Pointer[Way]

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
		options: options.Hub, facts: options.Facts, node: options.NodeName, interval: hubInterval, probePause: hubProbe,
		sources: make(map[bool][]*follow.Source),
	}
	h.way.Store(&Way{})
	if h.options.Mode == "" || h.options.Mode == HubOff {
		return h, nil
	}
	if options.NodeName == "" {
		return nil, errors.New("without the name of this node there is no share of it")
	}
	h.elsewhere = h.options.Config.Host != options.Config.Host
	h.facts.FollowShare()
	h.way.Store(&Way{Hub: true, Since: time.Now()})
	var err error
	if h.group, err = follow.NewGroup(follow.GroupOptions{Config: options.Hub.Config}); err != nil {
		return nil, err
	}
	h.share, err = h.group.Add(follow.Options{
		Name: SourceShare, Resource: hubv1alpha1.GroupVersion.WithResource(hubv1alpha1.Shares),
		Stream: h.followShare, Silence: shareSilence,
	})
	h.sources[true] = []*follow.Source{h.share}
	return h, err
}

// Way is the one that is followed.
func (h *hubWay) Way() Way { return *h.way.Load() }

// nodes is the source that nodes come from.
func (h *hubWay) nodes() *follow.Source { return h.sources[h.Way().Hub][0] }

// nodesRequest makes a request for nodes. agent distinguishes it from others.
func (h *hubWay) nodesRequest(agent string) *rest.Request {
	if h.Way().Hub {
		return h.share.Request("hub-"+agent).Name(h.node).Param("kind", "Node")
	}
	return h.nodes().Request(agent)
}

// run follows the hub, or the API server, until ctx is done.
func (h *hubWay) run(ctx context.Context) {
	if h.share == nil {
		return
	}
	h.share.Start()
	var following sync.WaitGroup
	defer following.Wait()
	following.Go(func() { h.group.Run(ctx) })
	for pause := hubSettling; ; pause = h.look(ctx) {
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// look changes the way if it must, and returns the pause before the next look.
func (h *hubWay) look(ctx context.Context) time.Duration {
	next := Way{Hub: true}
	if h.Way().Hub {
		next = Way{Reason: h.useless(time.Now())}
		switch {
		case next.Reason == nil && h.share.State().Synced:
			return h.interval
		case next.Reason == nil:
			return hubSettling
		}
	}
	err := h.change(ctx, next)
	way := h.Way()
	switch {
	case err == nil || ctx.Err() != nil:
	case !way.Hub:
		klog.FromContext(ctx).V(2).Info("The hub is not followed, going on without it", "reason", err)
	case !errors.Is(err, errHubIsBack):
		if way.Reason == nil {
			klog.FromContext(ctx).Info("The API server is not followed in place of the hub", "reason", err)
		}
		h.explain(err)
	}
	if !way.Hub {
		return wait.Jitter(h.probePause, 2) / 2
	}
	return h.interval
}

// useless is why the hub is not to be followed any more; nil as long as it is.
func (h *hubWay) useless(now time.Time) error {
	state := h.share.State()
	err := state.Err
	var answer apierrors.APIStatus
	answered := errors.As(err, &answer)
	// What leads to both is away, and who follows the API server when it returns takes the whole cluster over its link.
	bothAway := err != nil && !answered && !h.elsewhere
	if err == nil || h.options.Mode == HubRequire || bothAway {
		h.failing = time.Time{}
		h.explain(nil)
		return nil
	}
	if h.failing.IsZero() {
		h.failing = now
		h.patience = wait.Jitter(h.options.FallbackAfter, 1)
	}
	switch {
	case !state.Synced && (apierrors.IsNotFound(err) || apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err)):
		// There is none, or it is not for this node. A 404 of one that was followed is that of a gateway that has lost
		// it.
		return err
	case (h.facts.ShareMark() != nil || h.facts.Restored() != nil) && now.Sub(h.failing) < h.patience:
		return nil // there is something to serve
	default:
		return fmt.Errorf("it is away since %s: %w", h.failing.UTC().Format(time.RFC3339), err)
	}
}

// errHubIsBack means that the hub came back while the API server was asked for everything.
var errHubIsBack = errors.New("the hub is back")

// change fills the other way, and takes it. The error says why it was not taken.
func (h *hubWay) change(ctx context.Context, next Way) (err error) {
	if !next.Hub {
		if err := h.fits(ctx); err != nil {
			return err
		}
	}
	here, there, from := h.sources[!next.Hub], h.sources[next.Hub], h.version()
	begin(there, from)
	filled := func(context.Context) (bool, error) { return h.filled(next, there, from) }
	err = wait.PollUntilContextTimeout(ctx, hubSettling, fillTimeout, true, filled)
	if err == nil {
		// What is taken must be at least what is shown, so nothing more is shown until that has come. The hub is asked
		// again, which takes a request that is answered with what differs.
		stop(here)
		if next.Hub {
			stop(there)
			begin(there, from)
		}
		err = wait.PollUntilContextTimeout(ctx, hubSettling, hubProbeTimeout, true, filled)
	}
	if err != nil {
		stop(there)
		h.facts.DropAside()
		for _, s := range here {
			s.Start()
		}
		return fmt.Errorf("filling the other way: %w", err)
	}
	h.take(ctx, next)
	return nil
}

// begin starts sources with what is at least of a version, stop stops them.
func begin(sources []*follow.Source, from hubv1alpha1.Version) {
	for _, s := range sources {
		s.StartAt(from[versionParts[s.Name()]]) // of which a share makes no use: see followShare
	}
}

func stop(sources []*follow.Source) {
	for _, s := range sources {
		s.Stop()
	}
}

// filled reports whether the sources of the next way have everything, and nothing that is older than what is shown.
// from is the version from which they began: what was listed is at least of that, or the API server was restored from a
// backup. The error says why the next way is not to be taken.
func (h *hubWay) filled(next Way, there []*follow.Source, from hubv1alpha1.Version) (bool, error) {
	if share := h.share.State(); next.Hub && share.Err != nil {
		return false, share.Err
	} else if !next.Hub && share.Started && share.Err == nil {
		return false, errHubIsBack
	}
	version := h.version()
	for _, s := range there {
		part, has := versionParts[s.Name()]
		if state := s.State(); !state.Synced || state.Err != nil ||
			has && version[part] != from[part] && s.Version() < version[part] {
			return false, nil //nolint:nilerr // the source tries again
		}
	}
	return true, nil
}

// version is that of what is shown.
func (h *hubWay) version() (version hubv1alpha1.Version) {
	if h.Way().Hub {
		state, _ := decodeShareState(h.facts.ShareMark())
		return state.Version
	}
	for _, s := range h.sources[false] {
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
		h.failing = time.Time{}
	} else {
		klog.FromContext(ctx).Info("Following the API server, not the hub", "reason", next.Reason)
		h.probePause = min(2*h.probePause, longestProbe)
		if next.Since.Sub(h.Way().Since) >= goodStay {
			h.probePause = hubProbe
		}
	}
	h.way.Store(&next)
	h.options.Changing(next)
	h.facts.Switch()
}

// explain sets the Reason of the way that is followed.
func (h *hubWay) explain(reason error) {
	way := h.Way()
	way.Reason = reason
	h.way.Store(&way)
}

// fits returns an error if the whole cluster would not fit the memory that is left.
func (h *hubWay) fits(ctx context.Context) error {
	room := h.options.Room()
	if room == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, hubProbeTimeout)
	defer cancel()
	var needed int64
	for _, s := range h.sources[false] {
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
