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

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
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
	// listedSites is the largest number of sites that a status lists completely. Of more, the ready ones are left out.
	listedSites = 500
	// largestStates is the largest size of the states in a status, in bytes. Every change of a state is sent to all
	// watchers of grids, and etcd refuses objects of more than 1.5 MB.
	largestStates = 512 << 10
	// statusPause is the least time between two writes of one grid's status.
	statusPause = 500 * time.Millisecond
)

// liveState returns the state of a live child: phase, unless an annotation holds the child.
func liveState(live *liveChild, phase v1.SitePhase) v1.SiteState {
	state := v1.SiteState{
		Phase:    phase,
		Replicas: live.progress.replicas, UpdatedReplicas: live.progress.updated,
		ReadyReplicas: live.progress.ready, AvailableReplicas: live.progress.available,
	}
	if live.held {
		state.Phase, state.Reason = v1.SiteHeld, v1.ReasonHeld
		state.Message = cmp.Or(gridchild.Shorten(live.hold), "no reason is given")
	}
	return state
}

// makeReport makes the report. states has those of the sites that have vanished.
func (p *synced) makeReport(ctx context.Context, states map[string]v1.SiteState) *report {
	for _, site := range p.names {
		states[site] = p.stateOf(site)
		p.requeueAt(p.results[site].requeueTime)
	}
	r := newReport(p, states)
	r.explainStalled(ctx)
	p.requeueAt(p.rollout.Again)
	for site, memory := range p.memory.sites {
		p.trackBroken(site, states[site], memory)
	}
	maps.DeleteFunc(p.memory.sites, func(site string, _ *siteMemory) bool { return states[site].Phase == "" })
	return r
}

func newReport(p *synced, states map[string]v1.SiteState) *report {
	r := &report{p, states, map[v1.SitePhase][]string{}}
	for _, site := range slices.Sorted(maps.Keys(states)) {
		phase := states[site].Phase
		r.in[phase] = append(r.in[phase], site)
	}
	return r
}

func (p *synced) stateOf(site string) v1.SiteState {
	r, live, state := p.results[site], p.results[site].child, v1.SiteState{Phase: v1.SiteProgressing}
	if live != nil {
		state = liveState(live, v1.SiteProgressing)
		if !live.held && p.complete(live) && live.observed && !live.deleting && !r.applied && r.requeueTime.IsZero() {
			state.Phase = v1.SiteReady
		}
		if p.spec.Rollout != nil && live.revision != p.update.Revision {
			state.Revision = live.revision
		}
	}
	if state.Template = gridchild.TemplateName(p.spec, site); r.err != nil && state.Phase != v1.SiteHeld {
		told := gridchild.ErrorFrom(r.err)
		state.Phase, state.Reason, state.Message = v1.SiteFailed, told.Reason, told.Message
	}
	p.trackProgress(site, &state, live)
	return state
}

func (p *report) summarize(status *v1.WorkloadGridStatus) {
	//nolint:gosec // no more than there are nodes
	count := func(phase v1.SitePhase) int32 { return int32(len(p.in[phase])) }
	status.ObservedGeneration, status.GridUniqKey = p.grid.GetGeneration(), p.spec.GridUniqKey
	//nolint:gosec // no more than there are nodes
	status.Sites = int32(len(p.states)) - count(v1.SiteRemoving) - count(v1.SiteRetained)
	status.ReadySites, status.UnreachableSites = count(v1.SiteReady), count(v1.SiteUnreachable)
	status.FailedSites = count(v1.SiteFailed) + count(v1.SiteStalled)
	status.States, status.UnlistedReadySites, status.UnlistedSites = p.states, 0, 0
	status.UpdateRevision, status.Rollout = p.update.Revision, p.rollout.Status.DeepCopy()
	status.Losses = slices.SortedFunc(maps.Values(p.memory.losses), func(a, b v1.SiteLoss) int {
		return cmp.Compare(a.Site, b.Site)
	})
	if p.spec.Rollout != nil {
		status.CurrentRevision = p.rollout.Current
	} else if !slices.ContainsFunc(p.names, func(site string) bool {
		r := p.results[site]
		return r.err != nil || r.child == nil || !r.requeueTime.IsZero() && !r.applied
	}) {
		status.CurrentRevision = p.update.Revision // all workloads are made from it
	}
	c := conditions{&status.Conditions, status.ObservedGeneration}
	p.setReadiness(c, int(status.Sites))
	p.setProgressing(c)
	p.setProblems(c, int(status.Sites))
	p.setRollout(c)
	if warnings := p.warnings(); len(warnings) > 0 {
		c.setProblem(v1.ConditionSpecWarning, v1.ReasonNoEffect, warnings...)
	} else {
		meta.RemoveStatusCondition(c.of, v1.ConditionSpecWarning)
	}
}

func (p *report) setReadiness(c conditions, sites int) {
	unreachable, held := p.in[v1.SiteUnreachable], p.in[v1.SiteHeld]
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
	notReady := slices.Sorted(slices.Values(
		slices.Concat(p.in[v1.SiteFailed], p.in[v1.SiteStalled], p.in[v1.SiteProgressing])))
	lacks(v1.ConditionReady, notReady, "are not ready", "are ready")
	silent := slices.DeleteFunc(notReady, func(site string) bool {
		live := p.results[site].child
		return live != nil && live.progress.serves
	})
	lacks(v1.ConditionAvailable, silent, "do not have enough pods to serve", "have pods to serve")
}

func (p *report) setProgressing(c conditions) {
	doing, going := "", ""
	if sites := p.in[v1.SiteProgressing]; len(sites) > 0 {
		doing = "in progress: " + nameSome(sites)
	}
	due := slices.DeleteFunc(slices.Clone(p.in[v1.SiteRemoving]), func(site string) bool {
		return p.states[site].Reason == v1.ReasonMassRemoval
	})
	if len(due) > 0 {
		at := func(site string) time.Time { return p.states[site].RemovalTime.Time }
		first := at(slices.MinFunc(due, func(a, b string) int { return at(a).Compare(at(b)) }))
		going = fmt.Sprintf("no node is in %s any more; workloads are removed from %s on",
			nameSome(due), first.UTC().Format(time.RFC3339))
	}
	c.setProblem(v1.ConditionProgressing, v1.ReasonSitesProgressing, doing, going)
}

func (p *report) setProblems(c conditions, sites int) {
	failing := p.describeProblems("failed", p.in[v1.SiteFailed], sites)
	stalling := p.describeProblems("make no progress", p.in[v1.SiteStalled], sites)
	c.setProblem(v1.ConditionStalled, v1.ReasonSitesStalled, stalling)
	reason, holding := v1.ReasonSitesStalled, ""
	if failing != "" {
		reason = v1.ReasonSitesFailed
	}
	if p.lossesHeld != nil {
		told := gridchild.ErrorFrom(p.lossesHeld)
		reason, holding = told.Reason, told.Message
	}
	c.setProblem(v1.ConditionDegraded, reason, holding, failing, stalling)
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

// warnings describes the parts of the spec without effect, which are probably typing errors.
func (p *report) warnings() (all []string) {
	warn := func(format string, sites []string) {
		if len(sites) > 0 {
			all = append(all, fmt.Sprintf(format, nameSome(sites)))
		}
	}
	warn("spec.templates names sites that do not exist: %s", slices.DeleteFunc(
		slices.Sorted(maps.Keys(p.spec.Templates)), func(site string) bool { return p.states[site].Phase != "" }))
	if _, ok := p.spec.TemplatePool[string(v1.DefaultTemplate)]; ok {
		all = append(all, "spec.templatePool."+string(v1.DefaultTemplate)+" is never used: it means spec.template")
	}
	if ptr.Deref(p.spec.SiteLabel, false) {
		warn("spec.siteLabel is not in the selectors of the workloads of %s, which existed before, because a selector "+
			"cannot be changed; delete these workloads, one after the other, to have them made with it",
			slices.DeleteFunc(slices.Clone(p.names), func(site string) bool {
				live := p.results[site].child
				return live == nil || live.SelectsSite
			}))
	}
	for _, name := range p.update.UnusedOverrides(p.names) {
		all = append(all, fmt.Sprintf("spec.overrides[%s] selects no site", name))
	}
	for i, wave := range ptr.Deref(p.rollout.Status, v1.RolloutStatus{}).Waves {
		if i < len(p.spec.Rollout.Waves) && p.spec.Rollout.Waves[i].Sites != nil && wave.Sites == 0 {
			all = append(all, fmt.Sprintf("spec.rollout.waves[%s] has no site", wave.Name))
		}
	}
	named, twice := sets.New[string](), sets.New[string]()
	for _, wave := range ptr.Deref(p.spec.Rollout, v1.Rollout{}).Waves {
		names := sets.New(ptr.Deref(wave.Sites, v1.SiteSelector{}).Names...)
		twice = twice.Union(named.Intersection(names))
		named = named.Union(names)
	}
	warn("more than one of spec.rollout.waves names %s; the first one counts", sets.List(twice))
	return all
}

// shrinkStatus leaves out the ready ones of many sites, and then the least important ones beyond so many bytes.
func shrinkStatus(status *v1.WorkloadGridStatus, most int) {
	if status.Rollout != nil && most < largestStates {
		for i := range status.Rollout.Sites {
			status.Rollout.Sites[i].Message = ""
		}
	}
	if len(status.States) <= listedSites {
		return
	}
	importance := []v1.SitePhase{
		v1.SiteFailed, v1.SiteStalled, v1.SiteRemoving, v1.SiteProgressing, v1.SiteHeld, v1.SiteUnreachable,
		v1.SiteRetained, v1.SiteReady,
	}
	rank := func(site string) int { // that of the first two is the same
		return max(1, slices.Index(importance, status.States[site].Phase))
	}
	all := slices.SortedFunc(maps.Keys(status.States), func(a, b string) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a, b))
	})
	states, size := map[string]v1.SiteState{}, 0
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

// writeStatus writes the status of changed, a copy of grid, if it differs from grid's. It writes it at most once per
// statusPause. requeueTime is when to reconcile again if nothing changes before; zero for never.
func (r *reconciler) writeStatus(
	ctx context.Context, grid, changed client.Object, m *gridMemory, requeueTime time.Time,
) (reconcile.Result, error) {
	now := r.clock.Now()
	switch next := m.writtenAt.Add(statusPause); {
	case equality.Semantic.DeepEqual(grid, changed):
	case now.Before(next):
		requeueTime = sooner(requeueTime, next)
	default:
		m.writtenAt = now
		err := r.writer.Status().Patch(ctx, changed,
			client.MergeFromWithOptions(grid, client.MergeFromWithOptimisticLock{}))
		switch {
		case err == nil:
			m.writtenVersion = changed.GetResourceVersion()
		case apierrors.IsNotFound(err):
		case apierrors.IsConflict(err): // the cache is behind, and its next change may cause no reconciliation
			requeueTime = sooner(requeueTime, now.Add(statusPause))
		case m.largest > 1<<9 && (apierrors.IsRequestEntityTooLargeError(err) ||
			strings.Contains(err.Error(), "too large") || strings.Contains(err.Error(), "larger than max")): // etcd's
			m.largest /= 2
			klog.FromContext(ctx).Info("The status is too large; leaving out more sites", "bytes", m.largest)
			requeueTime = sooner(requeueTime, now.Add(statusPause))
		default:
			return reconcile.Result{}, fmt.Errorf("writing the status: %w", err)
		}
	}
	if requeueTime.IsZero() {
		return reconcile.Result{}, nil
	}
	return reconcile.Result{RequeueAfter: max(requeueTime.Sub(now), time.Millisecond)}, nil
}

// setFailed sets the conditions of a grid that cannot be reconciled.
func (c conditions) setFailed(p gridchild.Error) {
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

// setProblem sets a condition that is true if any part is not empty.
func (c conditions) setProblem(kind, reason string, parts ...string) {
	parts = slices.DeleteFunc(parts, func(part string) bool { return part == "" })
	if len(parts) == 0 {
		c.set(kind, metav1.ConditionFalse, v1.ReasonAsDesired, "")
		return
	}
	c.set(kind, metav1.ConditionTrue, reason, strings.Join(parts, "; "))
}

// nameSome names the first few sites, and counts the rest.
func nameSome(sites []string) string { return enumerate.First(sites, namedSites) }

// describeProblems names the first few different problems of sites, each with the sites that have it; "" for no site.
func (p *report) describeProblems(they string, failed []string, sites int) string {
	if len(failed) == 0 {
		return ""
	}
	with := map[string][]string{}
	for _, site := range failed {
		problem := strings.TrimSuffix(p.states[site].Reason+": "+p.states[site].Message, ": ")
		with[problem] = append(with[problem], site)
	}
	order := slices.SortedFunc(maps.Keys(with), func(a, b string) int { return cmp.Compare(with[a][0], with[b][0]) })
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

// recordEvents records events for what has changed since the last pass, and remembers the states of the sites.
func (p *report) recordEvents() {
	happened := map[string][]string{v1.ReasonRemoved: p.removed}
	note := func(is bool, reason, site string) {
		if is {
			happened[reason] = append(happened[reason], site)
		}
	}
	// New or changed failures get an event; sites with the same failure share one.
	fresh := map[gridchild.Error][]string{}
	failed := func(state v1.SiteState) bool { return state.Phase == v1.SiteFailed || state.Phase == v1.SiteStalled }
	for _, site := range slices.Sorted(maps.Keys(p.states)) {
		now, memory, result := p.states[site], p.memory.ofSite(site), p.results[site]
		before := memory.state
		memory.state = now
		left := before.Phase == v1.SiteRemoving
		note(result.applied, v1.ReasonApplied, site)
		note(result.handedOver != "", v1.ReasonReplicasHandedOver, site+" "+result.handedOver)
		note(!left && now.Phase == v1.SiteRemoving, v1.ReasonSiteVanished, site)
		note(left && len(p.sites[site].nodes) > 0, v1.ReasonSiteReturned, site)
		if failed(now) && (!failed(before) || before.Reason != now.Reason || before.Message != now.Message) {
			own, each := p.owner.Name+"-"+site, p.owner.Name+"-<site>"
			failure := gridchild.Error{Reason: now.Reason, Message: strings.ReplaceAll(now.Message, own, each)}
			fresh[failure] = append(fresh[failure], site)
		}
	}
	kind, grace := p.Child.Kind, p.graceTime()
	for _, t := range []struct{ kind, reason, action, format string }{
		{corev1.EventTypeNormal, v1.ReasonApplied, "Apply", fmt.Sprintf(
			"Applied the %ss of %d sites: %%s", kind, len(happened[v1.ReasonApplied]))},
		{corev1.EventTypeWarning, v1.ReasonSiteVanished, "Wait", fmt.Sprintf(
			"No node is in %%s any more; the %ss are removed in %s unless one comes back", kind, grace)},
		{corev1.EventTypeNormal, v1.ReasonSiteReturned, "Keep", "Nodes are back in %s; the " + kind + "s stay"},
		{corev1.EventTypeNormal, v1.ReasonRemoved, "Delete", "Removed the " + kind + "s of vanished sites: %s"},
		{corev1.EventTypeNormal, v1.ReasonReplicasHandedOver, "HandOver",
			"The template no longer sets replicas; sites keep theirs until someone changes them: %s"},
	} {
		if sites := happened[t.reason]; len(sites) > 0 {
			p.recorder.Eventf(p.grid, nil, t.kind, t.reason, t.action, t.format, nameSome(sites))
		}
	}
	switch {
	case p.lossesHeld != nil:
		p.recordGridEvent(p.grid, p.memory, p.lossesHeld)
	case len(p.states) == 0:
		p.recordGridEvent(p.grid, p.memory, gridchild.Errorf(v1.ReasonNoSites,
			"No node has the label %s, so there are no sites and no %ss", p.spec.GridUniqKey, p.Child.Kind))
	default:
		p.memory.lastRecorded = gridchild.Error{}
	}
	for failure, sites := range fresh {
		if len(sites) == 1 {
			failure.Message = p.states[sites[0]].Message
		}
		p.recorder.Eventf(p.grid, nil, corev1.EventTypeWarning, failure.Reason, "Sync", "%s: %s", nameSome(sites),
			failure.Message)
	}
}

// recordRollout records an event if the status that was just written has another wave or phase than the one before.
func (p *report) recordRollout() {
	before, now := ptr.Deref(p.status.Rollout, v1.RolloutStatus{}), p.rollout.Status
	if now == nil ||
		p.status.UpdateRevision == p.update.Revision && before.Wave == now.Wave && before.Phase == now.Phase {
		return
	}
	kind, reason := corev1.EventTypeNormal, v1.ReasonRollout
	if halted(now) {
		kind, reason = corev1.EventTypeWarning, v1.ReasonRolloutHalted
	}
	p.recorder.Eventf(p.grid, nil, kind, reason, "Rollout", "%s", p.describeRollout())
}

// recordGridEvent records an event about the grid as a whole, once, and returns the failure that it is about.
func (r *reconciler) recordGridEvent(grid client.Object, m *gridMemory, err error) gridchild.Error {
	failure := gridchild.ErrorFrom(err)
	if m.lastRecorded != failure {
		m.lastRecorded = failure
		r.recorder.Eventf(grid, nil, corev1.EventTypeWarning, failure.Reason, "Sync", "%s", failure.Message)
	}
	return failure
}
