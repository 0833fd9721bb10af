package filters

import (
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/application-grid/application-grid/pkg/serve"
	"github.com/application-grid/application-grid/pkg/serve/quota"
)

// WithWatchLimit answers 429 to a watch, or to a request that follows a log, if too many are under way. Such requests
// last long, and take memory as long, whether they are served from the cache or passed on.
func WithWatchLimit(places *quota.Quota) Filter {
	return filter(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if !isStream(r) {
			next.ServeHTTP(w, r)
			return
		}
		release, ok := places.Acquire(Caller(r))
		if !ok {
			serve.WriteError(w, r, apierrors.NewTooManyRequests(
				"too many watches are under way, of this caller or of all; see --max-watches", 1))
			return
		}
		defer release()
		next.ServeHTTP(w, r)
	})
}

// Caller returns the caller of a request, for a quota.Quota. That is the subject of the client's certificate if there
// is one, because many callers may share an address.
func Caller(r *http.Request) string {
	if r.TLS != nil && len(r.TLS.VerifiedChains) > 0 {
		return "certificate " + r.TLS.PeerCertificates[0].Subject.String()
	}
	return quota.Caller(r.Context())
}
