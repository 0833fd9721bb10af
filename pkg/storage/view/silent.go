package view

import (
	"github.com/application-grid/application-grid/pkg/storage/facts"
	"github.com/application-grid/application-grid/pkg/storage/history"
	"github.com/application-grid/application-grid/pkg/wire"
)

// spared says of which of a Service's objects the endpoints on silent nodes are shown, because the viewer would have no
// ready endpoint of the Service otherwise.
type spared struct{ slices, list bool }

func (s spared) of(r *history.Resource) bool {
	if r == history.EndpointSlices {
		return s.slices
	}
	return s.list
}

// hides reports whether an endpoint of a Service, which may be nil, is hidden because its node is dead or silent.
func (v *View) hides(s *facts.Service, r *history.Resource, nodeName []byte) bool {
	return v.facts.Dead(s, nodeName) || v.facts.Silent(s, nodeName) && !v.spared[s].of(r)
}

// spares reports whether all ready endpoints of a Service that the viewer may see are on silent nodes.
func (v *View) spares(s *facts.Service, r *history.Resource) bool {
	keep := func(wire.Endpoint) bool { return true }
	if s.Keys.Governed() {
		decision := v.decision(s, r)
		keep = func(e wire.Endpoint) bool { return decision.Keep(v.facts.LabelsOf(e.NodeName)) }
	}
	silent, ready := false, false
	for _, o := range s.Objects(r) {
		if ready {
			return false
		}
		err := o.Codec().Scan(o.Body(), func(e wire.Endpoint) {
			switch {
			case !e.Ready || v.facts.Dead(s, e.NodeName) || !keep(e):
			case v.facts.Silent(s, e.NodeName):
				silent = true
			default:
				ready = true
			}
		})
		if err != nil {
			panic("view: an object that the facts have read cannot be read: " + err.Error())
		}
	}
	return silent && !ready
}

// noteSpared notes what is spared of the Services that a step has touched, and adds those of which that has changed to
// the publication.
func (v *View) noteSpared(c *facts.Change, p *publication) {
	if !v.facts.AnySilent() && len(v.spared) == 0 {
		return
	}
	touched := make(map[*facts.Service]struct{}, len(c.Listed))
	for s := range c.Listed {
		touched[s] = struct{}{}
	}
	for o := range p.listed {
		if o.Service != nil {
			touched[o.Service] = struct{}{}
		}
	}
	if !v.facts.AnySilent() {
		for s := range v.spared {
			touched[s] = struct{}{}
		}
	}
	for s := range touched {
		now := spared{}
		if v.facts.AnySilent() {
			now = spared{v.spares(s, history.EndpointSlices), v.spares(s, history.Endpoints)}
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
