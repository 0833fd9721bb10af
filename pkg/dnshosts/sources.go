package dnshosts

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
)

// scheme has what is read in full: StatefulSets and Pods. All other kinds are read as metadata.
var scheme = func() *runtime.Scheme {
	s := runtime.NewScheme()
	_ = appsv1.AddToScheme(s) // it fails only if kinds are registered twice
	_ = corev1.AddToScheme(s)
	return s
}()

var (
	codecs         = serializer.NewCodecFactory(scheme)
	parameterCodec = runtime.NewParameterCodec(scheme)
)

// listWatch lists and watches one resource, narrowed by selectors.
type listWatch interface {
	list(ctx context.Context, options metav1.ListOptions) (runtime.Object, error)
	watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error)
}

// metadataOf reads objects as PartialObjectMetadata.
type metadataOf struct{ client metadata.ResourceInterface }

func (m metadataOf) list(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	return m.client.List(ctx, options)
}

func (m metadataOf) watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	return m.client.Watch(ctx, options)
}

// fullObjects reads objects as they are.
type fullObjects struct {
	client    rest.Interface
	namespace string
	resource  string
}

func (f fullObjects) request(options *metav1.ListOptions) *rest.Request {
	return f.client.Get().NamespaceIfScoped(f.namespace, f.namespace != "").Resource(f.resource).
		VersionedParams(options, parameterCodec)
}

func (f fullObjects) list(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	return f.request(&options).Do(ctx).Get()
}

func (f fullObjects) watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	options.Watch = true
	return f.request(&options).Watch(ctx)
}

// clients make the sources of one API server. All share one HTTP client, and with it one connection where the
// server speaks HTTP/2.
type clients struct {
	metadata   metadata.Interface
	core, apps rest.Interface
}

func newClients(config *rest.Config) (*clients, error) {
	httpClient, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("making a client for the API server: %w", err)
	}
	var c clients
	if c.metadata, err = metadata.NewForConfigAndClient(config, httpClient); err != nil {
		return nil, fmt.Errorf("making a client for the API server: %w", err)
	}
	if c.core, err = restClient(config, httpClient, corev1.SchemeGroupVersion, "/api"); err != nil {
		return nil, err
	}
	c.apps, err = restClient(config, httpClient, appsv1.SchemeGroupVersion, "/apis")
	return &c, err
}

func restClient(config *rest.Config, httpClient *http.Client, version schema.GroupVersion, path string) (rest.Interface, error) {
	config = rest.CopyConfig(config)
	config.GroupVersion, config.APIPath = &version, path
	config.NegotiatedSerializer = codecs.WithoutConversion()
	config.ContentType = runtime.ContentTypeProtobuf
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	client, err := rest.RESTClientForConfigAndClient(config, httpClient)
	if err != nil {
		return nil, fmt.Errorf("making a client for the API server: %w", err)
	}
	return client, nil
}

// ownNode is this node, by its metadata.
func (c *clients) ownNode(name string, into cache.ReflectorStore, observe func(*SourceState)) *source {
	return newSource("node", metadataOf{c.metadata.Resource(corev1.SchemeGroupVersion.WithResource("nodes"))},
		metav1.ListOptions{FieldSelector: "metadata.name=" + name}, into, observe)
}

// grids are all StatefulSetGrids, by their metadata.
func (c *clients) grids(into cache.ReflectorStore, observe func(*SourceState)) *source {
	return newSource("statefulsetgrids", metadataOf{c.metadata.Resource(v1.GroupVersion.WithResource("statefulsetgrids"))},
		metav1.ListOptions{}, into, observe)
}

// services are the Services of ServiceGrids, by their metadata.
func (c *clients) services(into cache.ReflectorStore, observe func(*SourceState)) *source {
	return newSource("services", metadataOf{c.metadata.Resource(corev1.SchemeGroupVersion.WithResource("services"))},
		metav1.ListOptions{LabelSelector: v1.LabelGridUniqKey}, into, observe)
}

// sets are the StatefulSets of StatefulSetGrids.
func (c *clients) sets(into cache.ReflectorStore, observe func(*SourceState)) *source {
	return newSource("statefulsets", fullObjects{client: c.apps, resource: "statefulsets"},
		metav1.ListOptions{LabelSelector: v1.LabelGridSelector}, into, observe)
}

// pods are those of these names.
func (c *clients) pods(namespace string, names []string, into cache.ReflectorStore, observe func(*SourceState)) *source {
	return newSource("pods", fullObjects{client: c.core, resource: "pods", namespace: namespace},
		metav1.ListOptions{LabelSelector: appsv1.StatefulSetPodNameLabel + " in (" + strings.Join(names, ",") + ")"}, into, observe)
}

// source follows one resource of the API server and writes what it hears into a store. It never gives up, and
// what it does not hear changes nothing: only a complete list replaces the store's contents.
type source struct {
	name     string
	from     listWatch
	narrowed metav1.ListOptions
	into     cache.ReflectorStore
	// observe is called after every change of the state.
	observe func(*SourceState)
	// witness, if set, is asked before a list that has nothing is believed where there was something before. An
	// error says why it is not.
	witness func(context.Context) error

	mu    sync.Mutex
	state SourceState // guarded by mu
	// some is set while there is something in the store. Guarded by mu.
	some bool
}

// SourceState is what is known of one source.
type SourceState struct {
	Name string
	// Synced is set with the first complete list.
	Synced bool
	// Absent is set while the API server answers that it does not serve the resource.
	Absent bool
	// Err is why the last list or watch failed; nil while the stream is up.
	Err error
	// LastContact is when the API server was last heard of on this source.
	LastContact time.Time
}

func newSource(name string, from listWatch, narrowed metav1.ListOptions, into cache.ReflectorStore, observe func(*SourceState)) *source {
	return &source{name: name, from: from, narrowed: narrowed, into: into, observe: observe, state: SourceState{Name: name}}
}

func (s *source) update(change func(*SourceState)) {
	s.mu.Lock()
	change(&s.state)
	state := s.state
	s.mu.Unlock()
	s.observe(&state)
}

// State is the state now.
func (s *source) State() SourceState {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state
}

// run follows the resource until ctx is done.
func (s *source) run(ctx context.Context) {
	logger := klog.FromContext(ctx).WithValues("source", s.name)
	reflector := cache.NewReflectorWithOptions(s, nil, reflected{s}, cache.ReflectorOptions{
		Logger:          &logger,
		Name:            s.name,
		TypeDescription: s.name,
		// Half a second at first: a line should follow within one. Up to 10 to 20 s apart: a fleet's daemons do
		// not return to a restarted cloud at one moment.
		Backoff: &wait.Backoff{Duration: 250 * time.Millisecond, Factor: 2, Jitter: 1, Steps: 7, Cap: 10 * time.Second},
	})
	reflector.RunWithContext(klog.NewContext(ctx, logger))
}

// IsWatchListSemanticsUnSupported makes the reflector use LIST + WATCH: caching edge proxies accept
// sendInitialEvents and, offline, never send the bookmark that ends the initial events.
func (s *source) IsWatchListSemanticsUnSupported() bool { return true }

func (s *source) narrow(options metav1.ListOptions) metav1.ListOptions {
	options.LabelSelector, options.FieldSelector = s.narrowed.LabelSelector, s.narrowed.FieldSelector
	return options
}

// ListWithContext implements cache.ListerWithContext.
func (s *source) ListWithContext(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	listed, err := s.from.list(ctx, s.narrow(options))
	switch {
	case err != nil:
	case !apimeta.IsListType(listed):
		err = fmt.Errorf("the API server sent a %T in place of a list", listed)
	default:
		err = s.doubt(ctx, listed)
	}
	s.note(err)
	if err != nil {
		return nil, err
	}
	return listed, nil
}

// doubt asks the witness, if a list would take away everything that there was.
func (s *source) doubt(ctx context.Context, listed runtime.Object) error {
	s.mu.Lock()
	some := s.some
	s.mu.Unlock()
	if !some || s.witness == nil || apimeta.LenList(listed) > 0 {
		return nil
	}
	if err := s.witness(ctx); err != nil {
		return fmt.Errorf("there were some, and the list has none any more, which is not believed: %w", err)
	}
	return nil
}

// knowsNode is a witness: an API server that does not know this node has no say in what belongs to it. It may be a
// cache that lost its data.
func (c *clients) knowsNode(name string) func(context.Context) error {
	nodes := metadataOf{c.metadata.Resource(corev1.SchemeGroupVersion.WithResource("nodes"))}
	return func(ctx context.Context) error {
		listed, err := nodes.list(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name})
		if err != nil {
			return fmt.Errorf("asking for node %s: %w", name, err)
		}
		if apimeta.LenList(listed) == 0 {
			return fmt.Errorf("the API server does not know node %s either", name)
		}
		return nil
	}
}

// WatchWithContext implements cache.WatcherWithContext.
func (s *source) WatchWithContext(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	w, err := s.from.watch(ctx, s.narrow(options))
	s.note(err)
	return w, err
}

// List implements cache.Lister. The reflector prefers ListWithContext.
func (s *source) List(options metav1.ListOptions) (runtime.Object, error) {
	return s.ListWithContext(context.TODO(), options)
}

// Watch implements cache.Watcher. The reflector prefers WatchWithContext.
func (s *source) Watch(options metav1.ListOptions) (watch.Interface, error) {
	return s.WatchWithContext(context.TODO(), options)
}

func (s *source) note(err error) {
	s.update(func(state *SourceState) {
		state.Err = err
		if apierrors.IsNotFound(err) {
			state.Absent = true
		}
		if err == nil {
			state.LastContact = time.Now()
		}
	})
}

// reflected is the store as the source's reflector sees it.
type reflected struct{ *source }

// Add implements cache.ReflectorStore.
func (r reflected) Add(obj any) error {
	r.mu.Lock()
	r.some = true
	r.mu.Unlock()
	return r.into.Add(obj)
}

// Update implements cache.ReflectorStore.
func (r reflected) Update(obj any) error { return r.into.Update(obj) }

// Delete implements cache.ReflectorStore.
func (r reflected) Delete(obj any) error { return r.into.Delete(obj) }

// Resync implements cache.ReflectorStore.
func (r reflected) Resync() error { return nil }

// Replace implements cache.ReflectorStore.
func (r reflected) Replace(listed []any, resourceVersion string) error {
	if err := r.into.Replace(listed, resourceVersion); err != nil {
		return err
	}
	r.mu.Lock()
	r.some = len(listed) > 0
	r.mu.Unlock()
	r.update(func(state *SourceState) { state.Synced, state.Absent = true, false })
	return nil
}

// UpdateResourceVersion implements cache.ResourceVersionUpdater: it is called for every event and bookmark.
func (r reflected) UpdateResourceVersion(string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.state.LastContact = time.Now()
}

// key is an object's namespace and name.
type key struct{ namespace, name string }

// table is the store of one source: of each object what keep makes of it. changed is called, without the lock,
// after every change of that; nothing else is heard of, above all not of updates that kept fields have no part
// in.
type table[T any] struct {
	keep    func(metav1.Object) (T, bool)
	equal   func(a, b T) bool
	changed func()
	// removed is called for what was there and is not; it may be nil.
	removed func(T)

	mu      sync.Mutex
	objects map[key]T // guarded by mu
}

func newTable[T any](keep func(metav1.Object) (T, bool), equal func(a, b T) bool, changed func()) *table[T] {
	return &table[T]{keep: keep, equal: equal, changed: changed, objects: map[key]T{}}
}

func keyOf(object metav1.Object) key { return key{object.GetNamespace(), object.GetName()} }

// Add implements cache.ReflectorStore.
func (t *table[T]) Add(obj any) error {
	object, ok := obj.(metav1.Object)
	if !ok {
		return fmt.Errorf("the API server sent a %T", obj)
	}
	kept, ok := t.keep(object)
	if !ok {
		return fmt.Errorf("the API server sent a %T", obj)
	}
	k := keyOf(object)
	t.mu.Lock()
	old, exists := t.objects[k]
	same := exists && t.equal(old, kept)
	if !same {
		t.objects[k] = kept
	}
	t.mu.Unlock()
	if !same {
		t.changed()
	}
	return nil
}

// Update implements cache.ReflectorStore.
func (t *table[T]) Update(obj any) error { return t.Add(obj) }

// Delete implements cache.ReflectorStore.
func (t *table[T]) Delete(obj any) error {
	object, ok := obj.(metav1.Object)
	if !ok {
		return fmt.Errorf("the API server sent a %T", obj)
	}
	k := keyOf(object)
	t.mu.Lock()
	old, exists := t.objects[k]
	delete(t.objects, k)
	t.mu.Unlock()
	if !exists {
		return nil
	}
	if t.removed != nil {
		t.removed(old)
	}
	t.changed()
	return nil
}

// Replace implements cache.ReflectorStore.
func (t *table[T]) Replace(listed []any, _ string) error {
	objects := make(map[key]T, len(listed))
	for _, obj := range listed {
		object, ok := obj.(metav1.Object)
		if !ok {
			return fmt.Errorf("the API server sent a %T", obj)
		}
		kept, ok := t.keep(object)
		if !ok {
			return fmt.Errorf("the API server sent a %T", obj)
		}
		objects[keyOf(object)] = kept
	}
	t.mu.Lock()
	before := t.objects
	t.objects = objects
	t.mu.Unlock()
	for k, old := range before {
		// What came back under its name as another one was removed in between; the receiver tells.
		if now, exists := objects[k]; t.removed != nil && (!exists || !t.equal(old, now)) {
			t.removed(old)
		}
	}
	t.changed()
	return nil
}

// Resync implements cache.ReflectorStore.
func (t *table[T]) Resync() error { return nil }

func (t *table[T]) get(k key) (T, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	object, ok := t.objects[k]
	return object, ok
}

func (t *table[T]) all() []T {
	t.mu.Lock()
	defer t.mu.Unlock()
	objects := make([]T, 0, len(t.objects))
	for _, object := range t.objects {
		objects = append(objects, object)
	}
	return objects
}
