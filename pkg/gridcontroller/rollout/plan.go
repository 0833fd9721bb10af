package rollout

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/enumerate"
	"github.com/application-grid/application-grid/pkg/gridrevision"
)

const (
	// defaultMaxUnavailable is spec.rollout.waves[].maxUnavailable.
	defaultMaxUnavailable = "25%"
	// namedFailures is how many failed units a message names.
	namedFailures = 3
)

// Unit is what is known of a unit.
type Unit struct {
	Name string
	// Wave is the index of its wave: len(Rollout.Waves) for a unit that no wave names.
	Wave int
	// Exists: it has a workload. Revision is that of the workload; empty if it is not known.
	Exists   bool
	Revision string
	// Ready: all pods of the workload are as its revision says.
	Ready bool
	// Failed: the workload makes no progress, or cannot be made so. Tried is the revision for which it failed, and Why
	// the reason.
	Failed bool
	Tried  string
	Why    string
	// Unreachable: the control plane has lost contact with its nodes.
	Unreachable bool
	// Held: nobody is to change the workload.
	Held bool
}

// Input is what a plan follows from.
type Input struct {
	Rollout *v1.Rollout
	// Revision is that of the grid's spec.
	Revision string
	// Units are in order.
	Units []Unit
	// Current, Update and Status are status.currentRevision, updateRevision and rollout, as they were told before.
	Current, Update string
	Status          *v1.RolloutStatus
	// Approved and Resumed are the values of the annotations of the grid. AtOnce is the revision that all units get
	// without waves; empty for none.
	Approved, Resumed, AtOnce string
	Now                       time.Time
}

// Plan is what is to be done, and told.
type Plan struct {
	// Revisions are the revisions that the units should have. A unit that is not in it is to be left as it is.
	Revisions map[string]string
	// Current is the grid's new currentRevision.
	Current string
	Status  *v1.RolloutStatus
	// Again is when to look again if nothing happens; zero for never.
	Again time.Time
}

// planner makes one plan.
type planner struct {
	Input

	plan Plan
	// waves are the units, by wave; the last one are those that no wave names.
	waves [][]Unit
	// states are the states of the waves that the plan goes on from.
	states []v1.WaveStatus
	status *v1.RolloutStatus
}

// New makes a plan.
func New(in Input) Plan {
	p := &planner{Input: in, plan: Plan{Revisions: map[string]string{}, Current: in.Current}}
	p.waves = make([][]Unit, len(in.Rollout.Waves)+1)
	for _, unit := range in.Units {
		p.waves[unit.Wave] = append(p.waves[unit.Wave], unit)
	}
	p.begin()
	p.keep()
	p.judge()
	switch p.status.Phase {
	case v1.RolloutPaused, v1.RolloutHalted:
	case v1.RolloutRollingBack, v1.RolloutRolledBack: // units that return go back too
		if !p.Rollout.Paused {
			p.goBack()
		}
	default:
		if !p.Rollout.Paused {
			p.advance()
		}
	}
	p.count()
	p.plan.Status = p.status
	return p.plan
}

// begin takes up the rollout where it was, or begins a new one.
func (p *planner) begin() {
	p.status = &v1.RolloutStatus{Phase: v1.RolloutProgressing}
	told := map[string]v1.WaveStatus{}
	if p.Status != nil && p.Update == p.Revision {
		p.status = p.Status.DeepCopy()
		for _, wave := range p.status.Waves {
			told[wave.Name] = wave
		}
	}
	if p.status.Phase == v1.RolloutPaused {
		p.status.Phase = v1.RolloutProgressing
	}
	p.states = make([]v1.WaveStatus, len(p.waves))
	for i := range p.waves {
		name := p.name(i)
		before := told[name]
		p.states[i] = v1.WaveStatus{
			Name: name, State: cmp.Or(before.State, v1.WavePending), ReadyTime: before.ReadyTime,
		}
	}
	changes := slices.ContainsFunc(p.Units, func(u Unit) bool { return u.Exists && u.Revision != p.Revision })
	if p.Status == nil && p.plan.Current == "" && !changes {
		// There is nothing yet, or nothing that has to change: the rollout is adopted without one.
		p.plan.Current = p.Revision
		p.status.Phase = v1.RolloutComplete
	}
	if p.status.Phase == v1.RolloutComplete { // whatever the waves are now
		for i := range p.states {
			p.states[i].State = v1.WaveDone
		}
	}
}

// name is the name of a wave.
func (p *planner) name(wave int) string {
	if wave < len(p.Rollout.Waves) {
		return p.Rollout.Waves[wave].Name
	}
	return ""
}

// spec is what the grid says of a wave.
func (p *planner) spec(wave int) v1.Wave {
	if wave < len(p.Rollout.Waves) {
		return p.Rollout.Waves[wave]
	}
	return v1.Wave{}
}

// limit is how many units of a wave may have the change and not be ready.
func (p *planner) limit(wave int) int {
	limit := intstr.FromString(defaultMaxUnavailable)
	if set := p.spec(wave).MaxUnavailable; set != nil {
		limit = *set
	}
	units, err := intstr.GetScaledValueFromIntOrPercent(&limit, len(p.waves[wave]), false)
	if err != nil { // a CRD that checks nothing let it pass
		units = 1
	}
	return max(units, 1)
}

// keep gives every unit the revision that it has, and one that there is not the current one.
func (p *planner) keep() {
	for _, unit := range p.Units {
		switch {
		case unit.Held:
		case !unit.Exists:
			p.plan.Revisions[unit.Name] = cmp.Or(p.plan.Current, p.Revision)
		case unit.Revision != "":
			p.plan.Revisions[unit.Name] = unit.Revision
		}
	}
}

// has reports whether a unit has the revision of the spec.
func (p *planner) has(u Unit) bool { return u.Exists && u.Revision == p.Revision }

// absent reports whether a unit is not to be waited for.
func (p *planner) absent(u Unit) bool {
	return u.Held || (u.Unreachable && p.Rollout.Unreachable != v1.UnreachableWait)
}

// startable reports whether a unit could be given another revision now.
func startable(u Unit) bool { return !u.Held && !u.Unreachable }

// failed reports whether a unit has failed with the revision of the spec.
func (p *planner) failed(u Unit) bool {
	return u.Failed && u.Tried == p.Revision && !p.absent(u) && !u.Unreachable
}

// judge sees whether the rollout has to halt, or may go on.
func (p *planner) judge() {
	var failed []Unit
	for _, unit := range p.Units {
		if p.failed(unit) {
			failed = append(failed, unit)
		}
	}
	if p.status.HaltTime != nil && p.Resumed == p.status.HaltTime.UTC().Format(time.RFC3339) {
		p.status.HaltTime = nil
		p.status.Tolerated = int32(len(failed)) //nolint:gosec // no more than there are nodes
		p.status.Phase = v1.RolloutProgressing
	}
	switch p.status.Phase {
	case v1.RolloutHalted, v1.RolloutRollingBack, v1.RolloutRolledBack:
		return
	case v1.RolloutComplete:
		return // what fails now is told of the units
	default:
	}
	allowed := int(p.Rollout.MaxFailures) + int(p.status.Tolerated)
	switch {
	case p.Rollout.Paused:
		p.status.Phase = v1.RolloutPaused
		p.status.Wave, p.status.Message = p.name(p.current()), "paused"
	case p.atOnce():
	case len(failed) > allowed:
		p.halt(fmt.Sprintf("%d failed, %d allowed: %s", len(failed), allowed, describe(failed)))
	default:
		p.judgeWave(failed, allowed)
	}
}

// judgeWave halts the rollout where the current wave cannot go on, though not too many units have failed.
func (p *planner) judgeWave(failed []Unit, allowed int) {
	wave := p.current()
	if wave == len(p.waves) || p.states[wave].ReadyTime != nil {
		return
	}
	broken, unavailable, moving, ready, waiting := 0, 0, 0, 0, 0
	for _, unit := range p.waves[wave] {
		switch {
		case p.failed(unit):
			broken++
			if p.has(unit) {
				unavailable++
			}
		case p.absent(unit):
		case p.has(unit) && unit.Ready:
			ready++
		case p.has(unit):
			moving++
		default:
			waiting++
		}
	}
	if broken -= int(p.status.Tolerated); broken <= 0 || moving > 0 {
		return
	}
	switch {
	case ready == 0 && waiting == 0:
		p.halt("no unit of the wave became ready: " + describe(failed))
	case waiting > 0 && unavailable-int(p.status.Tolerated) >= p.limit(wave):
		p.halt(fmt.Sprintf("%d failed, %d allowed, but the wave has room for %d that are not ready: %s", len(failed),
			allowed, p.limit(wave), describe(failed)))
	}
}

// halt ends the rollout until someone does something.
func (p *planner) halt(why string) {
	p.status.Phase, p.status.Wave, p.status.Message = v1.RolloutHalted, p.name(min(p.current(), len(p.waves)-1)), why
	if p.Rollout.OnFailure == v1.OnFailureRollback && p.plan.Current != "" && p.plan.Current != p.Revision {
		p.status.Phase = v1.RolloutRollingBack
	}
	at := p.Now.Truncate(time.Second)
	if p.Resumed == at.UTC().Format(time.RFC3339) { // that was about another halt, less than a second ago
		at = at.Add(time.Second)
	}
	p.status.HaltTime = &metav1.Time{Time: at}
}

// atOnce reports whether all units are to get the revision without waves, and do not have it yet.
func (p *planner) atOnce() bool {
	return p.AtOnce == p.Revision && p.status.Phase != v1.RolloutComplete
}

// current is the index of the first wave that is not done.
func (p *planner) current() int {
	wave := slices.IndexFunc(p.states, func(s v1.WaveStatus) bool { return s.State != v1.WaveDone })
	if wave < 0 {
		return len(p.waves)
	}
	return wave
}

// advance starts units of the waves that have begun, and begins the next wave where one is done.
func (p *planner) advance() {
	p.status.Wave, p.status.Message = "", ""
	if p.atOnce() {
		p.startAll()
		return
	}
	wave := 0
	for ; wave < len(p.waves); wave++ {
		p.start(wave)
		if p.states[wave].State == v1.WaveDone {
			continue
		}
		if !p.finish(wave) {
			p.status.Wave = p.name(wave)
			return
		}
	}
	p.complete()
}

func (p *planner) complete() {
	p.plan.Current = p.Revision
	p.status.Phase, p.status.Tolerated = v1.RolloutComplete, 0
}

// startAll gives all units the revision.
func (p *planner) startAll() {
	settled := true
	for _, unit := range p.Units {
		if startable(unit) {
			p.plan.Revisions[unit.Name] = p.Revision
		}
		settled = settled && (p.absent(unit) || p.failed(unit) || (p.has(unit) && unit.Ready))
	}
	p.status.Phase = v1.RolloutProgressing
	if settled {
		for i := range p.states {
			p.states[i].State = v1.WaveDone
		}
		p.complete()
	}
}

// start gives the revision to as many units of a wave as may be unavailable, in the order of their names. Units that
// have failed with it take a place while the wave is the current one, unless someone has accepted them; once it is done
// they must not keep those waiting that return. A unit that could not be given it is as available as before.
func (p *planner) start(wave int) {
	places, accepted := p.limit(wave), int(p.status.Tolerated)
	done := p.states[wave].State == v1.WaveDone
	for _, unit := range p.waves[wave] {
		switch {
		case p.absent(unit) || (p.failed(unit) && (done || !p.has(unit))):
		case p.failed(unit) && accepted > 0:
			accepted--
		case p.failed(unit), p.has(unit) && !unit.Ready:
			places--
		}
	}
	for _, unit := range p.waves[wave] {
		switch {
		case p.has(unit):
		case !startable(unit):
		case p.failed(unit): // it goes on being tried
			p.plan.Revisions[unit.Name] = p.Revision
		case places > 0:
			places--
			p.plan.Revisions[unit.Name] = p.Revision
		}
	}
}

// finish reports whether a wave is done: its units are ready, it has soaked, and is approved of.
func (p *planner) finish(wave int) bool {
	state, spec := &p.states[wave], p.spec(wave)
	changes := false
	var holding []string
	for _, unit := range p.waves[wave] {
		ready := p.has(unit) && unit.Ready
		changes = changes || !ready || state.State != v1.WavePending
		if p.absent(unit) || p.failed(unit) || ready {
			continue
		}
		if p.has(unit) || state.ReadyTime == nil {
			holding = append(holding, unit.Name)
		}
	}
	if p.Revision == p.plan.Current && !changes {
		// All have gone back already to what was proven before.
		state.State = v1.WaveDone
		return true
	}
	if len(holding) > 0 {
		p.status.Phase = v1.RolloutProgressing
		p.status.Message = "waits for " + enumerate.First(holding, namedFailures)
		if state.ReadyTime == nil {
			state.State = v1.WaveProgressing
		}
		return false
	}
	if state.ReadyTime == nil {
		state.ReadyTime = &metav1.Time{Time: p.Now.Add(time.Second - 1).Truncate(time.Second)}
	}
	if p.Revision == p.plan.Current && !p.remains(wave+1) {
		// It goes back to what is proven, and no later wave has anything to wait for.
		state.State = v1.WaveDone
		return true
	}
	if spec.Soak != nil && len(p.waves[wave]) > 0 {
		if until := state.ReadyTime.Add(spec.Soak.Duration); p.Now.Before(until) {
			state.State, p.status.Phase = v1.WaveSoaking, v1.RolloutSoaking
			p.status.Message = "soaks until " + until.UTC().Format(time.RFC3339)
			p.plan.Again = until
			return false
		}
	}
	// A wave that should have units and has none may be a typing error, and what follows would go untried.
	manual := spec.Approval == v1.ApprovalManual || p.untried(wave)
	if manual && !gridrevision.Approves(p.Approved, p.Revision, spec.Name) {
		state.State, p.status.Phase = v1.WaveAwaitingApproval, v1.RolloutAwaitingApproval
		p.status.Message = p.describeApproval(wave)
		return false
	}
	state.State = v1.WaveDone
	return true
}

// untried reports whether a wave should have units and has none.
func (p *planner) untried(wave int) bool { return p.spec(wave).Units != nil && len(p.waves[wave]) == 0 }

// describeApproval says which approval a wave waits for.
func (p *planner) describeApproval(wave int) string {
	text := fmt.Sprintf("waits for the annotation %s=%s", v1.AnnotationApproved,
		gridrevision.ApprovalOf(p.Revision, p.name(wave)))
	if p.untried(wave) {
		text = "the wave's units select none; change them, or go on without: " + text
	}
	if p.Approved != "" {
		text += fmt.Sprintf("; its value is %q", p.Approved)
	}
	return text
}

// remains reports whether units of a wave, or of a later one, do not have the revision yet.
func (p *planner) remains(wave int) bool {
	for ; wave < len(p.waves); wave++ {
		for _, unit := range p.waves[wave] {
			if !p.has(unit) && !p.absent(unit) {
				return true
			}
		}
	}
	return false
}

// goBack gives units the revision before, the last wave first. Units that are not ready go at once: they lose nothing.
func (p *planner) goBack() {
	for wave := len(p.waves) - 1; wave >= 0; wave-- {
		places, settled := p.limit(wave), true
		for _, unit := range p.waves[wave] {
			switch {
			case p.absent(unit) || unit.Unreachable:
			case p.has(unit):
				settled = false
			case unit.Revision == p.plan.Current && !unit.Ready && (!unit.Failed || unit.Tried != p.plan.Current):
				settled = false
				places--
			}
		}
		for _, unit := range slices.Backward(p.waves[wave]) {
			switch {
			case !p.has(unit):
			case !startable(unit):
			case !unit.Ready:
				p.plan.Revisions[unit.Name] = p.plan.Current
				places--
			}
		}
		for _, unit := range slices.Backward(p.waves[wave]) {
			if p.has(unit) && startable(unit) && unit.Ready && places > 0 {
				p.plan.Revisions[unit.Name] = p.plan.Current
				places--
			}
		}
		if !settled {
			p.status.Wave = p.name(wave)
			return
		}
	}
	p.status.Phase, p.status.Wave = v1.RolloutRolledBack, ""
}

// count fills in the counts.
func (p *planner) count() {
	p.status.Updated, p.status.Ready, p.status.Failed, p.status.Deferred = 0, 0, 0, 0
	p.status.Waves = nil
	for i := range p.states {
		state := p.states[i]
		if i == len(p.Rollout.Waves) && len(p.waves[i]) == 0 {
			continue // no unit is without a wave
		}
		for _, unit := range p.waves[i] {
			state.Units++
			if p.has(unit) {
				state.Updated++
			}
			switch {
			case p.failed(unit):
				state.Failed++
			case p.has(unit) && unit.Ready:
				state.Ready++
			case p.absent(unit):
				state.Deferred++
			}
		}
		p.status.Updated += state.Updated
		p.status.Ready += state.Ready
		p.status.Failed += state.Failed
		p.status.Deferred += state.Deferred
		p.status.Waves = append(p.status.Waves, state)
	}
}

// describe names failed units with the reasons.
func describe(failed []Unit) string {
	parts := make([]string, 0, namedFailures+1)
	for i, unit := range failed {
		if i == namedFailures {
			parts = append(parts, fmt.Sprintf("and %d more", len(failed)-i))
			break
		}
		parts = append(parts, unit.Name+": "+unit.Why)
	}
	return strings.Join(parts, "; ")
}
