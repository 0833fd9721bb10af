package facts

import (
	"fmt"
	"runtime/debug"

	"k8s.io/apimachinery/pkg/types"

	"github.com/application-grid/application-grid/pkg/storage/served"
	"github.com/application-grid/application-grid/pkg/storage/wire"
)

// attempt calls run, and reports whether it panicked, which means that an invariant is broken. Without Options.Broken
// it does not recover.
func (f *Facts) attempt(run func()) (broken bool) {
	if f.options.Broken == nil {
		run()
		return false
	}
	defer func() {
		if reason := recover(); reason != nil {
			broken = true
			f.options.Broken(fmt.Errorf("%v\n%s", reason, debug.Stack()))
		}
	}()
	run()
	return false
}

// rebuild rebuilds the indexes from the stored upstream objects. Watchers do the same with everything that they have
// derived from them (Change.Rebuilt). An object that panics again is left out.
func (f *Facts) rebuild() {
	f.step.Rebuilt = true
	f.shareMark = nil // the next share is a complete one
	nodes, services := f.nodes.all(), stored(&f.services)
	f.emptyIndexes()
	f.refill(&f.nodes, nodes)
	f.refill(&f.services, services)
	for _, c := range []*collection{&f.slices, &f.legacy} {
		objects := stored(c)
		c.objects = make(map[types.NamespacedName]*Object)
		f.refill(c, objects)
	}
	f.attempt(f.services.recount)
}

// emptyIndexes makes the indexes of nodes and Services that have nothing.
func (f *Facts) emptyIndexes() {
	f.nodes.byName = make(map[string]*Node)
	f.nodes.values = make(map[string]map[string]map[*Node]struct{})
	f.services.byName = make(map[types.NamespacedName]*Service)
	f.services.byKey = make(map[string]map[*Service]struct{})
	f.services.invalid, f.services.stale = make(map[types.NamespacedName]string), nil
}

func (f *Facts) refill(store kept, objects []*wire.Object) {
	for _, o := range objects {
		f.attempt(func() { store.apply(o) })
	}
}

// all returns objects from which the index can be rebuilt.
func (x *nodeIndex) all() []*wire.Object {
	var all []*wire.Object
	for name, n := range x.byName {
		if n.Known {
			all = append(all, &wire.Object{Name: name, Labels: n.Labels})
		}
	}
	return all
}

func stored(store kept) []*wire.Object {
	names := store.names()
	all := make([]*wire.Object, len(names))
	for i, name := range names {
		all[i] = store.upstream(name)
	}
	return all
}

// unreadable logs that an object can no longer be read, although it could when it was applied. Its unread endpoints are
// not shown.
func (f *Facts) unreadable(r *served.Resource, name types.NamespacedName, err error) {
	f.options.Logger.Error(err, "An object that was applied cannot be read any more",
		"resource", r.Resource, "namespace", name.Namespace, "name", name.Name)
}
