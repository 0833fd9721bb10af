package filters

import (
	"net/http"
	"net/http/pprof"

	"github.com/gorilla/mux"
)

// LocalEndpoints are the paths that the wrapper answers about itself.
type LocalEndpoints struct {
	Alive, Ready, Metrics http.Handler
	// Explain answers /debug/explain/{namespace}/{service}. It gets namespace and service as variables of gorilla/mux.
	Explain http.Handler
	// Debug also serves /debug/pprof.
	Debug bool
}

// WithLocalEndpoints answers /healthz, /livez, /readyz, /metrics, /debug/explain and, if Debug is set, /debug/pprof.
// Without Debug, /debug/pprof is passed on like every other path.
func WithLocalEndpoints(local LocalEndpoints) Filter {
	return func(next http.Handler) http.Handler {
		router := mux.NewRouter().SkipClean(true).UseEncodedPath()
		get := router.Methods(http.MethodGet, http.MethodHead).Subrouter()
		get.Handle("/healthz", local.Alive)
		get.Handle("/livez", local.Alive)
		get.Handle("/readyz", local.Ready)
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
