package filters

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/application-grid/application-grid/pkg/serve"
	"github.com/application-grid/application-grid/pkg/storage"
)

// TestUnitIsTakenOffThePath, and nothing else of the request changes.
func TestUnitIsTakenOffThePath(t *testing.T) {
	handler := WithUnit()(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		unit, ok := r.Context().Value(unitKey{}).(string)
		_, _ = fmt.Fprintf(w, "%q %v %s %s", unit, ok, r.URL.EscapedPath(), r.URL.RawQuery)
	}))
	for path, want := range map[string]string{
		"/api/v1/services?a=b":                            `"" false /api/v1/services a=b`,
		"/superedge-ingress/unit-a/api/v1/services?a=b":   `"unit-a" true /api/v1/services a=b`,
		"/superedge-ingress/unit%2Da/api/v1/pods/x%2Fy":   `"unit-a" true /api/v1/pods/x%2Fy `,
		"/superedge-ingress//api/v1/services":             `"" true /api/v1/services `,
		"/superedge-ingress/apis/apis/apps/v1":            `"apis" true /apis/apps/v1 `,
		"/superedge-ingress/unit-a/":                      `"unit-a" true / `,
		"/superedge-ingress/unit-a":                       `"unit-a" true / `,
		"/superedge-ingress":                              `"" false /superedge-ingress `,
		"/superedge-ingress/a/superedge-ingress/b/api/v1": `"a" true /superedge-ingress/b/api/v1 `,
	} {
		if w := answer(handler, request(t, "GET", path)); w.Body.String() != want {
			t.Errorf("%s: got %s, want %s", path, w.Body, want)
		}
	}
	for _, path := range []string{"/superedge-ingress/no%20unit/api", "/superedge-ingress/a%2Fb/api", "/superedge-ingress/" + strings.Repeat("a", 64) + "/api", "/superedge-ingress/..%2F/api", "/superedge-ingress/apis/discovery.k8s.io/v1/endpointslices", "/superedge-ingress/api/v1/services"} {
		if w := answer(handler, request(t, "GET", path)); w.Code != http.StatusBadRequest || statusOf(t, w).Message == "" {
			t.Errorf("%s: got %d %s", path, w.Code, w.Body)
		}
	}
}

// TestTooManyUnits is told as something that passes.
func TestTooManyUnits(t *testing.T) {
	store := storage.New(storage.Options{KeepKubernetesEndpoint: true})
	store.NodeLabels().Replace(nil)
	store.Services().Replace(nil)
	store.EndpointSlices().Replace(nil)
	handler := WithUnit()(WithRequestInfo()(WithServed(&serve.Server{Store: store}, "node0")(mark("upstream"))))
	for i := range 100 {
		w := answer(handler, request(t, "GET", fmt.Sprintf("/superedge-ingress/u%d/api/v1/services", i)))
		if w.Code == http.StatusServiceUnavailable {
			if i == 0 || w.Header().Get("Retry-After") == "" {
				t.Errorf("unit %d: %s", i, w.Body)
			}
			return
		}
		if w.Code != http.StatusOK {
			t.Fatalf("unit %d: %d %s", i, w.Code, w.Body)
		}
	}
	t.Error("a hundred units, and no end")
}
