package history

import (
	"cmp"
	"errors"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/application-grid/application-grid/pkg/storage/served"
)

// Options configure a History.
type Options struct {
	// Revisions numbers the events. It is required.
	Revisions *Revisions
	// JSON is shared by the histories of a process. If it is nil, New makes one of the default size.
	JSON *JSONCache
	// LogEvents and LogBytes bound the log of each table. 0 means the default.
	LogEvents, LogBytes int
}

// The defaults of Options, per table. The current versions of objects do not count towards the bytes.
const (
	DefaultLogEvents = 1 << 16
	DefaultLogBytes  = 6 << 20
)

// History has the versioned tables from which one view of the cluster is served, such as that of a node. Its methods
// may be called from any goroutine.
type History struct {
	revisions *Revisions
	encoded   *JSONCache

	mu sync.RWMutex // guards everything below, and the tables
	// revision is the revision of the current state: that of the newest event of any table, or began.
	revision uint64
	// began is the first revision of this history. A client that presents a lower one got it from an earlier process.
	began uint64
	// asOf, if not 0, is the revision at which an earlier process had the state that is served now. A client that
	// presents a higher revision of that process has seen a newer state.
	asOf   uint64
	tables map[*served.Resource]*table
}

// New makes a History whose tables are empty and cannot be read.
func New(options Options) *History {
	encoded := cmp.Or(options.JSON, NewJSONCache(DefaultJSONBytes))
	h := &History{revisions: options.Revisions, encoded: encoded, tables: make(map[*served.Resource]*table)}
	h.began = h.nextRevision()
	for _, r := range served.All() {
		h.tables[r] = &table{
			log: eventLog{
				maxEvents: cmp.Or(options.LogEvents, DefaultLogEvents),
				maxBytes:  cmp.Or(options.LogBytes, DefaultLogBytes),
			},
			err: served.ErrNotReady, changed: make(chan struct{}),
		}
	}
	return h
}

// nextRevision returns the revision for a new event, and makes it the revision of the state.
func (h *History) nextRevision() uint64 {
	h.revision = h.revisions.next()
	return h.revision
}

// Update has the methods that change a History. It is valid only within a call of History.Update.
type Update struct {
	h        *History
	received time.Time
}

// Update calls step to change the tables. Readers see all of the changes or none. received is when the upstream's
// change arrived.
func (h *History) Update(received time.Time, step func(*Update)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	step(&Update{h: h, received: received})
	for _, t := range h.tables {
		t.broadcast()
	}
}

// Put shows a version of an object, unless a client would see no difference. revision is 0, which means a new one, or
// that at which an earlier process showed the version. The latter is for tables that cannot be read: SetReadable drops
// their past before a client reads them.
func (u *Update) Put(r *served.Resource, v Version, revision uint64) {
	t := u.h.tables[r]
	i, found := t.find(v.Key())
	if found {
		before := t.objects[i]
		switch {
		case before.UID != v.UID:
			// The object was deleted and recreated with the same name. For clients these are two objects.
			u.Remove(r, v.Key())
		case before.looksLike(&v):
			return
		default:
			t.objects[i] = u.object(r, v, u.h.nextRevision())
			u.logEvent(t, Event{Type: watch.Modified, Object: t.objects[i], Previous: before})
			return
		}
	}
	if revision == 0 {
		revision = u.h.nextRevision()
	}
	o := u.object(r, v, revision)
	t.objects = slices.Insert(t.objects, i, o)
	u.logEvent(t, Event{Type: watch.Added, Object: o})
}

func (u *Update) object(r *served.Resource, v Version, revision uint64) *Object {
	return &Object{Version: v, Revision: revision, resource: r, encoded: u.h.encoded}
}

// Remove removes an object, if it exists.
func (u *Update) Remove(r *served.Resource, key types.NamespacedName) {
	t := u.h.tables[r]
	i, found := t.find(key)
	if !found {
		return
	}
	last := t.objects[i]
	t.objects = slices.Delete(t.objects, i, i+1)
	u.logEvent(t, Event{Type: watch.Deleted, Object: last.withRevision(u.h.nextRevision()), Previous: last})
}

// logEvent appends an event to the log. While the table cannot be read, no cursor needs it.
func (u *Update) logEvent(t *table, e Event) {
	t.dirty = true
	if t.err == nil {
		e.Received = u.received
		t.log.append(e)
	}
}

// SetReadable sets whether a table can be read; if err is not nil, it is the readers' error. A table that becomes
// readable has no past: clients start from its current state.
func (u *Update) SetReadable(r *served.Resource, err error) {
	t := u.h.tables[r]
	if errors.Is(t.err, err) {
		return
	}
	if err == nil {
		t.log.clear(u.h.revision)
	}
	t.err, t.dirty = err, true
}

// Clear removes all objects of a table without events; it cannot be read any more. Its cursors get ErrExpired.
func (u *Update) Clear(r *served.Resource) {
	t := u.h.tables[r]
	t.objects = nil
	t.log.clear(u.h.nextRevision())
	t.err, t.dirty = served.ErrNotReady, true
}

// SetRestored notes that the tables have the state that an earlier process had at a revision. A client that presents a
// newer revision of that process gets ErrNotReady. 0 ends that.
func (u *Update) SetRestored(revision uint64) {
	if u.h.asOf == revision {
		return
	}
	u.h.asOf = revision
	for _, t := range u.h.tables {
		t.dirty = true
	}
}

// Close ends the History: every cursor gets ErrExpired, every other reader ErrNotReady.
func (h *History) Close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, t := range h.tables {
		t.err, t.dirty = served.ErrNotReady, true
		t.broadcast()
	}
}

// Objects returns all objects of a resource by name, even if it cannot be read.
func (h *History) Objects(r *served.Resource) map[types.NamespacedName]*Object {
	h.mu.RLock()
	defer h.mu.RUnlock()
	shown := h.tables[r].objects
	objects := make(map[types.NamespacedName]*Object, len(shown))
	for _, o := range shown {
		objects[o.Key()] = o
	}
	return objects
}

// Stats are figures of one resource.
type Stats struct {
	Resource *served.Resource
	// Objects is the number of objects.
	Objects int
	// LogLength is the number of events in the log.
	LogLength int
	// LogBytes is the memory that the log holds, in bytes.
	LogBytes int
}

// Stats returns the figures of all resources.
func (h *History) Stats() []Stats {
	h.mu.RLock()
	defer h.mu.RUnlock()
	all := make([]Stats, 0, len(h.tables))
	for _, r := range served.All() {
		t := h.tables[r]
		all = append(all, Stats{
			Resource: r, Objects: len(t.objects), LogLength: len(t.log.entries), LogBytes: t.log.bytes,
		})
	}
	return all
}
