package follow

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/application-grid/application-grid/internal/testkit/upstreamtest"
	"github.com/application-grid/application-grid/pkg/storage/wire"
)

func TestMain(m *testing.M) {
	// Sources say why they fail, and here they do all the time.
	klog.SetLogger(logr.Discard())
	os.Exit(m.Run())
}

// hand answers a request in the place of the API, or has it answered by it.
type hand func(w http.ResponseWriter, r *http.Request, api http.Handler)

func refuseConnection(http.ResponseWriter, *http.Request, http.Handler) { panic(http.ErrAbortHandler) }

// status answers with an error, as kube-apiserver writes it.
func status(code int, reason metav1.StatusReason) hand {
	return func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		fmt.Fprintf(w,
			`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":%q,"message":"on purpose","code":%d}`,
			reason, code)
	}
}

// watches answers watches, and has all else answered by the API; lists is the other way round.
func watches(h hand) hand {
	return func(w http.ResponseWriter, r *http.Request, api http.Handler) {
		if isWatch(r) {
			h(w, r, api)
		} else {
			api.ServeHTTP(w, r)
		}
	}
}

func lists(h hand) hand {
	return func(w http.ResponseWriter, r *http.Request, api http.Handler) {
		if isWatch(r) {
			api.ServeHTTP(w, r)
		} else {
			h(w, r, api)
		}
	}
}

func isWatch(r *http.Request) bool { return r.URL.Query().Get("watch") == "true" }

// world is a Group in a bubble, on an API whose answers a test changes.
type world struct {
	t     *testing.T
	api   *upstreamtest.API
	group *Group
	stop  context.CancelFunc
	done  chan struct{}

	mu       sync.Mutex
	began    time.Time
	hands    map[string]hand            // by resource; guarded by mu
	attempts map[string][]time.Duration // when which resource was asked for; guarded by mu
	said     []string                   // what sinks and barrier were called with, in order; guarded by mu
	cut      chan struct{}              // closed to break all watches; guarded by mu
}

// inWorld runs a test in a bubble, at the same time as others.
func inWorld(t *testing.T, test func(*world)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := &world{
			t: t, api: upstreamtest.New(), began: time.Now(), done: make(chan struct{}),
			hands: map[string]hand{}, attempts: map[string][]time.Duration{}, cut: make(chan struct{}),
		}
		w.api.Put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node0"}})
		w.api.Put(service("s"))
		w.api.Put(slice("s-1"))
		var err error
		w.group, err = NewGroup(&rest.Config{
			Host: "http://upstream.example", Transport: upstreamtest.Memory{Handler: w}, QPS: -1,
			UserAgent: "tester/v1 (linux)",
		}, w)
		if err != nil {
			t.Fatal(err)
		}
		test(w)
		w.end()
	})
}

// run follows what is started.
func (w *world) run() {
	var ctx context.Context
	ctx, w.stop = context.WithCancel(context.Background())
	go func() {
		defer close(w.done)
		w.group.Run(ctx)
	}()
	synctest.Wait()
}

func (w *world) end() {
	if w.stop == nil {
		return
	}
	w.stop()
	<-w.done
	w.stop = nil
	synctest.Wait()
}

func service(name string) *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
}

func slice(name string) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
}

// clientKey is the context key of the context that ends when the client goes.
type clientKey struct{}

// ServeHTTP implements http.Handler.
func (w *world) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	resource := r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]
	w.mu.Lock()
	w.attempts[resource] = append(w.attempts[resource], time.Since(w.began))
	hand, cut := w.hands[resource], w.cut
	w.mu.Unlock()
	ctx, cancel := context.WithCancel(context.WithValue(r.Context(), clientKey{}, r.Context()))
	defer cancel()
	var broken atomic.Bool
	if seconds, err := strconv.Atoi(r.URL.Query().Get("timeoutSeconds")); err == nil && isWatch(r) {
		go func() {
			select {
			case <-time.After(time.Duration(seconds) * time.Second):
				cancel()
			case <-cut:
				broken.Store(true)
				cancel()
			case <-ctx.Done():
			}
		}()
	}
	r = r.WithContext(ctx)
	if hand != nil {
		hand(rw, r, w.api)
	} else {
		w.api.ServeHTTP(rw, r)
	}
	if broken.Load() {
		panic(http.ErrAbortHandler)
	}
}

// answer lets a resource be answered by a hand; nil for the API.
func (w *world) answer(h hand, resources ...string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, resource := range resources {
		w.hands[resource] = h
	}
}

// breakWatches breaks all that are open.
func (w *world) breakWatches() {
	w.mu.Lock()
	close(w.cut)
	w.cut = make(chan struct{})
	w.mu.Unlock()
	synctest.Wait()
}

// asked is when a resource was asked for since a moment.
func (w *world) asked(resource string, since time.Duration) []time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(w.attempts[resource]), func(at time.Duration) bool { return at < since })
}

func (w *world) now() time.Duration { return time.Since(w.began) }

func (w *world) say(text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.said = append(w.said, text)
}

// heard is what was said since the last call.
func (w *world) heard() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	said := strings.Join(w.said, ", ")
	w.said = nil
	return said
}

// Hold implements Barrier.
func (w *world) Hold() { w.say("hold") }

// Release implements Barrier.
func (w *world) Release() { w.say("release") }

// sink notes what it is called with.
type sink struct {
	w    *world
	name string
}

func (s sink) Apply(o *wire.Object)       { s.w.say(s.name + "+" + o.Name) }
func (s sink) Remove(_, name string)      { s.w.say(s.name + "-" + name) }
func (s sink) Replace(all []*wire.Object) { s.w.say(fmt.Sprintf("%s=%d", s.name, len(all))) }
func (s sink) SetAbsent()                 { s.w.say(s.name + " absent") }
func (s sink) SetForbidden()              { s.w.say(s.name + " forbidden") }

var resources = map[string]schema.GroupVersionResource{
	"nodes":          corev1.SchemeGroupVersion.WithResource("nodes"),
	"services":       corev1.SchemeGroupVersion.WithResource("services"),
	"endpoints":      corev1.SchemeGroupVersion.WithResource("endpoints"),
	"endpointslices": discoveryv1.SchemeGroupVersion.WithResource("endpointslices"),
}

// add makes and starts a source, named like its resource.
func (w *world) add(resource string, change func(*Options)) *Source {
	w.t.Helper()
	options := Options{Name: resource, Resource: resources[resource], Sink: sink{w, resource}}
	if change != nil {
		change(&options)
	}
	s, err := w.group.Add(options)
	if err != nil {
		w.t.Fatal(err)
	}
	s.Start()
	return s
}

// followed adds a source, and lets it be followed for a while.
func (w *world) followed(resource string) *Source {
	w.t.Helper()
	s := w.add(resource, nil)
	w.run()
	w.sleep(10 * time.Second)
	w.heard()
	return s
}

func optional(o *Options) { o.Optional = true }

// sleep lets virtual time pass.
func (w *world) sleep(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// until waits until something was said.
func (w *world) until(what string) {
	w.t.Helper()
	for range 1200 {
		w.mu.Lock()
		found := slices.Contains(w.said, what)
		w.mu.Unlock()
		if found {
			return
		}
		w.sleep(50 * time.Millisecond)
	}
	w.t.Fatalf("after %s: %q was not heard within a minute", w.now(), what)
}

func (w *world) expect(want string) {
	w.t.Helper()
	if got := w.heard(); got != want {
		w.t.Errorf("after %s: heard %q, want %q", w.now(), got, want)
	}
}
