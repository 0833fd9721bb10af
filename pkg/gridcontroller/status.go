package gridcontroller

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
)

const (
	// namedUnits is how many units a condition or an event names before it only counts.
	namedUnits = 5
	// toldFailures is how many units' states tell their problem in full: an object has a largest size.
	toldFailures = 500
)

// unitState is what is told of a unit.
func unitState(template string, r result) v1.UnitState {
	state := v1.UnitState{Phase: v1.UnitProgressing, Template: template}
	if live := r.child; live != nil {
		state.Replicas, state.UpdatedReplicas = live.progress.replicas, live.progress.updated
		state.ReadyReplicas, state.AvailableReplicas = live.progress.ready, live.progress.available
		if live.progress.complete && live.observed && !live.deleting && !r.applied && r.again.IsZero() {
			state.Phase = v1.UnitReady
		}
	}
	if r.problem != nil {
		state.Phase, state.Reason, state.Message = v1.UnitFailed, r.problem.reason, r.problem.message
	}
	return state
}

// removingState is what is told of a unit that has vanished.
func removingState(live *child, at time.Time) v1.UnitState {
	when := metav1.NewTime(at)
	return v1.UnitState{
		Phase: v1.UnitRemoving, Reason: v1.ReasonUnitVanished, RemovalTime: &when,
		Replicas: live.progress.replicas, UpdatedReplicas: live.progress.updated,
		ReadyReplicas: live.progress.ready, AvailableReplicas: live.progress.available,
	}
}

// summarize fills in all of a status but its conditions' times; key is the grid's gridUniqKey.
func summarize(status *v1.WorkloadGridStatus, generation int64, key string, states map[string]v1.UnitState) {
	byPhase := map[v1.UnitPhase][]string{}
	told := 0
	for _, unit := range slices.Sorted(maps.Keys(states)) {
		state := states[unit]
		byPhase[state.Phase] = append(byPhase[state.Phase], unit)
		if state.Phase == v1.UnitFailed {
			if told++; told > toldFailures {
				state.Message = ""
				states[unit] = state
			}
		}
	}
	removing, failed := byPhase[v1.UnitRemoving], byPhase[v1.UnitFailed]
	units := len(states) - len(removing)
	ready := len(byPhase[v1.UnitReady])
	status.ObservedGeneration = generation
	status.Units, status.ReadyUnits = int32(units), int32(ready) //nolint:gosec // no more than there are nodes
	status.States = states
	if len(states) == 0 {
		status.States = nil
	}

	condition := conditionSetter(&status.Conditions, generation)
	notReady := slices.Sorted(slices.Values(slices.Concat(failed, byPhase[v1.UnitProgressing])))
	switch {
	case units == 0:
		condition(v1.ConditionReady, false, v1.ReasonNoUnits, fmt.Sprintf("no node has the label %s, so there are no units", key))
	case len(notReady) > 0:
		condition(v1.ConditionReady, false, v1.ReasonUnitsNotReady, fmt.Sprintf("%d of %d units are not ready: %s", len(notReady), units, nameSome(notReady)))
	default:
		condition(v1.ConditionReady, true, v1.ReasonReady, fmt.Sprintf("all %d units are ready", units))
	}
	var doing []string
	if units := byPhase[v1.UnitProgressing]; len(units) > 0 {
		doing = append(doing, "in progress: "+nameSome(units))
	}
	if len(removing) > 0 {
		earliest := states[removing[0]].RemovalTime
		for _, unit := range removing {
			if at := states[unit].RemovalTime; at.Before(earliest) {
				earliest = at
			}
		}
		doing = append(doing, fmt.Sprintf("no node is in %s any more; workloads are removed from %s on", nameSome(removing), earliest.UTC().Format(time.RFC3339)))
	}
	if len(doing) > 0 {
		condition(v1.ConditionProgressing, true, v1.ReasonUnitsProgressing, strings.Join(doing, "; "))
	} else {
		condition(v1.ConditionProgressing, false, v1.ReasonAsDesired, "")
	}
	if len(failed) > 0 {
		condition(v1.ConditionDegraded, true, v1.ReasonUnitsFailed, describeFailures(failed, states, units))
	} else {
		condition(v1.ConditionDegraded, false, v1.ReasonAsDesired, "")
	}
}

// stop fills in the conditions of a grid that nothing can be done for.
func stop(conditions *[]metav1.Condition, generation int64, p *problem) {
	condition := conditionSetter(conditions, generation)
	condition(v1.ConditionReady, false, p.reason, p.message)
	condition(v1.ConditionProgressing, false, p.reason, p.message)
	condition(v1.ConditionDegraded, true, p.reason, p.message)
}

func conditionSetter(conditions *[]metav1.Condition, generation int64) func(kind string, is bool, reason, message string) {
	return func(kind string, is bool, reason, message string) {
		status := metav1.ConditionFalse
		if is {
			status = metav1.ConditionTrue
		}
		meta.SetStatusCondition(conditions, metav1.Condition{
			Type: kind, Status: status, Reason: reason, Message: message, ObservedGeneration: generation,
		})
	}
}

// nameSome names the first few units, and counts the rest.
func nameSome(units []string) string {
	if len(units) <= namedUnits {
		return strings.Join(units, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(units[:namedUnits], ", "), len(units)-namedUnits)
}

// describeFailures tells the problems of the first few units, the same problem once.
func describeFailures(failed []string, states map[string]v1.UnitState, units int) string {
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
	return fmt.Sprintf("%d of %d units failed: %s", len(failed), units, strings.Join(parts, "; "))
}
