package facts

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/application-grid/application-grid/pkg/topology"
)

// Watcher sees every step of the facts. FactsChanged is called while the facts cannot change; it must not keep the
// Change.
type Watcher interface{ FactsChanged(*Change) }

// Change is what one step touched. What it names need not differ in the end.
type Change struct {
	facts *Facts

	// Received is when the upstream's change arrived.
	Received time.Time
	// Services are those that came, changed or went.
	Services map[types.NamespacedName]struct{}
	// Nodes are the Node objects of InputNode that came, changed or went.
	Nodes map[types.NamespacedName]struct{}
	// Objects are the objects that came, changed or went.
	Objects map[*Object]struct{}
	// Governed are the Services whose keys changed, or whose ready endpoints are on nodes with other values of a key.
	Governed map[*Service]struct{}
	// Relabelled are the nodes whose labels changed, with the labels before. A node that came or went is one of them.
	Relabelled map[*Node]topology.Labels
	// Died are the nodes that are dead now and were not, or the other way.
	Died map[string]struct{}
	// Keys is set when a topology key came into use, or went out of it.
	Keys bool
}

// add enters a member of a set that may be nil.
func add[K comparable](set *map[K]struct{}, member K) {
	if *set == nil {
		*set = make(map[K]struct{})
	}
	(*set)[member] = struct{}{}
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
