package rollout

import (
	"cmp"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

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
)

// Site is what is known of a site.
type Site struct {
	Name string
	// Wave is the index of its wave: len(Rollout.Waves) for a site that no wave names.
	Wave int
	// Exists: it has a workload, which nobody is to change if it is Held. UID is the workload's, and Revision too; that
	// is empty if it is not known. Drifted: somebody has changed the workload since it was applied.
	Exists, Held, Drifted bool
	UID, Revision         string
	// Idle: the workload is to have no pods. It proves nothing, and nobody waits for it. Ready: all its pods run its
	// revision, and are available. Progress is when it last came closer to that.
	Idle, Ready bool
	Progress    time.Time
	// Waits says which pods wait until a person deletes them, or changes a partition; empty if none do.
	Waits string
	// Trouble says why the workload makes no progress, or could not be made so. Broken says so if that has lasted for
	// the whole deadline, with the revision Tried.
	Trouble, Broken, Tried string
	// Silent: the control plane has lost contact with all its nodes, the last one at SilentSince. Partly: with some.
	Silent, Partly bool
	SilentSince    time.Time
	// PerNode: the workload has a pod on each node, Wanted in all.
	PerNode bool
	Wanted  int
	// Pods is what the pods tell, see Plan.Ask. Check is what has come of the site's check, see Plan.Checks. They are
	// nil if that is not known.
	Pods  *Pods
	Check *CheckResult
}

// CheckResult is how the Job of a check has ended, or why it cannot run. Neither Passed nor Failed: it goes on, if it
// Runs, or waits.
type CheckResult struct {
	Passed, Failed, Runs bool
	Message              string
}

// Question asks for the pods of a site: those that came with the change at Since count as such. An answer from before
// After is of no use.
type Question struct {
	Name         string
	Since, After time.Time
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
	// Most is the most sites that the status lists; zero for 500.
	Most int
}

// Plan is what is to be done, and told. Sites get a new revision only after the status was written that lists them: a
// controller that restarts would otherwise take them for proven.
type Plan struct {
	// Revisions are those that the sites should have. A site that is not in it is to be left as it is. Current is the
	// grid's new currentRevision.
	Revisions map[string]string
	Current   string
	Status    *v1.RolloutStatus
	// Ask are the sites whose pods decide what comes next. They are to be asked, and the plan to be made again.
	Ask []Question
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
	// waves are the sites, by wave; the last one are those that no wave names. passed says whose gate has passed,
	// states what is told of each. done: all gates have passed, and the revision was proven wherever it counted.
	waves  [][]*Site
	passed []bool
	states []v1.WaveState
	done   bool
	// proofs and accepted are status.provenSites and acceptedSites.
	proofs, accepted marks
	// listed are the sites of status.sites, written their states in the written status of this attempt. absent are
	// those of them that are no sites at present.
	listed  map[string]*v1.RolloutSite
	written map[string]v1.RolloutSiteState
	absent  map[string]*v1.RolloutSite
	// unlisted is how many more sites have the revision, and are not proven.
	unlisted int
	// soaks is when the last of the sites that soak has done so; zero if none do.
	soaks time.Time
	// outage: so many sites are silent that no other one begins. still: none begins, for failures after completion.
	// resuming: somebody has just resumed it, which is to be written first.
	outage, still, resuming bool
	silentSites             int
	// within: no more sites have failed than may.
	within bool
}

// New makes a plan.
func New(in Input) Plan {
	p := &planner{
		Input: in, plan: Plan{Revisions: map[string]string{}, Current: in.Current},
		listed: map[string]*v1.RolloutSite{}, written: map[string]v1.RolloutSiteState{},
		absent: map[string]*v1.RolloutSite{}, within: true,
	}
	p.Most = cmp.Or(p.Most, mostListed)
	p.begin()
	p.findOutage()
	p.list()
	for i := range p.Sites {
		p.follow(&p.Sites[i])
	}
	p.judge()
	p.keep()
	switch {
	case p.halted():
		p.say(v1.RolloutHalted, p.current(), p.status.Message)
	case p.Rollout.Paused && !p.isComplete():
		p.say(v1.RolloutPaused, p.current(), "paused")
	case p.status.GoesBack != "":
		p.goBack()
	case p.outage && !p.done:
		p.say(v1.RolloutOutage, p.current(), outageText(p.silentSites, int(p.status.ReachableAtStart)))
	default:
		p.advance()
	}
	p.tell()
	return p.plan
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

// spec is what the grid says of a wave.
func (p *planner) spec(wave int) v1.Wave {
	if wave < len(p.Rollout.Waves) {
		return p.Rollout.Waves[wave]
	}
	return v1.Wave{}
}

func (p *planner) name(wave int) string { return p.spec(wave).Name }

// limit is how many sites of a wave may have the change and not be proven, maxSilent how many of them may be suspects
// when the wave is done.
func (p *planner) limit(wave int) int {
	return max(Share(p.spec(wave).MaxUnavailable, defaultMaxUnavailable, len(p.waves[wave])), 1)
}

func (p *planner) maxSilent(wave int) int {
	least := 0
	if p.spec(wave).MaxSilent == nil {
		least = 1
	}
	return max(Share(p.spec(wave).MaxSilent, defaultMaxSilent, len(p.waves[wave])), least)
}

// has reports whether a site's workload is meant to be the revision.
func (p *planner) has(u *Site) bool { return u.Exists && u.Revision == p.Revision }

// proven reports whether a site has proven the revision, with this workload. What runs everywhere is proven where it is
// not in flight.
func (p *planner) proven(u *Site) bool {
	return p.has(u) && !u.Drifted && p.listed[u.Name] == nil && (p.proofs.has(u) || p.runsEverywhere())
}

func (p *planner) runsEverywhere() bool { return p.done && p.plan.Current == p.Revision }

// state is the state of a site that is listed; empty for others.
func (p *planner) state(u *Site) v1.RolloutSiteState {
	if of := p.listed[u.Name]; of != nil {
		return of.State
	}
	return ""
}

// silent reports whether nothing is heard of a site: all its nodes are silent, or those that its missing pods are on.
func (p *planner) silent(u *Site) bool {
	return u.Silent || (u.Partly && !p.ready(u) && (u.Pods == nil || u.Pods.missingOnSilent()))
}

// ready reports whether all pods of a site that are heard run its revision, and are available.
func (p *planner) ready(u *Site) bool {
	return u.Ready || (u.Partly && u.PerNode && u.Pods != nil && u.Pods.readyWhereHeard(u.Wanted))
}

// excused reports whether nobody waits for a site. Suspects are judged by the wave, see muster.
func (p *planner) excused(u *Site) bool {
	of := p.listed[u.Name]
	switch {
	case u.Held, u.Idle && u.Exists, p.accepted.named(u.Name):
		return true
	case of == nil:
		return p.silent(u) && p.Rollout.Unreachable != v1.UnreachableWait
	case of.State == v1.RolloutSiteFailed:
		return p.within
	}
	return p.silent(u) && of.SilenceApproved
}

// takesPlace reports whether a site that is listed takes a place of its wave.
func (p *planner) takesPlace(u *Site) bool {
	return p.listed[u.Name] != nil && !p.excused(u)
}

// room reports whether the status can list one more site.
func (p *planner) room() bool {
	if len(p.listed) < p.Most && len(p.listed)+len(p.absent) >= p.Most {
		clear(p.absent) // they are listed again if they return
	}
	return len(p.listed) < p.Most
}

// enlist lists a site. from is the revision that it had before.
func (p *planner) enlist(u *Site, state v1.RolloutSiteState, from string) *v1.RolloutSite {
	of := &v1.RolloutSite{Name: u.Name, State: state, From: from, Since: p.second()}
	if u.Exists {
		of.Workload = hashOf(u.UID, uidMark)
	}
	p.listed[u.Name] = of
	return of
}

// keep gives every site the revision that it has, and one that has no workload the current one; or the revision, if it
// had proven it in this attempt.
func (p *planner) keep() {
	for i := range p.Sites {
		site := &p.Sites[i]
		of := p.listed[site.Name]
		switch {
		case site.Held:
		case !site.Exists && p.recreates(site):
			if _, written := p.written[site.Name]; written {
				p.plan.Revisions[site.Name] = p.Revision
			} else if of == nil {
				p.enlist(site, v1.RolloutSitePending, p.plan.Current)
				p.again(p.Now)
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

// recreates reports whether a site that has lost its workload gets the revision again.
func (p *planner) recreates(u *Site) bool {
	return p.proofs.named(u.Name) && p.Revision != p.plan.Current && !p.halted() && p.status.GoesBack == "" &&
		p.state(u) != v1.RolloutSiteFailed && (p.listed[u.Name] != nil || p.room())
}

// again has the plan made again at a time.
func (p *planner) again(at time.Time) {
	if p.plan.Again.IsZero() || at.Before(p.plan.Again) {
		p.plan.Again = at
	}
}

// second is the time as a status has it.
func (p *planner) second() *metav1.Time { return &metav1.Time{Time: p.Now.Truncate(time.Second)} }

// nextSecond is the same, rounded up.
func (p *planner) nextSecond() time.Time { return p.Now.Add(time.Second - 1).Truncate(time.Second) }

// current is the index of the first wave whose gate has not passed.
func (p *planner) current() int {
	if wave := slices.Index(p.passed, false); wave >= 0 {
		return wave
	}
	return len(p.passed) - 1
}
