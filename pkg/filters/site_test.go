package filters

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/application-grid/application-grid/internal/testkit/storagetest"
	"github.com/application-grid/application-grid/internal/testkit/wiretest"
	"github.com/application-grid/application-grid/pkg/serve"
	"github.com/application-grid/application-grid/pkg/storage/view"
	"github.com/application-grid/application-grid/pkg/storage/wire"
)

// TestSiteIsTakenOffThePath, and nothing else of the request changes.
func TestSiteIsTakenOffThePath(t *testing.T) {
	handler := WithSite()(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		site, ok := r.Context().Value(siteKey{}).(string)
		_, _ = fmt.Fprintf(w, "%q %v %s %s", site, ok, r.URL.EscapedPath(), r.URL.RawQuery)
	}))
	for path, want := range map[string]string{
		"/api/v1/services?a=b":                            `"" false /api/v1/services a=b`,
		"/superedge-ingress/site-a/api/v1/services?a=b":   `"site-a" true /api/v1/services a=b`,
		"/superedge-ingress/site%2Da/api/v1/pods/x%2Fy":   `"site-a" true /api/v1/pods/x%2Fy `,
		"/superedge-ingress//api/v1/services":             `"" true /api/v1/services `,
		"/superedge-ingress/apis/apis/apps/v1":            `"apis" true /apis/apps/v1 `,
		"/superedge-ingress/site-a/":                      `"site-a" true / `,
		"/superedge-ingress/site-a":                       `"site-a" true / `,
		"/superedge-ingress":                              `"" false /superedge-ingress `,
		"/superedge-ingress/a/superedge-ingress/b/api/v1": `"a" true /superedge-ingress/b/api/v1 `,
	} {
		if w := get(t, handler, path); w.Body.String() != want {
			t.Errorf("%s: got %s, want %s", path, w.Body, want)
		}
	}
	for _, path := range []string{
		"/superedge-ingress/no%20site/api", "/superedge-ingress/a%2Fb/api",
		"/superedge-ingress/" + strings.Repeat("a", 64) + "/api", "/superedge-ingress/..%2F/api",
		"/superedge-ingress/apis/discovery.k8s.io/v1/endpointslices", "/superedge-ingress/api/v1/services",
	} {
		if w := get(t, handler, path); w.Code != http.StatusBadRequest ||
			statusOf(t, w).Message == "" {
			t.Errorf("%s: got %d %s", path, w.Code, w.Body)
		}
	}
}

func get(t *testing.T, handler http.Handler, path string) *httptest.ResponseRecorder {
	t.Helper()
	return answer(handler, request(t, "GET", path))
}

// siteServer serves the sites of a cluster with that many nodes, each in a site of its own: u0, u1 and so on.
func siteServer(t *testing.T, nodes int) (*storagetest.Node, http.Handler) {
	t.Helper()
	store := storagetest.New(storagetest.Options{NodeName: "node0", KeepKubernetesEndpoint: true})
	var all []*wire.Object
	for i := range nodes {
		all = append(all, wiretest.Node(fmt.Sprint("node", i), fmt.Sprint("u", i)))
	}
	store.NodeLabels().Replace(all)
	store.Services().Replace([]*wire.Object{wiretest.Service("s", `["zone"]`)})
	store.EndpointSlices().Replace(nil)
	server := &serve.Server{HistoryOf: Views{Own: store.View, Sites: store.Sites}.History}
	return store, WithSite()(WithServedResources(server, "node0")(mark("upstream")))
}

// TestTooManySites is told as something that passes, while sites that are served, and this node's view, go on. A watch
// holds on to its site.
func TestTooManySites(t *testing.T) {
	store, handler := siteServer(t, 100)
	ctx, cancel := context.WithCancel(t.Context())
	started, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		r := request(t, "GET", "/superedge-ingress/u0/api/v1/services?watch=true").WithContext(ctx)
		handler.ServeHTTP(&startedWriter{ResponseRecorder: httptest.NewRecorder(), started: started}, r)
	}()
	<-started
	var more string
	for i := 1; ; i++ {
		_, release, err := store.Sites.View(fmt.Sprint("u", i))
		if errors.Is(err, view.ErrTooManySites) {
			more = fmt.Sprintf("/superedge-ingress/u%d/api/v1/services", i)
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		defer release()
	}
	for path, code := range map[string]int{
		more: http.StatusServiceUnavailable, "/superedge-ingress/u0/api/v1/services": http.StatusOK,
		"/api/v1/services": http.StatusOK,
	} {
		w := get(t, handler, path)
		if after := w.Header().Get("Retry-After"); w.Code != code || (after == "") != (code == http.StatusOK) {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}
	cancel()
	<-ended
	if w := get(t, handler, more); w.Code != http.StatusOK {
		t.Errorf("when another one is not asked for any more: %d %s", w.Code, w.Body)
	}
}

// startedWriter tells when the answer begins.
type startedWriter struct {
	*httptest.ResponseRecorder

	started chan struct{}
}

func (w *startedWriter) WriteHeader(code int) {
	w.ResponseRecorder.WriteHeader(code)
	close(w.started)
}

// TestSitesWithoutNodesAreNotTooMany: sites without nodes are answered, however many there are.
func TestSitesWithoutNodesAreNotTooMany(t *testing.T) {
	store, handler := siteServer(t, 1)
	for i := range 100 {
		w := get(t, handler, fmt.Sprintf("/superedge-ingress/nobodys%d/api/v1/services", i))
		if w.Code != http.StatusOK {
			t.Fatalf("site %d: %d %s", i, w.Code, w.Body)
		}
	}
	if n := store.Sites.Len(); n > 16 {
		t.Errorf("%d Views", n)
	}
}

// TestARequestThatIsWrongCostsNoView: what is wrong with it is known before a site is looked for.
func TestARequestThatIsWrongCostsNoView(t *testing.T) {
	store, handler := siteServer(t, 3)
	for _, query := range []string{"?resourceVersion=x", "?watch=x", "?fieldSelector=no.such=field", "?limit=-1"} {
		if w := get(t, handler, "/superedge-ingress/u1/api/v1/services"+query); w.Code != http.StatusBadRequest {
			t.Errorf("%s: %d %s", query, w.Code, w.Body)
		}
	}
	w := get(t, handler, "/superedge-ingress/u1/apis/discovery.k8s.io/v1beta1/endpointslices")
	if w.Code != http.StatusNotFound {
		t.Errorf("got %d %s", w.Code, w.Body)
	}
	if n := store.Sites.Len(); n != 0 {
		t.Errorf("%d Views", n)
	}
}
