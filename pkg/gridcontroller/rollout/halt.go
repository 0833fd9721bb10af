package rollout

import (
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
)

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
		p.goOn()
	case outage:
		p.outage = fmt.Sprintf("%d of the %d sites that have been reachable since it began are silent; no site starts "+
			"until fewer are, or somebody resumes it", len(times), reachable)
		if p.status.HaltTime == nil && !p.done && p.status.GoesBack == "" {
			p.stop(v1.HaltOutage)
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

// stop records that a person has to resume the rollout, and since when: a time that differs from the last one and from
// the one that somebody has resumed. goOn ends that.
func (p *planner) stop(why v1.HaltReason) {
	at := p.second()
	for p.Resumed == at.UTC().Format(time.RFC3339) || at.Equal(p.status.HaltTime) {
		at.Time = at.Add(time.Second)
	}
	p.status.HaltTime, p.status.HaltReason = at, why
}

func (p *planner) goOn() { p.status.HaltTime, p.status.HaltReason = nil, "" }

// haltedByFailures reports whether the rollout has halted because too many sites have failed.
func (p *planner) haltedByFailures() bool {
	return p.status.HaltReason == v1.HaltFailures && p.status.GoesBack == "" && !p.done
}

// resumed reports whether somebody has resumed the halt that began at HaltTime.
func (p *planner) resumed() bool {
	return p.status.HaltTime != nil && p.Resumed == p.status.HaltTime.UTC().Format(time.RFC3339)
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
