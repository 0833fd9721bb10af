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

// Reader reads the facts between two steps. It is handed out for the time of a call, and not to be kept: what can be
// reached through it is guarded by the lock of the Facts.
type Reader struct{ f *Facts }

// reader is for callers within the lock.
func (f *Facts) reader() Reader { return Reader{f} }

// Key names an object of a served resource.
type Key struct {
	Resource *served.Resource
	Name     types.NamespacedName
}

// Change says what one step touched. Something that was touched may be the same as before.
type Change struct {
	// Received is when the upstream's change arrived.
	Received time.Time
	// Whole has the objects that are shown whole and were added, changed or removed: Services, Namespaces, and the Node
	// objects of InputNode.
	Whole map[Key]struct{}
	// NodesGiven has what InputNodes was given of nodes, also of those whose labels did not change; nil for nodes that
	// were removed.
	NodesGiven map[string]*wire.Object
	// Objects has the objects that list endpoints and were added, changed or removed.
	Objects map[*Object]struct{}
	// Named has the names of the nodes on which other objects list endpoints than before, known or not.
	Named map[string]struct{}
	// Governed has the Services whose keys changed, or whose endpoints were counted again: they may be shown by other
	// values.
	Governed map[*Service]struct{}
	// Relabelled has the nodes whose labels changed, with the labels before. Nodes that were added or removed are
	// included.
	Relabelled map[*Node]topology.Labels
	// Died has the nodes that were alive and are dead or silent now, or the other way round.
	Died map[string]struct{}
	// Rebuilt is set if the facts were made again after a step that panicked. Then everything may have changed, and all
	// Services, Nodes and Objects are others than before. It is not set without Options.Broken.
	Rebuilt bool
}

// touches reports whether the step touched anything.
func (c *Change) touches() bool {
	return c.Rebuilt || len(c.Whole)+len(c.Objects)+len(c.Governed)+len(c.Relabelled)+len(c.Died) > 0
}

func add[K comparable](set *map[K]struct{}, member K) {
	if *set == nil {
		*set = make(map[K]struct{})
	}
	(*set)[member] = struct{}{}
}

// node notes what was given of a node.
func (c *Change) node(name string, o *wire.Object) {
	if c.NodesGiven == nil {
		c.NodesGiven = make(map[string]*wire.Object)
	}
	c.NodesGiven[name] = o
}

// relabelled notes the labels that a node had before the step.
func (c *Change) relabelled(n *Node, before topology.Labels) {
	if c.Relabelled == nil {
		c.Relabelled = make(map[*Node]topology.Labels)
	}
	if _, noted := c.Relabelled[n]; !noted {
		c.Relabelled[n] = before
	}
}
