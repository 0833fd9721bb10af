package gridcontroller

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
)

// serviceReconciler reconciles ServiceGrids.
type serviceReconciler struct {
	shared
	units *units

	mu sync.Mutex // guards grids; what it points to belongs to the one worker that has the grid
	// grids is what is remembered of every grid.
	grids map[types.NamespacedName]*serviceMemory
}

// serviceMemory is what is remembered of a ServiceGrid between reconciliations. Losing it does no harm.
type serviceMemory struct {
	childMemory
	uid      types.UID
	told     problem
	statusAt time.Time
}

func (r *serviceReconciler) remember(name types.NamespacedName, uid types.UID) *serviceMemory {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.grids == nil {
		r.grids = map[types.NamespacedName]*serviceMemory{}
	}
	m := r.grids[name]
	if m == nil || m.uid != uid {
		m = &serviceMemory{uid: uid}
		r.grids[name] = m
	}
	return m
}

func (r *serviceReconciler) forget(name types.NamespacedName) {
	r.gauges.forget(services.grid, name)
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.grids, name)
}

// Reconcile makes the Service of one grid what it should be, and tells how it went.
func (r *serviceReconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	grid := &v1.ServiceGrid{}
	if err := r.cache.Get(ctx, request.NamespacedName, grid); err != nil {
		if apierrors.IsNotFound(err) {
			r.forget(request.NamespacedName)
			return reconcile.Result{}, nil
		}
		return reconcile.Result{}, fmt.Errorf("reading the grid: %w", err)
	}
	if grid.DeletionTimestamp != nil {
		r.forget(request.NamespacedName)
		return reconcile.Result{}, nil
	}
	m := r.remember(request.NamespacedName, grid.UID)
	outcome := r.syncService(ctx, grid, m)
	units := r.units.of(grid.Spec.GridUniqKey)

	if outcome.applied {
		r.recorder.Eventf(grid, nil, corev1.EventTypeNormal, v1.ReasonApplied, "Apply", "Applied Service %s%s", grid.Name, v1.ServiceSuffix)
	}
	f := figures{units: len(units)}
	if p := outcome.problem; p != nil {
		f.failed = 1
		if p.reason == v1.ReasonNameConflict {
			f.conflicts = 1
		}
		if m.told != *p {
			m.told = *p
			r.recorder.Eventf(grid, nil, corev1.EventTypeWarning, p.reason, "Sync", "%s", p.message)
		}
	} else {
		m.told = problem{}
		f.ready = len(units)
	}
	r.gauges.set(services.grid, request.NamespacedName, f)

	status := grid.Status.DeepCopy()
	status.ObservedGeneration = grid.Generation
	status.Units = int32(len(units)) //nolint:gosec // no more than there are nodes
	condition := conditionSetter(&status.Conditions, grid.Generation)
	switch {
	case outcome.problem != nil:
		stop(&status.Conditions, grid.Generation, outcome.problem)
	case outcome.child == nil || outcome.child.deleting:
		condition(v1.ConditionReady, false, v1.ReasonUnitsProgressing, "the Service is being made")
		condition(v1.ConditionProgressing, true, v1.ReasonUnitsProgressing, "the Service is being made")
		condition(v1.ConditionDegraded, false, v1.ReasonAsDesired, "")
	default:
		condition(v1.ConditionReady, true, v1.ReasonReady, fmt.Sprintf("Service %s is as the grid says", outcome.child.name))
		condition(v1.ConditionProgressing, false, v1.ReasonAsDesired, "")
		condition(v1.ConditionDegraded, false, v1.ReasonAsDesired, "")
	}
	return r.writeStatus(ctx, grid, m, status, outcome.again)
}

func (r *serviceReconciler) syncService(ctx context.Context, grid *v1.ServiceGrid, m *serviceMemory) result {
	if p := checkKey(grid.Spec.GridUniqKey); p != nil {
		return result{problem: p}
	}
	o := newOwner(services.grid, grid.Spec.GridUniqKey, grid)
	d, p := serviceChild(o, grid.Spec.Template)
	if p != nil {
		return result{problem: p}
	}
	if outcome, done := r.settled(ctx, services, o, d, &m.childMemory); done {
		return outcome
	}
	return r.sync(ctx, services, o, d, &m.childMemory)
}

// writeStatus writes the status if it has changed, and not too often.
func (r *serviceReconciler) writeStatus(ctx context.Context, grid *v1.ServiceGrid, m *serviceMemory, status *v1.ServiceGridStatus, again time.Time) (reconcile.Result, error) {
	now := r.clock.Now()
	if equality.Semantic.DeepEqual(&grid.Status, status) {
		return after(now, again), nil
	}
	if next := m.statusAt.Add(statusPause); now.Before(next) {
		return after(now, next, again), nil
	}
	changed := grid.DeepCopy()
	changed.Status = *status
	m.statusAt = now
	switch err := r.patchStatus(ctx, changed, grid); {
	case apierrors.IsConflict(err):
		return after(now, now.Add(statusPause), again), nil
	case err != nil:
		return reconcile.Result{}, err
	}
	return after(now, again), nil
}
