package filters

import (
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"

	"k8s.io/klog/v2"

	"github.com/application-grid/application-grid/pkg/serve"
)

// WithRecover answers 500 to a request whose handler panics. If the response had begun, it is cut off instead, so that
// the client sees that it is incomplete.
func WithRecover() Filter {
	return filter(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		recorder := &statusRecorder{ResponseWriter: w}
		defer func() {
			reason := recover()
			if reason == nil {
				return
			}
			if err, ok := reason.(error); ok && errors.Is(err, http.ErrAbortHandler) {
				panic(reason)
			}
			klog.FromContext(r.Context()).Error(nil, "Panic while answering a request",
				"method", r.Method, "path", r.URL.Path, "panic", reason, "stack", string(debug.Stack()))
			if recorder.code != 0 {
				panic(http.ErrAbortHandler)
			}
			serve.WriteError(w, r, fmt.Errorf("the wrapper failed to answer %s %s; see its log", r.Method, r.URL.Path))
		}()
		next.ServeHTTP(recorder, r)
	})
}
