package lite

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/application-grid/application-grid/pkg/follow"
	"github.com/application-grid/application-grid/pkg/follow/apiclient"
)

const (
	// againInterval is the time between two fetches of objects that cannot be followed, and between two checks of the
	// tokens.
	againInterval = 30 * time.Second
	// refetchInterval is how old a fetched object may be.
	refetchInterval = 10 * time.Minute
	// refusalPatience is how long kube-apiserver must refuse a list or an object to an account before it is forgotten.
	// While kube-apiserver starts, it refuses requests that it will allow later.
	refusalPatience = time.Minute
)

// follower follows everything that the node needs and that accounts read into a Store.
type follower struct {
	store *Store
	// groups have the node's credentials, under the name "", and those of accounts.
	groups map[string]*follow.Group
	// asAny has the credentials of any account; nil if none is answered.
	asAny rest.Interface
	// api has the node's credentials.
	api rest.Interface
	// fixed are the sources of objects that a node always needs.
	fixed []*follow.Source

	// patience is refusalPatience, except in tests.
	patience time.Duration

	// sources are used by update only, clients by get only.
	sources map[scope]*follow.Source
	clients map[*kind]rest.Interface
	// wanted is the last result of update. tokensDue and fetchDue have a value when it may have changed.
	wanted              atomic.Pointer[needs]
	tokensDue, fetchDue chan struct{}
}

// newFollower makes a follower. config has the node's credentials.
func newFollower(store *Store, config *rest.Config) (*follower, error) {
	group, err := follow.NewGroup(config, nil)
	if err != nil {
		return nil, err
	}
	api, err := apiFor(config)
	if err != nil {
		return nil, err
	}
	f := &follower{store: store, groups: map[string]*follow.Group{"": group}, api: api,
		patience: refusalPatience, tokensDue: make(chan struct{}, 1), fetchDue: make(chan struct{}, 1),
		sources: map[scope]*follow.Source{}, clients: map[*kind]rest.Interface{}}
	f.wanted.Store(&needs{})
	for _, in := range always(store.node) {
		if in.kind.getOnly {
			continue
		}
		if err := f.follow(in); err != nil {
			return nil, err
		}
		f.fixed = append(f.fixed, f.sources[in])
	}
	return f, nil
}

// apiFor makes a client for single requests, which reads at most answerLimit of an answer.
func apiFor(config *rest.Config) (rest.Interface, error) {
	config = rest.CopyConfig(config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return bounded{next} })
	config.NegotiatedSerializer = serializer.NewCodecFactory(runtime.NewScheme()).WithoutConversion()
	return rest.UnversionedRESTClientFor(config)
}

// answerLimit is how many bytes an answer with a token, keys or the Node may have.
const answerLimit = 1 << 20

// bounded is a transport whose answers end with an error after answerLimit: client-go reads them whole.
type bounded struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (t bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := t.next.RoundTrip(r)
	if err == nil {
		response.Body = http.MaxBytesReader(nil, response.Body, answerLimit)
	}
	return response, err
}

func (f *follower) follow(in scope) error {
	source, err := f.groups[in.kind.account].Add(follow.Options{
		Name: in.kind.Resource, Resource: in.kind.GroupVersionResource, Namespace: in.namespace,
		FieldSelector: in.fields,
		Sink:          sink{f.store, in},
	})
	if err != nil {
		return err
	}
	source.StartAt(f.store.versionOf(in))
	source.Start()
	f.sources[in] = source
	return nil
}

// Run follows until ctx is done.
func (f *follower) Run(ctx context.Context) {
	for in, source := range f.sources {
		source.StartAt(f.store.versionOf(in)) // kept objects are at least as new
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	for _, group := range f.groups {
		wg.Go(func() { group.Run(ctx) })
	}
	// Each waits for a slow API server, but not for the others.
	wg.Go(func() { repeat(ctx, f.tokensDue, f.renewTokens, f.refreshKeys) })
	wg.Go(func() { repeat(ctx, f.fetchDue, f.fetch) })
	repeat(ctx, f.store.needed, f.update)
}

// repeat calls things at once, whenever they are due, and from time to time, until ctx is done.
func repeat(ctx context.Context, due <-chan struct{}, things ...func(context.Context)) {
	ticker := time.NewTicker(againInterval)
	defer ticker.Stop()
	for {
		for _, do := range things {
			do(ctx)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		case <-due:
		}
	}
}

// refetch makes all objects be fetched again that cannot be followed: kube-apiserver was away.
func (f *follower) refetch() {
	f.store.mu.Lock()
	defer f.store.mu.Unlock()
	f.store.outdated = time.Now()
	wake(f.fetchDue)
}

// update follows exactly the objects that the node's pods name and that accounts read.
func (f *follower) update(ctx context.Context) {
	if !f.store.isCurrent(podsOf(f.store.node)) {
		return // objects that older pods name would be dropped
	}
	logger := klog.FromContext(ctx)
	pods, err := f.store.pods()
	if err != nil {
		logger.Error(err, "Cannot read what a pod needs")
		return // do not drop anything because of an error
	}
	wanted := newNeeds()
	f.store.keep(wanted, f.store.ofPods(pods))
	for _, in := range always(f.store.node) {
		wanted.scopes[in] = true
	}
	known := f.store.scopes() // later reads of accounts are left to the next update
	f.addAccounts(ctx, wanted, known)
	for in := range wanted.scopes {
		if _, ok := f.sources[in]; ok || in.kind.getOnly {
			continue
		}
		if err := f.follow(in); err != nil {
			logger.Error(err, "Cannot follow what a pod names", "resource", in.kind.Resource, "object", in.object())
		}
	}
	for in, source := range f.sources {
		if _, ok := wanted.scopes[in]; !ok {
			f.groups[in.kind.account].Remove(source)
			delete(f.sources, in)
		}
	}
	for in := range known { // no pod names it, and no account may read it any longer
		if _, ok := wanted.scopes[in]; !ok {
			f.store.dropSet(in)
		}
	}
	f.store.dropTokens(wanted.tokens)
	f.wanted.Store(&wanted)
	wake(f.tokensDue)
	wake(f.fetchDue)
}

// fetch gets the objects that a node may get, but not follow.
func (f *follower) fetch(ctx context.Context) {
	for in := range f.wanted.Load().scopes {
		if !in.kind.getOnly || f.store.isFresh(in) {
			continue
		}
		began := time.Now()
		if err := f.get(ctx, in); err != nil {
			klog.FromContext(ctx).V(2).Info("Cannot get what a pod names, trying again", "resource", in.kind.Resource,
				"object", in.object(), "err", err)
			if in.kind.account != "" && (isNotFound(err, in.object()) || f.isRefused(in, err)) {
				f.store.dropSet(in)
			}
			continue
		}
		f.store.noteFetched(in, began)
	}
}

func (s *Store) isFresh(in scope) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	set := s.sets[in]
	return set != nil && time.Since(set.fetched) < refetchInterval && set.fetched.After(s.outdated)
}

func (s *Store) noteFetched(in scope, began time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if set := s.sets[in]; set != nil {
		set.fetched, set.refused = began, time.Time{}
	}
}

// isRefused reports whether a scope must no longer be kept for an account, because kube-apiserver has forbidden it for
// refusalPatience. err is kube-apiserver's last answer. A 401 is about the token, and does not mean that the account
// lacks rights.
func (f *follower) isRefused(in scope, err error) bool {
	f.store.mu.Lock()
	defer f.store.mu.Unlock()
	set := f.store.sets[in]
	switch {
	case set == nil:
		return false
	case !apierrors.IsForbidden(err):
		set.refused = time.Time{}
		return false
	case set.refused.IsZero():
		set.refused = time.Now()
	}
	return time.Since(set.refused) >= f.patience
}

func (f *follower) get(ctx context.Context, in scope) error {
	if f.clients[in.kind] == nil {
		client, err := f.groups[in.kind.account].Client(in.kind.GroupVersion(), apiclient.SilenceIn)
		if err != nil {
			return err
		}
		f.clients[in.kind] = client
	}
	got, err := f.clients[in.kind].Get().Resource(in.kind.Resource).NamespaceIfScoped(in.namespace, in.namespace != "").
		Name(in.object()).MaxRetries(0).Do(ctx).Get()
	to := sink{f.store, in}
	if isNotFound(err, in.object()) {
		// The answer has no version. That of the pods is one that kube-apiserver had reached.
		to.At(cmp.Or(f.store.versionOf(in), f.store.versionOf(podsOf(f.store.node))), func() { to.Replace(nil) })
	}
	if err != nil {
		return err
	}
	object, _ := got.(follow.Object)
	if object.Object == nil || object.Kind != in.kind.Kind || object.Name != in.object() {
		return fmt.Errorf("the answer is another object: %T of kind %q", got, object.Kind)
	}
	to.At(object.ResourceVersion, func() { to.Apply(object.Object) })
	return nil
}

// scopes returns when an account last read each of the sets.
func (s *Store) scopes() map[scope]time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	known := make(map[scope]time.Time, len(s.sets))
	for in, set := range s.sets {
		known[in] = set.read
	}
	return known
}
