package gridcontroller

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/klog/v2"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/gridchild"
)

const (
	// defaultMaxUnits is the default of spec.removal.maxUnits.
	defaultMaxUnits = "10%"
	// lossWindow is the time within which units that lose something are counted together.
	lossWindow = 24 * time.Hour
)

// removal is spec.removal with its defaults.
type removal struct {
	retain bool
	grace  time.Duration
	max    intstr.IntOrString
}

func (s *shared) removalOf(spec *v1.WorkloadGridSpec) removal {
	r := removal{grace: s.grace, max: intstr.FromString(defaultMaxUnits)}
	if spec.Removal == nil {
		return r
	}
	r.retain = spec.Removal.Policy == v1.RemovalRetain
	if seconds := spec.Removal.GraceSeconds; seconds != nil {
		r.grace = time.Duration(*seconds) * time.Second
	}
	if spec.Removal.MaxUnits != nil {
		r.max = *spec.Removal.MaxUnits
	}
	return r
}

// limit returns how many of so many units may be removed without an approval.
func (r removal) limit(units int) int {
	limit, err := intstr.GetScaledValueFromIntOrPercent(&r.max, units, false)
	if err != nil { // the value is not valid, and someone else's CRD has accepted it
		limit = 0
	}
	return max(limit, 1)
}

// token returns the value that approves the removal of these units. It has their number and a hash of their names, so
// that it does not approve the removal of others.
func token(units []string, more ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(append(slices.Sorted(slices.Values(units)), more...), "\n")))
	return fmt.Sprintf("%d-%s", len(units), hex.EncodeToString(sum[:3]))
}

// vanished is a child of a unit that has no node any more.
type vanished struct {
	unit string
	live *child
	// at is when the child is deleted. known is set if that was told before.
	at    time.Time
	known bool
}

// vanishedOf returns the children of units without nodes.
func (r *workloadReconciler) vanishedOf(ctx context.Context, a *assignment) []vanished {
	var all []vanished
	for _, name := range slices.Sorted(maps.Keys(a.children)) {
		if _, wanted := a.Units[name]; wanted {
			continue
		}
		live := a.children[name]
		if _, wanted := a.ByUnit[live.unit]; wanted {
			// The unit has another child. A person must decide which of the two to delete.
			klog.FromContext(ctx).V(2).Info("A unit has two children",
				"unit", live.unit, "child", name, "kept", a.ByUnit[live.unit])
			continue
		}
		all = append(all, vanished{unit: live.unit, live: live})
	}
	return all
}

// loss is what a unit is about to lose. at tells it from another loss of the same.
type loss struct {
	unit, at string
	kind     lossKind
}

// lossKind says what units lose.
type lossKind string

const (
	vanishes lossKind = "have no node any more"
	zeroed   lossKind = "are to be scaled to 0"
	moved    lossKind = "lose or gain an override, because labels of nodes have changed"
)

// losses returns what units are about to lose, although nobody has asked for it unit by unit.
func (r *workloadReconciler) losses(
	grid v1.Object, t targets, a *assignment, gone []vanished, m *gridMemory,
) []loss {
	spec, status := v1.Workload(grid)
	rules, now := r.removalOf(spec), r.clock.Now()
	var all []loss
	for i := range gone {
		v := &gone[i]
		if told := status.States[v.unit]; told.RemovalApproved {
			m.approved[v.unit] = true
		}
		at, known := m.removals[v.unit]
		if !known { // an earlier controller may have set the time already
			at = now.Add(rules.grace).Truncate(time.Second)
			if told := status.States[v.unit]; told.Phase == v1.UnitRemoving && told.RemovalTime != nil {
				at, known = told.RemovalTime.Time, true
			}
		}
		v.at, v.known = at, known
		if !v.live.deleting && !rules.retain && !v.live.held {
			all = append(all, loss{v.unit, at.UTC().Format(time.RFC3339), vanishes})
		}
	}
	for _, unit := range slices.Sorted(maps.Keys(t)) {
		live, to := a.child(unit), t[unit]
		if live == nil || live.held || live.deleting || to.templates == nil {
			continue
		}
		replicas, set, err := to.scale.Replicas(unit)
		of, variant, marked := strings.Cut(live.variant, "@")
		revision, wanted, _ := strings.Cut(to.mark, "@")
		switch {
		case err == nil && set && replicas == 0 && live.progress.replicas > 0:
			all = append(all, loss{unit, strconv.FormatInt(grid.GetGeneration(), 10), zeroed})
		case marked && to.mark != "" && of == revision && variant != wanted:
			all = append(all, loss{unit, variant + ">" + wanted, moved})
		}
	}
	return all
}

// holdLosses holds what units are about to lose if those and the ones that have lost something lately are more than may
// without an approval. It returns the units that are held: they are left as they are.
func (r *workloadReconciler) holdLosses(
	grid v1.Object, t targets, a *assignment, gone []vanished, m *gridMemory, p *pass,
) (held map[string]bool) {
	spec, status := v1.Workload(grid)
	now := r.clock.Now()
	if m.losses == nil {
		m.losses, m.approved = map[string]time.Time{}, map[string]bool{}
		for _, told := range status.Losses {
			m.losses[told.Unit] = told.Time.Time
		}
	}
	maps.DeleteFunc(m.losses, func(_ string, at time.Time) bool { return now.Sub(at) > lossWindow })
	all := r.losses(grid, t, a, gone, m)
	still := map[string]bool{}
	var waiting []loss
	for _, l := range all {
		still[l.unit] = true
		if _, counted := m.losses[l.unit]; !m.approved[l.unit] && (!counted || l.kind == vanishes) {
			waiting = append(waiting, l)
		}
	}
	maps.DeleteFunc(m.approved, func(unit string, _ bool) bool { return !still[unit] })
	held = map[string]bool{}
	units := len(a.ByUnit) + len(gone)
	if limit := r.removalOf(spec).limit(units); len(waiting) > 0 && len(waiting)+len(m.losses) > limit {
		names := make([]string, 0, len(waiting))
		byKind := map[lossKind][]string{}
		for _, l := range waiting {
			names = append(names, l.unit+"="+l.at)
			byKind[l.kind] = append(byKind[l.kind], l.unit)
		}
		approval := token(names)
		into := held
		if grid.GetAnnotations()[v1.AnnotationApproveRemoval] == approval {
			into = m.approved
		} else {
			var texts []string
			for _, kind := range []lossKind{vanishes, zeroed, moved} {
				if units := byKind[kind]; len(units) > 0 {
					texts = append(texts, fmt.Sprintf("%d units %s (%s)", len(units), kind, nameSome(units)))
				}
			}
			p.held = gridchild.Errorf(v1.ReasonMassRemoval,
				"%s, and only %d of %d may within 24 hours without an approval, so the %ss of all of them stay; "+
					"if it is meant, annotate the grid with %s=%s",
				strings.Join(texts, ", "), limit, units, r.Child.Kind, v1.AnnotationApproveRemoval, approval)
		}
		for _, l := range waiting {
			into[l.unit] = true
		}
	}
	for _, l := range all {
		_, counted := m.losses[l.unit]
		switch {
		case l.kind == vanishes: // it is counted when it is removed
		case held[l.unit]:
			t[l.unit] = target{update: t[l.unit].update}
		case !m.approved[l.unit] && !counted:
			m.losses[l.unit] = now
		}
	}
	return held
}

// removeVanished deletes the children of units without nodes after the grace time, if they are not held.
func (r *workloadReconciler) removeVanished(
	ctx context.Context, grid v1.Object, o *gridchild.Owner, gone []vanished, held map[string]bool,
	m *gridMemory, p *pass,
) {
	spec, _ := v1.Workload(grid)
	rules, now := r.removalOf(spec), r.clock.Now()
	removals := map[string]time.Time{}
	for _, v := range gone {
		if rules.retain {
			state := liveState(v.live, v1.UnitRetained)
			state.Reason = v1.ReasonUnitVanished
			p.states[v.unit] = state
			continue
		}
		if v.live.held {
			p.states[v.unit] = heldState(v.live)
			continue
		}
		at := v.at
		if !v.known {
			p.vanished = append(p.vanished, v.unit)
		}
		removals[v.unit] = at
		state := liveState(v.live, v1.UnitRemoving)
		when := metav1.NewTime(at)
		state.Reason, state.RemovalTime, state.RemovalApproved = v1.ReasonUnitVanished, &when, m.approved[v.unit]
		switch {
		case v.live.deleting: // the end of the deletion will be an event
		case held[v.unit]:
			state.Reason = v1.ReasonMassRemoval
			state.Message = "the removal of so many units at once waits for an approval"
		case now.Before(at):
			p.lookAgain(at)
		case p.spent(r.clock.Now()):
			p.lookAgain(now)
		default:
			if err := r.removeUnit(ctx, o, v); err != nil {
				state.Reason, state.Message = v1.ReasonSyncFailed, gridchild.Shorten(err.Error())
				p.lookAgain(now.Add(firstRetry * 5))
			} else {
				p.removed = append(p.removed, v.unit)
				if !m.approved[v.unit] {
					m.losses[v.unit] = now
				}
			}
		}
		p.states[v.unit] = state
	}
	m.removals = removals
}

// removeUnit deletes the child of a unit that has had no node for the grace time. The cache of nodes may be wrong: its
// watch may have fallen silent, or come from a server that had lost its data. So the API server is asked before a site
// is taken down.
func (r *workloadReconciler) removeUnit(ctx context.Context, o *gridchild.Owner, v vanished) error {
	units := []string{v.unit}
	if named := strings.TrimPrefix(v.live.name, o.Name+"-"); named != v.unit {
		units = append(units, named) // the label that names the unit may have been changed
	}
	for _, unit := range units {
		node, err := r.nodeIn(ctx, o.Key, unit)
		if err != nil {
			return fmt.Errorf("before %s %s is removed: %w", r.Child.Kind, v.live.name, err)
		}
		if node != "" {
			return fmt.Errorf("%s %s is not removed: node %s is in the unit, which the watch of nodes has not "+
				"shown yet",
				r.Child.Kind, v.live.name, node)
		}
	}
	return r.remove(ctx, r.object(o.Namespace, v.live))
}

// holdKey reports whether the spec's gridUniqKey differs from the key that the workloads follow, and the change would
// move or remove so many workloads that it needs an approval.
func (r *workloadReconciler) holdKey(grid v1.Object, children map[string]*child, m *gridMemory, p *pass) bool {
	spec, status := v1.Workload(grid)
	follows := status.GridUniqKey
	for _, live := range children { // the status may be lost
		if follows == "" && live.key != v1.KeyLabelValue(spec.GridUniqKey) {
			follows = live.key
		}
	}
	if follows == "" || follows == spec.GridUniqKey {
		m.key = ""
		return false
	}
	if m.key == spec.GridUniqKey {
		return false
	}
	var units []string
	for _, live := range children {
		if !live.deleting {
			units = append(units, live.unit)
		}
	}
	slices.Sort(units)
	limit := r.removalOf(spec).limit(len(units))
	if len(units) <= limit {
		return false
	}
	approval := token(units, follows, spec.GridUniqKey, strconv.FormatInt(grid.GetGeneration(), 10))
	if grid.GetAnnotations()[v1.AnnotationApproveRemoval] == approval {
		m.key = spec.GridUniqKey
		if m.losses == nil {
			m.losses = map[string]time.Time{}
		}
		m.approved = map[string]bool{}
		for _, unit := range units {
			m.approved[unit] = true
		}
		return false
	}
	p.held = gridchild.Errorf(v1.ReasonMassRemoval,
		"spec.gridUniqKey has changed from %s to %s, which moves or removes the %ss of %d units (%s), and only %d "+
			"may go without an approval, so nothing is changed; if that is meant, annotate the grid with %s=%s",
		follows, spec.GridUniqKey, r.Child.Kind, len(units), nameSome(units), limit,
		v1.AnnotationApproveRemoval, approval)
	for _, live := range children {
		p.states[live.unit] = unitState("", result{child: live})
	}
	return true
}
