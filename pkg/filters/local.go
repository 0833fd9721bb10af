package filters

import (
	"net/http"
	"net/http/pprof"

	"github.com/gorilla/mux"
)

// LocalEndpoints are the paths that the wrapper answers about itself.
type LocalEndpoints struct {
	Alive, Ready, Metrics http.Handler
	// Reachable reports whether the upstream can be reached.
	Reachable func() bool
	// Explain answers /debug/explain/{namespace}/{service}. It gets namespace and service as variables of gorilla/mux.
	Explain http.Handler
	// Debug also serves /debug/pprof.
	Debug bool
}

// WithLocalEndpoints answers /healthz, /livez, /readyz, /metrics, /debug/explain and, if Debug is set, /debug/pprof.
// Without Debug, /debug/pprof is passed on like every other path.
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
		if local.Debug {
			router.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
			router.HandleFunc("/debug/pprof/profile", pprof.Profile)
			router.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
			router.HandleFunc("/debug/pprof/trace", pprof.Trace)
			// The index serves the named profiles (heap, goroutine, allocs, block, mutex, threadcreate) too.
			router.PathPrefix("/debug/pprof/").HandlerFunc(pprof.Index)
			router.Handle("/debug/pprof", http.RedirectHandler("/debug/pprof/", http.StatusFound))
		}
		router.NotFoundHandler = next
		router.MethodNotAllowedHandler = next
		return router
	}
}
