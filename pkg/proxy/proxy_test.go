package proxy

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/klog/v2"

	"github.com/application-grid/application-grid/internal/testkit/await"
	"github.com/application-grid/application-grid/internal/testkit/tlstest"
	"github.com/application-grid/application-grid/internal/testkit/upstreamtest"
	"github.com/application-grid/application-grid/internal/testkit/wiretest"
	"github.com/application-grid/application-grid/pkg/follow/apiclient"
	"github.com/application-grid/application-grid/pkg/program/health"
	"github.com/application-grid/application-grid/pkg/storage/view"
)

// soon is what tests wait with for another goroutine.
var soon = await.Patience{Within: patience, Between: 5 * time.Millisecond}

const patience = 20 * time.Second

// logged is everything that the wrapper logs in these tests, at the highest verbosity. The transports of
// client-go decide what to log when they are made, so it is set for all.
var logged = &logBuffer{}

type logBuffer struct {
	mu     sync.Mutex
	buffer bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffer.Write(p)
}

func (b *logBuffer) String() string {
	klog.Flush()
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffer.String()
}

// logger writes to the buffer what operators see by default, and everything to logged.
func (b *logBuffer) logger() klog.Logger {
	most, err := strconv.Atoi(verbosity)
	if err != nil {
		panic(err)
	}
	return funcr.New(func(prefix, args string) {
		fmt.Fprintln(logged, prefix, args)
		if !strings.HasPrefix(args, `"level"=`) || strings.HasPrefix(args, `"level"=0 `) {
			fmt.Fprintln(b, prefix, args)
		}
	}, funcr.Options{Verbosity: most})
}

func TestMain(m *testing.M) {
	flags := flag.NewFlagSet("klog", flag.PanicOnError)
	klog.InitFlags(flags)
	for name, value := range map[string]string{
		"v": verbosity, "logtostderr": "false", "alsologtostderr": "false", "stderrthreshold": "FATAL",
	} {
		if err := flags.Set(name, value); err != nil {
			panic(err)
		}
	}
	klog.SetOutput(logged)
	os.Exit(m.Run())
}

// wrapper is a Proxy at work before an upstream.
type wrapper struct {
	t     *testing.T
	proxy *Proxy
	// address is host:port.
	address string
	// said is what it logs itself; what is logged for it elsewhere is in logged only.
	said *logBuffer
	stop context.CancelFunc
	// result is what Run returned, once done is closed.
	result error
	done   chan struct{}
}

// start runs a Proxy before the handler until the test ends. configure may be nil.
func start(t *testing.T, upstream http.Handler, configure func(*Config)) *wrapper {
	t.Helper()
	server := httptest.NewServer(upstream)
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	return startBefore(t, server.URL, configure)
}

// startReady is start, and waits until the wrapper is ready.
func startReady(t *testing.T, upstream http.Handler, configure func(*Config)) *wrapper {
	t.Helper()
	w := start(t, upstream, configure)
	w.expectReady()
	return w
}

// nowhere refuses connections.
const nowhere = "http://127.0.0.1:1"

// connect makes a connection to an upstream; with TLS it has the token token-of-the-wrapper.
func connect(tb testing.TB, upstream string) *apiclient.Connection {
	tb.Helper()
	connection, err := apiclient.Options{
		Kubeconfig: "testdata/kubeconfig", Master: upstream, QPS: 1000, Burst: 1000, PassesOn: true,
	}.Connect()
	if err != nil {
		tb.Fatal(err)
	}
	return connection
}

// newProxy makes a Proxy that does not run, but answers requests. Its upstream, if config has none, refuses
// connections.
func newProxy(tb testing.TB, config Config) *Proxy {
	tb.Helper()
	if config.Connection == nil {
		config.Connection = connect(tb, nowhere)
	}
	config.BindAddress = cmp.Or(config.BindAddress, "127.0.0.1:0")
	p, err := New(config, klog.Background())
	if err != nil {
		tb.Fatal(err)
	}
	p.openViews(klog.Background())
	return p
}

func startBefore(t *testing.T, host string, configure func(*Config)) *wrapper {
	t.Helper()
	config := Config{
		Connection: connect(t, host), NodeName: "node0", BindAddress: "127.0.0.1:0", RewriteKubernetes: true,
	}
	if configure != nil {
		configure(&config)
	}
	p, err := New(config, klog.Background())
	if err != nil {
		t.Fatal(err)
	}
	if p.tls != nil {
		p.tls.interval = 10 * time.Millisecond
	}
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", config.BindAddress)
	if err != nil {
		t.Fatal(err)
	}
	w := &wrapper{t: t, proxy: p, address: listener.Addr().String(), said: &logBuffer{}, done: make(chan struct{})}
	ctx, cancel := context.WithCancel(klog.NewContext(context.Background(), w.said.logger()))
	w.stop = cancel
	go func() {
		defer close(w.done)
		w.result = p.serve(ctx, listener)
	}()
	t.Cleanup(func() {
		cancel()
		<-w.done
	})
	return w
}

// get sends a request with headers given as name, value, ….
func (w *wrapper) do(method, path, body string, headers ...string) (int, string) {
	w.t.Helper()
	r := w.open(context.Background(), method, path, body, headers...)
	defer r.Body.Close()
	answer, err := io.ReadAll(r.Body)
	if err != nil {
		w.t.Fatalf("%s %s: %v", method, path, err)
	}
	return r.StatusCode, string(answer)
}

func (w *wrapper) get(path string, headers ...string) (int, string) {
	w.t.Helper()
	return w.do(http.MethodGet, path, "", headers...)
}

// expect sends a request, whose answer must have this code and all the parts.
func (w *wrapper) expect(code int, path string, parts ...string) {
	w.t.Helper()
	got, body := w.get(path)
	if got != code {
		w.t.Errorf("%s: got %d %s", path, got, body)
	}
	if lacks := lacks(path, body, parts...); lacks != "" {
		w.t.Error(lacks)
	}
}

func (w *wrapper) open(ctx context.Context, method, path, body string, headers ...string) *http.Response {
	w.t.Helper()
	request, err := http.NewRequestWithContext(ctx, method, "http://"+w.address+path, strings.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	if err != nil {
		w.t.Fatalf("%s %s: %v", method, path, err)
	}
	return response
}

func (w *wrapper) expectReady() {
	w.t.Helper()
	w.expectReadyz(http.StatusOK)
}

// expectReadyz waits for an answer of /readyz with this code and all the parts.
func (w *wrapper) expectReadyz(code int, parts ...string) {
	w.t.Helper()
	w.expectSoon(code, "/readyz", parts...)
}

// expectSoon waits for an answer with this code and all the parts.
func (w *wrapper) expectSoon(code int, path string, parts ...string) {
	w.t.Helper()
	soon.UntilQuiet(w.t, func() string {
		got, body := w.get(path)
		if got != code {
			return fmt.Sprintf("%s: %d %s", path, got, body)
		}
		return lacks(path, body, parts...)
	})
}

// expectSaid waits until all the parts are in the wrapper's own log.
func (w *wrapper) expectSaid(parts ...string) {
	w.t.Helper()
	soon.UntilQuiet(w.t, func() string { return lacks("the log", w.said.String(), parts...) })
}

// lacks names the first part that a text does not have; "" if it has all.
func lacks(of, text string, parts ...string) string {
	for _, part := range parts {
		if !strings.Contains(text, part) {
			return fmt.Sprintf("%s does not say %q: %s", of, part, text)
		}
	}
	return ""
}

// smallCluster has two nodes in two zones and a Service governed by the zone, with an endpoint on each.
func smallCluster() *upstreamtest.API {
	api := upstreamtest.New()
	api.Put(wiretest.NodeOf("node0", "a"))
	api.Put(wiretest.NodeOf("node1", "b"))
	api.Put(service("s", `["zone"]`))
	api.Put(sliceOf("s", onNode("10.0.0.1", "node0"), onNode("10.0.0.2", "node1")))
	return api
}

// sliceOf is the one slice of a Service.
func sliceOf(service string, endpoints ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
	s := wiretest.SliceOf("default/"+service+"-1", service)
	s.Endpoints = endpoints
	return s
}

func onNode(address, node string) discoveryv1.Endpoint {
	return discoveryv1.Endpoint{Addresses: []string{address}, NodeName: &node}
}

// ofPod is onNode for the pod p.
func ofPod(address, node string) discoveryv1.Endpoint {
	e := onNode(address, node)
	e.TargetRef = &corev1.ObjectReference{Kind: "Pod", Namespace: "default", Name: "p", UID: "u-p"}
	return e
}

func service(name, topologyKeys string) *corev1.Service {
	return wiretest.ServiceOf("default/"+name, topologyKeys)
}

// TestReadyzTellsTheReason, also when the wrapper is ready.
func TestReadyzTellsTheReason(t *testing.T) {
	t.Parallel()
	const unsynced = "not synced with the upstream yet: "
	// An operator would look for a broken link otherwise.
	const refuses = "the upstream refuses the wrapper, renew the credentials in testdata/kubeconfig or its " +
		"permissions: "
	for code, test := range map[int]struct{ says, optional, err string }{
		http.StatusNotAcceptable: {unsynced, unsynced, "the upstream fails"},
		http.StatusBadGateway:    {unsynced, unsynced, `an error on the server ("the upstream fails")`},
		http.StatusForbidden:     {refuses, "the upstream refuses it: ", "the upstream fails"},
		http.StatusUnauthorized: {
			refuses, "the upstream refuses it: ", "the server has asked for the client to provide credentials",
		},
	} {
		t.Run(fmt.Sprint("unsynced, with the last error, ", code), func(t *testing.T) {
			t.Parallel()
			api := smallCluster()
			api.Behave(upstreamtest.Behaviour{Failing: code})
			w := start(t, api, nil)
			for _, source := range []string{"services", "endpointslices", "nodes", "node"} {
				w.expectReadyz(http.StatusServiceUnavailable, "[-] "+source+": "+test.says+test.err)
			}
			// Without these the wrapper can do.
			w.expectReadyz(http.StatusServiceUnavailable, "kubernetes-endpoints: "+test.optional+test.err)
			w.expect(http.StatusOK, "/livez")
			w.expect(http.StatusServiceUnavailable, "/api/v1/services", `"kind":"Status"`)
			api.Behave(upstreamtest.Behaviour{})
			w.expectReady()
		})
	}
}

// TestReadyzTellsWhatIsNotAsExpected: a hostname, an annotation, an upstream that was lost or lacks a resource.
func TestReadyzTellsWhatIsNotAsExpected(t *testing.T) {
	t.Parallel()
	t.Run("empty hostname", func(t *testing.T) {
		t.Parallel()
		w := start(t, smallCluster(), func(c *Config) { c.NodeName = "" })
		w.expectReadyz(http.StatusServiceUnavailable, "--hostname is empty",
			"nodes: ok", "services: ok", "endpointslices: ok", "kubernetes-endpoints: ok")
		// It runs all the same, and governed Services have no endpoints.
		code, body := w.get("/apis/discovery.k8s.io/v1/endpointslices")
		if code != http.StatusOK || !strings.Contains(body, "s-1") || strings.Contains(body, "10.0.0.") {
			t.Errorf("got %d %s", code, body)
		}
	})
	t.Run("unknown hostname", func(t *testing.T) {
		t.Parallel()
		api := smallCluster()
		w := start(t, api, func(c *Config) { c.NodeName = "elsewhere" })
		w.expectReadyz(http.StatusServiceUnavailable, `node "elsewhere" does not exist`)
		api.Put(wiretest.NodeOf("elsewhere", "b"))
		w.expectReady()
	})
	t.Run("own Node not known yet", func(t *testing.T) {
		t.Parallel()
		api := smallCluster()
		var answers atomic.Bool
		w := start(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Query().Get("fieldSelector") == "metadata.name=node0" && !answers.Load() {
				http.Error(w, "not this one", http.StatusInternalServerError)
				return
			}
			api.ServeHTTP(w, r)
		}), nil)
		w.expectReadyz(http.StatusServiceUnavailable, "node: not synced with the upstream yet", "nodes: ok",
			"services: ok", "endpointslices: ok", "kubernetes-endpoints: ok")
		w.expect(http.StatusServiceUnavailable, "/api/v1/nodes/node0")
		answers.Store(true)
		w.expectReady()
		w.expect(http.StatusOK, "/api/v1/nodes/node0")
	})
	// With 404 a gateway answers that has lost its API server.
	for _, code := range []int{http.StatusBadGateway, http.StatusNotFound} {
		t.Run(fmt.Sprint("upstream lost after sync, ", code), func(t *testing.T) {
			t.Parallel()
			api := smallCluster()
			w := startReady(t, api, nil)
			api.Behave(upstreamtest.Behaviour{Failing: code})
			api.Forget()
			w.expectReadyz(http.StatusOK, "services: served from the cache, the upstream cannot be followed since 20",
				"endpointslices: served from the cache", "nodes: served from the cache")
			for _, path := range []string{services, endpointSlices} {
				w.expect(http.StatusOK, path, `"name":"s`)
			}
		})
	}
	t.Run("annotation that does not parse", func(t *testing.T) {
		t.Parallel()
		api := smallCluster()
		api.Put(service("broken", `zone`))
		w := start(t, api, nil)
		w.expectReadyz(http.StatusOK,
			"service default/broken: all endpoints hidden: annotation topologyKeys does not parse: not a JSON array")
		w.expectSoon(http.StatusOK, "/metrics",
			`application_grid_wrapper_invalid_topology_keys{namespace="default",service="broken"} 1`)
		api.Put(service("broken", `["zone"]`))
		soon.UntilQuiet(t, func() string {
			if _, body := w.get("/readyz"); strings.Contains(body, "broken") {
				return body
			}
			return ""
		})
	})
	t.Run("a local endpoint of another family", func(t *testing.T) {
		t.Parallel()
		api := smallCluster()
		api.Put(service("kubernetes", ""))
		api.Put(sliceOf("kubernetes", onNode("192.0.2.1", "")))
		w := startReady(t, api, func(c *Config) {
			c.LocalEndpoint = &view.LocalEndpoint{IP: netip.MustParseAddr("fd00::20"), Port: 51003}
		})
		w.expectReadyz(http.StatusOK, "default/kubernetes: its endpoint is not replaced by this node's own: the local "+
			"endpoint fd00::20 is an IPv6 address, and EndpointSlice default/kubernetes-1 has IPv4 addresses")
		w.expect(http.StatusOK, "/apis/discovery.k8s.io/v1/endpointslices", "192.0.2.1")
	})
	t.Run("ports with different keys", func(t *testing.T) {
		t.Parallel()
		api := smallCluster()
		api.Put(service("s", `["zone","*"]`))
		admin := sliceOf("s", onNode("10.0.0.3", "node1"))
		admin.Name, admin.Ports = "s-2", []discoveryv1.EndpointPort{{Name: new("admin"), Port: new(int32(8080))}}
		api.Put(admin)
		web := sliceOf("s", onNode("10.0.0.1", "node0"))
		web.Ports = []discoveryv1.EndpointPort{{Name: new("web"), Port: new(int32(8080))}}
		api.Put(web)
		w := start(t, api, nil)
		w.expectReadyz(http.StatusOK, "topologyKeys: different keys decide for different ports of default/s;")
		w.expect(http.StatusOK, "/debug/explain/default/s",
			`"ports":[{"addressType":"IPv4","name":"admin","protocol":"TCP","decidingKey":"*"},`+
				`{"addressType":"IPv4","name":"web","protocol":"TCP","decidingKey":"zone"}]`)
	})
	// The legacy Endpoints are nothing that a wrapper needs.
	for resource, test := range map[string]struct {
		code         int
		source, path string
	}{
		"endpointslices": {http.StatusServiceUnavailable, "endpointslices", endpointSlices},
		"endpoints":      {http.StatusOK, "kubernetes-endpoints", "/api/v1/endpoints"},
	} {
		t.Run(resource+" that are not served", func(t *testing.T) {
			t.Parallel()
			api := smallCluster()
			api.Behave(upstreamtest.Behaviour{Absent: []string{resource}})
			w := start(t, api, nil)
			w.expectReadyz(test.code, test.source+": the upstream does not serve it")
			w.expect(http.StatusNotFound, test.path)
			w.expectReadyz(test.code)
		})
	}
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	api := smallCluster()
	w := startReady(t, api, nil)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	watch := w.open(ctx, http.MethodGet, "/api/v1/services?watch=true", "")
	defer watch.Body.Close()
	w.get("/api/v1/services")
	w.get("/api/v1/namespaces/default/services/none")
	w.get("/apis/example.com/v1/anything")
	w.do("BREW", "/apis/example.com/v1/anything", "")
	api.Put(service("t", `["zone"]`))
	const prefix = "application_grid_wrapper_"
	w.expectSoon(http.StatusOK, "/metrics",
		prefix+`requests_total{code="200",resource="services",verb="list"} 1`,
		prefix+`requests_total{code="404",resource="services",verb="get"} 1`,
		prefix+`requests_total{code="200",resource="other",verb="list"} 1`,
		prefix+`requests_total{code="200",resource="other",verb="other"} 1`,
		prefix+`request_duration_seconds_count{resource="services",verb="list"} 1`,
		prefix+`watchers{resource="services"} 1`,
		prefix+`event_delay_seconds_count{resource="services"} 1`,
		prefix+`objects{resource="services"} 2`,
		prefix+`objects{resource="endpointslices"} 1`,
		prefix+`endpoints{resource="endpointslices",view="kept"} 1`,
		prefix+`endpoints{resource="endpointslices",view="hidden"} 1`,
		prefix+`history_events{resource="services"} 1`,
		prefix+`revision `,
		prefix+`nodes 2`,
		prefix+`upstream_up{source="services"} 1`,
		prefix+`upstream_synced{source="nodes"} 1`,
		prefix+`upstream_last_contact_seconds{source="endpointslices"} `,
		prefix+`upstream_lists_total{source="services"} 1`,
		"go_goroutines ", "process_resident_memory_bytes ",
	)
	cancel()
	w.expectSoon(http.StatusOK, "/metrics", prefix+`watchers{resource="services"} 0`,
		prefix+`requests_total{code="200",resource="services",verb="watch"} 1`)
	if _, body := w.get("/metrics"); strings.Contains(body, "example") || strings.Contains(body, "BREW") {
		t.Error("a client can make series of its own")
	}
}

// TestNoBorrowedRights: what is passed on is the caller's business, with the caller's credentials or none. Any
// local process could do with SuperEdge's wrapper what the wrapper may.
func TestNoBorrowedRights(t *testing.T) {
	t.Parallel()
	const wrappers, callers = "Bearer token-of-the-wrapper", "Bearer secret-of-the-caller"
	tests := []struct {
		method, path, authorization, want string
	}{
		{"GET", "/api/v1/secrets", "", ""},
		{"GET", "/api/v1/secrets", callers, callers},
		{"GET", "/api/v1/nodes", "", ""},
		{"GET", "/readyz", callers, callers},
		{"PATCH", "/api/v1/nodes/node1", callers, callers},
		{"DELETE", "/api/v1/namespaces/default/services/s", "", ""},
		{"GET", "/debug/pprof/", "", ""},
		{"POST", "/api/v1/namespaces/default/events", "", wrappers},
		{"POST", "/api/v1/namespaces/default/events", callers, callers},
		{"GET", "/apis/networking.k8s.io/v1/servicecidrs", "", wrappers},
		{"GET", "/apis/networking.k8s.io/v1/servicecidrs", callers, callers},
	}
	// Under a prefix, which SuperEdge's wrapper dropped. Other tests have plain HTTP, which it forced to https.
	api := smallCluster()
	server := httptest.NewTLSServer(http.StripPrefix("/clusters/one", api))
	t.Cleanup(server.Close)
	w := startBefore(t, server.URL+"/clusters/one", nil)
	w.expectReady()
	for _, test := range tests {
		before := len(api.Requests())
		headers := []string{"Impersonate-User", "admin", "User-Agent", "tester"}
		if test.authorization != "" {
			headers = append(headers, "Authorization", test.authorization)
		}
		if code, body := w.do(test.method, test.path,
			`{"metadata":{"name":"e"},"involvedObject":{"kind":"Node","name":"node0"}}`,
			headers...); code != http.StatusOK {
			t.Errorf("%s %s: %d %s", test.method, test.path, code, body)
		}
		requests := api.Requests()[before:]
		i := slices.IndexFunc(requests, func(r upstreamtest.Request) bool {
			return r.Header.Get("User-Agent") == "tester"
		})
		if i < 0 {
			t.Errorf("%s %s did not arrive at the upstream", test.method, test.path)
			continue
		}
		got := requests[i]
		if got.Header.Get("Authorization") != test.want || got.Path != test.path || got.Method != test.method {
			t.Errorf("%s %s: arrived as %s %s with %q, want %q",
				test.method, test.path, got.Method, got.Path, got.Header.Get("Authorization"), test.want)
		}
		if test.want == wrappers && got.Header.Get("Impersonate-User") != "" {
			t.Errorf("%s %s: the wrapper acts for another", test.method, test.path)
		}
	}
	// TestMain logs at v=10, where client-go logs headers.
	for _, secret := range []string{"token-of-the-wrapper", "secret-of-the-caller"} {
		if at := strings.Index(logged.String(), secret); at >= 0 {
			t.Errorf("%q is in the log: …%s", secret, logged.String()[max(0, at-200):at+len(secret)])
		}
	}
	if !strings.Contains(logged.String(), "/api/v1/secrets") {
		t.Error("requests are not logged at all, so that this test shows nothing")
	}
}

func TestPprofIsServedWithDebugOnly(t *testing.T) {
	t.Parallel()
	for _, debug := range []bool{false, true} {
		api := smallCluster()
		api.Other = http.NotFoundHandler()
		w := start(t, api, func(c *Config) { c.Debug = debug })
		for _, profile := range []string{
			"", "heap", "goroutine", "cmdline", "symbol", "profile?seconds=1", "trace?seconds=1",
		} {
			if code, _ := w.get("/debug/pprof/" + profile); (code == http.StatusOK) != debug {
				t.Errorf("debug %v, %q: got %d", debug, profile, code)
			}
		}
	}
}

// TestStopEndsWatchesCleanly: those of the wrapper and those that it passes on, at once.
func TestStopEndsWatchesCleanly(t *testing.T) {
	t.Parallel()
	api := smallCluster()
	api.Other = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	w := startReady(t, api, nil)
	var bodies []io.ReadCloser
	for _, path := range []string{
		"/api/v1/services?watch=true", "/apis/discovery.k8s.io/v1/endpointslices?watch=true",
		"/apis/networking.k8s.io/v1/servicecidrs?watch=true", "/api/v1/pods?watch=true",
	} {
		r := w.open(context.Background(), http.MethodGet, path, "")
		defer r.Body.Close()
		if r.StatusCode != http.StatusOK {
			t.Fatalf("%s: %s", path, r.Status)
		}
		bodies = append(bodies, r.Body)
	}
	start := time.Now()
	w.stop()
	for i, body := range bodies {
		if _, err := io.ReadAll(body); err != nil {
			t.Errorf("watch %d ended with %v", i, err)
		}
	}
	select {
	case <-w.done:
	case <-time.After(patience):
		t.Fatal("Run does not return")
	}
	if w.result != nil {
		t.Errorf("got %v", w.result)
	}
	if took := time.Since(start); took >= gracePeriod {
		t.Errorf("stopping took all of the %s", took)
	}
}

func TestOnlyLoopbackWithoutTLS(t *testing.T) {
	ca := tlstest.NewAuthority(t)
	certFile, keyFile := ca.IssueFiles(t, t.TempDir(), "serving")
	for address, ok := range map[string]bool{
		"localhost:51006": true, "127.0.0.1:51006": true, "127.3.2.1:1": true, "[::1]:51006": true,
		"0.0.0.0:51006": false, ":51006": false, "[::]:51006": false, "192.168.1.1:51006": false, "node0:51006": false,
		"example.com:80": false,
	} {
		config := Config{Connection: connect(t, nowhere), BindAddress: address}
		_, err := New(config, klog.Background())
		if (err == nil) != ok {
			t.Errorf("%s: got %v", address, err)
		}
		if err != nil && (!strings.Contains(err.Error(), "--bind-address") || !strings.Contains(err.Error(), address)) {
			t.Errorf("%s: the error does not say what to change: %v", address, err)
		}
		config.TLS = &TLSFiles{Cert: certFile, Key: keyFile}
		if _, err := New(config, klog.Background()); err != nil {
			t.Errorf("%s with TLS: %v", address, err)
		}
	}
	if _, err := New(Config{BindAddress: "localhost"}, klog.Background()); err == nil {
		t.Error("an address without a port is accepted")
	}
}

// TestHubsKubeconfigIsReread, as that of the API server is: tokens in it expire.
func TestHubsKubeconfigIsReread(t *testing.T) {
	t.Parallel()
	content, err := os.ReadFile("testdata/kubeconfig")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "kubeconfig")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(string(content))
	connection, err := apiclient.Options{Kubeconfig: path, QPS: 1, Burst: 1, PassesOn: true}.Connect()
	if err != nil {
		t.Fatal(err)
	}
	start(t, smallCluster(), func(c *Config) { c.Hub, c.HubConnection = true, connection })
	write(strings.ReplaceAll(string(content), "127.0.0.1:1", "127.0.0.1:2"))
	soon.UntilQuiet(t, func() string {
		if host := connection.Server().Host; host != "127.0.0.1:2" {
			return "the hub is at " + host
		}
		return ""
	})
}

func TestAddressInUse(t *testing.T) {
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	// What is in the state directory is that of the process that has the port.
	dir := filepath.Join(t.TempDir(), "state")
	err = newProxy(t, Config{BindAddress: listener.Addr().String(), StateDir: dir}).Run(t.Context())
	if opError := (*net.OpError)(nil); !errors.As(err, &opError) || !strings.Contains(err.Error(), "--bind-address") {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the state directory was opened without the port: %v", err)
	}
}

// TestBadTLSFilesAreNamed: SuperEdge's wrapper ended with exit code 0 and no word.
func TestBadTLSFilesAreNamed(t *testing.T) {
	dir := t.TempDir()
	certFile, keyFile := tlstest.NewAuthority(t).IssueFiles(t, dir, "serving")
	_, otherKey := tlstest.NewAuthority(t).IssueFiles(t, dir, "other")
	garbage := filepath.Join(dir, "garbage.pem")
	if err := os.WriteFile(garbage, []byte("not PEM"), 0o600); err != nil {
		t.Fatal(err)
	}
	absent := filepath.Join(dir, "absent.pem")
	tests := []struct {
		files TLSFiles
		want  []string
	}{
		{TLSFiles{}, []string{"--cert-file", "--key-file"}},
		{TLSFiles{Cert: certFile}, []string{"--key-file"}},
		{TLSFiles{Cert: absent, Key: keyFile}, []string{"--cert-file", absent}},
		{TLSFiles{Cert: certFile, Key: absent}, []string{"--key-file", absent}},
		{TLSFiles{Cert: garbage, Key: keyFile}, []string{"--cert-file", garbage}},
		{TLSFiles{Cert: certFile, Key: garbage}, []string{"--key-file", garbage}},
		{TLSFiles{Cert: certFile, Key: otherKey}, []string{certFile, otherKey}},
		{TLSFiles{Cert: certFile, Key: keyFile, ClientCA: absent}, []string{"--ca-file", absent}},
		{TLSFiles{Cert: certFile, Key: keyFile, ClientCA: garbage}, []string{"--ca-file", garbage}},
		{TLSFiles{Cert: certFile, Key: keyFile, ClientCA: dir}, []string{"--ca-file", dir}},
	}
	for _, test := range tests {
		_, err := New(Config{BindAddress: "127.0.0.1:0", TLS: &test.files}, klog.Background())
		if err == nil {
			t.Errorf("%+v: no error", test.files)
			continue
		}
		for _, want := range test.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%+v: the error does not say %q: %v", test.files, want, err)
			}
		}
	}
}

// TestStrangersAreDelegatedNothing: the wrapper's identity is for processes of this node, and for holders of a
// certificate; not for whoever reaches an address of the network.
func TestStrangersAreDelegatedNothing(t *testing.T) {
	dir := t.TempDir()
	ca := tlstest.NewAuthority(t)
	certFile, keyFile := ca.IssueFiles(t, dir, "serving")
	for _, test := range []struct {
		address   string
		tls       *TLSFiles
		delegates bool
	}{
		{"127.0.0.1:0", nil, true},
		{"127.0.0.1:0", &TLSFiles{Cert: certFile, Key: keyFile}, true},
		{"0.0.0.0:0", &TLSFiles{Cert: certFile, Key: keyFile}, false},
		{"0.0.0.0:0", &TLSFiles{Cert: certFile, Key: keyFile, ClientCA: ca.File(t, dir)}, true},
	} {
		delegatedTo := make(chan string, 1)
		upstream := httptest.NewTLSServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			delegatedTo <- r.Header.Get("Authorization")
		}))
		p := newProxy(t, Config{
			Connection: connect(t, upstream.URL), BindAddress: test.address, TLS: test.tls,
		})
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet,
			"http://localhost/apis/networking.k8s.io/v1/servicecidrs", nil)
		p.chain().ServeHTTP(httptest.NewRecorder(), r)
		if got := <-delegatedTo == "Bearer token-of-the-wrapper"; got != test.delegates {
			t.Errorf("%s, TLS %+v: delegated %v, want %v", test.address, test.tls, got, test.delegates)
		}
		upstream.Close()
	}
}

// TestNotReadyBeforeTheStart: a source that was not started yet is no source that nobody needs.
func TestNotReadyBeforeTheStart(t *testing.T) {
	p := newProxy(t, Config{NodeName: "n"})
	w := httptest.NewRecorder()
	health.Ready(p.report).ServeHTTP(w,
		httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/readyz", nil))
	if w.Code != http.StatusServiceUnavailable || !strings.Contains(w.Body.String(), "services: not synced") {
		t.Errorf("got %d %s", w.Code, w.Body)
	}
}

func TestExplain(t *testing.T) {
	t.Parallel()
	w := start(t, smallCluster(), nil)
	if code, body := w.get("/debug/explain/default/s"); code != http.StatusServiceUnavailable && code != http.StatusOK {
		t.Errorf("before it is synced: %d %s", code, body)
	}
	w.expectReady()
	for path, want := range map[string]struct {
		code  int
		parts []string
	}{
		"/debug/explain/default/s": {
			http.StatusOK, []string{`"node":"node0"`, `"kept":1`, "node node1 has zone=b, not a"},
		},
		"/debug/explain/default/s?node=node1": {
			http.StatusOK, []string{`"node":"node1"`, "node node0 has zone=a, not b"},
		},
		"/debug/explain/default/s?node=nowhere": {http.StatusNotFound, []string{`nodes \"nowhere\" not found`}},
		"/debug/explain/%64efault/%73":          {http.StatusOK, []string{`"node":"node0"`, `"kept":1`}},
		"/debug/explain/default/a%2Fb%25":       {http.StatusNotFound, []string{`services \"default/a/b%\" not found`}},
		"/debug/explain/default/nothing": {
			http.StatusNotFound, []string{`services \"default/nothing\" not found`},
		},
	} {
		w.expect(want.code, path, want.parts...)
	}
}

// TestViewFromASite is what /superedge-ingress/<site>/ serves: lists and watches alike.
func TestViewFromASite(t *testing.T) {
	t.Parallel()
	api := smallCluster()
	w := startReady(t, api, nil)
	const endpointSlices = "/apis/discovery.k8s.io/v1/endpointslices"
	for site, want := range map[string][]bool{
		"a": {true, false}, "b": {false, true}, "c": {false, false}, "": {false, false},
	} {
		code, body := w.get("/superedge-ingress/" + site + endpointSlices)
		if code != http.StatusOK || strings.Contains(body, "10.0.0.1") != want[0] ||
			strings.Contains(body, "10.0.0.2") != want[1] {
			t.Errorf("site %q: %d %s", site, code, body)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	watch := w.open(ctx, http.MethodGet, "/superedge-ingress/c"+endpointSlices+"?watch=true", "")
	defer watch.Body.Close()
	read := make([]byte, 64<<10)
	if n, err := watch.Body.Read(read); err != nil || strings.Contains(string(read[:n]), "10.0.0.") {
		t.Fatalf("%s, %v", read[:n], err)
	}
	api.Put(wiretest.NodeOf("node1", "c"))
	if n, err := watch.Body.Read(read); err != nil || !strings.Contains(string(read[:n]), "10.0.0.2") ||
		strings.Contains(string(read[:n]), "10.0.0.1") {
		t.Errorf("a node moved into the site: %s, %v", read[:n], err)
	}
	api.Put(wiretest.NodeOf("node0", "c"))
	if n, err := watch.Body.Read(read); err != nil || !strings.Contains(string(read[:n]), "10.0.0.1") {
		t.Errorf("another node moved into the site: %s, %v", read[:n], err)
	}
	api.Put(wiretest.NodeOf("node0", "a"))
	if n, err := watch.Body.Read(read); err != nil || strings.Contains(string(read[:n]), "10.0.0.1") {
		t.Errorf("it moved back: %s, %v", read[:n], err)
	}
	// Those of a, b and c. Nobody's has ended, and was not asked for again.
	w.expect(http.StatusOK, "/metrics", "application_grid_wrapper_site_views 4")
	// All else is as without the prefix.
	w.expect(http.StatusOK, "/superedge-ingress/a/readyz")
	w.expect(http.StatusOK, "/superedge-ingress/a/api/v1/nodes/node0")
	if _, body := w.get("/superedge-ingress/a/api/v1/namespaces/default/pods/x", "Authorization",
		"Bearer somebody"); strings.Contains(body, "superedge") {
		t.Errorf("passed on as %s", body)
	}
	if !slices.ContainsFunc(api.Requests(),
		func(r upstreamtest.Request) bool { return r.Path == "/api/v1/namespaces/default/pods/x" }) {
		t.Error("a request for another resource did not get to the upstream under its own path")
	}
}
