package filters

import (
	"context"
	"net/http"

	"github.com/application-grid/application-grid/pkg/serve"
)

type requestInfoKey struct{}

// WithRequestInfo parses the request's method and path once, for all filters after it.
func WithRequestInfo() Filter {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			info := serve.ParseRequest(r)
			next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), requestInfoKey{}, info)))
		})
	}
}

// requestInfo returns what WithRequestInfo found.
func requestInfo(r *http.Request) serve.RequestInfo {
	info, ok := r.Context().Value(requestInfoKey{}).(serve.RequestInfo)
	if !ok {
		panic("filters: a filter that needs the request info comes before WithRequestInfo")
	}
	return info
}
