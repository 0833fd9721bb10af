package gridcontroller

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
)

// burst is how long an event of a child or a node waits for others, so that one reconciliation handles all of them.
const burst = 100 * time.Millisecond

type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// gridChanged passes changes of a grid on which its children depend, but not changes of its status.
func gridChanged() predicate.Predicate {
	return predicate.Or[client.Object](predicate.GenerationChangedPredicate{}, predicate.LabelChangedPredicate{},
		predicate.AnnotationChangedPredicate{})
}

// ofChild enqueues the grid of a child: the one that owns it, or if it has no owner, the one that its label names.
func ofChild(gridKind string) handler.EventHandler {
	enqueue := func(object client.Object, q queue) {
		name := ""
		if by := metav1.GetControllerOf(object); by != nil {
			if by.Kind == gridKind && by.APIVersion == v1.GroupVersion.String() {
				name = by.Name
			}
		} else {
			name = object.GetLabels()[v1.LabelGridSelector]
		}
		if name != "" {
			q.AddAfter(
				reconcile.Request{NamespacedName: types.NamespacedName{Namespace: object.GetNamespace(), Name: name}},
				burst,
			)
		}
	}
	return handler.Funcs{
		CreateFunc: func(_ context.Context, e event.CreateEvent, q queue) { enqueue(e.Object, q) },
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, q queue) {
			enqueue(e.ObjectOld, q)
			enqueue(e.ObjectNew, q)
		},
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, q queue) { enqueue(e.Object, q) },
	}
}

// ofNode keeps nodes up to date, and enqueues the grids whose units are others.
func ofNode(
	nodes *nodes, gridsWith func(ctx context.Context, key string) ([]types.NamespacedName, error),
) handler.EventHandler {
	note := func(ctx context.Context, node string, state *nodeState, q queue) {
		for _, key := range nodes.note(node, state) {
			grids, err := gridsWith(ctx, key)
			if err != nil {
				klog.FromContext(ctx).Error(err, "Cannot list the grids with a key", "key", key)
				continue
			}
			for _, grid := range grids {
				q.AddAfter(reconcile.Request{NamespacedName: grid}, burst)
			}
		}
	}
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q queue) {
			note(ctx, e.Object.GetName(), stateOf(e.Object), q)
		},
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q queue) {
			note(ctx, e.ObjectNew.GetName(), stateOf(e.ObjectNew), q)
		},
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q queue) { note(ctx, e.Object.GetName(), nil, q) },
	}
}
