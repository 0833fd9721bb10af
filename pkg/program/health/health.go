package health

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
)

// Report is how a program is at one moment.
type Report struct {
	// Reasons are why the program is not ready; none when it is.
	Reasons []string
	// Details are about what works and is worth knowing.
	Details []string
}

// Fail adds a reason.
func (r *Report) Fail(format string, args ...any) {
	r.Reasons = append(r.Reasons, fmt.Sprintf(format, args...))
}

// Note adds a detail.
func (r *Report) Note(format string, args ...any) {
	r.Details = append(r.Details, fmt.Sprintf(format, args...))
}

// Summary is the report as one line.
func (r *Report) Summary() string {
	if len(r.Reasons) > 0 {
		return "not ready: " + strings.Join(r.Reasons, "; ")
	}
	return "ready: " + strings.Join(r.sorted(), "; ")
}

// sorted returns the details in alphabetical order.
func (r *Report) sorted() []string { return slices.Sorted(slices.Values(r.Details)) }

// ServeHTTP answers 200 or 503, with all lines in both cases: those of reasons begin with [-], those of details
// with [+].
func (r *Report) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	var body strings.Builder
	code := http.StatusOK
	if len(r.Reasons) > 0 {
		code = http.StatusServiceUnavailable
		body.WriteString("not ready\n")
	} else {
		body.WriteString("ok\n")
	}
	for _, reason := range r.Reasons {
		fmt.Fprintf(&body, "[-] %s\n", reason)
	}
	for _, detail := range r.sorted() {
		fmt.Fprintf(&body, "[+] %s\n", detail)
	}
	write(w, code, body.String())
}

// Ready serves /readyz. It makes a new report for every request.
func Ready(report func() Report) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		now := report()
		now.ServeHTTP(w, r)
	})
}

// Alive serves /livez and /healthz: a process that answers at all is alive. An API server that is away, or a full disk,
// does not make it fail, because a restart would not repair them.
func Alive(w http.ResponseWriter, _ *http.Request) { write(w, http.StatusOK, "ok") }

func write(w http.ResponseWriter, code int, body string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(code)
	_, _ = w.Write([]byte(body))
}
