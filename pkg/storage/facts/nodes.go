package facts

import (
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/application-grid/application-grid/pkg/storage/wire"
	"github.com/application-grid/application-grid/pkg/topology"
)

// Node has the labels of one node, and the objects that list endpoints on it. It may also be an unknown node that
// endpoints name.
type Node struct {
	Name  string
	Known bool
	// Labels are nil for a node that is not known.
	Labels topology.Labels
	// Objects has the objects that list endpoints on the node, each once, in no order.
	Objects []*EndpointSet
}

type nodeStore struct {
	completion

	f      *Facts
	byName map[string]*Node
	// values has the nodes with each value of each topology key in use.
	values map[string]index[*Node]
}

func (x *nodeStore) apply(o *wire.Object) {
	put(&x.f.step.NodesGiven, o.Name, o)
	x.setNode(Node{Name: o.Name, Known: true, Labels: o.Labels})
}

func (x *nodeStore) remove(name types.NamespacedName) {
	put(&x.f.step.NodesGiven, name.Name, nil)
	x.setNode(Node{Name: name.Name})
}

// upstream returns an object with only the labels, because nothing else is kept.
func (x *nodeStore) upstream(name types.NamespacedName) *wire.Object {
	if n := x.f.reader().Node(name.Name); n != nil {
		return &wire.Object{Name: n.Name, Labels: n.Labels}
	}
	return nil
}

func (x *nodeStore) names() []types.NamespacedName {
	names := make([]types.NamespacedName, 0, len(x.byName))
	x.f.reader().Nodes(func(n *Node) { names = append(names, types.NamespacedName{Name: n.Name}) })
	return names
}

func (x *nodeStore) getOrAdd(name string) *Node {
	n := x.byName[name]
	if n == nil {
		n = &Node{Name: name}
		x.byName[name] = n
	}
	return n
}

// setNode sets a node's labels, or removes the node if it is not Known now.
func (x *nodeStore) setNode(now Node) {
	n := x.getOrAdd(now.Name)
	before, cameOrWent := n.Labels, n.Known != now.Known
	n.Known, n.Labels = now.Known, now.Labels
	if !now.Known {
		x.f.forgetAddresses(now.Name)
	}
	if cameOrWent || !maps.Equal(before, n.Labels) {
		if _, noted := x.f.step.Relabelled[n]; !noted {
			put(&x.f.step.Relabelled, n, before)
		}
		for key, values := range x.values {
			if value, had := before[key]; had {
				values.remove(value, n)
			}
			if value, has := n.Labels[key]; has {
				values.add(value, n)
			}
		}
		for _, o := range n.Objects {
			x.f.services.markForRecount(o.Service)
		}
	}
	x.dropIfUnused(n)
}

// dropIfUnused drops a node that is not known and that no endpoint names.
func (x *nodeStore) dropIfUnused(n *Node) {
	if !n.Known && len(n.Objects) == 0 {
		delete(x.byName, n.Name)
	}
}

// indexKey starts to index the values of a topology key.
func (x *nodeStore) indexKey(key string) {
	x.values[key] = make(index[*Node])
	for _, n := range x.byName {
		if value, has := n.Labels[key]; has {
			x.values[key].add(value, n)
		}
	}
}

// Keys returns the topology keys in use, in no order, without "*".
func (in Reader) Keys() []string { return slices.Collect(maps.Keys(in.f.nodes.values)) }

// NodesWith returns the nodes with a value of a topology key in use.
func (in Reader) NodesWith(key, value string) map[*Node]struct{} {
	return in.f.nodes.values[key][value]
}

// Inhabited reports whether any node has this value of any topology key in use.
func (in Reader) Inhabited(site string) bool {
	for _, values := range in.f.nodes.values {
		if len(values[site]) > 0 {
			return true
		}
	}
	return false
}

// NodeExists reports whether the node is known.
func (f *Facts) NodeExists(name string) bool {
	return get(f, func(in Reader) bool { return in.Node(name) != nil })
}

// NodeNames returns the names of all known nodes, in no order.
func (f *Facts) NodeNames() []string {
	names := make([]string, 0)
	f.Read(func(in Reader) { in.Nodes(func(n *Node) { names = append(names, n.Name) }) })
	return names
}

// Nodes calls visit for every known node.
func (in Reader) Nodes(visit func(*Node)) {
	for _, n := range in.f.nodes.byName {
		if n.Known {
			visit(n)
		}
	}
}

// Node returns the node with that name; nil if it is not known.
func (in Reader) Node(name string) *Node {
	if n := in.f.nodes.byName[name]; n != nil && n.Known {
		return n
	}
	return nil
}

// NodeObjectsOf returns the objects that list endpoints on the node with that name, known or not.
func (in Reader) NodeObjectsOf(name string) []*EndpointSet {
	if n := in.f.nodes.byName[name]; n != nil {
		return n.Objects
	}
	return nil
}

// NodeCount returns the number of known nodes.
func (f *Facts) NodeCount() int { return len(f.NodeNames()) }

// Doubt is why a node may not answer.
type Doubt int

const (
	// Dead nodes are called dead by a health service. Their endpoints are hidden, unless a viewer would lose the last
	// ready endpoint of a Service.
	Dead Doubt = iota
	// Silent nodes no longer answer their neighbours. Their endpoints are hidden in the same way.
	Silent
	// Unanswering nodes have a machine that answers their neighbours, and a wrapper that does not. Their endpoints are
	// suspected.
	Unanswering
	// NoDoubt is that of all other nodes.
	NoDoubt
)

// SetDoubted takes the names of all nodes with a Doubt. They may include unknown nodes, whose endpoints are judged when
// they arrive. This node is left out, because it runs this process.
func (f *Facts) SetDoubted(why Doubt, names map[string]struct{}) {
	now := maps.Clone(names)
	delete(now, f.options.NodeName)
	delete(now, "") // an endpoint without a node name is never on such a node
	f.runStep(func() {
		before := f.doubted[why]
		f.doubted[why] = now
		for name := range sets.KeySet(before).SymmetricDifference(sets.KeySet(now)) {
			add(&f.step.DoubtChanged, name)
			for _, o := range f.reader().NodeObjectsOf(name) {
				f.services.markForRecount(o.Service)
			}
		}
	})
}

// Doubted returns the names that were last passed to SetDoubted, without this node's.
func (f *Facts) Doubted(why Doubt) map[string]struct{} {
	return get(f, func(Reader) map[string]struct{} { return maps.Clone(f.doubted[why]) })
}

// DoubtOf returns the first Doubt about the node of an endpoint of the Service, which may be nil; NoDoubt if there is
// none. The endpoints of default/kubernetes are never in doubt: they are API servers, and clients find out themselves
// which of those work.
func (in Reader) DoubtOf(s *Service, nodeName []byte) Doubt {
	if s != nil && s.Name != KubernetesService {
		for why, nodes := range in.f.doubted {
			if _, doubted := nodes[string(nodeName)]; doubted {
				return Doubt(why)
			}
		}
	}
	return NoDoubt
}
