package follow

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"

	"github.com/application-grid/application-grid/pkg/follow/apiclient"
)

// Group has the sources of one upstream. Its methods may be called by several goroutines at once.
type Group struct {
	config     *rest.Config
	httpClient *http.Client
	outage     outage

	mu      sync.Mutex
	sources []*Source       // guarded by mu
	running context.Context //nolint:containedctx // that of Run, for sources that start later; guarded by mu
	wg      sync.WaitGroup

	// The fields below are guarded by mu.

	backoff backoff
	// round is closed when the sources that wait for it may try again; nil if none waits. timer closes it at due.
	round chan struct{}
	timer *time.Timer
	due   time.Time
	// recovered is closed and replaced when optional sources may try again early, because another source recovered.
	// retried is closed and replaced when all sources may try again.
	recovered, retried chan struct{}
	// hurried is set once a round began early because a source got an answer after a failure. It is reset when a source
	// follows the upstream. Without it, an upstream that answers lists but fails watches would get requests all the
	// time.
	hurried bool
}

// NewGroup makes a Group without sources, from the client configuration of the upstream. barrier, if it is not nil,
// holds back changes at the end of an outage. It returns an error for an invalid configuration.
func NewGroup(config *rest.Config, barrier Barrier) (*Group, error) {
	// All sources use one HTTP client, so that they share one connection if the upstream speaks HTTP/2.
	httpClient, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("making a client for the upstream: %w", err)
	}
	g := &Group{
		config: config, httpClient: httpClient,
		outage:    outage{barrier: barrier, lost: make(map[*Source]struct{})},
		backoff:   backoff{random: rand.Float64},
		recovered: make(chan struct{}), retried: make(chan struct{}),
	}
	g.timer = time.AfterFunc(longestPause, func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		if !time.Now().Before(g.due) {
			g.beginRound()
		}
	})
	g.timer.Stop()
	return g, nil
}

// Add makes a source, which is followed after Source.Start. It returns an error for an invalid configuration.
func (g *Group) Add(options Options) (*Source, error) {
	s := &Source{
		options: options, group: g, state: State{Name: options.Name, Optional: options.Optional},
		relistWanted: make(chan struct{}, 1),
	}
	var err error
	if s.client, err = g.Client(options.Resource.GroupVersion(), s.noteResponse); err != nil {
		return nil, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.sources = append(g.sources, s)
	return s, nil
}

// Client makes a client for the resources of a group version, which decodes lists, events and errors. silence is the
// Body of its apiclient.StallGuard.
func (g *Group) Client(version schema.GroupVersion, silence func(*http.Request) time.Duration) (rest.Interface, error) {
	guarded := *g.httpClient
	if guarded.Transport == nil {
		guarded.Transport = http.DefaultTransport
	}
	guarded.Transport = apiclient.StallGuard{Next: guarded.Transport, Headers: apiclient.HeaderTimeout, Body: silence}
	config := rest.CopyConfig(g.config)
	config.GroupVersion = &version
	config.APIPath = "/apis"
	if version.Group == "" {
		config.APIPath = "/api"
	}
	config.NegotiatedSerializer = codec{serializer.NewCodecFactory(scheme).WithoutConversion()}
	config.ContentType = runtime.ContentTypeProtobuf
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	// kube-apiserver sends a warning with every response about v1 Endpoints, which are followed on purpose.
	config.WarningHandler = rest.NoWarnings{}
	client, err := rest.RESTClientForConfigAndClient(config, &guarded)
	if err != nil {
		return nil, fmt.Errorf("making a client for the upstream: %w", err)
	}
	return client, nil
}

// UserAgent returns the program's User-Agent with a part that distinguishes its requests. SuperEdge's lite-apiserver
// reads the User-Agent up to the first space, so the part comes before that.
func (g *Group) UserAgent(part string) string {
	base := cmp.Or(g.config.UserAgent, rest.DefaultKubernetesUserAgent())
	product, comment, found := strings.Cut(base, " ")
	product += "+" + part
	if found {
		product += " " + comment
	}
	return product
}

// States returns the states of all sources, in the order in which they were added.
func (g *Group) States() []State {
	g.mu.Lock()
	defer g.mu.Unlock()
	return StatesOf(g.sources)
}

// StatesOf returns the states of some sources.
func StatesOf(sources []*Source) []State {
	states := make([]State, len(sources))
	for i, s := range sources {
		states[i] = s.State()
	}
	return states
}

// Run follows the started sources until ctx is done. It returns when all its goroutines have ended and no changes are
// held back. It must be called only once.
func (g *Group) Run(ctx context.Context) {
	g.mu.Lock()
	g.running = ctx
	for _, s := range g.sources {
		g.launch(s)
	}
	g.mu.Unlock()
	<-ctx.Done()
	// Another goroutine may still be launching a source; after this none does.
	g.mu.Lock()
	g.running = nil
	g.mu.Unlock()
	g.wg.Wait()
	g.timer.Stop()
	g.outage.end()
}

// launch begins to follow a source that was started and does not run yet. The caller holds the lock.
func (g *Group) launch(s *Source) {
	if !s.wanted || s.cancel != nil || g.running == nil || g.running.Err() != nil {
		return
	}
	ctx, cancel := context.WithCancel(g.running)
	before, ended := s.ended, make(chan struct{})
	s.cancel, s.ended = cancel, ended
	g.wg.Go(func() {
		defer close(ended)
		defer cancel()
		if before != nil {
			<-before
		}
		s.run(ctx)
		g.outage.noteCaughtUp(s)
	})
}

// Remove stops the source, and the Group forgets it. It must not be used afterwards.
func (s *Source) Remove() {
	g := s.group
	s.Stop()
	g.mu.Lock()
	defer g.mu.Unlock()
	g.sources = slices.DeleteFunc(g.sources, func(other *Source) bool { return other == s })
}

// sleep waits for some time, or until Retry.
func (g *Group) sleep(ctx context.Context, pause time.Duration) {
	g.mu.Lock()
	retried := g.retried
	g.mu.Unlock()
	select {
	case <-ctx.Done():
	case <-retried:
	case <-time.After(pause):
	}
}

// Retry makes all waiting sources try again at once, for example with new credentials.
func (g *Group) Retry() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.wake()
	close(g.retried)
	g.retried = make(chan struct{})
}

// Relist makes all started sources list again, at the newest version.
func (g *Group) Relist() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, s := range g.sources {
		if s.wanted {
			s.relist(make(chan error, 1))
		}
	}
}

// awaitRetry waits until a source that failed may try again.
func (g *Group) awaitRetry(ctx context.Context, s *Source, err error) {
	notBefore := time.Now().Add(RetryAfter(err))
	g.mu.Lock()
	s.attempts++
	s.failing = true
	var again <-chan struct{}
	var due <-chan time.Time
	if s.options.Optional {
		due, again = time.After(s.nextPause()), g.recovered
		if IsRefusal(err) || apierrors.IsNotFound(err) {
			// The upstream did answer this source, so the recovery of other sources does not matter to it.
			again = nil
		}
	} else {
		again = g.joinRound(s.attempts == 1)
	}
	retried := g.retried
	g.mu.Unlock()
	select {
	case <-ctx.Done():
		return
	case <-again:
	case <-due:
	case <-retried:
		return // an earlier Retry-After no longer applies
	}
	select {
	case <-ctx.Done():
	case <-retried:
	case <-time.After(time.Until(notBefore)):
	}
}

// nextPause returns the next pause of an optional source. The caller holds the Group's lock.
func (s *Source) nextPause() time.Duration {
	if s.attempts < optionalAttempts {
		return s.backoff.next()
	}
	return optionalPause + time.Duration(s.backoff.random()*float64(optionalPause/2))
}

// joinRound returns the channel of the next round of attempts. For a source that has just failed for the first time the
// round begins early. The caller holds the lock.
func (g *Group) joinRound(first bool) <-chan struct{} {
	if first {
		g.backoff.reset()
	}
	if g.round != nil && !first {
		return g.round
	}
	due := time.Now().Add(g.backoff.next())
	if g.round == nil {
		g.round = make(chan struct{})
	} else if !due.Before(g.due) {
		return g.round
	}
	g.due = due
	g.timer.Reset(time.Until(due))
	return g.round
}

// beginRound lets the sources that wait for the round try again. The caller holds the lock.
func (g *Group) beginRound() {
	if g.round != nil {
		close(g.round)
		g.round = nil
	}
}

// noteSourceAnswer notes that the upstream answered a source. It is called before the answer goes to the Sink.
func (g *Group) noteSourceAnswer(s *Source) {
	g.outage.holdIfNeeded(s)
	g.mu.Lock()
	defer g.mu.Unlock()
	failed := s.failing
	s.failing = false
	if failed && !g.hurried {
		g.hurried = true
		g.wake()
	}
}

// noteFollowing notes that a source follows the upstream.
func (g *Group) noteFollowing(s *Source) {
	g.mu.Lock()
	defer g.mu.Unlock()
	failed := s.attempts > 0
	s.attempts = 0
	s.backoff.reset()
	if failed {
		g.hurried = false
		g.wake()
	}
}

// wake lets all waiting sources try again at once. The caller holds the lock.
func (g *Group) wake() {
	g.backoff.reset()
	g.timer.Stop()
	g.beginRound()
	close(g.recovered)
	g.recovered = make(chan struct{})
}

// RetryAfter returns how long the upstream asks clients to wait, at most longestRetryAfter.
func RetryAfter(err error) time.Duration {
	seconds, _ := apierrors.SuggestsClientDelay(err)
	return min(time.Duration(seconds)*time.Second, longestRetryAfter)
}

// NodeWitness makes a Witness (see Options) that fails if the API server does not know the node either. An empty list
// may then come from a cache that lost its data, and must not remove known objects.
func (g *Group) NodeWitness(name string) (func(context.Context) error, error) {
	witness := &Source{group: g, options: Options{
		Agent:         "witness",
		Resource:      corev1.SchemeGroupVersion.WithResource("nodes"),
		FieldSelector: "metadata.name=" + name,
		MetadataOnly:  true,
	}}
	var err error
	if witness.client, err = g.Client(corev1.SchemeGroupVersion, witness.noteResponse); err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		list, err := witness.listPages(ctx, "0", new(disconnected))
		if err != nil {
			return fmt.Errorf("getting node %s: %w", name, err)
		}
		if len(list.Items) == 0 {
			return fmt.Errorf("the API server does not know node %s either", name)
		}
		return nil
	}, nil
}
