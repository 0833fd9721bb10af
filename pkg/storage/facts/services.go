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

// Service is one Service. It may also be a Service that is not known, but that endpoints name. Such endpoints are
// hidden until the Service is known: a slice may arrive before its Service, and must not be shown unpruned meanwhile.
type Service struct {
	Name types.NamespacedName
	// Upstream is nil for a Service that is not known.
	Upstream *wire.Object
	// Keys are topology.Unsatisfiable for a Service that is not known, or whose annotation does not parse.
	Keys topology.Keys

	// published is set if the Service has publishNotReadyAddresses.
	published bool
	// listed has what each collection lists for the Service.
	listed [2]listing
	// counted is false if the ready endpoints must be counted again.
	counted bool
}

// listing is what one collection lists for a Service.
type listing struct {
	objects []*Object
	// ready counts the ready endpoints that are neither suspected nor on dead nodes, by key and value. Only a Service
	// with several keys has it: its deciding key depends on it.
	ready map[string]map[string]int
}

// Objects returns the Service's EndpointSlices or Endpoints, in no order.
func (s *Service) Objects(r *served.Resource) []*Object { return s.listed[listIndex(r)].objects }

// listIndex returns the index of a resource in Service.listed.
func listIndex(r *served.Resource) int {
	if r == served.EndpointSlices {
		return 0
	}
	return 1
}

// Decide returns which of the Service's endpoints are shown to a viewer with these labels.
func (s *Service) Decide(r *served.Resource, here topology.Labels) topology.Decision {
	best := topology.NoRank
	listed := &s.listed[listIndex(r)]
	for i, key := range s.Keys {
		value, ok := here[key]
		if key == topology.Any {
			value, ok = "", true
		}
		if ok && listed.ready[key][value] > 0 {
			best = i
			break
		}
	}
	if best == topology.NoRank && len(s.Keys) > 1 {
		best = listed.suspectedRank(s, here)
	}
	return s.Keys.Decide(here, best)
}

// suspectedRank returns the rank of the best key that a suspected ready endpoint matches: if no other endpoint is
// ready, those are shown.
func (l *listing) suspectedRank(s *Service, here topology.Labels) int {
	best := topology.NoRank
	for _, o := range l.objects {
		in := o.collection.f.reader()
		if !in.AnySuspicions() {
			break
		}
		o.scan(func(e wire.Endpoint) {
			if e.Ready && in.Suspicion(s, s.Name.Namespace, e) > NoSuspicion {
				best = min(best, s.Keys.Rank(here, in.LabelsOf(e.NodeName)))
			}
		})
	}
	return best
}

// count adds an object's ready endpoints to the counts (delta 1), or subtracts them (delta -1).
func (s *Service) count(o *Object, delta int) {
	if len(s.Keys) < 2 || !s.counted {
		return
	}
	ready := s.listed[listIndex(o.Resource())].ready
	f := o.collection.f
	o.scan(func(e wire.Endpoint) {
		if !e.Ready || f.reader().Suspicion(s, s.Name.Namespace, e) > NoSuspicion {
			return
		}
		labels := f.reader().LabelsOf(e.NodeName)
		for _, key := range s.Keys {
			value, ok := labels[key]
			if key == topology.Any {
				value, ok = "", true
			}
			if ok {
				ready[key][value] += delta
			}
		}
	})
	add(&f.step.Governed, s)
}

// recount counts all ready endpoints again.
func (s *Service) recount() {
	s.counted = true
	for i := range s.listed {
		s.listed[i].ready = nil
		if len(s.Keys) < 2 {
			continue
		}
		s.listed[i].ready = make(map[string]map[string]int, len(s.Keys))
		for _, key := range s.Keys {
			s.listed[i].ready[key] = make(map[string]int)
		}
		for _, o := range s.listed[i].objects {
			s.count(o, 1)
		}
	}
}

type serviceIndex struct {
	completion

	f      *Facts
	byName map[types.NamespacedName]*Service
	// byKey has the Services that a topology key governs.
	byKey map[string]map[*Service]struct{}
	// invalid has the Services whose annotation does not parse, with the annotation's name and the reason.
	invalid map[types.NamespacedName]string
	// stale has the Services whose ready endpoints must be counted again at the end of the step.
	stale map[*Service]struct{}
}

func (x *serviceIndex) names() []types.NamespacedName {
	names := make([]types.NamespacedName, 0, len(x.byName))
	for name, s := range x.byName {
		if s.Upstream != nil {
			names = append(names, name)
		}
	}
	return names
}

func (x *serviceIndex) upstream(name types.NamespacedName) *wire.Object {
	if s := x.byName[name]; s != nil {
		return s.Upstream
	}
	return nil
}

// get returns the Service with that name, and adds it if it is missing.
func (x *serviceIndex) get(name types.NamespacedName) *Service {
	s := x.byName[name]
	if s == nil {
		s = &Service{Name: name, Keys: topology.Unsatisfiable(), counted: true}
		x.byName[name] = s
	}
	return s
}

func (x *serviceIndex) apply(o *wire.Object) {
	s := x.get(nameOf(o))
	if s.Upstream != nil && s.Upstream.Equal(o) {
		// A new list repeats what is known.
		s.Upstream = s.Upstream.At(o.ResourceVersion)
		return
	}
	s.Upstream = o
	add(&x.f.step.Whole, Key{served.Services, s.Name})
	x.govern(s, x.keysOf(o))
	x.setPublished(s, wire.PublishesNotReady(o.Body))
}

// setPublished notes whether a Service has publishNotReadyAddresses, on which corrections depend. The Service is known,
// so that it stays the same while its objects are corrected.
func (x *serviceIndex) setPublished(s *Service, published bool) {
	if published == s.published {
		return
	}
	s.published = published
	for i := range s.listed {
		for _, o := range slices.Clone(s.listed[i].objects) {
			o.collection.correct(o)
		}
	}
}

func (x *serviceIndex) remove(name types.NamespacedName) {
	s := x.byName[name]
	if s == nil || s.Upstream == nil {
		return
	}
	x.setPublished(s, false)
	s.Upstream = nil
	delete(x.invalid, name)
	add(&x.f.step.Whole, Key{served.Services, name})
	x.govern(s, topology.Unsatisfiable())
	x.forget(s)
}

func (x *serviceIndex) keysOf(o *wire.Object) topology.Keys {
	name := nameOf(o)
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

func (x *serviceIndex) govern(s *Service, keys topology.Keys) {
	if slices.Equal(s.Keys, keys) {
		return
	}
	for _, key := range s.Keys {
		delete(x.byKey[key], s)
		if len(x.byKey[key]) == 0 && key != "" {
			delete(x.byKey, key)
			if key != topology.Any {
				x.f.nodes.disuse(key)
			}
		}
	}
	s.Keys = keys
	for _, key := range keys {
		if key == "" { // the key of topology.Unsatisfiable
			continue
		}
		if x.byKey[key] == nil {
			x.byKey[key] = make(map[*Service]struct{})
			if key != topology.Any {
				x.f.nodes.use(key)
			}
		}
		x.byKey[key][s] = struct{}{}
	}
	x.recountLater(s)
	add(&x.f.step.Governed, s)
}

// markForRecount has the ready endpoints of a Service, which may be nil, counted again at the end of the step.
func (x *serviceIndex) markForRecount(s *Service) {
	if s != nil && len(s.Keys) > 1 {
		x.recountLater(s)
	}
}

func (x *serviceIndex) recountLater(s *Service) {
	s.counted = false
	add(&x.stale, s)
	add(&x.f.step.Governed, s)
}

// recount counts again what is stale. It is called at the end of a step.
func (x *serviceIndex) recount() {
	for s := range x.stale {
		s.recount()
	}
	x.stale = nil
}

// forget drops a Service that is not known and that no endpoints name.
func (x *serviceIndex) forget(s *Service) {
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
	f.mu.RLock()
	defer f.mu.RUnlock()
	return maps.Clone(f.services.invalid)
}

// InvalidReason says which annotation of a Service does not parse, and why; "" if all parse.
func (in Reader) InvalidReason(name types.NamespacedName) string { return in.f.services.invalid[name] }
