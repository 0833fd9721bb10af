package status

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/gridview"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/cluster"
)

const (
	// gathered is how long changes are gathered before they are shown: one change of a grid is many of its objects.
	gathered = 300 * time.Millisecond
	// podsEvery is how often it is asked why pods are not ready, while some are not. Pods themselves are not followed:
	// there may be very many of others.
	podsEvery = 5 * time.Second
)

// Follow reads the grids, calls show, and calls it again whenever something of them, their children or their nodes has
// changed, until ctx is done. That is no error.
func Follow(ctx context.Context, c cluster.Cluster, q Query, show func([]gridview.Grid) error) error {
	warn := once(c.Warn)
	// No clock: a row that counts down would be another with every change of anything.
	now := &Reader{Objects: c.API, Pods: c.API, Warn: warn}
	grids, err := now.Read(ctx, q)
	switch {
	case interrupted(ctx):
		return nil
	case err != nil:
		return err
	}
	if err := show(grids); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	f := follower{
		query:   q,
		unread:  now.unread,
		changed: make(chan struct{}, 1),
		failure: make(chan error, 1),
		stop:    stop,
		warn:    warn,
	}
	cached, err := f.start(ctx, c)
	if err != nil {
		return err
	}
	later := &Reader{Objects: cached, Pods: c.API, Warn: warn, unread: now.unread}
	for {
		if err := f.wait(ctx, grids); err != nil {
			return err
		}
		if interrupted(ctx) {
			return nil
		}
		found, err := later.find(ctx, q)
		if err == nil {
			grids = later.states(ctx, q.Namespace, found)
		}
		switch {
		case interrupted(ctx):
			continue // what could not be read is no answer
		case err != nil:
			return err
		}
		if err := show(grids); err != nil {
			return err
		}
	}
}

// interrupted reports whether ctx is done: the user has seen enough, or following cannot go on.
func interrupted(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return true
	default:
		return false
	}
}

// once makes a warning that is written once for each text.
func once(warn func(string, ...any)) func(string, ...any) {
	var mu sync.Mutex // guards said
	said := map[string]bool{}
	return func(format string, args ...any) {
		text := fmt.Sprintf(format, args...)
		mu.Lock()
		defer mu.Unlock()
		if !said[text] {
			said[text] = true
			warn("%s", text)
		}
	}
}

// follower keeps a cache of what the answer follows from.
type follower struct {
	query Query
	// unread are the kinds that cannot be read, and so not be followed.
	unread map[string]bool
	// changed has an element if something has changed since it was last received from.
	changed chan struct{}
	// failure has the reason why following cannot go on, if there is one. stop ends everything that follows.
	failure chan error
	stop    context.CancelFunc
	warn    func(format string, args ...any)
}

// start makes the cache and waits until it is complete.
func (f *follower) start(ctx context.Context, c cluster.Cluster) (client.Reader, error) {
	options := cache.Options{
		Scheme: c.Scheme, Mapper: c.Mapper, ByObject: map[client.Object]cache.ByObject{},
		DefaultWatchErrorHandler: f.failed,
	}
	if f.query.Namespace != "" {
		options.DefaultNamespaces = map[string]cache.Config{f.query.Namespace: {}}
	}
	followed, err := f.resources(options.ByObject)
	if err != nil {
		return nil, err
	}
	cached, err := cache.New(c.Config, options)
	if err != nil {
		return nil, fmt.Errorf("making a cache: %w", err)
	}
	go func() {
		if err := cached.Start(ctx); err != nil && !interrupted(ctx) {
			f.fail(fmt.Errorf("following: %w", err))
		}
	}()
	for _, r := range followed {
		informer, err := cached.GetInformer(ctx, r.object)
		if err == nil {
			_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
				AddFunc:    func(any) { f.signal() },
				DeleteFunc: func(any) { f.signal() },
				UpdateFunc: func(old, updated any) {
					if r.differ(old, updated) {
						f.signal()
					}
				},
			})
		}
		if err != nil && !interrupted(ctx) {
			return nil, fmt.Errorf("following %s: %w", r.plural, err)
		}
	}
	if !cached.WaitForCacheSync(ctx) && !interrupted(ctx) {
		return nil, fmt.Errorf("following the grids: %w", context.DeadlineExceeded)
	}
	f.signal() // something may have changed since the first answer
	return cached, nil
}

// followed is a kind of objects that the answer follows from.
type followed struct {
	plural string
	object client.Object
	// differ reports whether a change of an object may change the answer.
	differ func(old, updated any) bool
}

// resources are the kinds to follow; of each the cache keeps what selects says.
func (f *follower) resources(selects map[client.Object]cache.ByObject) ([]followed, error) {
	var all []followed
	hasGrid, err := labels.NewRequirement(v1.LabelGridSelector, selection.Exists, nil)
	if err != nil {
		return nil, fmt.Errorf("selecting children: %w", err)
	}
	workloads := false
	for _, k := range f.query.Kinds {
		if f.unread[k.Kind] {
			continue
		}
		workloads = workloads || k.Kind != v1.ServiceGridKind.Kind
		grid := k.New()
		selected := cache.ByObject{Label: f.query.Selector}
		if len(f.query.Names) == 1 {
			selected.Field = fields.OneTermEqualSelector(metav1.ObjectNameField, f.query.Names[0])
		}
		selects[grid] = selected
		all = append(all, followed{k.Plural, grid, func(any, any) bool { return true }})
		if !f.unread[k.Child.Kind] {
			child := metadataOf(k.Child)
			selects[child] = cache.ByObject{Label: labels.NewSelector().Add(*hasGrid)}
			all = append(all, followed{k.Child.Kind + "s", child, childDiffers})
		}
	}
	if workloads && !f.unread[kindNode] {
		node := metadataOf(corev1.SchemeGroupVersion.WithKind(kindNode))
		selects[node] = cache.ByObject{Transform: onlyLabels}
		all = append(all, followed{"nodes", node, labelsDiffer})
	}
	return all, nil
}

func metadataOf(kind schema.GroupVersionKind) *metav1.PartialObjectMetadata {
	object := &metav1.PartialObjectMetadata{}
	object.SetGroupVersionKind(kind)
	return object
}

// onlyLabels drops of a node what the answer does not need: of nodes there may be very many.
func onlyLabels(object any) (any, error) {
	if node, ok := object.(*metav1.PartialObjectMetadata); ok {
		node.Annotations, node.ManagedFields = nil, nil
	}
	return object, nil
}

// labelsDiffer is of nodes, which change all the time in other ways.
func labelsDiffer(old, updated any) bool {
	a, aOK := old.(*metav1.PartialObjectMetadata)
	b, bOK := updated.(*metav1.PartialObjectMetadata)
	return !aOK || !bOK || !reflect.DeepEqual(a.Labels, b.Labels)
}

// childDiffers is of children, whose own status the grid's status tells of.
func childDiffers(old, updated any) bool {
	a, aOK := old.(*metav1.PartialObjectMetadata)
	b, bOK := updated.(*metav1.PartialObjectMetadata)
	return !aOK || !bOK || !reflect.DeepEqual(a.Labels, b.Labels) || !reflect.DeepEqual(a.OwnerReferences,
		b.OwnerReferences) ||
		v1.ForeignFields(a.ManagedFields) != v1.ForeignFields(b.ManagedFields)
}

// failed is called when a list or a watch fails, which is tried again.
func (f *follower) failed(_ context.Context, _ *toolscache.Reflector, err error) {
	switch {
	case apierrors.IsForbidden(err):
		f.fail(fmt.Errorf("following changes takes the right to list and watch: %w", err))
	case apierrors.IsResourceExpired(err), apierrors.IsGone(err): // it lists again
	default:
		f.warn("changes may be late: %v", err)
	}
}

// fail ends everything with the reason why it cannot go on.
func (f *follower) fail(err error) {
	select {
	case f.failure <- err:
	default: // the first reason counts
	}
	f.stop()
}

// signal notes that something has changed.
func (f *follower) signal() {
	select {
	case f.changed <- struct{}{}:
	default:
	}
}

// wait returns when something has changed since grids were read, when it is time to ask for pods again, or when ctx is
// done; with an error if following cannot go on.
func (f *follower) wait(ctx context.Context, grids []gridview.Grid) error {
	var pods <-chan time.Time
	if slices.ContainsFunc(grids, AskForPods) {
		timer := time.NewTimer(podsEvery)
		defer timer.Stop()
		pods = timer.C
	}
	select {
	case <-f.changed:
		gather := time.NewTimer(gathered)
		defer gather.Stop()
		select {
		case <-gather.C:
		case <-ctx.Done():
		}
		select {
		case <-f.changed: // what has changed meanwhile is in the next answer
		default:
		}
	case <-pods:
	case <-ctx.Done():
	}
	select {
	case err := <-f.failure:
		return err
	default:
		return nil
	}
}

// AskForPods reports whether pods may say why a unit of a grid is not ready.
func AskForPods(g gridview.Grid) bool {
	return slices.ContainsFunc(g.Units, func(u gridview.Unit) bool {
		return u.Phase == v1.UnitProgressing || u.Phase == v1.UnitStalled
	})
}
