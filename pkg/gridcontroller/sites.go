package gridcontroller

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// nodes has the nodes of the cluster, from which the sites of every key follow.
type nodes struct {
	mu     sync.Mutex // guards byName
	byName map[string]*nodeState
}

// nodeState is the state of a node. It is immutable, and its labels belong to the cache.
type nodeState struct {
	name   string
	labels labels.Set
	// lost is set if the control plane has lost contact with the node. since is when lost last changed.
	lost  bool
	since time.Time
	// taints keep pods away from the node.
	taints []corev1.Taint
}

// sites are the sites of one key: the distinct values of a label, with the nodes that have them. An empty value is also
// a site.
type sites map[string][]*nodeState

func newNodes() *nodes { return &nodes{byName: map[string]*nodeState{}} }

// stateOf returns the state of a node. The node controller sets the condition Ready to Unknown when a kubelet falls
// silent. A node whose kubelet reports that it is not ready is not lost.
func stateOf(object client.Object) *nodeState {
	node, ok := object.(*corev1.Node)
	if !ok {
		return nil
	}
	s := &nodeState{name: node.Name, labels: node.Labels, taints: node.Spec.Taints}
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			s.lost = condition.Status == corev1.ConditionUnknown
			s.since = condition.LastTransitionTime.Time
		}
	}
	return s
}

// sitesOf returns the sites of a key.
func (n *nodes) sitesOf(key string) sites {
	n.mu.Lock()
	defer n.mu.Unlock()
	all := sites{}
	for _, node := range n.byName {
		if site, has := node.labels[key]; has {
			all[site] = append(all[site], node)
		}
	}
	return all
}

// noteNode records the state of a node, nil if it was deleted. It returns the keys whose sites have changed. With the
// value false only other labels of their nodes have.
func (n *nodes) noteNode(name string, now *nodeState) map[string]bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	before := cmp.Or(n.byName[name], &nodeState{})
	if now == nil {
		delete(n.byName, name)
		now = &nodeState{}
	} else {
		n.byName[name] = now
	}
	changed, heard := map[string]bool{}, before.lost == now.lost
	if heard && maps.Equal(before.labels, now.labels) {
		return nil
	}
	for key, was := range before.labels {
		is, has := now.labels[key]
		changed[key] = !heard || !has || was != is
	}
	for key := range now.labels {
		if _, had := before.labels[key]; !had {
			changed[key] = true
		}
	}
	return changed
}

// silent returns how many nodes of a site the control plane has lost contact with, whether these are all, and when it
// lost the last one.
func (u sites) silent(site string) (nodes int64, all bool, since time.Time) {
	for _, node := range u[site] {
		if node.lost {
			nodes++
			if node.since.After(since) {
				since = node.since
			}
		}
	}
	return nodes, nodes > 0 && int(nodes) == len(u[site]), since
}

// notReady reports whether the kubelet of a node of a site says that the node is not ready.
func (u sites) notReady(site string) bool {
	return slices.ContainsFunc(u[site], func(node *nodeState) bool {
		return slices.ContainsFunc(node.taints, func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeNotReady })
	})
}
