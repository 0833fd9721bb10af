package serve

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/klog/v2"

	"github.com/application-grid/application-grid/pkg/storage/history"
	"github.com/application-grid/application-grid/pkg/storage/served"
)

const (
	// defaultWatchTimeout is the shortest time that a watch lasts if the client does not set a timeout. It lasts up to
	// twice as long, so that clients do not return at the same moment. It is kube-apiserver's min-request-timeout.
	defaultWatchTimeout = 30 * time.Minute
	// batchSize is how many events are taken from the log at once.
	batchSize = 128
	// flushSize is how many bytes are collected before they are written: a burst needs few writes, and its first event
	// does not wait long.
	flushSize = 16 << 10
)

type watcher struct {
	s       *Server
	writes  *guardedWriter
	enc     *encoder
	options Options
	requestScope
	cursor *history.Cursor
	// buffer collects frames until flush. It is reused, and dropped after it has grown large.
	buffer []byte
	// arrivals has the arrival times of the upstream's changes for the events in buffer.
	arrivals []time.Time
}

// watch answers a WATCH. It returns an error only if it has not written anything yet. The request is over when the
// stream has ended, which may be later.
func (s *Server) watch(
	w http.ResponseWriter, r *http.Request, scope requestScope, options Options, enc *encoder,
) error {
	state, cursor, err := openWatch(scope.history, enc.resource, options)
	if err != nil {
		return err
	}
	resource := enc.resource.Resource
	w.Header().Set("Content-Type", enc.encoding.watchContentType())
	ctx, writes := s.beginStream(w, r, resource, options.Timeout, scope.cleanups)
	c := &watcher{s: s, writes: writes, enc: enc, options: options, requestScope: scope, cursor: cursor}
	scope.cleanups.runStream(ctx, func() {
		if err := c.run(ctx, state); err != nil {
			klog.FromContext(ctx).V(4).Info("Watch ended",
				"resource", resource, "revision", cursor.Revision(), "reason", err)
		}
	})
	return nil
}

// openWatch returns the objects with which the watch begins, if any, and a cursor for the events after them.
func openWatch(
	h *history.History, resource *served.Resource, options Options,
) ([]*history.Object, *history.Cursor, error) {
	fromState := options.SendInitialEvents || (options.Revision == 0 && !options.SkipInitialEvents)
	if fromState || options.Revision == 0 {
		state, revision, err := h.List(resource, options.Selector.Namespace, options.Revision)
		if err != nil {
			return nil, nil, readError(err, h, resource, options.Revision)
		}
		cursor, err := h.Watch(resource, revision)
		if err != nil {
			return nil, nil, readError(err, h, resource, revision)
		}
		if !fromState {
			state = nil
		}
		return state, cursor, nil
	}
	cursor, err := h.Watch(resource, options.Revision)
	if errors.Is(err, history.ErrFuture) {
		// A client that resumes from a revision that was never given out must list again. If the watch waited for that
		// revision, the client would stay stale.
		err = history.ErrExpired
	}
	if err != nil {
		return nil, nil, readError(err, h, resource, options.Revision)
	}
	return nil, cursor, nil
}

var (
	// errClientGone ends a watch whose connection cannot be written to.
	errClientGone = errors.New("the client is gone or too slow")
	// errTimeout ends a watch at the client's timeout.
	errTimeout = errors.New("the watch's timeout has passed")
	// errStopping ends the watches of a process that is about to end. A client that resumed its watch at the next
	// process would be refused as expired, and pause once more before it lists. One that resumed at another API server
	// would receive nothing: kube-apiserver silently waits for a revision that it has not reached. A list with such a
	// revision gets an error from kube-apiserver, and is accepted by the next process.
	errStopping error = apierrors.NewResourceExpired("this server is stopping; list again")
)

// run writes the watch until ctx is done. It does not wait for the channel of a timer, because such a timer would be
// started and stopped with every event.
func (c *watcher) run(ctx context.Context, state []*history.Object) error {
	for _, o := range state {
		if c.options.Selector.Matches(o) {
			if err := c.addEvent(watch.Added, o); err != nil {
				return err
			}
		}
	}
	if c.options.SendInitialEvents {
		if err := c.addBookmark(initialEventsEnd); err != nil {
			return err
		}
	}
	// The headers are sent at once, even without an event: some clients wait for them.
	if err := c.flush(); err != nil {
		return err
	}
	interval := cmp.Or(c.s.BookmarkInterval, DefaultBookmarkInterval)
	var due chan struct{} // yields when a bookmark is due
	var timer *time.Timer
	if c.options.Bookmarks {
		due = make(chan struct{}, 1)
		timer = time.AfterFunc(interval, func() { due <- struct{}{} })
		defer timer.Stop()
	}
	for {
		// The watch ends when its mark is no longer right. The next watch has the right one.
		if c.wantsStaleMark && c.isStale != c.s.isStale(c.history) {
			return c.maybeBookmark()
		}
		changed, err := c.sendBatch()
		if err != nil {
			return err
		}
		select {
		case <-changed:
		case <-due:
			timer.Reset(interval)
			err = c.maybeBookmark()
		case <-c.s.Stopping:
			return errors.Join(c.maybeBookmark(), c.sendExpired(errStopping))
		case <-ctx.Done():
			if cause := context.Cause(ctx); !errors.Is(cause, errTimeout) {
				return cause
			}
			return c.maybeBookmark()
		}
		if err != nil {
			return err
		}
	}
}

// more is a closed channel, which sendBatch returns if there may be more events already.
var more = func() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// sendBatch writes the next events, and flushes them if there are no more. changed is closed when there may be more
// events.
func (c *watcher) sendBatch() (changed <-chan struct{}, err error) {
	events, changed, err := c.cursor.Next(batchSize)
	switch {
	case errors.Is(err, history.ErrExpired):
		return nil, c.sendExpired(readError(err, c.history, c.enc.resource, 0))
	case err != nil:
		return nil, err
	}
	for _, e := range events {
		if err := c.addSelected(e); err != nil {
			return nil, err
		}
	}
	if changed == nil {
		return more, nil
	}
	return changed, c.flush()
}

// addSelected adds an event as the client's selector sees it: an object that begins to match the selector is ADDED, one
// that no longer matches is DELETED.
func (c *watcher) addSelected(e history.Event) error {
	matches := e.Type != watch.Deleted && c.options.Selector.Matches(e.Object)
	matched := e.Previous != nil && c.options.Selector.Matches(e.Previous)
	var err error
	switch {
	case matches && matched:
		err = c.addEvent(watch.Modified, e.Object)
	case matches:
		err = c.addEvent(watch.Added, e.Object)
	case matched:
		err = c.addEvent(watch.Deleted, e.DeletedObject())
	default:
		return nil
	}
	if !e.Received.IsZero() {
		c.arrivals = append(c.arrivals, e.Received)
	}
	return err
}

func (c *watcher) addEvent(eventType watch.EventType, o *history.Object) (err error) {
	if c.buffer, err = c.enc.appendEvent(c.buffer, eventType, o); err != nil {
		return err
	}
	if len(c.buffer) >= flushSize {
		return c.flush()
	}
	return nil
}

func (c *watcher) maybeBookmark() error {
	if !c.options.Bookmarks {
		return nil
	}
	if err := c.addBookmark(nil); err != nil {
		return err
	}
	return c.flush()
}

func (c *watcher) addBookmark(annotations map[string]string) (err error) {
	c.buffer, err = c.enc.appendBookmark(c.buffer, c.cursor.Revision(), annotations)
	return err
}

// sendExpired writes an ERROR event that makes the client list again, and returns reason.
func (c *watcher) sendExpired(reason error) (err error) {
	c.buffer, err = c.enc.encoding.appendTypedEvent(c.buffer, watch.Error, statusType, statusOf(reason))
	if err != nil {
		return err
	}
	if err := c.flush(); err != nil {
		return err
	}
	return reason
}

func (c *watcher) flush() error {
	if err := c.writes.write(c.buffer, true); err != nil {
		return err
	}
	if c.s.Observer != nil && len(c.arrivals) > 0 {
		for _, received := range c.arrivals {
			c.s.Observer.EventSent(c.enc.resource.Resource, time.Since(received))
		}
	}
	c.arrivals = c.arrivals[:0]
	c.buffer = c.buffer[:0]
	if cap(c.buffer) > 2*flushSize {
		c.buffer = nil
	}
	return nil
}
