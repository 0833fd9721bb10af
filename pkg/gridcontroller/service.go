package gridcontroller

import (
	"cmp"
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/gridcontroller/gridchild"
)

type serviceReconciler struct {
	shared

	grids memories
}

// Reconcile applies the Service of one grid, and writes the grid's status and events.
func (r *serviceReconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	grid := &v1.ServiceGrid{}
	m, err := r.grids.readGrid(ctx, &r.shared, request.NamespacedName, grid)
	if m == nil {
		return reconcile.Result{}, err
	}
	outcome := r.syncService(ctx, grid, &m.ofSite("").childMemory)
	sites := len(sitesOf(r.nodes, grid.Spec.GridUniqKey))
	changed := grid.DeepCopy()
	status := &changed.Status
	//nolint:gosec // no more than there are nodes
	status.ObservedGeneration, status.Sites = grid.Generation, int32(sites)
	c := conditions{&status.Conditions, grid.Generation}
	making := ""
	switch {
	case outcome.err != nil:
		c.stop(outcome.err)
	case outcome.child == nil || outcome.child.deleting:
		making = "the Service is being made"
		c.set(v1.ConditionReady, metav1.ConditionFalse, v1.ReasonSitesProgressing, making)
	default:
		c.set(v1.ConditionReady, metav1.ConditionTrue, v1.ReasonReady,
			"Service "+outcome.child.name+" is as the grid says")
	}
	if outcome.applied {
		r.recorder.Eventf(grid, nil, corev1.EventTypeNormal, v1.ReasonApplied, "Apply", "Applied Service %s%s",
			grid.Name, v1.ServiceSuffix)
	}
	if outcome.err == nil {
		c.problem(v1.ConditionProgressing, v1.ReasonSitesProgressing, making)
		c.problem(v1.ConditionDegraded, "")
		m.told = gridchild.Error{}
	} else {
		r.recordGridEvent(grid, m, outcome.err)
	}
	return r.writeStatus(ctx, grid, changed, &m.status, outcome.again)
}

func (r *serviceReconciler) syncService(ctx context.Context, grid *v1.ServiceGrid, m *childMemory) result {
	o := gridchild.OwnerOf(v1.ServiceGridKind, grid)
	if err := cmp.Or(gridchild.CheckKey(o.Key), r.limits.check(o.Key, 0)); err != nil {
		return result{err: err}
	}
	rendered, err := gridchild.OfService(o, grid.Spec.Template)
	if err != nil {
		return result{err: err}
	}
	d := &desired{
		identity: identity{name: rendered.Object.GetName(), digest: rendered.Digest},
		shape:    &shape{}, child: func() (*gridchild.Child, error) { return rendered, nil },
	}
	live, err := r.get(ctx, r.cache, o, d.name)
	if err != nil {
		return result{err: err}
	}
	if live != nil && !live.ownedBy(o) {
		live = nil
	}
	if outcome, done := settled(r.clock.Now(), live, d, m); done {
		return outcome
	}
	return r.syncChild(ctx, o, d, m)
}
