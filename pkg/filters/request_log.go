package filters

import (
	"cmp"
	"net/http"
	"strconv"
	"time"

	"k8s.io/klog/v2"

	"github.com/application-grid/application-grid/pkg/serve"
)

// WithRequestLog calls done after every request, and logs it at V(4), without its credentials. resource is "" if the
// request is not for a resource.
func WithRequestLog(done func(resource, verb, code string, took time.Duration)) Filter {
	return filter(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		start := time.Now()
		recorder := &statusRecorder{ResponseWriter: w}
		info := serve.ParseRequest(r)
		verb := info.Verb
		if verb == "list" && serve.IsTrue(r.URL.Query(), "watch") {
			verb = "watch"
		}
		defer func() {
			took := time.Since(start)
			done(info.Resource, verb, strconv.Itoa(recorder.status()), took)
			klog.FromContext(r.Context()).V(4).Info("Request", "verb", verb, "uri", r.URL.RequestURI(),
				"code", recorder.status(), "took", took, "userAgent", r.UserAgent())
		}()
		next.ServeHTTP(recorder, r)
	})
}

// statusRecorder remembers the status code that was written.
type statusRecorder struct {
	http.ResponseWriter

	code int
}

func (s *statusRecorder) status() int { return cmp.Or(s.code, http.StatusOK) }

func (s *statusRecorder) WriteHeader(code int) {
	// Of the codes below 200 only 101 ends a response; the others announce one.
	if s.code == 0 && (code >= http.StatusOK || code == http.StatusSwitchingProtocols) {
		s.code = code
	}
	s.ResponseWriter.WriteHeader(code)
}

func (s *statusRecorder) Write(p []byte) (int, error) {
	s.code = cmp.Or(s.code, http.StatusOK)
	return s.ResponseWriter.Write(p)
}

// Unwrap lets http.ResponseController find Flush, Hijack and the deadlines.
func (s *statusRecorder) Unwrap() http.ResponseWriter { return s.ResponseWriter }
