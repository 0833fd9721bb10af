package facts

import (
	"fmt"
	"runtime/debug"

	"k8s.io/apimachinery/pkg/types"

	"github.com/application-grid/application-grid/pkg/storage/wire"
)

// runRecovered calls run, and reports whether it panicked, which means that an invariant is broken. Without
// Options.OnPanic it does not recover.
func (f *Facts) runRecovered(run func()) (broken bool) {
	if f.options.OnPanic == nil {
		run()
		return false
	}
	defer func() {
		if reason := recover(); reason != nil {
			broken = true
			f.options.OnPanic(fmt.Errorf("%v\n%s", reason, debug.Stack()))
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
	indexes := []store{&f.nodes, &f.services, &f.slices, &f.legacy}
	var stored [4][]*wire.Object
	for i, index := range indexes {
		for _, name := range index.names() {
			stored[i] = append(stored[i], index.upstream(name))
		}
	}
	f.emptyIndexes()
	for i, index := range indexes {
		for _, o := range stored[i] {
			_ = f.runRecovered(func() { index.apply(o) })
		}
	}
	_ = f.runRecovered(f.services.recount)
}

func (f *Facts) emptyIndexes() {
	f.nodes.byName = make(map[string]*Node)
	f.nodes.values = make(map[string]index[*Node])
	f.services.byName = make(map[types.NamespacedName]*Service)
	f.services.byKey = make(index[*Service])
	f.services.invalid, f.services.stale = make(map[types.NamespacedName]string), nil
	f.slices.objects = make(map[types.NamespacedName]*EndpointSet)
	f.legacy.objects = make(map[types.NamespacedName]*EndpointSet)
}
