package gridcontroller

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	corev1listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
)

// sites are the sites of one key: the distinct values of a label. An empty value is also a site.
type sites map[string]siteNodes

// siteNodes has the nodes of a site, which belong to the cache. silent is how many of them the control plane has lost
// contact with, the last one at silentSince.
type siteNodes struct {
	nodes       []*corev1.Node
	silent      int
	silentSince time.Time
}

func sitesOf(nodes corev1listers.NodeLister, key string) sites {
	all := sites{}
	cached, _ := nodes.List(labels.Everything()) // a cache returns no error
	for _, node := range cached {
		site, has := node.Labels[key]
		if !has {
			continue
		}
		u := all[site]
		u.nodes = append(u.nodes, node)
		if lost, at := isLost(node); lost {
			u.silent++
			if at.After(u.silentSince) {
				u.silentSince = at
			}
		}
		all[site] = u
	}
	return all
}

// isLost reports whether the control plane has lost contact with a node, and when that last changed. The node
// controller sets the condition Ready to Unknown when a kubelet falls silent. A node whose kubelet reports that it is
// not ready is not lost.
func isLost(node *corev1.Node) (lost bool, since time.Time) {
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			return condition.Status == corev1.ConditionUnknown, condition.LastTransitionTime.Time
		}
	}
	return false, time.Time{}
}

// lost reports whether the control plane has lost contact with all nodes of the site.
func (u siteNodes) lost() bool { return u.silent > 0 && u.silent == len(u.nodes) }

// haveNode reports whether a site has a node whose labels match.
func (u sites) haveNode(site string, of labels.Selector) bool {
	return slices.ContainsFunc(u[site].nodes, func(node *corev1.Node) bool {
		return of.Matches(labels.Set(node.Labels))
	})
}

// notReady reports whether the kubelet of a node of the site says that the node is not ready.
func (u siteNodes) notReady() bool {
	return slices.ContainsFunc(u.nodes, func(node *corev1.Node) bool {
		return slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool {
			return t.Key == corev1.TaintNodeNotReady
		})
	})
}

// burst is how long an event of a child or a node waits for others, so that one reconciliation handles all of them.
const burst = 100 * time.Millisecond

type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// enqueue returns a handler that enqueues the grids that depend on an object. gridsOf returns those that depend on its
// states before and after an event; one of them is nil if the object was created or deleted.
func enqueue(
	gridsOf func(ctx context.Context, before, now client.Object) []types.NamespacedName,
) handler.EventHandler {
	add := func(ctx context.Context, q queue, before, now client.Object) {
		for _, grid := range gridsOf(ctx, before, now) {
			q.AddAfter(reconcile.Request{NamespacedName: grid}, burst)
		}
	}
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q queue) { add(ctx, q, nil, e.Object) },
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q queue) { add(ctx, q, e.ObjectOld, e.ObjectNew) },
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q queue) { add(ctx, q, e.Object, nil) },
	}
}

// ofChild enqueues the grid that the label of a child names. The cache has only objects with the label.
func ofChild() handler.EventHandler {
	return enqueue(func(_ context.Context, before, now client.Object) (names []types.NamespacedName) {
		for _, object := range []client.Object{before, now} {
			if object != nil {
				grid := object.GetLabels()[v1.LabelGridSelector]
				names = append(names, types.NamespacedName{Namespace: object.GetNamespace(), Name: grid})
			}
		}
		return names
	})
}

func ofNode(grids client.Reader, k v1.GridKind) handler.EventHandler {
	return enqueue(func(ctx context.Context, before, now client.Object) (names []types.NamespacedName) {
		was, _ := before.(*corev1.Node)
		is, _ := now.(*corev1.Node)
		for key, all := range changedKeys(cmp.Or(was, &corev1.Node{}), cmp.Or(is, &corev1.Node{})) {
			list := k.NewList()
			err := grids.List(ctx, list, client.MatchingFields{nodeKeyIndex: key}, client.UnsafeDisableDeepCopy)
			if err != nil {
				klog.FromContext(ctx).Error(err, "Cannot list the grids with a key", "key", key)
				continue
			}
			_ = meta.EachListItem(list, func(grid runtime.Object) error { // it returns no errors
				if of, ok := grid.(v1.Object); ok && (all || selectsNodes(of)) {
					names = append(names, client.ObjectKeyFromObject(of))
				}
				return nil
			})
		}
		return names
	})
}

// changedKeys returns the keys whose sites differ between two states of a node; one that does not exist has no labels.
// With the value false only other labels of their nodes have changed.
func changedKeys(before, now *corev1.Node) map[string]bool {
	wasLost, _ := isLost(before)
	lost, _ := isLost(now)
	if wasLost == lost && maps.Equal(before.Labels, now.Labels) {
		return nil
	}
	changed := map[string]bool{}
	for key := range labels.Merge(before.Labels, now.Labels) {
		was, had := before.Labels[key]
		is, has := now.Labels[key]
		changed[key] = wasLost != lost || had != has || was != is
	}
	return changed
}

// selectsNodes reports whether a grid may select sites by labels of their nodes: by waves, or by overrides, also those
// of older revisions.
func selectsNodes(grid v1.Object) bool {
	spec, _ := v1.Workload(grid)
	return spec != nil && (spec.Rollout != nil || slices.ContainsFunc(spec.Overrides, func(o v1.Override) bool {
		return o.Sites.NodeSelector != nil
	}))
}
