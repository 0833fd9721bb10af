package view

import (
	"github.com/application-grid/application-grid/pkg/storage/facts"
	"github.com/application-grid/application-grid/pkg/storage/served"
	"github.com/application-grid/application-grid/pkg/storage/wire"
)

// spared says up to which suspicion the endpoints of a Service's objects are shown, because the viewer would have no
// ready endpoint of the Service otherwise.
type spared struct{ slices, list facts.Suspicion }

func (s spared) of(r *served.Resource) facts.Suspicion {
	if r == served.EndpointSlices {
		return s.slices
	}
	return s.list
}

// hides reports whether an endpoint of an object is hidden because it is suspected, or its node is silent.
func (v reading) hides(o *facts.Object, e wire.Endpoint) bool {
	return v.facts.Suspicion(o.Service, o.Upstream.Namespace, e) > v.spared[o.Service].of(o.Resource())
}

// spares returns the least suspicion of all ready endpoints of a Service that the viewer may see.
func (v reading) spares(s *facts.Service, r *served.Resource) facts.Suspicion {
	keep := func(wire.Endpoint) bool { return true }
	if s.Keys.Governed() {
		decision := v.decision(s, r)
		keep = func(e wire.Endpoint) bool { return decision.Keep(v.facts.LabelsOf(e.NodeName)) }
	}
	least, ready := facts.SilentNode, false
	for _, o := range s.Objects(r) {
		err := o.Codec().Scan(o.Body(), func(e wire.Endpoint) {
			if e.Ready && keep(e) {
				least, ready = min(least, v.facts.Suspicion(s, s.Name.Namespace, e)), true
			}
		})
		if err != nil {
			o.Unreadable(err)
		}
	}
	if !ready {
		return facts.NoSuspicion
	}
	return least
}

// noteSpared notes what is spared of the Services that a step has touched, and adds those of which that has changed to
// the publication.
func (v reading) noteSpared(c *facts.Change, p *publication) {
	if !v.facts.AnySuspicions() && len(v.spared) == 0 {
		return
	}
	touched := make(map[*facts.Service]struct{}, len(c.Listed))
	for s := range c.Listed {
		touched[s] = struct{}{}
	}
	for o := range p.listed.set {
		if o.Service != nil {
			touched[o.Service] = struct{}{}
		}
	}
	if !v.facts.AnySuspicions() {
		for s := range v.spared {
			touched[s] = struct{}{}
		}
	}
	for s := range touched {
		now := spared{}
		if v.facts.AnySuspicions() {
			now = spared{v.spares(s, served.EndpointSlices), v.spares(s, served.Endpoints)}
		}
		if now == v.spared[s] {
			continue
		}
		if now == (spared{}) {
			delete(v.spared, s)
		} else {
			v.spared[s] = now
		}
		p.addService(s)
	}
}
