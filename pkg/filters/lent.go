package filters

import (
	"net/http"
	"path"
	"strings"

	"k8s.io/klog/v2"

	"github.com/application-grid/application-grid/pkg/serve"
)

// lentCall is a call that is made with the wrapper's identity when the caller brings none of its own.
type lentCall struct {
	group, resource string
	verbs           []string
}

// lentCalls is the whole list. kube-proxy needs these, and behind a plain HTTP --master it may have no
// credentials. (Its own Node is served from the cache.) Nothing else is ever done in the wrapper's name for
// somebody else.
var lentCalls = []lentCall{
	{group: "", resource: "events", verbs: []string{"create", "patch"}},
	{group: "events.k8s.io", resource: "events", verbs: []string{"create", "patch"}},
	{group: "networking.k8s.io", resource: "servicecidrs", verbs: []string{"get", "list", "watch"}},
}

// WithLentIdentity passes the lentCalls of callers without credentials on as the wrapper.
func WithLentIdentity(asWrapper http.Handler) Filter {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Authorization") != "" || !isPlain(r.URL.Path) || !isLent(requestInfo(r)) {
				next.ServeHTTP(w, r)
				return
			}
			klog.FromContext(r.Context()).V(4).Info("Passing a request on as the wrapper", "method", r.Method, "path", r.URL.Path)
			r = r.Clone(r.Context())
			for name := range r.Header {
				// In the wrapper's name nobody becomes somebody else.
				if strings.HasPrefix(name, "Impersonate-") || strings.HasPrefix(name, "X-Remote-") {
					r.Header.Del(name)
				}
			}
			asWrapper.ServeHTTP(w, r)
		})
	}
}

// isPlain tells whether everybody reads the path alike. One with "..", say, is an event's here, and may be a
// Namespace's to a gateway before the API server that resolves it.
func isPlain(requested string) bool { return path.Clean(requested) == requested }

func isLent(info serve.RequestInfo) bool {
	if !info.IsResource || info.Subresource != "" {
		return false
	}
	for _, call := range lentCalls {
		if call.group != info.Group || call.resource != info.Resource {
			continue
		}
		for _, verb := range call.verbs {
			if verb == info.Verb {
				return true
			}
		}
	}
	return false
}
