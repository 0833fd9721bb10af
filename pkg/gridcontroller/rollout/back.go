package rollout

import (
	"slices"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
)

// goingBack is between why a rollout has halted, and what it waits for.
const goingBack = "; going back: "

// goBack gives the current revision to every site that has another one, the last one of each wave first. It is one rule
// for an undo, a reverted commit and onFailure, and done when the sites that can be reached are ready. Sites that are
// not ready, or silent, get it at once: they lose nothing. That they go back was written first: otherwise a controller
// that restarts, and does not see a failure any more, would give them the change again.
func (p *planner) goBack() {
	undo := p.status.GoesBack == undone
	phase, text := v1.RolloutRollingBack, p.status.GoesBack+goingBack
	if undo {
		phase, text = v1.RolloutProgressing, "going back: "
	}
	if p.Status == nil || p.Update != p.Revision || !goesBack(p.Status) {
		p.say(phase, p.current(), text+"begins")
		p.again(p.Now)
		return
	}
	var waiting []*Site
	for wave := range p.waves {
		waiting = append(waiting, p.goBackIn(wave)...)
	}
	switch {
	case len(waiting) > 0:
		p.say(phase, waiting[0].Wave, text+"waits for "+p.describe(waiting))
		if !undo {
			p.status.Wave = ""
		}
	case undo:
		p.complete()
	default:
		p.status.Phase, p.status.Message = v1.RolloutRolledBack, p.status.GoesBack
	}
}

// goesBack reports whether a status says that sites go back. An older controller says so by the phase.
func goesBack(s *v1.RolloutStatus) bool {
	return s.GoesBack != "" || s.Phase == v1.RolloutRollingBack || s.Phase == v1.RolloutRolledBack
}

// goBackIn has the sites of a wave go back. It returns those of them that do not run the current revision yet.
func (p *planner) goBackIn(wave int) (waiting []*Site) {
	goes := func(u *Site) bool { return u.Revision != p.plan.Current }
	places := p.limit(wave)
	for _, u := range p.waves[wave] {
		switch {
		case !u.Exists:
			if p.plan.Current != "" && !p.Gone {
				waiting = append(waiting, u)
			}
		case u.Held, p.silent(u), u.Idle && !goes(u):
		case goes(u):
			waiting = append(waiting, u)
		case !p.ready(u):
			waiting = append(waiting, u)
			if u.Broken == "" { // it must not keep the others
				places--
			}
		}
	}
	for _, u := range slices.Backward(p.waves[wave]) {
		if !u.Exists || u.Held || !goes(u) {
			continue
		}
		refused := u.Broken != "" && u.Tried == p.plan.Current // it stays as it is
		if p.ready(u) && !p.silent(u) && !u.Idle && !refused {
			if places <= 0 {
				continue
			}
			places--
		}
		p.plan.Revisions[u.Name] = p.plan.Current
	}
	return waiting
}
