package history

import (
	"maps"
	"slices"
	"sort"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/application-grid/application-grid/pkg/storage/served"
)

// table has the objects of one resource, and their past. The History's lock guards it.
type table struct {
	resource *served.Resource
	// slots is sorted by namespace and name.
	slots []*slot
	log   eventLog
	order order
	state served.State
	// changed is closed and replaced after every change for which a reader may wait. dirty is set if there was one in
	// the current Update.
	changed chan struct{}
	dirty   bool
}

func (t *table) find(namespace, name string) (int, bool) {
	return sort.Find(len(t.slots), func(i int) int { return -t.slots[i].object.compareKey(namespace, name) })
}

// remove removes an object, if it exists.
func (t *table) remove(u *Update, key types.NamespacedName) {
	i, found := t.find(key.Namespace, key.Name)
	if !found {
		return
	}
	s := t.slots[i]
	t.slots = slices.Delete(t.slots, i, i+1)
	last := s.object
	s.object = nil
	revision := u.h.nextRevision()
	t.log.append(Event{Type: watch.Deleted, Object: last.at(revision), Previous: last, Received: u.received})
	t.order.noteStale()
	t.order.retire(retiredVersion{revision: revision, slot: s, object: last, deleted: true})
	t.dirty = true
}

// put shows a version, unless a client would see no difference, and returns the object that is shown afterwards.
// revision is given to an object that was not there before; 0 means a new revision.
func (t *table) put(u *Update, v Version, revision uint64) *Object {
	i, found := t.find(v.Namespace, v.Name)
	if found {
		shown := t.slots[i].object
		if shown.UID == v.UID {
			if shown.sameFor(&v) {
				return shown
			}
			return t.replace(u, t.slots[i], v)
		}
		// The object was deleted and created again with the same name. For clients these are two objects.
		t.remove(u, v.Key())
	}
	if revision == 0 {
		revision = u.h.nextRevision()
	}
	s := &slot{
		object: &Object{Version: v, Revision: revision, created: revision, resource: t.resource, encoded: u.h.encoded},
	}
	t.slots = slices.Insert(t.slots, i, s)
	t.log.append(Event{Type: watch.Added, Object: s.object, Received: u.received})
	t.order.entered(s)
	t.dirty = true
	return s.object
}

func (t *table) replace(u *Update, s *slot, v Version) *Object {
	before := s.object
	s.object = &Object{
		Version:  v,
		Revision: u.h.nextRevision(),
		created:  before.created,
		resource: t.resource,
		encoded:  u.h.encoded,
	}
	t.log.append(Event{Type: watch.Modified, Object: s.object, Previous: before, Received: u.received})
	t.order.entered(s)
	t.order.noteStale()
	if !maps.Equal(before.Labels, v.Labels) || !slices.Equal(before.Fields, v.Fields) {
		t.order.retire(retiredVersion{revision: s.object.Revision, slot: s, object: before})
	}
	t.dirty = true
	return s.object
}

// forget drops the past. Cursors may start from revision.
func (t *table) forget(revision uint64) {
	t.log.clear(revision)
	t.order.clear(revision)
}

// inNamespace returns the table's objects in one namespace, or in all for "", as a new slice.
func (t *table) inNamespace(namespace string) []*Object {
	slots := t.slots
	if namespace != "" {
		from := sort.Search(len(slots), func(i int) bool { return slots[i].object.Namespace >= namespace })
		to := sort.Search(len(slots), func(i int) bool { return slots[i].object.Namespace > namespace })
		slots = slots[from:to]
	}
	objects := make([]*Object, len(slots))
	for i, s := range slots {
		objects[i] = s.object
	}
	return objects
}

// broadcast wakes the readers that wait, if something changed.
func (t *table) broadcast() {
	if t.dirty {
		close(t.changed)
		t.changed = make(chan struct{})
		t.dirty = false
	}
}
