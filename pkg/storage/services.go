package storage

import (
	"slices"

	"k8s.io/apimachinery/pkg/types"

	superedgev1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/topology"
	"github.com/application-grid/application-grid/pkg/wire"
)

// service is one Service as far as it governs endpoints. It also stands for a Service that is named by
// endpoints but not known; such endpoints are hidden until it is (a slice may arrive before its Service, and
// must not be shown unpruned for that while).
type service struct {
	name  types.NamespacedName
	known bool
	keys  topology.Keys
	// groups are the Service's backends, by collection.
	groups map[*collection]*group
}

// group is what one collection lists for one Service.
type group struct {
	members  []*backend
	decision topology.Decision
}

func (s *Store) service(name types.NamespacedName) *service {
	svc := s.services[name]
	if svc == nil {
		svc = &service{name: name, keys: topology.Unsatisfiable(), groups: make(map[*collection]*group, 1)}
		s.services[name] = svc
	}
	return svc
}

func (s *Store) applyService(o *wire.Object) {
	name := types.NamespacedName{Namespace: o.Namespace, Name: o.Name}
	var keys topology.Keys
	delete(s.invalid, name)
	if annotation, ok := o.Annotations[superedgev1.AnnotationTopologyKeys]; ok {
		parsed, err := topology.ParseKeys(annotation)
		if err != nil {
			s.options.Logger.Error(err, "Hiding all endpoints of a Service because its annotation does not parse", "service", name, "annotation", superedgev1.AnnotationTopologyKeys, "value", annotation)
			s.invalid[name] = err.Error()
			parsed = topology.Unsatisfiable()
		}
		keys = parsed
	}
	svc := s.service(name)
	s.govern(svc, true, keys)
}

func (s *Store) removeService(name types.NamespacedName) {
	delete(s.invalid, name)
	if svc := s.services[name]; svc != nil {
		s.govern(svc, false, topology.Unsatisfiable())
		s.forgetService(svc)
	}
}

// govern sets the keys of a Service and shows its endpoints accordingly.
func (s *Store) govern(svc *service, known bool, keys topology.Keys) {
	if svc.known == known && slices.Equal(svc.keys, keys) {
		return
	}
	for _, key := range svc.keys {
		delete(s.byKey[key], svc)
		if len(s.byKey[key]) == 0 {
			delete(s.byKey, key)
		}
	}
	svc.known, svc.keys = known, keys
	if known {
		for _, key := range keys {
			if s.byKey[key] == nil {
				s.byKey[key] = make(map[*service]struct{})
			}
			s.byKey[key][svc] = struct{}{}
		}
		s.lookFrom(keys)
	}
	s.refresh(svc)
}

// forgetService drops a Service that is not known and that nothing names.
func (s *Store) forgetService(svc *service) {
	if !svc.known && len(svc.groups) == 0 {
		delete(s.services, svc.name)
	}
}

// refresh computes everything of a Service anew.
func (s *Store) refresh(svc *service) {
	for c, g := range svc.groups {
		for _, b := range g.members {
			s.rank(b)
		}
		s.decide(c, svc)
		for _, b := range g.members {
			s.publish(c, b)
		}
	}
}

// decide picks the deciding key of a Service in one collection, and tells whether it is another one now.
func (s *Store) decide(c *collection, svc *service) (moved bool) {
	g := svc.groups[c]
	if g == nil {
		return false
	}
	best := topology.NoRank
	for _, b := range g.members {
		best = min(best, b.rank)
	}
	before := g.decision.Key()
	g.decision = s.decision(svc, best)
	return g.decision.Key() != before
}

// decideAndPublish shows all of a Service anew if its deciding key moved, and tells whether it did.
func (s *Store) decideAndPublish(c *collection, svc *service) (moved bool) {
	if !s.decide(c, svc) {
		return false
	}
	for _, b := range svc.groups[c].members {
		s.publish(c, b)
	}
	return true
}
