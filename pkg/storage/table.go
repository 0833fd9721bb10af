package storage

import (
	"slices"
	"sort"

	"k8s.io/apimachinery/pkg/watch"

	"github.com/application-grid/application-grid/pkg/wire"
)

// table is what clients see of one resource, and its history. Guarded by the Store's lock.
type table struct {
	resource *Resource
	// objects is sorted by Object.compare.
	objects []*Object
	log     *eventLog
	// ready is set once the upstream state that the table is a view of is complete.
	ready bool
	// absent is set while the upstream says that it does not serve the resource.
	absent bool
	// endpoints counts, over all objects, what the view keeps and hides.
	endpoints EndpointCount
}

// EndpointCount counts endpoints.
type EndpointCount struct{ Kept, Hidden int }

func (t *table) find(namespace, name string) (int, bool) {
	return sort.Find(len(t.objects), func(i int) int { return -t.objects[i].compare(namespace, name) })
}

// put shows an object, if clients would see a difference.
func (t *table) put(s *Store, meta *wire.Object, body []byte, fields map[string]string) {
	i, found := t.find(meta.Namespace, meta.Name)
	var previous *Object
	if found {
		previous = t.objects[i]
		if previous.meta.UID != meta.UID {
			// Deleted and created again under one name; to clients these are two objects.
			t.remove(s, meta.Namespace, meta.Name)
			found, previous = false, nil
		} else if previous.same(meta, body) {
			return
		}
	}
	object := &Object{Revision: s.nextRevision(), resource: t.resource, meta: meta, body: body, fields: fields}
	if !found || previous.differsInContent(object) {
		s.content = object.Revision
	}
	if found {
		t.objects[i] = object
		t.log.append(Event{Type: watch.Modified, Object: object, Previous: previous, Received: s.received})
		return
	}
	t.objects = slices.Insert(t.objects, i, object)
	t.log.append(Event{Type: watch.Added, Object: object, Received: s.received})
}

func (t *table) remove(s *Store, namespace, name string) {
	i, found := t.find(namespace, name)
	if !found {
		return
	}
	previous := t.objects[i]
	t.objects = slices.Delete(t.objects, i, i+1)
	t.log.append(Event{Type: watch.Deleted, Object: previous.at(s.nextRevision()), Previous: previous, Received: s.received})
	s.content = s.revision
}

// open makes the table readable. What stands in it now is the state that clients start from, so its making
// is no history.
func (t *table) open(s *Store) {
	t.ready = true
	t.log.events, t.log.bytes = nil, 0
	t.log.floor = s.revision
	t.log.dirty = true
}

// inNamespace is the part of the table in one namespace, or all of it for "". It shares memory with the
// table.
func (t *table) inNamespace(namespace string) []*Object {
	if namespace == "" {
		return t.objects
	}
	from := sort.Search(len(t.objects), func(i int) bool { return t.objects[i].meta.Namespace >= namespace })
	to := sort.Search(len(t.objects), func(i int) bool { return t.objects[i].meta.Namespace > namespace })
	return t.objects[from:to]
}

// rewind is the state of the table at an earlier revision, sorted. ok is false when the log does not reach
// back so far.
func (t *table) rewind(revision uint64) (objects []*Object, ok bool) {
	events, ok := t.log.after(revision, len(t.log.events))
	if !ok {
		return nil, false
	}
	objects = slices.Clone(t.objects)
	for _, e := range slices.Backward(events) {
		i, found := sort.Find(len(objects), func(i int) int { return -objects[i].compare(e.Object.Namespace(), e.Object.Name()) })
		switch {
		case e.Type == watch.Added && found:
			objects = slices.Delete(objects, i, i+1)
		case e.Type == watch.Modified && found:
			objects[i] = e.Previous
		case e.Type == watch.Deleted && !found:
			objects = slices.Insert(objects, i, e.Previous)
		}
	}
	return objects, true
}
