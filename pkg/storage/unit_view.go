package storage

import (
	"errors"
	"maps"
	"time"

	"github.com/application-grid/application-grid/pkg/topology"
	"github.com/application-grid/application-grid/pkg/wire"
)

const (
	// maxUnitViews is how many units may be looked from at a time. Each costs about as much as what its unit
	// sees, and an index.
	maxUnitViews = 16
	// unitViewIdle is how long a view that nobody asks stays.
	unitViewIdle = 15 * time.Minute
)

// ErrTooManyViews is told while as many units are looked from as there may be.
var ErrTooManyViews = errors.New("too many units are asked for at a time")

// unitView is a Store that shows the same upstream state as seen from a unit, not from a node.
//
// A unit is the nodes that share a value of a topology key, whichever key that is: of a Service governed by
// zone1, the unit u sees the endpoints on nodes with zone1=u. A unit that is empty or that no node is of sees
// no endpoint of any governed Service, not even by "*".
type unitView struct {
	store *Store
	// users are the requests under way.
	users int
	// used is when the last one ended.
	used time.Time
}

// ViewFrom is the Store as seen from a unit, for one request; release is to be called at the request's end.
// Error: ErrTooManyViews.
func (s *Store) ViewFrom(unit string) (view *Store, release func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.options.Clock()
	maps.DeleteFunc(s.views, func(_ string, v *unitView) bool { return v.users == 0 && now.Sub(v.used) > unitViewIdle })
	v := s.views[unit]
	if v == nil {
		if len(s.views) >= maxUnitViews {
			return nil, nil, ErrTooManyViews
		}
		if s.views == nil {
			s.views = make(map[string]*unitView)
		}
		v = &unitView{store: s.newUnitView(unit)}
		s.views[unit] = v
	}
	v.users++
	return v.store, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		v.users--
		v.used = s.options.Clock()
	}, nil
}

// newUnitView makes a view with all that the Store knows.
func (s *Store) newUnitView(unit string) *Store {
	options := s.options
	options.NodeName, options.State = "", nil
	// A client of an earlier view of this unit, or of this node's own, is to list again.
	options.MinRevision = s.revision + 1
	for _, v := range s.views {
		options.MinRevision = max(options.MinRevision, v.store.Revision()+1)
	}
	view := New(options)
	view.unit, view.here = &unit, topology.Labels{}
	view.update(func() {
		view.dead, view.local = s.dead, s.local
		for name, n := range s.nodes {
			if n.known {
				view.setNode(name, true, n.labels)
			}
		}
		view.nodesSynced = s.nodesSynced
		copyInput(view.inputs[InputNode], upstreamOf(s.nodeTable), s.nodeTable.ready, s.nodeTable.absent)
		copyInput(view.inputs[InputServices], upstreamOf(s.serviceTable), s.servicesSynced, s.serviceTable.absent)
		for _, c := range s.collections() {
			objects := make([]*wire.Object, 0, len(c.backends))
			for _, b := range c.backends {
				objects = append(objects, b.upstream)
			}
			copyInput(view.inputs[c.inputName()], objects, c.synced, c.table.absent)
		}
		view.openTables()
	})
	return view
}

func copyInput(in *Input, objects []*wire.Object, synced, absent bool) {
	for _, o := range objects {
		in.apply(o)
	}
	if synced {
		in.synced()
	}
	in.absent(absent)
}

// each makes a change to the Store and to every view of it.
func (s *Store) each(change func(*Store)) {
	change(s)
	for _, v := range s.views {
		v.store.update(func() { change(v.store) })
	}
}

// lookFrom lets a view of a unit match the keys of a Service.
func (s *Store) lookFrom(keys topology.Keys) {
	if s.unit == nil || *s.unit == "" {
		return
	}
	before := len(s.here)
	for _, key := range keys {
		if key != topology.Any {
			s.here[key] = *s.unit
		}
	}
	if len(s.here) > before {
		s.inhabit()
	}
}

// nodeOfUnitChanged: a node with these labels before and after may have been the first or the last of the unit.
func (s *Store) nodeOfUnitChanged(labels ...topology.Labels) {
	for key, unit := range s.here {
		for _, l := range labels {
			if l[key] == unit {
				s.inhabit()
				return
			}
		}
	}
}

// inhabit finds out whether any node is of the view's unit, and shows anew what depends on that.
func (s *Store) inhabit() {
	before := s.inhabited
	s.inhabited = false
	for key, value := range s.here {
		for _, n := range s.nodes {
			if n.labels[key] == value {
				s.inhabited = true
			}
		}
	}
	if s.inhabited != before {
		for svc := range s.byKey[topology.Any] {
			s.refresh(svc)
		}
	}
}

// decision is the Decision for a Service, given its best rank.
func (s *Store) decision(svc *service, best int) topology.Decision {
	if s.unit != nil && !s.inhabited {
		return topology.Unsatisfiable().Decide(nil, topology.NoRank)
	}
	return svc.keys.Decide(s.here, best)
}
