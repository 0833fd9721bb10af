package facts

import (
	"bytes"
	"maps"
	"slices"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/application-grid/application-grid/pkg/storage/served"
	"github.com/application-grid/application-grid/pkg/storage/wire"
)

// EndpointSet is one upstream object that lists endpoints.
type EndpointSet struct {
	Upstream *wire.Object
	// Service is nil for an object that belongs to no Service. Such an object is not governed.
	Service *Service
	// Gone is set once the object was removed.
	Gone bool
	// Lost is the number of endpoints that Body lacks, because their pods are gone.
	Lost int

	store *endpointStore
	// corrected is described at Body.
	corrected []byte
	// ports is the list with which the endpoints were counted; the zero value if they never were.
	ports PortList
}

// Resource returns the object's resource: served.EndpointSlices or served.Endpoints.
func (o *EndpointSet) Resource() *served.Resource { return o.store.resource }

// Codec returns the codec for the object's body.
func (o *EndpointSet) Codec() *wire.Codec { return o.store.codec }

// Name returns the object's namespace and name.
func (o *EndpointSet) Name() types.NamespacedName { return o.Upstream.Key() }

// scan calls visit for every endpoint of a body of the object.
func (o *EndpointSet) scan(body []byte, visit func(wire.Endpoint)) {
	if err := o.Codec().Scan(body, visit); err != nil {
		o.LogUnreadable(err)
	}
}

// LogUnreadable logs that a body of the object can no longer be read, although it could when it was applied. Its unread
// endpoints are not shown.
func (o *EndpointSet) LogUnreadable(err error) {
	o.store.f.options.Logger.Error(err, "An object that was applied cannot be read any more",
		"resource", o.Resource().Resource, "namespace", o.Upstream.Namespace, "name", o.Upstream.Name)
}

// endpointStore has all objects of one resource that lists endpoints.
type endpointStore struct {
	completion

	f        *Facts
	resource *served.Resource
	codec    *wire.Codec
	objects  map[types.NamespacedName]*EndpointSet
}

func (c *endpointStore) names() []types.NamespacedName { return slices.Collect(maps.Keys(c.objects)) }

func (c *endpointStore) upstream(name types.NamespacedName) *wire.Object {
	if o := c.objects[name]; o != nil {
		return o.Upstream
	}
	return nil
}

func (c *endpointStore) apply(upstream *wire.Object) {
	name := upstream.Key()
	nodes, err := c.nodesIn(upstream.Body)
	if err != nil {
		c.f.options.Logger.Error(err, "Hiding an object that cannot be read",
			"resource", c.resource.Resource, "namespace", name.Namespace, "name", name.Name)
		c.remove(name)
		return
	}
	o := c.objects[name]
	switch {
	case o == nil:
		o = &EndpointSet{Upstream: upstream, store: c}
		c.objects[name] = o
		c.enterNodes(o, nodes)
	case o.Upstream.Equal(upstream):
		// A new list repeats known objects. The old object is kept, so that its memory is not held twice.
		o.Upstream = o.Upstream.At(upstream.ResourceVersion)
		return
	default:
		c.leaveService(o)
		before, _ := c.nodesIn(o.Upstream.Body) // it was read without an error
		o.Upstream = upstream
		come, gone := differing(nodes, before)
		c.enterNodes(o, missing(come, before))
		c.leaveNodes(o, missing(gone, nodes))
	}
	o.corrected, o.Lost = nil, 0
	c.joinService(o)
	add(&c.f.step.EndpointSets, o)
	c.correct(o)
}

func (c *endpointStore) remove(name types.NamespacedName) {
	o := c.objects[name]
	if o == nil {
		return
	}
	c.leaveService(o)
	nodes, _ := c.nodesIn(o.Upstream.Body) // it was read without an error
	c.leaveNodes(o, nodes)
	o.Gone = true
	delete(c.objects, name)
	add(&c.f.step.EndpointSets, o)
}

// nodesIn returns the names of the nodes of all endpoints in a body, in their order. They share memory with it.
func (c *endpointStore) nodesIn(body []byte) ([][]byte, error) {
	var names [][]byte
	err := c.codec.Scan(body, func(e wire.Endpoint) {
		if len(e.NodeName) > 0 {
			names = append(names, e.NodeName)
		}
	})
	return names, err
}

// differing returns both lists without their common beginning and end: most changes leave most endpoints on their
// nodes.
func differing(a, b [][]byte) (restA, restB [][]byte) {
	for len(a) > 0 && len(b) > 0 && bytes.Equal(a[0], b[0]) {
		a, b = a[1:], b[1:]
	}
	for len(a) > 0 && len(b) > 0 && bytes.Equal(a[len(a)-1], b[len(b)-1]) {
		a, b = a[:len(a)-1], b[:len(b)-1]
	}
	return a, b
}

// missing returns the names that are not among the others.
func missing(names, others [][]byte) [][]byte {
	if len(names) == 0 {
		return nil
	}
	among := make(map[string]struct{}, len(others))
	for _, name := range others {
		among[string(name)] = struct{}{}
	}
	return slices.DeleteFunc(slices.Clone(names), func(name []byte) bool {
		_, found := among[string(name)]
		return found
	})
}

// enterNodes adds an object to nodes that do not have it yet. A name may occur more than once.
func (c *endpointStore) enterNodes(o *EndpointSet, names [][]byte) {
	for _, name := range names {
		n := c.f.nodes.byName[string(name)]
		if n == nil {
			n = c.f.nodes.getOrAdd(string(name))
		}
		// Objects are added one at a time, so if this one was added already, it is the last.
		if last := len(n.Objects) - 1; last < 0 || n.Objects[last] != o {
			n.Objects = append(n.Objects, o)
		}
	}
}

// leaveNodes undoes enterNodes.
func (c *endpointStore) leaveNodes(o *EndpointSet, names [][]byte) {
	for _, name := range names {
		n := c.f.nodes.byName[string(name)]
		if n == nil {
			continue
		}
		if i := slices.Index(n.Objects, o); i >= 0 {
			last := len(n.Objects) - 1
			n.Objects[i] = n.Objects[last]
			n.Objects[last] = nil
			n.Objects = n.Objects[:last]
			c.f.nodes.dropIfUnused(n)
		}
	}
}

func (c *endpointStore) joinService(o *EndpointSet) {
	name := o.Upstream.Name // Endpoints have the name of their Service
	if c.resource == served.EndpointSlices {
		name = o.Upstream.Labels[discoveryv1.LabelServiceName]
	}
	if name == "" {
		return
	}
	o.Service = c.f.services.getOrAdd(types.NamespacedName{Namespace: o.Upstream.Namespace, Name: name})
	listed := &o.Service.listed[listIndex(c.resource)]
	listed.objects = append(listed.objects, o)
	c.f.services.count(o.Service, o, 1)
}

// leaveService undoes joinService.
func (c *endpointStore) leaveService(o *EndpointSet) {
	s := o.Service
	if s == nil {
		return
	}
	c.f.services.count(s, o, -1)
	listed := &s.listed[listIndex(c.resource)]
	listed.objects = slices.DeleteFunc(listed.objects, func(m *EndpointSet) bool { return m == o })
	o.Service = nil
	c.f.services.dropIfUnused(s)
}

// Object returns the object with that name; nil if it is not known.
func (in Reader) Object(r *served.Resource, name types.NamespacedName) *EndpointSet {
	return in.endpointStore(r).objects[name]
}

func (in Reader) endpointStore(r *served.Resource) *endpointStore {
	if r == served.Endpoints {
		return &in.f.legacy
	}
	return &in.f.slices
}

// Objects calls visit for every object of EndpointSlices or Endpoints.
func (in Reader) Objects(r *served.Resource, visit func(*EndpointSet)) {
	for _, o := range in.endpointStore(r).objects {
		visit(o)
	}
}
