package health

import (
	"net/http"
	"net/http/httptest"
	"testing"
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
