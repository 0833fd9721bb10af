package lite

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"
	"k8s.io/klog/v2"

	"github.com/application-grid/application-grid/pkg/follow"
	"github.com/application-grid/application-grid/pkg/follow/apiclient"
)

const (
	// againInterval is the time between two checks of a token, of the cluster's keys, and of what is followed.
	againInterval = 30 * time.Second
	// refetchInterval is how old a fetched object may be.
	refetchInterval = 10 * time.Minute
	// refusalPatience is how long kube-apiserver must refuse a list or an object to an account before it is forgotten.
	// While kube-apiserver starts, it refuses requests that it will allow later.
	refusalPatience = time.Minute
	// byName is the group of what pods name, and of all that is fetched with the node's credentials.
	byName = "by name"
)

// follower follows everything that the node needs and that accounts read into a Store.
type follower struct {
	store *Store
	// groups have the node's credentials, under the names "" (what is always needed) and byName, and those of accounts.
	groups map[string]*follow.Group
	// api has the node's credentials.
	api rest.Interface
	// patience is refusalPatience, except in tests.
	patience time.Duration
	// sources has the source of each need. Once Run is called, it is used by syncSources only.
	sources map[any]*follow.Source
}

// newFollower makes a follower into a Store that is loaded. It reads with the node's credentials, and what accounts
// read with theirs.
func newFollower(store *Store, connection *apiclient.Connection) (*follower, error) {
	own, err := connection.Config()
	if err != nil {
		return nil, err
	}
	anonymous, err := connection.Transport(rest.AnonymousClientConfig)
	if err != nil {
		return nil, err
	}
	as := func(account string) *rest.Config {
		config := rest.CopyConfig(own)
		config.Transport = transport.TokenSourceWrapTransport(accountTokens{store, account})(anonymous)
		return config
	}
	f := &follower{store: store, groups: map[string]*follow.Group{}, patience: refusalPatience,
		sources: map[any]*follow.Source{}}
	configs := map[string]*rest.Config{"": own, byName: own}
	for account := range store.accounts {
		configs[account] = as(account)
	}
	for name, config := range configs {
		if f.groups[name], err = follow.NewGroup(config, nil); err != nil {
			return nil, err
		}
		within := apiclient.Spread
		if name == "" {
			within = 0
		}
		connection.Link().OnBack(within, f.groups[name].Retry)
	}
	if f.api, err = apiFor(own); err != nil {
		return nil, err
	}
	for _, in := range nodeScopes(store.node) {
		if err := f.follow(in); err != nil {
			return nil, err
		}
	}
	if len(store.accounts) == 0 {
		return f, nil
	}
	asAny, err := apiFor(as(""))
	if err != nil {
		return nil, err
	}
	keys, err := f.groups[byName].Add(polled("keys", againInterval, func(ctx context.Context) error {
		return store.refreshKeys(ctx, asAny)
	}))
	if err != nil {
		return nil, err
	}
	keys.Start()
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

// follow follows a scope, or keeps a token.
func (f *follower) follow(id any) (err error) {
	group, options := byName, follow.Options{}
	var source *follow.Source
	switch id := id.(type) {
	case tokenRequest:
		options = polled("tokens", againInterval, func(ctx context.Context) error { return f.renewToken(ctx, id) })
	case scope:
		if id.kind.getOnly {
			options = polled(id.kind.Resource, refetchInterval, func(ctx context.Context) error {
				return f.fetchObject(ctx, id, source.Request(id.kind.Resource))
			})
		} else {
			options = follow.Options{Name: id.kind.Resource, Namespace: id.namespace, FieldSelector: id.fields,
				Sink: sink{f.store, id}}
		}
		options.Resource = id.kind.GroupVersionResource
		if id.kind.account != "" || !id.kind.getOnly && !namedByPods[id.kind] {
			group = id.kind.account
		}
	}
	if source, err = f.groups[group].Add(options); err != nil {
		return err
	}
	if in, ok := id.(scope); ok {
		source.StartAt(f.store.versionOf(in)) // kept objects are at least as new
	}
	source.Start()
	f.sources[id] = source
	return nil
}

// polled returns the Options of a source that fetches what cannot be followed.
func polled(name string, every time.Duration, fetch func(context.Context) error) follow.Options {
	return follow.Options{Name: name, Optional: true, Every: every,
		Stream: func(ctx context.Context, stepped func(string)) error {
			err := fetch(ctx)
			if err == nil {
				stepped("")
			}
			return err
		}}
}

// Run follows until ctx is done.
func (f *follower) Run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	for _, group := range f.groups {
		wg.Go(func() { group.Run(ctx) })
	}
	ticker := time.NewTicker(againInterval)
	defer ticker.Stop()
	for {
		f.syncSources(ctx)
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		case <-f.store.needed:
		}
	}
}

// syncSources follows exactly the objects that the node's pods name and that accounts read.
func (f *follower) syncSources(ctx context.Context) {
	if !f.store.isCurrent(podScope(f.store.node)) {
		return // objects that older pods name would be dropped
	}
	logger := klog.FromContext(ctx)
	pods, err := f.store.pods()
	if err != nil {
		logger.Error(err, "Cannot read what a pod needs")
		return // do not drop anything because of an error
	}
	wanted := needs{}
	f.store.selectWithinBudgets(wanted, f.store.podCandidates(pods))
	for _, in := range nodeScopes(f.store.node) {
		wanted[in] = true
	}
	known := f.store.scopes() // later reads of accounts are left to the next call
	f.addAccounts(ctx, wanted, known)
	for id := range wanted {
		if _, ok := f.sources[id]; ok {
			continue
		}
		if err := f.follow(id); err != nil {
			logger.Error(err, "Cannot follow what a pod names", "need", id)
		}
	}
	for id, source := range f.sources {
		if _, ok := wanted[id]; !ok {
			source.Remove()
			delete(f.sources, id)
		}
	}
	for in := range known { // no pod names it, and no account may read it any longer
		if _, ok := wanted[in]; !ok {
			f.store.dropSet(in)
		}
	}
	f.store.dropTokens(wanted)
}

// isRefused reports whether what a source follows must no longer be kept for an account, because kube-apiserver has
// forbidden it for refusalPatience. A 401 is about the token, and does not mean that the account lacks rights.
func (f *follower) isRefused(state follow.State) bool {
	return !state.ForbiddenSince.IsZero() && time.Since(state.ForbiddenSince) >= f.patience
}

// fetchObject fetches an object that may be got, but not followed.
func (f *follower) fetchObject(ctx context.Context, in scope, request *rest.Request) error {
	got, err := request.NamespaceIfScoped(in.namespace, in.namespace != "").Name(in.objectName()).Do(ctx).Get()
	to := sink{f.store, in}
	switch notFound := isNotFound(err, in.objectName()); {
	case notFound && in.kind.account != "":
		f.store.dropSet(in)
		f.store.signalNeeds()
	case notFound:
		// The answer has no version. That of the pods is one that kube-apiserver had reached.
		version := cmp.Or(f.store.versionOf(in), f.store.versionOf(podScope(f.store.node)))
		to.ChangeAt(version, func() { to.Replace(nil) })
	}
	if err != nil {
		return err
	}
	object, _ := got.(follow.Object)
	if object.Object == nil || object.Kind != in.kind.Kind || object.Name != in.objectName() {
		return fmt.Errorf("the answer is another object: %T of kind %q", got, object.Kind)
	}
	to.ChangeAt(object.ResourceVersion, func() { to.Apply(object.Object) })
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
