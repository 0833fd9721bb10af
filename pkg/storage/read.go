package storage

import (
	"errors"
	"slices"

	"k8s.io/apimachinery/pkg/types"
)

// What a reader may be told instead of data.
var (
	// ErrNotReady: the upstream state is not complete yet. An empty answer would be a lie.
	ErrNotReady = errors.New("not synced with the upstream yet")
	// ErrAbsent: the upstream does not serve the resource.
	ErrAbsent = errors.New("not served by the upstream")
	// ErrExpired: what the reader asks for has left the log. It must list again.
	ErrExpired = errors.New("too old resource version")
	// ErrFuture: the revision is not one that this Store ever gave out.
	ErrFuture = errors.New("too large resource version")
)

// readable tells why a table cannot be read. Called with the lock held.
func (t *table) readable() error {
	switch {
	case t.absent:
		return ErrAbsent
	case !t.ready:
		return ErrNotReady
	}
	return nil
}

// Readable tells why a resource cannot be read: ErrNotReady or ErrAbsent, else nil. changed is closed when
// the answer may be another.
func (s *Store) Readable(r *Resource) (changed <-chan struct{}, err error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	t := s.tableOf(r)
	return t.log.changed, t.readable()
}

// Revision is that of the newest event of any resource.
func (s *Store) Revision() uint64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.revision
}

// Get is one object and true, or false if there is none of that name. Errors: ErrNotReady, ErrAbsent.
func (s *Store) Get(r *Resource, namespace, name string) (*Object, bool, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	t := s.tableOf(r)
	if err := t.readable(); err != nil {
		return nil, false, err
	}
	i, found := t.find(namespace, name)
	if !found {
		return nil, false, nil
	}
	return t.objects[i], true, nil
}

// List is the state of a resource, in one namespace or (with "") in all, in the order of kube-apiserver's
// lists, and the revision at which it is that. Errors: ErrNotReady, ErrAbsent.
func (s *Store) List(r *Resource, namespace string) ([]*Object, uint64, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	t := s.tableOf(r)
	if err := t.readable(); err != nil {
		return nil, 0, err
	}
	return slices.Clone(t.inNamespace(namespace)), s.revision, nil
}

// ListAt is List as it was at an earlier revision. Errors: also ErrExpired and ErrFuture.
func (s *Store) ListAt(r *Resource, namespace string, revision uint64) ([]*Object, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	t := s.tableOf(r)
	if err := t.readable(); err != nil {
		return nil, err
	}
	if revision > s.revision {
		return nil, ErrFuture
	}
	objects, ok := t.rewind(revision)
	if !ok {
		return nil, ErrExpired
	}
	then := table{objects: objects}
	return then.inNamespace(namespace), nil
}

// Cursor is a watcher's place in the log of a resource. It belongs to one goroutine. Nothing needs to be
// released: the Store does not know its cursors.
type Cursor struct {
	s        *Store
	t        *table
	revision uint64
}

// Watch is a cursor that stands after the given revision. Errors: ErrNotReady, ErrAbsent, ErrExpired,
// ErrFuture.
func (s *Store) Watch(r *Resource, after uint64) (*Cursor, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	t := s.tableOf(r)
	if err := t.readable(); err != nil {
		return nil, err
	}
	if after > s.revision {
		return nil, ErrFuture
	}
	if after < t.log.floor {
		return nil, ErrExpired
	}
	return &Cursor{s: s, t: t, revision: after}, nil
}

// Next is up to limit events after the cursor, oldest first, and moves the cursor behind them. When there are
// none, changed is closed once there may be some. Error: ErrExpired when the log no longer holds what comes
// next.
func (c *Cursor) Next(limit int) (events []Event, changed <-chan struct{}, err error) {
	c.s.mu.RLock()
	defer c.s.mu.RUnlock()
	events, ok := c.t.log.after(c.revision, limit)
	if !ok {
		return nil, nil, ErrExpired
	}
	if len(events) == 0 {
		// Nothing of this resource up to here: the cursor may say so in a bookmark.
		c.revision = c.s.revision
		return nil, c.t.log.changed, nil
	}
	c.revision = events[len(events)-1].Object.Revision
	return slices.Clone(events), nil, nil
}

// Revision is where the cursor stands: every event of its resource up to it was returned by Next.
func (c *Cursor) Revision() uint64 { return c.revision }

// Stats are figures of one resource.
type Stats struct {
	Resource *Resource
	// Ready is Readable() == nil.
	Ready bool
	// Objects is how many are shown.
	Objects int
	// Endpoints counts those that the shown objects keep and hide.
	Endpoints EndpointCount
	// LogLength is the number of events in the log.
	LogLength int
}

// Stats are the figures of all resources.
func (s *Store) Stats() []Stats {
	s.mu.RLock()
	defer s.mu.RUnlock()
	all := make([]Stats, 0, len(Resources()))
	for _, r := range Resources() {
		t := s.tableOf(r)
		all = append(all, Stats{Resource: r, Ready: t.readable() == nil, Objects: len(t.objects), Endpoints: t.endpoints, LogLength: len(t.log.events)})
	}
	return all
}

// NodeKnown tells whether this node is one of the cluster.
func (s *Store) NodeKnown() bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	n := s.nodes[s.options.NodeName]
	return n != nil && n.known
}

// NodeCount is the number of known nodes.
func (s *Store) NodeCount() int {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return len(s.knownNodes())
}

// Invalid are the Services whose topologyKeys do not parse, with the reason.
func (s *Store) Invalid() map[types.NamespacedName]string {
	s.mu.RLock()
	defer s.mu.RUnlock()
	invalid := make(map[types.NamespacedName]string, len(s.invalid))
	for name, reason := range s.invalid {
		invalid[name] = reason
	}
	return invalid
}
