package serve

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/application-grid/application-grid/internal/testkit/storagetest"
)

const watchList = "allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan&sendInitialEvents=true"

var bothEncodings = []string{asJSON, asProtobuf}

// TestWatchStarts tells how the parameters decide what a watch begins with.
func TestWatchStarts(t *testing.T) {
	const now = "NOW"
	tests := []struct {
		query string
		want  []string
	}{
		{"", []string{"ADDED a", "ADDED new"}},
		{"resourceVersion=0", []string{"ADDED a", "ADDED new"}},
		{"resourceVersion=" + now, []string{"ADDED new"}},
		{
			"resourceVersion=" + now + "&resourceVersionMatch=NotOlderThan&sendInitialEvents=false",
			[]string{"ADDED new"},
		},
		{"resourceVersionMatch=NotOlderThan&sendInitialEvents=false", []string{"ADDED new"}},
		{"resourceVersion=0&resourceVersionMatch=NotOlderThan&sendInitialEvents=false", []string{"ADDED new"}},
		{"resourceVersion=" + now + "&" + watchList, []string{"ADDED a", "BOOKMARK", "ADDED new"}},
		{"resourceVersion=0&" + watchList, []string{"ADDED a", "BOOKMARK", "ADDED new"}},
	}
	for _, test := range tests {
		for _, accept := range bothEncodings {
			t.Run(test.query+" "+accept, func(t *testing.T) {
				c := newSyncedCluster(t, service("a"))
				query := strings.ReplaceAll(test.query, now, strconv.FormatUint(c.store.History.Revision(), 10))
				// The headers of a watch arrive at once, so what is applied after them is after the start.
				w := c.watch(servicesPath, query, accept)
				c.apply(service("new"))
				w.expect(test.want...)
			})
		}
	}
}

func TestWatchByPathAndNamespace(t *testing.T) {
	other := service("s")
	other.Namespace, other.UID = "other", "other"
	c := newSyncedCluster(t, service("s"), service("t"), other)
	for path, want := range map[string][]string{
		"/api/v1/watch/services":                       {"ADDED s", "ADDED t", "ADDED s"},
		"/api/v1/watch/namespaces/default/services/t":  {"ADDED t"},
		"/api/v1/namespaces/other/services":            {"ADDED s"},
		"/api/v1/namespaces/other/services/?watch=1&x": {"ADDED s"},
	} {
		path, _, _ = strings.Cut(path, "?")
		c.watch(path, "timeoutSeconds=1", asProtobuf).expect(want...)
	}
}

func TestWatchEndsAtItsTimeout(t *testing.T) {
	for _, accept := range bothEncodings {
		t.Run(accept, func(t *testing.T) {
			t.Parallel()
			c := newSyncedCluster(t, service("s"))
			start := time.Now()
			w := c.watch(servicesPath, "timeoutSeconds=1", accept)
			w.expect("ADDED s")
			w.expectEnd()
			if took := time.Since(start); took < time.Second {
				t.Errorf("ended after %s", took)
			}
			// A client that takes bookmarks learns how far it has come.
			w = c.watch(servicesPath, "timeoutSeconds=1&allowWatchBookmarks=true", accept)
			w.expect("ADDED s", "BOOKMARK")
			w.expectEnd()
		})
	}
}

// TestBookmarksMoveWithOtherResources: a client of a quiet resource must be able to resume after the others
// have filled the revisions between.
func TestBookmarksMoveWithOtherResources(t *testing.T) {
	for _, accept := range bothEncodings {
		t.Run(accept, func(t *testing.T) {
			c := newCluster(t, func(_ *storagetest.Options, s *Server) { s.BookmarkInterval = 10 * time.Millisecond })
			c.sync(service("s"))
			w := c.watch(slicesPath, "allowWatchBookmarks=true", accept)
			w.expect("BOOKMARK")
			silent := c.watch(slicesPath, "timeoutSeconds=1", accept)
			c.apply(service("t"))
			want := c.store.History.Revision()
			soon.UntilQuiet(t, func() string {
				e := w.next()
				bookmark, ok := e.Object.(*discoveryv1.EndpointSlice)
				if e.Type != watch.Bookmark || !ok {
					t.Fatalf("got %s of a %T", e.Type, e.Object)
				}
				if _, marked := bookmark.Annotations[metav1.InitialEventsAnnotationKey]; marked {
					t.Fatal("an ordinary bookmark that claims to end the initial events")
				}
				if got := revisionOf(t, bookmark); got != want {
					return fmt.Sprintf("bookmark at %d, want %d", got, want)
				}
				return ""
			})
			c.watch(slicesPath, "timeoutSeconds=1&resourceVersion="+strconv.FormatUint(want, 10), accept).expectEnd()
			silent.expectEnd()
		})
	}
}

// TestClientThatNeverReadsIsCutOff: it must not keep a goroutine and its buffers.
func TestClientThatNeverReadsIsCutOff(t *testing.T) {
	for _, protocol := range []string{"HTTP/1.1", "HTTP/2.0"} {
		t.Run(protocol, func(t *testing.T) {
			t.Parallel()
			ended := make(chan struct{})
			c := newCluster(t, func(_ *storagetest.Options, s *Server) {
				s.WriteTimeout = 100 * time.Millisecond
				s.Observer = observer{ended: func() { close(ended) }}
			})
			c.sync()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			defer c.overTLS(ctx, protocol, servicesPath+"?watch=true").Body.Close()
			filler := strings.Repeat("x", 1<<20)
			deadline := time.Now().Add(6 * patience)
			for i := 0; ; i++ {
				c.apply(labelled(service("big"), map[string]string{"n": strconv.Itoa(i), "filler": filler}))
				select {
				case <-ended:
					return
				case <-time.After(time.Millisecond):
				}
				if time.Now().After(deadline) {
					t.Fatal("the watch of a client that does not read goes on")
				}
			}
		})
	}
}

// overTLS asks another listener of the server, by HTTP/1.1 or HTTP/2.0.
func (c *cluster) overTLS(ctx context.Context, protocol, path string) *http.Response {
	c.t.Helper()
	listener := httptest.NewUnstartedServer(c)
	listener.EnableHTTP2 = protocol == "HTTP/2.0"
	listener.StartTLS()
	c.t.Cleanup(func() {
		listener.CloseClientConnections()
		listener.Close()
	})
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, listener.URL+path, nil)
	if err != nil {
		c.t.Fatal(err)
	}
	client := listener.Client()
	client.Transport.(*http.Transport).TLSClientConfig.MinVersion = tls.VersionTLS12
	r, err := client.Do(request)
	if err != nil {
		c.t.Fatal(err)
	}
	if r.Proto != protocol {
		c.t.Fatalf("speaking %s", r.Proto)
	}
	return r
}

type observer struct {
	ended func()
	sent  func(resource string, delay time.Duration)
}

func (o observer) WatchStarted(string) func() { return o.ended }

func (o observer) EventSent(resource string, delay time.Duration) {
	if o.sent != nil {
		o.sent(resource, delay)
	}
}

// TestObserverIsToldOfEvents: of every event, once, with its delay.
func TestObserverIsToldOfEvents(t *testing.T) {
	sent := make(chan time.Duration, 10)
	c := newCluster(t, func(o *storagetest.Options, s *Server) {
		o.Clock = func() time.Time { return time.Now().Add(-time.Hour) }
		s.Observer = observer{ended: func() {}, sent: func(_ string, delay time.Duration) { sent <- delay }}
	})
	c.sync(service("initial"))
	w := c.watch(servicesPath, "", asProtobuf)
	w.expect("ADDED initial")
	c.apply(service("a"))
	c.apply(service("b"))
	w.expect("ADDED a", "ADDED b")
	for range 2 {
		select {
		case delay := <-sent:
			if delay < time.Hour || delay > time.Hour+patience {
				t.Errorf("got a delay of %s", delay)
			}
		case <-time.After(patience):
			t.Fatal("there are no more events")
		}
	}
	select {
	case <-sent:
		t.Error("initial events have no delay to tell")
	default:
	}
}

// TestQuietWatchOutlivesTheWriteTimeout: the time that a client has to accept what is written must not run
// while there is nothing to write. Over HTTP/2 a deadline that passes resets the stream even so.
func TestQuietWatchOutlivesTheWriteTimeout(t *testing.T) {
	for _, protocol := range []string{"HTTP/1.1", "HTTP/2.0"} {
		t.Run(protocol, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, func(_ *storagetest.Options, s *Server) { s.WriteTimeout = 50 * time.Millisecond })
			c.sync()
			r := c.overTLS(t.Context(), protocol, servicesPath+"?watch=true&timeoutSeconds=1")
			defer r.Body.Close()
			// It lasts twenty times the write timeout and says nothing.
			if body, err := io.ReadAll(r.Body); err != nil || len(body) > 0 {
				t.Errorf("got %q, error %v; want a clean end", body, err)
			}
		})
	}
}

// TestNoGoroutineOutlivesItsWatch: SuperEdge's wrapper leaked a watcher with every reconnect.
func TestNoGoroutineOutlivesItsWatch(t *testing.T) {
	c := newSyncedCluster(t, service("s"))
	// What the first connection starts for good is no leak.
	c.watch(servicesPath, "", asJSON).cancel()
	settled := func(most int) func() string {
		return func() string {
			if n := runtime.NumGoroutine(); n > most {
				return fmt.Sprintf("%d goroutines, want at most %d", n, most)
			}
			return ""
		}
	}
	before := runtime.NumGoroutine()
	var streams []*stream
	for range 50 {
		for _, accept := range bothEncodings {
			w := c.watch(servicesPath, watchList, accept)
			w.expect("ADDED s", "BOOKMARK")
			streams = append(streams, w)
		}
	}
	for i, w := range streams {
		w.cancel()
		// Events go on meanwhile; some watchers learn of their client's end by the write that fails.
		c.apply(labelled(service("s"), map[string]string{"n": strconv.Itoa(i)}))
	}
	soon.UntilQuiet(t, settled(before+5))
}

// TestStopExpiresWatches: clients list at whoever serves next, and do not resume there.
func TestStopExpiresWatches(t *testing.T) {
	stopping := make(chan struct{})
	c := newCluster(t, func(_ *storagetest.Options, s *Server) { s.Stopping = stopping })
	c.sync(service("s"))
	var streams []*stream
	for _, accept := range bothEncodings {
		plain, bookmarks := c.watch(servicesPath, "", accept), c.watch(servicesPath, "allowWatchBookmarks=true", accept)
		plain.expect("ADDED s")
		bookmarks.expect("ADDED s")
		streams = append(streams, plain)
		defer func() {
			bookmarks.expect("BOOKMARK")
			bookmarks.expectExpired()
		}()
	}
	close(stopping)
	for _, w := range streams {
		w.expectExpired()
	}
}
