package proxy

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/application-grid/application-grid/internal/testkit/wiretest"
	"github.com/application-grid/application-grid/pkg/storage/facts"
	"github.com/application-grid/application-grid/pkg/storage/wire"
)

// reached is a request as it reached the upstream, and under whose name.
type reached struct {
	as     string
	method string
	path   string
	header http.Header
	body   []byte
}

// door is a wrapper's chain of filters before an upstream that records what reaches it.
type door struct {
	proxy *Proxy

	mu sync.Mutex
	// all is guarded by mu.
	all []reached
}

// as is the upstream for requests under one name. It is an http.RoundTripper.
func (d *door) as(name string) transport {
	return func(request *http.Request) (*http.Response, error) {
		var body []byte
		if request.Body != nil {
			var err error
			if body, err = io.ReadAll(request.Body); err != nil {
				return nil, err
			}
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		d.all = append(d.all, reached{name, request.Method, request.URL.EscapedPath(), request.Header.Clone(), body})
		return &http.Response{
			StatusCode: http.StatusCreated, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
			Header: http.Header{"Content-Type": {"application/json"}},
			Body:   io.NopCloser(strings.NewReader("{}")), Request: request,
		}, nil
	}
}

type transport func(*http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (t transport) RoundTrip(r *http.Request) (*http.Response, error) { return t(r) }

func newDoor(f *testing.F) *door {
	f.Helper()
	d := &door{proxy: newProxy(f, Config{NodeName: "node0", Debug: true})}
	p := d.proxy
	p.stop() // watches end at once
	p.facts.Input(facts.InputServices).Replace([]*wire.Object{
		wiretest.Object(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "s", UID: "1"}}),
	})
	p.facts.Input(facts.InputNodes).Replace(nil)
	p.facts.Input(facts.InputEndpointSlices).Replace(nil)
	p.facts.Input(facts.InputEndpoints).Replace(nil)
	p.facts.Input(facts.InputNode).Replace([]*wire.Object{
		wiretest.Object(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node0", UID: "2"}}),
	})
	p.asWrapper.Transport, p.asWrapper.UpgradeTransport = d.as("wrapper"), d.as("wrapper")
	p.asCaller.Transport, p.asCaller.UpgradeTransport = d.as("caller"), d.as("caller")
	return d
}

// send sends a request through a chain whose limits begin again, and in which the event "created" was created. It
// returns the code of the answer, and what reached the upstream.
func (d *door) send(t *testing.T, r *http.Request) (code int, all []reached) {
	t.Helper()
	ctx := klog.NewContext(t.Context(), logr.Discard()) // TestMain keeps what is logged
	chain := d.proxy.chain()
	create := httptest.NewRequestWithContext(ctx, http.MethodPost, "http://localhost"+doorEvents,
		strings.NewReader(strings.Replace(doorOwnEvent, `"e"`, `"created"`, 1)))
	chain.ServeHTTP(httptest.NewRecorder(), create)
	d.mu.Lock()
	d.all = nil
	d.mu.Unlock()
	r.RemoteAddr = "127.0.0.1:1"
	w := httptest.NewRecorder()
	func() {
		defer func() {
			//nolint:errorlint // it is panicked with as it is
			if reason := recover(); reason != nil && reason != http.ErrAbortHandler {
				t.Fatalf("panic: %v", reason)
			}
		}()
		chain.ServeHTTP(w, r.WithContext(ctx))
	}()
	d.mu.Lock()
	defer d.mu.Unlock()
	return w.Code, d.all
}

// delegatedPath is every path that may be asked for in the wrapper's name.
var delegatedPath = map[string]*regexp.Regexp{
	http.MethodGet: regexp.MustCompile(
		`^/apis/networking\.k8s\.io/[a-zA-Z0-9._:-]+/(watch/)?servicecidrs(/[a-zA-Z0-9._:-]+)?$`),
	http.MethodPost:  regexp.MustCompile(`^(/api/v1|/apis/events\.k8s\.io/v1)/namespaces/[a-zA-Z0-9._:-]+/events$`),
	http.MethodPatch: regexp.MustCompile(`^(/api/v1|/apis/events\.k8s\.io/v1)/namespaces/default/events/created$`),
}

// loopbackHost is every host that may be named, written down apart from the code that decides it.
var loopbackHost = regexp.MustCompile(`^(?i:localhost\.?|127\.[0-9.]+|\[[0:]*:0*1\]|\[[0:]*:ffff:(127\.[0-9.]+|` +
	`7f[0-9a-f]{2}:[0-9a-f]{1,4})\])(:[0-9]*)?$`)

// checkDelegated says what is wrong with a request that went upstream in the wrapper's name.
func checkDelegated(r *http.Request, got reached) string {
	if r.Header.Get("Authorization") != "" {
		return "the caller has credentials of its own"
	}
	pattern := delegatedPath[got.method]
	if pattern == nil || !pattern.MatchString(got.path) {
		return "it is no delegated call"
	}
	for name := range got.header {
		if !slices.Contains([]string{"Accept", "Accept-Encoding", "Content-Type", "User-Agent"}, name) {
			return "it takes along the header " + name
		}
	}
	var event struct {
		Metadata struct {
			Namespace string `json:"namespace"`
		} `json:"metadata"`
		Involved  corev1.ObjectReference `json:"involvedObject"`
		Regarding corev1.ObjectReference `json:"regarding"`
		Source    corev1.EventSource     `json:"source"`
		Component string                 `json:"reportingComponent"`
		Reporter  string                 `json:"reportingController"`
	}
	var patch map[string]any
	switch got.method {
	case http.MethodGet:
		if len(got.body) > 0 {
			return "it has a body"
		}
		return ""
	case http.MethodPatch:
		if err := json.Unmarshal(got.body, &patch); err != nil {
			return err.Error()
		}
		for name := range patch {
			if !slices.Contains([]string{"series", "count", "firstTimestamp", "lastTimestamp", "message"}, name) {
				return "it patches " + name
			}
		}
		return ""
	}
	if err := json.Unmarshal(got.body, &event); err != nil {
		return err.Error()
	}
	regarding, reporter := event.Regarding, event.Reporter
	if strings.HasPrefix(got.path, "/api/") {
		regarding, reporter = event.Involved, event.Source.Component
		if reporter == "" {
			reporter = event.Component
		}
	}
	namespace := strings.Split(strings.TrimPrefix(strings.TrimPrefix(got.path, "/apis/events.k8s.io/v1"), "/api/v1"),
		"/")[2]
	own := regarding.Kind == "Node" && regarding.Name == "node0" && namespace == "default"
	kubeProxys := regarding.Kind == "Service" && regarding.Namespace == namespace && reporter == "kube-proxy"
	switch {
	case !own && !kubeProxys:
		return fmt.Sprintf("it is neither about this node nor kube-proxy's: %s", got.body)
	case event.Metadata.Namespace != "" && event.Metadata.Namespace != namespace:
		return "it is an event of another namespace"
	}
	return ""
}

// foreign says why a request is that of a web page, or names a host that is not this node's; "" if neither is so.
func foreign(asked *http.Request) string {
	if !loopbackHost.MatchString(asked.Host) {
		return fmt.Sprintf("it names the host %q", asked.Host)
	}
	for _, site := range asked.Header.Values("Sec-Fetch-Site") {
		if site != "none" && site != "same-origin" {
			return "it is that of a web page: " + site
		}
	}
	for _, origin := range asked.Header.Values("Origin") {
		_, after, _ := strings.Cut(origin, "://")
		if !loopbackHost.MatchString(strings.TrimSuffix(after, "/")) {
			return fmt.Sprintf("it is that of the origin %q", origin)
		}
	}
	return ""
}

// checkReached says what is wrong with a request that reached the upstream when this one was sent; "" if nothing is.
func checkReached(asked *http.Request, got reached) string {
	if got.as == "wrapper" {
		return checkDelegated(asked, got)
	}
	if strings.Contains(fmt.Sprint(got.header), "token-of-the-wrapper") {
		return "the wrapper's token went along for a caller"
	}
	if credentials := got.header.Values("Authorization"); !slices.Equal(credentials,
		asked.Header.Values("Authorization")) &&
		!strings.Contains(strings.ToLower(fmt.Sprint(asked.Header["Connection"])), "authorization") {
		return fmt.Sprintf("the caller's credentials became %q", credentials)
	}
	return ""
}

const (
	doorOwnEvent     = `{"metadata":{"name":"e"},"regarding":{"kind":"Node","name":"node0"}}`
	doorCoreEvent    = `{"metadata":{"name":"e"},"involvedObject":{"kind":"Node","name":"node0"}}`
	doorServiceEvent = `{"regarding":{"kind":"Service","namespace":"default","name":"s"},` +
		`"reportingController":"kube-proxy"}`
	doorEvents = "/apis/events.k8s.io/v1/namespaces/default/events"
	doorCIDRs  = "/apis/networking.k8s.io/v1/servicecidrs"
	doorJSON   = "Content-Type: application/json"
)

// doorSeeds are the methods, targets, hosts, headers and bodies with which FuzzDoor begins.
var doorSeeds = [][5]string{
	{"GET", doorCIDRs, "localhost:51006", "", ""},
	{"GET", doorCIDRs + "?watch=true", "127.0.0.1:51006", "Accept: application/json;stream=watch", ""},
	{"GET", doorCIDRs + "/kubernetes", "[::1]:51006", "Impersonate-User: admin", ""},
	{
		"GET", doorCIDRs, "localhost",
		"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Protocol: " +
			"base64url.bearer.authorization.k8s.io.dG9rZW4",
		"",
	},
	{"GET", doorCIDRs, "localhost", "Authorization: Bearer mine", ""},
	{"GET", doorCIDRs + "/%2e%2e/secrets", "localhost", "", ""},
	{"GET", "http://attacker.example" + doorCIDRs, "localhost", "", ""},
	{"GET", doorCIDRs, "attacker.example", "Origin: http://attacker.example\r\nSec-Fetch-Site: cross-site", ""},
	{"GET", "/superedge-ingress/b" + doorCIDRs, "localhost", "Connection: close, Authorization", ""},
	{
		"GET", "/superedge-ingress/a%2Fb/api/v1/services", "localhost",
		"Accept: application/vnd.kubernetes.protobuf", "",
	},
	{"POST", doorEvents, "localhost", doorJSON, doorOwnEvent},
	{"POST", doorEvents, "localhost", doorJSON, doorServiceEvent},
	{
		"POST", doorEvents, "localhost", doorJSON + "\r\nTransfer-Encoding: chunked",
		"44\r\n" + doorOwnEvent + "\r\n0\r\n\r\n",
	},
	{
		"POST", doorEvents, "localhost", doorJSON,
		`{"regarding":{"kind":"Pod"},"regarding":{"kind":"Node","name":"node0"},"Regarding":{}}`,
	},
	{"POST", doorEvents + "?dryRun=All", "localhost", doorJSON, doorOwnEvent},
	{"POST", "/api/v1/namespaces/default/events", "localhost", doorJSON, doorCoreEvent},
	{"POST", "/api/v1/namespaces/../events", "localhost", doorJSON, doorCoreEvent},
	{"POST", "/api/v1/watch/namespaces/default/events", "localhost", doorJSON, doorCoreEvent},
	{
		"PATCH", doorEvents + "/created", "localhost", "Content-Type: application/merge-patch+json",
		`{"series":{"count":2}}`,
	},
	{
		"PATCH", doorEvents + "/created", "localhost", "Content-Type: application/merge-patch+json",
		`{"regarding":{"name":"x"}}`,
	},
	{
		"PATCH", doorEvents + "/other", "localhost", "Content-Type: application/strategic-merge-patch+json",
		`{"count":2}`,
	},
	{"DELETE", doorEvents + "/created", "localhost", "X-HTTP-Method-Override: PATCH", ""},
	{"CONNECT", "attacker.example:443", "localhost", "", ""},
	{"OPTIONS", "*", "localhost", "Origin: null", ""},
	{"GET", "/api/v1/secrets", "localhost", "Authorization:\r\nAccept: */*\r\nAuthorization: Bearer mine", ""},
	{"GET", "/debug/explain/default/s", "LOCALHOST.", "", ""},
	{
		"GET", "/api/v1/namespaces/default/pods/p/exec?command=sh", "[::ffff:127.0.0.1]",
		"Connection: Upgrade\r\nUpgrade: SPDY/3.1", "",
	},
	{"GET", "/livez", "[::]", "", ""},
	{"GET", "/livez", "0.0.0.0", "", ""},
}

// parseRequest reads a request as a server does; nil if the server answers 400.
func parseRequest(method, target, host, headers string, body []byte) *http.Request {
	raw := fmt.Appendf(nil, "%s %s HTTP/1.1\r\nHost: %s\r\n%s\r\n", method, target, host, headers)
	if lower := strings.ToLower(headers); !strings.Contains(lower, "content-length") &&
		!strings.Contains(lower, "transfer-encoding") {
		raw = fmt.Appendf(raw, "Content-Length: %d\r\n", len(body))
	}
	raw = append(append(raw, "\r\n"...), body...)
	raw = bytes.ReplaceAll(raw, []byte("\r\n\r\n\r\n"), []byte("\r\n\r\n")) // no headers
	r, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(raw)))
	if err != nil {
		return nil
	}
	return r
}

// FuzzDoor sends requests through the whole chain of filters. Nothing but the delegated calls reaches the upstream in
// the wrapper's name. What a web page sends, or what names a foreign host, is not even answered.
//
//	go test ./pkg/proxy -run '^$' -fuzz FuzzDoor -fuzztime 10m -parallel 1
func FuzzDoor(f *testing.F) {
	for _, seed := range doorSeeds {
		f.Add(seed[0], seed[1], seed[2], seed[3], []byte(seed[4]))
	}
	for _, path := range []string{
		"/api/v1/services", "/api/v1/nodes/node0", "/readyz", "/livez", "/metrics", "/debug/explain/default/s",
		"/debug/pprof/", "/superedge-ingress/b/apis/discovery.k8s.io/v1/endpointslices", doorCIDRs, "/api/v1/secrets",
		"/",
	} {
		f.Add("GET", path, "attacker.example:51006", "", []byte{})
		f.Add("GET", path, "attacker.example:51006", "Sec-Fetch-Site: same-origin", []byte{})
		f.Add("GET", path, "localhost:51006", "Origin: http://attacker.example", []byte{})
		f.Add("GET", path, "localhost:51006", "Sec-Fetch-Site: cross-site", []byte{})
		f.Add("GET", path, "0.0.0.0:51006", "", []byte{})
	}
	d := newDoor(f)
	f.Fuzz(func(t *testing.T, method, target, host, headers string, body []byte) {
		r := parseRequest(method, target, host, headers, body)
		if r == nil {
			return
		}
		asked := r.Clone(t.Context())
		begin := time.Now()
		code, all := d.send(t, r)
		if took := time.Since(begin); took > 3*time.Second {
			t.Errorf("it took %s", took)
		}
		if why := foreign(asked); why != "" &&
			(len(all) > 0 || code != http.StatusForbidden && code != http.StatusBadRequest) {
			t.Errorf("a request is answered %d, and %d were passed on, although %s", code, len(all), why)
		}
		if len(all) > 1 {
			t.Errorf("%d requests were made of one", len(all))
		}
		for _, got := range all {
			if wrong := checkReached(asked, got); wrong != "" {
				t.Errorf("%s %s reached the upstream as the %s: %s", got.method, got.path, got.as, wrong)
			}
		}
	})
}
