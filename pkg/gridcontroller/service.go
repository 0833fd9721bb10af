package gridcontroller

import (
	"context"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/gridchild"
)

// serviceReconciler reconciles ServiceGrids.
type serviceReconciler struct {
	shared
	units *units

	mu sync.Mutex // guards grids; a memory itself belongs to the worker that reconciles the grid
	// grids has what is remembered of every grid.
	grids map[types.NamespacedName]*serviceMemory
}

// serviceMemory is what is remembered of a ServiceGrid between reconciliations. Losing it does no harm.
type serviceMemory struct {
	childMemory
	uid    types.UID
	told   gridchild.Error
	status statusMemory
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
	r.gauges.forget(services.Kind, name)
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.grids, name)
}

// Reconcile applies the Service of one grid, and writes the grid's status and events.
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
		r.recorder.Eventf(grid, nil, corev1.EventTypeNormal, v1.ReasonApplied, "Apply", "Applied Service %s%s",
			grid.Name, v1.ServiceSuffix)
	}
	f := figures{units: len(units)}
	if outcome.err != nil {
		p := gridchild.Tellable(outcome.err)
		f.failed = 1
		if p.Reason == v1.ReasonNameConflict {
			f.conflicts = 1
		}
		if m.told != p {
			m.told = p
			r.recorder.Eventf(grid, nil, corev1.EventTypeWarning, p.Reason, "Sync", "%s", p.Message)
		}
	} else {
		m.told = gridchild.Error{}
		f.ready = len(units)
	}
	r.gauges.set(services.Kind, request.NamespacedName, f)

	changed := grid.DeepCopy()
	status := &changed.Status
	status.ObservedGeneration = grid.Generation
	status.Units = int32(len(units)) //nolint:gosec // no more than there are nodes
	condition := conditionSetter(&status.Conditions, grid.Generation)
	switch {
	case outcome.err != nil:
		stop(&status.Conditions, grid.Generation, outcome.err)
	case outcome.child == nil || outcome.child.deleting:
		condition(v1.ConditionReady, metav1.ConditionFalse, v1.ReasonUnitsProgressing, "the Service is being made")
		condition(v1.ConditionProgressing, metav1.ConditionTrue, v1.ReasonUnitsProgressing, "the Service is being made")
		condition(v1.ConditionDegraded, metav1.ConditionFalse, v1.ReasonAsDesired, "")
	default:
		condition(v1.ConditionReady, metav1.ConditionTrue, v1.ReasonReady, fmt.Sprintf(
			"Service %s is as the grid says", outcome.child.name))
		condition(v1.ConditionProgressing, metav1.ConditionFalse, v1.ReasonAsDesired, "")
		condition(v1.ConditionDegraded, metav1.ConditionFalse, v1.ReasonAsDesired, "")
	}
	return r.writeStatus(ctx, grid, changed, &m.status, outcome.again)
}

func (r *serviceReconciler) syncService(ctx context.Context, grid *v1.ServiceGrid, m *serviceMemory) result {
	if p := gridchild.CheckKey(grid.Spec.GridUniqKey); p != nil {
		return result{err: p}
	}
	if err := r.limits.check(grid.Spec.GridUniqKey, 0); err != nil {
		return result{err: err}
	}
	o := gridchild.OwnerOf(services.GridKind, grid)
	if err := gridchild.CheckFallback(o.Fallback); err != nil {
		return result{err: err}
	}
	rendered, err := gridchild.OfService(o, grid.Spec.Template)
	if err != nil {
		return result{err: err}
	}
	d := &desired{
		identity:  identity{name: rendered.Object.GetName(), digest: rendered.Digest},
		namespace: o.Namespace, shape: &shape{}, child: rendered,
	}
	if outcome, done := r.settled(ctx, services, o, d, &m.childMemory); done {
		return outcome
	}
	return r.sync(ctx, services, o, d, &m.childMemory)
}
