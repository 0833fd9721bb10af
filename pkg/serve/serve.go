package serve

import (
	"errors"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/application-grid/application-grid/pkg/storage"
)

// Observer is told what a server does, for metrics. All methods may be called from any goroutine.
type Observer interface {
	// WatchStarted is called when a watch begins; the function it returns when it ends.
	WatchStarted(resource string) (ended func())
	// EventSent is called after an event was handed to the client's connection, with the time since the
	// upstream's change arrived.
	EventSent(resource string, delay time.Duration)
}

// Server answers LIST, WATCH and GET from a Store.
type Server struct {
	Store *storage.Store
	// Demand is called before a resource is read, so that it is followed if it is not yet.
	Demand   func(*storage.Resource)
	Observer Observer
	// Stopping is closed when watches should end because the process will.
	Stopping <-chan struct{}
	// Clock tells how long events took to be sent; time.Now if nil.
	Clock func() time.Time
	// BookmarkInterval is how often a watcher that wants bookmarks gets one; 0 means DefaultBookmarkInterval.
	BookmarkInterval time.Duration
	// WriteTimeout is how long a client may take to accept what is ready for it before its connection is cut;
	// 0 means DefaultWriteTimeout.
	WriteTimeout time.Duration
}

const (
	// DefaultBookmarkInterval is that of kube-apiserver.
	DefaultBookmarkInterval = time.Minute
	// DefaultWriteTimeout is long enough for a list over a slow link and short enough that clients that hang
	// do not pile up.
	DefaultWriteTimeout = time.Minute
	// demandPatience is how long a request for a resource that was not followed before waits for it.
	demandPatience = 5 * time.Second
)

func (s *Server) now() time.Time {
	if s.Clock != nil {
		return s.Clock()
	}
	return time.Now()
}

// Collection answers a LIST or WATCH.
func (s *Server) Collection(w http.ResponseWriter, r *http.Request, resource *storage.Resource, info RequestInfo) {
	options, err := ParseOptions(r.URL.Query(), resource, info)
	if err == nil {
		err = s.ready(r, resource)
	}
	if err == nil {
		if options.Watch {
			err = s.watch(w, r, resource, options)
		} else {
			err = s.list(w, r, resource, options)
		}
	}
	if err != nil {
		WriteError(w, r, err)
	}
}

// Object answers a GET of one object.
func (s *Server) Object(w http.ResponseWriter, r *http.Request, resource *storage.Resource, info RequestInfo) {
	if err := s.get(w, r, resource, info); err != nil {
		WriteError(w, r, err)
	}
}

func (s *Server) get(w http.ResponseWriter, r *http.Request, resource *storage.Resource, info RequestInfo) error {
	encoding, err := negotiate(r.Header.Get("Accept"), false)
	if err != nil {
		return err
	}
	q := queryParser{query: r.URL.Query()}
	revision := q.number("resourceVersion", 1<<63)
	if q.err != nil {
		return q.err
	}
	if err := s.ready(r, resource); err != nil {
		return err
	}
	if current := s.Store.Revision(); revision > current {
		return futureRevision(revision, current)
	}
	object, found, err := s.Store.Get(resource, info.Namespace, info.Name)
	if err != nil {
		return storageError(err, resource.GroupResource())
	}
	if !found {
		return apierrors.NewNotFound(resource.GroupResource(), info.Name)
	}
	body, err := encodeObject(object, resource, encoding)
	if err != nil {
		return err
	}
	return s.writeBody(w, r, encoding, body)
}

// ready tells why a resource cannot be read. A resource that is only followed since this request gets a
// moment to arrive.
func (s *Server) ready(r *http.Request, resource *storage.Resource) error {
	changed, err := s.Store.Readable(resource)
	if err == nil {
		return nil
	}
	if s.Demand == nil || resource != storage.Endpoints {
		return storageError(err, resource.GroupResource())
	}
	s.Demand(resource)
	patience := time.NewTimer(demandPatience)
	defer patience.Stop()
	// That the upstream does not serve it is an answer, too; only ErrNotReady is worth waiting.
	for errors.Is(err, storage.ErrNotReady) {
		select {
		case <-changed:
		case <-patience.C:
			return storageError(err, resource.GroupResource())
		case <-r.Context().Done():
			return storageError(err, resource.GroupResource())
		}
		changed, err = s.Store.Readable(resource)
	}
	if err != nil {
		return storageError(err, resource.GroupResource())
	}
	return nil
}
