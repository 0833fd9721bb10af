package gridcontroller

import (
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	corev1listers "k8s.io/client-go/listers/core/v1"
)

// sites are the sites of one key: the distinct values of a label. An empty value is also a site.
type sites map[string]siteNodes

// siteNodes has the nodes of a site, which belong to the cache. silent is how many of them the control plane has lost
// contact with, the last one at silentSince.
type siteNodes struct {
	nodes       []*corev1.Node
	silentNodes int
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
		if lost, at := isSilent(node); lost {
			u.silentNodes++
			if at.After(u.silentSince) {
				u.silentSince = at
			}
		}
		all[site] = u
	}
	return all
}

// isSilent reports whether the control plane has lost contact with a node, and when that last changed. The node
// controller sets the condition Ready to Unknown when a kubelet falls silent. A node whose kubelet reports that it is
// not ready is not lost.
func isSilent(node *corev1.Node) (lost bool, since time.Time) {
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			return condition.Status == corev1.ConditionUnknown, condition.LastTransitionTime.Time
		}
	}
	return false, time.Time{}
}

// allSilent reports whether the control plane has lost contact with all nodes of the site.
func (u siteNodes) allSilent() bool { return u.silentNodes > 0 && u.silentNodes == len(u.nodes) }

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

// changesSites reports whether two states of a node differ in what sites depend on.
func changesSites(before, now *corev1.Node) bool {
	wasLost, _ := isSilent(before)
	lost, _ := isSilent(now)
	return wasLost != lost || !maps.Equal(before.Labels, now.Labels)
}
