package filters

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/application-grid/application-grid/internal/testkit/storagetest"
	"github.com/application-grid/application-grid/internal/testkit/wiretest"
	"github.com/application-grid/application-grid/pkg/storage/facts"
	"github.com/application-grid/application-grid/pkg/storage/wire"
)

const (
	slicesInNS    = "/apis/discovery.k8s.io/v1/namespaces/ns/endpointslices"
	endpointsInNS = "/api/v1/namespaces/ns/endpoints"
	servicesInNS  = "/api/v1/namespaces/ns/services"
)

// writeServer is a wrapper's store, the filter, and an upstream that keeps what reaches it.
type writeServer struct {
	t     *testing.T
	store *storagetest.Node
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
	viewing := Views{Own: w.store.View, Sites: w.store.Sites}
	recorder := answer(WithSite()(WithoutAlteredWrites(viewing)(upstream)), r)
	if !w.reached {
		statusOf(w.t, recorder)
	}
	return recorder
}

// TestWritesToAlteredObjectsAreRefused, with what to do instead, and never reach the upstream.
func TestWritesToAlteredObjectsAreRefused(t *testing.T) {
	const merge = "application/merge-patch+json"
	tests := []struct {
		method, path, contentType, body string
		refused                         bool
	}{
		{"PUT", slicesInNS + "/closed-1", "application/json", `{"metadata":{}}`, true},
		{"PUT", slicesInNS + "/orphan-1", "application/json", `{"metadata":{}}`, true},
		{"PUT", endpointsInNS + "/closed", "application/json", `{"metadata":{}}`, true},
		{"PUT", "/apis/discovery.k8s.io/v1beta1/namespaces/ns/endpointslices/closed-1", "application/json", `{}`, true},
		{"PUT", slicesInNS + "/closed-1/status", "application/json", `{}`, true},
		{"DELETE", slicesInNS + "/closed-1", "", "", true},
		{"DELETE", endpointsInNS + "/closed", "", "", true},
		{"DELETE", slicesInNS, "", "", true},
		{"DELETE", endpointsInNS, "", "", true},
		{"DELETE", slicesInNS + "?labelSelector=kubernetes.io/service-name%3Dopen", "", "", true},
		{"DELETE", servicesInNS, "", "", false},
		{"PATCH", slicesInNS + "/closed-1", merge, `{"endpoints":[]}`, true},
		{"PATCH", slicesInNS + "/closed-1", merge, `{"metadata":{"labels":{"a":"b"}}}`, true},
		{"PATCH", slicesInNS + "/open-1", merge, `{"endpoints":[]}`, false},
		{"PATCH", endpointsInNS + "/open", merge, `{"metadata":{"resourceVersion":"1"}}`, false},
		{"PATCH", servicesInNS + "/closed", merge, `{"metadata":{"resourceVersion":"1"}}`, false},
		{"PUT", slicesInNS + "/open-1", "application/json", `{"metadata":{"resourceVersion":"1"}}`, false},
		{"DELETE", slicesInNS + "/open-1", "", "", false},
		{"POST", slicesInNS, "application/json", `{"metadata":{"name":"new"}}`, false},
		{"PUT", slicesInNS + "/new", "application/json", `{}`, false},
		{"PUT", slicesInNS + "/free", "application/json", `{}`, false},
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
	w.store.SetDoubted(facts.Dead, map[string]struct{}{"node1": {}})
	if w.send("PUT", slicesInNS+"/open-1", "application/json", []byte(`{}`)); w.reached {
		t.Error("an update of a slice of which an endpoint is hidden reached the upstream")
	}
	w.store.SetDoubted(facts.Dead, nil)
	if w.send("PUT", slicesInNS+"/open-1", "application/json", []byte(`{}`)); !w.reached {
		t.Error("an update of a slice that is shown as it is did not reach the upstream")
	}
}

// TestWritesBeforeTheFirstSync are not let through: it is not known what they would destroy.
func TestWritesBeforeTheFirstSync(t *testing.T) {
	w := &writeServer{t: t, store: storagetest.New(storagetest.Options{NodeName: "node0"})}
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
