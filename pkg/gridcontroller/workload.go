package gridcontroller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/gridchild"
	"github.com/application-grid/application-grid/pkg/gridrevision"
	"github.com/application-grid/application-grid/pkg/workloadpatch"
)

const (
	// atOnce is the most children of one grid that are written concurrently.
	atOnce = 16
	// perPass is the most children that are written before the status is written.
	perPass = 256
	// passBudget is how long a pass over a grid may start requests. Other grids wait for the worker.
	passBudget = 2 * time.Second
	// statusPause is the least time between two writes of one grid's status.
	statusPause = 500 * time.Millisecond
)

// shared has what all reconcilers use.
type shared struct {
	cluster
	recorder events.EventRecorder
	gauges   *gauges
	// grace is how long a workload outlives its unit, if its grid does not say.
	grace time.Duration
	// limits restrict what grids may ask for.
	limits Limits
	// schemas are for the patches of overrides; nil if there can be none.
	schemas *workloadpatch.Schemas
}

// Limits restrict what grids may ask for, in clusters that several tenants share.
type Limits struct {
	// UnitKeys are the keys of node labels that a grid may use; if there are none, it may use any.
	UnitKeys []string
	// UnitsPerGrid is the most units of one grid; 0 for no limit.
	UnitsPerGrid int
}

// check returns an error if a grid exceeds the limits.
func (l Limits) check(key string, units int) error {
	switch {
	case len(l.UnitKeys) > 0 && !slices.Contains(l.UnitKeys, key):
		return gridchild.Errorf(v1.ReasonNotAllowed,
			"spec.gridUniqKey %q is not one of those that the controller's --allowed-unit-keys names: %s",
			key, strings.Join(l.UnitKeys, ", "))
	case l.UnitsPerGrid > 0 && units > l.UnitsPerGrid:
		return gridchild.Errorf(v1.ReasonNotAllowed,
			"spec.gridUniqKey %q makes %d units, and the controller's --max-units-per-grid allows %d; "+
				"nothing is changed", key, units, l.UnitsPerGrid)
	}
	return nil
}

// workloadReconciler reconciles the grids of one kind of workload.
type workloadReconciler struct {
	shared
	kind

	units *units

	grids memories[gridMemory]
}

// gridMemory is what is remembered of a grid between reconciliations.
type gridMemory struct {
	// desired and templates are valid for this generation and these labels of the grid. desired has the identities of
	// the units' children, templates the results of each template, by its name.
	generation int64
	labels     map[string]string
	desired    map[string]identity
	templates  map[string]*templateMemory
	// children has what is remembered of each child, by unit.
	children map[string]*childMemory
	// removals has when the workloads of vanished units are deleted.
	removals map[string]time.Time
	// losses are status.losses. approved has the units whose losses someone has approved. key is the gridUniqKey to
	// which a change was approved.
	losses   map[string]time.Time
	approved map[string]bool
	key      string
	// rollout is what is remembered of the rollout.
	rollout rolloutMemory
	// told has the failures for which there was an event, by unit. toldGrid is the last one about the grid as a whole.
	told     map[string]gridchild.Error
	toldGrid gridchild.Error
	status   statusMemory
}

// templateMemory has the results of the attempts to apply one template.
type templateMemory struct {
	// shapes has the children's shapes, by whether the selector names the unit.
	shapes map[bool]*shape
	// proven is set once the API server has accepted the template. refused is why it has refused it since then, for the
	// unit by.
	proven  bool
	refused error
	by      string
	// turn counts the refused attempts. The next attempt is at retryAt.
	turn    int
	retryAt time.Time
}

// memories has what is remembered of the grids of a kind. Losing it does no harm.
type memories[M any] struct {
	mu sync.Mutex // guards all; a memory itself belongs to the worker that reconciles the grid
	// all has the memories by the UIDs of the grids, which uids has by name.
	all  map[types.UID]*M
	uids map[types.NamespacedName]types.UID
}

// of returns what is remembered of a grid, at first nothing. What is remembered of a former one of the name is
// forgotten; with an empty UID nothing else is done.
func (m *memories[M]) of(name types.NamespacedName, uid types.UID) *M {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.all == nil {
		m.all, m.uids = map[types.UID]*M{}, map[types.NamespacedName]types.UID{}
	}
	if former := m.uids[name]; former != uid {
		delete(m.all, former)
		delete(m.uids, name)
	}
	if uid == "" {
		return nil
	}
	if m.all[uid] == nil {
		m.all[uid], m.uids[name] = new(M), uid
	}
	return m.all[uid]
}

// recall reads a grid, and returns what is remembered of it. It returns nil and forgets the grid if it is gone, or
// about to go: the garbage collector deletes its children, unless they are to be orphaned.
func recall[M any](
	ctx context.Context, s *shared, m *memories[M], kind string, name types.NamespacedName, grid client.Object,
) (*M, error) {
	err := s.cache.Get(ctx, name, grid)
	switch {
	case apierrors.IsNotFound(err), err == nil && grid.GetDeletionTimestamp() != nil:
		s.gauges.forget(kind, name)
		return m.of(name, ""), nil
	case err != nil:
		return nil, fmt.Errorf("reading the grid: %w", err)
	}
	return m.of(name, grid.GetUID()), nil
}

// Reconcile applies the children of one grid, and writes the grid's status and events.
func (r *workloadReconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	grid := r.New()
	m, err := recall(ctx, &r.shared, &r.grids, r.Kind, request.NamespacedName, grid)
	if m == nil {
		return reconcile.Result{}, err
	}
	if m.children == nil {
		m.children, m.told = map[string]*childMemory{}, map[string]gridchild.Error{}
	}
	if deleted, err := r.deleteUnusedTemplates(ctx, grid); err != nil || deleted {
		return reconcile.Result{}, err // the change of the grid causes another reconciliation
	}
	changed, ok := grid.DeepCopyObject().(v1.Object)
	if !ok {
		return reconcile.Result{}, fmt.Errorf("%T is not a grid", grid)
	}
	spec, status := v1.Workload(changed)
	err = gridchild.CheckKey(spec.GridUniqKey)
	if err == nil {
		err = r.limits.check(spec.GridUniqKey, len(r.units.of(spec.GridUniqKey)))
	}
	if err != nil {
		r.tellGrid(grid, m, err)
		status.ObservedGeneration = grid.GetGeneration()
		stop(&status.Conditions, grid.GetGeneration(), err)
		r.gauges.set(r.Kind, request.NamespacedName, figures{})
		return r.writeStatus(ctx, grid, changed, &m.status, time.Time{})
	}
	p, err := r.pass(ctx, grid, m)
	if err != nil {
		r.tellGrid(grid, m, err)
		// What runs goes on.
		conditions{&status.Conditions, grid.GetGeneration()}.problem(v1.ConditionDegraded,
			gridchild.Tellable(err).Reason, gridchild.Tellable(err).Message)
		_, unwritten := r.writeStatus(ctx, grid, changed, &m.status, time.Time{})
		return reconcile.Result{}, errors.Join(err, unwritten)
	}
	summarize(status, grid.GetGeneration(), spec, p)
	if !p.heldKey { // then nothing was looked at
		p.rollout.summarize(status, grid.GetGeneration())
		status.Losses = p.losses
	}
	r.tell(grid, m, spec.GridUniqKey, p)
	r.gauges.set(r.Kind, request.NamespacedName, p.figures())
	fit(status, m.status.limit())
	result, err := r.writeStatus(ctx, grid, changed, &m.status, p.again)
	if err == nil && changed.GetResourceVersion() != grid.GetResourceVersion() {
		m.rollout.written = changed
		if p.rollout != nil && p.rollout.dropped(status) {
			return result, errors.New("the API server has dropped fields of the status: apply this release's CRDs; " +
				"no unit gets a change before")
		}
	}
	return result, err
}

// pass is the result of one pass over all units of a grid.
type pass struct {
	states map[string]v1.UnitState
	// others says which fields of a unit's workload other managers own, by unit; see v1.ForeignFields.
	others map[string]string
	// keepSelector has the units whose workload's selector lacks the unit, although spec.unitLabel is set.
	keepSelector []string
	// serving has the units that have enough available pods.
	serving map[string]bool
	// applied and removed have the units whose child was written or deleted. vanished and returned have the units that
	// lost their last node, or got one again.
	applied, removed, vanished, returned []string
	// handedOver has the units whose replicas were handed over, with their replicas.
	handedOver []string
	// noEffect says what of the overrides and waves has no effect.
	noEffect []string
	// rollout is the result of the rollout; its status is nil if the grid has none.
	rollout *rolloutResult
	// losses are the grid's new status.losses.
	losses []v1.UnitLoss
	// held is why vanished units, or a change of gridUniqKey, must wait for an approval. heldKey is set if it is about
	// gridUniqKey.
	held    error
	heldKey bool
	// deadline is when no more requests are started.
	deadline time.Time
	// again is when to reconcile again if nothing happens before; zero for never.
	again time.Time
}

func (p *pass) lookAgain(at time.Time) {
	if !at.IsZero() && (p.again.IsZero() || at.Before(p.again)) {
		p.again = at
	}
}

// spent reports whether the time for requests of this pass is over.
func (p *pass) spent(now time.Time) bool { return now.After(p.deadline) }

// sumOf has the sums that units of a phase are in. Those whose unit is gone are in none.
var sumOf = map[v1.UnitPhase]int{
	v1.UnitReady: sumReady, v1.UnitFailed: sumFailed, v1.UnitStalled: sumStalled, v1.UnitUnreachable: sumUnreachable,
	v1.UnitProgressing: sumUnits, v1.UnitHeld: sumUnits,
}

func (p *pass) figures() figures {
	var f figures
	for _, state := range p.states {
		of, counts := sumOf[state.Phase]
		if !counts {
			continue
		}
		f.sums[sumUnits]++
		if of != sumUnits {
			f.sums[of]++
		}
		if state.Reason == v1.ReasonNameConflict {
			f.sums[sumConflicts]++
		}
	}
	if p.held != nil {
		f.sums[sumHeld] = 1
	}
	p.rollout.count(&f)
	return f
}

func (r *workloadReconciler) pass(ctx context.Context, grid v1.Object, m *gridMemory) (*pass, error) {
	spec, _ := v1.Workload(grid)
	o := gridchild.OwnerOf(r.GridKind, grid)
	children, err := r.of(ctx, r.kind, o)
	if err != nil {
		return nil, err
	}
	if m.generation != grid.GetGeneration() || !maps.Equal(m.labels, o.Labels) {
		m.generation, m.labels = grid.GetGeneration(), o.Labels
		m.desired, m.templates = map[string]identity{}, map[string]*templateMemory{}
	}
	p := &pass{states: map[string]v1.UnitState{}, others: map[string]string{}, serving: map[string]bool{}}
	if p.heldKey = r.holdKey(grid, children, m, p); p.heldKey {
		return p, nil
	}
	units := r.units.of(spec.GridUniqKey)
	var orphans map[string]*child
	if spec.Rollout != nil && len(children) < len(units) {
		if orphans, err = r.orphansOf(ctx, r.kind, o); err != nil {
			return nil, err
		}
	}
	a := r.assign(o.Name, units, children, orphans, m)
	roller := &roller{
		workloadReconciler: r, grid: grid, spec: spec, owner: o, units: units,
		lost: r.units.unreachable(spec.GridUniqKey), children: a, memory: m,
	}
	t, err := roller.aim(ctx)
	if err != nil {
		return nil, err
	}
	gone := r.vanishedOf(ctx, a)
	held := r.holdLosses(grid, t, a, gone, m, p)
	results := r.syncUnits(ctx, o, t, units, a, m, p)
	for _, unit := range units {
		result := results[unit]
		if result.child == nil {
			// A child that was made before goes on, whatever is wrong now.
			result.child = cmp.Or(a.child(unit), a.orphan(unit))
		}
		state := unitState(gridchild.TemplateName(spec, unit), result)
		if result.child != nil {
			state.Revision = t[unit].outdated(result.child)
		}
		r.followProgress(&state, result.child, m.children[unit], progressTold(grid, unit, result.child),
			roller.isLost(unit), r.isPartlyLost(o.Key, unit), spec, p)
		p.states[unit] = state
		p.lookAgain(result.again)
		if live := result.child; live != nil {
			p.serving[unit] = live.progress.serves
			if spec.UnitLabel && !live.selectsUnit {
				p.keepSelector = append(p.keepSelector, unit)
			}
			if live.others != "" {
				p.others[unit] = live.others
			}
		}
		if result.applied {
			p.applied = append(p.applied, unit)
		}
		if result.handedOver != "" {
			p.handedOver = append(p.handedOver, unit+" "+result.handedOver)
		}
		if _, ok := m.removals[unit]; ok {
			p.returned = append(p.returned, unit)
			delete(m.removals, unit)
		}
	}
	r.explainStalled(ctx, o, t, m, p)
	roller.conclude(ctx, t, results, p)
	r.removeVanished(ctx, grid, o, gone, held, m, p)
	for unit, at := range m.losses {
		p.losses = append(p.losses, v1.UnitLoss{Unit: unit, Time: metav1.NewTime(at.Truncate(time.Second))})
	}
	slices.SortFunc(p.losses, func(a, b v1.UnitLoss) int { return strings.Compare(a.Unit, b.Unit) })
	for unit := range m.children {
		if _, ok := p.states[unit]; !ok {
			delete(m.children, unit)
			delete(m.desired, unit)
		}
	}
	return p, nil
}

// due is a child that must be written.
type due struct {
	unit    string
	desired *desired
	memory  *childMemory
}

// syncUnits syncs the children of all units. Cache and memory show for most of them that nothing is to be done. The
// others are written concurrently, as many as fit into one pass. A template that the API server has not accepted yet is
// first tried on one unit.
func (r *workloadReconciler) syncUnits(
	ctx context.Context, o *gridchild.Owner, t targets, units []string, a *assignment, m *gridMemory, p *pass,
) map[string]result {
	results := make(map[string]result, len(units))
	pending := map[string][]due{}
	for _, unit := range units {
		memory := m.children[unit]
		if memory == nil {
			memory = &childMemory{}
			m.children[unit] = memory
		}
		live, to := a.child(unit), t[unit]
		if to.templates == nil || (live != nil && live.held) {
			results[unit] = result{child: live, err: to.err}
			continue
		}
		// Usually nothing has changed since the live and the desired child were last compared.
		if live != nil && m.desired[unit].variant == to.variant && !live.deleting && !live.legacy &&
			m.desired[unit].digest != "" && memory.same.desired == m.desired[unit].digest &&
			memory.same.owned == live.owned {
			memory.failure = nil
			results[unit] = result{child: live}
			continue
		}
		if err := a.Clash(unit); err != nil {
			results[unit] = result{err: err}
			continue
		}
		owner := o
		switch {
		case live != nil:
			owner = o.WithUnitInSelector(live.selectsUnit)
		case memory.selectsUnit != nil:
			owner = o.WithUnitInSelector(*memory.selectsUnit)
		}
		d, err := r.desire(owner.WithRevision(to.revision, to.mark), to, unit, a.ByUnit[unit], m)
		if err != nil {
			results[unit] = result{err: err}
			if gridchild.Tellable(err).Reason == v1.ReasonSyncFailed { // the schema for a patch was not to be had
				results[unit] = result{err: err, again: r.clock.Now().Add(firstRetry * 5)}
			}
			continue
		}
		if result, done := r.settled(ctx, r.kind, o, d, memory); done {
			results[unit] = result
			continue
		}
		pending[to.variant] = append(pending[to.variant], due{unit, d, memory})
	}
	// The time for requests begins here. Rendering does not count, because its results are remembered for the next
	// pass.
	p.deadline = r.clock.Now().Add(passBudget)
	budget := perPass
	for _, name := range slices.Sorted(maps.Keys(pending)) {
		r.syncTemplate(ctx, o, m.templates[name], pending[name], &budget, p, results)
	}
	return results
}

// syncTemplate syncs children of one template.
func (r *workloadReconciler) syncTemplate(
	ctx context.Context, o *gridchild.Owner, t *templateMemory, all []due, budget *int, p *pass,
	results map[string]result,
) {
	now := r.clock.Now()
	refuse := func(some []due) {
		for _, d := range some {
			if d.unit == t.by {
				results[d.unit] = result{err: t.refused, again: t.retryAt}
				continue
			}
			results[d.unit] = result{
				err: gridchild.Errorf(v1.ReasonRejected,
					"not tried, because the API server has refused this template for unit %s: %s",
					t.by, gridchild.Tellable(t.refused).Message),
				again: t.retryAt, untried: true,
			}
		}
	}
	if t.refused != nil && now.Before(t.retryAt) {
		refuse(all)
		return
	}
	if !t.proven || t.refused != nil {
		// Each attempt uses another unit, because the reason may be the unit's own child and not the template.
		i := t.turn % len(all)
		probe := all[i]
		all = slices.Delete(slices.Clone(all), i, i+1)
		t.turn++
		*budget--
		outcome := r.syncOne(ctx, o, probe)
		results[probe.unit] = outcome
		t.learn(probe.unit, outcome, r.clock.Now())
		if t.refused != nil {
			refuse(all)
			return
		}
		// The probe has taught the template's shape, by which children in the cache are recognised as settled. After a
		// restart that is all of them.
		all = slices.DeleteFunc(all, func(d due) bool {
			outcome, done := r.settled(ctx, r.kind, o, d.desired, d.memory)
			if done {
				results[d.unit] = outcome
			}
			return done
		})
	}
	outcomes := make([]result, len(all))
	var group errgroup.Group
	group.SetLimit(atOnce)
	for i, d := range all {
		if *budget <= 0 || p.spent(r.clock.Now()) {
			outcomes[i].again = r.clock.Now()
			continue
		}
		*budget--
		if _, err := d.desired.object(); err != nil { // rendered here, because it must not be called concurrently
			outcomes[i].err = err
			continue
		}
		group.Go(func() error {
			outcomes[i] = r.syncOne(ctx, o, d)
			return nil
		})
	}
	_ = group.Wait() // its functions return no errors
	before := *t
	taken := false
	for i, d := range all {
		results[d.unit] = outcomes[i]
		t.learn(d.unit, outcomes[i], r.clock.Now())
		taken = taken || (outcomes[i].err == nil && outcomes[i].again.IsZero())
	}
	if taken { // the template is good; failures of single units are their own
		*t = before
		t.proven, t.refused, t.turn = true, nil, 0
	}
}

// learn notes the result of an attempt.
func (t *templateMemory) learn(unit string, outcome result, now time.Time) {
	switch {
	case outcome.err == nil && outcome.again.IsZero():
		t.proven, t.refused, t.turn = true, nil, 0
	case outcome.err != nil && gridchild.Tellable(outcome.err).Reason == v1.ReasonRejected:
		t.refused, t.by = outcome.err, unit
		t.retryAt = now.Add(min(firstRetry<<min(t.turn, 10), lastRetry))
	}
}

// syncOne syncs a child. If another grid has taken its name, it gets its alternative name in the next pass.
func (r *workloadReconciler) syncOne(ctx context.Context, o *gridchild.Owner, d due) result {
	outcome := r.sync(ctx, r.kind, o, d.desired, d.memory)
	if errors.Is(outcome.err, gridchild.ErrTaken) && d.desired.name != r.AlternativeChildName(o.Name, d.unit) {
		d.memory.taken = true
		outcome = result{again: r.clock.Now()}
	}
	return outcome
}

// desire returns the desired child of a unit. Its identity is remembered for the same generation of the grid, so that
// not all units of a large grid are rendered again in each pass.
func (r *workloadReconciler) desire(
	o *gridchild.Owner, to target, unit, name string, m *gridMemory,
) (*desired, error) {
	d := &desired{identity: m.desired[unit], namespace: o.Namespace, render: func() (*gridchild.Child, error) {
		template, err := to.template(unit)
		if err != nil {
			return nil, err
		}
		return gridchild.OfUnit(o, r.GridKind, unit, name, template)
	}}
	if d.digest == "" || d.name != name || d.selectsUnit != o.UnitInSelector || d.variant != to.variant {
		if _, err := d.object(); err != nil {
			return nil, err
		}
		d.identity = identity{name: name, selectsUnit: o.UnitInSelector, variant: to.variant, digest: d.child.Digest}
		m.desired[unit] = d.identity
		d.child = nil // most of them are not needed, and there may be ten thousand
	}
	of := to.variant
	if m.templates[of] == nil {
		m.templates[of] = &templateMemory{shapes: map[bool]*shape{true: {}, false: {}}}
	}
	d.shape = m.templates[of].shapes[o.UnitInSelector]
	return d, nil
}

// deleteUnusedTemplates removes unused templates from the pool, if spec.autoDeleteUnusedTemplate is set.
func (r *workloadReconciler) deleteUnusedTemplates(ctx context.Context, grid v1.Object) (deleted bool, err error) {
	spec, _ := v1.Workload(grid)
	if !spec.AutoDeleteUnusedTemplate {
		return false, nil
	}
	unused := gridchild.UnusedTemplates(spec)
	if len(unused) == 0 {
		return false, nil
	}
	changed, ok := grid.DeepCopyObject().(v1.Object)
	if !ok {
		return false, fmt.Errorf("%T is not a grid", grid)
	}
	pruned, _ := v1.Workload(changed)
	for _, name := range unused {
		delete(pruned.TemplatePool, name)
	}
	// This makes the next generation, and what somebody has asked for in this one goes on.
	generation := grid.GetGeneration()
	if to, now := strings.CutSuffix(grid.GetAnnotations()[v1.AnnotationAtOnce], fmt.Sprintf("/%d", generation)); now {
		annotations := changed.GetAnnotations()
		annotations[v1.AnnotationAtOnce] = gridrevision.AtOnce(to, generation+1)
		changed.SetAnnotations(annotations)
	}
	// The lock makes it a conflict if someone has begun to use one of the templates meanwhile.
	patch := client.MergeFromWithOptions(grid, client.MergeFromWithOptimisticLock{})
	if err := r.writer.Patch(ctx, changed, patch); err != nil {
		if apierrors.IsNotFound(err) {
			return true, nil
		}
		return false, fmt.Errorf("deleting unused templates: %w", err)
	}
	slices.Sort(unused)
	r.recorder.Eventf(grid, nil, corev1.EventTypeNormal, v1.ReasonTemplatesDeleted, "DeleteTemplates",
		"Removed unused templates from spec.templatePool: %s", nameSome(unused))
	return true, nil
}

// tell records events for what has changed since the last pass.
func (r *workloadReconciler) tell(grid v1.Object, m *gridMemory, key string, p *pass) {
	spec, _ := v1.Workload(grid)
	event := func(kind, reason, action, format string, args ...any) {
		r.recorder.Eventf(grid, nil, kind, reason, action, "%s", fmt.Sprintf(format, args...))
	}
	if p.rollout != nil && p.rollout.status != nil {
		p.rollout.tell(m, event)
	}
	kind, grace := r.Child.Kind, r.removalOf(spec).grace
	for _, t := range []struct {
		units                        []string
		kind, reason, action, format string
	}{
		{p.applied, corev1.EventTypeNormal, v1.ReasonApplied, "Apply", fmt.Sprintf(
			"Applied the %ss of %d units: %%s", kind, len(p.applied))},
		{p.vanished, corev1.EventTypeWarning, v1.ReasonUnitVanished, "Wait", fmt.Sprintf(
			"No node is in %%s any more; the %ss are removed in %s unless one comes back", kind, grace)},
		{p.returned, corev1.EventTypeNormal, v1.ReasonUnitReturned, "Keep", "Nodes are back in %s; the " + kind +
			"s stay"},
		{p.removed, corev1.EventTypeNormal, v1.ReasonRemoved, "Delete", "Removed the " + kind +
			"s of vanished units: %s"},
		{p.handedOver, corev1.EventTypeNormal, v1.ReasonReplicasHandedOver, "HandOver",
			"The template does not set replicas any more; units keep theirs until someone changes them: %s"},
	} {
		if len(t.units) > 0 {
			event(t.kind, t.reason, t.action, t.format, nameSome(t.units))
		}
	}
	switch {
	case p.held != nil:
		r.tellGrid(grid, m, p.held)
	case len(p.states) == 0:
		r.tellGrid(grid, m,
			gridchild.Errorf(v1.ReasonNoUnits, "No node has the label %s, so there are no units and no %ss",
				key, r.Child.Kind))
	default:
		m.toldGrid = gridchild.Error{}
	}
	// New or changed failures get an event; units with the same failure share one.
	fresh := map[gridchild.Error][]string{}
	for unit, state := range p.states {
		if state.Phase != v1.UnitFailed && state.Phase != v1.UnitStalled {
			delete(m.told, unit)
			continue
		}
		prefix := grid.GetName() + "-"
		failure := gridchild.Error{
			Reason:  state.Reason,
			Message: strings.ReplaceAll(state.Message, prefix+unit, prefix+"<unit>"),
		}
		if m.told[unit] != failure {
			m.told[unit] = failure
			fresh[failure] = append(fresh[failure], unit)
		}
	}
	for failure, units := range fresh {
		slices.Sort(units)
		message := failure.Message
		if len(units) == 1 {
			message = p.states[units[0]].Message
		}
		event(corev1.EventTypeWarning, failure.Reason, "Sync", "%s: %s", nameSome(units), message)
	}
}

// tellGrid records an event about the grid as a whole, once.
func (r *workloadReconciler) tellGrid(grid v1.Object, m *gridMemory, err error) {
	if p := gridchild.Tellable(err); m.toldGrid != p {
		m.toldGrid = p
		r.recorder.Eventf(grid, nil, corev1.EventTypeWarning, p.Reason, "Sync", "%s", p.Message)
	}
}

// after returns the Result that requeues the request at the earliest of the times that are not zero.
func after(now time.Time, times ...time.Time) reconcile.Result {
	var earliest time.Time
	for _, t := range times {
		if !t.IsZero() && (earliest.IsZero() || t.Before(earliest)) {
			earliest = t
		}
	}
	if earliest.IsZero() {
		return reconcile.Result{}
	}
	return reconcile.Result{RequeueAfter: max(earliest.Sub(now), time.Millisecond)}
}
