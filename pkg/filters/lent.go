package filters

import (
	"net/http"
	"slices"
	"strings"
	"time"

	"golang.org/x/time/rate"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"
	"k8s.io/utils/lru"

	"github.com/application-grid/application-grid/pkg/quota"
	"github.com/application-grid/application-grid/pkg/serve"
)

// lentCall is a call that is made with the wrapper's identity when the caller brings none of its own.
type lentCall struct {
	group, resource string
	verbs           []string
}

// lentCalls is the whole list. kube-proxy needs these, and behind a plain HTTP --master it may have no
// credentials. (Its own Node is served from the cache.) Nothing else is ever done in the wrapper's name for
// somebody else. Of events only those are lent that eventLender finds to be about this node, or kube-proxy's.
var lentCalls = []lentCall{
	{group: "", resource: "events", verbs: []string{"create", "patch"}},
	{group: "events.k8s.io", resource: "events", verbs: []string{"create", "patch"}},
	{group: "networking.k8s.io", resource: "servicecidrs", verbs: []string{"get", "list", "watch"}},
}

// lentHeaders are those that a lent call takes along. All others stay behind: in the wrapper's name nobody becomes
// somebody else (Impersonate-*, X-Remote-*), upgrades a connection, or tells a gateway that another method is meant.
var lentHeaders = []string{"Accept", "Accept-Encoding", "Content-Type", "User-Agent"}

// WithLentIdentity passes the lentCalls of callers without credentials on as the wrapper, which runs on nodeName.
func WithLentIdentity(asWrapper http.Handler, nodeName string) Filter {
	return withLender(newEventLender(asWrapper, nodeName))
}

func withLender(events *eventLender) Filter {
	reads := &readLimits{now: events.now, callers: lru.New(rememberedCallers)}
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			info := requestInfo(r)
			if r.Header.Get("Authorization") != "" || !isPlain(r.URL.Path) || !isLent(info) {
				next.ServeHTTP(w, r)
				return
			}
			logger := klog.FromContext(r.Context())
			var err error
			switch {
			case connectionHas(r, "upgrade"):
				err = forbidden("the wrapper does not lend its identity to a request with Connection: Upgrade; bring " +
					"credentials of your own")
			case info.Resource == "events":
				err = events.serve(w, r, info)
			case !reads.allow(quota.Caller(r.Context())):
				err = apierrors.NewTooManyRequests(
					"the wrapper lends its identity to a caller for few requests a second", 1,
				)
			default:
				events.asWrapper.ServeHTTP(w, lentRequest(r, nil))
			}
			if err != nil {
				logger.V(2).Info("Not lending the wrapper's identity",
					"method", r.Method, "path", r.URL.Path, "reason", err)
				serve.WriteError(w, r, err)
				return
			}
			logger.V(4).Info("Passed a request on as the wrapper", "method", r.Method, "path", r.URL.Path)
		})
	}
}

const (
	// What is read in the wrapper's name is read in that of all wrappers, which are one user: a process of one node
	// that asks without end would take the place of all at kube-apiserver. kube-proxy asks twice at its start, and then
	// every five to ten minutes.
	lentReadsPerSecond = 5
	lentReadsBurst     = 25
	// rememberedCallers is how many callers' rates are known, the last that asked.
	rememberedCallers = 64
)

// readLimits rates what each caller reads in the wrapper's name, so that none uses up what kube-proxy may.
type readLimits struct {
	now func() time.Time
	// callers has a *rate.Limiter for each. Two first requests of a caller at one moment may get one each.
	callers *lru.Cache
}

func (l *readLimits) allow(caller string) bool {
	limiter, known := l.callers.Get(caller)
	if !known {
		limiter = rate.NewLimiter(lentReadsPerSecond, lentReadsBurst)
		l.callers.Add(caller, limiter)
	}
	return limiter.(*rate.Limiter).AllowN(l.now(), 1) //nolint:forcetypeassert // nothing else is added
}

// lentRequest is what goes upstream in the wrapper's name for a request: its method, its path in the one form that
// everybody reads alike, its query, the lentHeaders, and the body that is given.
func lentRequest(r *http.Request, body []byte) *http.Request {
	lent := r.Clone(r.Context())
	lent.URL.RawPath = ""
	lent.Header = http.Header{}
	for _, name := range lentHeaders {
		if values := r.Header.Values(name); len(values) > 0 {
			lent.Header[name] = slices.Clone(values)
		}
	}
	lent.Trailer, lent.TransferEncoding = nil, nil
	setBody(lent, body)
	return lent
}

// isPlain reports whether everybody reads the path alike. One with "..", say, is an event's here, and may be a
// Namespace's to a gateway before the API server that resolves it; and so may one with characters that are escaped.
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

// plainCharacters are those that nobody escapes or treats in a way of its own.
const plainCharacters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_:"

func isLent(info serve.RequestInfo) bool {
	if !info.IsResource || info.Subresource != "" {
		return false
	}
	return slices.ContainsFunc(lentCalls, func(call lentCall) bool {
		return call.group == info.Group && call.resource == info.Resource && slices.Contains(call.verbs, info.Verb)
	})
}

// tooManyEvents is 429 for an event that is one too many.
func tooManyEvents() error {
	return apierrors.NewTooManyRequests(
		"the wrapper lends its identity for few events a second; a report that comes later says the same", 1,
	)
}
