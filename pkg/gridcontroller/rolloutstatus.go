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
	c := conditions{&status.Conditions, generation}
	c.set(v1.ConditionReady, metav1.ConditionFalse, v1.ReasonRollout, o.describe())
	switch {
	case o.halted():
		c.set(v1.ConditionDegraded, metav1.ConditionTrue, v1.ReasonRolloutHalted, o.describe())
	case o.progresses():
		c.set(v1.ConditionProgressing, metav1.ConditionTrue, v1.ReasonRollout, o.describe())
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
	switch {
	case o.halted(), o.status.Phase == v1.RolloutComplete && o.status.HaltTime != nil: // units failed later
		f.sums[sumHalted] = 1
	case o.progresses():
		f.sums[sumRolling] = 1
	case o.status.Phase == v1.RolloutAwaitingApproval:
		f.sums[sumWaiting] = 1
	}
}

// halted reports whether the rollout has halted or goes back, progresses whether it goes on by itself.
func (o *rolloutResult) halted() bool {
	return slices.Contains([]v1.RolloutPhase{
		v1.RolloutHalted, v1.RolloutRollingBack, v1.RolloutRolledBack, v1.RolloutOutage,
	}, o.status.Phase)
}

func (o *rolloutResult) progresses() bool {
	return o.status.Phase == v1.RolloutProgressing || o.status.Phase == v1.RolloutSoaking
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
	kind, reason := corev1.EventTypeNormal, v1.ReasonRollout
	if o.halted() {
		kind, reason = corev1.EventTypeWarning, v1.ReasonRolloutHalted
	}
	event(kind, reason, "Rollout", "%s", o.describe())
}
