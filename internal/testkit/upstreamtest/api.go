package upstreamtest

import (
	"cmp"
	"context"
	"errors"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/watch"
)

// Behaviour is how an API differs from a kube-apiserver. The zero Behaviour does not.
type Behaviour struct {
	// NoListRevision leaves the resourceVersion out of lists.
	NoListRevision bool
	// JSONOnly answers in JSON, whatever the client accepts.
	JSONOnly bool
	// WholeObjects ignores requests for metadata only.
	WholeObjects bool
	// Absent resources are answered 404.
	Absent []string
	// PageSize, if not 0, is the most items of one list.
	PageSize int
	// Failing requests are answered with this code, if it is not 0.
	Failing int
	// Bookmarks, if not 0, is how often a watch that allows bookmarks gets one.
	Bookmarks time.Duration
	// Wild events are written to every watch as it starts.
	Wild []watch.Event
}

// Request is one that an API got.
type Request struct {
	Method, Path string
	Query        map[string][]string
	Header       http.Header
	Body         string
}

// API is an API server. It implements http.Handler.
type API struct {
	// Other answers what is not for one of the resources in the API; nil answers 200 with an empty object.
	Other http.Handler

	mu        sync.Mutex
	behaviour Behaviour
	requests  []Request
	revision  uint64
	// objects are sorted by resource and name.
	objects []stored
	log     []event
	// floor is the oldest revision that a watch may start from.
	floor uint64
	// changed is closed, and replaced, after an event.
	changed chan struct{}
	// cut is closed, and replaced, to end all watches.
	cut chan struct{}
	// lagging has what the watch cache behind Lagging has of a resource, as far as it does not have everything.
	lagging map[string]*Backup
}

type stored struct {
	resource string
	object   runtime.Object
}

type event struct {
	resource string
	revision uint64
	watch.Event
}

// New makes an API with nothing in it.
func New() *API {
	return &API{
		revision: 100, changed: make(chan struct{}), cut: make(chan struct{}), lagging: make(map[string]*Backup),
	}
}

// Behave changes the behaviour from the next request on.
func (a *API) Behave(b Behaviour) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.behaviour = b
}

// Requests returns all requests so far.
func (a *API) Requests() []Request {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.requests)
}

// Put creates or updates an object.
func (a *API) Put(o runtime.Object) {
	a.mu.Lock()
	defer a.mu.Unlock()
	resource, o := resourceOf(o), o.DeepCopyObject()
	a.revision++
	setRevision(o, a.revision)
	if i := a.find(resource, o); i >= 0 {
		a.objects[i].object = o
		a.publish(resource, watch.Modified, o)
		return
	}
	a.objects = append(a.objects, stored{resource, o})
	slices.SortFunc(a.objects, func(x, y stored) int { return strings.Compare(x.key(), y.key()) })
	a.publish(resource, watch.Added, o)
}

// Delete removes an object.
func (a *API) Delete(o runtime.Object) {
	a.mu.Lock()
	defer a.mu.Unlock()
	resource := resourceOf(o)
	i := a.find(resource, o)
	if i < 0 {
		return
	}
	last := a.objects[i].object.DeepCopyObject()
	a.objects = slices.Delete(a.objects, i, i+1)
	a.revision++
	setRevision(last, a.revision)
	a.publish(resource, watch.Deleted, last)
}

// Forget drops the history, so that a watch from before it is answered 410, and ends all watches.
func (a *API) Forget() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.revision++
	a.floor, a.log = a.revision, nil
	renew(&a.cut)
}

// renew closes and replaces a channel.
func renew(c *chan struct{}) {
	close(*c)
	*c = make(chan struct{})
}

// Backup returns what the API server has, for Restore.
func (a *API) Backup() *Backup {
	a.mu.Lock()
	defer a.mu.Unlock()
	return &Backup{a.revision, slices.Clone(a.objects)}
}

// Backup is what an API server had at a time.
type Backup struct {
	revision uint64
	objects  []stored
}

// Restore sets the API server back to what it had, with the revisions of that time, and ends all watches. A watch from
// a revision that it has not reached is silent.
func (a *API) Restore(b *Backup) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.revision, a.objects, a.log, a.floor = b.revision, slices.Clone(b.objects), nil, b.revision
	a.catchUp()
	renew(&a.cut)
}

// Lag stops the watch cache behind Lagging at what there is now of a resource.
func (a *API) Lag(resource string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.lagging[resource] == nil {
		a.lagging[resource] = &Backup{a.revision, slices.Clone(a.objects)}
	}
}

// CatchUp lets the watch cache behind Lagging have everything of some resources, or of all.
func (a *API) CatchUp(resources ...string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.catchUp(resources...)
}

func (a *API) catchUp(resources ...string) {
	maps.DeleteFunc(a.lagging, func(resource string, _ *Backup) bool {
		return len(resources) == 0 || slices.Contains(resources, resource)
	})
	renew(&a.changed)
}

// Lagging is another API server of the same cluster, whose watch cache lags as Lag says. A list that names no
// resourceVersion is answered by etcd all the same. A list from a resourceVersion that the cache has not reached is
// refused; a watch from there is silent until the cache has reached it.
func (a *API) Lagging() http.Handler {
	return server{API: a, lags: true}
}

func (a *API) publish(resource string, eventType watch.EventType, o runtime.Object) {
	a.log = append(a.log, event{resource, a.revision, watch.Event{Type: eventType, Object: o}})
	renew(&a.changed)
}

func (a *API) find(resource string, o runtime.Object) int {
	key := stored{resource, o}.key()
	return slices.IndexFunc(a.objects, func(s stored) bool { return s.key() == key })
}

func (s stored) key() string {
	accessor := accessorOf(s.object)
	return s.resource + "/" + accessor.GetNamespace() + "/" + accessor.GetName()
}

func accessorOf(o runtime.Object) metav1.Object {
	accessor, err := meta.Accessor(o)
	utilruntime.Must(err)
	return accessor
}

func setRevision(o runtime.Object, revision uint64) {
	accessorOf(o).SetResourceVersion(strconv.FormatUint(revision, 10))
}

// ServeHTTP implements http.Handler.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) { server{API: a}.ServeHTTP(w, r) }

// server is one of the API servers of a cluster.
type server struct {
	*API

	lags bool // its watch cache lags as Lag says
}

// begin notes a request, and answers it if it is a probe, or if requests fail.
func (a *API) begin(w http.ResponseWriter, r *http.Request) (behaviour Behaviour, answered bool) {
	body, _ := io.ReadAll(r.Body)
	a.mu.Lock()
	defer a.mu.Unlock()
	probes := strings.HasSuffix(r.URL.Path, "/selfsubjectreviews") // a probe of the Link
	if !probes {
		a.requests = append(a.requests, Request{
			Method: r.Method, Path: r.URL.EscapedPath(), Query: r.URL.Query(),
			Header: r.Header.Clone(), Body: string(body),
		})
	}
	switch {
	case probes: // it is answered as an API server does, and not by something in its place
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(cmp.Or(a.behaviour.Failing, http.StatusCreated))
		_, _ = w.Write([]byte(`{"apiVersion":"v1","kind":"Status"}`))
	case a.behaviour.Failing != 0:
		http.Error(w, "the upstream fails", a.behaviour.Failing)
	}
	return a.behaviour, probes || a.behaviour.Failing != 0
}

func (a server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	behaviour, answered := a.begin(w, r)
	if answered {
		return
	}
	namespace, resource := collectionOf(r.URL.Path)
	switch {
	case resource == "" || r.Method != http.MethodGet:
		if a.Other != nil {
			a.Other.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte("{}\n"))
	case slices.Contains(behaviour.Absent, resource):
		http.NotFound(w, r)
	default:
		named, err := fields.ParseSelector(r.URL.Query().Get("fieldSelector"))
		labelled, otherErr := labels.Parse(r.URL.Query().Get("labelSelector"))
		if err := errors.Join(err, otherErr); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		q := query{
			resource:  resource,
			namespace: namespace,
			fields:    named,
			labels:    labelled,
			encoding:  negotiate(r.Header.Get("Accept"), behaviour),
			behaviour: behaviour,
			lagging:   a.lags,
		}
		if r.URL.Query().Get("watch") == "true" {
			a.watch(w, r, q)
		} else {
			a.list(w, r, q)
		}
	}
}

// query is what a list or watch asks for.
type query struct {
	resource, namespace string
	fields              fields.Selector
	labels              labels.Selector
	encoding            encoding
	behaviour           Behaviour
	lagging             bool
}

func (q query) matches(resource string, o runtime.Object) bool {
	accessor := accessorOf(o)
	return resource == q.resource && q.labels.Matches(labels.Set(accessor.GetLabels())) &&
		(q.namespace == "" || q.namespace == accessor.GetNamespace()) &&
		q.fields.Matches(fields.Set{"metadata.name": accessor.GetName(), "metadata.namespace": accessor.GetNamespace()})
}

func (a *API) list(w http.ResponseWriter, r *http.Request, q query) {
	code, body := a.listed(r, q)
	w.Header().Set("Content-Type", q.encoding.contentType())
	if code != http.StatusOK {
		w.Header().Set("Content-Type", runtime.ContentTypeJSON)
	}
	w.WriteHeader(code)
	_, _ = w.Write(body)
}

// listed returns the answer to a list.
func (a *API) listed(r *http.Request, q query) (code int, body []byte) {
	a.mu.Lock()
	defer a.mu.Unlock()
	var items []runtime.Object
	version := r.URL.Query().Get("resourceVersion")
	revision, objects := a.revision, a.objects
	exact := r.URL.Query().Has("limit") // and a resourceVersion: etcd answers
	if cache := a.lagging[q.resource]; q.lagging && cache != nil && version != "" && !exact {
		revision, objects = cache.revision, cache.objects
	}
	for _, s := range objects {
		if q.matches(s.resource, s.object) {
			items = append(items, s.object)
		}
	}
	asked, _ := strconv.ParseUint(version, 10, 64)
	if asked > revision {
		tooLarge := apierrors.NewTimeoutError("Too large resource version", 0).ErrStatus
		tooLarge.Details.Causes = []metav1.StatusCause{{Type: metav1.CauseTypeResourceVersionTooLarge}}
		return http.StatusGatewayTimeout, encoding{}.object(&tooLarge)
	}
	list := metav1.ListMeta{ResourceVersion: strconv.FormatUint(revision, 10)}
	if q.behaviour.NoListRevision {
		list.ResourceVersion = ""
	}
	if size := q.behaviour.PageSize; size > 0 {
		from, _ := strconv.Atoi(r.URL.Query().Get("continue"))
		items = items[min(from, len(items)):]
		if len(items) > size {
			items = items[:size]
			list.Continue = strconv.Itoa(from + size)
		}
	}
	return http.StatusOK, q.encoding.list(q.resource, list, items)
}

// watch streams events from the requested revision on, until the requested time is over. It accepts sendInitialEvents
// but never sends the bookmark that ends them, like a caching edge proxy.
func (a *API) watch(w http.ResponseWriter, r *http.Request, q query) {
	ctx := r.Context()
	if seconds, err := strconv.Atoi(r.URL.Query().Get("timeoutSeconds")); err == nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(seconds)*time.Second)
		defer cancel()
	}
	from, _ := strconv.ParseUint(r.URL.Query().Get("resourceVersion"), 10, 64)
	a.mu.Lock()
	cut := a.cut
	expired := from < a.floor
	a.mu.Unlock()
	w.Header().Set("Content-Type", q.encoding.contentType())
	w.WriteHeader(http.StatusOK)
	flusher := http.NewResponseController(w)
	if expired {
		gone := apierrors.NewResourceExpired("too old resource version")
		_, _ = w.Write(q.encoding.event(watch.Event{Type: watch.Error, Object: &gone.ErrStatus}))
		return
	}
	for _, e := range q.behaviour.Wild {
		_, _ = w.Write(q.encoding.event(e))
	}
	var bookmark <-chan time.Time
	if q.behaviour.Bookmarks > 0 && r.URL.Query().Get("allowWatchBookmarks") == "true" {
		bookmark = time.Tick(q.behaviour.Bookmarks)
	}
	for {
		a.mu.Lock()
		changed, revision := a.changed, a.revision
		if cache := a.lagging[q.resource]; q.lagging && cache != nil {
			revision = cache.revision
		}
		var events []byte
		for _, e := range a.log {
			if e.revision > from && e.revision <= revision && q.matches(e.resource, e.Object) {
				events = append(events, q.encoding.event(e.Event)...)
			}
		}
		silent := from > revision
		from = max(from, revision)
		ended := cut != a.cut
		a.mu.Unlock()
		if ended {
			return
		}
		if len(events) > 0 {
			_, _ = w.Write(events)
		}
		if err := flusher.Flush(); err != nil {
			return
		}
		select {
		case <-changed:
		case <-bookmark:
			if silent {
				continue
			}
			o := newObject(q.resource, "")
			setRevision(o, from)
			_, _ = w.Write(q.encoding.event(watch.Event{Type: watch.Bookmark, Object: o}))
		case <-cut:
			return
		case <-ctx.Done():
			return
		}
	}
}
