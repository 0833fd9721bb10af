package proxy

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
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
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/application-grid/application-grid/pkg/storage/facts"
	"github.com/application-grid/application-grid/pkg/storage/wire"
	"github.com/application-grid/application-grid/pkg/storage/wire/wiretest"
)

// reached is a request as it reached the upstream, and under whose name.
type reached struct {
	as     string
	method string
	path   string
	header http.Header
	body   []byte
}

// recorder is an upstream that records what reaches it.
type recorder struct {
	as string
	mu *sync.Mutex
	// all is guarded by mu.
	all *[]reached
}

// RoundTrip implements http.RoundTripper.
func (r recorder) RoundTrip(request *http.Request) (*http.Response, error) {
	var body []byte
	if request.Body != nil {
		var err error
		if body, err = io.ReadAll(request.Body); err != nil {
			return nil, err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	*r.all = append(*r.all, reached{r.as, request.Method, request.URL.EscapedPath(), request.Header.Clone(), body})
	return &http.Response{
		StatusCode: http.StatusCreated, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{"Content-Type": {"application/json"}},
		Body:   io.NopCloser(strings.NewReader("{}")), Request: request,
	}, nil
}

// lentPath is every path that may be asked for in the wrapper's name.
var lentPath = map[string]*regexp.Regexp{
	http.MethodGet: regexp.MustCompile(
		`^/apis/networking\.k8s\.io/[a-zA-Z0-9._:-]+/(watch/)?servicecidrs(/[a-zA-Z0-9._:-]+)?$`),
	http.MethodPost:  regexp.MustCompile(`^(/api/v1|/apis/events\.k8s\.io/v1)/namespaces/[a-zA-Z0-9._:-]+/events$`),
	http.MethodPatch: regexp.MustCompile(`^(/api/v1|/apis/events\.k8s\.io/v1)/namespaces/default/events/created$`),
}

// loopbackHost is every host that may be named, written down apart from the code that decides it.
var loopbackHost = regexp.MustCompile(`^(?i:localhost\.?|127\.[0-9.]+|\[[0:]*:0*1\]|\[[0:]*:ffff:(127\.[0-9.]+|` +
	`7f[0-9a-f]{2}:[0-9a-f]{1,4})\])(:[0-9]*)?$`)

// checkLent says what is wrong with a request that went upstream in the wrapper's name.
func checkLent(r *http.Request, got reached) string {
	if r.Header.Get("Authorization") != "" {
		return "the caller has credentials of its own"
	}
	pattern := lentPath[got.method]
	if pattern == nil || !pattern.MatchString(got.path) {
		return "it is no lent call"
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

// FuzzDoor sends requests through the whole chain of filters. Nothing but the lent calls reaches the upstream in the
// wrapper's name, and nothing at all that names a foreign host or comes from a web page.
//
//	go test ./pkg/proxy -run '^$' -fuzz FuzzDoor -fuzztime 10m -parallel 1
func FuzzDoor(f *testing.F) {
	const (
		own     = `{"metadata":{"name":"e"},"regarding":{"kind":"Node","name":"node0"}}`
		ownCore = `{"metadata":{"name":"e"},"involvedObject":{"kind":"Node","name":"node0"}}`
		service = `{"regarding":{"kind":"Service","namespace":"default","name":"s"},"reportingController":"kube-proxy"}`
		events  = "/apis/events.k8s.io/v1/namespaces/default/events"
		cidrs   = "/apis/networking.k8s.io/v1/servicecidrs"
		asJSON  = "Content-Type: application/json"
	)
	for _, seed := range [][5]string{
		{"GET", cidrs, "localhost:51006", "", ""},
		{"GET", cidrs + "?watch=true", "127.0.0.1:51006", "Accept: application/json;stream=watch", ""},
		{"GET", cidrs + "/kubernetes", "[::1]:51006", "Impersonate-User: admin", ""},
		{
			"GET", cidrs, "localhost",
			"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Protocol: " +
				"base64url.bearer.authorization.k8s.io.dG9rZW4",
			"",
		},
		{"GET", cidrs, "localhost", "Authorization: Bearer mine", ""},
		{"GET", cidrs + "/%2e%2e/secrets", "localhost", "", ""},
		{"GET", "http://attacker.example" + cidrs, "localhost", "", ""},
		{"GET", cidrs, "attacker.example", "Origin: http://attacker.example\r\nSec-Fetch-Site: cross-site", ""},
		{"GET", "/superedge-ingress/b" + cidrs, "localhost", "Connection: close, Authorization", ""},
		{
			"GET", "/superedge-ingress/a%2Fb/api/v1/services", "localhost",
			"Accept: application/vnd.kubernetes.protobuf", "",
		},
		{"POST", events, "localhost", asJSON, own},
		{"POST", events, "localhost", asJSON, service},
		{"POST", events, "localhost", asJSON + "\r\nTransfer-Encoding: chunked", "44\r\n" + own + "\r\n0\r\n\r\n"},
		{
			"POST", events, "localhost", asJSON,
			`{"regarding":{"kind":"Pod"},"regarding":{"kind":"Node","name":"node0"},"Regarding":{}}`,
		},
		{"POST", events + "?dryRun=All", "localhost", asJSON, own},
		{"POST", "/api/v1/namespaces/default/events", "localhost", asJSON, ownCore},
		{"POST", "/api/v1/namespaces/../events", "localhost", asJSON, ownCore},
		{"POST", "/api/v1/watch/namespaces/default/events", "localhost", asJSON, ownCore},
		{
			"PATCH", events + "/created", "localhost", "Content-Type: application/merge-patch+json",
			`{"series":{"count":2}}`,
		},
		{
			"PATCH", events + "/created", "localhost", "Content-Type: application/merge-patch+json",
			`{"regarding":{"name":"x"}}`,
		},
		{
			"PATCH", events + "/other", "localhost", "Content-Type: application/strategic-merge-patch+json",
			`{"count":2}`,
		},
		{"DELETE", events + "/created", "localhost", "X-HTTP-Method-Override: PATCH", ""},
		{"CONNECT", "attacker.example:443", "localhost", "", ""},
		{"OPTIONS", "*", "localhost", "Origin: null", ""},
		{"GET", "/api/v1/secrets", "localhost", "Authorization:\r\nAccept: */*\r\nAuthorization: Bearer mine", ""},
		{"GET", "/debug/explain/default/s", "LOCALHOST.", "", ""},
		{
			"GET", "/api/v1/namespaces/default/pods/p/exec?command=sh", "[::ffff:127.0.0.1]",
			"Connection: Upgrade\r\nUpgrade: SPDY/3.1", "",
		},
	} {
		f.Add(seed[0], seed[1], seed[2], seed[3], []byte(seed[4]))
	}
	p, err := New(
		Config{
			Upstream: &rest.Config{Host: "http://127.0.0.1:1", BearerToken: "token-of-the-wrapper"}, NodeName: "node0",
			BindAddress: "127.0.0.1:0",
		},
		klog.Background(),
	)
	if err != nil {
		f.Fatal(err)
	}
	p.stop() // watches end at once
	p.openViews(klog.Background())
	p.facts.Input(facts.InputServices).Replace([]*wire.Object{
		wiretest.Object(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "s", UID: "1"}}),
	})
	p.facts.Input(facts.InputNodes).Replace(nil)
	p.facts.Input(facts.InputEndpointSlices).Replace(nil)
	p.facts.Input(facts.InputEndpoints).Replace(nil)
	p.facts.Input(facts.InputNode).Replace([]*wire.Object{
		wiretest.Object(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node0", UID: "2"}}),
	})
	var mu sync.Mutex
	var all []reached
	p.asWrapper.Transport, p.asWrapper.UpgradeTransport = recorder{"wrapper", &mu, &all}, recorder{"wrapper", &mu, &all}
	p.asCaller.Transport, p.asCaller.UpgradeTransport = recorder{"caller", &mu, &all}, recorder{"caller", &mu, &all}

	f.Fuzz(func(t *testing.T, method, target, host, headers string, body []byte) {
		raw := fmt.Appendf(nil, "%s %s HTTP/1.1\r\nHost: %s\r\n%s\r\n", method, target, host, headers)
		if lower := strings.ToLower(headers); !strings.Contains(lower, "content-length") &&
			!strings.Contains(lower, "transfer-encoding") {
			raw = fmt.Appendf(raw, "Content-Length: %d\r\n", len(body))
		}
		raw = append(append(raw, "\r\n"...), body...)
		raw = bytes.ReplaceAll(raw, []byte("\r\n\r\n\r\n"), []byte("\r\n\r\n")) // no headers
		r, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(raw)))
		if err != nil {
			return // the server answers 400
		}
		ctx := klog.NewContext(t.Context(), logr.Discard()) // TestMain keeps what is logged
		// The limits and what is remembered begin anew, and one event has been created.
		chain := p.chain()
		create := httptest.NewRequestWithContext(ctx, http.MethodPost, "http://localhost"+events,
			strings.NewReader(strings.Replace(own, `"e"`, `"created"`, 1)))
		chain.ServeHTTP(httptest.NewRecorder(), create)
		mu.Lock()
		all = nil
		mu.Unlock()

		r.RemoteAddr = "127.0.0.1:1"
		asked := r.Clone(ctx)
		w := httptest.NewRecorder()
		begin := time.Now()
		func() {
			defer func() {
				//nolint:errorlint // it is panicked with as it is
				if reason := recover(); reason != nil && reason != http.ErrAbortHandler {
					t.Fatalf("panic: %v", reason)
				}
			}()
			chain.ServeHTTP(w, r.WithContext(ctx))
		}()
		if took := time.Since(begin); took > 3*time.Second {
			t.Errorf("it took %s", took)
		}
		mu.Lock()
		defer mu.Unlock()
		if len(all) > 1 {
			t.Errorf("%d requests were made of one", len(all))
		}
		for _, got := range all {
			if !loopbackHost.MatchString(asked.Host) {
				t.Errorf("a request for %q reached the upstream", asked.Host)
			}
			for _, site := range asked.Header.Values("Sec-Fetch-Site") {
				if site != "none" && site != "same-origin" {
					t.Errorf("a request of a web page (%s) reached the upstream", site)
				}
			}
			for _, origin := range asked.Header.Values("Origin") {
				_, after, _ := strings.Cut(origin, "://")
				if !loopbackHost.MatchString(strings.TrimSuffix(after, "/")) {
					t.Errorf("a request of the origin %q reached the upstream", origin)
				}
			}
			if got.as == "wrapper" {
				if wrong := checkLent(asked, got); wrong != "" {
					t.Errorf("%s %s went upstream as the wrapper: %s", got.method, got.path, wrong)
				}
				continue
			}
			if strings.Contains(fmt.Sprint(got.header), "token-of-the-wrapper") {
				t.Error("the wrapper's token went upstream for a caller")
			}
			if !slices.Equal(got.header.Values("Authorization"), asked.Header.Values("Authorization")) &&
				!strings.Contains(strings.ToLower(fmt.Sprint(asked.Header["Connection"])), "authorization") {
				t.Errorf("the caller's credentials %q became %q",
					asked.Header.Values("Authorization"), got.header.Values("Authorization"))
			}
		}
	})
}

// FuzzHosts holds what is accepted as a host against what the standard library makes of it.
func FuzzHosts(f *testing.F) {
	for _, seed := range []string{
		"localhost", "127.0.0.1:80", "[::1]:1", "[::ffff:127.0.0.1]", "attacker.example", "0.0.0.0", "[::]",
	} {
		f.Add(seed)
	}
	p, err := New(Config{Upstream: &rest.Config{Host: "http://127.0.0.1:1"}, BindAddress: "127.0.0.1:0"},
		klog.Background())
	if err != nil {
		f.Fatal(err)
	}
	p.openViews(klog.Background())
	handler := p.chain()
	f.Fuzz(func(t *testing.T, host string) {
		r := httptest.NewRequestWithContext(klog.NewContext(t.Context(), logr.Discard()), http.MethodGet, "/livez", nil)
		r.Host = host
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		if w.Code != http.StatusOK {
			return
		}
		name := host
		if split, _, err := net.SplitHostPort(host); err == nil {
			name = split
		}
		name = strings.ToLower(strings.TrimSuffix(strings.Trim(name, "[]"), "."))
		if ip := net.ParseIP(name); name != "localhost" && (ip == nil || !ip.IsLoopback()) {
			t.Errorf("%q is accepted", host)
		}
	})
}
