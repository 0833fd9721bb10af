package history

import (
	"slices"
	"sort"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/application-grid/application-grid/pkg/storage/served"
	"github.com/application-grid/application-grid/pkg/storage/wire"
)

// table has the objects of one resource, and their past. The History's lock guards it.
type table struct {
	resource *served.Resource
	// objects is sorted by namespace and name.
	objects []*Object
	log     eventLog
	state   served.State
	// changed is closed and replaced after every change for which a reader may wait. dirty is set if the current Update
	// made such a change.
	changed chan struct{}
	dirty   bool
}

func (t *table) find(key types.NamespacedName) (int, bool) {
	return sort.Find(len(t.objects), func(i int) int { return wire.CompareKeys(key, t.objects[i].Key()) })
}

// remove removes an object, if it exists.
func (t *table) remove(u *Update, key types.NamespacedName) {
	i, found := t.find(key)
	if !found {
		return
	}
	last := t.objects[i]
	t.objects = slices.Delete(t.objects, i, i+1)
	t.note(u, Event{Type: watch.Deleted, Object: last.at(u.h.nextRevision()), Previous: last})
}

// put shows a version, unless a client would see no difference. revision is the revision for a new object; 0 means the
// next one.
func (t *table) put(u *Update, v Version, revision uint64) {
	i, found := t.find(v.Key())
	if found {
		before := t.objects[i]
		switch {
		case before.UID != v.UID:
			// The object was deleted and recreated with the same name. For clients these are two objects.
			t.remove(u, v.Key())
		case before.sameFor(&v):
			return
		default:
			t.objects[i] = t.object(u, v, u.h.nextRevision())
			t.note(u, Event{Type: watch.Modified, Object: t.objects[i], Previous: before})
			return
		}
	}
	if revision == 0 {
		revision = u.h.nextRevision()
	}
	o := t.object(u, v, revision)
	t.objects = slices.Insert(t.objects, i, o)
	t.note(u, Event{Type: watch.Added, Object: o})
}

func (t *table) object(u *Update, v Version, revision uint64) *Object {
	return &Object{Version: v, Revision: revision, resource: t.resource, encoded: u.h.encoded}
}

// note appends an event to the log. While the table cannot be read, no cursor needs it.
func (t *table) note(u *Update, e Event) {
	t.dirty = true
	if t.state == served.Ready {
		e.Received = u.received
		t.log.append(e)
	}
}

// inNamespace returns the table's objects in one namespace, or in all for "", as a new slice.
func (t *table) inNamespace(namespace string) []*Object {
	if namespace == "" {
		return slices.Clone(t.objects)
	}
	from := sort.Search(len(t.objects), func(i int) bool { return t.objects[i].Namespace >= namespace })
	to := sort.Search(len(t.objects), func(i int) bool { return t.objects[i].Namespace > namespace })
	return slices.Clone(t.objects[from:to])
}

// broadcast wakes the readers that wait, if something changed.
func (t *table) broadcast() {
	if t.dirty {
		close(t.changed)
		t.changed = make(chan struct{})
		t.dirty = false
	}
}
