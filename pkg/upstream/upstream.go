package upstream

import (
	"context"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"

	"github.com/application-grid/application-grid/pkg/follow"
	"github.com/application-grid/application-grid/pkg/storage"
)

// Options say what the wrapper needs of its upstream.
type Options struct {
	// Config leads to the upstream, with the wrapper's own credentials.
	Config *rest.Config
	// Store is filled.
	Store *storage.Store
	// NodeName is this node's; "" if it is not known, then no Node is asked for.
	NodeName string
	// FollowKubernetesEndpoints also follows the Endpoints object default/kubernetes, for its annotations.
	FollowKubernetesEndpoints bool
	// Barrier, if set, holds back what is heard at the end of an outage; see follow.Barrier.
	Barrier follow.Barrier
	// Clock is time.Now if nil. It is for the lists of addresses.
	Clock func() time.Time
}

// Upstream follows the upstream's state.
type Upstream struct {
	group *follow.Group
	// onDemand are the sources of resources that are followed only once a client asks for them.
	onDemand  map[*storage.Resource]*follow.Source
	addresses *addresses
}

// New prepares to follow the upstream. Nothing is asked of it before Run. The error says what about the
// configuration is wrong.
func New(options Options) (*Upstream, error) {
	if options.Clock == nil {
		options.Clock = time.Now
	}
	group, err := follow.NewGroup(follow.GroupOptions{Config: options.Config, Barrier: options.Barrier})
	if err != nil {
		return nil, err
	}
	u := &Upstream{
		group:     group,
		onDemand:  make(map[*storage.Resource]*follow.Source),
		addresses: &addresses{store: options.Store, clock: options.Clock},
	}
	for _, o := range sources(options) {
		s, err := group.Add(o)
		if err != nil {
			return nil, err
		}
		switch o.Name {
		case storage.InputEndpoints:
			u.onDemand[storage.Endpoints] = s
			continue
		case storage.InputNodes:
			u.addresses.nodes = s
		}
		s.Start()
	}
	return u, nil
}

// sources are those of the wrapper, in the order in which they are started.
func sources(options Options) []follow.Options {
	nodes := corev1.SchemeGroupVersion.WithResource("nodes")
	endpoints := storage.Endpoints.GroupVersionResource
	all := []follow.Options{{Name: storage.InputNodes, Resource: nodes, MetadataOnly: true, Sink: options.Store.NodeLabels()}}
	if options.NodeName != "" {
		all = append(all, follow.Options{Name: storage.InputNode, Resource: nodes, FieldSelector: "metadata.name=" + options.NodeName, Sink: options.Store.Node()})
	}
	all = append(all,
		follow.Options{Name: storage.InputServices, Resource: storage.Services.GroupVersionResource, Sink: options.Store.Services()},
		follow.Options{Name: storage.InputEndpointSlices, Resource: storage.EndpointSlices.GroupVersionResource, Sink: options.Store.EndpointSlices()})
	if options.FollowKubernetesEndpoints {
		all = append(all, follow.Options{
			Name: storage.InputKubernetesEndpoints, Resource: endpoints, Namespace: "default", FieldSelector: "metadata.name=kubernetes",
			Optional: true, Sink: options.Store.KubernetesEndpoints(),
		})
	}
	return append(all, follow.Options{Name: storage.InputEndpoints, Resource: endpoints, Optional: true, Sink: options.Store.Endpoints()})
}

// Run follows the upstream until ctx is done, and returns when all that it started has ended.
func (u *Upstream) Run(ctx context.Context) { u.group.Run(ctx) }

// Demand starts to follow a resource that is not followed unasked. It may be called any number of times, also
// before Run.
func (u *Upstream) Demand(r *storage.Resource) {
	if s := u.onDemand[r]; s != nil {
		s.Start()
	}
}

// Undemand ends the following of a resource that was asked for with Demand. It returns when nothing more comes.
func (u *Upstream) Undemand(r *storage.Resource) {
	if s := u.onDemand[r]; s != nil {
		s.Stop()
	}
}

// Retry lets all sources that failed try again at once, as after new credentials.
func (u *Upstream) Retry() { u.group.Retry() }

// AsOf is when the upstream last confirmed the state as a whole: the earliest LastContact of the sources that
// it consists of. The zero time if one of them was never heard of.
func (u *Upstream) AsOf() time.Time {
	var asOf time.Time
	for _, state := range u.States() {
		if !state.Started || state.Optional {
			continue
		}
		if state.LastContact.IsZero() {
			return time.Time{}
		}
		if asOf.IsZero() || state.LastContact.Before(asOf) {
			asOf = state.LastContact
		}
	}
	return asOf
}

// Reachable reports whether anything was heard of the upstream when it was last asked: an error is an answer
// too. It is true before the first question.
func (u *Upstream) Reachable() bool {
	asked := false
	for _, state := range u.States() {
		if !state.Started {
			continue
		}
		var status apierrors.APIStatus
		if (state.Err == nil && !state.LastContact.IsZero()) || errors.As(state.Err, &status) {
			return true
		}
		asked = asked || state.Err != nil
	}
	return !asked
}

// States are those of all sources.
func (u *Upstream) States() []follow.State { return u.group.States() }
