package serve

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestNegotiate(t *testing.T) {
	const none = encoding(-1)
	tests := []struct {
		accept string
		want   encoding
	}{
		{"", encodingJSON},
		{" ", encodingJSON},
		{"application/json", encodingJSON},
		{"*/*", encodingJSON},
		{"application/*", encodingJSON},
		{"application/yaml", none},
		{"application/vnd.kubernetes.protobuf", encodingProtobuf},
		{"application/vnd.kubernetes.protobuf;stream=watch", encodingProtobuf},
		// kube-proxy's.
		{"application/vnd.kubernetes.protobuf, */*", encodingProtobuf},
		{"application/vnd.kubernetes.protobuf;q=0.5, application/json", encodingJSON},
		{"application/json;q=0.5, application/vnd.kubernetes.protobuf", encodingProtobuf},
		{"application/vnd.kubernetes.protobuf;q=0, application/json", encodingJSON},
		{"application/yaml, application/json;q=0.9", encodingJSON},
		{"text/html, application/json", encodingJSON},
		{"application/json;as=Tableau;v=v1;g=meta.k8s.io", none},
		{"application/json;as=Tableau;v=v1;g=meta.k8s.io, application/vnd.kubernetes.protobuf", encodingProtobuf},
		{"text/html", none},
		{"application/cbor", none},
		{"application/json;q=0", none},
		{"nonsense", none},
		{";;;", none},
	}
	for _, test := range tests {
		for _, reads := range []answerKind{listAnswer, watchAnswer} {
			got, err := negotiate(test.accept, reads)
			switch {
			case test.want == none && !apierrors.IsNotAcceptable(err):
				t.Errorf("%q for %d: got %v and the error %v, want 406", test.accept, reads, got, err)
			case test.want != none && (err != nil || got != format{encoding: test.want}):
				t.Errorf("%q for %d: got %v, %v, want %v", test.accept, reads, got, err, test.want)
			}
		}
	}
}

func TestNegotiateForms(t *testing.T) {
	const (
		kubectl = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io," +
			"application/json"
		metadata = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata%[1]s;g=meta.k8s.io;v=v1," +
			"application/json;as=PartialObjectMetadata%[1]s;g=meta.k8s.io;v=v1,application/json"
	)
	object := fmt.Sprintf(metadata, "")
	list := fmt.Sprintf(metadata, "List")
	tests := []struct {
		accept string
		reads  answerKind
		want   format
	}{
		// There are no tables, so kubectl gets objects.
		{kubectl, objectAnswer, format{}},
		{kubectl, listAnswer, format{}},
		{kubectl, watchAnswer, format{}},
		{"application/json;as=PartialObjectMetadataList;v=v2;g=meta.k8s.io,application/json", listAnswer, format{}},
		{"application/json;as=PartialObjectMetadataList;v=v1,application/json", listAnswer, format{}},
		{object, objectAnswer, format{encodingProtobuf, "meta.k8s.io/v1"}},
		{object, watchAnswer, format{encodingProtobuf, "meta.k8s.io/v1"}},
		{list, listAnswer, format{encodingProtobuf, "meta.k8s.io/v1"}},
		{object, listAnswer, format{}},
		{list, objectAnswer, format{}},
		{list, watchAnswer, format{}},
		{
			"application/json;as=PartialObjectMetadataList;v=v1beta1;g=meta.k8s.io", listAnswer,
			format{encodingJSON, "meta.k8s.io/v1beta1"},
		},
	}
	for _, test := range tests {
		if got, err := negotiate(test.accept, test.reads); err != nil || got != test.want {
			t.Errorf("%q for %d: got %+v, %v, want %+v", test.accept, test.reads, got, err, test.want)
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
		{servicesPath, "application/yaml", "application/json", 406},
		{servicesPath, "application/vnd.kubernetes.protobuf, */*", "application/vnd.kubernetes.protobuf", 200},
		{
			servicesPath + "?watch=true&timeoutSeconds=1", "application/vnd.kubernetes.protobuf",
			"application/vnd.kubernetes.protobuf;stream=watch", 200,
		},
		{servicesPath + "?watch=true&timeoutSeconds=1", "application/json", "application/json", 200},
		{servicesPath, "text/html", "application/json", 406},
		// SuperEdge's wrapper crashed on it.
		{servicesPath + "?watch=true", "application/yaml", "application/json", 406},
		{"/api/v1/namespaces/default/services/s", "text/html", "application/json", 406},
	}
	for _, test := range tests {
		r := c.get(test.path, "Accept", test.accept)
		if got := r.header.Get("Content-Type"); got != test.want || r.code != test.code {
			t.Errorf("%s as %q: got %d %q, want %d %q", test.path, test.accept, r.code, got, test.code, test.want)
		}
		if test.code == http.StatusNotAcceptable {
			if status := r.status(t); status.Reason != metav1.StatusReasonNotAcceptable ||
				!strings.Contains(status.Message, "application/json") {
				t.Errorf("%s as %q: the Status does not say what is accepted: %+v", test.path, test.accept, status)
			}
		}
	}
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
	for _, seed := range []string{
		"", "*/*", "application/json;as=Table;v=v1;g=meta.k8s.io,application/json", "a/b/c;q=;;,",
		"application/yaml;q=NaN", "*",
	} {
		f.Add(seed, "gzip;q=0.")
	}
	f.Fuzz(func(t *testing.T, accept, acceptEncoding string) {
		for _, reads := range []answerKind{listAnswer, watchAnswer} {
			if _, err := negotiate(accept, reads); err != nil && !apierrors.IsNotAcceptable(err) {
				t.Fatalf("%q: %v", accept, err)
			}
		}
		if got, _ := negotiate(accept, typedAnswer); got.metadata != "" {
			t.Fatalf("%q: the metadata of a Status", accept)
		}
		acceptsGzip(&http.Request{Header: http.Header{"Accept-Encoding": {acceptEncoding}}})
	})
}
