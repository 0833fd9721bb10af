package filters

import (
	"bytes"
	"io"
	"net/http"
	"slices"
	"strings"

	"golang.org/x/time/rate"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"
	"k8s.io/utils/lru"

	"github.com/application-grid/application-grid/pkg/serve"
	"github.com/application-grid/application-grid/pkg/serve/quota"
)

// delegatedCall is a kind of request that is sent with the wrapper's identity if the caller has no credentials.
type delegatedCall struct {
	group, resource string
	verbs           []string
}

// delegatedCalls is the complete list. kube-proxy needs these calls, and sends no credentials to a plain HTTP --master.
// (Its own Node is served from the cache.) The wrapper's identity is delegated for nothing else, and for events only if
// eventDelegate finds that they are about this node, or kube-proxy's.
var delegatedCalls = []delegatedCall{
	{group: "", resource: "events", verbs: []string{"create", "patch"}},
	{group: "events.k8s.io", resource: "events", verbs: []string{"create", "patch"}},
	{group: "networking.k8s.io", resource: "servicecidrs", verbs: []string{"get", "list", "watch"}},
}

// delegatedHeaders are the headers of a delegated call that are passed on. All others are dropped: with the wrapper's
// identity a caller must not impersonate another user (Impersonate-*, X-Remote-*), upgrade a connection, or override
// the method at a gateway.
var delegatedHeaders = []string{"Accept", "Accept-Encoding", "Content-Type", "User-Agent"}

// WithDelegatedIdentity passes the delegatedCalls of callers without credentials on as the wrapper, which runs on
// nodeName.
func WithDelegatedIdentity(asWrapper http.Handler, nodeName string) Filter {
	events, readers := newEventDelegate(asWrapper, nodeName), lru.New(rememberedCallers)
	return filter(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		info := serve.ParseRequest(r)
		if r.Header.Get("Authorization") != "" || !isPlain(r.URL.Path) || !isDelegated(info) {
			next.ServeHTTP(w, r)
			return
		}
		logger := klog.FromContext(r.Context())
		var err error
		switch {
		case serve.HeaderHas(r, "Connection", "upgrade"):
			err = forbidden("the wrapper does not delegate its identity to a request with Connection: Upgrade; " +
				"bring credentials of your own")
		case info.Resource == "events":
			err = events.serve(w, r, info)
		case !allowRead(readers, quota.Caller(r.Context())):
			err = apierrors.NewTooManyRequests(
				"the wrapper delegates its identity to a caller for few requests a second", 1,
			)
		default:
			asWrapper.ServeHTTP(w, delegatedRequest(r, nil))
		}
		if err != nil {
			logger.V(2).Info("Not delegating the wrapper's identity",
				"method", r.Method, "path", r.URL.Path, "reason", err)
			serve.WriteError(w, r, err)
			return
		}
		logger.V(4).Info("Passed a request on as the wrapper", "method", r.Method, "path", r.URL.Path)
	})
}

const (
	// All wrappers are the same user at kube-apiserver, so one process that sends requests without end through one
	// wrapper would use up what all of them may. kube-proxy sends two such requests at its start, and then one every
	// five to ten minutes.
	delegatedReadsPerSecond = 5
	delegatedReadsBurst     = 25
	// rememberedCallers is for how many callers a rate is kept: those that asked last.
	rememberedCallers = 64
)

// allowRead limits the rate of each caller's delegated reads, so that none uses up kube-proxy's. callers has a
// *rate.Limiter for each caller. Two concurrent first requests of a caller may get one each.
func allowRead(callers *lru.Cache, caller string) bool {
	limiter, known := callers.Get(caller)
	if !known {
		limiter = rate.NewLimiter(delegatedReadsPerSecond, delegatedReadsBurst)
		callers.Add(caller, limiter)
	}
	return limiter.(*rate.Limiter).Allow() //nolint:forcetypeassert // nothing else is added
}

// delegatedRequest returns the request that is sent with the wrapper's identity: it has the caller's method, plain
// path, query and delegatedHeaders, and the given body.
func delegatedRequest(r *http.Request, body []byte) *http.Request {
	delegated := r.Clone(r.Context())
	delegated.ContentLength, delegated.Body, delegated.GetBody = int64(len(body)), http.NoBody, nil
	if len(body) > 0 {
		delegated.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
		delegated.Body, _ = delegated.GetBody() // it never fails
	}
	delegated.URL.RawPath = ""
	delegated.Header = http.Header{}
	for _, name := range delegatedHeaders {
		if values := r.Header.Values(name); len(values) > 0 {
			delegated.Header[name] = slices.Clone(values)
		}
	}
	delegated.Trailer, delegated.TransferEncoding = nil, nil
	return delegated
}

// isPlain reports whether every server reads the path in the same way. A path with ".." or escaped characters may be
// that of an event here, and that of another object for a gateway that resolves it.
func isPlain(requested string) bool {
	segments, ok := strings.CutPrefix(requested, "/")
	if !ok {
		return false
	}
	for segment := range strings.SplitSeq(segments, "/") {
		if segment == "" || segment == "." || segment == ".." || strings.Trim(segment, plainCharacters) != "" {
			return false
		}
	}
	return true
}

// plainCharacters are characters that no server escapes or treats specially.
const plainCharacters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_:"

func isDelegated(info serve.RequestInfo) bool {
	if !info.IsResource || info.Subresource != "" {
		return false
	}
	return slices.ContainsFunc(delegatedCalls, func(call delegatedCall) bool {
		return call.group == info.Group && call.resource == info.Resource && slices.Contains(call.verbs, info.Verb)
	})
}
