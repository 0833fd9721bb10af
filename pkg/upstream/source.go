package upstream

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/application-grid/application-grid/pkg/apiclient"
	"github.com/application-grid/application-grid/pkg/storage/facts"
	"github.com/application-grid/application-grid/pkg/wire"
)

// source is one stream of upstream state into one Input of the Store.
type source struct {
	// name is what the source is called in metrics, logs and readiness reasons.
	name     string
	resource schema.GroupVersionResource
	// namespace and fields narrow what is asked for.
	namespace string
	fields    fields.Selector
	// metadataOnly asks for PartialObjectMetadata.
	metadataOnly bool
	// optional is what SourceState.Optional says.
	optional bool
	client   rest.Interface
	input    *facts.Input
	clock    func() time.Time

	start sync.Once
	// demanded is set for a source that is to be followed: from the start, or once it was asked for. Guarded by the
	// Upstream's lock.
	demanded bool

	mu    sync.Mutex
	state SourceState
	// sawObject is set between an event and the report of its revision: a bookmark is reported without one.
	sawObject bool
	// bookmarks is set once the upstream was seen to send them.
	bookmarks bool
}

// SourceState is what is known of one source.
type SourceState struct {
	Name string
	// Optional is set for a source that an upstream may lack without harm (legacy Endpoints).
	Optional bool
	// Started is false for a source that no client has asked for yet.
	Started bool
	// Synced is set with the first complete list.
	Synced bool
	// Absent is set while the upstream answers that it does not serve the resource.
	Absent bool
	// Err is why the last list or watch failed; nil while the stream is up.
	Err error
	// LastContact is when the upstream was last heard of on this source: a list, an event or a bookmark.
	LastContact time.Time
	// ResourceVersion is the upstream's, as far as the source has followed.
	ResourceVersion string
	// Lists counts the complete lists.
	Lists uint64
}

func (s *source) update(change func(*SourceState)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.state)
}

func (s *source) snapshot() SourceState {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state
}

// reconnectBackoff is the pause after a list or watch that failed: up to 15 to 30 s. A site is back soon after its
// link is, and a fleet's wrappers do not return to a restarted cloud at one moment. (The reflector begins it anew
// every 2 minutes.)
func reconnectBackoff() *wait.Backoff {
	return &wait.Backoff{Duration: 500 * time.Millisecond, Factor: 2, Jitter: 1, Steps: 6, Cap: 15 * time.Second}
}

// run follows the upstream until ctx is done. It never gives up.
func (s *source) run(ctx context.Context) {
	s.update(func(state *SourceState) { state.Started = true })
	logger := klog.FromContext(ctx).WithValues("source", s.name)
	reflector := cache.NewReflectorWithOptions(s, nil, s, cache.ReflectorOptions{
		Logger:          &logger,
		Name:            s.name,
		TypeDescription: s.name,
		Backoff:         reconnectBackoff(),
	})
	reflector.RunWithContext(klog.NewContext(ctx, logger))
}

// IsWatchListSemanticsUnSupported makes the reflector use LIST + WATCH; see the package comment.
func (s *source) IsWatchListSemanticsUnSupported() bool { return true }

func (s *source) request(options *metav1.ListOptions) *rest.Request {
	if s.fields != nil {
		options.FieldSelector = s.fields.String()
	}
	request := s.client.Get().
		NamespaceIfScoped(s.namespace, s.namespace != "").
		Resource(s.resource.Resource).
		SpecificallyVersionedParams(options, parameterCodec, schema.GroupVersion{Version: "v1"})
	if s.metadataOnly {
		request.SetHeader("Accept",
			"application/vnd.kubernetes.protobuf;as=PartialObjectMetadata"+listSuffix(options)+";g=meta.k8s.io;v=v1, "+
				"application/json;as=PartialObjectMetadata"+listSuffix(options)+";g=meta.k8s.io;v=v1, "+
				runtime.ContentTypeProtobuf+", "+runtime.ContentTypeJSON)
	}
	return request
}

func listSuffix(options *metav1.ListOptions) string {
	if options.Watch {
		return ""
	}
	return "List"
}

// ListWithContext implements cache.ListerWithContext.
func (s *source) ListWithContext(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	listed, err := s.request(&options).Do(ctx).Get()
	// What was served once is not gone for good: that is a gateway that has lost its API server.
	if apierrors.IsNotFound(err) && (s.optional || !s.snapshot().Synced) {
		s.input.SetAbsent()
		s.update(func(state *SourceState) { state.Absent = true })
	}
	s.noteResult(err)
	if err != nil {
		return nil, err
	}
	return listed, nil
}

// WatchWithContext implements cache.WatcherWithContext.
func (s *source) WatchWithContext(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	options.Watch = true
	w, err := s.request(&options).Watch(ctx)
	s.noteResult(err)
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

func (s *source) noteResult(err error) {
	s.update(func(state *SourceState) {
		state.Err = err
		if err == nil {
			state.LastContact = s.clock()
		}
	})
}

// silence is how long the body of a response to this source may keep silent.
func (s *source) silence(r *http.Request) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return apiclient.SilenceIn(r, s.bookmarks)
}

// errNoName is told for an object that cannot be kept because nothing could find it again.
var errNoName = errors.New("the upstream sent an object without a name")

func wireObject(obj any) (*wire.Object, error) {
	o, ok := obj.(*object)
	if !ok {
		return nil, fmt.Errorf("the upstream sent a %T", obj)
	}
	if o.Name == "" {
		return nil, errNoName
	}
	return o.wire, nil
}

// Add implements cache.ReflectorStore.
func (s *source) Add(obj any) error {
	o, err := wireObject(obj)
	if err != nil {
		return err
	}
	s.noteObject()
	s.input.Apply(o)
	return nil
}

func (s *source) noteObject() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sawObject = true
}

// Update implements cache.ReflectorStore.
func (s *source) Update(obj any) error { return s.Add(obj) }

// Delete implements cache.ReflectorStore.
func (s *source) Delete(obj any) error {
	o, err := wireObject(obj)
	if err != nil {
		return err
	}
	s.noteObject()
	s.input.Remove(o.Namespace, o.Name)
	return nil
}

// Replace implements cache.ReflectorStore.
func (s *source) Replace(listed []any, resourceVersion string) error {
	objects := make([]*wire.Object, 0, len(listed))
	for _, obj := range listed {
		o, err := wireObject(obj)
		if err != nil {
			// The request succeeded; it is what it brought that keeps the source from being synced.
			s.noteResult(err)
			return err
		}
		objects = append(objects, o)
	}
	s.input.Replace(objects)
	s.update(func(state *SourceState) {
		state.Synced, state.Absent = true, false
		state.ResourceVersion = resourceVersion
		state.Lists++
	})
	return nil
}

// Resync implements cache.ReflectorStore. The Store needs none.
func (s *source) Resync() error { return nil }

// UpdateResourceVersion implements cache.ResourceVersionUpdater: it is called for every event and bookmark.
func (s *source) UpdateResourceVersion(resourceVersion string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state.ResourceVersion = resourceVersion
	s.state.LastContact = s.clock()
	s.bookmarks = s.bookmarks || !s.sawObject
	s.sawObject = false
}
