package gridcontroller

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/application-grid/application-grid/pkg/apis/enumerate"
	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/gridcontroller/gridchild"
)

const (
	// namedSites is the largest number of sites that a condition or an event names; it counts the others.
	namedSites = 5
	// toldFailures is the largest number of sites whose states have a message. It limits the object's size.
	toldFailures = 500
	// listedSites is the largest number of sites that a status lists completely. If a grid has more, the ready ones are
	// left out.
	listedSites = 500
	// largestStates is the largest size of the states in a status, in bytes. Every change of a state is sent to all
	// watchers of grids, and etcd refuses objects of more than 1.5 MB.
	largestStates = 512 << 10
	// statusPause is the least time between two writes of one grid's status.
	statusPause = 500 * time.Millisecond
)

func siteState(template string, r result) v1.SiteState {
	state := v1.SiteState{Phase: v1.SiteProgressing}
	if live := r.child; live != nil {
		state = liveState(live, v1.SiteProgressing)
		if live.progress.complete && live.observed && !live.deleting && !r.applied && r.again.IsZero() {
			state.Phase = v1.SiteReady
		}
		if live.held {
			state = heldState(live)
		}
	}
	if state.Template = template; r.err != nil && state.Phase != v1.SiteHeld {
		told := gridchild.Tellable(r.err)
		state.Phase, state.Reason, state.Message = v1.SiteFailed, told.Reason, told.Message
	}
	return state
}

// heldState returns the state of a site whose workload is held by an annotation.
func heldState(live *child) v1.SiteState {
	state := liveState(live, v1.SiteHeld)
	state.Reason, state.Message = v1.ReasonHeld, cmp.Or(gridchild.Shorten(live.hold), "no reason is given")
	return state
}

func liveState(live *child, phase v1.SitePhase) v1.SiteState {
	return v1.SiteState{
		Phase:    phase,
		Replicas: live.progress.replicas, UpdatedReplicas: live.progress.updated,
		ReadyReplicas: live.progress.ready, AvailableReplicas: live.progress.available,
	}
}

// evaluate evaluates the sites after they were synced.
func (p *synced) evaluate(ctx context.Context) *report {
	r := &report{p, map[string]v1.SiteState{}}
	for _, site := range p.names {
		r.states[site] = p.stateOf(site)
		p.lookAgain(p.results[site].again)
	}
	p.explainStalled(ctx, r.states)
	p.lookAgain(p.rollout.Again)
	for site, memory := range p.memory.sites {
		p.noteBroken(site, r.states[site], &memory.broken)
	}
	maps.Copy(r.states, p.leaving)
	told := 0
	for _, site := range slices.Sorted(maps.Keys(r.states)) {
		if state := r.states[site]; state.Message != "" {
			if told++; told > toldFailures {
				state.Message = ""
				r.states[site] = state
			}
		}
	}
	maps.DeleteFunc(p.memory.sites, func(site string, _ *siteMemory) bool {
		_, exists := r.states[site]
		return !exists
	})
	return r
}

// stateOf returns the state of a site that was synced.
func (p *synced) stateOf(site string) v1.SiteState {
	result := p.results[site]
	live, state := result.child, siteState(gridchild.TemplateName(p.spec, site), result)
	if live != nil && state.Phase == v1.SiteReady && !p.complete(live) {
		state.Phase = v1.SiteProgressing
	}
	if live != nil && p.spec.Rollout != nil && live.revision != p.update {
		state.Revision = live.revision
	}
	p.followProgress(site, &state, live)
	return state
}

// reportHeld reports the sites of the former gridUniqKey. Nothing is assigned to those of the new one.
func (p *pass) reportHeld(children map[string]*child, held error) *report {
	nothing := &planned{assigned: &assigned{pass: p}, held: held}
	r := &report{&synced{planned: nothing, results: map[string]result{}}, map[string]v1.SiteState{}}
	for _, live := range children {
		r.results[live.site] = result{child: live}
		r.states[live.site] = siteState("", r.results[live.site])
	}
	return r
}

// in returns the sites in any of some phases, sorted.
func (p *report) in(phases ...v1.SitePhase) []string {
	var sites []string
	for site, state := range p.states {
		if slices.Contains(phases, state.Phase) {
			sites = append(sites, site)
		}
	}
	slices.Sort(sites)
	return sites
}

func (p *report) summarize(status *v1.WorkloadGridStatus) {
	status.ObservedGeneration = p.grid.GetGeneration()
	count := func(phases ...v1.SitePhase) int32 {
		return int32(len(p.in(phases...))) //nolint:gosec // no more than there are nodes
	}
	//nolint:gosec // no more than there are nodes
	status.Sites = int32(len(p.states)) - count(v1.SiteRemoving, v1.SiteRetained)
	status.ReadySites, status.UnreachableSites = count(v1.SiteReady), count(v1.SiteUnreachable)
	status.FailedSites = count(v1.SiteFailed, v1.SiteStalled)
	status.States, status.UnlistedReadySites, status.UnlistedSites = p.states, 0, 0
	if p.assignment != nil {
		status.GridUniqKey = p.spec.GridUniqKey
		status.UpdateRevision, status.Rollout, status.Losses = p.update, p.rollout.Status.DeepCopy(), p.lossesLeft()
		if p.spec.Rollout != nil {
			status.CurrentRevision = p.rollout.Current
		} else if !slices.ContainsFunc(p.names, p.lacksUpdate) {
			status.CurrentRevision = p.update
		}
	}
	c := conditions{&status.Conditions, status.ObservedGeneration}
	p.setReadiness(c, int(status.Sites))
	p.setProgressing(c)
	p.setProblems(c, int(status.Sites))
	p.setRollout(c)
}

// setReadiness sets the conditions Ready and Available of a number of sites.
func (p *report) setReadiness(c conditions, sites int) {
	notReady := p.in(v1.SiteFailed, v1.SiteStalled, v1.SiteProgressing)
	unreachable, held := p.in(v1.SiteUnreachable), p.in(v1.SiteHeld)
	reachable, others := sites-len(unreachable)-len(held), ""
	if len(unreachable) > 0 {
		others = fmt.Sprintf("; %d more cannot be reached: %s", len(unreachable), nameSome(unreachable))
	}
	if len(held) > 0 {
		others += fmt.Sprintf("; %d more are held: %s", len(held), nameSome(held))
	}
	// lacks sets a condition: to false if some of the sites have the problem, to true if all are fine.
	lacks := func(kind string, some []string, problem, fine string) {
		switch {
		case sites == 0:
			c.set(kind, metav1.ConditionFalse, v1.ReasonNoSites,
				fmt.Sprintf("no node has the label %s, so there are no sites", p.spec.GridUniqKey))
		case reachable == 0:
			c.set(kind, metav1.ConditionUnknown, v1.ReasonSitesUnreachable,
				fmt.Sprintf("none of %d sites can be reached", sites))
		case len(some) > 0:
			c.set(kind, metav1.ConditionFalse, v1.ReasonSitesNotReady,
				fmt.Sprintf("%d of %d sites %s: %s%s", len(some), reachable, problem, nameSome(some), others))
		default:
			c.set(kind, metav1.ConditionTrue, v1.ReasonReady,
				fmt.Sprintf("all %d sites %s%s", reachable, fine, others))
		}
	}
	lacks(v1.ConditionReady, notReady, "are not ready", "are ready")
	if p.held != nil && p.assignment == nil { // nothing of the present spec is applied
		told := gridchild.Tellable(p.held)
		c.set(v1.ConditionReady, metav1.ConditionFalse, told.Reason, told.Message)
	}
	silent := slices.DeleteFunc(notReady, func(site string) bool {
		live := p.results[site].child
		return live != nil && live.progress.serves
	})
	lacks(v1.ConditionAvailable, silent, "do not have enough pods to serve", "have pods to serve")
}

// setProgressing sets the condition Progressing.
func (p *report) setProgressing(c conditions) {
	var doing []string
	if sites := p.in(v1.SiteProgressing); len(sites) > 0 {
		doing = append(doing, "in progress: "+nameSome(sites))
	}
	due := slices.DeleteFunc(p.in(v1.SiteRemoving), func(site string) bool {
		return p.states[site].Reason == v1.ReasonMassRemoval
	})
	if len(due) > 0 {
		earliest := slices.MinFunc(due, func(a, b string) int {
			return p.states[a].RemovalTime.Compare(p.states[b].RemovalTime.Time)
		})
		doing = append(doing, fmt.Sprintf("no node is in %s any more; workloads are removed from %s on",
			nameSome(due), p.states[earliest].RemovalTime.UTC().Format(time.RFC3339)))
	}
	c.problem(v1.ConditionProgressing, v1.ReasonSitesProgressing, doing...)
}

// setProblems sets the conditions Stalled, Degraded and SpecWarning.
func (p *report) setProblems(c conditions, sites int) {
	failing := p.describeProblems("failed", p.in(v1.SiteFailed), sites)
	stalling := p.describeProblems("make no progress", p.in(v1.SiteStalled), sites)
	c.problem(v1.ConditionStalled, v1.ReasonSitesStalled, stalling)
	reason, holding := v1.ReasonSitesStalled, ""
	if failing != "" {
		reason = v1.ReasonSitesFailed
	}
	if p.held != nil {
		told := gridchild.Tellable(p.held)
		reason, holding = told.Reason, told.Message
	}
	c.problem(v1.ConditionDegraded, reason, holding, failing, stalling)
	if text := p.describeNoEffect(); text != "" {
		c.set(v1.ConditionSpecWarning, metav1.ConditionTrue, v1.ReasonNoEffect, text)
	} else {
		meta.RemoveStatusCondition(c.of, v1.ConditionSpecWarning)
	}
}

// setRollout replaces the conditions of the sites by those of an unfinished rollout.
func (p *report) setRollout(c conditions) {
	rollout := p.rollout.Status
	if rollout == nil || rollout.Phase == v1.RolloutComplete {
		return
	}
	c.set(v1.ConditionReady, metav1.ConditionFalse, v1.ReasonRollout, p.describeRollout())
	switch {
	case halted(rollout):
		c.set(v1.ConditionDegraded, metav1.ConditionTrue, v1.ReasonRolloutHalted, p.describeRollout())
	case progresses(rollout):
		c.set(v1.ConditionProgressing, metav1.ConditionTrue, v1.ReasonRollout, p.describeRollout())
	}
}

// describeNoEffect describes the parts of the spec without effect, which are probably typing errors.
func (p *report) describeNoEffect() string {
	var all, absent, keepSelector []string
	for site := range p.spec.Templates {
		if _, ok := p.states[site]; !ok {
			absent = append(absent, site)
		}
	}
	if slices.Sort(absent); len(absent) > 0 {
		all = append(all, "spec.templates names sites that do not exist: "+nameSome(absent))
	}
	if _, ok := p.spec.TemplatePool[string(v1.DefaultTemplate)]; ok {
		all = append(all, fmt.Sprintf(
			"spec.templatePool.%s is never used: that name means spec.template", v1.DefaultTemplate))
	}
	for _, site := range slices.Sorted(maps.Keys(p.results)) {
		if live := p.results[site].child; live != nil && ptr.Deref(p.spec.SiteLabel, false) && !live.selectsSite {
			keepSelector = append(keepSelector, site)
		}
	}
	if len(keepSelector) > 0 {
		all = append(all,
			fmt.Sprintf("spec.siteLabel is not in the selectors of the workloads of %s, which existed before, "+
				"because a selector cannot be changed; delete these workloads, one after the other, to have them made "+
				"with it", nameSome(keepSelector)))
	}
	if p.assignment != nil {
		for _, name := range p.current.Idle(p.names) {
			all = append(all, fmt.Sprintf("spec.overrides[%s] selects no site", name))
		}
	}
	for i, wave := range ptr.Deref(p.rollout.Status, v1.RolloutStatus{}).Waves {
		if i < len(p.spec.Rollout.Waves) && p.spec.Rollout.Waves[i].Sites != nil && wave.Sites == 0 {
			all = append(all, fmt.Sprintf("spec.rollout.waves[%s] has no site", wave.Name))
		}
	}
	if sites := p.waves.NamedTwice(); len(sites) > 0 {
		all = append(all, fmt.Sprintf(
			"more than one of spec.rollout.waves names %s; the first one counts", nameSome(sites)))
	}
	return strings.Join(all, "; ")
}

// shrinkStatus makes a status small enough: if there are many sites, it leaves out the ready ones, and then the least
// important of the others.
func shrinkStatus(status *v1.WorkloadGridStatus, most int) {
	if status.Rollout != nil && most < largestStates {
		for i := range status.Rollout.Sites {
			status.Rollout.Sites[i].Message = ""
		}
	}
	if len(status.States) <= listedSites {
		return
	}
	all := slices.SortedFunc(maps.Keys(status.States), func(a, b string) int {
		return cmp.Or(cmp.Compare(importance(status.States[a].Phase), importance(status.States[b].Phase)),
			cmp.Compare(a, b))
	})
	states := map[string]v1.SiteState{}
	size := 0
	for _, site := range all {
		state := status.States[site]
		if state.Phase == v1.SiteReady {
			status.UnlistedReadySites++
			continue
		}
		text, err := json.Marshal(state)
		if size += len(site) + len(text) + len(`"":,`); err != nil || size > most {
			status.UnlistedSites++
			continue
		}
		states[site] = state
	}
	status.States = states
}

// importance orders phases; the most important one has the smallest value.
func importance(phase v1.SitePhase) int {
	return max(1, slices.Index([]v1.SitePhase{ // the first two are the same
		v1.SiteFailed, v1.SiteStalled, v1.SiteRemoving, v1.SiteProgressing, v1.SiteHeld, v1.SiteUnreachable,
		v1.SiteRetained, v1.SiteReady,
	}, phase))
}

type statusMemory struct {
	// at is when the status was last written.
	at time.Time
	// halved is how often the API server has refused the status as too large.
	halved int
}

// limit returns how many bytes the states may take.
func (m *statusMemory) limit() int { return largestStates >> m.halved }

// writeStatus writes the status of changed, a copy of grid, if it differs from grid's. It writes it at most once per
// statusPause.
func (s *shared) writeStatus(
	ctx context.Context, grid, changed client.Object, m *statusMemory, again time.Time,
) (reconcile.Result, error) {
	now := s.clock.Now()
	if equality.Semantic.DeepEqual(grid, changed) {
		return after(now, again), nil
	}
	if next := m.at.Add(statusPause); now.Before(next) {
		return after(now, next, again), nil
	}
	m.at = now
	err := s.writer.Status().Patch(ctx, changed,
		client.MergeFromWithOptions(grid, client.MergeFromWithOptimisticLock{}))
	switch {
	case err == nil, apierrors.IsNotFound(err):
		return after(now, again), nil
	case apierrors.IsConflict(err): // the cache is behind, and its next change may cause no reconciliation
		klog.FromContext(ctx).V(4).Info("Not writing the status: the grid has changed meanwhile")
		return after(now, now.Add(statusPause), again), nil
	case isTooLarge(err) && m.halved < 10:
		m.halved++
		klog.FromContext(ctx).Info("The status is too large; leaving out more sites", "bytes", m.limit())
		return after(now, now.Add(statusPause), again), nil
	}
	return reconcile.Result{}, fmt.Errorf("writing the status: %w", err)
}

// isTooLarge recognises the errors of kube-apiserver and etcd for an object that is too large.
func isTooLarge(err error) bool {
	return apierrors.IsRequestEntityTooLargeError(err) || strings.Contains(err.Error(), "too large") ||
		strings.Contains(err.Error(), "larger than max")
}

// stop sets the conditions of a grid that cannot be reconciled.
func (c conditions) stop(err error) {
	p := gridchild.Tellable(err)
	c.set(v1.ConditionReady, metav1.ConditionFalse, p.Reason, p.Message)
	c.set(v1.ConditionProgressing, metav1.ConditionFalse, p.Reason, p.Message)
	c.set(v1.ConditionDegraded, metav1.ConditionTrue, p.Reason, p.Message)
}

// conditions are those of a status, for a generation of the grid.
type conditions struct {
	of         *[]metav1.Condition
	generation int64
}

func (c conditions) set(kind string, status metav1.ConditionStatus, reason, message string) {
	meta.SetStatusCondition(c.of, metav1.Condition{
		Type: kind, Status: status, Reason: reason, Message: message, ObservedGeneration: c.generation,
	})
}

// problem sets a condition that is true if any part is not empty.
func (c conditions) problem(kind, reason string, parts ...string) {
	parts = slices.DeleteFunc(parts, func(part string) bool { return part == "" })
	if len(parts) == 0 {
		c.set(kind, metav1.ConditionFalse, v1.ReasonAsDesired, "")
		return
	}
	c.set(kind, metav1.ConditionTrue, reason, strings.Join(parts, "; "))
}

// nameSome names the first few sites, and counts the rest.
func nameSome(sites []string) string { return enumerate.First(sites, namedSites) }

// describeProblems names the first few different problems of sites, each with the sites that have it. they is the
// common predicate of the sites. It returns "" if no site has failed.
func (p *report) describeProblems(they string, failed []string, sites int) string {
	if len(failed) == 0 {
		return ""
	}
	var order []string
	with := map[string][]string{}
	for _, site := range failed {
		problem := strings.TrimSuffix(p.states[site].Reason+": "+p.states[site].Message, ": ")
		if _, ok := with[problem]; !ok {
			order = append(order, problem)
		}
		with[problem] = append(with[problem], site)
	}
	var parts []string
	rest := len(failed)
	for _, problem := range order[:min(namedSites, len(order))] {
		parts = append(parts, fmt.Sprintf("%s: %s", nameSome(with[problem]), problem))
		rest -= len(with[problem])
	}
	if rest > 0 {
		parts = append(parts, fmt.Sprintf("and %d more sites", rest))
	}
	return fmt.Sprintf("%d of %d sites %s: %s", len(failed), sites, they, strings.Join(parts, "; "))
}
