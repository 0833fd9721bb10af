package follow_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/application-grid/application-grid/pkg/follow"
)

// TestMetrics: what is scraped of the states.
func TestMetrics(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	registry.MustRegister(follow.Metrics("x", func() []follow.State {
		return []follow.State{
			{Name: "well", Started: true, Synced: true, Lists: 2, LastContact: time.Now()},
			{Name: "cached", Started: true, Synced: true, FromCache: true, Err: follow.ErrFromCache, Lists: 7},
			{Name: "refused", Started: true, Forbidden: true, Err: errors.New("403")},
			{Name: "idle"},
		}
	}))
	w := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(w,
		httptest.NewRequest(http.MethodGet, "/metrics", nil))
	body := w.Body.String()
	for _, line := range []string{
		`x_upstream_up{source="well"} 1`, `x_upstream_up{source="cached"} 0`, `x_upstream_up{source="refused"} 0`,
		`x_upstream_synced{source="cached"} 1`, `x_upstream_synced{source="refused"} 0`,
		`x_upstream_from_cache{source="cached"} 1`, `x_upstream_from_cache{source="well"} 0`,
		`x_upstream_forbidden{source="refused"} 1`, `x_upstream_lists_total{source="cached"} 7`,
		`x_upstream_last_contact_seconds{source="well"}`,
	} {
		if !strings.Contains(body, line) {
			t.Errorf("%s is missing", line)
		}
	}
	for _, line := range []string{`source="idle"`, `last_contact_seconds{source="cached"}`} {
		if strings.Contains(body, line) {
			t.Errorf("%s is there", line)
		}
	}
}
