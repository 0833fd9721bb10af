package history

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Options configure a History.
type Options struct {
	// Revisions numbers the events. It is required.
	Revisions *Revisions
	// JSON is shared by the histories of a process; nil makes one of the default size.
	JSON *JSONCache
	// LogEvents and LogBytes bound the log of each table, and RetiredBytes the versions that it keeps for cursors that
	// fell off the log. 0 means the defaults.
	LogEvents, LogBytes, RetiredBytes int
}

// The defaults of Options, per table. Only what is held for the past counts: versions that were replaced.
const (
	DefaultLogEvents    = 1 << 16
	DefaultLogBytes     = 4 << 20
	DefaultRetiredBytes = 2 << 20
)

// State is whether a table can be read.
type State int

// The states of a table.
const (
	// NotReady tables are not complete yet; an answer would be incomplete.
	NotReady State = iota
	// Ready tables are served.
	Ready
	// Absent tables are of a resource that the upstream does not serve.
	Absent
)

// History is the versioned tables that one viewer is served from. Its methods may be called from any goroutine.
type History struct {
	revisions *Revisions
	encoded   *JSONCache

	mu sync.RWMutex // guards what follows, and the tables
	// revision is that of the state: after the newest event of any table, or that at which the history began.
	revision uint64
	// began is the first revision of this history. A client that presents a lower one has it from an earlier process.
	began uint64
	// asOf, if not 0, is the revision at which an earlier process had the state that is served. A client of that
	// process that presents a higher one has seen a newer state.
	asOf   uint64
	tables [4]*table
}

// New makes a History whose tables are empty and NotReady.
func New(options Options) *History {
	orDefault := func(n *int, value int) {
		if *n == 0 {
			*n = value
		}
	}
	orDefault(&options.LogEvents, DefaultLogEvents)
	orDefault(&options.LogBytes, DefaultLogBytes)
	orDefault(&options.RetiredBytes, DefaultRetiredBytes)
	if options.JSON == nil {
		options.JSON = NewJSONCache(0)
	}
	h := &History{revisions: options.Revisions, encoded: options.JSON}
	h.began = h.nextRevision()
	for _, r := range Resources() {
		h.tables[r.index] = &table{
			resource: r,
			log:      eventLog{maxEvents: options.LogEvents, maxBytes: options.LogBytes, floor: h.revision},
			order:    order{maxBytes: options.RetiredBytes, floor: h.revision},
			changed:  make(chan struct{}),
		}
	}
	return h
}

// nextRevision is the revision of a new event.
func (h *History) nextRevision() uint64 {
	event := h.revisions.next()
	h.revision = stateAfter(event)
	return event
}

func (h *History) table(r *Resource) *table { return h.tables[r.index] }

// Update is one step of a History. It is valid within History.Update only.
type Update struct {
	h        *History
	received time.Time
}

// Update makes one step: readers see all of it or nothing. received is when the upstream's change arrived.
func (h *History) Update(received time.Time, step func(*Update)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	step(&Update{h: h, received: received})
	for _, t := range h.tables {
		t.broadcast()
	}
}

// Put shows a version, and returns the object that is shown then: the one before, if a client would see no difference.
func (u *Update) Put(r *Resource, v Version) *Object { return u.h.table(r).put(u, v, 0) }

// Restore shows a version at the revision that an earlier process gave it, or at a new one for 0. It is for tables that
// are not Ready: their past is forgotten before anybody reads them.
func (u *Update) Restore(r *Resource, v Version, revision uint64) {
	u.h.table(r).put(u, v, revision)
}

// Remove takes an object away, if it is there.
func (u *Update) Remove(r *Resource, key types.NamespacedName) { u.h.table(r).remove(u, key) }

// SetState says whether a table can be read. Clients of a table that becomes Ready start from what it has then.
func (u *Update) SetState(r *Resource, state State) {
	t := u.h.table(r)
	if t.state == state {
		return
	}
	if state == Ready {
		t.forget(eventBefore(u.h.revision))
	}
	t.state = state
	t.dirty = true
}

// Clear takes all objects of a table away without events, and makes it NotReady. A cursor of before gets ErrExpired.
func (u *Update) Clear(r *Resource) {
	t := u.h.table(r)
	t.slots, t.order.current, t.order.stale = nil, nil, 0
	u.h.nextRevision()
	t.forget(u.h.revision)
	t.state, t.dirty = NotReady, true
}

// ServeAsOf says that the state is that of an earlier process at its revision. A client that presents a newer revision
// of that process gets ErrNotReady. 0 ends that.
func (u *Update) ServeAsOf(revision uint64) {
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
		t.state, t.dirty = NotReady, true
		t.broadcast()
	}
}

// Objects are all objects of a resource by name, whether it can be read or not.
func (h *History) Objects(r *Resource) map[types.NamespacedName]*Object {
	h.mu.RLock()
	defer h.mu.RUnlock()
	slots := h.table(r).slots
	objects := make(map[types.NamespacedName]*Object, len(slots))
	for _, s := range slots {
		objects[s.object.Key()] = s.object
	}
	return objects
}

// Stats are figures of one resource.
type Stats struct {
	Resource *Resource
	// Ready is Readable() == nil.
	Ready bool
	// Objects is how many are shown.
	Objects int
	// LogLength is the number of events in the log.
	LogLength int
	// PastBytes is the memory that the table's past holds on to, in bytes.
	PastBytes int
}

// Stats are the figures of all resources.
func (h *History) Stats() []Stats {
	h.mu.RLock()
	defer h.mu.RUnlock()
	all := make([]Stats, 0, len(h.tables))
	for _, r := range Resources() {
		t := h.table(r)
		all = append(all, Stats{
			Resource: r, Ready: t.readable() == nil, Objects: len(t.slots),
			LogLength: len(t.log.events), PastBytes: t.log.bytes + t.order.bytes,
		})
	}
	return all
}
