package dnshosts

import (
	"maps"
	"reflect"
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/klog/v2"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/follow"
	"github.com/application-grid/application-grid/pkg/storage/wire"
)

// followed returns the sources that the daemon follows: the metadata of this node and of the Services of ServiceGrids,
// and the EndpointSlices of these Services, to which the EndpointSlice controller copies their labels. Except for the
// node, an empty list is used only if it comes from an API server that knows this node.
func (d *Daemon) followed() []follow.Options {
	return []follow.Options{{
		Name: "node", Resource: corev1.SchemeGroupVersion.WithResource("nodes"), MetadataOnly: true,
		FieldSelector: "metadata.name=" + d.config.NodeName, Sink: d.node,
	}, {
		Name: "services", Resource: corev1.SchemeGroupVersion.WithResource("services"), MetadataOnly: true,
		LabelSelector: v1.LabelGridUniqKey, Witness: d.witness, Sink: d.services,
	}, {
		Name: "endpointslices", Resource: discoveryv1.SchemeGroupVersion.WithResource("endpointslices"),
		LabelSelector: v1.LabelGridUniqKey, Witness: d.witness, Sink: d.slices,
	}}
}

// key is an object's namespace and name.
type key struct{ namespace, name string }

func keyOf(o *wire.Object) key { return key{o.Namespace, o.Name} }

// table is the follow.Sink of one source. It stores what keep returns for each object, and calls changed, without the
// lock, when that changes. Updates of other fields do not call changed.
type table[T any] struct {
	keep    func(*wire.Object) (T, error)
	changed func()
	logger  klog.Logger

	mu sync.Mutex
	// objects are nil before the first complete list. Guarded by mu.
	objects map[key]T
	// restored is set while the objects are those of a wrapper's snapshot, or corrected. Guarded by mu.
	restored bool
}

func newTable[T any](d *Daemon, keep func(*wire.Object) (T, error)) *table[T] {
	return &table[T]{keep: keep, changed: d.changed, logger: d.logger}
}

// kept returns the value to store for an object. If the object cannot be read, it is the one that the table already
// has.
func (t *table[T]) kept(o *wire.Object) (kept T, ok bool) {
	kept, err := t.keep(o)
	if err != nil {
		t.logger.Error(err, "Cannot read an object that the API server sent; keeping what was known of it",
			"namespace", o.Namespace, "name", o.Name)
		t.mu.Lock()
		defer t.mu.Unlock()
		kept, ok = t.objects[keyOf(o)]
	}
	return kept, ok || err == nil
}

// Apply implements follow.Sink.
func (t *table[T]) Apply(o *wire.Object) {
	kept, ok := t.kept(o)
	if !ok {
		return
	}
	k := keyOf(o)
	t.mu.Lock()
	old, exists := t.objects[k]
	same := exists && reflect.DeepEqual(old, kept)
	if !same {
		t.objects[k] = kept
	}
	t.mu.Unlock()
	if !same {
		t.changed()
	}
}

// Remove implements follow.Sink.
func (t *table[T]) Remove(namespace, name string) {
	k := key{namespace, name}
	t.mu.Lock()
	_, exists := t.objects[k]
	delete(t.objects, k)
	t.mu.Unlock()
	if exists {
		t.changed()
	}
}

// Replace implements follow.Sink.
func (t *table[T]) Replace(listed []*wire.Object) {
	objects := make(map[key]T, len(listed))
	for _, o := range listed {
		if kept, ok := t.kept(o); ok {
			objects[keyOf(o)] = kept
		}
	}
	t.mu.Lock()
	t.objects = objects
	t.mu.Unlock()
	t.changed()
}

// SetAbsent implements follow.Sink. The table keeps its objects.
func (t *table[T]) SetAbsent() {}

// isListed reports whether the source was listed completely.
func (t *table[T]) isListed() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.objects != nil
}

// SetRestored implements follow.Restorable.
func (t *table[T]) SetRestored(restored bool) {
	t.mu.Lock()
	t.restored = restored
	t.mu.Unlock()
	t.changed()
}

// read returns the objects, and whether they are restored.
func (t *table[T]) read() (objects map[key]T, restored bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return maps.Clone(t.objects), t.restored
}
