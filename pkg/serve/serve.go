package serve

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/application-grid/application-grid/pkg/storage/history"
	"github.com/application-grid/application-grid/pkg/storage/served"
)

// Observer observes a Server, for metrics. Its methods may be called from any goroutine.
type Observer interface {
	// WatchStarted is called when a watch begins. ended is called when it ends.
	WatchStarted(resource string) (ended func())
	// EventSent is called after an event was written to the client's connection, with the time since the upstream's
	// change arrived.
	EventSent(resource string, delay time.Duration)
}

// Server answers LIST, WATCH and GET from Histories.
type Server struct {
	// HistoryOf returns the History from which a request is answered. It is called for valid requests only. release is
	// called when the request ends.
	HistoryOf func(*http.Request) (h *history.History, release func(), err error)
	// Demand, if set, is called when a valid request for a resource begins, and starts to follow a resource that is not
	// followed yet. ended is called when the request ends.
	Demand   func(*served.Resource) (ended func())
	Observer Observer
	// Admit, if set, is called before a list is encoded, and reports whether the memory suffices for a body of that
	// size. done is called when the body was written.
	Admit func(r *http.Request, bytes int) (done func(), ok bool)
	// Corrected, if set, reports whether answers may be corrected, because the upstream is away or has not caught up.
	// Such answers are marked for clients that ask for marks.
	Corrected func() bool
	// Stopping is closed when the process is about to end, and ends all watches.
	Stopping <-chan struct{}
	// BookmarkInterval is how often a watcher that asked for bookmarks gets one; 0 means DefaultBookmarkInterval.
	BookmarkInterval time.Duration
	// WriteTimeout is how long a client may take to accept data before its connection is cut; 0 means
	// DefaultWriteTimeout.
	WriteTimeout time.Duration

	// stalls cuts off the watches of clients that exceed WriteTimeout.
	stalls stallGuard
}

const (
	// DefaultBookmarkInterval is the same as kube-apiserver's.
	DefaultBookmarkInterval = time.Minute
	// DefaultWriteTimeout is long enough for a list over a slow link, and short enough that clients that hang do not
	// pile up.
	DefaultWriteTimeout = time.Minute
	// demandPatience is how long a request waits for a resource that was not followed before it.
	demandPatience = 5 * time.Second
)

func (s *Server) writeTimeout() time.Duration { return cmp.Or(s.WriteTimeout, DefaultWriteTimeout) }

// ServeListOrWatch answers a LIST or WATCH.
func (s *Server) ServeListOrWatch(w http.ResponseWriter, r *http.Request, resource *served.Resource, info RequestInfo) {
	options, err := ParseOptions(r.URL.Query(), resource, info)
	var enc *encoder
	if err == nil {
		reads := listAnswer
		if options.Watch {
			reads = watchAnswer
		}
		enc, err = negotiateEncoder(r, resource, reads)
	}
	if err == nil {
		err = s.whenReadable(w, r, resource, func(scope requestScope) error {
			if options.Watch {
				return s.watch(w, r, scope, options, enc)
			}
			return s.list(w, r, scope.history, options, enc)
		})
	}
	if err != nil {
		WriteError(w, r, err)
	}
}

// ServeGet answers a GET of one object.
func (s *Server) ServeGet(w http.ResponseWriter, r *http.Request, resource *served.Resource, info RequestInfo) {
	if err := s.get(w, r, resource, info); err != nil {
		WriteError(w, r, err)
	}
}

func (s *Server) get(w http.ResponseWriter, r *http.Request, resource *served.Resource, info RequestInfo) error {
	enc, err := negotiateEncoder(r, resource, objectAnswer)
	if err != nil {
		return err
	}
	q := queryParser{query: r.URL.Query()}
	revision := q.number("resourceVersion", 1<<63)
	if q.err != nil {
		return q.err
	}
	return s.whenReadable(w, r, resource, func(scope requestScope) error {
		name := types.NamespacedName{Namespace: info.Namespace, Name: info.Name}
		object, err := scope.history.Get(resource, name, revision)
		if err != nil {
			return readError(err, scope.history, resource, revision)
		}
		if object == nil {
			return apierrors.NewNotFound(resource.GroupResource(), info.Name)
		}
		body, err := encodeObject(object, enc)
		if err != nil {
			return err
		}
		return s.writeBody(w, r, enc.encoding, body)
	})
}

// requestScope is what a valid request is answered from.
type requestScope struct {
	history *history.History
	// cleanups are made when the request is over.
	cleanups *cleanups
	// wantsStaleMark is set if the client asks that restored and corrected answers are marked, isStale if this one is.
	wantsStaleMark, isStale bool
}

// whenReadable calls answer once the resource can be read. It returns the error of answer, or why the resource cannot
// be read.
func (s *Server) whenReadable(
	w http.ResponseWriter, r *http.Request, resource *served.Resource, answer func(requestScope) error,
) error {
	cleanups := &cleanups{}
	defer cleanups.runUnlessDetached()
	h, release, err := s.HistoryOf(r)
	if err != nil {
		return err
	}
	cleanups.add(release)
	if s.Demand != nil {
		cleanups.add(s.Demand(resource))
	}
	if err := s.awaitReadable(r, h, resource); err != nil {
		return err
	}
	scope := requestScope{history: h, cleanups: cleanups,
		wantsStaleMark: r.Header.Get(RestoredHeader) == RestoredMarked}
	scope.isStale = scope.wantsStaleMark && s.isStale(h)
	if scope.isStale {
		w.Header().Set(RestoredHeader, RestoredMarked)
	}
	// A client that stores answers on disk itself may have a newer state (RFC 9111, section 5.2.1.4).
	if h.Restored() && !scope.wantsStaleMark && HeaderHas(r, "Cache-Control", "no-cache") {
		return NotReady(resource.GroupResource().String() + " are those of a snapshot, as the upstream is away, and " +
			"the request has Cache-Control: no-cache")
	}
	return answer(scope)
}

// isStale reports whether answers differ from the upstream's present state.
func (s *Server) isStale(h *history.History) bool {
	return h.Restored() || s.Corrected != nil && s.Corrected()
}

// RestoredHeader is the header of a request that accepts answers that a wrapper has restored from its snapshot, or
// corrects while the upstream is away, and of such an answer, both with the value RestoredMarked. A watch with this
// header ends when the answers become restored or corrected, or stop being so, before the first such event is sent, so
// that the next watch has the right mark. Without the header a request with Cache-Control: no-cache is answered with
// 503 instead of from a snapshot.
const (
	RestoredHeader = "X-Application-Grid-Restored"
	RestoredMarked = "marked"
)

// Absent reports whether the upstream is known not to serve a resource to the wrapper.
func (s *Server) Absent(r *http.Request, resource *served.Resource) bool {
	h, release, err := s.HistoryOf(r)
	if err != nil {
		return false
	}
	defer release()
	_, err = h.Readable(resource)
	return errors.Is(err, served.ErrAbsent)
}

// awaitReadable returns an error if a resource cannot be read. It waits up to demandPatience for a resource that is
// followed on demand.
func (s *Server) awaitReadable(r *http.Request, h *history.History, resource *served.Resource) error {
	changed, err := h.Readable(resource)
	if s.Demand != nil && resource.OnDemand {
		patience, cancel := context.WithTimeout(r.Context(), demandPatience)
		defer cancel()
		// ErrAbsent is a final answer. Only after ErrNotReady does it make sense to wait.
		for errors.Is(err, served.ErrNotReady) && patience.Err() == nil {
			select {
			case <-changed:
				changed, err = h.Readable(resource)
			case <-patience.Done():
			}
		}
	}
	if err != nil {
		return readError(err, h, resource, 0)
	}
	return nil
}
