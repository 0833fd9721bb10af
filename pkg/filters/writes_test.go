package filters

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	kjson "sigs.k8s.io/json"

	"github.com/application-grid/application-grid/pkg/serve/quota"
	"github.com/application-grid/application-grid/pkg/storage/served"
	"github.com/application-grid/application-grid/pkg/storage/storagetest"
	"github.com/application-grid/application-grid/pkg/storage/wire"
	"github.com/application-grid/application-grid/pkg/storage/wire/wiretest"
)

const (
	slicesInNS    = "/apis/discovery.k8s.io/v1/namespaces/ns/endpointslices"
	endpointsInNS = "/api/v1/namespaces/ns/endpoints"
	servicesInNS  = "/api/v1/namespaces/ns/services"
)

// writeServer is a wrapper's store, the filter, and an upstream that keeps what reaches it.
type writeServer struct {
	t      *testing.T
	store  *storagetest.Node
	memory *quota.Quota
	// body is what reached the upstream last; nil if nothing has.
	body    []byte
	reached bool
}

func sliceOf(name, service, resourceVersion string) *discoveryv1.EndpointSlice {
	s := wiretest.SliceOf(name, service)
	s.ResourceVersion = resourceVersion
	s.Endpoints = []discoveryv1.Endpoint{
		{Addresses: []string{"10.0.0.1"}, NodeName: new("node0")},
		{Addresses: []string{"10.0.0.2"}, NodeName: new("node1")},
	}
	if service == "" {
		s.Labels = nil
	}
	return s
}

func serviceOf(name, resourceVersion, keys string) *corev1.Service {
	s := wiretest.ServiceOf(name, keys)
	s.ResourceVersion = resourceVersion
	return s
}

// newWriteServer has node0 in zone a and node1 in zone b, a Service that is governed by zone and one that is not, with
// a slice and Endpoints each, a slice whose Service is not known, and one of no Service. Their upstream resourceVersion
// is 11.
func newWriteServer(t *testing.T) *writeServer {
	t.Helper()
	w := &writeServer{
		t: t, store: storagetest.New(storagetest.Options{NodeName: "node0", KeepKubernetesEndpoint: true}),
		memory: quota.New(1 << 20),
	}
	node := func(name, zone string) *wire.Object {
		n := wiretest.NodeOf(name, zone)
		n.UID, n.ResourceVersion = types.UID(name), "11"
		return wiretest.Object(n)
	}
	list := func(name string) *wire.Object {
		return wiretest.Object(&corev1.Endpoints{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name), ResourceVersion: "11"},
		})
	}
	w.store.NodeLabels().Replace([]*wire.Object{node("node0", "a"), node("node1", "b")})
	w.store.OwnNode().Replace([]*wire.Object{node("node0", "a")})
	w.store.Services().Replace([]*wire.Object{
		wiretest.Object(serviceOf("open", "11", "")), wiretest.Object(serviceOf("closed", "11", `["zone"]`)),
	})
	w.store.EndpointSlices().Replace([]*wire.Object{
		wiretest.Object(sliceOf("open-1", "open", "11")), wiretest.Object(sliceOf("closed-1", "closed", "11")),
		wiretest.Object(sliceOf("orphan-1", "unknown", "11")), wiretest.Object(sliceOf("free", "", "11")),
	})
	w.store.Endpoints().Replace([]*wire.Object{list("open"), list("closed")})
	return w
}

// send passes a request through the filter. The answer is the upstream's if it gets there.
func (w *writeServer) send(method, path, contentType string, body []byte) *httptest.ResponseRecorder {
	w.t.Helper()
	w.body, w.reached = nil, false
	upstream := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var err error
		if w.body, err = io.ReadAll(r.Body); err != nil {
			w.t.Error(err)
		}
		if r.ContentLength >= 0 && int(r.ContentLength) != len(w.body) {
			w.t.Errorf("%s %s: a body of %d bytes with a Content-Length of %d",
				method, path, len(w.body), r.ContentLength)
		}
		w.reached = true
	})
	r := request(w.t, method, path)
	r.Header.Set("Content-Type", contentType)
	r.ContentLength = int64(len(body))
	r.Body = io.NopCloser(bytes.NewReader(body))
	viewing := Viewing{Own: w.store.View, Sites: w.store.Sites}
	recorder := answer(WithSite()(WithWrites(viewing, w.memory)(upstream)), r)
	if taken := w.memory.Stats().Taken; taken != 0 {
		w.t.Errorf("%s %s: %d bytes are still taken", method, path, taken)
	}
	if !w.reached {
		statusOf(w.t, recorder)
	}
	return recorder
}

// current is the wrapper's resourceVersion of an object in namespace ns, as its clients read it.
func (w *writeServer) current(r *served.Resource, name string) string {
	w.t.Helper()
	o, err := w.store.History.Get(r, types.NamespacedName{Namespace: "ns", Name: name}, 0)
	if err != nil || o == nil {
		w.t.Fatalf("%s %s: %v, %v", r.Resource, name, o, err)
	}
	return fmt.Sprint(o.Revision)
}

// writeRequest writes an object. Its body has a verb for the resourceVersion, and perhaps a second one for what must
// stay as it is.
type writeRequest struct{ name, method, path, contentType, body string }

// with returns the body with a resourceVersion. current is the wrapper's own.
func (c writeRequest) with(resourceVersion, current string) []byte {
	switch {
	case strings.Contains(c.body, "[2]"):
		return fmt.Appendf(nil, c.body, resourceVersion, current)
	case strings.Contains(c.body, "%"):
		return fmt.Appendf(nil, c.body, resourceVersion)
	}
	return []byte(c.body)
}

// currentAt is the wrapper's resourceVersion of the object at a path; 0 if it has none.
func (w *writeServer) currentAt(path string) string {
	path, _, _ = strings.Cut(strings.TrimSuffix(path, "/status"), "?")
	for collection, resource := range map[string]*served.Resource{
		servicesInNS: served.Services, slicesInNS: served.EndpointSlices, endpointsInNS: served.Endpoints,
	} {
		if name, ok := strings.CutPrefix(path, collection+"/"); ok {
			return w.current(resource, name)
		}
	}
	return "0"
}

// TestWritesGetTheUpstreamsResourceVersion, whatever they write it in; the rest of the body stays byte for byte.
func TestWritesGetTheUpstreamsResourceVersion(t *testing.T) {
	const jsonType = "application/json"
	const versioned = `{"metadata":{"resourceVersion":"%s"}}`
	w := newWriteServer(t)
	for _, test := range []writeRequest{
		{
			"update", "PUT", servicesInNS + "/open", jsonType,
			`{"kind":"Service", "metadata": {"name":"open", "resourceVersion" : "%s",` +
				` "labels":{"resourceVersion":"%[2]s"}},` +
				`"spec":{"x":[{"metadata":{"resourceVersion":"%[2]s"}}]}}` + "\n",
		},
		{"update without a content type", "PUT", servicesInNS + "/open", "", versioned},
		{"update of a parameter", "PUT", servicesInNS + "/open", jsonType + "; charset=utf-8", versioned},
		{"the same field twice", "PUT", servicesInNS + "/open", jsonType,
			`{"metadata":{"resourceVersion":"1","resourceVersion":"%s"},"metadata":{"resourceVersion":"%[1]s"}}`},
		{"update in YAML", "PUT", servicesInNS + "/open", "application/yaml", versioned},
		{"update of the status", "PUT", servicesInNS + "/open/status", jsonType, versioned},
		{"merge patch", "PATCH", servicesInNS + "/open", "application/merge-patch+json",
			`{"metadata":{"resourceVersion":"%s","labels":null}}`},
		{"strategic merge patch", "PATCH", servicesInNS + "/open", "application/strategic-merge-patch+json",
			versioned},
		{"JSON patch", "PATCH", servicesInNS + "/open", "application/json-patch+json",
			`[{"op":"test","path":"/metadata/resourceVersion","value":"%s"},{"op":"add","path":"/spec/x",` +
				`"value":"%[2]s"}]`},
		{"apply", "PATCH", servicesInNS + "/open?fieldManager=me", "application/apply-patch+yaml", versioned},
		{"deletion", "DELETE", servicesInNS + "/open", jsonType,
			`{"preconditions":{"uid":"u","resourceVersion":"%s"}}`},
		{"a slice that is not governed", "PUT", slicesInNS + "/open-1", jsonType, versioned},
		{"a slice of no Service", "PUT", slicesInNS + "/free", jsonType, versioned},
		{"Endpoints that are not governed", "PUT", endpointsInNS + "/open", jsonType, versioned},
		{"in the view of a site", "PUT", "/superedge-ingress/b" + servicesInNS + "/other", jsonType,
			`{"metadata":{"resourceVersion":"1"}}`},
	} {
		t.Run(test.name, func(t *testing.T) {
			w.t = t
			current := w.currentAt(test.path)
			w.send(test.method, test.path, test.contentType, test.with(current, current))
			want := string(test.with("11", current))
			if got := string(w.body); !equalBodies(test.contentType, got, want) {
				t.Errorf("the upstream got %s, want %s", got, want)
			}
			// One that is not current goes on as it is: the upstream's own, or one that is to conflict.
			for _, other := range []string{"11", "12", "1", "not a number"} {
				body := test.with(other, current)
				w.send(test.method, test.path, test.contentType, body)
				if !bytes.Equal(w.body, body) {
					t.Errorf("the upstream got %s, want %s", w.body, body)
				}
			}
		})
	}
}

// equalBodies compares bodies; in a JSON patch fields may be in another order.
func equalBodies(contentType, got, want string) bool {
	if contentType != "application/json-patch+json" {
		return got == want
	}
	var a, b any
	return json.Unmarshal([]byte(got), &a) == nil && json.Unmarshal([]byte(want), &b) == nil &&
		fmt.Sprint(a) == fmt.Sprint(b)
}

// TestWritesInProtobuf: client-go sends objects and DeleteOptions in it.
func TestWritesInProtobuf(t *testing.T) {
	const contentType = "application/vnd.kubernetes.protobuf"
	w := newWriteServer(t)
	update := func(resourceVersion string) []byte {
		raw, err := serviceOf("open", resourceVersion, `["kept"]`).Marshal()
		if err != nil {
			t.Fatal(err)
		}
		return append(wire.AppendEnvelope(nil, wire.TypeMeta{APIVersion: "v1", Kind: "Service"}, len(raw)), raw...)
	}
	deletion := func(resourceVersion string) []byte {
		raw, err := (&metav1.DeleteOptions{
			GracePeriodSeconds: new(int64(3)),
			Preconditions:      &metav1.Preconditions{UID: new(types.UID("u")), ResourceVersion: &resourceVersion},
		}).Marshal()
		if err != nil {
			t.Fatal(err)
		}
		return append(wire.AppendEnvelope(nil, wire.TypeMeta{APIVersion: "v1", Kind: "DeleteOptions"}, len(raw)),
			raw...)
	}
	for method, body := range map[string]func(string) []byte{"PUT": update, "DELETE": deletion} {
		w.send(method, servicesInNS+"/open", contentType, body(w.current(served.Services, "open")))
		if !bytes.Equal(w.body, body("11")) {
			t.Errorf("%s: the upstream got %q, want %q", method, w.body, body("11"))
		}
		w.send(method, servicesInNS+"/open", contentType, body("7"))
		if !bytes.Equal(w.body, body("7")) {
			t.Errorf("%s: the upstream got %q, want it as it came", method, w.body)
		}
	}
	for _, broken := range []string{"k8s\x00\xff", "no envelope", "k8s\x00\x12\x05\x0a\xff\xff\xff\xff"} {
		if w.send("PUT", servicesInNS+"/open", contentType, []byte(broken)); string(w.body) != broken {
			t.Errorf("the upstream got %q, want %q", w.body, broken)
		}
	}
}

// TestResourceVersionFollowsTheUpstream, also where clients are shown no difference.
func TestResourceVersionFollowsTheUpstream(t *testing.T) {
	w := newWriteServer(t)
	w.store.Services().Apply(wiretest.Object(serviceOf("open", "12", "")))
	w.store.EndpointSlices().Apply(wiretest.Object(sliceOf("free", "", "13")))
	for path, want := range map[string]string{servicesInNS + "/open": "12", slicesInNS + "/free": "13"} {
		resource, name := served.Services, "open"
		if strings.HasPrefix(path, slicesInNS) {
			resource, name = served.EndpointSlices, "free"
		}
		w.send("PUT", path, "application/json",
			fmt.Appendf(nil, `{"metadata":{"resourceVersion":%q}}`, w.current(resource, name)))
		if got := string(w.body); got != fmt.Sprintf(`{"metadata":{"resourceVersion":%q}}`, want) {
			t.Errorf("%s: the upstream got %s, want %s", path, got, want)
		}
	}
	before := w.current(served.Services, "open")
	changed := serviceOf("open", "14", "")
	changed.Labels = map[string]string{"new": "label"}
	w.store.Services().Apply(wiretest.Object(changed))
	stale := fmt.Sprintf(`{"metadata":{"resourceVersion":%q}}`, before)
	if w.send("PUT", servicesInNS+"/open", "application/json", []byte(stale)); string(w.body) != stale {
		t.Errorf("the upstream got %s for a revision that is not current, want it as it came", w.body)
	}
}

// TestWritesToAlteredObjectsAreRefused, with what to do instead, and never reach the upstream.
func TestWritesToAlteredObjectsAreRefused(t *testing.T) {
	const (
		merge     = "application/merge-patch+json"
		strategic = "application/strategic-merge-patch+json"
		apply     = "application/apply-patch+yaml"
		jsonPatch = "application/json-patch+json"
	)
	tests := []struct {
		method, path, contentType, body string
		refused                         bool
	}{
		{"PUT", slicesInNS + "/closed-1", "application/json", `{"metadata":{}}`, true},
		{"PUT", slicesInNS + "/orphan-1", "application/json", `{"metadata":{}}`, true},
		{"PUT", endpointsInNS + "/closed", "application/json", `{"metadata":{}}`, true},
		{"DELETE", slicesInNS + "/closed-1", "", "", true},
		{"DELETE", endpointsInNS + "/closed", "", "", true},
		{"DELETE", slicesInNS, "", "", true},
		{"DELETE", endpointsInNS, "", "", true},
		{"DELETE", slicesInNS + "?labelSelector=kubernetes.io/service-name%3Dclosed", "", "", true},
		{"DELETE", slicesInNS + "?labelSelector=kubernetes.io/service-name%3Dopen", "", "", false},
		{"DELETE", "/apis/discovery.k8s.io/v1/namespaces/other/endpointslices", "", "", false},
		{"DELETE", servicesInNS, "", "", false},
		{"PUT", "/apis/discovery.k8s.io/v1beta1/namespaces/ns/endpointslices/closed-1", "application/json", `{}`, true},
		{"PATCH", slicesInNS + "/closed-1", merge, `{"endpoints":[]}`, true},
		{"PATCH", slicesInNS + "/closed-1", merge, `{"metadata":{"labels":{"a":"b"}},"ports":null}`, true},
		{"PATCH", slicesInNS + "/closed-1", merge, `{"metadata":{"labels":{"a":"b"}}}`, false},
		{"PATCH", slicesInNS + "/closed-1", strategic, `{"apiVersion":"v1","metadata":{"labels":{"a":"b"}}}`, false},
		{"PATCH", slicesInNS + "/closed-1", strategic, `{"$patch":"replace","metadata":{}}`, true},
		{"PATCH", slicesInNS + "/closed-1", apply, "kind: EndpointSlice\nmetadata:\n  labels: {a: b}\n", false},
		{"PATCH", slicesInNS + "/closed-1", apply, "metadata: {}\nendpoints: []\n", true},
		{"PATCH", slicesInNS + "/closed-1", jsonPatch, `[{"op":"add","path":"/metadata/labels/a","value":"b"}]`, false},
		{"PATCH", slicesInNS + "/closed-1", jsonPatch, `[{"op":"remove","path":"/endpoints/0"}]`, true},
		{"PATCH", slicesInNS + "/closed-1", jsonPatch,
			`[{"op":"remove","path":"/endpoints/0","Path":"/metadata/a"}]`, true},
		{"PATCH", slicesInNS + "/closed-1", jsonPatch,
			`[{"op":"move","from":"/endpoints/0","path":"/metadata/labels/a"}]`, true},
		{"PATCH", slicesInNS + "/closed-1", jsonPatch, `[{"op":"replace","path":"","value":{}}]`, true},
		{"PATCH", slicesInNS + "/closed-1", "application/apply-patch+cbor", "\xa0", true},
		{"PATCH", slicesInNS + "/closed-1", merge, `nonsense`, true},
		{"POST", slicesInNS, "application/json", `{"metadata":{"name":"new"}}`, false},
		{"PUT", slicesInNS + "/new", "application/json", `{}`, false},
		{"PUT", servicesInNS + "/closed", "application/json", `{}`, false},
		{"PUT", "/superedge-ingress/b" + slicesInNS + "/closed-1", "application/json", `{}`, true},
		{"PUT", "/superedge-ingress/b" + slicesInNS + "/open-1", "application/json", `{}`, false},
		{"POST", servicesInNS + "/closed/proxy/path", "application/json", `{"metadata":{"resourceVersion":"1"}}`,
			false},
		{"PUT", "/api/v1/namespaces/ns/pods/closed", "application/json", `{}`, false},
	}
	w := newWriteServer(t)
	for _, test := range tests {
		name := test.method + " " + test.path + " " + test.body
		r := w.send(test.method, test.path, test.contentType, []byte(test.body))
		if w.reached == test.refused {
			t.Errorf("%s: reached the upstream: %v", name, w.reached)
		}
		if test.refused {
			body, _ := io.ReadAll(r.Body)
			if r.Code != http.StatusForbidden || !strings.Contains(string(body), "API server directly") {
				t.Errorf("%s: got %d %s", name, r.Code, body)
			}
		} else if string(w.body) != test.body {
			t.Errorf("%s: the upstream got %s", name, w.body)
		}
	}
}

// TestWritesToEndpointsThatAreHidden for a dead node are refused, too.
func TestWritesToEndpointsThatAreHidden(t *testing.T) {
	w := newWriteServer(t)
	w.store.SetDeadNodes(map[string]struct{}{"node1": {}})
	if w.send("PUT", slicesInNS+"/open-1", "application/json", []byte(`{}`)); w.reached {
		t.Error("an update of a slice of which an endpoint is hidden reached the upstream")
	}
	w.store.SetDeadNodes(nil)
	if w.send("PUT", slicesInNS+"/open-1", "application/json", []byte(`{}`)); !w.reached {
		t.Error("an update of a slice that is shown as it is did not reach the upstream")
	}
}

// TestWritesBeforeTheFirstSync are not let through: it is not known what they would destroy.
func TestWritesBeforeTheFirstSync(t *testing.T) {
	w := &writeServer{t: t, store: storagetest.New(storagetest.Options{NodeName: "node0"}), memory: quota.New(1)}
	for _, path := range []string{slicesInNS + "/x", endpointsInNS + "/x"} {
		if r := w.send("PUT", path, "application/json", []byte(`{}`)); w.reached ||
			r.Code != http.StatusServiceUnavailable || r.Header().Get("Retry-After") == "" {
			t.Errorf("%s: got %d", path, r.Code)
		}
	}
	if w.send("PUT", servicesInNS+"/x", "application/json", []byte(`{}`)); !w.reached {
		t.Error("an update of a Service did not reach the upstream: nothing of Services is ever altered")
	}
}

// TestBodiesOfWritesTakeMemory: beyond the bound they are answered 429.
func TestBodiesOfWritesTakeMemory(t *testing.T) {
	w := newWriteServer(t)
	body := fmt.Appendf(nil, `{"metadata":{"resourceVersion":"1"},"x":%q}`, strings.Repeat("x", 1000))
	release, ok := w.memory.AcquireN("", 1<<19)
	if !ok {
		t.Fatal("half of the memory was refused")
	}
	defer release()
	w.memory.AcquireN("other", 1<<19)
	viewing := Viewing{Own: w.store.View, Sites: w.store.Sites}
	recorder := answer(WithWrites(viewing, w.memory)(mark("upstream")), func() *http.Request {
		r := request(t, "PUT", servicesInNS+"/open")
		r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
		return r
	}())
	if s := statusOf(t, recorder); s.Code != http.StatusTooManyRequests || recorder.Header().Get("Retry-After") == "" {
		t.Errorf("got %+v", s)
	}
}

// FuzzBodyEdit: no body breaks the filter, and what is replaced is replaced wherever a decoder finds it.
func FuzzBodyEdit(f *testing.F) {
	for _, seed := range []string{
		`{"metadata":{"resourceVersion":"5"}}`, `{"metadata":[{}],"metadata":{"resourceVersion":5}}`,
		`[{"path":"/metadata/resourceVersion","value":"5"}]`, "metadata: {resourceVersion: \"5\"}",
		"k8s\x00\x12\x05\x0a\x03\x32\x01\x35", `{"metadata":{"resourceVersion":"5"`, strings.Repeat("[", 20000),
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, mediaType := range []string{
			"application/json", "application/yaml", "application/json-patch+json", "application/apply-patch+yaml",
			"application/vnd.kubernetes.protobuf", "",
		} {
			edit := bodyEdit{mediaType: mediaType}
			edit.onlyMetadata(body)
			edited := edit.replaceResourceVersion(body, "5", "77")
			if mediaType != "application/json" {
				continue
			}
			type object struct {
				Metadata struct {
					ResourceVersion string `json:"resourceVersion"`
				} `json:"metadata"`
			}
			var before, after object
			if kjson.UnmarshalCaseSensitivePreserveInts(body, &before) != nil {
				continue
			}
			if err := kjson.UnmarshalCaseSensitivePreserveInts(edited, &after); err != nil {
				t.Fatalf("%q became %q: %v", body, edited, err)
			}
			want := before
			if before.Metadata.ResourceVersion == "5" {
				want.Metadata.ResourceVersion = "77"
			}
			if after != want {
				t.Fatalf("%q became %q", body, edited)
			}
		}
	})
}
