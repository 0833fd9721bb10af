package filters

import (
	"net/http"
	"net/url"
	"strings"
)

// OwnPaths are the paths that the wrapper answers about itself.
type OwnPaths struct {
	Alive, Ready, Metrics http.Handler
	// Link knows whether the upstream is away.
	Link Link
	// Explain answers /debug/explain/{namespace}/{service}. It gets namespace and service as path values.
	Explain http.Handler
	// Profiles answers /debug/pprof. If it is nil, that is passed on like every other path.
	Profiles http.Handler
}

// WithOwnPaths answers /healthz, /livez, /readyz, /metrics, /debug/explain and /debug/pprof. It compares paths as
// they are written. (http.ServeMux redirects paths that are not clean, which are for the upstream to understand.)
//
// A client with credentials takes the wrapper for an API server, and asks for that one's health: Cilium drops all its
// connections if the answer is not 200. While the upstream is away the wrapper's own health counts, because it answers
// in its place.
func WithOwnPaths(own OwnPaths) Filter {
	health := map[string]http.Handler{"/healthz": own.Alive, "/livez": own.Alive, "/readyz": own.Ready}
	return filter(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		path, handler := r.URL.EscapedPath(), next
		switch {
		case own.Profiles != nil && strings.HasPrefix(path, "/debug/pprof/"):
			handler = own.Profiles
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
		case health[path] != nil && (r.Header.Get("Authorization") == "" || own.Link.AwayUntil() != nil):
			handler = health[path]
		case path == "/metrics":
			handler = own.Metrics
		case matchExplain(r, path):
			handler = own.Explain
		case own.Profiles != nil && path == "/debug/pprof":
			handler = http.RedirectHandler("/debug/pprof/", http.StatusFound)
		}
		handler.ServeHTTP(w, r)
	})
}

// matchExplain reports whether a path is /debug/explain/{namespace}/{service}, and sets the path values.
func matchExplain(r *http.Request, path string) bool {
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
