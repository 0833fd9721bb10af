package rollout

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
)

const (
	// CheckSeconds is the default of spec.rollout.waves[].check.deadlineSeconds.
	CheckSeconds = 600
	// podsAgain is the time between two questions for pods, and for the Jobs of checks, which are not watched.
	podsAgain = 10 * time.Second
	// mostAway is how long a site that has lost its nodes stays in the list.
	mostAway = 5 * time.Minute
	// checkReport is how long the Job of a check may take to report after its deadline.
	checkReport = 30 * time.Second
)

// enlistUnproven lists the sites that have the revision and are not known to have proven it. Listed names that are not
// sites at present keep their place in the list for a while, because a label may be missing for seconds.
func (p *planner) enlistUnproven() {
	exist := map[string]bool{}
	for _, u := range p.all {
		exist[u.Name] = true
	}
	for _, name := range slices.Sorted(maps.Keys(p.listed)) {
		if exist[name] {
			continue
		}
		p.setClocks(p.listed[name], true)
		if until := p.listed[name].SilentTime.Add(mostAway); p.Now.Before(until) {
			p.absent = append(p.absent, name)
			p.requeueAt(until)
		} else {
			delete(p.listed, name)
		}
	}
	for _, u := range p.all {
		known := p.listed[u.Name] != nil || p.proofs.has(u) || p.accepted.named(u.Name)
		if p.hasRevision(u) && !known && !u.Idle && !u.Silent && p.status.GoesBack == "" && !p.runsEverywhere() &&
			p.hasRoom() {
			p.enlist(u, v1.RolloutSiteProgressing, "")
		}
	}
}

// broken reports whether a site does not work with the revision. For a silent site this is not known. A DaemonSet
// makes no progress while a node is silent, and works if its other pods do.
func (p *planner) broken(u *Site) bool {
	works := p.hasRevision(u) && p.ready(u)
	return u.Broken != "" && u.Tried == p.Revision && !works && !p.silent(u) && p.outage == ""
}

// followSite follows a site until it has proven the revision, and notices when a proven site fails.
func (p *planner) followSite(u *Site) {
	of := p.listed[u.Name]
	if u.Partly && !u.Ready && u.Pods == nil && (of != nil || u.Broken != "" || !p.proven(u)) {
		p.ask(u, time.Time{})
	}
	if of == nil {
		if p.broken(u) && p.status.GoesBack != undone && !p.excused(u) && p.hasRoom() {
			of = p.enlist(u, v1.RolloutSiteFailed, "")
			of.Message, of.Checked = u.Broken, true
		}
		return
	}
	of = p.renewIfRecreated(u, of)
	p.setClocks(of, p.mustWait(u))
	switch {
	case p.status.GoesBack != "":
		if of.State != v1.RolloutSiteFailed {
			delete(p.listed, u.Name)
		}
	case !p.hasRevision(u):
		p.followPending(u, of)
	case u.Idle && !p.silent(u):
		delete(p.listed, u.Name)
	case u.Held:
	case u.Unread && !p.silent(u) && !p.broken(u): // that proves nothing
		if of.State != v1.RolloutSiteFailed {
			of.Message = "its pods could not be read"
		}
	case p.silent(u):
		p.pauseSoak(u, of)
		p.suspect(u, of)
	case p.outage == "":
		p.prove(u, of)
	}
}

// mustWait reports whether no deadline of a site may come nearer: it is not heard, or must not get the revision now.
func (p *planner) mustWait(u *Site) bool {
	kept := p.Rollout.Paused || p.status.HaltTime != nil || u.Withheld
	return p.silent(u) || u.Held || p.outage != "" || u.Unread || !p.hasRevision(u) && kept
}

// renewIfRecreated returns the entry of a site, a new one if its workload was recreated. The clocks, the check and the
// former revision of the old workload do not apply to the new one.
func (p *planner) renewIfRecreated(u *Site, of *v1.RolloutSite) *v1.RolloutSite {
	switch is := hashOf(u.UID, uidMark); {
	case !u.Exists:
		return of
	case of.Workload == "", of.Workload == is:
		of.Workload = is
		return of
	}
	fresh := p.enlist(u, v1.RolloutSitePending, p.plan.Current)
	if fresh.From == p.Revision {
		fresh.From = ""
	}
	if of.State == v1.RolloutSiteFailed {
		fresh.State, fresh.Message, fresh.Checked = of.State, of.Message, of.Checked
	}
	return fresh
}

// setClocks stops the clocks of a site, or lets them continue.
func (p *planner) setClocks(of *v1.RolloutSite, stopped bool) {
	switch {
	case stopped && of.SilentTime == nil:
		of.SilentTime = p.timestamp()
	case !stopped && of.SilentTime != nil:
		silent := max(p.Now.Sub(of.SilentTime.Time), 0)
		move(silent, &of.Since, &of.CheckTime, &of.ReadyTime)
		of.SilentTime, of.SilenceApproved = nil, false
	}
}

// move moves times, in whole seconds.
func move(by time.Duration, times ...**metav1.Time) {
	for _, at := range times {
		if *at != nil {
			*at = &metav1.Time{Time: (*at).Add(by + time.Second - 1).Truncate(time.Second)}
		}
	}
}

// lastHeartbeat returns what this process knows of the HeardTime of the written status.
func (p *planner) lastHeartbeat() Heartbeat {
	if p.Status == nil || p.Status.HeardTime == nil {
		return Heartbeat{Leap: p.Leap}
	}
	at := p.Status.HeardTime
	if i := slices.IndexFunc(p.Followed, func(of Heartbeat) bool { return of.Equal(at) }); i >= 0 {
		return p.Followed[i]
	}
	return Heartbeat{at, p.Now.Sub(at.Time).Truncate(time.Second), p.Leap}
}

// shiftClocks moves the clocks of sites by the time in which no controller followed the rollout: the controller or the
// control plane was away, or the store of the API server was set back. A soak continues, because its pods are compared.
// If that time is negative, the clock was set back. All clocks move with that of the controller, if somebody has set it
// or suspended its machine.
func (p *planner) shiftClocks() {
	leap := (p.Leap - p.heard.Leap + min(p.heard.Gap, 0)).Truncate(time.Second)
	p.plan.Gap = max(p.heard.Gap, 0)
	for _, of := range p.listed {
		move(leap, &of.Since, &of.CheckTime, &of.ReadyTime, &of.SilentTime)
		if of.SilentTime == nil {
			move(p.plan.Gap, &of.Since, &of.CheckTime)
		}
	}
}

// stampHeartbeat stamps a status that has changed, or whose clocks have run for long, with the present time.
func (p *planner) stampHeartbeat() {
	s := p.status
	until := ptr.Deref(s.HeardTime, metav1.Time{}).Add(p.Deadline / 2)
	rest := []v1.RolloutSiteState{
		v1.RolloutSiteFailed, v1.RolloutSiteSuspect, v1.RolloutSiteReturning, v1.RolloutSiteWaiting,
	}
	clockRuns := func(of v1.RolloutSite) bool { return of.SilentTime == nil && !slices.Contains(rest, of.State) }
	switch same := equality.Semantic.DeepEqual(s, p.Status); {
	case same && !slices.ContainsFunc(s.Sites, clockRuns): // no deadline comes nearer
	case same && p.Now.Before(until):
		p.requeueAt(until)
	default:
		s.HeardTime = p.timestamp()
	}
	p.plan.Followed = []Heartbeat{{s.HeardTime, 0, p.Leap}, p.heard} // the write may fail
}

// pauseSoak ends the soak of a site that has fallen silent. The time counts if its pods had not been restarted until
// then. Their marks are dropped, because they may restart with their node.
func (p *planner) pauseSoak(u *Site, of *v1.RolloutSite) {
	if of.ReadyTime == nil {
		return
	}
	if u.Pods == nil || u.Pods.At.Before(of.SilentTime.Time) {
		p.ask(u, of.SilentTime.Time)
		return
	}
	if !slices.ContainsFunc(of.Pods, func(mark string) bool { // as far as silent nodes have reported them
		return !slices.Contains(u.Pods.Marks, mark) && !slices.Contains(u.Pods.Silent, mark)
	}) {
		of.SoakedSeconds = int32(min(max(of.SilentTime.Sub(of.ReadyTime.Time), 0)/time.Second, 1<<30))
	}
	of.ReadyTime, of.Pods = nil, nil
}

// ask adds a question for the pods of a site to the plan.
func (p *planner) ask(u *Site, after time.Time) {
	p.plan.Ask = append(p.plan.Ask, Question{u.Name, after})
	p.requeueAt(p.Now.Add(podsAgain))
}

func soakOf(wave v1.Wave) time.Duration { return ptr.Deref(wave.Soak, metav1.Duration{}).Duration }

func deadlineOf(check *v1.Check) time.Duration {
	return time.Duration(ptr.Deref(check.DeadlineSeconds, CheckSeconds)) * time.Second
}

// followPending follows a listed site without the revision: it is about to get it, or cannot.
func (p *planner) followPending(u *Site, of *v1.RolloutSite) {
	switch {
	case of.State == v1.RolloutSiteReturning: // it is back
		delete(p.listed, u.Name)
	case of.State == v1.RolloutSiteFailed:
	case u.Held, p.silent(u) && of.From == "",
		!p.silent(u) && u.Exists && u.Wave > p.currentWave(): // it has moved, and it is not its turn there
		delete(p.listed, u.Name)
	case p.silent(u) && !u.Exists: // no workload can be put back
	case p.silent(u):
		// It may have got the revision a moment ago, so it is put back.
		of.State = v1.RolloutSiteReturning
		p.requeueAt(p.Now)
	case p.outage != "":
	case p.broken(u):
		fail(of, u.Broken)
	case of.State != v1.RolloutSitePending, u.Exists && of.From != u.Revision: // somebody else has changed it
		delete(p.listed, u.Name)
		p.requeueAt(p.Now)
	case of.SilentTime == nil:
		p.failIfOverdue(u, of, "it could not be given the change")
	}
}

// failIfOverdue fails a site whose deadline has passed.
func (p *planner) failIfOverdue(u *Site, of *v1.RolloutSite, why string) {
	wave := p.specs[u.Wave]
	limit := 2*soakOf(wave) + p.Deadline
	if wave.Check != nil {
		limit += deadlineOf(wave.Check)
	}
	if until := of.Since.Add(limit); p.Now.Before(until) {
		p.requeueAt(until)
		return
	}
	fail(of, cmp.Or(u.Trouble, fmt.Sprintf("%s within %s", why, limit)))
}

// fail records that a site has failed for another reason than its check. The check continues once the pods are ready.
func fail(of *v1.RolloutSite, why string) {
	of.State, of.Message, of.CheckTime = v1.RolloutSiteFailed, why, nil
}

// suspect judges a silent site with the revision. If all its nodes are silent, and no kubelet has seen a pod of the
// change, the silence has another reason, and the workload is put back. A question that fails is repeated. With
// other reachable nodes it would get the change again.
func (p *planner) suspect(u *Site, of *v1.RolloutSite) {
	switch {
	case of.State == v1.RolloutSiteFailed, of.State == v1.RolloutSiteReturning && u.Silent:
		return
	case of.From == "", !u.Silent:
	case u.Pods == nil:
		p.ask(u, time.Time{})
	case u.Pods.Acknowledged:
		of.From = ""
	default:
		of.State, of.Message = v1.RolloutSiteReturning, "it fell silent before it had seen the change"
		p.requeueAt(p.Now)
		return
	}
	of.State, of.Message = v1.RolloutSiteSuspect, "it fell silent with the change"
}

// prove judges a reachable site with the revision.
func (p *planner) prove(u *Site, of *v1.RolloutSite) {
	wave, soak := p.specs[u.Wave], soakOf(p.specs[u.Wave])
	state, message := v1.RolloutSiteProgressing, ""
	if of.State == v1.RolloutSitePending {
		of.Since = p.timestamp()
	}
	if of.ReadyTime == nil && !p.ready(u) && u.Progress.After(of.Since.Time) {
		of.Since = &metav1.Time{Time: u.Progress.Truncate(time.Second)}
	}
	sound := p.trackSoak(u, of, soak)
	if sound && u.Uncompared {
		sound = false
		p.requeueAt(p.Now.Add(podsAgain))
	}
	switch {
	case !p.ready(u) && u.Waits != "":
		state, message = v1.RolloutSiteWaiting, u.Waits
	case p.ready(u):
		state = v1.RolloutSiteSoaking
	}
	failed := p.check(u, of, wave.Check)
	switch {
	case failed != "":
		of.State, of.Message = v1.RolloutSiteFailed, failed
		return
	case sound && (wave.Check == nil || of.Checked):
		delete(p.listed, u.Name)
		p.proofs.add(u)
		return
	case sound:
		state, message = v1.RolloutSiteChecking, ptr.Deref(u.Check, CheckResult{}).Message
	}
	if of.State == v1.RolloutSiteFailed {
		return
	}
	of.State, of.Message = state, message
	switch {
	case p.broken(u): // also if a pod that a person has replaced does not work
		fail(of, u.Broken)
	case state != v1.RolloutSiteWaiting:
		why := "it was not ready"
		if soak > 0 {
			why += fmt.Sprintf(" for %s without a break", soak)
		}
		if state == v1.RolloutSiteChecking {
			why = "its check did not succeed"
		}
		p.failIfOverdue(u, of, why)
	}
}

// trackSoak reports whether the pods of a site have been ready for the soak time: those of its beginning are still
// there, with the same containers, and ready. Without a soak time the pods only need to be ready once.
func (p *planner) trackSoak(u *Site, of *v1.RolloutSite, soak time.Duration) bool {
	ready := p.ready(u)
	if soak == 0 {
		if ready && of.ReadyTime == nil {
			of.ReadyTime = p.timestamp()
		}
		return ready
	}
	if of.ReadyTime == nil || of.Pods == nil {
		if ready {
			p.beginSoak(u, of, soak)
		}
		return false
	}
	until := of.ReadyTime.Add(soak)
	over := !p.Now.Before(until)
	if ready && !over {
		p.requeueAt(until)
		return false
	}
	if u.Pods == nil || (over && u.Pods.At.Before(until)) {
		after := time.Time{}
		if over {
			after = until
		}
		p.ask(u, after)
		return false
	}
	same, replaced := u.Pods.since(of.Pods)
	if same {
		return ready && over
	}
	if replaced { // by somebody, or by a drain: the site starts over
		of.Since = p.timestamp()
	}
	of.ReadyTime, of.Pods = nil, nil
	p.requeueAt(p.Now.Add(podsAgain))
	return false
}

// beginSoak begins a soak, or continues one that a silence has interrupted, as soon as the pods are known and ready.
func (p *planner) beginSoak(u *Site, of *v1.RolloutSite, soak time.Duration) {
	if u.Pods == nil || len(u.Pods.Marks) == 0 || len(u.Pods.Unready) > 0 {
		p.ask(u, time.Time{})
		return
	}
	if of.ReadyTime == nil {
		of.ReadyTime = &metav1.Time{Time: p.Now}
		move(-time.Duration(of.SoakedSeconds)*time.Second, &of.ReadyTime)
	}
	of.Pods, of.SoakedSeconds = u.Pods.Marks[:min(len(u.Pods.Marks), mostPods)], 0
	p.requeueAt(of.ReadyTime.Add(soak))
}

// CheckHash identifies a check. An edited check has another hash, and runs again.
func CheckHash(check *v1.Check) string {
	return hashOf(string(check.Template.Raw)+"\n"+strconv.Itoa(int(ptr.Deref(check.DeadlineSeconds, CheckSeconds))), 10)
}

// check runs a site's check when its pods are ready, and returns why it has failed, if it has. A disrupted run is
// repeated within the deadline. A site that has failed otherwise has a checkTime only if its check has failed too.
func (p *planner) check(u *Site, of *v1.RolloutSite, check *v1.Check) string {
	if check == nil {
		return ""
	}
	if hash := CheckHash(check); of.CheckHash != hash {
		if of.CheckHash != "" {
			of.CheckTime, of.Checked = nil, false
		}
		of.CheckHash = hash
	}
	began, failed := of.CheckTime != nil, of.State == v1.RolloutSiteFailed
	if of.Checked || (!began && !p.ready(u)) || (began && failed) {
		return ""
	}
	p.plan.Checks = append(p.plan.Checks, u.Name)
	p.requeueAt(p.Now.Add(podsAgain)) // Jobs are not watched
	is, limit := ptr.Deref(u.Check, CheckResult{}), deadlineOf(check)
	if !began && (is.Failed || !failed && (is.Runs || is.Passed)) {
		of.CheckTime = p.timestamp()
	}
	switch {
	case is.Passed:
		of.Checked = true
	case is.Failed:
		return "its check failed: " + is.Message
	case began && !p.Now.Before(of.CheckTime.Add(limit+checkReport)):
		return fmt.Sprintf("its check did not succeed within %s", limit)
	}
	return ""
}
