package lite

import (
	"net/http"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
)

// TestBodies are those of kube-apiserver, byte by byte: items of a list have no kind, but objects and bookmarks have.
func TestBodies(t *testing.T) {
	t.Parallel()
	f := running(t)
	f.away()
	f.server.stop() // watches end when they have begun
	const (
		volume   = "/api/v1/persistentvolumes/volume"
		list     = "/api/v1/namespaces/shop/secrets?fieldSelector=metadata.name%3Dpassword"
		watch    = list + "&watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan"
		metadata = ";as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
		secret   = `"metadata":{"name":"password","namespace":"shop","resourceVersion":"0"},"data":{"word":"c2VzYW1l"}}`
		end      = `"metadata":{"resourceVersion":"5","annotations":{"k8s.io/initial-events-end":"true"}}}}` + "\n"
		added    = `{"type":"ADDED","object":{"kind":"Secret","apiVersion":"v1",` + secret + "}\n"
		bookmark = `{"type":"BOOKMARK","object":{"kind":"Secret","apiVersion":"v1",` + end
	)
	for _, test := range []struct{ path, accept, want string }{
		{volume, "text/html;q=0.5,*/*;q=0.1", `{"kind":"PersistentVolume","apiVersion":"v1",` +
			`"metadata":{"name":"volume","resourceVersion":"4"},"spec":{},"status":{}}` + "\n"},
		{volume, "application/json" + metadata, `{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1",` +
			`"metadata":{"name":"volume","resourceVersion":"4"}}` + "\n"},
		{list, "", `{"kind":"SecretList","apiVersion":"v1","metadata":{"resourceVersion":"5"},"items":[{` + secret +
			"]}\n"},
		{watch, "application/json", added},
		{watch + "&allowWatchBookmarks=true", "application/yaml,application/json", added + bookmark},
		{watch + "&resourceVersion=5&allowWatchBookmarks=true", "*/*", added + bookmark},
		{list + "&watch=true&allowWatchBookmarks=true&resourceVersion=5", "*/*", ""},
	} {
		code, body, err := f.get(f.kubelet(), test.path, "Accept", test.accept)
		if err != nil || code != http.StatusOK || body != test.want {
			t.Errorf("%s as %s: %d, %v\n%s\nwant\n%s", test.path, test.accept, code, err, body, test.want)
		}
	}
	for _, path := range []string{volume, list, watch} {
		if code, body, err := f.get(f.kubelet(), path, "Accept", "text/html"); code != http.StatusNotAcceptable {
			t.Errorf("%s as text/html: %d, %v %s", path, code, err, body)
		}
	}
}

// TestOlderWatch: a client whose list is older than what is kept is told to list again, so that it gets what has
// changed before kube-apiserver was away.
func TestOlderWatch(t *testing.T) {
	t.Parallel()
	f := running(t)
	f.away()
	f.server.stop() // watches end when they have begun
	const path = "/api/v1/pods?fieldSelector=spec.nodeName%3Dnode0&watch=true&resourceVersion="
	for version, want := range map[string]int{
		"4": http.StatusGone, version5: http.StatusOK, "6": http.StatusOK, "0": http.StatusOK,
		"4&sendInitialEvents=true&resourceVersionMatch=NotOlderThan": http.StatusOK,
	} {
		code, body, err := f.get(f.kubelet(), path+version)
		if err != nil || code != want || (code == http.StatusGone) != strings.Contains(body, `"Expired"`) {
			t.Errorf("from version %s: %d, want %d; %v %s", version, code, want, err, body)
		}
	}
}

// TestAnswersAreCounted as docs/reference.md says: a watch that has to list again is not refused.
func TestAnswersAreCounted(t *testing.T) {
	t.Parallel()
	f := running(t)
	f.away()
	f.server.stop()
	const pods = "/api/v1/pods?fieldSelector=spec.nodeName%3Dnode0"
	for _, test := range []struct {
		path, counted string
		want          int
	}{
		{pods, "kept", http.StatusOK},
		{pods + "&watch=true&resourceVersion=4", "expired", http.StatusGone},
		{"/api/v1/namespaces/shop/secrets/other", "refused", http.StatusServiceUnavailable},
		{"/api/v1/pods?fieldSelector=%3D%3D%3D", "invalid", http.StatusBadRequest},
	} {
		counter := f.server.metrics.answers.WithLabelValues(test.counted)
		before := testutil.ToFloat64(counter)
		code, body, err := f.get(f.kubelet(), test.path)
		if err != nil || code != test.want || testutil.ToFloat64(counter) != before+1 {
			t.Errorf("%s: %d is not counted once as %s; %v %s", test.path, code, test.counted, err, body)
		}
	}
	refused := f.server.metrics.answers.WithLabelValues("refused")
	before := testutil.ToFloat64(refused)
	if code, body := f.ask("unknown", pods); code != http.StatusServiceUnavailable ||
		testutil.ToFloat64(refused) != before+1 {
		t.Errorf("%d for an unknown token is not counted once: %s", code, body)
	}
}
