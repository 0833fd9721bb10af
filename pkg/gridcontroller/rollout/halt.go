package rollout

import (
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
)

// fails reports whether a site has failed with the revision and was not accepted.
func (p *planner) fails(u *Site) bool {
	state := p.state(u)
	return !p.leftOut(u) && (state == v1.RolloutSiteFailed || (state == "" && p.broken(u)))
}

// decideHalt decides whether the rollout has to halt, or may continue.
func (p *planner) decideHalt() {
	if p.status.GoesBack == undone {
		p.endHalt()
		return
	}
	failing := slices.DeleteFunc(slices.Clone(p.all), func(u *Site) bool { return !p.fails(u) })
	if p.resumed() && p.status.HaltReason == v1.HaltFailures {
		failing = p.resume(failing)
	}
	allowed := ScaledCount(p.Rollout.MaxFailures, "0%", len(p.Sites))
	text := fmt.Sprintf("%d failed, %d allowed: %s", len(failing), allowed, p.describe(failing))
	over, full := len(failing) > allowed, len(failing) > 0 && p.isListBlocked()
	if p.within = !over && !full; !over && full {
		text = "the status can list no further site; " + text
	}
	begun := p.status.HaltReason == v1.HaltFailures
	fresh := slices.ContainsFunc(failing, func(u *Site) bool {
		return p.listed[u.Name] != nil && p.written[u.Name] != v1.RolloutSiteFailed
	})
	if fresh && p.within {
		p.requeueAt(p.Now)
	}
	switch {
	case p.done && p.within:
		if begun {
			p.endHalt()
		}
	case p.done:
		p.status.Message = "complete; sites that were deferred do not get the change now: " + text
		if !begun {
			p.halt(v1.HaltFailures)
		}
	case !begun && !p.within, begun && fresh: // a person must see these before resuming
		p.halt(v1.HaltFailures)
		p.status.Message = text
		back := over && p.Rollout.OnFailure == v1.OnFailureRollback && !p.Gone && p.plan.Current != ""
		if back && p.plan.Current != p.Revision || p.status.GoesBack != "" {
			p.status.GoesBack = text
		}
	}
}

// frozen reports whether no further site starts, because of failures after completion.
func (p *planner) frozen() bool { return p.done && !p.within }

// isListBlocked reports whether the list is full of sites that take no place, so that no other site could ever begin.
func (p *planner) isListBlocked() bool {
	return !p.hasRoom() && !slices.ContainsFunc(p.all, func(u *Site) bool {
		return p.listed[u.Name] != nil && !p.excused(u)
	})
}

// halt records that a person has to resume the rollout, and since when: a time that differs from the last one and from
// the one that somebody has resumed. endHalt ends that.
func (p *planner) halt(why v1.HaltReason) {
	at := p.timestamp()
	for p.Resumed == at.UTC().Format(time.RFC3339) || at.Equal(p.status.HaltTime) {
		at.Time = at.Add(time.Second)
	}
	p.status.HaltTime, p.status.HaltReason = at, why
}

func (p *planner) endHalt() { p.status.HaltTime, p.status.HaltReason = nil, "" }

// haltedByFailures reports whether the rollout has halted because too many sites have failed.
func (p *planner) haltedByFailures() bool {
	return p.status.HaltReason == v1.HaltFailures && p.status.GoesBack == "" && !p.done
}

// resumed reports whether somebody has resumed the halt that began at HaltTime.
func (p *planner) resumed() bool {
	return p.status.HaltTime != nil && p.Resumed == p.status.HaltTime.UTC().Format(time.RFC3339)
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
	p.requeueAt(p.Now)
	p.endHalt()
	return unseen
}

// An outage is that at least outageLeast sites, and more than one in outageShare of those that have been reachable
// since the attempt began, fall silent within outageWindow. It is also an outage if more than half of them are silent.
const (
	outageWindow = time.Minute
	outageLeast  = 5
	outageShare  = 10
)

// findOutage finds out whether so many sites fell silent that the change is probably not the cause. The times are those
// of the node controller's clock, and are compared with each other only.
func (p *planner) findOutage() {
	var times []time.Time
	reachable := 0
	for _, site := range p.all {
		if p.fellSilent(site) {
			times = append(times, site.SilentSince)
		} else if !site.Silent {
			reachable++
		}
	}
	reachable += len(times)
	slices.SortFunc(times, time.Time.Compare)
	outage := 2*len(times) > reachable
	most := max(outageLeast, reachable/outageShare+1)
	for last := most - 1; last < len(times); last++ {
		outage = outage || times[last].Sub(times[last-most+1]) <= outageWindow
	}
	begun := p.status.HaltReason == v1.HaltOutage
	switch {
	case begun && (!outage || p.resumed()):
		if outage {
			p.acceptSilence()
		}
		p.endHalt()
	case outage:
		p.outage = fmt.Sprintf("%d of the %d sites that have been reachable since it began are silent; no site starts "+
			"until fewer are, or somebody resumes it", len(times), reachable)
		if p.status.HaltTime == nil && !p.done && p.status.GoesBack == "" {
			p.halt(v1.HaltOutage)
		}
	}
}

// acceptSilence lets the sites that are silent now make no outage.
func (p *planner) acceptSilence() {
	for _, u := range p.all {
		if p.fellSilent(u) {
			p.status.OutageAccepted = &metav1.Time{Time: u.SilentSince}
		}
	}
}

// fellSilent reports whether a site has fallen silent since the attempt began, or since somebody accepted an outage.
func (p *planner) fellSilent(u *Site) bool {
	accepted := p.status.OutageAccepted
	return u.Silent && (accepted == nil || u.SilentSince.After(accepted.Time))
}
