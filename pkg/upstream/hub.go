package upstream

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
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
	// hubSettling is the pause between two looks at the sources until they are synced, hubInterval the one after that.
	hubSettling = 200 * time.Millisecond
	hubInterval = 5 * time.Second
	// hubProbe is the mean pause between two questions whether there is a hub, while it is not followed.
	hubProbe = 5 * time.Minute
	// hubProbeTimeout is how long an answer may take.
	hubProbeTimeout = 10 * time.Second
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
	// Random returns numbers in [0, 1); math/rand/v2's if nil.
	Random func() float64
}

// Way is where Services, slices and nodes are taken from.
type Way struct {
	// Hub is set if it is a hub.
	Hub bool
	// Since is when that began.
	Since time.Time
	// Reason is why the hub is not followed; nil if it is, or is not to be.
	Reason error
}

// hubWay decides which way is followed. Its zero value has no hub.
type hubWay struct {
	options HubOptions
	facts   *facts.Facts
	node    string
	group   *follow.Group
	// hub and direct are the sources of each way. elsewhere is set if the hub is not behind the API server of the
	// other.
	hub, direct []*follow.Source
	elsewhere   bool

	mu sync.Mutex
	// way is the one that is followed, confirmed is when what was known before it was last confirmed. Guarded by mu.
	way       Way
	confirmed time.Time

	// What follows belongs to the goroutine of run.

	// interval is the pause between two looks at sources that are synced, probePause the mean one between two questions
	// whether there is a hub.
	interval, probePause time.Duration
	// failing is when the hub was first found to be away; zero while it is followed. patience is how long it may be so.
	failing  time.Time
	patience time.Duration
}

// newHubWay prepares the sources of a hub. They are as those of the API server, and asked for under
// the node's share.
func newHubWay(options Options, direct []*follow.Source) (*hubWay, error) {
	h := &hubWay{
		options:    options.Hub,
		facts:      options.Facts,
		node:       options.NodeName,
		direct:     direct,
		interval:   hubInterval,
		probePause: hubProbe,
	}
	if h.options.Mode == "" || h.options.Mode == HubOff {
		return h, nil
	}
	if options.NodeName == "" {
		return nil, errors.New("without the name of this node there is no share of it")
	}
	if h.options.Random == nil {
		h.options.Random = rand.Float64
	}
	h.elsewhere = h.options.Config.Host != options.Config.Host
	config := rest.CopyConfig(h.options.Config)
	config.Host = strings.TrimSuffix(config.Host, "/") + hubv1alpha1.SharePath(options.NodeName)
	var err error
	if h.group, err = follow.NewGroup(follow.GroupOptions{Config: config, Barrier: options.Facts}); err != nil {
		return nil, err
	}
	for _, o := range shareable(options) {
		o.Agent, o.Sink = "hub-"+o.Name, hubSink{options.Facts.Input(o.Name)}
		s, err := h.group.Add(o)
		if err != nil {
			return nil, err
		}
		h.hub = append(h.hub, s)
	}
	h.way.Hub = true
	return h, nil
}

// hubSink does not believe that the cluster has no Services because there is no hub.
type hubSink struct{ *facts.Input }

// SetAbsent implements follow.Sink.
func (hubSink) SetAbsent() {}

// Way is the one that is followed.
func (h *hubWay) Way() Way {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.way
}

// sources are those of the way that is followed.
func (h *hubWay) sources() []*follow.Source {
	if h.Way().Hub {
		return h.hub
	}
	return h.direct
}

// run follows the hub, or the API server, until ctx is done.
func (h *hubWay) run(ctx context.Context) {
	if h.group == nil {
		return
	}
	h.set(Way{Hub: true, Since: time.Now()}, time.Time{})
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { h.group.Run(ctx) })
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
		if reason := h.useless(ctx, time.Now()); reason != nil {
			h.take(ctx, Way{Reason: reason})
			return h.untilProbe()
		}
		if h.synced() {
			return h.interval
		}
		return hubSettling
	}
	if err := h.ask(ctx, h.hub[0]); err != nil {
		klog.FromContext(ctx).V(2).Info("The hub does not answer, going on without it", "reason", err)
		return h.untilProbe()
	}
	h.failing = time.Time{}
	h.take(ctx, Way{Hub: true})
	return hubSettling
}

func (h *hubWay) untilProbe() time.Duration {
	return time.Duration((0.5 + h.options.Random()) * float64(h.probePause))
}

// useless is why the hub is not to be followed any more; nil as long as it is.
func (h *hubWay) useless(ctx context.Context, now time.Time) error {
	var err error
	for _, s := range h.hub {
		if err = s.State().Err; err != nil {
			break
		}
	}
	var answer apierrors.APIStatus
	answered := errors.As(err, &answer)
	// What leads to both is away, and who follows the API server when it returns takes the whole cluster over its link.
	bothAway := err != nil && !answered && !h.elsewhere
	if err == nil || h.options.Mode == HubRequire || bothAway {
		h.failing = time.Time{}
		return nil
	}
	if h.failing.IsZero() {
		h.failing = now
		h.patience = time.Duration((1 + h.options.Random()) * float64(h.options.FallbackAfter))
	}
	switch {
	case !h.synced() && (apierrors.IsNotFound(err) || apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err)):
		// There is none, or it is not for this node. A 404 of one that was followed is that of a gateway that has lost
		// it.
		return err
	case h.received() && now.Sub(h.failing) < h.patience:
		return nil
	case h.ask(ctx, h.direct[0]) != nil:
		return nil //nolint:nilerr // nor is there anything else to follow
	default:
		return fmt.Errorf("it is away since %s: %w", h.failing.UTC().Format(time.RFC3339), err)
	}
}

// synced reports whether the hub was followed since it was taken.
func (h *hubWay) synced() bool {
	for _, s := range h.hub {
		if !s.State().Synced {
			return false
		}
	}
	return true
}

// received reports whether there is anything to serve.
func (h *hubWay) received() bool {
	select {
	case <-h.facts.Live():
		return true
	default:
		return h.facts.Restored() != nil
	}
}

// ask asks for this node on a way, of which s is the source of nodes.
func (h *hubWay) ask(ctx context.Context, s *follow.Source) error {
	ctx, cancel := context.WithTimeout(ctx, hubProbeTimeout)
	defer cancel()
	return s.Request("hub-probe").Param("fieldSelector", "metadata.name="+h.node).Do(ctx).Error()
}

// take goes another way. What is known stays until the other way's lists have come.
func (h *hubWay) take(ctx context.Context, next Way) {
	next.Since = time.Now()
	logger := klog.FromContext(ctx)
	if next.Hub {
		logger.Info("Following this node's share, from the hub")
	} else {
		logger.Info("Following the API server, not the hub", "reason", next.Reason)
	}
	before := h.sources()
	h.set(next, lastContact(before))
	if h.options.Changing != nil {
		h.options.Changing(next)
	}
	for _, s := range before {
		s.Stop()
	}
	for _, s := range h.sources() {
		s.Start()
	}
}

func (h *hubWay) set(way Way, confirmed time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.way = way
	if !confirmed.IsZero() {
		h.confirmed = confirmed
	}
}

// asOf is when what is known was last confirmed as a whole. The zero time if it never was.
func (h *hubWay) asOf() time.Time {
	if contact := lastContact(h.sources()); !contact.IsZero() {
		return contact
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.confirmed
}

// lastContact is the earliest LastContact of sources; the zero time if one of them was never heard of.
func lastContact(sources []*follow.Source) time.Time {
	var earliest time.Time
	for _, s := range sources {
		contact := s.State().LastContact
		if contact.IsZero() {
			return time.Time{}
		}
		if earliest.IsZero() || contact.Before(earliest) {
			earliest = contact
		}
	}
	return earliest
}
