package history

import (
	"errors"

	"k8s.io/apimachinery/pkg/types"

	"github.com/application-grid/application-grid/pkg/storage/served"
)

// Errors for readers.
var (
	// ErrExpired means that the requested revision is too old. The reader must list again.
	ErrExpired = errors.New("too old resource version")
	// ErrFuture means that the requested revision is newer than the state.
	ErrFuture = errors.New("too large resource version")
)

// checkRevision returns an error if a client that presents a revision cannot be served.
func (h *History) checkRevision(t *table, presented uint64) error {
	if t.err != nil {
		return t.err
	}
	if h.asOf < presented && presented < h.began && h.asOf != 0 {
		return served.ErrNotReady
	}
	if presented > h.revision {
		return ErrFuture
	}
	return nil
}

// Readable returns ErrNotReady or ErrAbsent if a resource cannot be read. changed is closed when the result may have
// changed.
func (h *History) Readable(r *served.Resource) (changed <-chan struct{}, err error) {
	h.mu.RLock()
	defer h.mu.RUnlock()
	t := h.tables[r]
	return t.changed, t.err
}

// Restored reports whether the tables have the state of an earlier process, as SetRestored notes it.
func (h *History) Restored() bool {
	h.mu.RLock()
	defer h.mu.RUnlock()
	return h.asOf != 0
}

// Revision returns the revision of the current state, which includes all events up to it.
func (h *History) Revision() uint64 {
	h.mu.RLock()
	defer h.mu.RUnlock()
	return h.revision
}

// Get returns an object, or nil if none has that name. notBefore is a revision that the client has seen; 0 for none.
// Errors: ErrNotReady, ErrAbsent, ErrFuture.
func (h *History) Get(r *served.Resource, key types.NamespacedName, notBefore uint64) (*Object, error) {
	h.mu.RLock()
	defer h.mu.RUnlock()
	t := h.tables[r]
	if err := h.checkRevision(t, notBefore); err != nil {
		return nil, err
	}
	i, found := t.find(key)
	if !found {
		return nil, nil //nolint:nilnil // as the comment says
	}
	return t.objects[i], nil
}

// List returns the objects of a resource in one namespace, or in all with "", in the order of kube-apiserver's lists,
// and the revision of that state. notBefore is a revision that the client has seen; 0 for none. Errors: ErrNotReady,
// ErrAbsent, ErrFuture.
func (h *History) List(r *served.Resource, namespace string, notBefore uint64) ([]*Object, uint64, error) {
	h.mu.RLock()
	defer h.mu.RUnlock()
	t := h.tables[r]
	if err := h.checkRevision(t, notBefore); err != nil {
		return nil, 0, err
	}
	return t.inNamespace(namespace), h.revision, nil
}

// Cursor is a watcher's place in the history of a resource. Only one goroutine may use it. It needs no Close: the
// History does not know its cursors.
type Cursor struct {
	h        *History
	t        *table
	revision uint64
}

// Watch returns a cursor that starts after the given revision. Errors: ErrNotReady, ErrAbsent, ErrExpired, ErrFuture.
func (h *History) Watch(r *served.Resource, after uint64) (*Cursor, error) {
	h.mu.RLock()
	defer h.mu.RUnlock()
	t := h.tables[r]
	if err := h.checkRevision(t, after); err != nil {
		return nil, err
	}
	if after < t.log.floor {
		return nil, ErrExpired
	}
	return &Cursor{h: h, t: t, revision: after}, nil
}

// Next returns up to limit events after the cursor, in the order of their revisions, and moves the cursor past them.
// changed is closed when there may be more; it is nil if there may be more already, and never nil without events.
// Error: ErrExpired, if the next events are no longer held.
func (c *Cursor) Next(limit int) (events []Event, changed <-chan struct{}, err error) {
	c.h.mu.RLock()
	defer c.h.mu.RUnlock()
	if c.t.err != nil {
		return nil, nil, ErrExpired
	}
	events, ok := c.t.log.next(c.revision, limit)
	if !ok {
		return nil, nil, ErrExpired
	}
	if len(events) == limit {
		c.revision = events[limit-1].Object.Revision
		return events, nil, nil
	}
	// There are no more events of this resource up to the current state, so a bookmark may have its revision.
	c.revision = c.h.revision
	return events, c.t.changed, nil
}

// Revision returns the cursor's revision. The state of a client that got all events from Next is at least as new.
func (c *Cursor) Revision() uint64 { return c.revision }
