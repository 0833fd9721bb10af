package gridcontroller

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
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

// gridsOf returns the grids that depend on an object.
type gridsOf func(ctx context.Context, object client.Object) []types.NamespacedName

func (of gridsOf) enqueue(ctx context.Context, object client.Object, q queue) {
	for _, grid := range of(ctx, object) {
		q.AddAfter(reconcile.Request{NamespacedName: grid}, burst)
	}
}

// enqueue returns a handler that enqueues the grids of an object. live returns the grids of an existing object, and is
// called with its states before and after an event. deleted returns those of a deleted object.
func enqueue(live, deleted gridsOf) handler.EventHandler {
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q queue) { live.enqueue(ctx, e.Object, q) },
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q queue) {
			live.enqueue(ctx, e.ObjectOld, q)
			live.enqueue(ctx, e.ObjectNew, q)
		},
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q queue) { deleted.enqueue(ctx, e.Object, q) },
	}
}

// ofChild enqueues the grid of a child: the one that owns it, or if it has no owner, the one that its label names.
func ofChild(gridKind string) handler.EventHandler {
	owner := func(_ context.Context, object client.Object) []types.NamespacedName {
		name := object.GetLabels()[v1.LabelGridSelector]
		if by := metav1.GetControllerOf(object); by != nil {
			if by.Kind != gridKind || by.APIVersion != v1.GroupVersion.String() {
				return nil
			}
			name = by.Name
		}
		if name == "" {
			return nil
		}
		return []types.NamespacedName{{Namespace: object.GetNamespace(), Name: name}}
	}
	return enqueue(owner, owner)
}

// ofNode keeps nodes up to date, and enqueues the grids whose sites have changed.
func ofNode(nodes *nodes, grids client.Reader, k kind) handler.EventHandler {
	changed := func(ctx context.Context, name string, state *nodeState) (names []types.NamespacedName) {
		for _, key := range nodes.noteNode(name, state) {
			list := k.NewList()
			err := grids.List(ctx, list, client.MatchingFields{nodeKeyIndex: key}, client.UnsafeDisableDeepCopy)
			if err != nil {
				klog.FromContext(ctx).Error(err, "Cannot list the grids with a key", "key", key)
				continue
			}
			_ = meta.EachListItem(list, func(grid runtime.Object) error { // it returns no errors
				if of, ok := grid.(client.Object); ok {
					names = append(names, client.ObjectKeyFromObject(of))
				}
				return nil
			})
		}
		return names
	}
	return enqueue(func(ctx context.Context, node client.Object) []types.NamespacedName {
		return changed(ctx, node.GetName(), stateOf(node))
	}, func(ctx context.Context, node client.Object) []types.NamespacedName {
		return changed(ctx, node.GetName(), nil)
	})
}
