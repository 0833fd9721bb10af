package lite

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/application-grid/application-grid/pkg/follow"
	"github.com/application-grid/application-grid/pkg/follow/apiclient"
)

const (
	// againInterval is how often what cannot be followed is fetched again, and tokens are looked through.
	againInterval = 30 * time.Second
	// refetchInterval is how old a fetched object may be.
	refetchInterval = 10 * time.Minute
)

// follower follows into a Store what the node needs.
type follower struct {
	store *Store
	group *follow.Group
	// client has the node's credentials, server is kube-apiserver.
	client *http.Client
	server string

	// The fields below are used by one goroutine only.

	sources map[scope]*follow.Source
	// fetched is when an object was fetched last.
	fetched map[scope]time.Time
	clients map[string]rest.Interface
}

// newFollower makes a follower. config has the node's credentials.
func newFollower(store *Store, config *rest.Config) (*follower, error) {
	group, err := follow.NewGroup(follow.GroupOptions{Config: config})
	if err != nil {
		return nil, err
	}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, err
	}
	f := &follower{store: store, group: group, client: client, server: config.Host,
		sources: map[scope]*follow.Source{}, fetched: map[scope]time.Time{}, clients: map[string]rest.Interface{}}
	for _, in := range always(store.node) {
		if in.kind.getOnly {
			continue
		}
		if err := f.follow(in); err != nil {
			return nil, err
		}
	}
	return f, nil
}

// follow begins to follow a scope.
func (f *follower) follow(in scope) error {
	source, err := f.group.Add(follow.Options{
		Name: in.kind.Resource, Resource: in.kind.GroupVersionResource, Namespace: in.namespace,
		FieldSelector: in.fields,
		Verified:      in.kind == pods,
		Sink:          sink{f.store, in},
	})
	if err != nil {
		return err
	}
	source.Start()
	f.sources[in] = source
	return nil
}

// Run follows until ctx is done.
func (f *follower) Run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { f.group.Run(ctx) })
	ticker := time.NewTicker(againInterval)
	defer ticker.Stop()
	for {
		// Before that, what older pods name would be thrown away.
		if f.store.isCurrent(podsOf(f.store.node)) {
			f.update(ctx)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		case <-f.store.changed:
		}
	}
}

// update follows what the node's pods name, and nothing else.
func (f *follower) update(ctx context.Context) {
	logger := klog.FromContext(ctx)
	wanted, err := f.store.needs()
	if err != nil {
		logger.Error(err, "Cannot read what a pod needs")
		return // nothing is forgotten because of it
	}
	for _, in := range always(f.store.node) {
		wanted.scopes[in] = struct{}{}
	}
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
			f.group.Remove(source)
			delete(f.sources, in)
		}
	}
	f.dropUnwanted(wanted)
	f.fetch(ctx, wanted)
	f.renewTokens(ctx, wanted)
	f.store.forget()
}

// dropUnwanted forgets what no pod names any more.
func (f *follower) dropUnwanted(wanted needs) {
	for _, in := range f.store.scopes() {
		if _, ok := wanted.scopes[in]; !ok {
			f.store.drop(in)
			delete(f.fetched, in)
		}
	}
	f.store.dropTokens(wanted.tokens)
}

// fetch gets the objects that a node may get, but not follow.
func (f *follower) fetch(ctx context.Context, wanted needs) {
	for in := range wanted.scopes {
		if !in.kind.getOnly || time.Since(f.fetched[in]) < refetchInterval {
			continue
		}
		if err := f.get(ctx, in); err != nil {
			klog.FromContext(ctx).V(2).Info("Cannot get what a pod names, trying again", "resource", in.kind.Resource,
				"object", in.object(), "err", err)
			continue
		}
		f.fetched[in] = time.Now()
	}
}

func (f *follower) get(ctx context.Context, in scope) error {
	version := in.kind.GroupVersion()
	client, ok := f.clients[version.String()]
	if !ok {
		var err error
		client, err = f.group.Client(version, func(r *http.Request) time.Duration {
			return apiclient.SilenceIn(r, false)
		})
		if err != nil {
			return err
		}
		f.clients[version.String()] = client
	}
	got, err := client.Get().Resource(in.kind.Resource).NamespaceIfScoped(in.namespace, in.namespace != "").
		Name(in.object()).MaxRetries(0).Do(ctx).Get()
	to := sink{f.store, in}
	if apierrors.IsNotFound(err) {
		if _, objects, ok := f.store.read(in); ok && len(objects) > 0 {
			to.At(objects[0].ResourceVersion, func() { to.Replace(nil) })
		}
	}
	if err != nil {
		return err
	}
	object, _ := follow.Decoded(got)
	if object == nil {
		return fmt.Errorf("the answer is a %T", got)
	}
	to.At(object.ResourceVersion, func() { to.Apply(object) })
	return nil
}

// scopes are those of all sets.
func (s *Store) scopes() []scope {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.sets))
}
