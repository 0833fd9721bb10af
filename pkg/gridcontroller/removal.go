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
	"k8s.io/utils/ptr"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/gridcontroller/gridchild"
	"github.com/application-grid/application-grid/pkg/gridcontroller/rollout"
)

const (
	defaultMaxUnits = "10%"
	// lossWindow is the time within which units that lose something are counted together.
	lossWindow = 24 * time.Hour
)

// removal is spec.removal with its defaults.
type removal struct {
	retain bool
	grace  time.Duration
	max    *intstr.IntOrString
}

func (p *pass) removal() removal {
	spec := ptr.Deref(p.spec.Removal, v1.Removal{})
	r := removal{retain: spec.Policy == v1.RemovalRetain, grace: p.grace, max: spec.MaxUnits}
	if seconds := spec.GraceSeconds; seconds != nil {
		r.grace = time.Duration(*seconds) * time.Second
	}
	return r
}

// limit returns how many of so many units may be removed without an approval.
func (r removal) limit(units int) int {
	return max(rollout.Share(r.max, defaultMaxUnits, units), 1)
}

// token returns the value that approves the removal of these units. It has their number and a hash of their names, so
// that it does not approve the removal of others.
func token(units []string, more ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(append(slices.Sorted(slices.Values(units)), more...), "\n")))
	return fmt.Sprintf("%d-%s", len(units), hex.EncodeToString(sum[:3]))
}

// vanished is a child of a unit that has no node any more.
type vanished struct {
	live *child
	// at is when the child is deleted. known is set if that was told before.
	at    time.Time
	known bool
}

// findVanished finds the children of units without nodes.
func (p *pass) findVanished(ctx context.Context) {
	for _, name := range slices.Sorted(maps.Keys(p.children)) {
		if _, wanted := p.assigned.Units[name]; wanted {
			continue
		}
		live := p.children[name]
		if _, wanted := p.assigned.ByUnit[live.unit]; wanted {
			// The unit has another child. A person must decide which of the two to delete.
			klog.FromContext(ctx).V(2).Info("A unit has two children",
				"unit", live.unit, "child", name, "kept", p.assigned.ByUnit[live.unit])
			continue
		}
		p.gone = append(p.gone, vanished{live: live})
	}
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
func (p *pass) losses() []loss {
	rules, m := p.removal(), p.memory
	var all []loss
	for i := range p.gone {
		v := &p.gone[i]
		told := p.status.States[v.live.unit]
		if told.RemovalApproved {
			m.approved[v.live.unit] = true
		}
		v.at, v.known = m.removals[v.live.unit]
		if !v.known { // an earlier controller may have set the time already
			v.at = p.clock.Now().Add(rules.grace).Truncate(time.Second)
			if told.Phase == v1.UnitRemoving && told.RemovalTime != nil {
				v.at, v.known = told.RemovalTime.Time, true
			}
		}
		if !v.live.deleting && !rules.retain && !v.live.held {
			all = append(all, loss{v.live.unit, v.at.UTC().Format(time.RFC3339), vanishes})
		}
	}
	for _, unit := range p.names {
		live, to := p.child(unit), p.targets[unit]
		if live == nil || live.held || live.deleting || to.templates == nil {
			continue
		}
		replicas, set, err := to.scale.Replicas(unit)
		of, variant, marked := strings.Cut(live.variant, "@")
		revision, wanted, _ := strings.Cut(to.mark, "@")
		switch {
		case err == nil && set && replicas == 0 && live.progress.replicas > 0:
			all = append(all, loss{unit, strconv.FormatInt(p.grid.GetGeneration(), 10), zeroed})
		case marked && to.mark != "" && of == revision && variant != wanted:
			all = append(all, loss{unit, variant + ">" + wanted, moved})
		}
	}
	return all
}

// holdLosses holds what units are about to lose if those and the ones that have lost something lately are more than may
// without an approval. It returns the units that are held: they are left as they are.
func (p *pass) holdLosses() (held map[string]bool) {
	now, m := p.clock.Now(), p.memory
	maps.DeleteFunc(m.losses, func(_ string, at time.Time) bool { return now.Sub(at) > lossWindow })
	all := p.losses()
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
	units := len(p.assigned.ByUnit) + len(p.gone)
	if limit := p.removal().limit(units); len(waiting) > 0 && len(waiting)+len(m.losses) > limit {
		names := make([]string, 0, len(waiting))
		byKind := map[lossKind][]string{}
		for _, l := range waiting {
			names = append(names, l.unit+"="+l.at)
			byKind[l.kind] = append(byKind[l.kind], l.unit)
		}
		approval := token(names)
		into := held
		if p.grid.GetAnnotations()[v1.AnnotationApproveRemoval] == approval {
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
				strings.Join(texts, ", "), limit, units, p.Child.Kind, v1.AnnotationApproveRemoval, approval)
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
			p.targets[l.unit] = target{update: p.targets[l.unit].update}
		case !m.approved[l.unit] && !counted:
			m.losses[l.unit] = now
		}
	}
	return held
}

// removeVanished deletes the children of units without nodes after the grace time, if they are not held.
func (p *pass) removeVanished(ctx context.Context, held map[string]bool) {
	rules, now, m := p.removal(), p.clock.Now(), p.memory
	removals := map[string]time.Time{}
	for _, v := range p.gone {
		state := liveState(v.live, v1.UnitRemoving)
		state.Reason = v1.ReasonUnitVanished
		if going := !rules.retain && !v.live.held; going {
			removals[v.live.unit] = v.at
			state.RemovalTime, state.RemovalApproved = &metav1.Time{Time: v.at}, m.approved[v.live.unit]
			if !v.known {
				p.vanished = append(p.vanished, v.live.unit)
			}
		}
		switch {
		case rules.retain:
			state.Phase = v1.UnitRetained
		case v.live.held:
			state = heldState(v.live)
		case v.live.deleting: // the end of the deletion will be an event
		case held[v.live.unit]:
			state.Reason = v1.ReasonMassRemoval
			state.Message = "the removal of so many units at once waits for an approval"
		case now.Before(v.at):
			p.lookAgain(v.at)
		case p.spent():
			p.lookAgain(now)
		default:
			if err := p.removeUnit(ctx, v); err != nil {
				state.Reason, state.Message = v1.ReasonSyncFailed, gridchild.Shorten(err.Error())
				p.lookAgain(now.Add(firstRetry * 5))
			} else {
				p.removed = append(p.removed, v.live.unit)
				if !m.approved[v.live.unit] {
					m.losses[v.live.unit] = now
				}
			}
		}
		p.states[v.live.unit] = state
	}
	m.removals = removals
}

// lossesLeft are the grid's new status.losses.
func (p *pass) lossesLeft() []v1.UnitLoss {
	all := make([]v1.UnitLoss, 0, len(p.memory.losses))
	for _, unit := range slices.Sorted(maps.Keys(p.memory.losses)) {
		at := p.memory.losses[unit].Truncate(time.Second)
		all = append(all, v1.UnitLoss{Unit: unit, Time: metav1.NewTime(at)})
	}
	return all
}

// removeUnit deletes the child of a unit that has had no node for the grace time. The cache of nodes may be wrong: its
// watch may have fallen silent, or come from a server that had lost its data. So the API server is asked before a site
// is taken down.
func (p *pass) removeUnit(ctx context.Context, v vanished) error {
	units := []string{v.live.unit}
	if named := strings.TrimPrefix(v.live.name, p.owner.Name+"-"); named != v.live.unit {
		units = append(units, named) // the label that names the unit may have been changed
	}
	for _, unit := range units {
		node, err := p.nodeIn(ctx, p.owner.Key, unit)
		if err != nil {
			return fmt.Errorf("before %s %s is removed: %w", p.Child.Kind, v.live.name, err)
		}
		if node != "" {
			return fmt.Errorf("%s %s is not removed: node %s is in the unit, which the watch of nodes has not "+
				"shown yet",
				p.Child.Kind, v.live.name, node)
		}
	}
	return p.remove(ctx, p.object(p.owner.Namespace, v.live))
}

// holdKey holds a change of gridUniqKey, the key that the workloads follow, that would move or remove so many workloads
// that it needs an approval.
func (p *pass) holdKey() {
	m, follows := p.memory, p.status.GridUniqKey
	if m.losses == nil {
		m.losses, m.approved = map[string]time.Time{}, map[string]bool{}
		for _, told := range p.status.Losses {
			m.losses[told.Unit] = told.Time.Time
		}
	}
	var units []string
	for _, live := range p.children {
		if follows == "" && live.key != v1.KeyLabelValue(p.spec.GridUniqKey) { // the status is lost
			follows = live.key
		}
		if !live.deleting {
			units = append(units, live.unit)
		}
	}
	if follows == "" || follows == p.spec.GridUniqKey {
		m.key = ""
		return
	}
	limit := p.removal().limit(len(units))
	if m.key == p.spec.GridUniqKey || len(units) <= limit {
		return
	}
	slices.Sort(units)
	approval := token(units, follows, p.spec.GridUniqKey, strconv.FormatInt(p.grid.GetGeneration(), 10))
	if p.grid.GetAnnotations()[v1.AnnotationApproveRemoval] == approval {
		m.key = p.spec.GridUniqKey
		for _, unit := range units {
			m.approved[unit] = true
		}
		return
	}
	p.heldKey = true
	p.held = gridchild.Errorf(v1.ReasonMassRemoval,
		"spec.gridUniqKey has changed from %s to %s, which moves or removes the %ss of %d units (%s), and only %d "+
			"may go without an approval, so nothing is changed; if that is meant, annotate the grid with %s=%s",
		follows, p.spec.GridUniqKey, p.Child.Kind, len(units), nameSome(units), limit,
		v1.AnnotationApproveRemoval, approval)
	for _, live := range p.children {
		p.states[live.unit] = unitState("", result{child: live})
	}
}
