package filters

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/lru"

	"github.com/application-grid/application-grid/pkg/storage/wire"
)

// recorded is what reached an upstream as the wrapper.
type recorded struct {
	*http.Request

	body string
}

// delegation is WithDelegatedIdentity of node0 before an upstream that answers with a code and remembers the last
// request.
type delegation struct {
	http.Handler

	code     int
	arrived  *recorded
	requests int
}

func newDelegation() *delegation {
	l := &delegation{code: http.StatusCreated}
	asWrapper := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		l.arrived = &recorded{r, string(body)}
		l.requests++
		w.WriteHeader(l.code)
		_, _ = io.WriteString(w, "wrapper")
	})
	l.Handler = WithDelegatedIdentity(asWrapper, "node0")(mark("caller"))
	return l
}

// send makes a request, and says as whom it went upstream: wrapper, caller, or the code with which it was refused.
func (l *delegation) send(t *testing.T, method, path, body string, headers ...string) string {
	t.Helper()
	r := request(t, method, path, headers...)
	r.Body, r.ContentLength = io.NopCloser(strings.NewReader(body)), int64(len(body))
	w := answer(l, r)
	if as := w.Body.String(); as == "wrapper" || as == "caller" {
		return as
	}
	return fmt.Sprint(w.Code, " ", statusOf(t, w).Message)
}

const (
	coreEvents = "/api/v1/namespaces/default/events"
	newEvents  = "/apis/events.k8s.io/v1/namespaces/default/events"
	coreInShop = "/api/v1/namespaces/shop/events"
	newInShop  = "/apis/events.k8s.io/v1/namespaces/shop/events"
	// ownEvent and ownNewEvent regard node0.
	ownEvent    = `{"metadata":{"name":"node0.1"},"involvedObject":{"kind":"Node","name":"node0"}}`
	ownNewEvent = `{"metadata":{"name":"node0.1"},"regarding":{"kind":"Node","name":"node0"}}`
)

// TestDelegatedCallsAreOnlyThoseListed: with its own identity the wrapper makes nothing for others but these, and
// only for callers that bring no identity of their own.
func TestDelegatedCallsAreOnlyThoseListed(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		method, path, body, authorization, want string
	}{
		{"POST", coreEvents, ownEvent, "", "wrapper"},
		{"POST", newEvents, ownNewEvent, "", "wrapper"},
		{"POST", newEvents + "?fieldManager=kube-proxy&timeout=10s", ownNewEvent, "", "wrapper"},
		{"GET", "/apis/networking.k8s.io/v1/servicecidrs", "", "", "wrapper"},
		{"GET", "/apis/networking.k8s.io/v1/servicecidrs?watch=true", "", "", "wrapper"},
		{"GET", "/apis/networking.k8s.io/v1/watch/servicecidrs", "", "", "wrapper"},
		{"GET", "/apis/networking.k8s.io/v1/servicecidrs/kubernetes", "", "", "wrapper"},

		{"POST", coreEvents, ownEvent, "Bearer mine", "caller"},
		{"GET", "/apis/networking.k8s.io/v1/servicecidrs", "", "Basic bWluZQ==", "caller"},

		{"GET", coreEvents, "", "", "caller"},
		{"DELETE", coreEvents, "", "", "caller"},
		{"DELETE", coreEvents + "/e", "", "", "caller"},
		{"PUT", coreEvents + "/e", ownEvent, "", "caller"},
		{"PATCH", coreEvents + "/e/status", `{"count":2}`, "", "caller"},
		{"POST", "/apis/networking.k8s.io/v1/servicecidrs", "{}", "", "caller"},
		{"GET", "/apis/networking.k8s.io/v1/servicecidrs/kubernetes/status", "", "", "caller"},
		{"GET", "/apis/other.io/v1/servicecidrs", "", "", "caller"},
		{"GET", "/api/v1/secrets", "", "", "caller"},
		{"GET", "/api/v1/namespaces/default/secrets/s", "", "", "caller"},
		{"GET", "/api/v1/nodes/other", "", "", "caller"},
		{"POST", "/apis/authentication.k8s.io/v1/tokenreviews", "{}", "", "caller"},
		{"GET", "/api", "", "", "caller"},
		// An upstream before the API server may resolve these to what is not in the list.
		{"PATCH", coreEvents + "/..", "{}", "", "caller"},
		{"POST", "/api/v1/namespaces/../events", ownEvent, "", "caller"},
		{"GET", "/apis/networking.k8s.io/v1/servicecidrs/%2e%2e", "", "", "caller"},
		{"GET", "/apis/networking.k8s.io/v1/servicecidrs/.", "", "", "caller"},
		{"GET", "/apis/networking.k8s.io/v1/servicecidrs/%5c..%5csecrets", "", "", "caller"},
		{"GET", "/apis/networking.k8s.io/v1/servicecidrs/a;b", "", "", "caller"},
		{"GET", "/apis/networking.k8s.io/v1/servicecidrs/a%00b", "", "", "caller"},
		{"GET", "/apis/networking.k8s.io/v1/servicecidrs/", "", "", "caller"},
		{"POST", "/api/v1//namespaces/default/events", ownEvent, "", "caller"},
		// Other ways to say it, of which not every one means the same to all.
		{"POST", "/api/v1/watch/namespaces/default/events", ownEvent, "", "404"},
		{"POST", "/api/v1/events", ownEvent, "", "404"},
		{"POST", "/api/v1beta1/namespaces/default/events", ownEvent, "", "404"},
		{"POST", "/apis/events.k8s.io/v1beta1/namespaces/default/events", ownNewEvent, "", "404"},
		{"POST", coreEvents + "/name", ownEvent, "", "404"},
		{"POST", coreEvents + "?dryRun=All", ownEvent, "",
			`403 the wrapper does not delegate its identity to an event with the parameter "dryRun"`},
	} {
		t.Run(test.method+" "+test.path+" "+test.authorization, func(t *testing.T) {
			t.Parallel()
			var headers []string
			if test.authorization != "" {
				headers = []string{"Authorization", test.authorization}
			}
			if got := newDelegation().send(t, test.method, test.path, test.body,
				headers...); !strings.HasPrefix(got, test.want) {
				t.Errorf("%s, want %s", got, test.want)
			}
		})
	}
}

// TestDelegatedIdentityCannotImpersonate: no client can impersonate a user with the wrapper's credentials.
func TestDelegatedIdentityCannotImpersonate(t *testing.T) {
	t.Parallel()
	for _, call := range []struct{ method, path, body string }{
		{"POST", coreEvents, ownEvent},
		{"GET", "/apis/networking.k8s.io/v1/servicecidrs", strings.Repeat("x", 1000)},
	} {
		l := newDelegation()
		got := l.send(t, call.method, call.path, call.body,
			"Impersonate-User", "admin", "impersonate-group", "system:masters",
			"Impersonate-Extra-Scopes", "x", "Impersonate-Uid", "1",
			"X-Remote-User", "admin", "X-Remote-Group", "system:masters",
			"X-Http-Method-Override", "DELETE", "Cookie", "session=1", "Upgrade", "websocket",
			"Accept", "application/json", "User-Agent", "kube-proxy", "Content-Type", "application/json")
		if got != "wrapper" {
			t.Fatal(got)
		}
		want := http.Header{
			"Accept": {"application/json"}, "User-Agent": {"kube-proxy"}, "Content-Type": {"application/json"},
		}
		if !reflect.DeepEqual(l.arrived.Header, want) {
			t.Errorf("%s %s is passed on with %v", call.method, call.path, l.arrived.Header)
		}
		if call.method == "GET" && l.arrived.body != "" {
			t.Errorf("a GET takes a body along: %q", l.arrived.body)
		}
		if got := l.send(t, call.method, call.path, call.body, "Connection", "keep-alive, Upgrade", "Content-Type",
			"application/json"); !strings.HasPrefix(got, "403 ") || l.requests != 1 {
			t.Errorf("with Connection: Upgrade: %s", got)
		}
	}
}

// eventRequest is a request that creates an event.
type eventRequest struct{ path, body string }

// newEvent is the body of an event of events.k8s.io.
func newEvent(regarding, reporter string) string {
	return fmt.Sprintf(`{"metadata":{"name":"e"},"regarding":%s,"reportingController":%q}`, regarding, reporter)
}

// expectEvents sends each request, and expects the same answer to all: wrapper, or a code.
func expectEvents(t *testing.T, want string, requests map[string]eventRequest) {
	t.Helper()
	for name, event := range requests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newDelegation()
			got := l.send(t, "POST", event.path, event.body, "Content-Type", "application/json; charset=utf-8")
			if !strings.HasPrefix(got, want) || (want != "wrapper" && l.arrived != nil) {
				t.Errorf("%s, want %s", got, want)
			}
			if want == "403" && !strings.Contains(got, `regard Node "node0"`) {
				t.Errorf("it does not say what is delegated: %s", got)
			}
		})
	}
}

// TestDelegatedEvents lists events that are created in the wrapper's name.
func TestDelegatedEvents(t *testing.T) {
	t.Parallel()
	expectEvents(t, "wrapper", map[string]eventRequest{
		"own node": {newEvents, newEvent(`{"kind":"Node","name":"node0"}`, "anyone")},
		"own node, all said": {newEvents,
			`{"apiVersion":"events.k8s.io/v1","kind":"Event","metadata":{"name":"e","namespace":"default"},` +
				`"regarding":{"apiVersion":"v1","kind":"Node","name":"node0","namespace":"default"}}`},
		"kube-proxy about a Service": {newInShop,
			newEvent(`{"apiVersion":"v1","kind":"Service","namespace":"shop","name":"s"}`, "kube-proxy")},
		"core: kube-proxy": {coreInShop,
			`{"involvedObject":{"kind":"Service","namespace":"shop","name":"s"},"source":{"component":"kube-proxy"}}`},
		"core: kube-proxy, new style": {coreInShop,
			`{"involvedObject":{"kind":"Service","namespace":"shop","name":"s"},"reportingComponent":"kube-proxy"}`},
		"one that is just not too large": {newEvents,
			ownNewEvent + strings.Repeat(" ", maxDelegatedEvent-len(ownNewEvent))},
	})
}

// TestEventsThatAreNotDelegated lists events about anything else, or of somebody else.
func TestEventsThatAreNotDelegated(t *testing.T) {
	t.Parallel()
	expectEvents(t, "403", map[string]eventRequest{
		"another node":        {newEvents, newEvent(`{"kind":"Node","name":"node1"}`, "kube-proxy")},
		"own node, elsewhere": {newInShop, newEvent(`{"kind":"Node","name":"node0"}`, "kube-proxy")},
		"own node in kube-system": {newEvents,
			newEvent(`{"kind":"Node","name":"node0","namespace":"kube-system"}`, "kube-proxy")},
		"a pod called like the node": {newEvents, newEvent(`{"kind":"Pod","name":"node0"}`, "kube-proxy")},
		"another group's Node": {newEvents,
			newEvent(`{"apiVersion":"example.io/v1","kind":"Node","name":"node0"}`, "kube-proxy")},
		"another group's Service": {newInShop,
			newEvent(`{"apiVersion":"serving.knative.dev/v1","kind":"Service","namespace":"shop","name":"s"}`,
				"kube-proxy")},
		"nobody":                  {newEvents, `{}`},
		"someone about a Service": {newInShop, newEvent(`{"kind":"Service","namespace":"shop","name":"s"}`, "someone")},
		"a Service of another namespace": {newEvents,
			newEvent(`{"kind":"Service","namespace":"shop","name":"s"}`, "kube-proxy")},
		"a Service of no namespace": {newEvents, newEvent(`{"kind":"Service","name":"s"}`, "kube-proxy")},
		"core: someone about a Service": {coreInShop,
			`{"involvedObject":{"kind":"Service","namespace":"shop","name":"s"},"source":{"component":"x"},` +
				`"reportingComponent":"kube-proxy"}`},
		"metadata of another namespace": {newEvents,
			`{"metadata":{"name":"e","namespace":"shop"},"regarding":{"kind":"Node","name":"node0"}}`},
		"the field of the other group": {newEvents, ownEvent},
		"a second regarding": {newEvents,
			`{"regarding":{"kind":"Node","name":"node0"},"regarding":{"kind":"Node","name":"node1"}}`},
		"another case is another field": {newEvents, `{"Regarding":{"kind":"Node","name":"node0"}}`},
	})
	nameless := WithDelegatedIdentity(mark("wrapper"), "")(mark("caller"))
	r := request(t, "POST", newEvents)
	r.Body = io.NopCloser(strings.NewReader(newEvent(`{"kind":"Node","name":""}`, "")))
	if w := answer(nameless, r); w.Code != http.StatusForbidden {
		t.Errorf("a wrapper without a node delegates an event: %d %s", w.Code, w.Body)
	}
}

func TestBodiesThatAreNoEvent(t *testing.T) {
	t.Parallel()
	expectEvents(t, "400", map[string]eventRequest{
		"not of this group": {newEvents,
			`{"apiVersion":"v1","kind":"Event","regarding":{"kind":"Node","name":"node0"}}`},
		"not an Event": {newEvents, `{"kind":"Secret","regarding":{"kind":"Node","name":"node0"}}`},
		"no JSON":      {newEvents, `kind: Event`},
		"a list":       {newEvents, `[]`},
		"nothing":      {newEvents, ``},
	})
	expectEvents(t, "413", map[string]eventRequest{
		"one that is too large by a byte": {newEvents,
			ownNewEvent + strings.Repeat(" ", maxDelegatedEvent-len(ownNewEvent)+1)},
	})
}

// TestDelegatedEventsAreEncodedAgain: the upstream gets what was understood here, and nothing of what was not.
func TestDelegatedEventsAreEncodedAgain(t *testing.T) {
	t.Parallel()
	l := newDelegation()
	if got := l.send(t, "POST", newEvents,
		`{"regarding":{"kind":"Pod","name":"x"},"Regarding":{"kind":"Pod"},"unknown":1,"note":"n",`+
			`"regarding":{"kind":"Node","name":"node0"}}`); got != "wrapper" {
		t.Fatal(got)
	}
	var fields map[string]any
	if err := json.Unmarshal([]byte(l.arrived.body), &fields); err != nil {
		t.Fatal(err)
	}
	if strings.Count(strings.ToLower(l.arrived.body), `"regarding"`) != 1 || fields["unknown"] != nil ||
		fields["note"] != "n" || fields["apiVersion"] != "events.k8s.io/v1" {
		t.Errorf("got %s", l.arrived.body)
	}

	// As kube-proxy sends it.
	when := metav1.NewMicroTime(time.Date(2026, 7, 3, 10, 20, 30, 123456789, time.UTC))
	event := &eventsv1.Event{
		ObjectMeta: metav1.ObjectMeta{Name: "node0.17", Namespace: "default"}, EventTime: when,
		ReportingController: "kube-proxy", ReportingInstance: "kube-proxy-h",
		Action: "StartKubeProxy", Reason: "Starting", Type: "Normal",
		Regarding: corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: "node0"},
	}
	raw, err := event.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	body := append(wire.AppendEnvelope(nil, wire.TypeMeta{APIVersion: "events.k8s.io/v1", Kind: "Event"}, len(raw)),
		raw...)
	if got := l.send(t, "POST", newEvents, string(body), "Content-Type", runtime.ContentTypeProtobuf, "Accept",
		runtime.ContentTypeProtobuf); got != "wrapper" {
		t.Fatal(got)
	}
	decoded, _, err := scheme.Codecs.UniversalDeserializer().Decode([]byte(l.arrived.body), nil, nil)
	if err != nil || l.arrived.Header.Get("Content-Type") != "application/json" {
		t.Fatal(err)
	}
	got := decoded.(*eventsv1.Event)
	if got.EventTime.Equal(&when) || !got.EventTime.Time.Equal(when.Truncate(time.Microsecond)) {
		t.Errorf("at %s, not %s", got.EventTime, when)
	}
	got.TypeMeta, got.EventTime = event.TypeMeta, event.EventTime
	if !reflect.DeepEqual(got, event) {
		t.Errorf("got %+v, want %+v", got, event)
	}
	for _, broken := range []string{"", "k8s\x00", "k8s\x00\xff\xff", string(body[:len(body)-3]), ownNewEvent} {
		if got := l.send(t, "POST", newEvents, broken, "Content-Type",
			runtime.ContentTypeProtobuf); !strings.HasPrefix(got, "40") {
			t.Errorf("%q: %s", broken, got)
		}
	}
	for _, other := range []string{
		"text/plain", "application/yaml", "application/cbor", "application/x-www-form-urlencoded", ";",
	} {
		if got := l.send(t, "POST", newEvents, ownNewEvent, "Content-Type", other); !strings.HasPrefix(got, "415 ") {
			t.Errorf("%s: %s", other, got)
		}
	}
}

// TestDelegatedPatches: only events that were created in the wrapper's name are patched in it, and of them only what
// changes when an event happens again.
func TestDelegatedPatches(t *testing.T) {
	t.Parallel()
	l := newDelegation()
	const merge, strategic = "application/merge-patch+json", "application/strategic-merge-patch+json"
	patch := func(name, body, mediaType string) string {
		l.arrived = nil
		return l.send(t, "PATCH", newEvents+"/"+name, body, "Content-Type", mediaType)
	}
	const series = `{"series":{"count":2,"lastObservedTime":"2030-01-01T00:00:00.000000Z"}}`
	if got := patch("node0.1", series, strategic); !strings.HasPrefix(got, "404 ") {
		t.Errorf("one that was not created here: %s", got)
	}
	l.code = http.StatusForbidden
	l.send(t, "POST", newEvents, ownNewEvent)
	if got := patch("node0.1", series, strategic); !strings.HasPrefix(got, "404 ") {
		t.Errorf("one that the upstream refused: %s", got)
	}
	l.code = http.StatusConflict
	l.send(t, "POST", newEvents, `{"metadata":{"name":"somebodys"},"regarding":{"kind":"Node","name":"node0"}}`)
	if got := patch("somebodys", series, strategic); !strings.HasPrefix(got, "404 ") {
		t.Errorf("one that is there and is called otherwise: %s", got)
	}
	// It may be an event about another object, such as that of a Pod with the node's name.
	l.send(t, "POST", newEvents, ownNewEvent)
	if got := patch("node0.1", series, strategic); !strings.HasPrefix(got, "404 ") {
		t.Errorf("one that was there already: %s", got)
	}
	l.code = http.StatusCreated
	l.send(t, "POST", coreEvents, `{"metadata":{"name":"e"},"involvedObject":{"kind":"Node","name":"node0"}}`)
	for _, mediaType := range []string{merge, strategic} {
		if got := patch("e", series, mediaType); got != "wrapper" || l.arrived.body != series ||
			l.arrived.Header.Get("Content-Type") != mediaType {
			t.Errorf("%s: %s %+v", mediaType, got, l.arrived)
		}
	}
	if got := patch("e", `{"count":2,"lastTimestamp":"2030-01-01T00:00:00Z","message":"m"}`, merge); got != "wrapper" {
		t.Errorf("as tools/record does: %s", got)
	}
	for body, code := range map[string]string{
		`{"regarding":{"kind":"Pod"}}`:                "403",
		`{"involvedObject":{}}`:                       "403",
		`{"metadata":{"finalizers":["x"]}}`:           "403",
		`{"series":{},"metadata":{}}`:                 "403",
		`{"Series":{}}`:                               "403",
		`[{"op":"remove","path":"/series"}]`:          "400",
		`null x`:                                      "400",
		strings.Repeat(" ", maxDelegatedEvent) + "{}": "413",
	} {
		if got := patch("e", body, merge); !strings.HasPrefix(got, code+" ") || l.arrived != nil {
			t.Errorf("%s: %s", short(body), got)
		}
	}
	for _, mediaType := range []string{
		"application/json-patch+json", "application/apply-patch+yaml", "application/json", "",
	} {
		if got := patch("e", series, mediaType); !strings.HasPrefix(got, "415 ") {
			t.Errorf("%s: %s", mediaType, got)
		}
	}
}

// TestDelegatedEventsAreRated: no caller fills the cluster with events.
func TestDelegatedEventsAreRated(t *testing.T) {
	t.Parallel()
	synctest.Test(t, ratesDelegatedEvents)
}

func ratesDelegatedEvents(t *testing.T) {
	l := newDelegation()
	for range 100 { // what is refused costs nothing
		l.send(t, "POST", newEvents, `{}`)
	}
	for second := range 3 {
		time.Sleep(time.Duration(min(second, 1)) * time.Second)
		for range 100 {
			l.send(t, "POST", newEvents, ownNewEvent)
		}
		if want := delegatedEventsBurst + second*delegatedEventsPerSecond; l.requests != want {
			t.Errorf("%d were passed on, want %d", l.requests, want)
		}
	}
	r := request(t, "POST", newEvents)
	r.Body = io.NopCloser(strings.NewReader(ownNewEvent))
	w := answer(l, r)
	if status := statusOf(t, w); w.Code != http.StatusTooManyRequests || w.Header().Get("Retry-After") != "1" ||
		status.Reason != metav1.StatusReasonTooManyRequests {
		t.Errorf("one too many: %d %v %+v", w.Code, w.Header(), status)
	}
	before := l.requests
	for range 100 {
		l.send(t, "GET", "/apis/networking.k8s.io/v1/servicecidrs", "")
	}
	if got := l.requests - before; got != delegatedReadsBurst {
		t.Errorf("%d of 100 reads were passed on at once", got)
	}
	callers := lru.New(rememberedCallers)
	for range 100 {
		allowRead(callers, "user 1000")
	}
	if allowRead(callers, "user 1000") || !allowRead(callers, "user 0") {
		t.Error("one caller uses up what another may read")
	}
}

// TestRecorderThroughTheWrapper has the recorder that kube-proxy has write through the wrapper: an event, the same
// again, which is a patch, and again after the wrapper has forgotten the first.
func TestRecorderThroughTheWrapper(t *testing.T) {
	t.Parallel()
	arrived := make(chan string, 10)
	var exists atomic.Bool
	asWrapper := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("Content-Type", "application/json")
		if r.Method == http.MethodPost && exists.Swap(true) {
			w.WriteHeader(http.StatusConflict)
			_, _ = io.WriteString(w,
				`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"AlreadyExists","code":409}`)
			arrived <- "conflict"
			return
		}
		if r.Method == http.MethodPost {
			w.WriteHeader(http.StatusCreated)
		} else {
			body = []byte(`{"apiVersion":"events.k8s.io/v1","kind":"Event"}`)
		}
		_, _ = w.Write(body)
		arrived <- r.Method
	})
	filter := func() http.Handler {
		return WithBodyLimit(BodyTimeout)(WithDelegatedIdentity(asWrapper, "node0")(mark("caller")))
	}
	var wrapper atomic.Pointer[http.Handler]
	restart := func() { wrapper.Store(new(filter())) }
	restart()
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		(*wrapper.Load()).ServeHTTP(w, r)
	}))
	t.Cleanup(front.Close)
	client, err := kubernetes.NewForConfig(&rest.Config{
		Host: front.URL, ContentConfig: rest.ContentConfig{ContentType: runtime.ContentTypeProtobuf},
	})
	if err != nil {
		t.Fatal(err)
	}
	expect := func(want string) {
		t.Helper()
		select {
		case got := <-arrived:
			if got != want {
				t.Fatalf("got %s, want %s", got, want)
			}
		case <-time.After(20 * time.Second):
			t.Fatalf("no %s arrived", want)
		}
	}
	broadcaster := events.NewBroadcaster(&events.EventSinkImpl{Interface: client.EventsV1()})
	t.Cleanup(broadcaster.Shutdown)
	if err := broadcaster.StartRecordingToSinkWithContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	recorder := broadcaster.NewRecorder(scheme.Scheme, "kube-proxy")
	node := &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: "node0"}
	recorder.Eventf(node, nil, corev1.EventTypeNormal, "Starting", "StartKubeProxy", "")
	expect(http.MethodPost)
	restart()
	recorder.Eventf(node, nil, corev1.EventTypeNormal, "Starting", "StartKubeProxy", "")
	// 404 to its patch, so that it creates it again; and then it gives up
	expect("conflict")
}

// TestNoUpgradeWithoutUpgrade: Connection: Upgrade alone lifts no limit. 64 MiB were streamed upstream with it, in
// the wrapper's name and for as long as it took.
func TestNoUpgradeWithoutUpgrade(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		line, headers string
		most          int64
	}{
		{"POST " + coreEvents, "Connection: Upgrade\r\n", 0},
		{"PATCH " + coreEvents + "/e", "Connection: Upgrade\r\nUpgrade: websocket\r\n", 0},
		{"POST " + coreEvents, "", 0},
		{"GET /apis/networking.k8s.io/v1/servicecidrs", "Connection: Upgrade\r\n", 0},
		{"POST /api/v1/namespaces", "Connection: Upgrade\r\n", MaxBody},
		{"POST /api/v1/namespaces", "Connection: Upgrade\r\nUpgrade: websocket\r\n", MaxBody},
		{"GET /api/v1/pods", "Connection: Upgrade\r\nUpgrade: websocket\r\n", MaxBody},
		{"PUT /api/v1/namespaces/a", "Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\n", MaxBody},
	} {
		for _, chunked := range []bool{false, true} {
			name := fmt.Sprintf("%s with %q, chunked %v", test.line, test.headers, chunked)
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				status, streamed := streamLargeBody(t, test.line, test.headers, chunked)
				if status != 0 && status < 400 {
					t.Errorf("status %d", status)
				}
				if streamed > test.most {
					t.Errorf("%d bytes were streamed upstream, want at most %d", streamed, test.most)
				}
			})
		}
	}
}

// streamLargeBody sends a request with a body of 64 MiB through the filters to an upstream of its own, and returns the
// status, 0 if the connection was cut under what was still being sent, and how much of the body the upstream got.
func streamLargeBody(t *testing.T, line, headers string, chunked bool) (status int, streamed int64) {
	t.Helper()
	var read atomic.Int64
	upstream := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		n, _ := io.Copy(io.Discard, r.Body)
		read.Add(n)
	}))
	u, err := url.Parse(upstream.URL)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{}
	forward := func() http.Handler {
		return Forward(Target{URL: u, Transport: transport, UpgradeTransport: transport})
	}
	const timeout = 500 * time.Millisecond
	front := httptest.NewServer(WithoutFalseUpgrades()(WithBodyLimit(timeout)(WithDelegatedIdentity(
		forward(), "node0",
	)(forward()))))
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", front.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	const size = 64 << 20
	length := fmt.Sprintf("Content-Length: %d\r\n", size)
	if chunked {
		length = "Transfer-Encoding: chunked\r\n"
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = fmt.Fprintf(conn, "%s HTTP/1.1\r\nHost: localhost\r\n%s%s\r\n", line, headers, length)
		block := make([]byte, 1<<20)
		for range size / len(block) {
			if chunked {
				_, _ = fmt.Fprintf(conn, "%x\r\n", len(block))
			}
			if _, err := conn.Write(block); err != nil {
				return
			}
			if chunked {
				_, _ = io.WriteString(conn, "\r\n")
			}
		}
	}()
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err == nil {
		_ = response.Body.Close()
		status = response.StatusCode
	}
	_ = conn.Close()
	<-done
	// both wait until their handlers have returned, so that nothing is counted late
	front.Close()
	transport.CloseIdleConnections()
	upstream.Close()
	return status, read.Load()
}

func TestIsUpgrade(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		method, connection, upgrade string
		length                      int64
		want                        bool
	}{
		{"GET", "Upgrade", "websocket", 0, true},
		{"POST", "keep-alive, upgrade", "SPDY/3.1", 0, true},
		{"POST", "Upgrade", "SPDY/3.1", 1, false},
		{"POST", "Upgrade", "SPDY/3.1", -1, false},
		{"POST", "Upgrade", "", 0, false},
		{"POST", "", "SPDY/3.1", 0, false},
		{"POST", "upgrades", "SPDY/3.1", 0, false},
		{"PUT", "Upgrade", "SPDY/3.1", 0, false},
		{"PATCH", "Upgrade", "SPDY/3.1", 0, false},
		{"CONNECT", "Upgrade", "websocket", 0, false},
	} {
		r := request(t, test.method, "/", "Connection", test.connection, "Upgrade", test.upgrade)
		r.ContentLength = test.length
		if got := isUpgrade(r); got != test.want {
			t.Errorf("%+v: %v", test, got)
		}
		passed := &keep{}
		answer(WithoutFalseUpgrades()(passed), r)
		if kept := passed.last.Header.Get("Upgrade") != ""; kept != test.want {
			t.Errorf("%+v: passed on with Upgrade: %v", test, kept)
		}
	}
}
