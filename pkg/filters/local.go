package filters

import (
	"net/http"
	"net/url"
	"strings"
)

// LocalEndpoints are the paths that the wrapper answers about itself.
type LocalEndpoints struct {
	Alive, Ready, Metrics http.Handler
	// Link knows whether the upstream is away.
	Link Link
	// Explain answers /debug/explain/{namespace}/{service}. It gets namespace and service as path values.
	Explain http.Handler
	// Profiles answers /debug/pprof. If it is nil, that is passed on like every other path.
	Profiles http.Handler
}

// WithLocalEndpoints answers /healthz, /livez, /readyz, /metrics, /debug/explain and /debug/pprof. It compares paths as
// they are written. (http.ServeMux redirects paths that are not clean, which are for the upstream to understand.)
//
// A client with credentials takes the wrapper for an API server, and asks for that one's health: Cilium drops all its
// connections if the answer is not 200. While the upstream is away the wrapper's own health counts, because it answers
// in its place.
func WithLocalEndpoints(local LocalEndpoints) Filter {
	health := map[string]http.Handler{"/healthz": local.Alive, "/livez": local.Alive, "/readyz": local.Ready}
	return filter(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		path, handler := r.URL.EscapedPath(), next
		switch {
		case local.Profiles != nil && strings.HasPrefix(path, "/debug/pprof/"):
			handler = local.Profiles
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
		case health[path] != nil && (r.Header.Get("Authorization") == "" || local.Link.Away() != nil):
			handler = health[path]
		case path == "/metrics":
			handler = local.Metrics
		case isExplain(r, path):
			handler = local.Explain
		case local.Profiles != nil && path == "/debug/pprof":
			handler = http.RedirectHandler("/debug/pprof/", http.StatusFound)
		}
		handler.ServeHTTP(w, r)
	})
}

// isExplain reports whether a path is /debug/explain/{namespace}/{service}, and sets the path values.
func isExplain(r *http.Request, path string) bool {
	names, found := strings.CutPrefix(path, "/debug/explain/")
	namespace, service, both := strings.Cut(names, "/")
	if !found || !both || namespace == "" || service == "" || strings.Contains(service, "/") {
		return false
	}
	for name, escaped := range map[string]string{"namespace": namespace, "service": service} {
		value, err := url.PathUnescape(escaped)
		if err != nil {
			return false
		}
		r.SetPathValue(name, value)
	}
	return true
}
