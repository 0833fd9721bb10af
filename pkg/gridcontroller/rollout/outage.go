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

// findOutage finds out whether so many sites fell silent that the change is probably not the cause.
func (p *planner) findOutage() {
	var times []time.Time
	reachable := 0 // since the attempt began
	for _, site := range p.Sites {
		if site.Silent && site.SilentSince.Before(p.status.StartTime.Time) {
			continue
		}
		reachable++
		accepted := p.status.OutageAccepted != nil && !site.SilentSince.After(p.status.OutageAccepted.Time)
		if site.Silent && !accepted {
			times = append(times, site.SilentSince)
		}
	}
	slices.SortFunc(times, time.Time.Compare)
	outage := 2*len(times) > reachable
	for first, last := 0, 0; last < len(times); last++ {
		for times[last].Sub(times[first]) > outageWindow {
			first++
		}
		n := last - first + 1
		outage = outage || (n >= outageLeast && outageShare*n > reachable)
	}
	begun := p.status.HaltReason == v1.HaltOutage
	switch {
	case !outage && begun:
		p.goOn()
	case !outage:
	case begun && p.resumed():
		// Everything that is silent now is accepted, so that the next plan finds no outage.
		p.status.OutageAccepted = &metav1.Time{Time: times[len(times)-1].Add(time.Second)}
		p.goOn()
	default:
		p.outage, p.silence = true, fmt.Sprintf("%d of the %d sites that have been reachable since it began are "+
			"silent; no site starts until fewer are, or somebody resumes it", len(times), reachable)
		if p.status.HaltTime == nil && !p.done && p.status.GoesBack == "" {
			p.stop(v1.HaltOutage)
		}
	}
}

// stop records that a person has to resume the rollout, and since when. goOn ends that.
func (p *planner) stop(why v1.HaltReason) {
	p.status.HaltTime, p.status.HaltReason = p.stamp(), why
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

// stamp returns a new HaltTime that differs from the last one and from the one that somebody has resumed.
func (p *planner) stamp() *metav1.Time {
	at := p.Now.Truncate(time.Second)
	last := p.status.HaltTime
	for p.Resumed == at.UTC().Format(time.RFC3339) || (last != nil && at.Equal(last.Time)) {
		at = at.Add(time.Second)
	}
	return &metav1.Time{Time: at}
}
