package facts

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/application-grid/application-grid/pkg/storage/served"
	"github.com/application-grid/application-grid/pkg/storage/wire"
	"github.com/application-grid/application-grid/pkg/topology"
)

// Watcher gets every step of the facts. The facts do not change while FactsChanged runs. It must keep neither the
// Reader nor the Change.
type Watcher interface {
	FactsChanged(in Reader, c *Change)
}

// Reader reads the facts between two steps. It is valid only during a call, and must not be kept, because everything
// that can be reached through it is guarded by the lock of the Facts.
type Reader struct{ f *Facts }

// reader is for callers within the lock.
func (f *Facts) reader() Reader { return Reader{f} }

// Key names an object of a served resource.
type Key struct {
	Resource *served.Resource
	Name     types.NamespacedName
}

// Change has everything that one step touched. Some of it may be the same as before.
type Change struct {
	// Received is when the upstream's change arrived.
	Received time.Time
	// Plain has the added, changed or removed objects of the kinds that are shown whole: Services, Namespaces, and the
	// Node objects of InputNode.
	Plain map[Key]struct{}
	// NodesGiven has the objects that InputNodes was given, including nodes whose labels did not change; nil for nodes
	// that were removed.
	NodesGiven map[string]*wire.Object
	// EndpointSets has the added, changed or removed objects that list endpoints.
	EndpointSets map[*EndpointSet]struct{}
	// Rejudged has the Services whose keys changed, or whose endpoints were recounted. Other values may decide how they
	// are shown now.
	Rejudged map[*Service]struct{}
	// Relabelled has the nodes whose labels changed, with the labels before. Nodes that were added or removed are
	// included.
	Relabelled map[*Node]topology.Labels
	// DoubtChanged has the nodes that died or fell silent, or that came back.
	DoubtChanged map[string]struct{}
	// Rebuilt is set if the facts were rebuilt after a step that panicked. Then everything may have changed, and all
	// Services, Nodes and EndpointSets have been replaced. It is never set without Options.OnPanic.
	Rebuilt bool
}

// index has the members with each key, without empty sets.
type index[T comparable] map[string]map[T]struct{}

func (x index[T]) add(key string, member T) {
	if x[key] == nil {
		x[key] = make(map[T]struct{})
	}
	x[key][member] = struct{}{}
}

func (x index[T]) remove(key string, member T) {
	if delete(x[key], member); len(x[key]) == 0 {
		delete(x, key)
	}
}

func add[K comparable](set *map[K]struct{}, member K) { put(set, member, struct{}{}) }

func put[K comparable, V any](to *map[K]V, key K, value V) {
	if *to == nil {
		*to = make(map[K]V)
	}
	(*to)[key] = value
}
