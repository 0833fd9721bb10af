package rollout

import (
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
)

const (
	// CheckSeconds is the default of spec.rollout.waves[].check.deadlineSeconds.
	CheckSeconds = 600
	// podsAgain is when pods are asked again that were not ready, although their controller says so, and Jobs of
	// checks.
	podsAgain = 10 * time.Second
)

// list lists the sites that have the revision and are not known to have proven it. status.proven says how many sites
// that are not listed may have it. If there are more, something of the status was lost, and nobody is known to be
// proven.
func (p *planner) list() {
	exist := map[string]bool{}
	var unlisted []*Site
	for i := range p.Sites {
		site := &p.Sites[i]
		exist[site.Name] = true
		if p.proven(site) {
			unlisted = append(unlisted, site)
		}
	}
	for name := range p.listed {
		if !exist[name] {
			delete(p.listed, name)
		}
	}
	if p.back() || p.rolling() || p.status.Phase == v1.RolloutComplete {
		p.status.Unlisted = 0
		return
	}
	if len(unlisted) > int(p.status.Proven+p.status.Unlisted) {
		p.status.Proven, p.status.Unlisted = 0, int32(len(unlisted)) //nolint:gosec // no more than there are nodes
	}
	p.status.Unlisted = min(p.status.Unlisted, int32(len(unlisted))) //nolint:gosec // no more than there are nodes
	for _, site := range unlisted[len(unlisted)-int(p.status.Unlisted):] {
		if !p.room() {
			break
		}
		p.enlist(site, v1.RolloutSiteProgressing, "")
		p.status.Unlisted--
	}
}

// follow follows a listed site until it has proven the revision. Its clocks stand still while it is silent or held, and
// during an outage.
func (p *planner) follow(u *Site) {
	of := p.listed[u.Name]
	if of == nil {
		return
	}
	p.stopClocks(of, u.Silent || u.Held || p.outage)
	switch {
	case p.rolling():
		switch {
		case p.has(u), of.State == v1.RolloutSiteFailed, of.State == v1.RolloutSiteAccepted:
		case u.Ready || u.Idle || u.Silent:
			delete(p.listed, u.Name)
		default:
			of.State, of.From = v1.RolloutSiteReturning, p.plan.Current
		}
	case !p.has(u):
		p.followOutside(u, of)
	case u.Idle: // it proves nothing, and holds nobody
		delete(p.listed, u.Name)
	case u.Held:
	case u.Silent:
		p.suspect(u, of)
	case !p.outage:
		p.prove(u, of)
	}
}

// stopClocks stops the clocks of a site, or lets them go on.
func (p *planner) stopClocks(of *v1.RolloutSite, stopped bool) {
	switch {
	case stopped && of.SilentTime == nil:
		of.SilentTime = p.second()
	case !stopped && of.SilentTime != nil:
		silent := max(p.Now.Sub(of.SilentTime.Time), 0)
		for _, at := range []**metav1.Time{&of.Since, &of.ReadyTime} {
			if *at != nil {
				*at = &metav1.Time{Time: (*at).Add(silent + time.Second - 1).Truncate(time.Second)}
			}
		}
		of.SilentTime = nil
	}
}

// followOutside follows a site that is listed and does not have the revision: it is about to get it, or cannot.
func (p *planner) followOutside(u *Site, of *v1.RolloutSite) {
	refused := u.Broken != "" && u.Tried == p.Revision
	switch {
	case of.State == v1.RolloutSiteReturning: // it is back
		delete(p.listed, u.Name)
	case of.State == v1.RolloutSiteAccepted, of.State == v1.RolloutSiteFailed:
	case u.Held:
		delete(p.listed, u.Name)
	case u.Silent:
		// It may have got the revision a moment ago, so that it is put back.
		of.State = v1.RolloutSiteReturning
		p.again(p.Now)
	case refused && !p.outage:
		of.State, of.Message = v1.RolloutSiteFailed, u.Broken
	case of.State != v1.RolloutSitePending:
		of.State, of.Since, of.ReadyTime, of.Message = v1.RolloutSitePending, p.second(), nil, ""
	}
}

// suspect judges a site that is silent and has the revision. If none of its kubelets has seen a pod of it, the silence
// has another reason, and the workload is put back.
func (p *planner) suspect(u *Site, of *v1.RolloutSite) {
	switch of.State {
	case v1.RolloutSiteFailed, v1.RolloutSiteAccepted, v1.RolloutSiteSuspect, v1.RolloutSiteReturning:
		return
	default:
	}
	switch {
	case u.Pods == nil:
		p.plan.Ask = append(p.plan.Ask, *of)
		of.State = v1.RolloutSiteSuspect
		p.again(p.Now.Add(podsAgain))
	case u.Pods.Acknowledged || of.From == "":
		of.State, of.Message = v1.RolloutSiteSuspect, "it fell silent with the change"
	default:
		of.State, of.Message = v1.RolloutSiteReturning, "it fell silent before it had seen the change"
		p.again(p.Now)
	}
}

// prove judges a site that is heard and has the revision.
func (p *planner) prove(u *Site, of *v1.RolloutSite) {
	wave := p.spec(u.Wave)
	soak := ptr.Deref(wave.Soak, metav1.Duration{}).Duration
	sticky := of.State == v1.RolloutSiteFailed || of.State == v1.RolloutSiteAccepted
	state, message := v1.RolloutSiteProgressing, ""
	if of.State == v1.RolloutSitePending {
		of.Since = p.second()
	}
	sound := false
	switch {
	case !u.Ready && u.Waits != "":
		state, message = v1.RolloutSiteWaiting, u.Waits
	case !u.Ready:
		if of.ReadyTime == nil && u.Progress.After(of.Since.Time) {
			of.Since = &metav1.Time{Time: u.Progress.Truncate(time.Second)}
		}
	default:
		if of.ReadyTime == nil {
			of.ReadyTime = &metav1.Time{Time: p.Now.Add(time.Second - 1).Truncate(time.Second)}
			if soak == 0 {
				of.ReadyTime = p.second()
			}
		}
		state = v1.RolloutSiteSoaking
		sound = p.soaked(u, of, soak)
	}
	if failed := p.check(u, of, wave.Check); failed != "" {
		p.fail(of, failed)
		return
	}
	if sound && (wave.Check == nil || of.Checked) {
		delete(p.listed, u.Name)
		p.status.Proven++
		return
	}
	if sound {
		state = v1.RolloutSiteChecking
		if u.Check != nil {
			message = u.Check.Message
		}
	}
	limit := 2*soak + p.Deadline
	if wave.Check != nil {
		limit += time.Duration(ptr.Deref(wave.Check.DeadlineSeconds, CheckSeconds)) * time.Second
	}
	until := of.Since.Add(limit)
	switch {
	case u.Broken != "" && u.Tried == p.Revision:
		p.fail(of, u.Broken)
	case state != v1.RolloutSiteWaiting && state != v1.RolloutSiteChecking && !p.Now.Before(until):
		why := "it was not ready"
		if soak > 0 {
			why += fmt.Sprintf(" for %s without a break", soak)
		}
		p.fail(of, fmt.Sprintf("%s within %s", why, limit))
	default:
		if state != v1.RolloutSiteWaiting {
			p.again(until)
		}
		if !sticky {
			of.State, of.Message = state, message
		}
	}
}

// fail notes that a site has failed, unless somebody has accepted that.
func (p *planner) fail(of *v1.RolloutSite, why string) {
	if of.State != v1.RolloutSiteAccepted {
		of.State, of.Message = v1.RolloutSiteFailed, why
	}
}

// soaked reports whether the pods of a site have been ready without a break for the soak time. Their word is asked when
// the time is over: a break begins it again.
func (p *planner) soaked(u *Site, of *v1.RolloutSite, soak time.Duration) bool {
	if soak == 0 {
		return true
	}
	until := of.ReadyTime.Add(soak)
	if !p.Now.Before(until) && u.Pods != nil {
		switch since := u.Pods.ReadySince; {
		case since.IsZero():
			p.again(p.Now.Add(podsAgain))
			return false
		case !since.After(of.ReadyTime.Add(time.Second)):
			return true
		default:
			of.ReadyTime = &metav1.Time{Time: since.Add(time.Second - 1).Truncate(time.Second)}
			until = of.ReadyTime.Add(soak)
		}
	}
	switch {
	case p.Now.Before(until):
		p.again(until)
		if until.After(p.soaks) {
			p.soaks = until
		}
	case u.Pods == nil:
		p.plan.Ask = append(p.plan.Ask, *of)
		p.again(p.Now.Add(podsAgain))
	default:
		p.again(p.Now.Add(podsAgain))
	}
	return false
}

// check has a site's check run once its pods are ready, and returns why it has failed; empty if it has not.
func (p *planner) check(u *Site, of *v1.RolloutSite, check *v1.Check) string {
	if check == nil || of.Checked || of.ReadyTime == nil || of.State == v1.RolloutSiteFailed {
		return ""
	}
	p.plan.Checks = append(p.plan.Checks, u.Name)
	switch {
	case u.Check != nil && u.Check.Passed:
		of.Checked = true
	case u.Check != nil && u.Check.Failed:
		return "its check failed: " + u.Check.Message
	default:
		p.again(p.Now.Add(podsAgain)) // nobody follows Jobs
	}
	return ""
}
