package hub

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/application-grid/application-grid/docs/docstest"
	"github.com/application-grid/application-grid/internal/testkit/await"
	"github.com/application-grid/application-grid/internal/testkit/wiretest"
	hubv1alpha1 "github.com/application-grid/application-grid/pkg/apis/hub.superedge.io/v1alpha1"
	"github.com/application-grid/application-grid/pkg/follow/apiclient"
)

// testHub is a hub of a cluster with the nodes a1, a2 and b1, in zones of that letter, and the Services free and
// strict.
type testHub struct {
	tb      testing.TB
	cluster testCluster
	hub     *Server
	server  *httptest.Server
}

// startHub makes a hub. It follows the cluster only if follows is set. Callers are who they say; alice and what is
// bound to nodes may ask for every share, as far as RBAC would have it.
func startHub(tb testing.TB, follows bool) *testHub {
	tb.Helper()
	return startHubWith(tb, follows, func(*genericapiserver.Config) error { return nil })
}

// startHubWith makes a hub with some more settings of its API server.
func startHubWith(tb testing.TB, follows bool, apply func(*genericapiserver.Config) error) *testHub {
	tb.Helper()
	onBoth := []endpointState{{"10.0.0.1", "a1"}, {"10.0.0.2", "b1"}}
	h := &testHub{tb: tb, cluster: newTestCluster(firstNodes, serviceStates{"free": "[]", "strict": `["zone"]`},
		sliceStates{"free-1": {"free", onBoth}, "strict-1": {"strict", onBoth}})}
	upstream := httptest.NewServer(h.cluster)
	tb.Cleanup(upstream.Close)
	connection, err := apiclient.Options{Master: upstream.URL, QPS: 1000, Burst: 1000, PassesOn: true}.Connect()
	if err != nil {
		tb.Fatal(err)
	}
	h.hub, err = New(Config{Connection: connection, Apply: func(config *genericapiserver.Config) error {
		config.ExternalAddress, config.LoopbackClientConfig = "127.0.0.1:443", &rest.Config{}
		config.Authentication.Authenticator = authenticator.RequestFunc(func(r *http.Request) (*authenticator.Response,
			bool, error) {
			u := &user.DefaultInfo{
				Name: r.Header.Get("Test-User"), Groups: r.Header.Values("Test-Group"), Extra: map[string][]string{},
			}
			if nodes := r.Header.Values("Test-Node"); len(nodes) > 0 {
				u.Extra[serviceaccount.NodeNameKey] = nodes
			}
			return &authenticator.Response{User: u}, u.Name != "", nil
		})
		config.Authorization.Authorizer = authorizer.AuthorizerFunc(allowed)
		return apply(config)
	}}, klog.Background())
	if err != nil {
		tb.Fatal(err)
	}
	h.hub.api.PrepareRun() // it adds the health checks
	h.server = httptest.NewUnstartedServer(h.hub.api.Handler)
	h.server.EnableHTTP2 = true
	h.server.StartTLS()
	tb.Cleanup(h.server.Close)
	ctx, cancel := context.WithCancel(tb.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if follows {
			h.hub.group.Run(ctx)
		}
	}()
	tb.Cleanup(func() {
		cancel()
		<-done
		h.server.CloseClientConnections()
	})
	if follows {
		expectSoon(tb, "the hub is ready", func() bool {
			return h.hub.shares.whenReady(func(lockedShares) {}) == nil && h.hub.checkCurrent() == nil
		})
	}
	return h
}

// allowed lets everybody but mallory get and watch shares, and nothing else.
func allowed(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if a.GetAPIGroup() == hubv1alpha1.GroupName && a.GetResource() == "shares" && a.GetSubresource() == "" &&
		(a.GetVerb() == "get" || a.GetVerb() == "watch") && a.GetUser().GetName() != "mallory" {
		return authorizer.DecisionAllow, "", nil
	}
	if !a.IsResourceRequest() {
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionNoOpinion, "", nil
}

// reply is an answer, perhaps one that goes on. Its body is closed when the test ends.
type reply struct {
	StatusCode int
	Header     http.Header
	Body       io.Reader
}

// ask makes a request as somebody: headers are name=value.
func (h *testHub) ask(method, path string, headers ...string) *reply {
	h.tb.Helper()
	r, err := http.NewRequestWithContext(h.tb.Context(), method, h.server.URL+path, nil)
	if err != nil {
		h.tb.Fatal(err)
	}
	setHeaders(r, headers)
	response, err := h.server.Client().Do(r)
	if err != nil {
		h.tb.Fatal(err)
	}
	h.tb.Cleanup(func() { response.Body.Close() })
	return &reply{response.StatusCode, response.Header, response.Body}
}

// record makes a request as somebody, without a connection, and returns what is answered once the handler has returned.
func (h *testHub) record(path string, headers ...string) *httptest.ResponseRecorder {
	h.tb.Helper()
	r := httptest.NewRequestWithContext(h.tb.Context(), http.MethodGet, path, nil)
	setHeaders(r, headers)
	w := httptest.NewRecorder()
	h.hub.api.Handler.ServeHTTP(w, r)
	return w
}

// setHeaders has a request come from alice, with headers that are name=value.
func setHeaders(r *http.Request, headers []string) {
	r.Header.Set("Test-User", "alice")
	for _, header := range headers {
		name, value, _ := strings.Cut(header, "=")
		r.Header.Set(name, value)
	}
}

func body(t *testing.T, response *reply) string {
	t.Helper()
	content, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

const strictOfA = `"addresses":["10.0.0.1"]`

// TestAShare: what a node is given, as people see it, and as wrappers ask for the nodes of their site.
func TestAShare(t *testing.T) {
	t.Parallel()
	h := startHub(t, true)
	const nodeA = `{"kind":"Node","apiVersion":"v1","metadata":{"name":"a1","resourceVersion":"0",` +
		`"labels":{"zone":"a"}}`
	address := `{"type":"InternalIP","address":"192.0.2.1"}`
	for _, test := range []struct {
		query       string
		has, hasNot []string
	}{
		{
			has: []string{
				`"kind":"List","apiVersion":"v1"`, `"kind":"Service"`, `"free"`, `"kind":"EndpointSlice"`, "10.0.0.2",
				strictOfA, nodeA, address,
			},
			hasNot: []string{`"name":"b1"`},
		},
		{
			query: "?kind=EndpointSlice&labelSelector=kubernetes.io/service-name=strict",
			has:   []string{`"kind":"EndpointSliceList"`, strictOfA}, hasNot: []string{"10.0.0.2", `"kind":"Node"`},
		},
		{query: "?kind=EndpointSlice&labelSelector=kubernetes.io/service-name=free", has: []string{"10.0.0.2"}},
		{
			query: "?kind=Node&labelSelector=zone%3Da&limit=250",
			has:   []string{`"kind":"NodeList"`, nodeA, address, `"a2"`}, hasNot: []string{`"b1"`},
		},
		{query: "?kind=Node&labelSelector=zone%3Db", has: []string{`"items":[]`}},
		{query: "?kind=Pod", has: []string{`"items":[]`}},
	} {
		response := h.ask(http.MethodGet, hubv1alpha1.SharesPath+"/a2"+test.query)
		got := body(t, response)
		if response.StatusCode != http.StatusOK || !json.Valid([]byte(got)) {
			t.Errorf("%s: %d %s", test.query, response.StatusCode, got)
		}
		for _, want := range test.has {
			if !strings.Contains(got, want) {
				t.Errorf("%s: %q is missing in %s", test.query, want, got)
			}
		}
		for _, unwanted := range test.hasNot {
			if strings.Contains(got, unwanted) {
				t.Errorf("%s: %q is in %s", test.query, unwanted, got)
			}
		}
	}
	expectSoon(t, "lists take no memory when they are over", func() bool { return h.hub.shares.stats().queued == 0 })
}

// TestWhoMayAsk: what is bound to a node may ask for that node, the rest is RBAC's to say.
func TestWhoMayAsk(t *testing.T) {
	t.Parallel()
	h := startHub(t, true)
	for _, test := range []struct {
		node    string
		as      []string
		allowed bool
	}{
		{"a1", []string{"Test-User=alice"}, true},
		{"a1", []string{"Test-User=mallory"}, false},
		{"a1", []string{"Test-User=system:serviceaccount:edge:wrapper", "Test-Node=a1"}, true},
		{"a2", []string{"Test-User=system:serviceaccount:edge:wrapper", "Test-Node=a1"}, false},
		{"a1", []string{"Test-User=mallory", "Test-Node=a1"}, false},
		{"a1", []string{"Test-User=system:serviceaccount:edge:wrapper"}, false},
		{"a1", []string{"Test-User=system:node:a1", "Test-Group=system:nodes"}, true},
		{"a2", []string{"Test-User=system:node:a1", "Test-Group=system:nodes"}, false},
		{"a2", []string{"Test-User=system:node:a1"}, true}, // anybody may have that name
	} {
		for _, path := range []string{
			"/" + test.node, "?watch=true&fieldSelector=metadata.name%3D" + test.node, "/" + test.node + "?kind=Node",
		} {
			response := h.ask(http.MethodGet, hubv1alpha1.SharesPath+path, test.as...)
			if forbidden := response.StatusCode == http.StatusForbidden; forbidden == test.allowed {
				t.Errorf("%v asks for %s%s: %d %s", test.as, test.node, path, response.StatusCode, body(t, response))
			}
		}
	}
}

// expectStatus checks that an answer is a Status of one of these codes.
func expectStatus(t *testing.T, what string, response *reply, codes ...int) {
	t.Helper()
	content := body(t, response)
	var status metav1.Status
	if err := json.Unmarshal([]byte(content), &status); err != nil || status.Kind != "Status" ||
		int(status.Code) != response.StatusCode {
		t.Errorf("%s: %d %s", what, response.StatusCode, content)
	}
	for _, code := range codes {
		if response.StatusCode == code {
			return
		}
	}
	t.Errorf("%s: %d, want one of %v", what, response.StatusCode, codes)
}

// TestWhatThereIsNot is answered with an error, and never with the share of another node.
func TestWhatThereIsNot(t *testing.T) {
	t.Parallel()
	h := startHub(t, true)
	for _, path := range []string{
		"", "/", "/b1", "/a1/status", "/a1/proxy", "/a1/../b1", "/%2e%2e/shares/b1", "/..%2fb1", "/a1%2f..%2fb1",
		"?fieldSelector=metadata.name%3Db1", "?watch=true", "?watch=true&fieldSelector=metadata.name%3Db1",
		"/b1?watch=true", "/a1/api/v1/services", "/a1?labelSelector=%21%21",
	} {
		response := h.ask(http.MethodGet, hubv1alpha1.SharesPath+path, "Test-User=kubelet", "Test-Node=a1")
		if response.StatusCode < http.StatusBadRequest || response.StatusCode >= http.StatusInternalServerError {
			t.Errorf("%s: %d %s", path, response.StatusCode, body(t, response))
		}
	}
	for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete} {
		expectStatus(t, method, h.ask(method, hubv1alpha1.SharesPath+"/a1"), http.StatusMethodNotAllowed,
			http.StatusForbidden)
	}
	for _, path := range []string{"/nowhere", "/apis/hub.superedge.io/v2/shares/a1"} {
		if code := h.ask(http.MethodGet, path).StatusCode; code != http.StatusNotFound && code != http.StatusForbidden {
			t.Errorf("%s: %d", path, code)
		}
	}
}

// TestDiscovery tells of the resource, as kube-apiserver asks for it. The group is in what that itself answers.
func TestDiscovery(t *testing.T) {
	t.Parallel()
	h := startHub(t, true)
	const aggregated = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
	if got := body(t, h.ask(http.MethodGet, "/apis", "Accept="+aggregated)); !strings.Contains(got,
		`"resource":"shares"`) {
		t.Errorf("got %s", got)
	}
	var resources metav1.APIResourceList
	if err := json.Unmarshal([]byte(body(t, h.ask(http.MethodGet, hubv1alpha1.GroupVersionPath))),
		&resources); err != nil {
		t.Fatal(err)
	}
	for _, r := range resources.APIResources {
		if r.Name == "shares" && !r.Namespaced && r.Kind == "Share" && fmt.Sprint(r.Verbs) == "[get watch]" {
			return
		}
	}
	t.Errorf("got %+v", resources)
}

// TestNothingIsSharedBeforeItIsComplete: nobody is told that there is nothing.
func TestNothingIsSharedBeforeItIsComplete(t *testing.T) {
	t.Parallel()
	h := startHub(t, false)
	for _, path := range []string{"/a1", "/a1?kind=Node", "?watch=true&fieldSelector=metadata.name%3Da1"} {
		response := h.ask(http.MethodGet, hubv1alpha1.SharesPath+path,
			"Accept=application/json,application/vnd.kubernetes.protobuf;stream=watch", "Accept-Encoding=gzip")
		if response.Header.Get("Retry-After") == "" {
			t.Errorf("%s: no Retry-After", path)
		}
		expectStatus(t, path, response, http.StatusServiceUnavailable)
	}
	response := h.ask(http.MethodGet, "/readyz?verbose")
	if got := body(t, response); response.StatusCode != http.StatusInternalServerError ||
		!strings.Contains(got, "[-]shares failed") {
		t.Errorf("/readyz: %d %s", response.StatusCode, got)
	}
}

func expectSoon(tb testing.TB, what string, holds func() bool) {
	tb.Helper()
	await.Patience{Within: 10 * time.Second, Between: 5 * time.Millisecond}.Until(tb, what, func() error {
		if !holds() {
			return errors.New("it is not so")
		}
		return nil
	})
}

// FuzzPaths: whatever is asked with credentials of a node, nothing comes of another one's share, and nothing fails.
func FuzzPaths(f *testing.F) {
	for _, path := range []string{
		"/a1", "/b1", "/a1/../b1", "/a1/%2e%2e/b1", "/a1%2fb1", "?watch=x", "/a1?labelSelector=%", "/a1?kind=Node",
		"?fieldSelector=metadata.name=b1", "/a1/status",
	} {
		f.Add(path)
	}
	var h *testHub
	f.Fuzz(func(t *testing.T, path string) {
		if h == nil {
			h = startHub(t, true)
		}
		if strings.Contains(path, "watch") {
			return // it would last
		}
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		parsed, err := r.URL.Parse(hubv1alpha1.SharesPath + path)
		if err != nil {
			return
		}
		r.URL = parsed
		r.Header.Set("Test-User", "kubelet")
		r.Header.Set("Test-Node", "a1")
		w := httptest.NewRecorder()
		h.hub.api.Handler.ServeHTTP(w, r)
		if w.Code >= http.StatusInternalServerError ||
			strings.Contains(w.Body.String(), "10.0.0.2") && !strings.Contains(w.Body.String(), "free-1") {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	})
}

// TestDocumentedMetrics: docs/reference.md tells of every metric, and of none that there is not.
func TestDocumentedMetrics(t *testing.T) {
	t.Parallel()
	h := startHub(t, true)
	h.hub.metrics.WatchStarted("services")()
	h.hub.metrics.EventSent("services", time.Second)
	registry := prometheus.NewRegistry()
	registry.MustRegister(h.hub.metrics.all...)
	docstest.CompareMetrics(t, "application-grid-hub", registry)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if sets := f.GetMetric()[0].GetGauge().GetValue(); f.GetName() == namespace+"_key_sets" && sets != 1 {
			t.Errorf("%v sets of keys, and the Services have one", sets)
		}
	}
}

// TestOneCallerHasFewStreams: one more is answered 429, until one ends. Others have their own.
func TestOneCallerHasFewStreams(t *testing.T) {
	t.Parallel()
	h := startHub(t, true)
	watch := func(name string) (code int, end func()) {
		ctx, cancel := context.WithCancel(t.Context())
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, h.server.URL+sharesWatch(1), nil)
		if err != nil {
			t.Fatal(err)
		}
		streamHeaders(r)
		r.Header.Set("Test-User", name)
		response, err := h.server.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		end = func() {
			cancel()
			_ = response.Body.Close()
		}
		t.Cleanup(end)
		return response.StatusCode, end
	}
	var last func()
	for range maxStreams {
		code, end := watch("alice")
		if last = end; code != http.StatusOK {
			t.Fatalf("got %d", code)
		}
	}
	if code, _ := watch("alice"); code != http.StatusTooManyRequests || h.hub.refused.Load() != 1 {
		t.Errorf("one more: %d, and %d were refused", code, h.hub.refused.Load())
	}
	if code, _ := watch("bob"); code != http.StatusOK {
		t.Errorf("another caller: %d", code)
	}
	last()
	expectSoon(t, "another stream", func() bool {
		code, _ := watch("alice")
		return code == http.StatusOK
	})
	if code, _ := watch("alice"); code != http.StatusTooManyRequests {
		t.Errorf("one more than before: %d", code)
	}
}

// TestAVersionThatWasTakenBack: who knows a newer state than a restored API server is given what that has now.
// Only a resource whose version is not reached is listed for it.
func TestAVersionThatWasTakenBack(t *testing.T) {
	t.Parallel()
	h := startHub(t, true)
	known := *h.hub.shares.reached.Load()
	known[hubv1alpha1.VersionServices] += 1000
	watched := h.ask(http.MethodGet, sharesWatch(1)+"&resourceVersion="+known.String(),
		"Accept=application/vnd.kubernetes.protobuf", "Accept-Encoding=gzip")
	if watched.StatusCode != http.StatusOK {
		t.Errorf("%d %s", watched.StatusCode, body(t, watched))
	}
	for part, source := range h.hub.sources {
		want := uint64(1)
		if part == hubv1alpha1.VersionServices {
			want = 2
		}
		if lists := source.State().Lists; lists != want {
			t.Errorf("%s were listed %d times, want %d", source.Name(), lists, want)
		}
	}
}

// failingWriter takes so many bytes.
type failingWriter struct{ room int }

func (w *failingWriter) Write(b []byte) (int, error) {
	if w.room -= len(b); w.room < 0 {
		return 0, io.ErrClosedPipe
	}
	return len(b), nil
}

// TestAListIsWholeOrNone: a list ends at an object that cannot be encoded, and when its reader has left, without the
// end that makes it JSON.
func TestAListIsWholeOrNone(t *testing.T) {
	t.Parallel()
	good := newObject(&kindService, wiretest.Service("good", "[]"), nil)
	bad := newObject(&kindService, wiretest.Service("bad", "[]"), []byte{0xff})
	var written bytes.Buffer
	if err := writeList(&written, "Service", []*object{good, good}); err != nil || !json.Valid(written.Bytes()) {
		t.Errorf("%v: %s", err, &written)
	}
	whole := written.Len()
	written.Reset()
	if err := writeList(&written, "Service", []*object{good, bad, good}); err == nil || json.Valid(written.Bytes()) ||
		!strings.Contains(err.Error(), "Service ns/bad") {
		t.Errorf("an object that cannot be read: %v: %s", err, &written)
	}
	for room := range whole {
		if err := writeList(&failingWriter{room}, "Service", []*object{good, good}); !errors.Is(err, io.ErrClosedPipe) {
			t.Fatalf("the reader leaves after %d bytes of %d: %v", room, whole, err)
		}
	}
}
