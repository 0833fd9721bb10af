package filters

import (
	"net/http"

	"github.com/gorilla/mux"
)

// LocalEndpoints are the paths that the wrapper answers about itself.
type LocalEndpoints struct {
	Alive, Ready, Metrics http.Handler
	// Reachable reports whether the upstream can be reached.
	Reachable func() bool
	// Explain answers /debug/explain/{namespace}/{service}. It gets namespace and service as variables of gorilla/mux.
	Explain http.Handler
	// Profiles answers /debug/pprof. If it is nil, that is passed on like every other path.
	Profiles http.Handler
}

// WithLocalEndpoints answers /healthz, /livez, /readyz, /metrics, /debug/explain and /debug/pprof.
//
// A client with credentials takes the wrapper for an API server, and asks for that one's health: Cilium drops all its
// connections if the answer is not 200. While the upstream is away the wrapper's own health counts, because it answers
// in its place.
func WithLocalEndpoints(local LocalEndpoints) Filter {
	return func(next http.Handler) http.Handler {
		router := mux.NewRouter().SkipClean(true).UseEncodedPath()
		get := router.Methods(http.MethodGet, http.MethodHead).Subrouter()
		own := get.MatcherFunc(func(r *http.Request, _ *mux.RouteMatch) bool {
			return r.Header.Get("Authorization") == "" || !local.Reachable()
		}).Subrouter()
		own.Handle("/healthz", local.Alive)
		own.Handle("/livez", local.Alive)
		own.Handle("/readyz", local.Ready)
		get.Handle("/metrics", local.Metrics)
		get.Handle("/debug/explain/{namespace}/{service}", local.Explain)
		if local.Profiles != nil {
			router.PathPrefix("/debug/pprof/").Handler(local.Profiles)
			router.Handle("/debug/pprof", http.RedirectHandler("/debug/pprof/", http.StatusFound))
		}
		router.NotFoundHandler = next
		router.MethodNotAllowedHandler = next
		return router
	}
}
