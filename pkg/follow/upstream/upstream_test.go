package upstream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/application-grid/application-grid/internal/testkit/await"
	"github.com/application-grid/application-grid/internal/testkit/storagetest"
	"github.com/application-grid/application-grid/internal/testkit/upstreamtest"
	"github.com/application-grid/application-grid/internal/testkit/wiretest"
	"github.com/application-grid/application-grid/pkg/follow"
	"github.com/application-grid/application-grid/pkg/storage/served"
)

// soon is what tests wait with for another goroutine.
var soon = await.Patience{Within: patience, Between: 5 * time.Millisecond}

// patience is how long a test waits for what must happen. Reflectors back off for up to some seconds.
const patience = 20 * time.Second

func TestMain(m *testing.M) {
	// Reflectors say a lot about upstreams that misbehave, as they do here.
	klog.SetLogger(logr.Discard())
	os.Exit(m.Run())
}

// follower is an Upstream at work, and the Store that it fills.
type follower struct {
	t        *testing.T
	api      *upstreamtest.API
	store    *storagetest.Node
	upstream *Upstream
}

// start runs an Upstream against the address until the test ends.
func start(t *testing.T, api *upstreamtest.API, config *rest.Config) *follower {
	t.Helper()
	f := &follower{t: t, api: api, store: storagetest.New(storagetest.Options{NodeName: "node0"})}
	var err error
	f.upstream, err = New(Options{
		Config: config, Facts: f.store.Facts, NodeName: "node0", FollowKubernetesEndpoints: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		f.upstream.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		select {
		case <-done:
		case <-time.After(patience):
			t.Error("Run does not return when its context ends")
		}
	})
	return f
}

// followNew has an API of its own, filled with a small cluster.
func followNew(t *testing.T, b upstreamtest.Behaviour) *follower {
	t.Helper()
	api := smallCluster()
	api.Behave(b)
	return start(t, api, &rest.Config{Host: serve(t, api)})
}

func serve(t *testing.T, handler http.Handler) string {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	return server.URL
}

// smallCluster has two nodes, three Services and a slice of one of them.
func smallCluster() *upstreamtest.API {
	api := upstreamtest.New()
	api.Put(node("node0", "a"))
	api.Put(node("node1", "b"))
	for _, name := range []string{"a", "b", "c"} {
		api.Put(service(name))
	}
	api.Put(wiretest.SliceOf("default/a-1", "a", "node1"))
	api.Put(&corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kubernetes"}})
	return api
}

func node(name, zone string) *corev1.Node {
	n := wiretest.NodeOf(name, zone)
	n.Status.Images = []corev1.ContainerImage{{Names: []string{"large"}}}
	return n
}

func service(name string) *corev1.Service {
	s := wiretest.ServiceOf("default/"+name, "")
	s.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "m", Operation: metav1.ManagedFieldsOperationApply}}
	return s
}

// names are those of what the Store shows of a resource, or why it shows nothing.
func (f *follower) names(r *served.Resource) string {
	objects, _, err := f.store.History.List(r, "", 0)
	if err != nil {
		return err.Error()
	}
	var names []string
	for _, o := range objects {
		names = append(names, o.Name)
	}
	return strings.Join(names, ",")
}

func (f *follower) expect(r *served.Resource, want string) {
	f.t.Helper()
	soon.UntilQuiet(f.t, func() string {
		if got := f.names(r); got != want {
			return fmt.Sprintf("%s: got %q, want %q; %+v", r.Resource, got, want, f.upstream.States())
		}
		return ""
	})
}

func (f *follower) expectSynced() {
	f.t.Helper()
	f.expect(served.Services, "a,b,c")
	f.expect(served.EndpointSlices, "a-1")
	f.expect(served.Nodes, "node0")
	soon.UntilQuiet(f.t, func() string {
		if n := f.store.NodeCount(); n != 2 {
			return fmt.Sprintf("%d nodes are known", n)
		}
		return ""
	})
}

func (f *follower) state(name string) follow.State {
	f.t.Helper()
	for _, s := range f.upstream.States() {
		if s.Name == name {
			return s
		}
	}
	f.t.Fatalf("there is no source %s", name)
	return follow.State{}
}

// expectState waits until the state of a source is so.
func (f *follower) expectState(source string, is func(follow.State) bool) {
	f.t.Helper()
	soon.UntilQuiet(f.t, func() string {
		if s := f.state(source); !is(s) {
			return fmt.Sprintf("%+v", s)
		}
		return ""
	})
}

// events are what the Store's log holds of a resource after a revision.
func (f *follower) events(r *served.Resource, after uint64) string {
	f.t.Helper()
	cursor, err := f.store.History.Watch(r, after)
	if err != nil {
		return err.Error()
	}
	events, _, err := cursor.Next(1000)
	if err != nil {
		return err.Error()
	}
	var all []string
	for _, e := range events {
		all = append(all, string(e.Type)+" "+e.Object.Name)
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

// TestRequests: protobuf is preferred, of other nodes only metadata is asked for, of the own node all, and legacy
// Endpoints only on demand.
func TestRequests(t *testing.T) {
	t.Parallel()
	f := followNew(t, upstreamtest.Behaviour{})
	f.expectSynced()
	var all, own, kubernetes bool
	for _, r := range f.api.Requests() {
		accept, selector := r.Header.Get("Accept"), strings.Join(r.Query["fieldSelector"], "")
		if !strings.HasPrefix(accept, runtime.ContentTypeProtobuf) ||
			!strings.Contains(accept, runtime.ContentTypeJSON) {
			t.Errorf("%s: Accept %q", r.Path, accept)
		}
		// Caching edge proxies accept it, and never send the bookmark that ends the initial events.
		if r.Query["sendInitialEvents"] != nil {
			t.Errorf("%s: initial events are asked for: %v", r.Path, r.Query)
		}
		metadataOnly := strings.Contains(accept, "as=PartialObjectMetadata")
		switch {
		case r.Path == "/api/v1/nodes" && selector == "":
			all = true
			if !metadataOnly {
				t.Errorf("all nodes are asked for whole: %q", accept)
			}
		case r.Path == "/api/v1/nodes":
			own = true
			if metadataOnly || selector != "metadata.name=node0" {
				t.Errorf("own node: Accept %q, fieldSelector %q", accept, selector)
			}
		case r.Path == "/api/v1/namespaces/default/endpoints" && selector == "metadata.name=kubernetes":
			kubernetes = true
		case strings.Contains(r.Path, "endpoints") && !strings.Contains(r.Path, "endpointslices"):
			t.Errorf("Endpoints are asked for without demand: %s", r.Path)
		}
	}
	if !all || !own || !kubernetes {
		t.Errorf("all nodes asked for: %v, own: %v, the Endpoints kubernetes: %v", all, own, kubernetes)
	}
	if s := f.state("endpoints"); s.Started {
		t.Error("the source of Endpoints says that it is started")
	}
}

// TestManagedFieldsAreDroppedAtTheDoor: they are half of an object and no client of the wrapper reads them.
func TestManagedFieldsAreDroppedAtTheDoor(t *testing.T) {
	t.Parallel()
	for _, jsonOnly := range []bool{false, true} {
		f := followNew(t, upstreamtest.Behaviour{JSONOnly: jsonOnly})
		f.expectSynced()
		o, err := f.store.History.Get(served.Services, types.NamespacedName{Namespace: "default", Name: "a"}, 0)
		if err != nil || o == nil {
			t.Fatalf("got %v, %v", o, err)
		}
		typed, err := o.Decode()
		if err != nil {
			t.Fatal(err)
		}
		if s := typed.(*corev1.Service); s.ManagedFields != nil || s.Name != "a" {
			t.Errorf("got %+v", s.ObjectMeta)
		}
	}
}

// TestExpiredWatchRelistsAndOnlyDifferencesAreEvents: clients must not see the relist.
func TestExpiredWatchRelistsAndOnlyDifferencesAreEvents(t *testing.T) {
	t.Parallel()
	f := followNew(t, upstreamtest.Behaviour{})
	f.expectSynced()
	before := f.store.History.Revision()
	lists := f.state("services").Lists
	// Failing keeps the watches from coming back before the changes are made and the history is gone.
	f.api.Behave(upstreamtest.Behaviour{Failing: http.StatusServiceUnavailable})
	f.api.Forget()
	f.api.Delete(service("c"))
	changed := service("b")
	changed.Spec.ClusterIP = "10.0.0.9"
	f.api.Put(changed)
	f.api.Put(service("d"))
	f.api.Forget()
	f.api.Behave(upstreamtest.Behaviour{})
	f.expect(served.Services, "a,b,d")
	f.expectState("services", func(s follow.State) bool { return s.Lists > lists })
	if got, want := f.events(served.Services, before), "ADDED d, DELETED c, MODIFIED b"; got != want {
		t.Errorf("got events %q, want %q", got, want)
	}
	f.expectState("endpointslices", func(s follow.State) bool { return s.Err == nil && s.Lists >= 2 })
	if got := f.events(served.EndpointSlices, before); got != "" {
		t.Errorf("nothing of the slices changed, got events %q", got)
	}
}

// TestAbsentResource: 404 is "not served", and the rest works; the resource is taken up when it comes.
func TestAbsentResource(t *testing.T) {
	t.Parallel()
	f := followNew(t, upstreamtest.Behaviour{Absent: []string{"endpointslices"}})
	f.expect(served.Services, "a,b,c")
	f.expect(served.EndpointSlices, served.ErrAbsent.Error())
	// The state follows what is served.
	f.expectState("endpointslices", func(s follow.State) bool { return s.Absent && s.Err != nil })
	f.api.Behave(upstreamtest.Behaviour{})
	f.expect(served.EndpointSlices, "a-1")
	f.expectState("endpointslices", func(s follow.State) bool { return !s.Absent && s.Synced })
}

// TestNamelessObjectsDoNotBreakTheStream: bookmarks have no name by nature; an event without one is passed over.
func TestNamelessObjectsDoNotBreakTheStream(t *testing.T) {
	t.Parallel()
	for _, jsonOnly := range []bool{false, true} {
		bookmark := &corev1.Service{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "1000"}}
		f := followNew(t, upstreamtest.Behaviour{JSONOnly: jsonOnly, Wild: []watch.Event{
			{Type: watch.Added, Object: &corev1.Service{}},
			{Type: watch.Deleted, Object: &corev1.Service{}},
			{Type: watch.Bookmark, Object: bookmark},
		}})
		f.expectSynced()
		f.api.Put(service("d"))
		f.expect(served.Services, "a,b,c,d")
		if lists := f.state("services").Lists; lists != 1 {
			t.Errorf("the stream was broken: %d lists", lists)
		}
	}
}

// TestBookmarksAreContact: they move the state on while nothing happens.
func TestBookmarksAreContact(t *testing.T) {
	t.Parallel()
	f := followNew(t, upstreamtest.Behaviour{Wild: []watch.Event{
		{Type: watch.Bookmark, Object: &corev1.Service{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "4711"}}},
	}})
	f.expectSynced()
	f.expectState("services", func(s follow.State) bool {
		return s.ResourceVersion == "4711" && !s.LastContact.IsZero()
	})
}

// TestBadConfiguration is reported at the start.
func TestBadConfiguration(t *testing.T) {
	for name, config := range map[string]*rest.Config{
		"CA that is none": {
			Host: "https://127.0.0.1:1", TLSClientConfig: rest.TLSClientConfig{CAData: []byte("nonsense")},
		},
		"file that is not there": {
			Host:            "https://127.0.0.1:1",
			TLSClientConfig: rest.TLSClientConfig{CertFile: "/nonexistent", KeyFile: "/nonexistent"},
		},
		"address that is none": {Host: "http://%zz"},
	} {
		if _, err := New(Options{Config: config, Facts: storagetest.New(storagetest.Options{}).Facts}); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// TestDemandOutsideOfRun does nothing, and does not use up the start.
func TestDemandOutsideOfRun(t *testing.T) {
	api := smallCluster()
	u, err := New(Options{
		Config: &rest.Config{Host: serve(t, api)}, Facts: storagetest.New(storagetest.Options{}).Facts,
	})
	if err != nil {
		t.Fatal(err)
	}
	u.Demand(served.Endpoints)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		u.Run(ctx)
	}()
	started := func() bool {
		return slices.ContainsFunc(u.States(), func(s follow.State) bool { return s.Name == "endpoints" && s.Started })
	}
	soon.UntilQuiet(t, func() string {
		u.Demand(served.Endpoints)
		if !started() {
			return "Endpoints are not followed"
		}
		return ""
	})
	cancel()
	<-done
	u.Demand(served.Endpoints)
	for _, s := range u.States() {
		if s.Name == "node" {
			t.Error("without a node's name no Node is to be asked for")
		}
	}
}

// TestNamelessObjectInAList: the list is not taken for complete, and the state tells why.
func TestNamelessObjectInAList(t *testing.T) {
	t.Parallel()
	api := smallCluster()
	api.Put(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default"}})
	f := start(t, api, &rest.Config{Host: serve(t, api)})
	f.expectState("services", func(s follow.State) bool { return !s.Synced && errors.Is(s.Err, follow.ErrNoName) })
	f.expect(served.Services, served.ErrNotReady.Error())
	api.Delete(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default"}})
	f.expectSynced()
}

// TestAnswers tells an upstream that lets the wrapper read from one that does not, or has not said a word yet.
func TestAnswers(t *testing.T) {
	t.Parallel()
	stop := make(chan struct{})
	t.Cleanup(func() { close(stop) })
	for name, test := range map[string]struct {
		host func() string
		want bool
	}{
		"one that answers":             {func() string { return serve(t, smallCluster()) }, true},
		"one that refuses connections": {func() string { return "http://127.0.0.1:1" }, false},
		"a gateway without an API server": {
			func() string { return serve(t, failing(http.StatusBadGateway)) }, false,
		},
		"one that says nothing": {func() string {
			return serve(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				select {
				case <-r.Context().Done():
				case <-stop:
				}
			}))
		}, false},
		// The first list of a large cluster over a slow link has begun to arrive.
		"one that says it slowly": {func() string {
			return serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", runtime.ContentTypeJSON)
				_, _ = io.WriteString(w, `{"kind":"List",`)
				_ = http.NewResponseController(w).Flush()
				select {
				case <-r.Context().Done():
				case <-stop:
				}
			}))
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			f := start(t, upstreamtest.New(), &rest.Config{Host: test.host()})
			await.Patience{Within: 5 * time.Second, Between: 5 * time.Millisecond}.UntilQuiet(t, func() string {
				if !f.state("services").Started {
					return "nothing was asked of it yet"
				}
				if answers := f.upstream.Answers(); answers != test.want {
					return fmt.Sprintf("answers: %v; %+v", answers, f.upstream.States())
				}
				return ""
			})
		})
	}
}

func failing(code int) http.Handler {
	api := smallCluster()
	api.Behave(upstreamtest.Behaviour{Failing: code})
	return api
}

// TestDismiss ends what Demand began, and the next Demand begins it again: what happened meanwhile is there.
func TestDismiss(t *testing.T) {
	t.Parallel()
	f := followNew(t, upstreamtest.Behaviour{})
	f.expectSynced()
	for range 3 {
		f.upstream.Demand(served.Endpoints)
	}
	f.expect(served.Endpoints, "kubernetes")
	f.upstream.Dismiss(served.Endpoints)
	f.store.Forget(served.Endpoints)
	f.expectState("endpoints", func(s follow.State) bool { return !s.Started && !s.Synced })
	f.api.Put(&corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "meanwhile"}})
	f.expect(served.Endpoints, served.ErrNotReady.Error())
	f.upstream.Demand(served.Endpoints)
	f.expect(served.Endpoints, "kubernetes,meanwhile")
	f.upstream.Demand(served.Services)
	f.upstream.Dismiss(served.Services) // a source that is needed is not ended
	if s := f.state("services"); !s.Started {
		t.Error("a source that is needed was ended")
	}
}
