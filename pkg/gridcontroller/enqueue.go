package gridcontroller

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
)

// batchPeriod is how long a request waits for others, so that one reconciliation handles many events.
const batchPeriod = 100 * time.Millisecond

type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// batchingQueue is the queue of a controller. What is added to it waits for the batchPeriod.
type batchingQueue struct{ queue }

func (q batchingQueue) Add(grid reconcile.Request) { q.AddAfter(grid, batchPeriod) }

func newQueue(name string, limiter workqueue.TypedRateLimiter[reconcile.Request]) queue {
	config := workqueue.TypedRateLimitingQueueConfig[reconcile.Request]{Name: name}
	return batchingQueue{workqueue.NewTypedRateLimitingQueueWithConfig(limiter, config)}
}

// gridOf returns the grid that the label of a child names. The cache has only objects with the label.
func gridOf(_ context.Context, child client.Object) []reconcile.Request {
	grid := types.NamespacedName{Namespace: child.GetNamespace(), Name: child.GetLabels()[v1.LabelGridSelector]}
	return []reconcile.Request{{NamespacedName: grid}}
}

// watchNodes enqueues the grids of a kind whose key is a label of a node, when its labels or its silence change.
func watchNodes(c cache.Cache, k v1.GridKind) source.Source {
	gridsOf := func(ctx context.Context, node *corev1.Node) (requests []reconcile.Request) {
		for key := range node.Labels {
			list := k.NewList()
			err := c.List(ctx, list, client.MatchingFields{nodeKeyIndex: key}, client.UnsafeDisableDeepCopy)
			if err != nil {
				klog.FromContext(ctx).Error(err, "Cannot list the grids with a key", "key", key)
			}
			_ = meta.EachListItem(list, func(grid runtime.Object) error {
				if of, ok := grid.(client.Object); ok {
					requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(of)})
				}
				return nil
			})
		}
		return requests
	}
	return source.Kind(c, &corev1.Node{}, handler.TypedEnqueueRequestsFromMapFunc(gridsOf),
		predicate.TypedFuncs[*corev1.Node]{UpdateFunc: func(e event.TypedUpdateEvent[*corev1.Node]) bool {
			return changesSites(e.ObjectOld, e.ObjectNew)
		}})
}
