package facts

import (
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/application-grid/application-grid/pkg/storage/served"
	"github.com/application-grid/application-grid/pkg/storage/wire"
	"github.com/application-grid/application-grid/pkg/topology"
)

// Service is one Service. It may also be an unknown Service that endpoints name. Such endpoints are hidden until the
// Service is known: a slice may arrive before its Service, and must not be shown unpruned meanwhile.
type Service struct {
	Name types.NamespacedName
	// Upstream is nil for a Service that is not known.
	Upstream *wire.Object
	// Keys are topology.Unsatisfiable for a Service that is not known, or whose annotation does not parse.
	Keys topology.Keys

	// traits are the zero value for a Service that is not known.
	traits wire.ServiceTraits
	// listed has the objects of each endpointStore that belong to the Service.
	listed [2]listing
	// counted is false if the endpoints must be counted again.
	counted bool
}

// Objects returns the Service's EndpointSlices or Endpoints, in no order.
func (s *Service) Objects(r *served.Resource) []*EndpointSet {
	return s.listed[listIndex(r)].objects
}

// listIndex returns the index of a resource in Service.listed.
func listIndex(r *served.Resource) int {
	if r == served.EndpointSlices {
		return 0
	}
	return 1
}

type serviceStore struct {
	completion

	f      *Facts
	byName map[types.NamespacedName]*Service
	// byKey has the Services that a topology key governs.
	byKey index[*Service]
	// invalid has the Services whose annotation does not parse, with the annotation's name and the reason.
	invalid map[types.NamespacedName]string
	// stale has the Services whose endpoints must be counted again at the end of the step.
	stale map[*Service]struct{}
}

func (x *serviceStore) names() []types.NamespacedName {
	names := make([]types.NamespacedName, 0, len(x.byName))
	x.f.reader().Services(func(s *Service) { names = append(names, s.Name) })
	return names
}

func (x *serviceStore) upstream(name types.NamespacedName) *wire.Object {
	if s := x.byName[name]; s != nil {
		return s.Upstream
	}
	return nil
}

func (x *serviceStore) getOrAdd(name types.NamespacedName) *Service {
	s := x.byName[name]
	if s == nil {
		s = &Service{Name: name, Keys: topology.Unsatisfiable(), counted: true}
		x.byName[name] = s
	}
	return s
}

func (x *serviceStore) apply(o *wire.Object) {
	s := x.getOrAdd(o.Key())
	if s.Upstream != nil && s.Upstream.Equal(o) {
		// A new list repeats known objects.
		s.Upstream = s.Upstream.At(o.ResourceVersion)
		return
	}
	s.Upstream = o
	add(&x.f.step.Plain, Key{served.Services, s.Name})
	x.setKeys(s, x.keysOf(o))
	x.setTraits(s, wire.TraitsOf(o.Body))
}

// setTraits sets the traits of a Service. Corrections and suspicions depend on them, and so does whether it decides as
// one. The Service must be known, so that it is not forgotten while its objects are corrected.
func (x *serviceStore) setTraits(s *Service, traits wire.ServiceTraits) {
	before := s.traits
	if s.traits = traits; before == traits {
		return
	}
	x.markForRecount(s)
	suspicions := x.f.reader().AnySuspicions()
	for i := range s.listed {
		for _, o := range slices.Clone(s.listed[i].objects) {
			if suspicions {
				add(&x.f.step.EndpointSets, o) // other endpoints may be suspected, even if the decision stays
			}
			if before.PublishesNotReady != traits.PublishesNotReady {
				o.store.correct(o)
			}
		}
	}
}

func (x *serviceStore) remove(name types.NamespacedName) {
	s := x.byName[name]
	if s == nil || s.Upstream == nil {
		return
	}
	x.setTraits(s, wire.ServiceTraits{})
	s.Upstream = nil
	delete(x.invalid, name)
	add(&x.f.step.Plain, Key{served.Services, name})
	x.setKeys(s, topology.Unsatisfiable())
	x.dropIfUnused(s)
}

func (x *serviceStore) keysOf(o *wire.Object) topology.Keys {
	name := o.Key()
	delete(x.invalid, name)
	annotations := o.Annotations()
	keys, annotation, err := topology.KeysOf(annotations)
	if err != nil {
		x.f.options.Logger.Error(err, "Hiding all endpoints of a Service because its annotation does not parse",
			"service", name, "annotation", annotation, "value", annotations[annotation])
		x.invalid[name] = fmt.Sprintf("annotation %s does not parse: %v", annotation, err)
	}
	return keys
}

func (x *serviceStore) setKeys(s *Service, keys topology.Keys) {
	if slices.Equal(s.Keys, keys) {
		return
	}
	for _, key := range s.Keys {
		if x.byKey.remove(key, s); x.byKey[key] == nil {
			delete(x.f.nodes.values, key)
		}
	}
	s.Keys = keys
	for _, key := range keys {
		if key == "" { // the key of topology.Unsatisfiable
			continue
		}
		if x.byKey[key] == nil && key != topology.Any {
			x.f.nodes.indexKey(key)
		}
		x.byKey.add(key, s)
	}
	x.recountLater(s)
	add(&x.f.step.Rejudged, s)
}

// markForRecount recounts the endpoints of a Service, which may be nil, at the end of the step, if counts are needed.
func (x *serviceStore) markForRecount(s *Service) {
	if s != nil && (s.needsCounts() || x.f.reader().AnySuspicions()) {
		x.recountLater(s)
	}
}

func (x *serviceStore) recountLater(s *Service) {
	s.counted = false
	add(&x.stale, s)
}

// recount recounts the stale Services. It is called at the end of a step.
func (x *serviceStore) recount() {
	for s := range x.stale {
		before := s.needsCounts()
		if s.recount(x.f.reader()); before || s.needsCounts() {
			add(&x.f.step.Rejudged, s)
		}
	}
	x.stale = nil
}

// dropIfUnused drops a Service that is not known and that no endpoints name.
func (x *serviceStore) dropIfUnused(s *Service) {
	if s.Upstream == nil && len(s.listed[0].objects) == 0 && len(s.listed[1].objects) == 0 {
		delete(x.byName, s.Name)
	}
}

// Service returns the Service with that name; nil if neither it nor endpoints of it are known.
func (in Reader) Service(name types.NamespacedName) *Service { return in.f.services.byName[name] }

// Services calls visit for every known Service.
func (in Reader) Services(visit func(*Service)) {
	for _, s := range in.f.services.byName {
		if s.Upstream != nil {
			visit(s)
		}
	}
}

// GovernedBy returns the Services that a topology key governs.
func (in Reader) GovernedBy(key string) map[*Service]struct{} { return in.f.services.byKey[key] }

// Invalid returns the Services whose annotation does not parse, with the annotation's name and the reason.
func (f *Facts) Invalid() map[types.NamespacedName]string {
	return get(f, func(Reader) map[types.NamespacedName]string { return maps.Clone(f.services.invalid) })
}

// InvalidReason returns the name and the error of a Service's annotation that does not parse; "" if all parse.
func (in Reader) InvalidReason(name types.NamespacedName) string { return in.f.services.invalid[name] }
