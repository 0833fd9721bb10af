package upstream

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"

	"github.com/application-grid/application-grid/pkg/apiclient"
	"github.com/application-grid/application-grid/pkg/storage/facts"
	"github.com/application-grid/application-grid/pkg/storage/history"
)

var parameterCodec = runtime.NewParameterCodec(scheme)

// Options say what the wrapper needs of its upstream.
type Options struct {
	// Config leads to the upstream, with the wrapper's own credentials.
	Config *rest.Config
	// Facts are filled.
	Facts *facts.Facts
	// NodeName is this node's; "" if it is not known, then no Node is asked for.
	NodeName string
	// FollowKubernetesEndpoints also follows the Endpoints object default/kubernetes, for its annotations.
	FollowKubernetesEndpoints bool
	// Clock is time.Now if nil.
	Clock func() time.Time
}

// Upstream follows the upstream's state.
type Upstream struct {
	// sources are started in this order.
	sources []*source
	// onDemand are the sources of resources that are followed only once a client asks for them.
	onDemand  map[*history.Resource]*source
	addresses *addresses

	mu      sync.Mutex
	running context.Context //nolint:containedctx // that of Run, for sources that start later
	wg      sync.WaitGroup
}

// New prepares to follow the upstream. Nothing is asked of it before Run. The error says what about the
// configuration is wrong.
func New(options Options) (*Upstream, error) {
	if options.Clock == nil {
		options.Clock = time.Now
	}
	// One HTTP client, so that all sources share one connection where the upstream speaks HTTP/2.
	httpClient, err := rest.HTTPClientFor(options.Config)
	if err != nil {
		return nil, fmt.Errorf("making a client for the upstream: %w", err)
	}
	u := &Upstream{onDemand: make(map[*history.Resource]*source)}
	add := func(s *source) *source {
		s.clock = options.Clock
		s.state.Name, s.state.Optional = s.name, s.optional
		s.demanded = true
		if err == nil {
			s.client, err = restClient(options.Config, httpClient, s)
		}
		u.sources = append(u.sources, s)
		return s
	}
	nodes := corev1.SchemeGroupVersion.WithResource("nodes")
	endpoints := history.Endpoints.GroupVersionResource
	followed := add(&source{name: "nodes", resource: nodes, metadataOnly: true, input: options.Facts.Input(facts.InputNodes)})
	u.addresses = &addresses{nodes: followed, facts: options.Facts, clock: options.Clock}
	if options.NodeName != "" {
		add(&source{name: "node", resource: nodes, fields: fields.OneTermEqualSelector("metadata.name", options.NodeName), input: options.Facts.Input(facts.InputNode)})
	}
	add(&source{name: "services", resource: history.Services.GroupVersionResource, input: options.Facts.Input(facts.InputServices)})
	add(&source{name: "endpointslices", resource: history.EndpointSlices.GroupVersionResource, input: options.Facts.Input(facts.InputEndpointSlices)})
	if options.FollowKubernetesEndpoints {
		add(&source{
			name: "kubernetes-endpoints", resource: endpoints, namespace: "default", optional: true,
			fields: fields.OneTermEqualSelector("metadata.name", "kubernetes"), input: options.Facts.Input(facts.InputKubernetesEndpoints),
		})
	}
	legacy := add(&source{name: "endpoints", resource: endpoints, optional: true, input: options.Facts.Input(facts.InputEndpoints)})
	legacy.demanded = false
	u.onDemand[history.Endpoints] = legacy
	if err != nil {
		return nil, fmt.Errorf("making a client for the upstream: %w", err)
	}
	return u, nil
}

func restClient(config *rest.Config, httpClient *http.Client, s *source) (rest.Interface, error) {
	transport := httpClient.Transport
	if transport == nil {
		transport = http.DefaultTransport
	}
	guarded := *httpClient
	guarded.Transport = apiclient.StallGuard{Next: transport, Headers: apiclient.SilenceBefore, Body: s.silence}
	config = rest.CopyConfig(config)
	config.GroupVersion = new(s.resource.GroupVersion())
	config.APIPath = "/apis"
	if s.resource.Group == "" {
		config.APIPath = "/api"
	}
	config.NegotiatedSerializer = newCodec()
	config.ContentType = runtime.ContentTypeProtobuf
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	// kube-apiserver warns on every call for v1 Endpoints; the wrapper knows.
	config.WarningHandler = rest.NoWarnings{}
	return rest.RESTClientForConfigAndClient(config, &guarded)
}

// Run follows the upstream until ctx is done, and returns when all that it started has ended.
func (u *Upstream) Run(ctx context.Context) {
	u.mu.Lock()
	u.running = ctx
	u.mu.Unlock()
	for _, s := range u.sources {
		if u.isDemanded(s) {
			u.launch(s)
		}
	}
	<-ctx.Done()
	// Whoever holds the lock may still be launching; from here on nobody will.
	u.mu.Lock()
	u.running = nil
	u.mu.Unlock()
	u.wg.Wait()
}

// Demand starts to follow a resource that is not followed unasked. It may be called any number of times, also
// before Run.
func (u *Upstream) Demand(r *history.Resource) {
	if s := u.onDemand[r]; s != nil {
		u.mu.Lock()
		s.demanded = true
		u.mu.Unlock()
		u.launch(s)
	}
}

// Dismiss ends what Demand began.
func (u *Upstream) Dismiss(r *history.Resource) {
	if s := u.onDemand[r]; s != nil {
		u.mu.Lock()
		s.demanded = false
		u.mu.Unlock()
	}
}

func (u *Upstream) isDemanded(s *source) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return s.demanded
}

func (u *Upstream) launch(s *source) {
	u.mu.Lock()
	defer u.mu.Unlock()
	ctx := u.running
	if ctx == nil || ctx.Err() != nil {
		return
	}
	s.start.Do(func() { u.wg.Go(func() { s.run(ctx) }) })
}

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

// Reachable tells whether anything was heard of the upstream when it was last asked: an error is an answer
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

// Silent reports whether nothing at all was heard of the upstream yet, no error either.
func (u *Upstream) Silent() bool {
	for _, state := range u.States() {
		if state.Started && (state.Err != nil || !state.LastContact.IsZero()) {
			return false
		}
	}
	return true
}

// States are those of all sources.
func (u *Upstream) States() []SourceState {
	states := make([]SourceState, len(u.sources))
	for i, s := range u.sources {
		states[i] = s.snapshot()
	}
	return states
}
