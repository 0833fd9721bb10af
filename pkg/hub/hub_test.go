package hub

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/application-grid/application-grid/docs/docstest"
	"github.com/application-grid/application-grid/pkg/apiclient"
	hubv1alpha1 "github.com/application-grid/application-grid/pkg/apis/hub.superedge.io/v1alpha1"
	"github.com/application-grid/application-grid/pkg/await"
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
	connection, err := apiclient.Fixed(&rest.Config{Host: upstream.URL})
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
				u.Extra[extraNodeName] = nodes
			}
			return &authenticator.Response{User: u}, u.Name != "", nil
		})
		config.Authorization.Authorizer = unconditional{allowed}
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
		expectSoon(tb, "the hub is ready", func() bool { return h.hub.shares.stats().open })
	}
	return h
}

// allowed lets everybody but mallory get nodes/proxy of this group and watch shares, and nothing else.
func allowed(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	proxy := a.GetResource() == "nodes" && a.GetSubresource() == "proxy"
	if a.GetAPIGroup() == hubv1alpha1.GroupName && (proxy || a.GetResource() == "shares" && a.GetVerb() == "watch") &&
		a.GetUser().GetName() != "mallory" {
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
	r.Header.Set("Test-User", "alice")
	for _, header := range headers {
		name, value, _ := strings.Cut(header, "=")
		r.Header.Set(name, value)
	}
	response, err := h.server.Client().Do(r)
	if err != nil {
		h.tb.Fatal(err)
	}
	h.tb.Cleanup(func() { response.Body.Close() })
	return &reply{response.StatusCode, response.Header, response.Body}
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

// TestAShare: what a node is given, in the encodings of the API.
func TestAShare(t *testing.T) {
	t.Parallel()
	h := startHub(t, true)
	for _, test := range []struct {
		path            string
		has, hasNot     []string
		protobuf, watch bool
	}{
		{path: "/api/v1/services", has: []string{`"kind":"ServiceList"`, `"free"`, `"strict"`}},
		{path: "/api/v1/namespaces/ns/services/strict", has: []string{`"kind":"Service"`}},
		{
			path: "/apis/discovery.k8s.io/v1/endpointslices?labelSelector=kubernetes.io/service-name=strict",
			has:  []string{strictOfA}, hasNot: []string{"10.0.0.2"},
		},
		{path: "/apis/discovery.k8s.io/v1/namespaces/ns/endpointslices/free-1", has: []string{strictOfA, "10.0.0.2"}},
		{path: "/apis/discovery.k8s.io/v1/endpointslices", protobuf: true, has: []string{"k8s\x00", "10.0.0.1"}},
		{path: "/api/v1/nodes", has: []string{`"a2"`, `"a1"`}, hasNot: []string{`"b1"`, "kernelVersion\":\"6"}},
		{ // as wrappers do that exchange facts
			path: "/api/v1/nodes?labelSelector=zone%3Da&limit=250",
			has:  []string{`"a1"`, `{"type":"InternalIP","address":"192.0.2.1"}`}, hasNot: []string{`"b1"`},
		},
		{path: "/api/v1/nodes?labelSelector=zone%3Db", has: []string{`"items":[]`}},
		{path: "/api/v1/nodes/a2", has: []string{`"kernelVersion":"6"`}},
		{
			path: "/api/v1/nodes?fieldSelector=metadata.name=a2", has: []string{`"kernelVersion":"6"`},
			hasNot: []string{`"a1"`},
		},
	} {
		if test.path == "/api/v1/nodes/a2" {
			node := nodeObject("a2", firstNodes["a2"])
			node.Status.NodeInfo.KernelVersion = "6"
			h.cluster.Put(node)
			expectSoon(t, "the node's own object", func() bool {
				return strings.Contains(body(t, h.ask(http.MethodGet, hubv1alpha1.SharePath("a2")+test.path)),
					`"kernelVersion":"6"`)
			})
		}
		accept := "Accept=application/json"
		if test.protobuf {
			accept = "Accept=application/vnd.kubernetes.protobuf"
		}
		response := h.ask(http.MethodGet, hubv1alpha1.SharePath("a2")+test.path, accept)
		got := body(t, response)
		if response.StatusCode != http.StatusOK {
			t.Errorf("%s: %d %s", test.path, response.StatusCode, got)
		}
		for _, want := range test.has {
			if !strings.Contains(got, want) {
				t.Errorf("%s: %q is missing in %s", test.path, want, got)
			}
		}
		for _, unwanted := range test.hasNot {
			if strings.Contains(got, unwanted) {
				t.Errorf("%s: %q is in %s", test.path, unwanted, got)
			}
		}
	}
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
		for _, path := range []string{"/api/v1/services", "/api/v1/nodes", "/nonsense"} {
			response := h.ask(http.MethodGet, hubv1alpha1.SharePath(test.node)+path, test.as...)
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

// TestWhatThereIsNot is answered with a Status.
func TestWhatThereIsNot(t *testing.T) {
	t.Parallel()
	h := startHub(t, true)
	for _, path := range []string{
		"", "/", "/api/v1/pods", "/apis/apps", "/apis/apps/v1", "/apis/discovery.k8s.io/v1beta1", "/openapi/v3",
		"/api/v1/secrets", "/api/v1/namespaces/ns/secrets/x", "/api/v1/endpoints", "/api/v1/nodes/a1/status",
		"/api/v1/nodes/b1", "/api/v1/namespaces/ns/services/absent", "/apis/discovery.k8s.io/v1beta1/endpointslices",
		"/api/v1/services/strict",
		"/api/v1/namespaces/ns/nodes/a1", "/version", "/metrics", "/healthz", "/api/v1/nodes/a1/proxy/metrics",
		"/../b1/proxy/api/v1/services",
		"/%2e%2e/b1/proxy/api/v1/services", "/..%2fb1/proxy/api/v1/services", "//api/v1/secrets",
		"/api/v1/../v1/secrets",
	} {
		expectStatus(t, path, h.ask(http.MethodGet, hubv1alpha1.SharePath("a1")+path, "Test-Node=a1"),
			http.StatusNotFound, http.StatusForbidden)
	}
	for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete} {
		for _, path := range []string{"/api/v1/namespaces/ns/services/strict", "/api/v1/namespaces/ns/secrets"} {
			expectStatus(t, method+path, h.ask(method, hubv1alpha1.SharePath("a1")+path), http.StatusMethodNotAllowed)
		}
	}
	for _, path := range []string{"/nowhere", "/apis/hub.superedge.io/v2/nodes/a1/proxy/api/v1/services"} {
		response := h.ask(http.MethodGet, path)
		expectStatus(t, path, response, http.StatusNotFound, http.StatusForbidden)
	}
}

// TestDiscovery tells of the subresource.
func TestDiscovery(t *testing.T) {
	t.Parallel()
	h := startHub(t, true)
	var resources metav1.APIResourceList
	if err := json.Unmarshal([]byte(body(t, h.ask(http.MethodGet, hubv1alpha1.GroupVersionPath))),
		&resources); err != nil {
		t.Fatal(err)
	}
	for _, r := range resources.APIResources {
		if r.Name == "nodes/proxy" && !r.Namespaced && fmt.Sprint(r.Verbs) == "[get]" {
			return
		}
	}
	t.Errorf("got %+v", resources)
}

// TestDiscoveryOfAShare is what client-go makes of it, as kubectl does.
func TestDiscoveryOfAShare(t *testing.T) {
	t.Parallel()
	h := startHub(t, true)
	client, err := discovery.NewDiscoveryClientForConfigAndClient(&rest.Config{Host: h.server.URL +
		hubv1alpha1.SharePath("a1")}, &http.Client{
		Transport: asAlice{h.server.Client().Transport},
	})
	if err != nil {
		t.Fatal(err)
	}
	_, lists, err := client.ServerGroupsAndResources()
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, list := range lists {
		for _, r := range list.APIResources {
			found = append(found, fmt.Sprintf("%s %s %t %v", list.GroupVersion, r.Name, r.Namespaced, r.Verbs))
		}
	}
	slices.Sort(found)
	want := []string{
		"discovery.k8s.io/v1 endpointslices true [get list]", "v1 nodes false [get list]",
		"v1 services true [get list]",
	}
	if !slices.Equal(found, want) {
		t.Errorf("got %q, want %q", found, want)
	}
	if group := body(t,
		h.ask(http.MethodGet,
			hubv1alpha1.SharePath("a1")+"/apis/discovery.k8s.io")); !strings.Contains(group, `"kind": "APIGroup"`) {
		t.Errorf("got %s", group)
	}
}

// asAlice makes requests as alice.
type asAlice struct{ http.RoundTripper }

func (a asAlice) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Test-User", "alice")
	return a.RoundTripper.RoundTrip(r)
}

// TestNothingIsSharedBeforeItIsComplete: nobody is told that there is nothing.
func TestNothingIsSharedBeforeItIsComplete(t *testing.T) {
	t.Parallel()
	h := startHub(t, false)
	for _, path := range []string{
		"/api/v1/services", "/api/v1/nodes", "/api/v1/nodes/a1", "/apis/discovery.k8s.io/v1/endpointslices",
	} {
		response := h.ask(http.MethodGet, hubv1alpha1.SharePath("a1")+path)
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
		"a1/proxy/api/v1/services", "b1/proxy/api/v1/nodes", "a1/proxy/../b1/proxy", "a1/proxy/%2e%2e/b1",
		"a1%2fproxy/api/v1/nodes", "?watch=x", "a1/proxy/api/v1/nodes?labelSelector=%",
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
		parsed, err := r.URL.Parse(hubv1alpha1.GroupVersionPath + "/nodes/" + path)
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
}
