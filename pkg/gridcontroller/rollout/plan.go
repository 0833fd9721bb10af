package rollout

import (
	"cmp"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
)

const (
	// defaultMaxUnavailable is spec.rollout.waves[].maxUnavailable, defaultMaxSilent is maxSilent.
	defaultMaxUnavailable = "25%"
	defaultMaxSilent      = "10%"
	// mostListed is the largest number of sites that a status lists.
	mostListed = 500
	// namedSites is how many sites a message names.
	namedSites = 3
)

// Site is the state of a site.
type Site struct {
	Name string
	// Wave is the index of its wave: len(Rollout.Waves) for a site that no wave names.
	Wave int
	// Exists: it has a workload. Held: the workload must not be changed. UID and Revision are the workload's; Revision
	// is empty if it is not known. Drifted: somebody has changed the workload since it was applied. Uncompared: that is
	// not known yet. Withheld: the workload is left alone until a person approves of a loss that its change means.
	Exists, Held, Drifted, Uncompared, Withheld bool
	UID, Revision                               string
	// Idle: a person wants no pods of the workload. It proves nothing, and the rollout does not wait for it. Ready: all
	// its pods run its revision, and are available. Progress is when it last made progress towards that.
	Idle, Ready bool
	Progress    time.Time
	// Waits describes pods that wait until a person deletes them, or changes a partition; empty if none do.
	Waits string
	// Trouble is why the workload makes no progress, or could not be applied. Broken is the same once that has lasted
	// for the whole deadline, with the revision Tried.
	Trouble, Broken, Tried string
	// Silent: the control plane has lost contact with all its nodes. Partly: with some, the last one at SilentSince.
	// PerNode: the workload has a pod on each node that its template fits.
	Silent, Partly, PerNode bool
	SilentSince             time.Time
	// Pods is the state of the pods (see Plan.Ask), and Check the result of the site's check (see Plan.Checks). Both
	// are nil if not known. Unread: the pods could not be read.
	Pods   *Pods
	Unread bool
	Check  *CheckResult
}

// CheckResult is the result of a check's Job. If it has neither Passed nor Failed, it Runs, or waits and says why.
type CheckResult struct {
	Passed, Failed, Runs bool
	Message              string
}

// Question asks for the pods of a site. An answer from before After is of no use.
type Question struct {
	Name  string
	After time.Time
}

// Input is everything that a plan depends on.
type Input struct {
	Rollout *v1.Rollout
	// Revision is that of the grid's spec, Deadline its progressDeadlineSeconds. Sites are in the order of their names.
	Revision string
	Deadline time.Duration
	Sites    []Site
	// Current, Update and Status are in the status that was last written. Gone: only the name of Current is left.
	Current, Update string
	Gone            bool
	Status          *v1.RolloutStatus
	// Approved and Resumed are annotations of the grid. AtOnce is the revision that all sites get without waves.
	Approved, Resumed, AtOnce string
	// Now is the time, and Leap how far the clock was set since this process began.
	Now  time.Time
	Leap time.Duration
	// Followed is Plan.Followed of this process's last plan; nil if it has made none.
	Followed []Heartbeat
	// Most is the largest number of sites that the status lists; zero for 500.
	Most int
}

// Heartbeat is a Status.HeardTime, and what this process knows of it. Gap is for how long no controller followed the
// rollout after that time. Leap is what Input.Leap was when the process found that out, or made that status.
type Heartbeat struct {
	*metav1.Time
	Gap, Leap time.Duration
}

// Plan is what the controller has to do and to write. Sites get a new revision once the written status lists them.
type Plan struct {
	// Revisions are those that sites should have. Others are left alone. Current is the grid's new currentRevision.
	Revisions map[string]string
	Current   string
	Status    *v1.RolloutStatus
	// Ask lists the sites whose pods must be known for the next step. The caller reads them, and makes a new plan.
	// Checks are the sites whose check is to run.
	Ask    []Question
	Checks []string
	// Again is when to make the next plan if nothing changes; zero for never.
	Again time.Time
	// Followed are those of the written and of this plan's status. Gap is for how long nobody followed the rollout
	// before.
	Followed []Heartbeat
	Gap      time.Duration
}

// planner makes one plan.
type planner struct {
	Input

	plan   Plan
	status *v1.RolloutStatus
	all    []*Site
	// waves are the sites by wave, and specs what the grid says of the waves. The last entries are of the sites that no
	// wave names. states has the state that the status gives to a wave; empty while it is pending. done: all gates have
	// passed, and no site remained.
	waves  [][]*Site
	specs  []v1.Wave
	states []v1.WaveState
	done   bool
	// proofs and accepted are status.provenSites and acceptedSites.
	proofs, accepted marks
	// listed are the sites of status.sites, and written are their states in the written status of this attempt. absent
	// are the names of listed ones that are not among the grid's sites at present.
	listed  map[string]*v1.RolloutSite
	written map[string]v1.RolloutSiteState
	absent  []string
	// outage says that so many sites are silent that no further site starts; empty if they are not. within: at most
	// maxFailures sites have failed. resuming: somebody has just resumed it, and the status must be written first.
	outage           string
	within, resuming bool
	heard            Heartbeat // that of the written status
}

// NewPlan makes a plan.
func NewPlan(in Input) Plan {
	p := &planner{
		Input: in, plan: Plan{Revisions: map[string]string{}, Current: in.Current},
		listed: map[string]*v1.RolloutSite{}, written: map[string]v1.RolloutSiteState{}, within: true,
	}
	p.Most = cmp.Or(p.Most, mostListed)
	for _, u := range in.Sites { // a copy
		p.all = append(p.all, &u)
	}
	p.resumeOrBegin()
	p.findOutage()
	p.enlistUnproven()
	for _, u := range p.all {
		p.followSite(u)
	}
	p.decideHalt()
	p.keepRevisions()
	switch {
	case p.haltedByFailures():
		p.setPhase(v1.RolloutHalted, p.currentWave(), p.status.Message)
	case p.Rollout.Paused && (!p.done || len(p.remaining()) > 0):
		p.setPhase(v1.RolloutPaused, p.currentWave(), "paused")
	case p.status.GoesBack != "":
		p.goBack()
	case p.outage != "" && !p.done:
		p.setPhase(v1.RolloutOutage, p.currentWave(), p.outage)
	default:
		p.advance()
	}
	p.setStatus()
	p.stampHeartbeat()
	return p.plan
}

// ScaledCount returns a number of sites: value, or the default missing. A percentage is of so many sites, rounded down.
func ScaledCount(value *intstr.IntOrString, missing string, of int) int {
	value = intstr.ValueOrDefault(value, intstr.FromString(missing))
	sites, _ := intstr.GetScaledValueFromIntOrPercent(value, of, false) // 0 with an error, which our CRD prevents
	return sites
}

// limit is how many sites of a wave may have the change unproven, maxSilent how many may be suspects at its end.
func (p *planner) limit(wave int) int {
	return max(ScaledCount(p.specs[wave].MaxUnavailable, defaultMaxUnavailable, len(p.waves[wave])), 1)
}

func (p *planner) maxSilent(wave int) int {
	least := 0
	if p.specs[wave].MaxSilent == nil {
		least = 1
	}
	return max(ScaledCount(p.specs[wave].MaxSilent, defaultMaxSilent, len(p.waves[wave])), least)
}

// hasRevision reports whether the revision was applied to a site's workload.
func (p *planner) hasRevision(u *Site) bool { return u.Exists && u.Revision == p.Revision }

// proven reports whether a site has proven the revision, with this workload, or the revision runs everywhere.
func (p *planner) proven(u *Site) bool {
	return p.hasRevision(u) && !u.Drifted && p.listed[u.Name] == nil && (p.proofs.has(u) || p.runsEverywhere())
}

func (p *planner) runsEverywhere() bool { return p.done && p.plan.Current == p.Revision }

// state is the state of a site that is listed; empty for others.
func (p *planner) state(u *Site) v1.RolloutSiteState {
	return ptr.Deref(p.listed[u.Name], v1.RolloutSite{}).State
}

// silent reports whether a site is silent, or may be: all its nodes are, or all those with pods that are missing, or
// its pods are not known. Its clocks stand. knownSilent reports whether it is for certain, which can excuse it.
func (p *planner) silent(u *Site) bool {
	return p.knownSilent(u) || (u.Partly && !p.ready(u) && u.Pods == nil)
}

func (p *planner) knownSilent(u *Site) bool {
	return u.Silent || (u.Partly && !p.ready(u) && u.Pods != nil && u.Pods.Missing > 0 && len(u.Pods.Unready) == 0)
}

// ready reports whether all pods on reachable nodes of a site run its revision, and not an edit, and are available.
func (p *planner) ready(u *Site) bool {
	return !u.Drifted && (u.Ready || (u.Partly && u.PerNode && u.Pods != nil && u.Pods.readyWhereHeard()))
}

// leftOut reports whether nothing is expected of a site: it is held, wants no pods, or was accepted. An autoscaler may
// want no pods at a site that fell silent with the change, because it hears nothing of it.
func (p *planner) leftOut(u *Site) bool {
	idle := u.Idle && u.Exists && (p.listed[u.Name] == nil || !p.silent(u))
	return u.Held || idle || p.accepted.named(u.Name)
}

// excused reports whether the rollout does not wait for a site. Suspects are judged by the wave, see tallyWave.
func (p *planner) excused(u *Site) bool {
	of := p.listed[u.Name]
	switch {
	case p.leftOut(u):
		return true
	case of == nil:
		return p.knownSilent(u) && p.Rollout.Unreachable != v1.UnreachableWait
	case of.State == v1.RolloutSiteFailed: // what follows from a failure must not be done before it is written
		return p.within && p.written[u.Name] == v1.RolloutSiteFailed
	}
	return p.knownSilent(u) && of.SilenceApproved
}

// hasRoom reports whether the status can list one more site.
func (p *planner) hasRoom() bool { return len(p.listed) < p.Most }

// enlist lists a site. from is the revision that it had before.
func (p *planner) enlist(u *Site, state v1.RolloutSiteState, from string) *v1.RolloutSite {
	of := &v1.RolloutSite{Name: u.Name, State: state, From: from, Since: p.timestamp()}
	if u.Exists {
		of.Workload = hashOf(u.UID, uidMark)
	}
	p.listed[u.Name] = of
	return of
}

// keepRevisions leaves every site its revision. A site without a workload gets the current one, or one that it proved.
func (p *planner) keepRevisions() {
	for _, site := range p.all {
		of := p.listed[site.Name]
		switch {
		case site.Held:
		case !site.Exists && p.recreates(site):
			if _, written := p.written[site.Name]; written {
				p.plan.Revisions[site.Name] = p.Revision
			} else if of == nil {
				p.enlist(site, v1.RolloutSitePending, p.plan.Current)
				p.requeueAt(p.Now)
			}
		case !site.Exists && p.plan.Current != "" && !p.Gone:
			p.plan.Revisions[site.Name] = p.plan.Current
		case of != nil && of.State == v1.RolloutSiteReturning:
			p.plan.Revisions[site.Name] = of.From
		case site.Revision != "":
			p.plan.Revisions[site.Name] = site.Revision
		}
	}
}

// recreates reports whether a site that has lost its workload gets the new revision again.
func (p *planner) recreates(u *Site) bool {
	return p.proofs.named(u.Name) && p.Revision != p.plan.Current && !p.haltedByFailures() && p.status.GoesBack == "" &&
		p.state(u) != v1.RolloutSiteFailed && (p.listed[u.Name] != nil || p.hasRoom())
}

// requeueAt schedules the next plan at a time, if none is due earlier.
func (p *planner) requeueAt(at time.Time) {
	if p.plan.Again.IsZero() || at.Before(p.plan.Again) {
		p.plan.Again = at
	}
}

// timestamp is the present time, with the precision of a status.
func (p *planner) timestamp() *metav1.Time { return &metav1.Time{Time: p.Now.Truncate(time.Second)} }

// currentWave is the index of the first wave whose gate has not passed.
func (p *planner) currentWave() int {
	for wave := range p.waves {
		if !p.passed(wave) {
			return wave
		}
	}
	return len(p.waves) - 1
}
