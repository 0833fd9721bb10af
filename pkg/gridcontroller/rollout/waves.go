package rollout

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/application-grid/application-grid/pkg/apis/enumerate"
	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
)

// fails reports whether a site has failed with the revision and was not accepted.
func (p *planner) fails(u *Site) bool {
	state := p.state(u)
	return !p.leftOut(u) && (state == v1.RolloutSiteFailed || (state == "" && p.broken(u)))
}

// judge decides whether the rollout has to halt, or may continue.
func (p *planner) judge() {
	if p.status.GoesBack == undone {
		p.goOn()
		return
	}
	failing := slices.DeleteFunc(slices.Clone(p.all), func(u *Site) bool { return !p.fails(u) })
	if p.resumed() && p.status.HaltReason == v1.HaltFailures {
		failing = p.resume(failing)
	}
	allowed := Share(p.Rollout.MaxFailures, "0%", len(p.Sites))
	text := fmt.Sprintf("%d failed, %d allowed: %s", len(failing), allowed, p.describe(failing))
	over, full := len(failing) > allowed, len(failing) > 0 && p.fullAtRest()
	if p.within = !over && !full; !over && full {
		text = "the status can list no further site; " + text
	}
	begun := p.status.HaltReason == v1.HaltFailures
	fresh := slices.ContainsFunc(failing, func(u *Site) bool {
		return p.listed[u.Name] != nil && p.written[u.Name] != v1.RolloutSiteFailed
	})
	if fresh && p.within {
		p.again(p.Now)
	}
	switch {
	case p.done && p.within:
		if begun {
			p.goOn()
		}
	case p.done:
		p.status.Message = "complete; sites that were deferred do not get the change now: " + text
		if !begun {
			p.stop(v1.HaltFailures)
		}
	case !begun && !p.within, begun && fresh: // a person must see these before resuming
		p.stop(v1.HaltFailures)
		p.status.Message = text
		back := over && p.Rollout.OnFailure == v1.OnFailureRollback && !p.Gone && p.plan.Current != ""
		if back && p.plan.Current != p.Revision || p.status.GoesBack != "" {
			p.status.GoesBack = text
		}
	}
}

// still reports whether no further site starts, because of failures after completion.
func (p *planner) still() bool { return p.done && !p.within }

// fullAtRest reports whether the list is full of sites that take no place, so that no other site could ever begin.
func (p *planner) fullAtRest() bool {
	return !p.room() && !slices.ContainsFunc(p.all, func(u *Site) bool {
		return p.listed[u.Name] != nil && !p.excused(u)
	})
}

// resume accepts the sites that the written status calls failed, and lets the rollout continue. It returns those that
// have failed since, because no person has seen them. After a rollback a new attempt begins.
func (p *planner) resume(failing []*Site) (unseen []*Site) {
	for _, u := range failing {
		if p.written[u.Name] != v1.RolloutSiteFailed && len(p.Status.Sites) < p.Most {
			unseen = append(unseen, u)
			continue
		}
		p.accepted.add(u)
		delete(p.listed, u.Name)
	}
	if p.status.GoesBack != "" {
		p.newAttempt()
		clear(p.proofs)
		clear(p.written)
		p.status.Phase = v1.RolloutProgressing
	}
	p.status.Message, p.resuming = "", true
	p.again(p.Now)
	p.goOn()
	return unseen
}

// advance starts sites of the waves that have begun, and passes the gates of waves that are finished.
func (p *planner) advance() {
	for wave := range p.waves {
		p.start(wave)
		if p.passed(wave) {
			continue
		}
		if !p.finish(wave) || p.compares() {
			return
		}
		p.status.Passed = append(p.status.Passed, p.gate(wave))
	}
	waiting := p.remaining()
	switch {
	case len(waiting) == 0 && p.compares():
	case len(waiting) == 0:
		p.complete()
	case p.still():
		p.status.Phase = v1.RolloutComplete
	default:
		p.setPhase(v1.RolloutProgressing, waiting[0].Wave, p.waitsFor(waiting))
		p.askForSuspects(waiting[0].Wave)
	}
}

// compares reports whether a workload that counts as proven was not compared yet with what was applied. Somebody may
// have edited it, so no gate passes, which would be for good.
func (p *planner) compares() bool {
	if p.done || !slices.ContainsFunc(p.all, func(u *Site) bool {
		return u.Uncompared && !p.leftOut(u) && p.proven(u)
	}) {
		return false
	}
	p.setPhase(v1.RolloutProgressing, p.currentWave(), "compares the workloads with what was applied")
	p.again(p.Now.Add(podsAgain))
	return true
}

// start gives the revision to sites of a wave, in the order of their names, up to the limit of unproven ones.
func (p *planner) start(wave int) {
	if p.still() || p.outage != "" || p.resuming {
		return
	}
	places, silent := p.limit(wave), p.maxSilent(wave)
	for _, u := range p.waves[wave] {
		switch {
		case !p.has(u), p.proven(u), p.excused(u):
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
			case !listed && p.room():
				p.enlist(u, v1.RolloutSitePending, u.Revision)
				p.again(p.Now)
			}
			if takes {
				places--
			}
		}
	}
}

// mayBegin reports whether a site lacks the revision and can get it. One without a workload gets a proven one at once.
func (p *planner) mayBegin(u *Site) bool {
	return !p.has(u) && !u.Held && !p.silent(u) && (u.Exists || p.plan.Current != p.Revision)
}

// muster is the state of the sites of a wave.
type muster struct {
	// holding are the sites for which the wave waits, suspects those that fell silent with the change.
	holding, suspects []*Site
	proven            int
	// moving is set if some of holding will be proven or fail without help, and soaking if all of them only soak. until
	// is when the last of them is done; zero if they are checked.
	moving, soaking bool
	until           time.Time
}

func (p *planner) muster(wave int) muster {
	m := muster{soaking: true}
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

// finish reports whether the gate of a wave passes. Every site of it must be proven or excused. One must be proven, or
// a person must have approved. If the wave asks for an approval, it must have been given.
func (p *planner) finish(wave int) bool {
	m := p.muster(wave)
	switch {
	case len(m.holding) > 0 && !m.moving && p.askForSuspects(wave):
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
		p.excuse(wave, m.suspects, fmt.Sprintf("%d allowed", p.maxSilent(wave)))
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
		return p.hasApproval(wave, "unproven", why)
	}
	return p.specs[wave].Approval != v1.ApprovalManual || p.hasApproval(wave, "", "the wave asks for an approval")
}

// askForSuspects asks for an approval of the suspects that take the places for which a wave waits, if there are any.
func (p *planner) askForSuspects(wave int) bool {
	for of := range p.waves {
		m := p.muster(of)
		if (of != wave && p.room()) || m.moving || len(m.suspects) == 0 || p.outage != "" || p.still() {
			continue
		}
		p.excuse(of, m.suspects, fmt.Sprintf("and the wave has room for %d that are not proven",
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
			if !p.leftOut(u) && (away || !p.has(u)) {
				return true
			}
		}
	}
	return false
}

// excuse asks for an approval of suspects by name. Once approved, they are excused for as long as they are silent.
func (p *planner) excuse(wave int, suspects []*Site, but string) {
	names := make([]string, len(suspects))
	for i, u := range suspects {
		names[i] = u.Name
	}
	why := fmt.Sprintf("%d sites fell silent with the change, %s: %s", len(names), but,
		enumerate.First(names, namedSites))
	if !p.hasApproval(wave, "silent-"+hashOf(strings.Join(names, "\n")+"\n", 8), why) {
		return
	}
	full := !p.room()
	for _, u := range suspects {
		p.listed[u.Name].SilenceApproved = true
		if full { // it is listed again when it is reachable
			delete(p.listed, u.Name)
		}
	}
	p.setPhase(v1.RolloutProgressing, wave, "silent sites are excused")
	p.again(p.Now)
}

// hasApproval reports whether a person has approved of a wave, and asks for an approval if not. An approval is valid
// for one attempt and one kind: what the wave lacks, which why describes, or empty if it lacks only the approval.
func (p *planner) hasApproval(wave int, kind, why string) bool {
	parts := []string{p.Revision, p.gate(wave), p.status.StartTime.UTC().Format(time.RFC3339), kind}
	awaits := strings.TrimSuffix(strings.Join(parts, "/"), "/")
	if slices.ContainsFunc(strings.Split(p.Approved, ","), func(given string) bool {
		return strings.TrimSpace(given) == awaits
	}) {
		p.again(p.Now)
		return true
	}
	p.states[wave], p.status.Awaits = v1.WaveAwaitingApproval, awaits
	p.setPhase(v1.RolloutAwaitingApproval, wave,
		fmt.Sprintf("%s; it waits for the annotation %s=%s", why, v1.AnnotationApproved, awaits))
	return false
}
