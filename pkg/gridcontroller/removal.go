package gridcontroller

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
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
	// leastWindow is the least time within which vanished units are counted together. Without it, a grace time of 0
	// would allow the removal of all units, one after the other.
	leastWindow = time.Minute
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
		all = append(all, vanished{live.unit, live})
	}
	return all
}

// removeVanished deletes the children of units without nodes after the grace time, unless they are too many at once.
func (r *workloadReconciler) removeVanished(
	ctx context.Context, grid v1.Object, o *gridchild.Owner, a *assignment, m *gridMemory, p *pass,
) {
	spec, status := v1.Workload(grid)
	rules, now := r.removalOf(spec), r.clock.Now()
	gone := r.vanishedOf(ctx, a)
	window := max(rules.grace, leastWindow)
	m.removed = slices.DeleteFunc(m.removed, func(at time.Time) bool { return now.Sub(at) > window })

	removals, since, approved := map[string]time.Time{}, map[string]time.Time{}, map[string]bool{}
	var waiting []string
	for _, v := range gone {
		told := status.States[v.unit]
		if v.live.deleting || rules.retain {
			continue
		}
		if m.approved[v.unit] || told.RemovalApproved {
			approved[v.unit] = true
		} else {
			waiting = append(waiting, v.unit)
		}
	}
	limit := rules.limit(len(a.ByUnit) + len(gone))
	held := len(waiting) > 0 && len(waiting)+len(m.removed) > limit
	if held && grid.GetAnnotations()[v1.AnnotationApproveRemoval] == token(waiting) {
		held = false
		for _, unit := range waiting {
			approved[unit] = true
		}
	}
	if held {
		p.held = gridchild.Errorf(v1.ReasonMassRemoval,
			"%d units have no node any more (%s), and only %d of %d may go within %s without an approval, so the %ss "+
				"of all of them stay; if they are to be removed, annotate the grid with %s=%s",
			len(waiting), nameSome(waiting), limit, len(a.ByUnit)+len(gone), window, r.Child.Kind,
			v1.AnnotationApproveRemoval, token(waiting))
	}
	for _, v := range gone {
		if rules.retain {
			p.states[v.unit] = leftState(v.live, v1.UnitRetained)
			continue
		}
		at, known := m.removals[v.unit]
		if !known {
			// An earlier controller may have set the time already.
			if told := status.States[v.unit]; told.Phase == v1.UnitRemoving && told.RemovalTime != nil {
				at = told.RemovalTime.Time
			} else {
				at = now.Add(rules.grace).Truncate(time.Second)
				p.vanished = append(p.vanished, v.unit)
			}
		}
		removals[v.unit] = at
		if since[v.unit] = m.since[v.unit]; since[v.unit].IsZero() {
			since[v.unit] = now
		}
		state := leftState(v.live, v1.UnitRemoving)
		when := metav1.NewTime(at)
		state.Reason, state.RemovalTime, state.RemovalApproved = v1.ReasonUnitVanished, &when, approved[v.unit]
		switch {
		case v.live.deleting: // the end of the deletion will be an event
		case held && !approved[v.unit]:
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
				m.removed = append(m.removed, since[v.unit])
			}
		}
		p.states[v.unit] = state
	}
	m.removals, m.since, m.approved = removals, since, approved
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
	return r.remove(ctx, r.kind, o.Namespace, v.live)
}

// holdKey reports whether the spec's gridUniqKey differs from the key that the workloads follow, and the change would
// move or remove so many workloads that it needs an approval.
func (r *workloadReconciler) holdKey(grid v1.Object, children map[string]*child, m *gridMemory, p *pass) bool {
	spec, status := v1.Workload(grid)
	follows := status.GridUniqKey
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
	approval := token(units, follows, spec.GridUniqKey)
	if grid.GetAnnotations()[v1.AnnotationApproveRemoval] == approval {
		m.key = spec.GridUniqKey
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
