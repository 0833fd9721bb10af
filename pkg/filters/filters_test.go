package filters

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/klog/v2"

	"github.com/application-grid/application-grid/internal/testkit/storagetest"
	"github.com/application-grid/application-grid/internal/testkit/wiretest"
	"github.com/application-grid/application-grid/pkg/serve"
	"github.com/application-grid/application-grid/pkg/storage/history"
	"github.com/application-grid/application-grid/pkg/storage/wire"
)

func TestMain(m *testing.M) {
	klog.SetLogger(logr.Discard())
	m.Run()
}

// mark answers with its name.
func mark(name string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, name) })
}

// keep remembers the last request.
type keep struct{ last *http.Request }

func (k *keep) ServeHTTP(_ http.ResponseWriter, r *http.Request) { k.last = r }

func request(t *testing.T, method, target string, headers ...string) *http.Request {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), method, target, nil)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	return r
}

func answer(h http.Handler, r *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func statusOf(t *testing.T, w *httptest.ResponseRecorder) *metav1.Status {
	t.Helper()
	decoded, _, err := scheme.Codecs.UniversalDeserializer().Decode(w.Body.Bytes(), nil, nil)
	if err != nil {
		t.Fatalf("code %d: %v: %q", w.Code, err, w.Body)
	}
	status, ok := decoded.(*metav1.Status)
	if !ok || int(status.Code) != w.Code {
		t.Fatalf("code %d: got %T %v", w.Code, decoded, decoded)
	}
	return status
}

// TestServedOrPassedOn tells which requests are answered from the cache.
func TestServedOrPassedOn(t *testing.T) {
	store := storagetest.New(storagetest.Options{NodeName: "node0", KeepKubernetesEndpoint: true})
	store.Services().Replace([]*wire.Object{
		wiretest.Object(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s", UID: "1"}}),
	})
	store.NodeLabels().Replace(nil)
	store.EndpointSlices().Replace(nil)
	store.Endpoints().Replace(nil)
	store.KubernetesEndpoints().Replace(nil)
	store.OwnNode().Replace([]*wire.Object{
		wiretest.Object(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node0", UID: "2"}}),
	})
	server := &serve.Server{HistoryOf: func(*http.Request) (*history.History, func(), error) {
		return store.History, func() {}, nil
	}}
	handler := WithServedResources(server, "node0")(mark("upstream"))
	const passedOn = 0
	tests := []struct {
		method, path string
		code         int
	}{
		{"GET", "/api/v1/services", 200},
		{"HEAD", "/api/v1/services", passedOn}, // kube-apiserver answers 405
		{"GET", "/api/v1/namespaces/ns/services", 200},
		{"GET", "/api/v1/namespaces/ns/services/s", 200},
		{"GET", "/api/v1/namespaces/ns/services/none", 404},
		{"GET", "/apis/discovery.k8s.io/v1/endpointslices", 200},
		{"GET", "/api/v1/endpoints", 200},
		{"GET", "/api/v1/nodes/node0", 200},
		{"GET", "/api/v1/nodes?fieldSelector=metadata.name%3Dnode0", 200},
		{"GET", "/api/v1/watch/nodes/node0?timeoutSeconds=1", 200},
		// Another version would come back unpruned.
		{"GET", "/apis/discovery.k8s.io/v1beta1/endpointslices", 404},
		{"GET", "/api/v1/services/s", 404},
		{"GET", "/api/v1/namespaces/ns/nodes/node0", 404},

		{"GET", "/api/v1/nodes", passedOn},
		{"GET", "/api/v1/nodes/other", passedOn},
		{"GET", "/api/v1/nodes?fieldSelector=metadata.name%3Dother", passedOn},
		{"GET", "/api/v1/nodes?fieldSelector=metadata.name%21%3Dnode0", passedOn},
		{"GET", "/api/v1/nodes?labelSelector=a", passedOn},
		{"POST", "/api/v1/namespaces/ns/services", passedOn},
		{"PUT", "/api/v1/namespaces/ns/services/s", passedOn},
		{"DELETE", "/api/v1/namespaces/ns/services/s", passedOn},
		{"GET", "/api/v1/namespaces/ns/services/s/status", passedOn},
		{"GET", "/api/v1/pods", passedOn},
		{"GET", "/apis/other.io/v1/services", passedOn},
		{"GET", "/api", passedOn},
		{"GET", "/apis", passedOn},
		{"GET", "/", passedOn},
	}
	for _, test := range tests {
		t.Run(test.method+" "+test.path, func(t *testing.T) {
			w := answer(handler, request(t, test.method, test.path))
			got := w.Code
			if w.Body.String() == "upstream" {
				got = passedOn
			}
			if got != test.code {
				t.Errorf("got %d, want %d: %s", got, test.code, w.Body)
			}
		})
	}
	unnamed := WithServedResources(server, "")(mark("upstream"))
	for _, path := range []string{
		"/api/v1/nodes", "/api/v1/nodes?fieldSelector=metadata.name%3D", "/api/v1/nodes/node0",
	} {
		if w := answer(unnamed, request(t, "GET", path)); w.Body.String() != "upstream" {
			t.Errorf("without a node's name, %s: %s", path, w.Body)
		}
	}
}

func TestOwnPaths(t *testing.T) {
	link := &linkStub{}
	for pprof, profiles := range map[string]http.Handler{"upstream": nil, "profiles": mark("profiles")} {
		handler := WithOwnPaths(OwnPaths{
			Alive: mark("alive"), Ready: mark("ready"), Metrics: mark("metrics"), Explain: mark("explain"),
			Link: link, Profiles: profiles,
		})(mark("upstream"))
		for path, want := range map[string]string{
			"/healthz": "alive", "/livez": "alive", "/readyz": "ready", "/metrics": "metrics", "/healthz/x": "upstream",
			"/debug/explain/ns/svc": "explain", "/debug/explain/ns": "upstream", "/api//v1": "upstream",
			"/a/../healthz": "upstream",
			// An escaped slash is no slash, and what is written otherwise than these paths is the upstream's to
			// understand.
			"/debug/explain/ns/a%2Fb": "explain", "/debug/explain/n%73/svc": "explain",
			"/debug/explain/ns%2Fsvc": "upstream", "/debug%2Fexplain/ns/svc": "upstream",
			"/debug/explain/ns/svc/": "upstream", "/debug/explain//svc": "upstream", "/%68ealthz": "upstream",
			"/healthz/": "upstream", "//healthz": "upstream", "/healthz%00": "upstream",
			"/x/%2e%2e/metrics": "upstream", "/metrics%3Fx": "upstream", "/metrics?x=1": "metrics",
			"/debug/pprof%2Fheap": "upstream",
		} {
			if got := answer(handler, request(t, "GET", path)).Body.String(); got != want {
				t.Errorf("%s: answered by %s, want %s", path, got, want)
			}
		}
		if got := answer(handler, request(t, "POST", "/healthz")).Body.String(); got != "upstream" {
			t.Errorf("POST /healthz: answered by %s", got)
		}
		// Who has credentials asks for the API server's health, and the wrapper's counts while that is away.
		for path, own := range map[string]string{
			"/healthz": "alive", "/livez": "alive", "/readyz": "ready", "/metrics": "metrics",
			"/debug/explain/ns/svc": "explain",
		} {
			for _, away := range []bool{true, false} {
				link.set(away)
				want := own
				if !away && strings.HasSuffix(path, "z") {
					want = "upstream"
				}
				r := request(t, "GET", path)
				r.Header.Set("Authorization", "Bearer of-a-client")
				if got := answer(handler, r).Body.String(); got != want {
					t.Errorf("%s of a client, away %t: answered by %s, want %s", path, away, got, want)
				}
				if got := answer(handler, request(t, "GET", path)).Body.String(); got != own {
					t.Errorf("%s of nobody, away %t: answered by %s, want %s", path, away, got, own)
				}
			}
		}
		for _, path := range []string{"/debug/pprof/", "/debug/pprof/heap"} {
			if got := answer(handler, request(t, "GET", path)).Body.String(); got != pprof {
				t.Errorf("%s: answered by %s, want %s", path, got, pprof)
			}
		}
	}
}

func TestBodyLimit(t *testing.T) {
	var read int
	handler := WithBodyLimit(BodyTimeout)(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		read = len(body)
	}))
	fits, tooLarge := bytes.Repeat([]byte("x"), MaxBody), bytes.Repeat([]byte("x"), MaxBody+1)

	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", bytes.NewReader(fits))
	if w := answer(handler, r); w.Code != http.StatusOK || read != MaxBody {
		t.Errorf("a body of the limit: code %d, %d bytes", w.Code, read)
	}
	r = httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", bytes.NewReader(tooLarge))
	w := answer(handler, r)
	if status := statusOf(t, w); w.Code != http.StatusRequestEntityTooLarge ||
		status.Reason != metav1.StatusReasonRequestEntityTooLarge {
		t.Errorf("a body over the limit: %d %+v", w.Code, status)
	}
}

// TestForwardedBodyOverTheLimit: one that does not tell its length beforehand.
func TestForwardedBodyOverTheLimit(t *testing.T) {
	front := forwardTo(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
	}), "", WithBodyLimit(BodyTimeout))
	body := io.MultiReader(bytes.NewReader(make([]byte, MaxBody)), strings.NewReader("x"))
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, front+"/api/v1/namespaces", body)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusRequestEntityTooLarge {
		t.Errorf("got %s", response.Status)
	}
}

// TestReadBodyOverTheLimit: a filter that reads such a body itself answers with 413 too.
func TestReadBodyOverTheLimit(t *testing.T) {
	handler := WithBodyLimit(BodyTimeout)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, err := readBody(r, 2*MaxBody)
		serve.WriteError(w, r, err)
	}))
	body := io.MultiReader(bytes.NewReader(make([]byte, MaxBody)), strings.NewReader("x"))
	w := answer(handler, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", body))
	if w.Code != http.StatusRequestEntityTooLarge {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// forwardTo serves Forward to an upstream, which is under a path, behind filters.
func forwardTo(t *testing.T, upstream http.Handler, path string, chain ...Filter) string {
	t.Helper()
	back := httptest.NewServer(upstream)
	t.Cleanup(back.Close)
	u, err := url.Parse(back.URL + path)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	handler := Forward(Target{URL: u, Transport: transport, UpgradeTransport: transport})
	for _, filter := range chain {
		handler = filter(handler)
	}
	front := httptest.NewServer(handler)
	t.Cleanup(front.Close)
	return front.URL
}

// TestForwardKeepsPathQueryAndHeaders: SuperEdge's wrapper dropped the upstream's prefix and forced https.
func TestForwardKeepsPathQueryAndHeaders(t *testing.T) {
	var got *http.Request
	upstream := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = r.Clone(context.Background())
		w.Header().Set("Warning", `299 - "deprecated"`)
		w.WriteHeader(http.StatusTeapot)
	})
	tests := []struct{ prefix, requested, want string }{
		{"", "/api/v1/pods", "/api/v1/pods"},
		{"/", "/api/v1/pods?limit=5&continue=a%2Bb", "/api/v1/pods?limit=5&continue=a%2Bb"},
		{"/clusters/one", "/api/v1/pods", "/clusters/one/api/v1/pods"},
		{"/clusters/one/", "/version", "/clusters/one/version"},
		{
			"/clusters/one", "/api/v1/namespaces/a%2Fb/services/https:s:443/proxy/x%20y",
			"/clusters/one/api/v1/namespaces/a%2Fb/services/https:s:443/proxy/x%20y",
		},
		{"/clusters/one", "/api/v1/proxy//double/", "/clusters/one/api/v1/proxy//double/"},
	}
	for _, test := range tests {
		front := forwardTo(t, upstream, test.prefix)
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, front+test.requested, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer of-the-caller")
		r.Header.Set("Impersonate-User", "chosen-by-the-caller")
		response, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		if got.RequestURI != test.want {
			t.Errorf("%q + %q: got %q, want %q", test.prefix, test.requested, got.RequestURI, test.want)
		}
		if response.StatusCode != http.StatusTeapot || response.Header.Get("Warning") == "" {
			t.Errorf("the answer is not the upstream's: %v", response)
		}
		// As the caller, so also whom the caller may act for.
		if got.Header.Get("Authorization") != "Bearer of-the-caller" || got.Header.Get("Impersonate-User") == "" {
			t.Errorf("got headers %v", got.Header)
		}
	}
}

// TestForwardStreams: each part of a response arrives when it is written.
func TestForwardStreams(t *testing.T) {
	next := make(chan string)
	front := forwardTo(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for line := range next {
			_, _ = io.WriteString(w, line)
			_ = http.NewResponseController(w).Flush()
		}
	}), "", WithRecover(), WithRequestLog((&requestCounter{}).requestDone))
	defer close(next)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, front+"/api/v1/pods?watch=true", nil)
	if err != nil {
		t.Fatal(err)
	}
	go func() { next <- "0\n" }()
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	lines := bufio.NewReader(response.Body)
	for i := range 3 {
		if line, err := lines.ReadString('\n'); err != nil || line != fmt.Sprintf("%d\n", i) {
			t.Fatalf("got %q, %v", line, err)
		}
		if i < 2 {
			next <- fmt.Sprintf("%d\n", i+1)
		}
	}
}

// TestForwardUpgrades: exec and port-forward take the connection over.
func TestForwardUpgrades(t *testing.T) {
	front := forwardTo(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Connection", "Upgrade")
		w.Header().Set("Upgrade", "echo")
		w.WriteHeader(http.StatusSwitchingProtocols)
		conn, buffered, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		line, _ := buffered.ReadString('\n')
		_, _ = io.WriteString(conn, "echo "+line)
	}), "", WithBodyLimit(BodyTimeout), WithRecover(), WithRequestLog((&requestCounter{}).requestDone))
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", strings.TrimPrefix(front, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, _ = io.WriteString(conn,
		"POST /api/v1/namespaces/n/pods/p/exec HTTP/1.1\r\nHost: x\r\nConnection: keep-alive, Upgrade\r\nUpgrade: "+
			"echo\r\n\r\n")
	reader := bufio.NewReader(conn)
	response, err := http.ReadResponse(reader, nil)
	if err != nil || response.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("got %v, %v", response, err)
	}
	defer response.Body.Close()
	_, _ = io.WriteString(conn, "hello\n")
	if line, err := reader.ReadString('\n'); err != nil || line != "echo hello\n" {
		t.Errorf("got %q, %v", line, err)
	}
}

func TestUnreachableUpstreamIs503(t *testing.T) {
	u, err := url.Parse("http://127.0.0.1:1")
	if err != nil {
		t.Fatal(err)
	}
	handler := Forward(Target{URL: u, Transport: &http.Transport{}, UpgradeTransport: &http.Transport{}})
	w := answer(handler, request(t, "GET", "/api/v1/pods"))
	if statusOf(t, w); w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") == "" {
		t.Errorf("got %d %v", w.Code, w.Header())
	}
}

// requestCounter counts requests by verb, resource and code.
type requestCounter struct {
	mu   sync.Mutex
	seen []string
}

func (c *requestCounter) requestDone(resource, verb, code string, _ time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seen = append(c.seen, verb+" "+resource+" "+code)
}

func TestRequestsAreCounted(t *testing.T) {
	codes := func(codes ...int) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			for _, code := range codes {
				w.WriteHeader(code)
			}
		})
	}
	tests := []struct {
		method, path string
		handler      http.Handler
		want         string
	}{
		{"GET", "/api/v1/services", mark("x"), "list services 200"},
		{"GET", "/api/v1/services?watch=true", mark("x"), "watch services 200"},
		{"GET", "/api/v1/services?watch", mark("x"), "watch services 200"},
		{"GET", "/api/v1/services?watch=0", mark("x"), "list services 200"},
		{"GET", "/api/v1/services?watch=false", mark("x"), "list services 200"},
		{"GET", "/api/v1/namespaces/n/services/s", codes(404), "get services 404"},
		{"POST", "/api/v1/namespaces/n/events", codes(201), "create events 201"},
		{"GET", "/healthz", mark("x"), "get  200"},
		{"GET", "/nothing-written", codes(), "get  200"},
		// What comes before the answer is not the answer.
		{"POST", "/api/v1/namespaces/n/events", codes(103, 201), "create events 201"},
	}
	for _, test := range tests {
		counter := &requestCounter{}
		answer(WithRequestLog(counter.requestDone)(test.handler), request(t, test.method, test.path))
		if got := strings.Join(counter.seen, ";"); got != test.want {
			t.Errorf("%s %s: got %q, want %q", test.method, test.path, got, test.want)
		}
	}
}

func TestRecover(t *testing.T) {
	counter := &requestCounter{}
	wrap := func(h http.Handler) http.Handler {
		return WithRequestLog(counter.requestDone)(WithRecover()(h))
	}
	w := answer(wrap(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("secret detail") })),
		request(t, "GET", "/api/v1/services"))
	if status := statusOf(t, w); w.Code != http.StatusInternalServerError ||
		strings.Contains(status.Message, "secret detail") {
		t.Errorf("got %d %+v", w.Code, status)
	}
	if counter.seen[0] != "list services 500" {
		t.Errorf("counted as %q", counter.seen[0])
	}
	// One that was begun is cut off, so that the client does not take it for whole.
	front := httptest.NewServer(wrap(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "half")
		_ = http.NewResponseController(w).Flush()
		panic("x")
	})))
	defer front.Close()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, front.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if body, err := io.ReadAll(response.Body); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("got %q, %v", body, err)
	}
}
