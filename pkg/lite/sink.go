package lite

import (
	"strconv"

	"k8s.io/apimachinery/pkg/types"

	"github.com/application-grid/application-grid/pkg/storage/wire"
)

// sink is one set of a Store as a Sink of pkg/follow.
type sink struct {
	store *Store
	scope scope
}

// Reduce implements follow.Reducer.
func (k sink) Reduce(o *wire.Object) *wire.Object {
	if k.scope.kind == services {
		return reduced(o)
	}
	return o
}

// Apply implements follow.Sink. The caller is At, which holds the lock.
func (k sink) Apply(o *wire.Object) {
	k.store.putObject(k.scope, o)
}

// Remove implements follow.Sink, as Apply does.
func (k sink) Remove(namespace, name string) {
	k.store.removeObject(k.scope, types.NamespacedName{Namespace: namespace, Name: name})
}

// Replace implements follow.Sink, as Apply does.
func (k sink) Replace(objects []*wire.Object) {
	there := make(map[types.NamespacedName]bool, len(objects))
	set := k.store.set(k.scope)
	for _, o := range objects {
		there[o.Key()] = true
		if old := set.objects[o.Key()]; k.scope == podsOf(k.store.node) && set.version > 0 &&
			(old == nil || old.UID != o.UID) {
			k.store.revive(types.UID(o.UID)) // it was not there any longer: kube-apiserver was restored from a backup
		}
		k.store.putObject(k.scope, o)
	}
	for name := range set.objects {
		if !there[name] {
			k.store.removeObject(k.scope, name)
		}
	}
}

// SetAbsent implements follow.Sink. Resources that the API server does not serve are not answered.
func (sink) SetAbsent() {}

// Known implements follow.Knower: an empty list without a resourceVersion is not believed.
func (k sink) Known() int {
	k.store.mu.Lock()
	defer k.store.mu.Unlock()
	return len(k.store.set(k.scope).objects)
}

// At implements follow.Versioned.
func (k sink) At(version string, change func()) {
	number, err := strconv.ParseUint(version, 10, 64)
	if err != nil || number == 0 {
		return // not from kube-apiserver
	}
	k.store.mu.Lock()
	defer k.store.mu.Unlock()
	before := k.store.recorded
	if change != nil {
		change()
	}
	k.store.recordVersion(k.scope, number, k.store.recorded > before)
}
