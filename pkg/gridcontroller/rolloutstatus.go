package gridcontroller

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/gridchild"
)

// rolloutResult is what a pass has found about a rollout. nil is that of a grid without one.
type rolloutResult struct {
	current, update string
	// before and status are the rollout's status before the pass and after it.
	before, status *v1.RolloutStatus
}

// summarize writes the result into the status.
func (o *rolloutResult) summarize(status *v1.WorkloadGridStatus, generation int64) {
	if o == nil {
		status.CurrentRevision, status.UpdateRevision, status.Rollout = "", "", nil
		return
	}
	status.CurrentRevision, status.UpdateRevision, status.Rollout = o.current, o.update, o.status.DeepCopy()
	if o.status == nil || o.status.Phase == v1.RolloutComplete {
		return
	}
	condition := conditionSetter(&status.Conditions, generation)
	condition(v1.ConditionReady, metav1.ConditionFalse, v1.ReasonRollout, o.describe())
	switch o.status.Phase {
	case v1.RolloutHalted, v1.RolloutRollingBack, v1.RolloutRolledBack, v1.RolloutOutage:
		condition(v1.ConditionDegraded, metav1.ConditionTrue, v1.ReasonRolloutHalted, o.describe())
	case v1.RolloutProgressing, v1.RolloutSoaking:
		condition(v1.ConditionProgressing, metav1.ConditionTrue, v1.ReasonRollout, o.describe())
	default:
	}
}

// dropped reports whether a status that was written lacks units that it should list.
func (o *rolloutResult) dropped(written *v1.WorkloadGridStatus) bool {
	return o.status != nil && (written.Rollout == nil || len(written.Rollout.Units) < len(o.status.Units))
}

// count adds the rollout to the metrics.
func (o *rolloutResult) count(f *figures) {
	if o == nil || o.status == nil {
		return
	}
	if o.status.Phase != v1.RolloutComplete {
		f.waves = slices.Clone(o.status.Waves)
	}
	switch o.status.Phase {
	case v1.RolloutProgressing, v1.RolloutSoaking:
		f.rolling = 1
	case v1.RolloutHalted, v1.RolloutRollingBack, v1.RolloutRolledBack, v1.RolloutOutage:
		f.halted = 1
	case v1.RolloutAwaitingApproval:
		f.waiting = 1
	case v1.RolloutComplete:
		if o.status.HaltTime != nil { // units failed later, and others wait for the change
			f.halted = 1
		}
	default:
	}
}

// describe returns the state of the rollout in one line.
func (o *rolloutResult) describe() string {
	parts := []string{"rollout of " + o.update}
	if o.status.Wave != "" {
		parts = append(parts, "wave "+o.status.Wave)
	}
	parts = append(parts, string(o.status.Phase))
	if o.status.Message != "" {
		parts = append(parts, o.status.Message)
	}
	return gridchild.Shorten(strings.Join(parts, ": "))
}

// tell records an event if the rollout has reached another phase or wave.
func (o *rolloutResult) tell(m *gridMemory, event func(kind, reason, action, format string, args ...any)) {
	mark := fmt.Sprint(o.update, "/", o.status.Wave, "/", o.status.Phase)
	// A controller before this one may have recorded it.
	if m.rollout.mark == "" && o.before != nil && o.before.Phase != "" {
		m.rollout.mark = fmt.Sprint(o.update, "/", o.before.Wave, "/", o.before.Phase)
	}
	if m.rollout.mark == mark {
		return
	}
	m.rollout.mark = mark
	switch o.status.Phase {
	case v1.RolloutHalted, v1.RolloutRollingBack, v1.RolloutRolledBack, v1.RolloutOutage:
		event(corev1.EventTypeWarning, v1.ReasonRolloutHalted, "Rollout", "%s", o.describe())
	default:
		event(corev1.EventTypeNormal, v1.ReasonRollout, "Rollout", "%s", o.describe())
	}
}
