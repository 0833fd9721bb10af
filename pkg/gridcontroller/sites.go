package gridcontroller

import (
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	corev1listers "k8s.io/client-go/listers/core/v1"
)

// sites are the sites of one key: the distinct values of a label, with the nodes that have them. An empty value is also
// a site. The nodes belong to the cache.
type sites map[string][]*corev1.Node

// sitesOf returns the sites of a key.
func sitesOf(nodes corev1listers.NodeLister, key string) sites {
	all := sites{}
	cached, _ := nodes.List(labels.Everything()) // a cache returns no error
	for _, node := range cached {
		if site, has := node.Labels[key]; has {
			all[site] = append(all[site], node)
		}
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

// changedKeys returns the keys whose sites differ between two states of a node; one that does not exist has no labels.
// With the value false only other labels of their nodes have changed.
func changedKeys(before, now *corev1.Node) map[string]bool {
	wasLost, _ := isLost(before)
	lost, _ := isLost(now)
	changed, heard := map[string]bool{}, wasLost == lost
	if heard && maps.Equal(before.Labels, now.Labels) {
		return nil
	}
	for key, was := range before.Labels {
		is, has := now.Labels[key]
		changed[key] = !heard || !has || was != is
	}
	for key := range now.Labels {
		if _, had := before.Labels[key]; !had {
			changed[key] = true
		}
	}
	return changed
}

// silent returns how many nodes of a site the control plane has lost contact with, whether these are all, and when it
// lost the last one.
func (u sites) silent(site string) (nodes int64, all bool, since time.Time) {
	for _, node := range u[site] {
		if lost, at := isLost(node); lost {
			nodes++
			if at.After(since) {
				since = at
			}
		}
	}
	return nodes, nodes > 0 && int(nodes) == len(u[site]), since
}

// haveNode reports whether a site has a node whose labels match.
func (u sites) haveNode(site string, of labels.Selector) bool {
	return slices.ContainsFunc(u[site], func(node *corev1.Node) bool { return of.Matches(labels.Set(node.Labels)) })
}

// notReady reports whether the kubelet of a node of a site says that the node is not ready.
func (u sites) notReady(site string) bool {
	return slices.ContainsFunc(u[site], func(node *corev1.Node) bool {
		return slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool {
			return t.Key == corev1.TaintNodeNotReady
		})
	})
}
