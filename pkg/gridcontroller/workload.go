package gridcontroller

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
)

const (
	// atOnce is how many children of one grid are written at the same time.
	atOnce = 16
	// perPass is how many children are written before the status tells of it.
	perPass = 256
	// statusPause is the least time between two writes of one grid's status.
	statusPause = 500 * time.Millisecond
)

// shared is what all reconcilers use.
type shared struct {
	cluster
	recorder events.EventRecorder
	gauges   *gauges
	// grace is how long a workload outlives its unit.
	grace time.Duration
}

// workloadReconciler reconciles the grids of one kind of workload.
type workloadReconciler struct {
	shared
	workload
	units *units

	mu sync.Mutex // guards grids; what it points to belongs to the one worker that has the grid
	// grids is what is remembered of every grid.
	grids map[types.NamespacedName]*gridMemory
}

// gridMemory is what is remembered of a grid between reconciliations. Losing it does no harm.
type gridMemory struct {
	uid types.UID
	// plan is what the units' children follow from, besides the units. desired are the digests under it.
	generation int64
	labels     map[string]string
	desired    map[string]string
	// children is by unit.
	children map[string]*childMemory
	// removals is when the workloads of vanished units are deleted.
	removals map[string]time.Time
	// told are the failures that an event has told, by unit.
	told map[string]problem
	// toldGrid is the last such event about the grid as a whole.
	toldGrid problem
	// statusAt is when the status was last written.
	statusAt time.Time
}

func (r *workloadReconciler) remember(name types.NamespacedName, uid types.UID) *gridMemory {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.grids == nil {
		r.grids = map[types.NamespacedName]*gridMemory{}
	}
	m := r.grids[name]
	if m == nil || m.uid != uid {
		m = &gridMemory{uid: uid, children: map[string]*childMemory{}, told: map[string]problem{}}
		r.grids[name] = m
	}
	return m
}

func (r *workloadReconciler) forget(name types.NamespacedName) {
	r.gauges.forget(r.grid, name)
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.grids, name)
}

// Reconcile makes the children of one grid what they should be, and tells how it went.
func (r *workloadReconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	grid := r.object()
	if err := r.cache.Get(ctx, request.NamespacedName, grid); err != nil {
		if apierrors.IsNotFound(err) {
			r.forget(request.NamespacedName)
			return reconcile.Result{}, nil
		}
		return reconcile.Result{}, fmt.Errorf("reading the grid: %w", err)
	}
	if grid.GetDeletionTimestamp() != nil {
		// Its children go, or stay, with it: that is the garbage collector's to do.
		r.forget(request.NamespacedName)
		return reconcile.Result{}, nil
	}
	m := r.remember(request.NamespacedName, grid.GetUID())
	if deleted, err := r.deleteUnusedTemplates(ctx, grid); err != nil || deleted {
		return reconcile.Result{}, err // the change of the grid is an event
	}
	key := r.spec(grid).GridUniqKey
	status := r.status(grid).DeepCopy()
	if p := checkKey(key); p != nil {
		r.tellGrid(grid, m, p)
		status.ObservedGeneration = grid.GetGeneration()
		stop(&status.Conditions, grid.GetGeneration(), p)
		r.gauges.set(r.grid, request.NamespacedName, figures{})
		return r.writeStatus(ctx, grid, m, status, time.Time{})
	}
	pass, err := r.pass(ctx, grid, m)
	if err != nil {
		return reconcile.Result{}, err
	}
	summarize(status, grid.GetGeneration(), key, pass.states)
	r.tell(grid, m, key, pass)
	r.gauges.set(r.grid, request.NamespacedName, pass.figures())
	return r.writeStatus(ctx, grid, m, status, pass.again)
}

// pass is one look at all units of a grid.
type pass struct {
	states map[string]v1.UnitState
	// applied and removed are the units whose child was written or deleted, vanished and returned those that
	// lost their last node, or got one again.
	applied, removed, vanished, returned []string
	// again is when to look again if nothing happens; zero for never.
	again time.Time
}

func (p *pass) lookAgain(at time.Time) {
	if !at.IsZero() && (p.again.IsZero() || at.Before(p.again)) {
		p.again = at
	}
}

func (p *pass) figures() figures {
	var f figures
	for _, state := range p.states {
		if state.Phase != v1.UnitRemoving {
			f.units++
		}
		if state.Phase == v1.UnitReady {
			f.ready++
		}
		if state.Phase == v1.UnitFailed {
			f.failed++
		}
		if state.Reason == v1.ReasonNameConflict {
			f.conflicts++
		}
	}
	return f
}

func (r *workloadReconciler) pass(ctx context.Context, grid client.Object, m *gridMemory) (*pass, error) {
	spec := r.spec(grid)
	o := newOwner(r.grid, spec.GridUniqKey, grid)
	children, err := r.of(ctx, r.kind, o)
	if err != nil {
		return nil, err
	}
	if m.generation != grid.GetGeneration() || !maps.Equal(m.labels, o.labels) {
		m.generation, m.labels, m.desired = grid.GetGeneration(), o.labels, map[string]string{}
	}
	p := &pass{states: map[string]v1.UnitState{}}
	units := r.units.of(spec.GridUniqKey)
	results := r.syncUnits(ctx, o, &templates{spec: spec, decoded: map[string]map[string]any{}}, units, children, m)
	for _, unit := range units {
		result := results[unit]
		if result.child == nil {
			// Whatever is wrong now, what was made before goes on.
			result.child = children[childName(o.name, unit)]
		}
		p.states[unit] = unitState(templateName(spec, unit), result)
		p.lookAgain(result.again)
		if result.applied {
			p.applied = append(p.applied, unit)
		}
		if _, ok := m.removals[unit]; ok {
			p.returned = append(p.returned, unit)
			delete(m.removals, unit)
		}
	}
	r.removeVanished(ctx, o, units, children, r.status(grid), m, p)
	for unit := range m.children {
		if _, ok := p.states[unit]; !ok {
			delete(m.children, unit)
			delete(m.desired, unit)
		}
	}
	return p, nil
}

// syncUnits syncs the children of all units: those that the cache and the memory settle one after the other,
// the rest at the same time.
func (r *workloadReconciler) syncUnits(ctx context.Context, o *owner, t *templates, units []string, children map[string]*child, m *gridMemory) map[string]result {
	results := make(map[string]result, len(units))
	var mu sync.Mutex // guards results while the group runs
	var group errgroup.Group
	group.SetLimit(atOnce)
	written := 0
	for _, unit := range units {
		memory := m.children[unit]
		if memory == nil {
			memory = &childMemory{}
			m.children[unit] = memory
		}
		// The usual case: nothing has changed since the two were last compared.
		if live := children[childName(o.name, unit)]; live != nil && !live.deleting && !live.legacy &&
			m.desired[unit] != "" && memory.same.desired == m.desired[unit] && memory.same.owned == live.owned {
			memory.failure = nil
			mu.Lock()
			results[unit] = result{child: live}
			mu.Unlock()
			continue
		}
		d, problem := r.desire(o, t, unit)
		if problem != nil {
			mu.Lock()
			results[unit] = result{problem: problem}
			mu.Unlock()
			continue
		}
		m.desired[unit] = d.digest
		if result, done := r.settled(ctx, r.kind, o, d, memory); done {
			mu.Lock()
			results[unit] = result
			mu.Unlock()
			continue
		}
		if written++; written > perPass {
			mu.Lock()
			results[unit] = result{again: r.clock.Now()}
			mu.Unlock()
			continue
		}
		group.Go(func() error {
			result := r.sync(ctx, r.kind, o, d, memory)
			mu.Lock()
			defer mu.Unlock()
			results[unit] = result
			return nil
		})
	}
	_ = group.Wait() // no function of it returns an error
	return results
}

func (r *workloadReconciler) desire(o *owner, t *templates, unit string) (*desired, *problem) {
	template, p := t.of(unit)
	if p != nil {
		return nil, p
	}
	return workloadChild(o, r.kind, unit, template)
}

// removeVanished deletes the children of units without nodes, after the grace time.
func (r *workloadReconciler) removeVanished(ctx context.Context, o *owner, units []string, children map[string]*child, status *v1.WorkloadGridStatus, m *gridMemory, p *pass) {
	now := r.clock.Now()
	removals := map[string]time.Time{}
	for _, name := range slices.Sorted(maps.Keys(children)) {
		live := children[name]
		unit := unitOf(o.name, name)
		if _, wanted := slices.BinarySearch(units, unit); wanted {
			continue
		}
		at, known := m.removals[unit]
		if !known {
			// A controller before this one may have told the time already.
			if told := status.States[unit]; told.Phase == v1.UnitRemoving && told.RemovalTime != nil {
				at = told.RemovalTime.Time
			} else {
				at = now.Add(r.grace).Truncate(time.Second)
				p.vanished = append(p.vanished, unit)
			}
		}
		removals[unit] = at
		state := removingState(live, at)
		switch {
		case live.deleting: // its end is an event
		case now.Before(at):
			p.lookAgain(at)
		default:
			if err := r.removeUnit(ctx, o, unit, live); err != nil {
				state.Reason, state.Message = v1.ReasonSyncFailed, shorten(err.Error())
				p.lookAgain(now.Add(firstRetry * 5))
			} else {
				p.removed = append(p.removed, unit)
			}
		}
		p.states[unit] = state
	}
	m.removals = removals
}

// removeUnit deletes the child of a unit that has had no node for the grace time. What is known of the nodes comes from
// a watch, which may have fallen silent, or come from a server that had lost its data: before a site is taken down, the
// API server is asked.
func (r *workloadReconciler) removeUnit(ctx context.Context, o *owner, unit string, live *child) error {
	node, err := r.nodeIn(ctx, o.key, unit)
	if err != nil {
		return fmt.Errorf("before %s %s is removed: %w", r.child.Kind, live.name, err)
	}
	if node != "" {
		return fmt.Errorf("%s %s is not removed: node %s is in the unit, and the watch of nodes has not told so yet", r.child.Kind, live.name, node)
	}
	return r.remove(ctx, r.kind, o.namespace, live)
}

// deleteUnusedTemplates does what autoDeleteUnusedTemplate asks for.
func (r *workloadReconciler) deleteUnusedTemplates(ctx context.Context, grid client.Object) (deleted bool, err error) {
	spec := r.spec(grid)
	if !spec.AutoDeleteUnusedTemplate {
		return false, nil
	}
	unused := unusedTemplates(spec)
	if len(unused) == 0 {
		return false, nil
	}
	changed, ok := grid.DeepCopyObject().(client.Object)
	if !ok {
		return false, fmt.Errorf("%T is no object", grid)
	}
	for _, name := range unused {
		delete(r.spec(changed).TemplatePool, name)
	}
	// With the revision that was read: someone may have begun to use one.
	if err := r.writer.Patch(ctx, changed, client.MergeFromWithOptions(grid, client.MergeFromWithOptimisticLock{})); err != nil {
		if apierrors.IsNotFound(err) {
			return true, nil
		}
		return false, fmt.Errorf("deleting unused templates: %w", err)
	}
	slices.Sort(unused)
	r.recorder.Eventf(grid, nil, corev1.EventTypeNormal, v1.ReasonTemplatesDeleted, "DeleteTemplates", "Removed from spec.templatePool what no unit uses: %s", nameSome(unused))
	return true, nil
}

// tell records events for what has changed since the last pass.
func (r *workloadReconciler) tell(grid client.Object, m *gridMemory, key string, p *pass) {
	event := func(kind, reason, action, format string, args ...any) {
		r.recorder.Eventf(grid, nil, kind, reason, action, "%s", fmt.Sprintf(format, args...))
	}
	if len(p.applied) > 0 {
		event(corev1.EventTypeNormal, v1.ReasonApplied, "Apply", "Applied the %ss of %d units: %s", r.child.Kind, len(p.applied), nameSome(p.applied))
	}
	if len(p.vanished) > 0 {
		event(corev1.EventTypeWarning, v1.ReasonUnitVanished, "Wait", "No node is in %s any more; the %ss are removed in %s unless one comes back", nameSome(p.vanished), r.child.Kind, r.grace)
	}
	if len(p.returned) > 0 {
		event(corev1.EventTypeNormal, v1.ReasonUnitReturned, "Keep", "Nodes are back in %s; the %ss stay", nameSome(p.returned), r.child.Kind)
	}
	if len(p.removed) > 0 {
		event(corev1.EventTypeNormal, v1.ReasonRemoved, "Delete", "Removed the %ss of vanished units: %s", r.child.Kind, nameSome(p.removed))
	}
	if len(p.states) == 0 {
		r.tellGrid(grid, m, problemf(v1.ReasonNoUnits, "No node has the label %s, so there are no units and no %ss", key, r.child.Kind))
	} else {
		m.toldGrid = problem{}
	}
	// Failures that are new, or have become others, the same ones together.
	fresh := map[problem][]string{}
	for unit, state := range p.states {
		if state.Phase != v1.UnitFailed {
			delete(m.told, unit)
			continue
		}
		failure := problem{state.Reason, strings.ReplaceAll(state.Message, childName(grid.GetName(), unit), childName(grid.GetName(), "<unit>"))}
		if m.told[unit] != failure {
			m.told[unit] = failure
			fresh[failure] = append(fresh[failure], unit)
		}
	}
	for failure, units := range fresh {
		slices.Sort(units)
		message := failure.message
		if len(units) == 1 {
			message = p.states[units[0]].Message
		}
		event(corev1.EventTypeWarning, failure.reason, "Sync", "%s: %s", nameSome(units), message)
	}
}

// tellGrid records an event about the grid as a whole, once.
func (r *workloadReconciler) tellGrid(grid client.Object, m *gridMemory, p *problem) {
	if m.toldGrid != *p {
		m.toldGrid = *p
		r.recorder.Eventf(grid, nil, corev1.EventTypeWarning, p.reason, "Sync", "%s", p.message)
	}
}

// writeStatus writes the status if it has changed, and not too often.
func (r *workloadReconciler) writeStatus(ctx context.Context, grid client.Object, m *gridMemory, status *v1.WorkloadGridStatus, again time.Time) (reconcile.Result, error) {
	now := r.clock.Now()
	if !equality.Semantic.DeepEqual(r.status(grid), status) {
		if next := m.statusAt.Add(statusPause); now.Before(next) {
			return after(now, next, again), nil
		}
		changed, ok := grid.DeepCopyObject().(client.Object)
		if !ok {
			return reconcile.Result{}, fmt.Errorf("%T is no object", grid)
		}
		*r.status(changed) = *status
		switch err := r.patchStatus(ctx, changed, grid); {
		case apierrors.IsConflict(err): // the cache lags behind; what it gets then is no event for us
			klog.FromContext(ctx).V(4).Info("Status not written: the grid has changed meanwhile")
			m.statusAt = now
			return after(now, now.Add(statusPause), again), nil
		case err != nil:
			return reconcile.Result{}, err
		}
		m.statusAt = now
	}
	return after(now, again), nil
}

// patchStatus writes what differs in the status, if nobody has changed the grid meanwhile.
func (s *shared) patchStatus(ctx context.Context, changed, from client.Object) error {
	err := s.writer.Status().Patch(ctx, changed, client.MergeFromWithOptions(from, client.MergeFromWithOptimisticLock{}))
	if err = client.IgnoreNotFound(err); err != nil {
		return fmt.Errorf("writing the status: %w", err)
	}
	return nil
}

// after asks to be called again at the earliest of the times that are set.
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
