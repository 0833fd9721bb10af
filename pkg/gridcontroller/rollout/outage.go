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

// halted reports whether the rollout has halted because too many sites have failed.
func (p *planner) halted() bool {
	return p.status.HaltReason == v1.HaltFailures && p.status.GoesBack == "" && !p.done
}

// resumed reports whether somebody has resumed the halt that began at HaltTime.
func (p *planner) resumed() bool {
	return p.status.HaltTime != nil && p.Resumed == p.status.HaltTime.UTC().Format(time.RFC3339)
}
