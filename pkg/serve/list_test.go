package serve

import (
	"bytes"
	"compress/gzip"
	"context"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/application-grid/application-grid/internal/testkit/storagetest"
	"github.com/application-grid/application-grid/internal/testkit/wiretest"
	"github.com/application-grid/application-grid/pkg/storage/history"
	"github.com/application-grid/application-grid/pkg/storage/served"
)

func TestSelectorsOfLists(t *testing.T) {
	headless := labelled(service("headless"), map[string]string{"app": "x"})
	headless.Spec.ClusterIP = corev1.ClusterIPNone
	other := service("other")
	other.Namespace, other.UID = "kube-system", "other"
	c := newSyncedCluster(t, service("plain"), headless, other)
	tests := []struct{ path, want string }{
		{servicesPath, "headless,plain,other"},
		{"/api/v1/namespaces/default/services", "headless,plain"},
		{"/api/v1/namespaces/kube-system/services", "other"},
		{"/api/v1/namespaces/nowhere/services", ""},
		{servicesPath + "?labelSelector=app%3Dx", "headless"},
		{servicesPath + "?labelSelector=%21app", "plain,other"},
		{servicesPath + "?fieldSelector=spec.clusterIP%21%3DNone", "plain,other"},
		{servicesPath + "?fieldSelector=metadata.name%3Dplain", "plain"},
		{servicesPath + "?fieldSelector=metadata.namespace%21%3Ddefault", "other"},
		{
			servicesPath + "?fieldSelector=spec.type%3DClusterIP,metadata.name%21%3Dplain&labelSelector=app%3Dx",
			"headless",
		},
		{"/api/v1/namespaces/default/services?fieldSelector=metadata.namespace%3Dkube-system", ""},
	}
	for _, test := range tests {
		for _, accept := range []string{asJSON, asProtobuf} {
			list := decodeAs[*corev1.ServiceList](t, c.get(test.path, "Accept", accept))
			if got := namesOf(list.Items); got != test.want {
				t.Errorf("%s as %s: got %q, want %q", test.path, accept, got, test.want)
			}
		}
	}
}

func namesOf(items []corev1.Service) string {
	var names []string
	for i := range items {
		names = append(names, items[i].Name)
	}
	return strings.Join(names, ",")
}

// TestListsAreWhole: client-go and kubectl ask for pages of 500, and take a whole list without a token as the last
// page. A token of another server is answered as one that has expired, upon which they list again.
func TestListsAreWhole(t *testing.T) {
	c := newSyncedCluster(t, service("a"), service("b"), service("c"))
	for _, query := range []string{"limit=1", "limit=1&resourceVersion=0", "limit=500"} {
		list := decodeAs[*corev1.ServiceList](t, c.get(servicesPath+"?"+query))
		if got := namesOf(list.Items); got != "a,b,c" || list.Continue != "" || list.RemainingItemCount != nil {
			t.Errorf("%s: got %q, continue %q", query, got, list.Continue)
		}
	}
	r := c.get(servicesPath + "?limit=1&continue=e30")
	if status := r.status(t); r.code != http.StatusGone || status.Reason != metav1.StatusReasonExpired {
		t.Errorf("got %d %s", r.code, r.body)
	}
}

func TestListAtARevision(t *testing.T) {
	c := newSyncedCluster(t, service("a"))
	before := decodeAs[*corev1.ServiceList](t, c.get(servicesPath)).ResourceVersion
	c.apply(service("b"))
	c.remove(service("a"))
	tests := []struct{ query, want string }{
		{"", "b"},
		{"resourceVersion=0", "b"},
		{"resourceVersion=" + before, "b"},
		{"resourceVersionMatch=NotOlderThan&resourceVersion=" + before, "b"},
		{"resourceVersionMatch=Exact&resourceVersion=" + decodeAs[*corev1.ServiceList](t,
			c.get(servicesPath)).ResourceVersion, "b"},
	}
	for _, test := range tests {
		list := decodeAs[*corev1.ServiceList](t, c.get(servicesPath+"?"+test.query))
		if got := namesOf(list.Items); got != test.want {
			t.Errorf("%s: got %q, want %q", test.query, got, test.want)
		}
	}
	r := c.get(servicesPath + "?resourceVersionMatch=Exact&resourceVersion=" + before)
	if status := r.status(t); r.code != http.StatusGone || status.Reason != metav1.StatusReasonExpired {
		t.Errorf("an exact past version: got %d %s", r.code, r.body)
	}
}

// TestRevisionFromTheFuture: silence would leave the client stale. For a list reflectors look for the cause.
func TestRevisionFromTheFuture(t *testing.T) {
	c := newSyncedCluster(t, service("s"))
	future := strconv.FormatUint(c.store.History.Revision()+1000, 10)
	for _, path := range []string{
		servicesPath + "?resourceVersion=" + future,
		servicesPath + "?resourceVersionMatch=Exact&resourceVersion=" + future,
		servicesPath + "?watch=true&sendInitialEvents=true&allowWatchBookmarks=true" +
			"&resourceVersionMatch=NotOlderThan&resourceVersion=" + future,
		"/api/v1/namespaces/default/services/s?resourceVersion=" + future,
	} {
		for _, accept := range []string{asJSON, asProtobuf} {
			r := c.get(path, "Accept", accept)
			status := r.status(t)
			if r.code != http.StatusGatewayTimeout ||
				!apierrors.HasStatusCause(&apierrors.StatusError{ErrStatus: *status},
					metav1.CauseTypeResourceVersionTooLarge) {
				t.Errorf("%s: got %d %+v", path, r.code, status)
			}
			// With one, client-go would ask ten times more before it lists without a revision.
			if after := r.header.Get("Retry-After"); after != "" {
				t.Errorf("%s: Retry-After %s", path, after)
			}
		}
	}
	r := c.get(servicesPath + "?watch=true&resourceVersion=" + future)
	if status := r.status(t); r.code != http.StatusGone || status.Reason != metav1.StatusReasonExpired {
		t.Errorf("watch: got %d %+v", r.code, status)
	}
}

func TestGetOneObject(t *testing.T) {
	c := newSyncedCluster(t, service("s"), governed("g"), slice("g", thisNode, "node1", "node2"))
	for _, accept := range []string{asJSON, asProtobuf} {
		r := c.get("/api/v1/namespaces/default/services/s", "Accept", accept)
		got := decodeAs[*corev1.Service](t, r)
		if r.code != http.StatusOK || got.Name != "s" {
			t.Errorf("%s: got %d %v", accept, r.code, got)
		}
		revisionOf(t, got)
		pruned := decodeAs[*discoveryv1.EndpointSlice](t,
			c.get("/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/g", "Accept", accept))
		if nodesOf(pruned) != "node0,node1" {
			t.Errorf("%s: endpoints on %s", accept, nodesOf(pruned))
		}
	}
	for _, path := range []string{"/api/v1/namespaces/default/services/none", "/api/v1/namespaces/other/services/s"} {
		r := c.get(path)
		status := r.status(t)
		if r.code != http.StatusNotFound || status.Reason != metav1.StatusReasonNotFound || status.Details == nil ||
			status.Details.Kind != "services" {
			t.Errorf("%s: got %d %+v", path, r.code, status)
		}
	}
	if r := c.get("/api/v1/namespaces/default/services/s?resourceVersion=abc"); r.code != http.StatusBadRequest {
		t.Errorf("resourceVersion=abc: got %d", r.code)
	}
}

// TestLargeListsAreCompressedWhenAsked, but not on this machine: it takes half the time of an answer, and the bytes go
// nowhere.
func TestLargeListsAreCompressedWhenAsked(t *testing.T) {
	big := service("big")
	big.Annotations = map[string]string{"filler": strings.Repeat("0123456789abcdef", gzipThreshold/16)}
	c := newSyncedCluster(t, big)
	small := newSyncedCluster(t, service("small"))
	tests := []struct {
		name                          string
		c                             *cluster
		address, acceptEncoding, want string
	}{
		{"large", c, "192.0.2.1:1234", "gzip", "gzip"},
		{"large, on this machine", c, "127.0.0.1:1234", "gzip", ""},
		{"large, refused", c, "192.0.2.1:1234", "gzip;q=0", ""},
		{"large, not asked", c, "192.0.2.1:1234", "", ""},
		{"small", small, "192.0.2.1:1234", "gzip", ""},
	}
	for _, test := range tests {
		for _, accept := range []string{asJSON, asProtobuf} {
			// Twice: the compressors are used again.
			for range 2 {
				r := test.c.getFrom(test.address, servicesPath, "Accept", accept, "Accept-Encoding",
					test.acceptEncoding)
				if got := r.header.Get("Content-Encoding"); got != test.want {
					t.Fatalf("%s: got Content-Encoding %q, want %q", test.name, got, test.want)
				}
				if test.want != "" {
					zip, err := gzip.NewReader(bytes.NewReader(r.body))
					if err != nil {
						t.Fatal(err)
					}
					if r.body, err = io.ReadAll(zip); err != nil {
						t.Fatal(err)
					}
				} else if r.header.Get("Content-Length") != strconv.Itoa(len(r.body)) {
					t.Errorf("%s: Content-Length %s of %d bytes",
						test.name, r.header.Get("Content-Length"), len(r.body))
				}
				if list := decodeAs[*corev1.ServiceList](t, r); len(list.Items) != 1 {
					t.Errorf("%s: got %d items", test.name, len(list.Items))
				}
			}
		}
	}
}

// TestResourceThatTheUpstreamDoesNotServeIs404: an empty 200 would make kube-proxy delete its rules.
func TestResourceThatTheUpstreamDoesNotServeIs404(t *testing.T) {
	c := newCluster(t, nil)
	c.store.EndpointSlices().SetAbsent()
	for _, path := range []string{
		slicesPath, slicesPath + "?watch=true", slicesPath + "?watch=true&resourceVersion=1",
		"/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/s",
	} {
		r := c.get(path)
		if status := r.status(t); r.code != http.StatusNotFound || status.Reason != metav1.StatusReasonNotFound {
			t.Errorf("%s: got %d %+v", path, r.code, status)
		}
	}
	// It comes, after an upgrade of the upstream; and it does not go again because a gateway has lost its API server.
	c.sync(service("s"), slice("s", "node2"))
	c.store.EndpointSlices().SetAbsent()
	if list := decodeAs[*discoveryv1.EndpointSliceList](t, c.get(slicesPath)); len(list.Items) != 1 {
		t.Errorf("got %v", list)
	}
}

// TestAbsentEndpointsAreNotWaitedFor: the first request for Endpoints starts to follow them, and waits for what comes
// of it. That the upstream does not serve them is an answer too.
func TestAbsentEndpointsAreNotWaitedFor(t *testing.T) {
	demands := make(chan *served.Resource, 1)
	c := newCluster(t, func(_ *storagetest.Options, s *Server) {
		s.Demand = func(r *served.Resource) func() { demands <- r; return func() {} }
	})
	c.sync(service("s"))
	go func() {
		if <-demands == served.Endpoints {
			c.store.Endpoints().SetAbsent()
		}
	}()
	start := time.Now()
	r := c.get("/api/v1/endpoints")
	if took := time.Since(start); r.code != http.StatusNotFound || took >= demandPatience {
		t.Errorf("got %d after %s: %s", r.code, took, r.body)
	}
}

// serveAsOf serves what was restored, or what is not, if the revision is 0.
func (c *cluster) serveAsOf(revision uint64) {
	c.store.History.Update(time.Time{}, func(u *history.Update) { u.SetRestored(revision) })
}

// TestNoCache: a client that wants no stale answer gets none from a snapshot, and everything else.
func TestNoCache(t *testing.T) {
	t.Parallel()
	c := newSyncedCluster(t)
	for _, path := range []string{servicesPath, slicesPath, servicesPath + "?watch=true&timeoutSeconds=1"} {
		for _, test := range []struct {
			cacheControl string
			restored     bool
			want         int
		}{
			{"no-cache", false, http.StatusOK},
			{"", true, http.StatusOK},
			{"max-age=0", true, http.StatusOK},
			{"no-cache", true, http.StatusServiceUnavailable},
			{"max-age=0, No-Cache", true, http.StatusServiceUnavailable},
		} {
			c.serveAsOf(map[bool]uint64{true: 1}[test.restored])
			if got := c.get(path, "Cache-Control", test.cacheControl).code; got != test.want {
				t.Errorf("%s with Cache-Control %q, restored %v: %d, want %d", path, test.cacheControl, test.restored,
					got, test.want)
			}
		}
	}
}

// TestRestoredIsMarked: a client that says so gets what was restored, with a mark, and its watch ends when it is not
// any more.
func TestRestoredIsMarked(t *testing.T) {
	t.Parallel()
	c := newSyncedCluster(t)
	marked := []string{"Cache-Control", "no-cache", RestoredHeader, RestoredMarked}
	c.serveAsOf(1)
	for _, path := range []string{servicesPath, slicesPath, servicesPath + "?watch=true&timeoutSeconds=1"} {
		got := c.get(path, marked...)
		if got.code != http.StatusOK || got.header.Get(RestoredHeader) != RestoredMarked {
			t.Errorf("%s: %d, %v", path, got.code, got.header)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	watch := c.request(ctx, servicesPath+"?watch=true&timeoutSeconds=600", marked...)
	defer watch.Body.Close()
	c.serveAsOf(0)
	c.store.Services().Apply(wiretest.Object(service("other")))
	if _, err := io.Copy(io.Discard, watch.Body); err != nil {
		t.Errorf("a watch of what was restored goes on: %v", err)
	}
	if got := c.get(slicesPath, marked...); got.header.Get(RestoredHeader) != "" {
		t.Error("the upstream's state is marked")
	}
}

// TestCorrectedIsMarked: a client that says so has its watch ended when the upstream goes away, before anything that is
// corrected then, and when it is back. Others notice nothing.
func TestCorrectedIsMarked(t *testing.T) {
	t.Parallel()
	c := newSyncedCluster(t)
	var away atomic.Bool
	c.server.Corrected = away.Load
	marked := []string{"Cache-Control", "no-cache", RestoredHeader, RestoredMarked}
	for i, want := range []string{"", RestoredMarked, ""} {
		away.Store(want != "")
		if got := c.get(slicesPath, marked...); got.code != http.StatusOK || got.header.Get(RestoredHeader) != want {
			t.Errorf("step %d: %d, %v", i, got.code, got.header)
		}
		if got := c.get(slicesPath, "Cache-Control", "no-cache"); got.code != http.StatusOK ||
			got.header.Get(RestoredHeader) != "" {
			t.Errorf("step %d, a client that knows no marks: %d, %v", i, got.code, got.header)
		}
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		watch := c.request(ctx, servicesPath+"?watch=true&timeoutSeconds=600&resourceVersion="+
			strconv.FormatUint(c.store.History.Revision(), 10), marked...)
		away.Store(want == "")
		c.store.Services().Apply(wiretest.Object(service("other" + strconv.Itoa(i))))
		if body, err := io.ReadAll(watch.Body); err != nil || len(body) > 0 {
			t.Errorf("step %d: the watch goes on: %q, %v", i, body, err)
		}
		_ = watch.Body.Close()
		cancel()
	}
}
