package serve

import (
	"net/http"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestNegotiate(t *testing.T) {
	const none = encoding(-1)
	tests := []struct {
		accept      string
		list, watch encoding
	}{
		{"", encodingJSON, encodingJSON},
		{" ", encodingJSON, encodingJSON},
		{"application/json", encodingJSON, encodingJSON},
		{"*/*", encodingJSON, encodingJSON},
		{"application/*", encodingJSON, encodingJSON},
		{"application/yaml", encodingYAML, none},
		{"application/vnd.kubernetes.protobuf", encodingProtobuf, encodingProtobuf},
		{"application/vnd.kubernetes.protobuf;stream=watch", encodingProtobuf, encodingProtobuf},
		// kube-proxy's.
		{"application/vnd.kubernetes.protobuf, */*", encodingProtobuf, encodingProtobuf},
		{"application/vnd.kubernetes.protobuf;q=0.5, application/json", encodingJSON, encodingJSON},
		{"application/json;q=0.5, application/vnd.kubernetes.protobuf", encodingProtobuf, encodingProtobuf},
		{"application/vnd.kubernetes.protobuf;q=0, application/json", encodingJSON, encodingJSON},
		// kubectl's.
		{"application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json", encodingJSON, encodingJSON},
		{"application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json", encodingJSON, encodingJSON},
		{"application/yaml, application/json;q=0.9", encodingYAML, encodingJSON},
		{"text/html, application/json", encodingJSON, encodingJSON},
		{"application/json;as=Table;v=v1;g=meta.k8s.io", none, none},
		{"text/html", none, none},
		{"application/cbor", none, none},
		{"application/json;q=0", none, none},
		{"nonsense", none, none},
		{";;;", none, none},
	}
	for _, test := range tests {
		for _, watch := range []bool{false, true} {
			want := test.list
			if watch {
				want = test.watch
			}
			got, err := negotiate(test.accept, watch)
			switch {
			case want == none && !apierrors.IsNotAcceptable(err):
				t.Errorf("%q, watch %v: got %v and the error %v, want 406", test.accept, watch, got, err)
			case want != none && (err != nil || got != want):
				t.Errorf("%q, watch %v: got %v, %v, want %v", test.accept, watch, got, err, want)
			}
		}
	}
}

func TestContentTypes(t *testing.T) {
	c := newSyncedCluster(t, service("s"))
	tests := []struct {
		path, accept, want string
		code               int
	}{
		{servicesPath, "", "application/json", 200},
		{servicesPath, "application/yaml", "application/yaml", 200},
		{servicesPath, "application/vnd.kubernetes.protobuf, */*", "application/vnd.kubernetes.protobuf", 200},
		{servicesPath + "?watch=true&timeoutSeconds=1", "application/vnd.kubernetes.protobuf", "application/vnd.kubernetes.protobuf;stream=watch", 200},
		{servicesPath + "?watch=true&timeoutSeconds=1", "application/json", "application/json", 200},
		{"/api/v1/namespaces/default/services/s", "application/yaml", "application/yaml", 200},
		{servicesPath, "text/html", "application/json", 406},
		{"/api/v1/namespaces/default/services/s", "text/html", "application/json", 406},
	}
	for _, test := range tests {
		r := c.get(test.path, "Accept", test.accept)
		if got := r.header.Get("Content-Type"); got != test.want || r.code != test.code {
			t.Errorf("%s as %q: got %d %q, want %d %q", test.path, test.accept, r.code, got, test.code, test.want)
		}
		if test.code == http.StatusNotAcceptable {
			if status := r.status(t); status.Reason != metav1.StatusReasonNotAcceptable || !strings.Contains(status.Message, "application/json") {
				t.Errorf("%s as %q: the Status does not say what is accepted: %+v", test.path, test.accept, status)
			}
		}
	}
}

// TestYAMLWatchIsNotAcceptable: SuperEdge's wrapper crashed on it.
func TestYAMLWatchIsNotAcceptable(t *testing.T) {
	c := newSyncedCluster(t, service("s"))
	r := c.get(servicesPath+"?watch=true", "Accept", "application/yaml")
	if r.code != http.StatusNotAcceptable {
		t.Fatalf("got %d %q, want 406", r.code, r.body)
	}
	r.status(t)
}

func TestAcceptsGzip(t *testing.T) {
	tests := []struct {
		header string
		want   bool
	}{
		{"", false},
		{"gzip", true},
		{"GZIP", true},
		{"deflate, gzip;q=0.5", true},
		{"gzip; q=1.0", true},
		{"gzip;q=0", false},
		{"gzip;q=0.000", false},
		{"identity", false},
		{"x-gzip", false},
	}
	for _, test := range tests {
		r := &http.Request{Header: http.Header{"Accept-Encoding": {test.header}}}
		if got := acceptsGzip(r); got != test.want {
			t.Errorf("%q: got %v, want %v", test.header, got, test.want)
		}
	}
}

func FuzzNegotiate(f *testing.F) {
	for _, seed := range []string{"", "*/*", "application/json;as=Table;v=v1;g=meta.k8s.io,application/json", "a/b/c;q=;;,", "application/yaml;q=NaN", "*"} {
		f.Add(seed, "gzip;q=0.")
	}
	f.Fuzz(func(t *testing.T, accept, acceptEncoding string) {
		for _, watch := range []bool{false, true} {
			got, err := negotiate(accept, watch)
			if err != nil && !apierrors.IsNotAcceptable(err) {
				t.Fatalf("%q: %v", accept, err)
			}
			if err == nil && watch && got == encodingYAML {
				t.Fatalf("%q: a watch in YAML", accept)
			}
		}
		acceptsGzip(&http.Request{Header: http.Header{"Accept-Encoding": {acceptEncoding}}})
	})
}
