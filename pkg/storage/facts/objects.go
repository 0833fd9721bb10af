package facts

import (
	"slices"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/application-grid/application-grid/pkg/storage/history"
	"github.com/application-grid/application-grid/pkg/wire"
)

// Object is one upstream object that lists endpoints.
type Object struct {
	Upstream *wire.Object
	// Service is nil for an object that belongs to no Service. Such an object is not governed.
	Service *Service
	// Gone is set once the object was removed.
	Gone bool

	collection *collection
}

// Resource returns the object's resource: history.EndpointSlices or history.Endpoints.
func (o *Object) Resource() *history.Resource { return o.collection.resource }

// Codec returns the codec for the object's body.
func (o *Object) Codec() *wire.Codec { return o.collection.codec }

// Name returns the object's namespace and name.
func (o *Object) Name() types.NamespacedName { return nameOf(o.Upstream) }

// scan calls visit for every endpoint. It cannot fail, because apply has read the body before.
func (o *Object) scan(visit func(wire.Endpoint)) {
	if err := o.Codec().Scan(o.Upstream.Body, visit); err != nil {
		panic("facts: an object that was applied cannot be read: " + err.Error())
	}
}

// eachNode calls visit for the node of every endpoint that names one.
func (o *Object) eachNode(visit func(name []byte)) {
	o.scan(func(e wire.Endpoint) {
		if len(e.NodeName) > 0 {
			visit(e.NodeName)
		}
	})
}

// collection has all objects of one resource that lists endpoints.
type collection struct {
	f        *Facts
	resource *history.Resource
	codec    *wire.Codec
	// serviceOf returns the name of the Service whose endpoints an object lists, "" for none.
	serviceOf      func(*wire.Object) string
	objects        map[types.NamespacedName]*Object
	synced, absent bool
}

func serviceOfSlice(o *wire.Object) string { return o.Labels[discoveryv1.LabelServiceName] }

// serviceOfEndpoints returns the object's own name: Endpoints have the name of their Service.
func serviceOfEndpoints(o *wire.Object) string { return o.Name }

func (c *collection) setSynced() { c.synced, c.absent = true, false }
func (c *collection) setAbsent() { c.absent = !c.synced }
func (c *collection) count() int { return len(c.objects) }

func (c *collection) names() []types.NamespacedName {
	names := make([]types.NamespacedName, 0, len(c.objects))
	for name := range c.objects {
		names = append(names, name)
	}
	return names
}

func (c *collection) apply(upstream *wire.Object) {
	name := nameOf(upstream)
	if err := c.codec.Scan(upstream.Body, func(wire.Endpoint) {}); err != nil {
		c.f.options.Logger.Error(err, "Hiding an object that cannot be read",
			"resource", c.resource.Resource, "namespace", name.Namespace, "name", name.Name)
		c.remove(name)
		return
	}
	o := c.objects[name]
	switch {
	case o == nil:
		o = &Object{Upstream: upstream, collection: c}
		c.objects[name] = o
	case o.Upstream.Equal(upstream):
		// A new list repeats what is known. The old object is kept, so that its memory is not held twice.
		o.Upstream = o.Upstream.At(upstream.ResourceVersion)
		return
	default:
		c.leave(o)
	}
	o.Upstream = upstream
	c.join(o)
	add(&c.f.step.Objects, o)
}

func (c *collection) remove(name types.NamespacedName) {
	o := c.objects[name]
	if o == nil {
		return
	}
	c.leave(o)
	o.Gone = true
	delete(c.objects, name)
	add(&c.f.step.Objects, o)
}

// forget drops all objects.
func (c *collection) forget() {
	for _, name := range c.names() {
		c.remove(name)
	}
	c.synced, c.absent = false, false
}

// join adds an object to its Service, and to every node on which it lists endpoints.
func (c *collection) join(o *Object) {
	o.eachNode(func(name []byte) {
		n := c.f.nodes.byName[string(name)]
		if n == nil {
			n = c.f.nodes.get(string(name))
		}
		// Objects are added one at a time, so if this one was added already, it is the last.
		if last := len(n.objects) - 1; last < 0 || n.objects[last] != o {
			n.objects = append(n.objects, o)
		}
	})
	if name := c.serviceOf(o.Upstream); name != "" {
		o.Service = c.f.services.get(types.NamespacedName{Namespace: o.Upstream.Namespace, Name: name})
		listed := &o.Service.listed[listIndex(c.resource)]
		listed.objects = append(listed.objects, o)
		o.Service.count(o, 1)
	}
}

// leave undoes join.
func (c *collection) leave(o *Object) {
	o.eachNode(func(name []byte) {
		n := c.f.nodes.byName[string(name)]
		if n == nil {
			return
		}
		if i := slices.Index(n.objects, o); i >= 0 {
			last := len(n.objects) - 1
			n.objects[i] = n.objects[last]
			n.objects[last] = nil
			n.objects = n.objects[:last]
			c.f.nodes.forget(n)
		}
	})
	s := o.Service
	if s == nil {
		return
	}
	s.count(o, -1)
	if c.resource == history.EndpointSlices {
		// Truncated Endpoints are completed from the slices, so they change too.
		for _, legacy := range s.Objects(history.Endpoints) {
			add(&c.f.step.Objects, legacy)
		}
	}
	listed := &s.listed[listIndex(c.resource)]
	listed.objects = slices.DeleteFunc(listed.objects, func(m *Object) bool { return m == o })
	o.Service = nil
	c.f.services.forget(s)
}

// Object returns the object with that name; nil if it is not known. It is for Watchers.
func (f *Facts) Object(r *history.Resource, name types.NamespacedName) *Object {
	if r == history.Endpoints {
		return f.legacy.objects[name]
	}
	return f.slices.objects[name]
}

// Objects calls visit for every object of EndpointSlices or Endpoints. It is for Watchers.
func (f *Facts) Objects(r *history.Resource, visit func(*Object)) {
	c := &f.slices
	if r == history.Endpoints {
		c = &f.legacy
	}
	for _, o := range c.objects {
		visit(o)
	}
}
