package history

import (
	"slices"
	"sort"

	"k8s.io/apimachinery/pkg/types"

	"github.com/application-grid/application-grid/pkg/storage/wire"
)

// table has the objects of one resource, and their past. The History's lock guards it.
type table struct {
	// objects is sorted by namespace and name.
	objects []*Object
	log     eventLog
	// err is why the table cannot be read; nil if it can.
	err error
	// changed is closed and replaced after every change for which a reader may wait. dirty is set if the current Update
	// made such a change.
	changed chan struct{}
	dirty   bool
}

func (t *table) find(key types.NamespacedName) (int, bool) {
	return sort.Find(len(t.objects), func(i int) int { return wire.CompareKeys(key, t.objects[i].Key()) })
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
