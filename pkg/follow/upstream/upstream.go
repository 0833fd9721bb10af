package upstream

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"

	"github.com/application-grid/application-grid/pkg/follow"
	"github.com/application-grid/application-grid/pkg/storage/facts"
	"github.com/application-grid/application-grid/pkg/storage/served"
)

// Options configure an Upstream.
type Options struct {
	// Config is the client configuration of the upstream, with the wrapper's own credentials.
	Config *rest.Config
	// Facts take the sources' changes. They also hold them back at the end of an outage; see follow.Barrier.
	Facts *facts.Facts
	// NodeName is the name of this node. If it is empty, this node's Node is not followed.
	NodeName string
	// Hub is the client configuration of the API server that a hub is behind, with the wrapper's own credentials.
	// Services, slices and nodes are then this node's share. If it is nil, they are taken from the upstream.
	Hub *rest.Config
	// FollowKubernetesEndpoints also follows the Endpoints object default/kubernetes, for its annotations.
	FollowKubernetesEndpoints bool
}

// Upstream follows the upstream's state.
type Upstream struct {
	facts *facts.Facts
	node  string
	group *follow.Group
	// hub has the share, its one source; nil without a hub.
	hub *follow.Group
	// shared are the sources that a hub has as well, the nodes first and the slices last, or the share. others are
	// those that a hub lacks.
	shared []*follow.Source
	others []*follow.Source
	// onDemand are the sources of resources that are followed only once a client asks for them.
	onDemand map[*served.Resource]*follow.Source
	// addressLists is how often the addresses of all nodes may be listed.
	addressLists *rate.Limiter
}

// New makes an Upstream. It sends no request before Run. It returns an error for an invalid configuration.
func New(options Options) (*Upstream, error) {
	group, err := follow.NewGroup(options.Config, options.Facts)
	if err != nil {
		return nil, err
	}
	u := &Upstream{
		facts: options.Facts, node: options.NodeName, group: group,
		onDemand:     make(map[*served.Resource]*follow.Source),
		addressLists: rate.NewLimiter(rate.Every(addressInterval), 1),
	}
	shared, others := sources(options)
	if options.Hub != nil {
		if err := u.addShare(options.Hub); err != nil {
			return nil, fmt.Errorf("the hub: %w", err)
		}
	} else if u.shared, err = addAll(group, shared, options.Facts); err != nil {
		return nil, err
	}
	if u.others, err = addAll(group, others, options.Facts); err != nil {
		return nil, err
	}
	for _, s := range slices.Concat(u.shared, u.others) {
		switch s.Name() {
		case facts.InputEndpoints:
			u.onDemand[served.Endpoints] = s
		case facts.InputNamespaces:
			u.onDemand[served.Namespaces] = s
		default:
			s.Start()
		}
	}
	return u, nil
}

// addAll makes sources, each of which fills the input with its name.
func addAll(group *follow.Group, all []follow.Options, f *facts.Facts) (sources []*follow.Source, err error) {
	for _, o := range all {
		o.Sink = f.Input(o.Name)
		s, err := group.Add(o)
		if err != nil {
			return nil, err
		}
		sources = append(sources, s)
	}
	return sources, nil
}

// sources returns the sources, without their sinks: those that a hub has as well, in the order in which they are
// started, and those that only the API server has.
func sources(options Options) (shared, others []follow.Options) {
	nodes := corev1.SchemeGroupVersion.WithResource("nodes")
	shared = []follow.Options{{Name: facts.InputNodes, Resource: nodes, MetadataOnly: true}}
	if options.NodeName != "" {
		shared = append(shared, follow.Options{
			Name: facts.InputNode, Resource: nodes, FieldSelector: "metadata.name=" + options.NodeName,
		})
	}
	for _, r := range []*served.Resource{served.Services, served.EndpointSlices} {
		shared = append(shared, follow.Options{Name: r.Resource, Resource: r.GroupVersionResource})
	}
	for _, r := range []*served.Resource{served.Endpoints, served.Namespaces} {
		others = append(others, follow.Options{Name: r.Resource, Resource: r.GroupVersionResource, Optional: true})
	}
	if options.FollowKubernetesEndpoints {
		others = append(others, follow.Options{
			Name: facts.InputKubernetesEndpoints, Resource: served.Endpoints.GroupVersionResource,
			Namespace: "default", FieldSelector: "metadata.name=kubernetes", Optional: true,
		})
	}
	return shared, others
}

// Run follows the upstream until ctx is done, and returns when all that it started has ended.
func (u *Upstream) Run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	if u.hub != nil {
		wg.Go(func() { u.hub.Run(ctx) })
	}
	u.group.Run(ctx)
}

// Demand starts to follow a resource that is followed on demand only. It may be called any number of times, also before
// Run.
func (u *Upstream) Demand(r *served.Resource) {
	if s := u.onDemand[r]; s != nil {
		s.Start()
	}
}

// Dismiss stops following a resource that Demand started. After it returns, no more changes of it are delivered.
func (u *Upstream) Dismiss(r *served.Resource) {
	if s := u.onDemand[r]; s != nil {
		s.Stop()
	}
}

// Retry makes all sources that failed try again at once, for example with new credentials.
func (u *Upstream) Retry() {
	u.group.Retry()
	if u.hub != nil {
		u.hub.Retry()
	}
}

// Relist lists all followed resources again, except a share.
func (u *Upstream) Relist() { u.group.Relist() }

// AsOf returns when the upstream last confirmed the state as a whole: the earliest LastContact of the started sources,
// without optional ones. It returns the zero time if one of them had no contact yet.
func (u *Upstream) AsOf() time.Time {
	return slices.MinFunc(follow.StatesOf(u.shared), func(a, b follow.State) int {
		return a.LastContact.Compare(b.LastContact) // the zero time is before all others
	}).LastContact
}

// FollowsSlices reports whether the EndpointSlices are being followed: the last list or watch of them succeeded, and
// did not come from a cache.
func (u *Upstream) FollowsSlices() bool {
	state := u.shared[len(u.shared)-1].State() // that of the slices, or of the share
	return state.Started && state.Synced && state.Err == nil && !state.FromCache
}

// Answers reports whether the answer to a source has begun, and has not failed. The first list of a large cluster may
// fill a slow link for so long that no probe comes through.
func (u *Upstream) Answers() bool {
	return slices.ContainsFunc(u.States(), func(s follow.State) bool { return s.Started && s.Answered && s.Err == nil })
}

// States returns the states of all sources.
func (u *Upstream) States() []follow.State {
	return append(follow.StatesOf(u.shared), follow.StatesOf(u.others)...)
}
