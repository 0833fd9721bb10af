// Package kubeproxy moves kube-proxy on kubeadm clusters: once the wrapper of a node is ready, the node gets the
// kube-proxy that asks the wrapper.
package kubeproxy

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/gridview"
)

// wrapperApp is the label app of the wrapper's pods, and wrapperPause the time between two reads of them.
const (
	wrapperApp   = "application-grid-wrapper"
	wrapperPause = 5 * time.Second
)

// mover labels edge nodes once their wrapper is ready. The affinities of manifests/kubeadm move kube-proxy by that
// label. So a node whose wrapper has no image yet keeps a kube-proxy that works. If the wrapper stops being ready
// later, the label is kept, because kube-proxy keeps its rules then. Where the wrapper is a systemd service, kube-proxy
// has moved already, and the label keeps it there when the wrapper becomes a pod.
type mover struct {
	// cache has the nodes, server is the API server.
	cache, server client.Reader
	writer        client.Writer
}

// Add adds the controller that labels edge nodes to a manager.
func Add(m manager.Manager) error {
	return ctrl.NewControllerManagedBy(m).
		Named("kube-proxy").
		For(&corev1.Node{}, builder.WithPredicates(predicate.LabelChangedPredicate{})).
		Complete(&mover{cache: m.GetCache(), server: m.GetAPIReader(), writer: m.GetClient()})
}

func (r *mover) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	node := &corev1.Node{}
	if err := r.cache.Get(ctx, request.NamespacedName, node); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	_, moved := node.Labels[v1.LabelKubeProxy]
	edge := node.Labels[v1.LabelEdgeNode]
	wanted := edge == v1.EdgeNodePods || edge == v1.EdgeNodeSystemd
	if wanted == moved {
		return reconcile.Result{}, nil
	}
	value := "null" // removes it
	if wanted {
		value = strconv.Quote(v1.KubeProxyEdge)
	}
	if edge == v1.EdgeNodePods {
		ready, err := r.wrapperIsReady(ctx, node.Name)
		if err != nil || !ready {
			return reconcile.Result{RequeueAfter: wrapperPause}, err
		}
	}
	patch := fmt.Appendf(nil, `{"metadata":{"labels":{%q:%s}}}`, v1.LabelKubeProxy, value)
	klog.FromContext(ctx).Info("Moving kube-proxy", "node", node.Name, "toEdge", wanted)
	err := r.writer.Patch(ctx, node, client.RawPatch(types.MergePatchType, patch))
	return reconcile.Result{}, client.IgnoreNotFound(err)
}

func (r *mover) wrapperIsReady(ctx context.Context, node string) (bool, error) {
	pods := &corev1.PodList{}
	err := r.server.List(ctx, pods, client.InNamespace(metav1.NamespaceSystem),
		client.MatchingLabels{"app": wrapperApp}, client.MatchingFields{"spec.nodeName": node})
	if err != nil {
		return false, fmt.Errorf("looking for the wrapper of node %s: %w", node, err)
	}
	return slices.ContainsFunc(pods.Items, func(p corev1.Pod) bool {
		return p.DeletionTimestamp == nil && gridview.IsReady(&p)
	}), nil
}
