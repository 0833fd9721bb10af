package dnshosts

import (
	"fmt"
	"strings"
	"sync"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/follow"
	"github.com/application-grid/application-grid/pkg/wire"
)

// The names of the sources.
const (
	sourceNode     = "node"
	sourceGrids    = "statefulsetgrids"
	sourceServices = "services"
	sourceSets     = "statefulsets"
	sourcePods     = "pods"
)

// followed are the sources that never end: this node, all StatefulSetGrids and the Services of ServiceGrids by their
// metadata, and the StatefulSets of StatefulSetGrids. A list of nothing is believed only from an API server that knows
// this node, but for the node itself.
func (d *Daemon) followed() []follow.Options {
	return []follow.Options{{
		Name: sourceNode, Resource: corev1.SchemeGroupVersion.WithResource("nodes"), MetadataOnly: true,
		FieldSelector: "metadata.name=" + d.config.NodeName, Sink: d.node,
	}, {
		// A missing grid is tolerated, and so is a missing list of them.
		Name:         sourceGrids,
		Resource:     v1.GroupVersion.WithResource("statefulsetgrids"),
		MetadataOnly: true,
		Optional:     true,
		Witness:      d.witness, Sink: d.grids,
	}, {
		Name: sourceServices, Resource: corev1.SchemeGroupVersion.WithResource("services"), MetadataOnly: true,
		LabelSelector: v1.LabelGridUniqKey, Witness: d.witness, Sink: d.services,
	}, {
		Name: sourceSets, Resource: appsv1.SchemeGroupVersion.WithResource("statefulsets"),
		LabelSelector: v1.LabelGridSelector, Witness: d.witness, Sink: d.sets,
	}}
}

// podsOptions follow the pods of a chunk.
func (d *Daemon) podsOptions(c chunk, into *table[*Pod]) follow.Options {
	return follow.Options{
		Name: sourcePods, Agent: fmt.Sprintf("%s.%s.%s.%d", sourcePods, c.namespace, c.set, c.index),
		Resource: corev1.SchemeGroupVersion.WithResource("pods"), Namespace: c.namespace,
		LabelSelector: appsv1.StatefulSetPodNameLabel + " in (" + strings.Join(c.podNames(), ",") + ")",
		Witness:       d.witness, Sink: into,
	}
}

// key is an object's namespace and name.
type key struct{ namespace, name string }

func keyOf(o *wire.Object) key { return key{o.Namespace, o.Name} }

// table is the follow.Sink of one source: it has of each object what keep makes of it. changed is called, without the
// lock, after every change of that; nothing else is heard of, above all not of updates that kept fields have no part
// in.
type table[T any] struct {
	keep    func(*wire.Object) (T, error)
	equal   func(a, b T) bool
	changed func()
	// removed is called for what was there and is not; it may be nil.
	removed func(T)
	logger  klog.Logger

	mu      sync.Mutex
	objects map[key]T // guarded by mu
	// listed is set with the first complete list. Guarded by mu.
	listed bool
}

func newTable[T any](d *Daemon, keep func(*wire.Object) (T, error), equal func(a, b T) bool) *table[T] {
	return &table[T]{keep: keep, equal: equal, changed: d.changed, logger: d.logger, objects: map[key]T{}}
}

// kept is what is kept of an object. Of one that cannot be read, that is what is there already.
func (t *table[T]) kept(o *wire.Object) (T, bool) {
	kept, err := t.keep(o)
	if err == nil {
		return kept, true
	}
	t.logger.Error(err, "The API server sent what cannot be read; what was known of it stays",
		"namespace", o.Namespace, "name", o.Name)
	return t.get(keyOf(o))
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
	same := exists && t.equal(old, kept)
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
	old, exists := t.objects[k]
	delete(t.objects, k)
	t.mu.Unlock()
	if !exists {
		return
	}
	if t.removed != nil {
		t.removed(old)
	}
	t.changed()
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
	before := t.objects
	t.objects, t.listed = objects, true
	t.mu.Unlock()
	for k, old := range before {
		// What came back under its name as another one was removed in between; the receiver tells.
		if now, exists := objects[k]; t.removed != nil && (!exists || !t.equal(old, now)) {
			t.removed(old)
		}
	}
	t.changed()
}

// SetAbsent implements follow.Sink. What was known stays.
func (t *table[T]) SetAbsent() {}

// isListed reports whether there was a complete list.
func (t *table[T]) isListed() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.listed
}

func (t *table[T]) get(k key) (T, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	object, ok := t.objects[k]
	return object, ok
}

func (t *table[T]) all() []T {
	t.mu.Lock()
	defer t.mu.Unlock()
	objects := make([]T, 0, len(t.objects))
	for _, object := range t.objects {
		objects = append(objects, object)
	}
	return objects
}

// metaOf decodes an object's metadata.
func metaOf(o *wire.Object) (*metav1.ObjectMeta, error) {
	var m metav1.ObjectMeta
	if err := m.Unmarshal(o.Meta); err != nil {
		return nil, fmt.Errorf("decoding the metadata: %w", err)
	}
	return &m, nil
}

// decode decodes a whole object.
func decode(o *wire.Object, into interface{ Unmarshal([]byte) error }) error {
	if err := into.Unmarshal(wire.AppendObject(nil, o.Meta, o.Body, 0)); err != nil {
		return fmt.Errorf("decoding a %T: %w", into, err)
	}
	return nil
}
