package rollout

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/application-grid/application-grid/pkg/apis/enumerate"
	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
)

// advance starts sites of the waves that have begun, and passes the gates of waves that are finished.
func (p *planner) advance() {
	for wave := range p.waves {
		p.start(wave)
		if p.passed(wave) {
			continue
		}
		if !p.tryGate(wave) || p.awaitsComparison() {
			return
		}
		p.status.Passed = append(p.status.Passed, p.gate(wave))
	}
	waiting := p.remaining()
	switch {
	case len(waiting) == 0 && p.awaitsComparison():
	case len(waiting) == 0:
		p.complete()
	case p.frozen():
		p.status.Phase = v1.RolloutComplete
	default:
		p.setPhase(v1.RolloutProgressing, waiting[0].Wave, p.waitsFor(waiting))
		p.requestSuspectApproval(waiting[0].Wave)
	}
}

// remaining returns the sites for which the rollout waits. Once it is complete, these are no new ones.
func (p *planner) remaining() (all []*Site) {
	for wave := range p.waves {
		m := p.tallyWave(wave)
		for _, site := range m.holding {
			if !p.done || site.Exists {
				all = append(all, site)
			}
		}
	}
	return all
}

// awaitsComparison reports whether a workload that counts as proven was not compared yet with what was applied.
// Somebody may have edited it, so no gate passes, which would be for good.
func (p *planner) awaitsComparison() bool {
	if p.done || !slices.ContainsFunc(p.all, func(u *Site) bool {
		return u.Uncompared && !p.leftOut(u) && p.proven(u)
	}) {
		return false
	}
	p.setPhase(v1.RolloutProgressing, p.currentWave(), "compares the workloads with what was applied")
	p.requeueAt(p.Now.Add(podsAgain))
	return true
}

// start gives the revision to sites of a wave, in the order of their names, up to the limit of unproven ones.
func (p *planner) start(wave int) {
	if p.frozen() || p.outage != "" || p.resuming {
		return
	}
	places, silent := p.limit(wave), p.maxSilent(wave)
	for _, u := range p.waves[wave] {
		switch {
		case !p.hasRevision(u), p.proven(u), p.excused(u):
		case p.state(u) == v1.RolloutSiteSuspect && silent > 0 && p.passed(wave): // it must not block returning sites
			silent--
		default:
			places--
		}
	}
	for _, listed := range []bool{true, false} { // those that are listed come first
		for _, u := range p.waves[wave] {
			if (p.listed[u.Name] != nil) != listed || !p.mayBegin(u) {
				continue
			}
			recreated := !u.Exists && p.recreates(u) // see keepRevisions
			takes := recreated || !p.excused(u)
			switch {
			case p.accepted.named(u.Name):
				p.plan.Revisions[u.Name] = p.Revision
			case recreated:
			case takes && places <= 0: // also if the limit has become smaller
				delete(p.listed, u.Name)
			case listed && p.state(u) != v1.RolloutSiteReturning: // the written status lists it
				p.plan.Revisions[u.Name] = p.Revision
			case !listed && p.hasRoom():
				p.enlist(u, v1.RolloutSitePending, u.Revision)
				p.requeueAt(p.Now)
			}
			if takes {
				places--
			}
		}
	}
}

// mayBegin reports whether a site lacks the revision and can get it. One without a workload gets a proven one at once.
func (p *planner) mayBegin(u *Site) bool {
	return !p.hasRevision(u) && !u.Held && !p.silent(u) && (u.Exists || p.plan.Current != p.Revision)
}

// waveTally is the state of the sites of a wave.
type waveTally struct {
	// holding are the sites for which the wave waits, suspects those that fell silent with the change.
	holding, suspects []*Site
	proven            int
	// moving is set if some of holding will be proven or fail without help, and soaking if all of them only soak. until
	// is when the last of them is done; zero if they are checked.
	moving, soaking bool
	until           time.Time
}

func (p *planner) tallyWave(wave int) waveTally {
	m := waveTally{soaking: true}
	for _, u := range p.waves[wave] {
		state := p.state(u)
		switch {
		case p.proven(u):
			m.proven++
		case p.excused(u):
		case state == v1.RolloutSiteSuspect && p.knownSilent(u):
			m.suspects = append(m.suspects, u)
		default:
			m.holding, m.moving = append(m.holding, u), m.moving || state != ""
			m.soaking = m.soaking && (state == v1.RolloutSiteSoaking || state == v1.RolloutSiteChecking)
			if of := p.listed[u.Name]; state == v1.RolloutSiteSoaking && of.ReadyTime != nil {
				until := of.ReadyTime.Add(soakOf(p.specs[wave]))
				m.until = slices.MaxFunc([]time.Time{m.until, until}, time.Time.Compare)
			}
		}
	}
	return m
}

// tryGate reports whether the gate of a wave passes. Every site of it must be proven or excused. One must be proven,
// or a person must have approved. If the wave asks for an approval, it must have been given.
func (p *planner) tryGate(wave int) bool {
	m := p.tallyWave(wave)
	switch {
	case len(m.holding) > 0 && !m.moving && p.requestSuspectApproval(wave):
		return false
	case len(m.holding) > 0:
		state, phase, text := v1.WaveProgressing, v1.RolloutProgressing, p.waitsFor(m.holding)
		if m.soaking {
			state, phase = v1.WaveSoaking, v1.RolloutSoaking
			if !m.until.IsZero() {
				text += "; soaks until " + m.until.UTC().Format(time.RFC3339)
			}
		}
		p.states[wave] = state
		p.setPhase(phase, wave, text)
		return false
	case len(m.suspects) > p.maxSilent(wave):
		p.askToExcuse(wave, m.suspects, fmt.Sprintf("%d allowed", p.maxSilent(wave)))
		return false
	}
	if m.proven == 0 && p.needsProof(wave) {
		why := "no site of the wave has proven the change"
		if len(p.waves[wave]) == 0 {
			if p.specs[wave].Sites == nil {
				return true // every site is in another wave
			}
			// A wave that should have sites and has none may be a typing error.
			why = "the wave's sites select none"
		}
		if len(p.absent) > 0 { // the wave may be that of such a site
			p.setPhase(v1.RolloutProgressing, wave, why+"; waits for sites that have lost their last node: "+
				enumerate.First(p.absent, namedSites))
			return false
		}
		return p.requireApproval(wave, "unproven", why)
	}
	return p.specs[wave].Approval != v1.ApprovalManual || p.requireApproval(wave, "", "the wave asks for an approval")
}

// requestSuspectApproval asks for an approval of the suspects that take the places for which a wave waits, if there are
// any.
func (p *planner) requestSuspectApproval(wave int) bool {
	for of := range p.waves {
		m := p.tallyWave(of)
		if (of != wave && p.hasRoom()) || m.moving || len(m.suspects) == 0 || p.outage != "" || p.frozen() {
			continue
		}
		p.askToExcuse(of, m.suspects, fmt.Sprintf("and the wave has room for %d that are not proven",
			min(p.limit(of), p.Most)))
		return true
	}
	return false
}

// needsProof reports whether a site of this wave, or of a later one, lacks the revision, or has fallen silent with it.
func (p *planner) needsProof(wave int) bool {
	for ; wave < len(p.waves); wave++ {
		for _, u := range p.waves[wave] {
			away := p.state(u) == v1.RolloutSiteReturning || p.state(u) == v1.RolloutSiteSuspect
			if !p.leftOut(u) && (away || !p.hasRevision(u)) {
				return true
			}
		}
	}
	return false
}

// askToExcuse asks for an approval of suspects by name. Once approved, they are excused for as long as they are silent.
func (p *planner) askToExcuse(wave int, suspects []*Site, but string) {
	names := make([]string, len(suspects))
	for i, u := range suspects {
		names[i] = u.Name
	}
	why := fmt.Sprintf("%d sites fell silent with the change, %s: %s", len(names), but,
		enumerate.First(names, namedSites))
	if !p.requireApproval(wave, "silent-"+hashOf(strings.Join(names, "\n")+"\n", 8), why) {
		return
	}
	full := !p.hasRoom()
	for _, u := range suspects {
		p.listed[u.Name].SilenceApproved = true
		if full { // it is listed again when it is reachable
			delete(p.listed, u.Name)
		}
	}
	p.setPhase(v1.RolloutProgressing, wave, "silent sites are excused")
	p.requeueAt(p.Now)
}

// requireApproval reports whether a person has approved of a wave, and asks for an approval if not. An approval is
// valid for one attempt and one kind: what the wave lacks, which why describes, or empty if it lacks only the approval.
func (p *planner) requireApproval(wave int, kind, why string) bool {
	parts := []string{p.Revision, p.gate(wave), p.status.StartTime.UTC().Format(time.RFC3339), kind}
	awaits := strings.TrimSuffix(strings.Join(parts, "/"), "/")
	if slices.ContainsFunc(strings.Split(p.Approved, ","), func(given string) bool {
		return strings.TrimSpace(given) == awaits
	}) {
		p.requeueAt(p.Now)
		return true
	}
	p.states[wave], p.status.Awaits = v1.WaveAwaitingApproval, awaits
	p.setPhase(v1.RolloutAwaitingApproval, wave,
		fmt.Sprintf("%s; it waits for the annotation %s=%s", why, v1.AnnotationApproved, awaits))
	return false
}

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
		p.setPhase(phase, p.currentWave(), text+"begins")
		p.requeueAt(p.Now)
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
