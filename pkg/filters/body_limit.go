package filters

import (
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/application-grid/application-grid/pkg/serve"
)

// MaxBody is the largest request body, in bytes, that is taken. It is kube-apiserver's.
const MaxBody = 3 << 20

// WithBodyLimit refuses request bodies over MaxBody. Upgraded connections (exec, port-forward) are no bodies.
func WithBodyLimit() Filter {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.ContentLength > MaxBody {
				serve.WriteError(w, r, bodyTooLarge())
				return
			}
			if r.Body != nil && !isUpgrade(r) {
				r.Body = http.MaxBytesReader(w, r.Body, MaxBody)
			}
			next.ServeHTTP(w, r)
		})
	}
}

func bodyTooLarge() error {
	return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("limit is %d bytes", MaxBody))
}
