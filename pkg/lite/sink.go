package lite

import (
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/application-grid/application-grid/pkg/storage/wire"
)

// sink is one set of a Store as a Sink of pkg/follow.
type sink struct {
	store *Store
	scope scope
}

// Reduce implements follow.Reducer: of a Service it returns what a kubelet reads, for environment variables
// (pkg/kubelet/kubelet_pods.go and envvars of Kubernetes). Anybody's annotations would take memory and wear out flash
// on all nodes.
func (k sink) Reduce(o *wire.Object) *wire.Object {
	var full corev1.Service
	if k.scope.kind != services || full.Unmarshal(encoded(o)) != nil {
		return o
	}
	service := corev1.Service{Spec: corev1.ServiceSpec{Type: full.Spec.Type, ClusterIP: full.Spec.ClusterIP,
		ClusterIPs: full.Spec.ClusterIPs, Ports: full.Spec.Ports}}
	service.Namespace, service.Name, service.UID = full.Namespace, full.Name, full.UID
	service.CreationTimestamp, service.ResourceVersion = full.CreationTimestamp, o.ResourceVersion
	if less, err := wire.ObjectOf(&service); err == nil {
		return less
	}
	return o
}

// Apply implements follow.Sink. The caller is ChangeAt, which holds the lock.
func (k sink) Apply(o *wire.Object) {
	set, name := k.store.getOrAddSet(k.scope), o.Key()
	old := set.objects[name]
	if old != nil && old.Equal(o) && (old.ResourceVersion == o.ResourceVersion || k.scope.kind == services) {
		return
	}
	set.objects[name] = o
	k.store.recordObject(k.scope, name, o)
	if namedByPods[k.scope.kind] && set.size() > namedBytes {
		k.store.signalNeeds() // pods may name more than is kept
	}
}

// Remove implements follow.Sink, as Apply does.
func (k sink) Remove(namespace, name string) {
	key, set := types.NamespacedName{Namespace: namespace, Name: name}, k.store.getOrAddSet(k.scope)
	if _, ok := set.objects[key]; ok {
		delete(set.objects, key)
		k.store.recordObject(k.scope, key, nil)
	}
}

// Replace implements follow.Sink, as Apply does.
func (k sink) Replace(objects []*wire.Object) {
	there := make(map[types.NamespacedName]bool, len(objects))
	set := k.store.getOrAddSet(k.scope)
	for _, o := range objects {
		there[o.Key()] = true
		if old := set.objects[o.Key()]; k.scope == podScope(k.store.node) && set.version > 0 &&
			(old == nil || old.UID != o.UID || numberOf(o) < numberOf(old)) {
			// It was not there any longer, or is there as it was before: kube-apiserver was restored from a backup,
			// perhaps with higher versions (etcdutl snapshot restore --bump-revision).
			k.store.revive(types.UID(o.UID))
		}
		k.Apply(o)
	}
	for name := range set.objects {
		if !there[name] {
			k.Remove(name.Namespace, name.Name)
		}
	}
}

// SetAbsent implements follow.Sink. Resources that the API server does not serve are not answered.
func (sink) SetAbsent() {}

// ObjectCount implements follow.ObjectCounter: an empty list without a resourceVersion is not believed.
func (k sink) ObjectCount() int {
	k.store.mu.Lock()
	defer k.store.mu.Unlock()
	return len(k.store.getOrAddSet(k.scope).objects)
}

// ChangeAt implements follow.Versioned. On the disk the version stays older while no object changes, because each
// commit wears out flash, and the set was the same at the older version.
func (k sink) ChangeAt(version string, apply func()) {
	number, err := strconv.ParseUint(version, 10, 64)
	if err != nil || number == 0 {
		return // not from kube-apiserver
	}
	s := k.store
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.recorded.Load()
	if apply != nil {
		apply()
	}
	set := s.getOrAddSet(k.scope)
	if naming[k.scope.kind] && !set.current {
		s.signalNeeds() // the objects that they name are followed from now on
	}
	if k.scope == podScope(s.node) {
		s.noteContact(time.Now())
		if number < set.version { // it was restored from a backup, and has the pods of that time
			for _, o := range set.objects {
				s.revive(types.UID(o.UID))
			}
		}
	}
	if s.recorded.Load() > before || set.version == 0 {
		s.recordChange(k.scope.key(keySet), change{value: []byte(version), in: k.scope, versionOf: set})
	}
	set.version, set.current = number, true
}
