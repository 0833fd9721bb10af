package storage

import (
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/application-grid/application-grid/pkg/topology"
	"github.com/application-grid/application-grid/pkg/wire"
)

// collection is one resource that lists endpoints: its upstream state and the table that is the view of it.
type collection struct {
	table    *table
	backends map[types.NamespacedName]*backend
	synced   bool
}

// backend is one upstream object that lists endpoints of a Service.
type backend struct {
	collection *collection
	upstream   *wire.Object
	// service is nil for an object that belongs to no Service; it is not governed.
	service *service
	// rank is the lowest topology.Keys.Rank of the object's ready endpoints. It is kept only for a Service
	// with several keys; a single key needs none.
	rank  int
	count EndpointCount
}

func (s *Store) applyBackend(c *collection, o *wire.Object) {
	name := types.NamespacedName{Namespace: o.Namespace, Name: o.Name}
	if err := c.table.resource.codec.Scan(o.Body, func(wire.Endpoint) {}); err != nil {
		s.options.Logger.Error(err, "Hiding an object that cannot be read", "resource", c.table.resource.Resource, "object", name)
		s.removeBackend(c, name)
		return
	}
	b := c.backends[name]
	switch {
	case b == nil:
		b = &backend{collection: c, rank: topology.NoRank}
		c.backends[name] = b
	case b.upstream.Equal(o):
		// A relist brings everything again; nothing is to be done, and nothing is to be kept twice.
		return
	default:
		s.unindex(b)
	}
	b.upstream = o
	s.index(b)

	var svc *service
	if serviceName := c.table.resource.serviceOf(o); serviceName != "" {
		svc = s.service(types.NamespacedName{Namespace: o.Namespace, Name: serviceName})
	}
	if b.service != svc {
		s.leave(b)
		s.join(b, svc)
	}
	s.rank(b)
	if svc == nil || !s.decideAndPublish(c, svc) {
		s.publish(c, b)
	}
}

func (s *Store) removeBackend(c *collection, name types.NamespacedName) {
	b := c.backends[name]
	if b == nil {
		return
	}
	delete(c.backends, name)
	s.unindex(b)
	s.leave(b)
	c.table.endpoints.Kept -= b.count.Kept
	c.table.endpoints.Hidden -= b.count.Hidden
	c.table.remove(s, name.Namespace, name.Name)
}

func (s *Store) join(b *backend, svc *service) {
	b.service = svc
	if svc == nil {
		return
	}
	g := svc.groups[b.collection]
	if g == nil {
		g = &group{}
		svc.groups[b.collection] = g
	}
	g.members = append(g.members, b)
	// Not decideAndPublish: the caller ranks the newcomer first.
	if len(g.members) == 1 {
		g.decision = s.decision(svc, topology.NoRank)
	}
}

// leave takes a backend out of its Service, whose deciding key may then be another.
func (s *Store) leave(b *backend) {
	svc := b.service
	if svc == nil {
		return
	}
	b.service = nil
	g := svc.groups[b.collection]
	g.members = slices.DeleteFunc(g.members, func(m *backend) bool { return m == b })
	if len(g.members) == 0 {
		delete(svc.groups, b.collection)
		s.forgetService(svc)
		return
	}
	s.decideAndPublish(b.collection, svc)
}

// index enters a backend at every node that it lists endpoints on.
func (s *Store) index(b *backend) {
	s.eachNode(b, func(name []byte) {
		n := s.nodes[string(name)]
		if n == nil {
			n = &node{}
			s.nodes[string(name)] = n
		}
		// One backend is entered at a time, so if it is there already, it stands last.
		if last := len(n.backends) - 1; last < 0 || n.backends[last] != b {
			n.backends = append(n.backends, b)
		}
	})
}

func (s *Store) unindex(b *backend) {
	s.eachNode(b, func(name []byte) {
		n := s.nodes[string(name)]
		if n == nil {
			return
		}
		if i := slices.Index(n.backends, b); i >= 0 {
			last := len(n.backends) - 1
			n.backends[i] = n.backends[last]
			n.backends[last] = nil
			n.backends = n.backends[:last]
			s.forget(string(name), n)
		}
	})
}

func (s *Store) eachNode(b *backend, visit func(name []byte)) {
	s.scan(b, func(e wire.Endpoint) {
		if len(e.NodeName) > 0 {
			visit(e.NodeName)
		}
	})
}

// scan reads a backend's endpoints. Its body was read without error when it was applied.
func (s *Store) scan(b *backend, visit func(wire.Endpoint)) {
	if err := b.collection.table.resource.codec.Scan(b.upstream.Body, visit); err != nil {
		panic("storage: an object that was readable is no longer: " + err.Error())
	}
}

// rank finds the best key that the backend's ready endpoints match, not counting those on dead nodes.
func (s *Store) rank(b *backend) {
	b.rank = topology.NoRank
	if b.service == nil || len(b.service.keys) < 2 {
		return
	}
	hides := s.hidesDead(b)
	s.scan(b, func(e wire.Endpoint) {
		if e.Ready && b.rank > 0 && (!hides || !s.onDeadNode(e)) {
			b.rank = min(b.rank, b.service.keys.Rank(s.here, s.labelsOf(e.NodeName)))
		}
	})
}

// publish shows what this node may see of a backend.
func (s *Store) publish(c *collection, b *backend) {
	if !c.table.ready || s.suspended {
		return
	}
	body, count := s.view(c, b)
	c.table.endpoints.Kept += count.Kept - b.count.Kept
	c.table.endpoints.Hidden += count.Hidden - b.count.Hidden
	b.count = count
	c.table.put(s, b.upstream, body, nil)
}

// view is the body that this node may see. Of what is not governed it is the upstream's, untouched, but without
// endpoints on dead nodes.
func (s *Store) view(c *collection, b *backend) (body []byte, count EndpointCount) {
	resource := c.table.resource
	if local := s.localEndpointFor(b); local != nil {
		body, err := resource.rewrite(*local)
		if err == nil {
			return body, EndpointCount{Kept: 1}
		}
		s.options.Logger.Error(err, "Cannot rewrite the endpoint of default/kubernetes, leaving it as it is")
	}
	if b.service == nil || !b.service.keys.Governed() {
		return s.aliveView(b)
	}
	decision := b.service.groups[c].decision
	hides := s.hidesDead(b)
	body = s.edit(b, resource.codec.Prune, func(e wire.Endpoint) bool {
		if decision.Keep(s.labelsOf(e.NodeName)) && (!hides || !s.onDeadNode(e)) {
			count.Kept++
			return true
		}
		count.Hidden++
		return false
	})
	return body, count
}

// edit is a backend's body after a function of its Codec. The body was read without error when it was applied.
func (s *Store) edit(b *backend, apply func([]byte, func(wire.Endpoint) bool) ([]byte, error), keep func(wire.Endpoint) bool) []byte {
	body, err := apply(b.upstream.Body, keep)
	if err != nil {
		panic("storage: an object that was readable is no longer: " + err.Error())
	}
	return slices.Clip(body)
}
