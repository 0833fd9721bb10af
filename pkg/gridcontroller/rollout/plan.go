package rollout

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/application-grid/application-grid/pkg/apis/enumerate"
	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
)

const (
	// defaultMaxUnavailable is spec.rollout.waves[].maxUnavailable, defaultMaxSilent is maxSilent.
	defaultMaxUnavailable = "25%"
	defaultMaxSilent      = "10%"
	// mostListed is the most sites that a status lists.
	mostListed = 500
	// namedSites is how many sites a message names.
	namedSites = 3
	// outageWindow is the time within which outageLeast sites, and more than one of outageShare that were heard when
	// the attempt began, have to fall silent to make an outage.
	outageWindow = time.Minute
	outageLeast  = 5
	outageShare  = 10
)

// Site is what is known of a site.
type Site struct {
	Name string
	// Wave is the index of its wave: len(Rollout.Waves) for a site that no wave names.
	Wave int
	// Exists: it has a workload, which nobody is to change if it is Held. Revision is that of the workload; empty if it
	// is not known.
	Exists, Held bool
	Revision     string
	// Idle: the workload is to have no pods. It proves nothing, and nobody waits for it. Ready: all its pods run its
	// revision, and are available. Progress is when it last came closer to that.
	Idle, Ready bool
	Progress    time.Time
	// Waits says which pods wait until a person deletes them, or changes a partition; empty if none do.
	Waits string
	// Broken says why the workload makes no progress, or cannot be made so, with the revision Tried.
	Broken, Tried string
	// Silent: the control plane has lost contact with all its nodes, the last one at SilentSince.
	Silent      bool
	SilentSince time.Time
	// Pods is what the pods tell, see Plan.Ask. Check is what has come of the site's check, see Plan.Checks. They are
	// nil if that is not known.
	Pods  *Pods
	Check *CheckResult
}

// CheckResult is how the Job of a check has ended, or why it cannot run. Neither Passed nor Failed: it goes on.
type CheckResult struct {
	Passed, Failed bool
	Message        string
}

// Input is what a plan follows from.
type Input struct {
	Rollout *v1.Rollout
	// Revision is that of the grid's spec, Deadline its progressDeadlineSeconds. Sites are in the order of their names.
	Revision string
	Deadline time.Duration
	Sites    []Site
	// Current, Update and Status are status.currentRevision, updateRevision and rollout, as they were last written.
	// Gone: nothing is left of Current but its name.
	Current, Update string
	Gone            bool
	Status          *v1.RolloutStatus
	// Approved and Resumed are the values of the annotations of the grid. AtOnce is the revision that all sites get
	// without waves; empty for none.
	Approved, Resumed, AtOnce string
	Now                       time.Time
}

// Plan is what is to be done, and told. Sites get a new revision only after the status was written that lists them: a
// controller that restarts would otherwise take them for proven.
type Plan struct {
	// Revisions are those that the sites should have. A site that is not in it is to be left as it is. Current is the
	// grid's new currentRevision.
	Revisions map[string]string
	Current   string
	Status    *v1.RolloutStatus
	// Ask are the sites whose pods decide what comes next, as the status lists them. They are to be asked, and the plan
	// to be made again.
	Ask []v1.RolloutSite
	// Checks are the sites whose check is to run.
	Checks []string
	// Again is when to look again if nothing happens; zero for never.
	Again time.Time
}

// planner makes one plan.
type planner struct {
	Input

	plan   Plan
	status *v1.RolloutStatus
	// waves are the sites, by wave; the last one are those that no wave names. states are the states of the waves.
	waves  [][]*Site
	states []v1.WaveStatus
	// listed are the sites of status.sites, written their states in the written status of this attempt.
	listed  map[string]*v1.RolloutSite
	written map[string]v1.RolloutSiteState
	// before is the phase of the written status for this revision.
	before v1.RolloutPhase
	// soaks is when the last of the sites that soak has done so; zero if none do.
	soaks time.Time
	// still: no site gets the change now, because of an outage or of failures after the rollout was complete.
	still, outage bool
}

// New makes a plan.
func New(in Input) Plan {
	p := &planner{
		Input: in, plan: Plan{Revisions: map[string]string{}, Current: in.Current},
		listed: map[string]*v1.RolloutSite{}, written: map[string]v1.RolloutSiteState{},
	}
	p.begin()
	p.findOutage()
	p.list()
	for i := range p.Sites {
		p.follow(&p.Sites[i])
	}
	p.keep()
	p.judge()
	switch {
	case p.Rollout.Paused:
		if p.status.Phase == v1.RolloutProgressing || p.status.Phase == v1.RolloutOutage {
			p.wait(v1.RolloutPaused, p.current(), "paused")
		}
	case p.status.Phase == v1.RolloutHalted:
	case p.rolling():
		p.rollBack()
	case p.back():
		p.returnAll()
	default:
		p.advance()
	}
	p.count()
	p.plan.Status = p.status
	return p.plan
}

// begin takes up the attempt where it was, or begins a new one.
func (p *planner) begin() {
	told := map[string]v1.WaveState{}
	changes := slices.ContainsFunc(p.Sites, func(u Site) bool { return u.Exists && u.Revision != p.Revision })
	switch {
	case p.Status != nil && p.Update == p.Revision:
		p.status, p.before = p.Status.DeepCopy(), p.Status.Phase
		for _, site := range p.status.Sites {
			p.listed[site.Name], p.written[site.Name] = &site, site.State
		}
		if int(p.status.Listed) != len(p.status.Sites) { // some were lost, so that nobody is known to be proven
			clear(p.listed)
			p.status.Proven, p.status.Unlisted = 0, 0
		}
		for _, wave := range p.status.Waves {
			told[wave.Name] = wave.State
		}
		if p.status.StartTime == nil { // an older controller has written it
			p.stampStart()
		}
	case p.Status == nil && p.Current == "" && !changes:
		// There is nothing yet, or nothing that has to change: the rollout is adopted without one.
		p.attempt()
		p.plan.Current, p.status.Phase = p.Revision, v1.RolloutComplete
	default:
		p.attempt()
	}
	switch p.status.Phase {
	case v1.RolloutHalted, v1.RolloutRollingBack, v1.RolloutRolledBack, v1.RolloutComplete:
	default:
		p.status.Phase = v1.RolloutProgressing
		if p.before != v1.RolloutOutage {
			p.status.HaltTime = nil
		}
	}
	p.status.AtOnce = p.status.AtOnce || (p.AtOnce == p.Revision && p.status.Phase != v1.RolloutComplete)
	p.status.Wave, p.status.Message, p.status.Awaits = "", "", ""
	if p.status.AtOnce && p.status.Phase != v1.RolloutComplete {
		p.joinWaves()
	}
	p.waves = make([][]*Site, len(p.Rollout.Waves)+1)
	for i := range p.Sites {
		site := &p.Sites[i]
		p.waves[site.Wave] = append(p.waves[site.Wave], site)
	}
	p.states = make([]v1.WaveStatus, len(p.waves))
	for i := range p.waves {
		p.states[i] = v1.WaveStatus{Name: p.name(i), State: cmp.Or(told[p.name(i)], v1.WavePending)}
		if p.status.Phase == v1.RolloutComplete { // whatever the waves are now
			p.states[i].State = v1.WaveDone
		}
	}
}

// joinWaves makes one wave of all sites, which have nothing to prove but that they are ready.
func (p *planner) joinWaves() {
	all := intstr.FromString("100%")
	p.Rollout = p.Rollout.DeepCopy()
	p.Rollout.Waves = []v1.Wave{{Name: "(at once)", MaxUnavailable: &all, MaxSilent: &all}}
	p.Sites = slices.Clone(p.Sites)
	for i := range p.Sites {
		p.Sites[i].Wave = 0
	}
}

// attempt begins a new attempt: what was proven, approved and accepted before does not count in it.
func (p *planner) attempt() {
	p.status = &v1.RolloutStatus{Phase: v1.RolloutProgressing, AtOnce: p.AtOnce == p.Revision}
	p.stampStart()
}

// stampStart notes when the attempt began, and how many sites were heard then.
func (p *planner) stampStart() {
	start := p.Now.Truncate(time.Second)
	if last := p.Status; last != nil && last.StartTime != nil && !start.After(last.StartTime.Time) {
		start = last.StartTime.Add(time.Second) // another attempt has another name
	}
	p.status.StartTime = &metav1.Time{Time: start}
	for _, site := range p.Sites {
		if !site.Silent {
			p.status.Heard++
		}
	}
}

// back reports whether the spec goes back to what ran everywhere, which has nothing to prove.
func (p *planner) back() bool {
	return p.Revision == p.plan.Current && p.status.Phase != v1.RolloutComplete
}

func (p *planner) name(wave int) string { return p.spec(wave).Name }

// spec is what the grid says of a wave.
func (p *planner) spec(wave int) v1.Wave {
	if wave < len(p.Rollout.Waves) {
		return p.Rollout.Waves[wave]
	}
	return v1.Wave{}
}

// Share is a number of sites, or a part of so many of them, rounded down. Without a value it is missing.
func Share(value *intstr.IntOrString, missing string, of int) int {
	value = intstr.ValueOrDefault(value, intstr.FromString(missing))
	sites, err := intstr.GetScaledValueFromIntOrPercent(value, of, false)
	if err != nil { // a CRD that checks nothing let it pass
		return 0
	}
	return sites
}

// limit is how many sites of a wave may have the change and not be proven, silent how many of them may be suspects when
// the wave is done.
func (p *planner) limit(wave int) int {
	return max(Share(p.spec(wave).MaxUnavailable, defaultMaxUnavailable, len(p.waves[wave])), 1)
}

func (p *planner) silent(wave int) int {
	least := 0
	if p.spec(wave).MaxSilent == nil {
		least = 1
	}
	return max(Share(p.spec(wave).MaxSilent, defaultMaxSilent, len(p.waves[wave])), least)
}

func (p *planner) has(u *Site) bool { return u.Exists && u.Revision == p.Revision }

func (p *planner) proven(u *Site) bool { return p.has(u) && !u.Idle && p.listed[u.Name] == nil }

// state is the state of a site that is listed; empty for others.
func (p *planner) state(u *Site) v1.RolloutSiteState {
	if of := p.listed[u.Name]; of != nil {
		return of.State
	}
	return ""
}

// room reports whether the status can list one more site.
func (p *planner) room() bool { return len(p.listed) < mostListed }

// enlist lists a site. from is the revision that it had before.
func (p *planner) enlist(u *Site, state v1.RolloutSiteState, from string) *v1.RolloutSite {
	of := &v1.RolloutSite{Name: u.Name, State: state, From: from, Since: p.second()}
	p.listed[u.Name] = of
	return of
}

// absent reports whether a wave does not wait for a site.
func (p *planner) absent(u *Site) bool {
	return u.Held || u.Idle || (u.Silent && p.Rollout.Unreachable != v1.UnreachableWait)
}

// keep gives every site the revision that it has, and one that there is not the current one.
func (p *planner) keep() {
	for i := range p.Sites {
		site := &p.Sites[i]
		switch {
		case site.Held:
		case !site.Exists && p.plan.Current != "" && !p.Gone:
			p.plan.Revisions[site.Name] = p.plan.Current
		case p.state(site) == v1.RolloutSiteReturning && p.listed[site.Name].From != "":
			p.plan.Revisions[site.Name] = p.listed[site.Name].From
		case site.Revision != "":
			p.plan.Revisions[site.Name] = site.Revision
		}
	}
}

// findOutage sees whether so many sites fell silent that this tells nothing of the change.
func (p *planner) findOutage() {
	var times []time.Time
	for _, site := range p.Sites {
		accepted := p.status.OutageAccepted != nil && !site.SilentSince.After(p.status.OutageAccepted.Time)
		if site.Silent && !accepted && !site.SilentSince.Before(p.status.StartTime.Time) {
			times = append(times, site.SilentSince)
		}
	}
	slices.SortFunc(times, time.Time.Compare)
	at, heard := time.Time{}, int(p.status.Heard)
	if 2*len(times) > heard {
		at = times[len(times)-1]
	}
	for first, last := 0, 0; last < len(times); last++ {
		for times[last].Sub(times[first]) > outageWindow {
			first++
		}
		if n := last - first + 1; n >= outageLeast && outageShare*n > heard {
			at = times[last]
		}
	}
	if at.IsZero() {
		if p.before == v1.RolloutOutage {
			p.status.HaltTime = nil
		}
		return
	}
	if p.status.HaltTime != nil && p.before == v1.RolloutOutage && p.resumed() {
		// Everything that is silent now is accepted, so that the next plan finds no outage.
		p.status.OutageAccepted, p.status.HaltTime = &metav1.Time{Time: at.Add(time.Second)}, nil
		return
	}
	p.outage, p.still = true, true
	if p.status.Phase == v1.RolloutProgressing && !p.back() {
		if p.status.HaltTime == nil || p.status.HaltTime.Time.Before(at.Truncate(time.Second)) {
			p.status.HaltTime = p.stamp()
		}
		p.status.Phase = v1.RolloutOutage
		p.status.Message = fmt.Sprintf("%d of the %d sites that were heard when it began are silent; nothing begins "+
			"until fewer are, or somebody resumes it", len(times), heard)
	}
}

// resumed reports whether somebody has resumed what began at HaltTime.
func (p *planner) resumed() bool {
	return p.status.HaltTime != nil && p.Resumed == p.status.HaltTime.UTC().Format(time.RFC3339)
}

// stamp is a new HaltTime, with another name than the one that somebody has resumed.
func (p *planner) stamp() *metav1.Time {
	at := p.Now.Truncate(time.Second)
	last := p.status.HaltTime
	for p.Resumed == at.UTC().Format(time.RFC3339) || (last != nil && !at.After(last.Time)) {
		at = at.Add(time.Second)
	}
	return &metav1.Time{Time: at}
}

// failing returns the sites that have failed with the revision, and that nobody has accepted: those that are listed as
// failed, and proven ones that are broken now.
func (p *planner) failing() []*Site {
	var all []*Site
	for i := range p.Sites {
		site := &p.Sites[i]
		broken := site.Broken != "" && site.Tried == p.Revision && !site.Silent && !p.outage
		switch {
		case site.Held, site.Idle:
		case p.state(site) == v1.RolloutSiteFailed, p.listed[site.Name] == nil && broken:
			all = append(all, site)
		}
	}
	return all
}

// judge sees whether the rollout has to halt, or may go on.
func (p *planner) judge() {
	if p.back() { // it passes no gate
		p.status.HaltTime = nil
		p.status.Phase = v1.RolloutProgressing
		return
	}
	failing := p.failing()
	if p.resumed() && p.status.Phase != v1.RolloutOutage {
		failing = p.resume(failing)
	}
	allowed := Share(p.Rollout.MaxFailures, "0%", len(p.Sites))
	text := fmt.Sprintf("%d failed, %d allowed: %s", len(failing), allowed, p.describe(failing))
	switch p.status.Phase {
	case v1.RolloutHalted, v1.RolloutRollingBack, v1.RolloutRolledBack:
		p.status.Wave = p.Status.Wave
		p.status.Message, _, _ = strings.Cut(p.Status.Message, goingBack)
		fresh := slices.ContainsFunc(failing, func(u *Site) bool { return p.written[u.Name] != v1.RolloutSiteFailed })
		if fresh { // whoever resumes it has to know of these
			p.status.HaltTime, p.status.Message = p.stamp(), text
		}
	case v1.RolloutComplete:
		if len(failing) <= allowed {
			p.status.HaltTime = nil
			return
		}
		p.still = true
		if p.status.HaltTime == nil {
			p.status.HaltTime = p.stamp()
		}
		p.status.Message = "complete; sites that were deferred do not get the change now: " + text
	default:
		if len(failing) > allowed {
			p.halt(text)
		}
	}
	p.note(failing)
}

// note lists proven sites that are broken now as failed, once the rollout has halted: resuming it accepts them by name.
func (p *planner) note(failing []*Site) {
	for _, site := range failing {
		if p.listed[site.Name] == nil && p.status.HaltTime != nil && p.room() {
			p.enlist(site, v1.RolloutSiteFailed, "").Message = site.Broken
			p.status.Proven = max(p.status.Proven-1, 0) // so that it is counted once when it has proven it again
		}
	}
}

// resume accepts the sites that the written status calls failed, and lets the rollout go on. It returns those that have
// failed since, which nobody has seen. After a rollback it is a new attempt.
func (p *planner) resume(failing []*Site) (unseen []*Site) {
	if p.rolling() {
		p.attempt()
		for i := range p.states {
			p.states[i].State = v1.WavePending
		}
		p.before = v1.RolloutProgressing
		for name, site := range p.listed {
			if site.State != v1.RolloutSiteFailed && site.State != v1.RolloutSiteAccepted {
				delete(p.listed, name)
			}
		}
		p.list()
	}
	for _, site := range failing {
		of := p.listed[site.Name]
		switch {
		case p.written[site.Name] != v1.RolloutSiteFailed && len(p.Status.Sites) < mostListed:
			unseen = append(unseen, site)
		case of == nil:
			p.enlist(site, v1.RolloutSiteAccepted, "").Message = site.Broken
		default:
			of.State = v1.RolloutSiteAccepted
		}
	}
	p.status.HaltTime = nil
	if p.status.Phase != v1.RolloutComplete {
		p.status.Phase = v1.RolloutProgressing
	}
	if p.before == v1.RolloutProgressing { // a new attempt
		clear(p.written)
	}
	return unseen
}

// wait tells what the rollout waits for.
func (p *planner) wait(phase v1.RolloutPhase, wave int, message string) {
	if p.status.Phase == v1.RolloutComplete {
		return
	}
	p.status.Phase, p.status.Wave, p.status.Message = phase, p.name(min(wave, len(p.waves)-1)), message
}

// halt ends the rollout until someone does something.
func (p *planner) halt(why string) {
	p.wait(v1.RolloutHalted, p.current(), why)
	if p.Rollout.OnFailure == v1.OnFailureRollback && !p.Gone && p.plan.Current != "" && p.plan.Current != p.Revision {
		p.status.Phase = v1.RolloutRollingBack
	}
	p.status.HaltTime = p.stamp()
}

// current is the index of the first wave that is not done.
func (p *planner) current() int {
	wave := slices.IndexFunc(p.states, func(s v1.WaveStatus) bool { return s.State != v1.WaveDone })
	if wave < 0 {
		return len(p.waves)
	}
	return wave
}

// advance starts sites of the waves that have begun, and begins the next wave where one is done.
func (p *planner) advance() {
	if p.status.Unlisted > 0 {
		p.wait(v1.RolloutProgressing, p.current(), fmt.Sprintf(
			"%d sites have the revision and are not known to be proven; nothing begins before they are",
			p.status.Unlisted))
		return
	}
	for wave := range p.waves {
		p.start(wave)
		if p.states[wave].State == v1.WaveDone {
			continue
		}
		if p.outage {
			p.status.Wave = p.name(wave)
			return
		}
		if !p.finish(wave) {
			return
		}
		p.states[wave].State = v1.WaveDone
	}
	p.complete()
}

func (p *planner) complete() {
	p.plan.Current = p.Revision
	p.status.Phase = v1.RolloutComplete
	for i := range p.states {
		p.states[i].State = v1.WaveDone
	}
}

// start gives the revision to as many sites of a wave as may be unproven, in the order of their names.
func (p *planner) start(wave int) {
	places, done := p.limit(wave), p.states[wave].State == v1.WaveDone
	silent := p.silent(wave)
	for _, site := range p.waves[wave] {
		switch state := p.state(site); {
		case state == "", state == v1.RolloutSiteAccepted, state == v1.RolloutSiteFailed && (done || !p.has(site)):
		case done && state == v1.RolloutSiteSuspect && silent > 0: // it must not keep those waiting that return
			silent--
		default:
			places--
		}
	}
	for _, site := range p.waves[wave] {
		state := p.state(site)
		switch {
		case p.has(site), site.Held, site.Silent, p.still:
		case !site.Exists && p.plan.Current == p.Revision: // it is made of what runs everywhere: nothing is to prove
		case site.Idle:
			p.plan.Revisions[site.Name] = p.Revision
		case state != "":
			if _, written := p.written[site.Name]; written && state != v1.RolloutSiteReturning {
				p.plan.Revisions[site.Name] = p.Revision
			}
		case places > 0 && p.room():
			places--
			p.enlist(site, v1.RolloutSitePending, site.Revision)
			p.again(p.Now)
		}
	}
}

// muster is what became of the sites of a wave.
type muster struct {
	// holding are those for which the wave waits.
	holding, failed, suspects []*Site
	proven                    int
	// moving is set if some of holding get there, or fail, by themselves, and soaking if all of them only soak.
	moving, soaking bool
}

func (p *planner) muster(wave int) muster {
	m := muster{soaking: true}
	for _, site := range p.waves[wave] {
		state := p.state(site)
		switch {
		case site.Idle && !site.Held && !site.Silent && !p.has(site):
			m.holding, m.moving = append(m.holding, site), true
		case p.proven(site):
			m.proven++
		case state == v1.RolloutSiteSuspect:
			m.suspects = append(m.suspects, site)
		case state == v1.RolloutSiteAccepted:
		case state == v1.RolloutSiteFailed:
			m.failed = append(m.failed, site)
		case !p.absent(site):
			m.holding, m.moving = append(m.holding, site), m.moving || state != ""
			m.soaking = m.soaking && (state == v1.RolloutSiteSoaking || state == v1.RolloutSiteChecking)
		}
	}
	return m
}

// finish reports whether a wave is done: a site has proven the revision, and no site that counts has not.
func (p *planner) finish(wave int) bool {
	m := p.muster(wave)
	stuck := len(m.holding) > 0 && !m.moving
	switch {
	case stuck && len(m.failed) > 0:
		p.halt(fmt.Sprintf("%d failed (%s), and the wave has room for %d that are not proven", len(m.failed),
			names(m.failed), p.limit(wave)))
		return false
	case stuck && len(m.suspects) > 0:
		return p.approved(wave, m.suspects,
			fmt.Sprintf("and the wave has room for %d that are not proven", p.limit(wave)))
	case len(m.holding) > 0:
		state, phase, text := v1.WaveProgressing, v1.RolloutProgressing, "waits for "+p.describe(m.holding)
		if m.soaking {
			state, phase = v1.WaveSoaking, v1.RolloutSoaking
			if !p.soaks.IsZero() {
				text += "; soaks until " + p.soaks.UTC().Format(time.RFC3339)
			}
		}
		p.states[wave].State = state
		p.wait(phase, wave, text)
		return false
	case len(m.suspects) > p.silent(wave):
		return p.approved(wave, m.suspects, fmt.Sprintf("%d allowed", p.silent(wave)))
	}
	if p.needsProof(wave) && m.proven == 0 {
		why := "no site of the wave has proven the change"
		if len(p.waves[wave]) == 0 {
			if p.spec(wave).Sites == nil {
				return true // the sites that no other wave has: there are none
			}
			// A wave that should have sites and has none may be a typing error.
			why = "the wave's sites select none"
		}
		return p.awaited(wave, "unproven", why)
	}
	if p.spec(wave).Approval == v1.ApprovalManual {
		return p.awaited(wave, "", "the wave asks for an approval")
	}
	return true
}

// needsProof reports whether a site of this wave, or of a later one, still has to get the revision, or has been silent
// since it got it.
func (p *planner) needsProof(wave int) bool {
	for ; wave < len(p.waves); wave++ {
		for _, site := range p.waves[wave] {
			away := p.state(site) == v1.RolloutSiteReturning || p.state(site) == v1.RolloutSiteSuspect
			if !site.Idle && (away || !p.has(site)) {
				return true
			}
		}
	}
	return false
}

// approved has a person approve of suspects, which are accepted then. The wave is done when no more are left.
func (p *planner) approved(wave int, suspects []*Site, but string) bool {
	if p.awaited(wave, "silent-"+digest(suspects), fmt.Sprintf("%d sites fell silent with the change, %s: %s",
		len(suspects), but, names(suspects))) {
		for _, site := range suspects {
			p.listed[site.Name].State = v1.RolloutSiteAccepted
		}
		p.again(p.Now)
	}
	return false
}

// awaited reports whether a person has approved of a wave. An approval of kind is about what why says, and about no
// other attempt.
func (p *planner) awaited(wave int, kind, why string) bool {
	awaits := Approval(p.Revision, p.name(wave), p.status.StartTime, kind)
	if Approves(p.Approved, awaits) {
		p.again(p.Now)
		return true
	}
	p.states[wave].State = v1.WaveAwaitingApproval
	p.status.Awaits = awaits
	p.wait(v1.RolloutAwaitingApproval, wave,
		fmt.Sprintf("%s; it waits for the annotation %s=%s", why, v1.AnnotationApproved, awaits))
	return false
}

// restWave stands in approvals for the sites that no wave names.
const restWave = "_"

// Approval returns the value of the annotation superedge.io/approved that approves of a wave in one attempt. kind is
// what the wave lacks: empty for nothing but the approval.
func Approval(revision, wave string, start *metav1.Time, kind string) string {
	parts := []string{revision, cmp.Or(wave, restWave), start.UTC().Format(time.RFC3339)}
	if kind != "" {
		parts = append(parts, kind)
	}
	return strings.Join(parts, "/")
}

// Approves reports whether the value of the annotation, which may list several approvals, has one.
func Approves(value, approval string) bool {
	return slices.ContainsFunc(strings.Split(value, ","), func(one string) bool {
		return strings.TrimSpace(one) == approval
	})
}

// digest names sites in an approval.
func digest(sites []*Site) string {
	sum := sha256.New()
	for _, site := range sites {
		sum.Write([]byte(site.Name + "\n"))
	}
	return hex.EncodeToString(sum.Sum(nil)[:4])
}

// rolling reports whether sites go back after a failure.
func (p *planner) rolling() bool {
	return p.status.Phase == v1.RolloutRollingBack || p.status.Phase == v1.RolloutRolledBack
}

// goingBack is between why a rollout has halted, and what it waits for.
const goingBack = "; going back: "

// rollBack gives the sites that have the revision the one that ran everywhere before. That they go back was written
// first: otherwise a controller that restarts, and does not see a failure any more, would give them the change
// again.
func (p *planner) rollBack() {
	if p.before != v1.RolloutRollingBack && p.before != v1.RolloutRolledBack {
		p.again(p.Now)
		return
	}
	waiting := p.goBack()
	p.status.Phase, p.status.Wave = v1.RolloutRolledBack, ""
	if len(waiting) > 0 {
		p.status.Phase = v1.RolloutRollingBack
		p.status.Message += goingBack + "waits for " + p.describe(waiting)
	}
}

// returnAll gives all sites what ran everywhere before.
func (p *planner) returnAll() {
	if waiting := p.goBack(); len(waiting) > 0 {
		p.wait(v1.RolloutProgressing, p.current(), "going back: waits for "+p.describe(waiting))
		return
	}
	p.complete()
}

// goBack gives sites the current revision, the last one of each wave first: after a failure those that have the change,
// and else all. It returns those of them that do not run it yet. Sites that are not ready, or silent, get it at once:
// they lose nothing.
func (p *planner) goBack() (waiting []*Site) {
	goes := func(u *Site) bool { return u.Revision != p.plan.Current && (p.has(u) || !p.rolling()) }
	for wave := range p.waves {
		places := p.limit(wave)
		for _, site := range p.waves[wave] {
			switch {
			case !site.Exists, site.Held, site.Silent, site.Idle && !goes(site):
			case goes(site):
				waiting = append(waiting, site)
			case !site.Ready && (!p.rolling() || p.listed[site.Name] != nil): // it has gone back
				waiting = append(waiting, site)
				if site.Broken == "" { // it must not keep the others
					places--
				}
			}
		}
		for _, site := range slices.Backward(p.waves[wave]) {
			if !site.Exists || site.Held || !goes(site) {
				continue
			}
			refused := site.Broken != "" && site.Tried == p.plan.Current // it stays as it is
			if site.Ready && !site.Silent && !site.Idle && !refused {
				if places <= 0 {
					continue
				}
				places--
			}
			p.plan.Revisions[site.Name] = p.plan.Current
			if p.rolling() && p.listed[site.Name] == nil && p.room() {
				p.enlist(site, v1.RolloutSiteReturning, p.plan.Current)
			}
		}
	}
	return waiting
}

// again has the plan made again at a time.
func (p *planner) again(at time.Time) {
	if p.plan.Again.IsZero() || at.Before(p.plan.Again) {
		p.plan.Again = at
	}
}

// second is the time as a status has it.
func (p *planner) second() *metav1.Time { return &metav1.Time{Time: p.Now.Truncate(time.Second)} }

// count fills in the counts, and lists the sites.
func (p *planner) count() {
	s := p.status
	s.Updated, s.Ready, s.Failed, s.Suspects, s.Deferred, s.Waves, s.Sites = 0, 0, 0, 0, 0, nil, nil
	for i := range p.states {
		state := p.states[i]
		if i == len(p.Rollout.Waves) && len(p.waves[i]) == 0 {
			continue // no site is without a wave
		}
		for _, site := range p.waves[i] {
			state.Sites++
			if p.has(site) {
				state.Updated++
				if site.Ready {
					state.Ready++
				}
			}
			switch of := p.state(site); {
			case of == v1.RolloutSiteFailed:
				state.Failed++
			case of == v1.RolloutSiteSuspect:
				state.Suspects++
			case p.proven(site):
				state.Proven++
			case !p.has(site) && of == "" && (site.Held || site.Silent):
				state.Deferred++
			}
		}
		s.Updated, s.Ready, s.Failed = s.Updated+state.Updated, s.Ready+state.Ready, s.Failed+state.Failed
		s.Suspects, s.Deferred = s.Suspects+state.Suspects, s.Deferred+state.Deferred
		s.Waves = append(s.Waves, state)
	}
	for _, site := range p.Sites { // in order
		if of := p.listed[site.Name]; of != nil {
			s.Sites = append(s.Sites, *of)
		}
	}
	s.Listed = int32(len(s.Sites)) //nolint:gosec // at most mostListed
}

// describe names some sites, each with what is wrong with it.
func (p *planner) describe(sites []*Site) string {
	parts := make([]string, 0, namedSites+1)
	for i, site := range sites {
		if i == namedSites {
			parts = append(parts, fmt.Sprintf("and %d more", len(sites)-i))
			break
		}
		why := site.Broken
		if of := p.listed[site.Name]; of != nil {
			why = cmp.Or(of.Message, why)
		}
		parts = append(parts, strings.TrimSuffix(site.Name+": "+why, ": "))
	}
	return strings.Join(parts, "; ")
}

func names(sites []*Site) string {
	all := make([]string, len(sites))
	for i, site := range sites {
		all[i] = site.Name
	}
	return enumerate.First(all, namedSites)
}
