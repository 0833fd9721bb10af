package storage

import (
	"maps"
	"net/netip"

	"github.com/application-grid/application-grid/pkg/wire"
)

// SetDeadNodes takes the names of all nodes that are believed dead. Endpoints on them are hidden, of Services
// with topologyKeys and of others, and a dead endpoint is not a ready one when the deciding key of a Service
// with several is picked. Only what lists endpoints on a node that died or revived is shown anew.
//
// Exempt are this node, which evidently lives, and default/kubernetes, which is no workload: an API server is
// dead when its clients say so. The names need not be those of known nodes; endpoints that come later are
// hidden as they come.
func (s *Store) SetDeadNodes(names map[string]struct{}) {
	dead := maps.Clone(names)
	delete(dead, s.options.NodeName)
	delete(dead, "") // endpoints without a node are on none
	s.update(func() { s.each(func(s *Store) { s.setDead(dead) }) })
}

func (s *Store) setDead(dead map[string]struct{}) {
	affected := make(map[*backend]struct{})
	changed := func(name string, among map[string]struct{}) {
		if _, both := among[name]; both || s.nodes[name] == nil {
			return
		}
		for _, b := range s.nodes[name].backends {
			affected[b] = struct{}{}
		}
	}
	for name := range s.dead {
		changed(name, dead)
	}
	for name := range dead {
		changed(name, s.dead)
	}
	s.dead = dead
	// All are ranked before the first is decided on: a decision between two ranks would be an event that
	// never was.
	for b := range affected {
		s.rank(b)
	}
	for b := range affected {
		if b.service == nil || !s.decideAndPublish(b.collection, b.service) {
			s.publish(b.collection, b)
		}
	}
}

// DeadNodes are the names that SetDeadNodes was given last, without this node's.
func (s *Store) DeadNodes() map[string]struct{} {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return maps.Clone(s.dead)
}

// hidesDead tells whether endpoints of the backend are hidden when their node is dead.
func (s *Store) hidesDead(b *backend) bool {
	return len(s.dead) > 0 && b.service != nil && b.service.name != kubernetesService
}

// onDeadNode tells whether the endpoint is hidden because of its node, if it belongs to what hidesDead.
func (s *Store) onDeadNode(e wire.Endpoint) bool {
	_, dead := s.dead[string(e.NodeName)]
	return dead
}

// aliveView is the body of what is not governed: the upstream's without the endpoints on dead nodes, and the
// upstream's own if it has none.
func (s *Store) aliveView(b *backend) (body []byte, count EndpointCount) {
	hides := s.hidesDead(b)
	s.scan(b, func(e wire.Endpoint) {
		if hides && s.onDeadNode(e) {
			count.Hidden++
		} else {
			count.Kept++
		}
	})
	if count.Hidden == 0 {
		return b.upstream.Body, count
	}
	return s.edit(b, b.collection.table.resource.codec.Filter, func(e wire.Endpoint) bool { return !s.onDeadNode(e) }), count
}

// SetNodeAddresses takes the names of nodes by their IP addresses, as far as they are known. The Store keeps
// them for those who are told of nodes by address; what is shown does not depend on them.
func (s *Store) SetNodeAddresses(names map[netip.Addr]string) {
	kept := make(map[netip.Addr]string, len(names))
	for address, name := range names {
		kept[address.Unmap()] = name
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.addresses = kept
}

// NodeAddresses are the names of nodes by their IP addresses, IPv4 never in its IPv6 form. Addresses of nodes
// that are gone are not among them: another node may have them next.
func (s *Store) NodeAddresses() map[netip.Addr]string {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return maps.Clone(s.addresses)
}

// forgetAddresses drops the addresses of a node that is gone.
func (s *Store) forgetAddresses(name string) {
	if len(s.addresses) == 0 {
		return
	}
	maps.DeleteFunc(s.addresses, func(_ netip.Addr, of string) bool { return of == name })
}

// NodeExists tells whether there is a node of that name in the cluster, as far as is known.
func (s *Store) NodeExists(name string) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	n := s.nodes[name]
	return n != nil && n.known
}
