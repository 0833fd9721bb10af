package history

import (
	"errors"
	"slices"

	"k8s.io/apimachinery/pkg/types"
)

// What a reader gets instead of data.
var (
	// ErrNotReady means that the state is not complete yet, or older than what the reader has seen. An answer would be
	// a lie.
	ErrNotReady = errors.New("not synced with the upstream yet")
	// ErrAbsent means that the upstream does not serve the resource.
	ErrAbsent = errors.New("not served by the upstream")
	// ErrExpired means that what the reader asks for is not held any more. It must list again.
	ErrExpired = errors.New("too old resource version")
	// ErrFuture means that the revision is above all that were given out.
	ErrFuture = errors.New("too large resource version")
)

// readable is why the table cannot be read, or nil.
func (t *table) readable() error {
	switch t.state {
	case Ready:
		return nil
	case Absent:
		return ErrAbsent
	default:
		return ErrNotReady
	}
}

// admit is why a client that presents a revision cannot be served, or nil.
func (h *History) admit(t *table, presented uint64) error {
	if err := t.readable(); err != nil {
		return err
	}
	if presented != 0 && !h.revisions.gaveOut(presented) {
		return ErrExpired
	}
	if h.asOf < presented && presented < h.began && h.asOf != 0 {
		return ErrNotReady
	}
	if presented > h.revision {
		return ErrFuture
	}
	return nil
}

// Readable is why a resource cannot be read: ErrNotReady or ErrAbsent, else nil. changed is closed when the answer may be
// another.
func (h *History) Readable(r *Resource) (changed <-chan struct{}, err error) {
	h.mu.RLock()
	defer h.mu.RUnlock()
	t := h.table(r)
	return t.changed, t.readable()
}

// Revision is that of the state: all events before it are part of it, and none after.
func (h *History) Revision() uint64 {
	h.mu.RLock()
	defer h.mu.RUnlock()
	return h.revision
}

// Get is one object, or nil if there is none of that name. The client has seen the revision notBefore; 0 for none.
// Errors: ErrNotReady, ErrAbsent, ErrFuture, and with Marks ErrExpired.
func (h *History) Get(r *Resource, key types.NamespacedName, notBefore uint64) (*Object, error) {
	h.mu.RLock()
	defer h.mu.RUnlock()
	t := h.table(r)
	if err := h.admit(t, notBefore); err != nil {
		return nil, err
	}
	i, found := t.find(key.Namespace, key.Name)
	if !found {
		return nil, nil //nolint:nilnil // as the comment says
	}
	return t.slots[i].object, nil
}

// List is the state of a resource, in one namespace or (with "") in all, in the order of kube-apiserver's lists, and the
// revision at which it is that. The client has seen the revision notBefore; 0 for none. Errors: ErrNotReady, ErrAbsent,
// ErrFuture, and with Marks ErrExpired.
func (h *History) List(r *Resource, namespace string, notBefore uint64) ([]*Object, uint64, error) {
	h.mu.RLock()
	defer h.mu.RUnlock()
	t := h.table(r)
	if err := h.admit(t, notBefore); err != nil {
		return nil, 0, err
	}
	return t.inNamespace(namespace), h.revision, nil
}

// ListAt is List as it was at a revision. Errors: also ErrExpired.
func (h *History) ListAt(r *Resource, namespace string, revision uint64) ([]*Object, error) {
	h.mu.RLock()
	defer h.mu.RUnlock()
	t := h.table(r)
	if err := h.admit(t, revision); err != nil {
		return nil, err
	}
	objects, ok := t.rewind(namespace, revision)
	if !ok {
		return nil, ErrExpired
	}
	return objects, nil
}

// Cursor is a watcher's place in the history of a resource. It belongs to one goroutine. Nothing needs to be released:
// the History does not know its cursors.
type Cursor struct {
	h        *History
	t        *table
	revision uint64
	// behind is set from when the cursor fell off the log until it has returned the newest state.
	behind *catchUp
	// caughtUp is what CaughtUp reports.
	caughtUp bool
}

// Watch is a cursor after the given revision. Errors: ErrNotReady, ErrAbsent, ErrExpired, ErrFuture.
func (h *History) Watch(r *Resource, after uint64) (*Cursor, error) {
	h.mu.RLock()
	defer h.mu.RUnlock()
	t := h.table(r)
	if err := h.admit(t, after); err != nil {
		return nil, err
	}
	if (after < t.log.floor && after < t.order.floor) || t.order.isTorn(after) {
		return nil, ErrExpired
	}
	return &Cursor{h: h, t: t, revision: after}, nil
}

// Next is up to limit events after the cursor, in the order of their revisions, and moves the cursor behind them. When
// there are none, changed is closed once there may be some. Error: ErrExpired when what comes next is not held any more.
func (c *Cursor) Next(limit int) (events []Event, changed <-chan struct{}, err error) {
	if c.behind == nil {
		events, changed, err = c.logged(limit)
		if !errors.Is(err, ErrExpired) {
			return events, changed, err
		}
		c.behind = &catchUp{start: c.revision, sent: make(map[*slot]uint64)}
	}
	return c.newest(limit)
}

// logged is Next from the log.
func (c *Cursor) logged(limit int) (events []Event, changed <-chan struct{}, err error) {
	c.h.mu.RLock()
	defer c.h.mu.RUnlock()
	if c.t.state != Ready {
		return nil, nil, ErrExpired
	}
	events, ok := c.t.log.after(c.revision, limit)
	if !ok {
		return nil, nil, ErrExpired
	}
	if len(events) == 0 {
		// There is nothing of this resource up to here; a bookmark may say so.
		c.revision = c.h.revision
		return nil, c.t.changed, nil
	}
	c.revision = events[len(events)-1].Object.Revision
	return slices.Clone(events), nil, nil
}

// newest is Next from the newest versions.
func (c *Cursor) newest(limit int) (events []Event, changed <-chan struct{}, err error) {
	c.h.mu.Lock()
	defer c.h.mu.Unlock()
	if c.t.state != Ready {
		return nil, nil, ErrExpired
	}
	events, ok := c.t.order.next(c.behind, c.revision, limit)
	if !ok {
		return nil, nil, ErrExpired
	}
	if len(events) > 0 {
		c.revision = events[len(events)-1].Object.Revision
		c.t.order.tear(span{c.behind.start, c.revision})
	}
	if len(events) == limit {
		return events, nil, nil
	}
	c.revision, c.behind, c.caughtUp = c.h.revision, nil, true
	if len(events) == 0 {
		changed = c.t.changed
	}
	return events, changed, nil
}

// CaughtUp reports, once, that the cursor had fallen off the log and has returned the newest state since. A bookmark now
// saves the client a new list if its connection breaks.
func (c *Cursor) CaughtUp() bool {
	caughtUp := c.caughtUp
	c.caughtUp = false
	return caughtUp
}

// Revision is where the cursor is: the client's state, with all events that Next returned, is not older.
func (c *Cursor) Revision() uint64 { return c.revision }
