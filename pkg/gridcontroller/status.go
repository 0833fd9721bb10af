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
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/enumerate"
	"github.com/application-grid/application-grid/pkg/gridchild"
)

const (
	// namedUnits is the most units that a condition or an event names; it counts the others.
	namedUnits = 5
	// toldFailures is the most units whose states have a message. It limits the object's size.
	toldFailures = 500
	// listedUnits is the most units of which a status lists all; of more units it leaves out the ready ones.
	listedUnits = 500
	// largestStates is the most bytes of the states in a status. Every change of a state is sent to everyone who
	// watches grids, and etcd refuses objects of more than 1.5 MB.
	largestStates = 512 << 10
)

// unitState returns the state of a unit for the status.
func unitState(template string, r result) v1.UnitState {
	state := v1.UnitState{Phase: v1.UnitProgressing, Template: template}
	if live := r.child; live != nil {
		state.Replicas, state.UpdatedReplicas = live.progress.replicas, live.progress.updated
		state.ReadyReplicas, state.AvailableReplicas = live.progress.ready, live.progress.available
		if live.progress.complete && live.observed && !live.deleting && !r.applied && r.again.IsZero() {
			state.Phase = v1.UnitReady
		}
	}
	if live := r.child; live != nil && live.held {
		state.Phase, state.Reason = v1.UnitHeld, v1.ReasonHeld
		state.Message = cmp.Or(gridchild.Shorten(live.hold), "no reason is given")
		return state
	}
	if r.err != nil {
		told := gridchild.Tellable(r.err)
		state.Phase, state.Reason, state.Message = v1.UnitFailed, told.Reason, told.Message
	}
	return state
}

// leftState returns the state of a vanished unit that still has a workload.
func leftState(live *child, phase v1.UnitPhase) v1.UnitState {
	return v1.UnitState{
		Phase: phase, Reason: v1.ReasonUnitVanished,
		Replicas: live.progress.replicas, UpdatedReplicas: live.progress.updated,
		ReadyReplicas: live.progress.ready, AvailableReplicas: live.progress.available,
	}
}

// summarize fills in a status from the states of the units.
func summarize(status *v1.WorkloadGridStatus, generation int64, spec *v1.WorkloadGridSpec, p *pass) {
	byPhase := map[v1.UnitPhase][]string{}
	told := 0
	for _, unit := range slices.Sorted(maps.Keys(p.states)) {
		state := p.states[unit]
		byPhase[state.Phase] = append(byPhase[state.Phase], unit)
		if state.Message != "" {
			if told++; told > toldFailures {
				state.Message = ""
				p.states[unit] = state
			}
		}
	}
	removing, unreachable := byPhase[v1.UnitRemoving], byPhase[v1.UnitUnreachable]
	broken := slices.Sorted(slices.Values(slices.Concat(byPhase[v1.UnitFailed], byPhase[v1.UnitStalled])))
	units := len(p.states) - len(removing) - len(byPhase[v1.UnitRetained])
	reachable := units - len(unreachable) - len(byPhase[v1.UnitHeld])
	status.ObservedGeneration = generation
	//nolint:gosec // no more than there are nodes
	status.Units, status.ReadyUnits = int32(units), int32(len(byPhase[v1.UnitReady]))
	//nolint:gosec // no more than there are nodes
	status.UnreachableUnits, status.FailedUnits = int32(len(unreachable)), int32(len(broken))
	status.States, status.UnlistedReadyUnits, status.UnlistedUnits = p.states, 0, 0
	if len(p.states) == 0 {
		status.States = nil
	}
	if !p.heldKey {
		status.GridUniqKey = spec.GridUniqKey
	}

	condition := conditionSetter(&status.Conditions, generation)
	notReady := slices.Sorted(slices.Values(slices.Concat(broken, byPhase[v1.UnitProgressing])))
	offline := ""
	if len(unreachable) > 0 {
		offline = fmt.Sprintf("; %d more cannot be reached: %s", len(unreachable), nameSome(unreachable))
	}
	if held := byPhase[v1.UnitHeld]; len(held) > 0 {
		offline += fmt.Sprintf("; %d more are held: %s", len(held), nameSome(held))
	}
	key := spec.GridUniqKey
	switch {
	case units == 0:
		condition(v1.ConditionReady, metav1.ConditionFalse, v1.ReasonNoUnits, fmt.Sprintf(
			"no node has the label %s, so there are no units", key))
		condition(v1.ConditionAvailable, metav1.ConditionFalse, v1.ReasonNoUnits, fmt.Sprintf(
			"no node has the label %s, so there are no units", key))
	case reachable == 0:
		condition(v1.ConditionReady, metav1.ConditionUnknown, v1.ReasonUnitsUnreachable,
			fmt.Sprintf("none of %d units can be reached", units))
		condition(v1.ConditionAvailable, metav1.ConditionUnknown, v1.ReasonUnitsUnreachable,
			fmt.Sprintf("none of %d units can be reached", units))
	default:
		if len(notReady) > 0 {
			condition(v1.ConditionReady, metav1.ConditionFalse, v1.ReasonUnitsNotReady, fmt.Sprintf(
				"%d of %d units are not ready: %s%s", len(notReady), reachable, nameSome(notReady), offline))
		} else {
			condition(v1.ConditionReady, metav1.ConditionTrue, v1.ReasonReady, fmt.Sprintf(
				"all %d units are ready%s%s", reachable, offline, describeOthers(p.others)))
		}
		silent := slices.DeleteFunc(slices.Clone(notReady), func(unit string) bool { return p.serving[unit] })
		if len(silent) > 0 {
			condition(v1.ConditionAvailable, metav1.ConditionFalse, v1.ReasonUnitsNotReady,
				fmt.Sprintf("%d of %d units do not have enough pods to serve: %s%s",
					len(silent), reachable, nameSome(silent), offline))
		} else {
			condition(v1.ConditionAvailable, metav1.ConditionTrue, v1.ReasonReady, fmt.Sprintf(
				"all %d units have pods to serve%s", reachable, offline))
		}
	}
	var doing []string
	if units := byPhase[v1.UnitProgressing]; len(units) > 0 {
		doing = append(doing, "in progress: "+nameSome(units))
	}
	due := slices.DeleteFunc(slices.Clone(removing), func(unit string) bool {
		return p.states[unit].Reason == v1.ReasonMassRemoval
	})
	if len(due) > 0 {
		earliest := p.states[due[0]].RemovalTime
		for _, unit := range due {
			if at := p.states[unit].RemovalTime; at.Before(earliest) {
				earliest = at
			}
		}
		doing = append(doing, fmt.Sprintf(
			"no node is in %s any more; workloads are removed from %s on", nameSome(due),
			earliest.UTC().Format(time.RFC3339)))
	}
	if len(doing) > 0 {
		condition(v1.ConditionProgressing, metav1.ConditionTrue, v1.ReasonUnitsProgressing, strings.Join(doing, "; "))
	} else {
		condition(v1.ConditionProgressing, metav1.ConditionFalse, v1.ReasonAsDesired, "")
	}
	stalled := byPhase[v1.UnitStalled]
	if len(stalled) > 0 {
		condition(v1.ConditionStalled, metav1.ConditionTrue, v1.ReasonUnitsStalled,
			describeProblems("make no progress", stalled, p.states, units))
	} else {
		condition(v1.ConditionStalled, metav1.ConditionFalse, v1.ReasonAsDesired, "")
	}
	switch failed := byPhase[v1.UnitFailed]; {
	case p.held != nil:
		text := gridchild.Tellable(p.held).Message
		if len(broken) > 0 {
			text += "; " + describeProblems("failed or stalled", broken, p.states, units)
		}
		condition(v1.ConditionDegraded, metav1.ConditionTrue, gridchild.Tellable(p.held).Reason, text)
	case len(failed) > 0 && len(stalled) > 0:
		condition(v1.ConditionDegraded, metav1.ConditionTrue, v1.ReasonUnitsFailed,
			describeProblems("failed", failed, p.states, units)+"; "+
				describeProblems("make no progress", stalled, p.states, units))
	case len(failed) > 0:
		condition(v1.ConditionDegraded, metav1.ConditionTrue, v1.ReasonUnitsFailed,
			describeProblems("failed", failed, p.states, units))
	case len(stalled) > 0:
		condition(v1.ConditionDegraded, metav1.ConditionTrue, v1.ReasonUnitsStalled,
			describeProblems("make no progress", stalled, p.states, units))
	default:
		condition(v1.ConditionDegraded, metav1.ConditionFalse, v1.ReasonAsDesired, "")
	}
	if text := noEffect(spec, p); text != "" {
		condition(v1.ConditionSpecWarning, metav1.ConditionTrue, v1.ReasonNoEffect, text)
	} else {
		meta.RemoveStatusCondition(&status.Conditions, v1.ConditionSpecWarning)
	}
}

// noEffect says what in the spec has no effect, which is probably a typing error.
func noEffect(spec *v1.WorkloadGridSpec, p *pass) string {
	var all []string
	var absent []string
	for unit := range spec.Templates {
		if _, ok := p.states[unit]; !ok {
			absent = append(absent, unit)
		}
	}
	if slices.Sort(absent); len(absent) > 0 {
		all = append(all, "spec.templates names units that do not exist: "+nameSome(absent))
	}
	if _, ok := spec.TemplatePool[string(v1.DefaultTemplate)]; ok {
		all = append(all, fmt.Sprintf(
			"spec.templatePool.%s is never used: that name means spec.template", v1.DefaultTemplate))
	}
	if len(p.keepSelector) > 0 {
		all = append(all,
			fmt.Sprintf("spec.unitLabel is not in the selectors of the workloads of %s, which existed before, "+
				"because a selector cannot be changed; delete these workloads, one after the other, to have them made "+
				"with it", nameSome(p.keepSelector)))
	}
	return strings.Join(append(all, p.noEffect...), "; ")
}

// describeOthers says which units have workloads of which other managers own fields.
func describeOthers(others map[string]string) string {
	if len(others) == 0 {
		return ""
	}
	units := slices.Sorted(maps.Keys(others))
	return fmt.Sprintf("; others own fields of the workloads of %s; for the first one: %s",
		nameSome(units), gridchild.Shorten(others[units[0]]))
}

// fit makes a status small enough: if there are many units, it leaves out the ready ones, and then the least important
// of the others.
func fit(status *v1.WorkloadGridStatus, most int) {
	if len(status.States) <= listedUnits {
		return
	}
	all := slices.SortedFunc(maps.Keys(status.States), func(a, b string) int {
		return cmp.Or(cmp.Compare(importance(status.States[a].Phase), importance(status.States[b].Phase)),
			cmp.Compare(a, b))
	})
	states := map[string]v1.UnitState{}
	size := 0
	for _, unit := range all {
		state := status.States[unit]
		if state.Phase == v1.UnitReady {
			status.UnlistedReadyUnits++
			continue
		}
		text, err := json.Marshal(state)
		if size += len(unit) + len(text) + len(`"":,`); err != nil || size > most {
			status.UnlistedUnits++
			continue
		}
		states[unit] = state
	}
	status.States = states
}

// importance orders phases; the most important one has the smallest value.
func importance(phase v1.UnitPhase) int {
	if phase == v1.UnitStalled {
		phase = v1.UnitFailed
	}
	return slices.Index([]v1.UnitPhase{
		v1.UnitFailed, v1.UnitRemoving, v1.UnitProgressing, v1.UnitHeld, v1.UnitUnreachable, v1.UnitRetained,
		v1.UnitReady,
	}, phase)
}

// statusMemory is what is remembered of the status of a grid.
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
		klog.FromContext(ctx).Info("The status is too large; leaving out more units", "bytes", m.limit())
		return after(now, now.Add(statusPause), again), nil
	}
	return reconcile.Result{}, fmt.Errorf("writing the status: %w", err)
}

// isTooLarge recognises the errors of kube-apiserver and etcd for an object that is too large.
func isTooLarge(err error) bool {
	return apierrors.IsRequestEntityTooLargeError(err) || strings.Contains(err.Error(), "too large") ||
		strings.Contains(err.Error(), "larger than max")
}

// stop fills in the conditions of a grid that cannot be reconciled.
func stop(conditions *[]metav1.Condition, generation int64, err error) {
	p := gridchild.Tellable(err)
	condition := conditionSetter(conditions, generation)
	condition(v1.ConditionReady, metav1.ConditionFalse, p.Reason, p.Message)
	condition(v1.ConditionProgressing, metav1.ConditionFalse, p.Reason, p.Message)
	condition(v1.ConditionDegraded, metav1.ConditionTrue, p.Reason, p.Message)
}

// degrade fills in the condition of a grid that cannot be reconciled now. What runs goes on.
func degrade(conditions *[]metav1.Condition, generation int64, err error) {
	p := gridchild.Tellable(err)
	conditionSetter(conditions, generation)(v1.ConditionDegraded, metav1.ConditionTrue, p.Reason, p.Message)
}

func conditionSetter(
	conditions *[]metav1.Condition, generation int64,
) func(kind string, status metav1.ConditionStatus, reason, message string) {
	return func(kind string, status metav1.ConditionStatus, reason, message string) {
		meta.SetStatusCondition(conditions, metav1.Condition{
			Type: kind, Status: status, Reason: reason, Message: message, ObservedGeneration: generation,
		})
	}
}

// nameSome names the first few units, and counts the rest.
func nameSome(units []string) string { return enumerate.First(units, namedUnits) }

// describeProblems names the first few different problems of units, each with the units that have it. they says what
// the units have in common.
func describeProblems(they string, failed []string, states map[string]v1.UnitState, units int) string {
	var order []string
	with := map[string][]string{}
	for _, unit := range failed {
		problem := states[unit].Reason + ": " + states[unit].Message
		if states[unit].Message == "" {
			problem = states[unit].Reason
		}
		if _, ok := with[problem]; !ok {
			order = append(order, problem)
		}
		with[problem] = append(with[problem], unit)
	}
	var parts []string
	for i, problem := range order {
		if i == namedUnits {
			rest := 0
			for _, problem := range order[i:] {
				rest += len(with[problem])
			}
			parts = append(parts, fmt.Sprintf("and %d more units", rest))
			break
		}
		parts = append(parts, fmt.Sprintf("%s: %s", nameSome(with[problem]), problem))
	}
	return fmt.Sprintf("%d of %d units %s: %s", len(failed), units, they, strings.Join(parts, "; "))
}
