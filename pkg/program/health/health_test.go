package health

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

// TestReport: the lines over HTTP, and the one line.
func TestReport(t *testing.T) {
	t.Parallel()
	var report Report
	report.Note("b: %d", 2)
	report.Note("a: ok")
	for _, test := range []struct {
		code          int
		body, summary string
	}{
		{http.StatusOK, "ok\n[+] a: ok\n[+] b: 2\n", "ready: a: ok; b: 2"},
		{http.StatusServiceUnavailable, "not ready\n[-] c: broken\n[+] a: ok\n[+] b: 2\n", "not ready: c: broken"},
	} {
		w := httptest.NewRecorder()
		Ready(func() Report { return report }).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/readyz", nil))
		if w.Code != test.code || w.Body.String() != test.body || w.Header().Get("Cache-Control") != "no-store" {
			t.Errorf("%d %q %v", w.Code, w.Body, w.Header())
		}
		if got := report.Summary(); got != test.summary {
			t.Errorf("got %q", got)
		}
		report.Fail("c: %s", "broken")
	}
	w := httptest.NewRecorder()
	Alive(w, nil)
	if w.Code != http.StatusOK || w.Body.String() != "ok" {
		t.Errorf("alive: %d %q", w.Code, w.Body)
	}
}

// TestSources: what is scraped of the states.
func TestSources(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	registry.MustRegister(Sources("x", func() []follow.State {
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
