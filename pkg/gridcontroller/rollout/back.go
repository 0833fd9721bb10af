package rollout

import (
	"slices"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
)

// goBack gives the current revision to every site that has another one, in reverse order within each wave. An undo, a
// reverted commit and onFailure all use it. It is done when the sites that can be reached are ready. Sites that are not
// ready, or silent, get the revision at once: they lose nothing. The decision is written first. Otherwise a controller
// that restarts, and no longer sees a failure, would give them the change again.
func (p *planner) goBack() {
	undo := p.status.GoesBack == undone
	phase, text := v1.RolloutRollingBack, p.status.GoesBack+"; going back: "
	if undo {
		phase, text = v1.RolloutProgressing, "going back: "
	}
	if p.Status == nil || p.Status.GoesBack == "" || !p.Status.StartTime.Equal(p.status.StartTime) {
		p.setPhase(phase, p.current(), text+"begins")
		p.again(p.Now)
		return
	}
	var waiting []*Site
	for wave := range p.waves {
		waiting = append(waiting, p.goBackIn(wave)...)
	}
	switch {
	case len(waiting) > 0:
		p.setPhase(phase, waiting[0].Wave, text+"waits for "+p.describe(waiting))
		if !undo {
			p.status.Wave = ""
		}
	case undo:
		p.complete()
	default:
		p.status.Phase, p.status.Message = v1.RolloutRolledBack, p.status.GoesBack
	}
}

// goBackIn gives the current revision to sites of a wave. It returns those that do not run it yet.
func (p *planner) goBackIn(wave int) (waiting []*Site) {
	goes := func(u *Site) bool { return u.Revision != p.plan.Current }
	places := p.limit(wave)
	for _, u := range p.waves[wave] {
		switch {
		case !u.Exists && (p.plan.Current == "" || p.Gone):
		case u.Exists && (u.Held || p.knownSilent(u) || u.Idle && !goes(u)):
		case goes(u) || !p.ready(u):
			waiting = append(waiting, u)
			if !goes(u) && u.Broken == "" { // a broken one must not hold up the others
				places--
			}
		}
	}
	for _, u := range slices.Backward(p.waves[wave]) {
		if !u.Exists || u.Held || !goes(u) {
			continue
		}
		refused := u.Broken != "" && u.Tried == p.plan.Current // it keeps the revision
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
