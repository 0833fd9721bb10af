package gridcontroller

import (
	"cmp"
	"context"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/gridcontroller/gridchild"
)

// reconcileService applies the Service of a grid, and fills in the grid's status. It returns when to do that again.
func (r *reconciler) reconcileService(
	ctx context.Context, grid *v1.ServiceGrid, o *gridchild.Owner, m *gridMemory,
) time.Time {
	outcome := r.syncService(ctx, grid, o, &m.ofSite("").childMemory)
	//nolint:gosec // no more than there are nodes
	grid.Status.ObservedGeneration, grid.Status.Sites = grid.Generation, int32(len(sitesOf(r.nodes, o.Key)))
	c := conditions{&grid.Status.Conditions, grid.Generation}
	if outcome.applied {
		r.recorder.Eventf(grid, nil, corev1.EventTypeNormal, v1.ReasonApplied, "Apply", "Applied Service %s%s",
			grid.Name, v1.ServiceSuffix)
	}
	if outcome.err != nil {
		c.stop(r.recordGridEvent(grid, m, outcome.err))
		return outcome.again
	}
	m.told = gridchild.Error{}
	making := ""
	if live := outcome.child; live == nil || live.deleting {
		making = "the Service is being made"
		c.set(v1.ConditionReady, metav1.ConditionFalse, v1.ReasonSitesProgressing, making)
	} else {
		c.set(v1.ConditionReady, metav1.ConditionTrue, v1.ReasonReady, "Service "+live.name+" is as the grid says")
	}
	c.problem(v1.ConditionProgressing, v1.ReasonSitesProgressing, making)
	c.problem(v1.ConditionDegraded, "")
	return outcome.again
}

func (r *reconciler) syncService(
	ctx context.Context, grid *v1.ServiceGrid, o *gridchild.Owner, m *childMemory,
) result {
	if err := cmp.Or(gridchild.CheckKey(o.Key), r.limits.check(o.Key, 0)); err != nil {
		return result{err: err}
	}
	rendered, err := gridchild.OfService(o, grid.Spec.Template)
	if err != nil {
		return result{err: err}
	}
	d := &desired{
		identity: identity{name: rendered.Object.GetName(), digest: rendered.Digest},
		shape:    &atomic.Value{}, child: func() (*gridchild.Child, error) { return rendered, nil },
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
