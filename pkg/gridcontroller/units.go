package gridcontroller

import (
	"maps"
	"slices"
	"sync"

	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/application-grid/application-grid/pkg/gridcontroller/rollout"
)

// units knows the units of each key: the distinct, non-empty values of a label over all nodes. It keeps sets only for
// the keys that it was asked for.
type units struct {
	mu sync.Mutex // guards everything below
	// nodes has the nodes by name.
	nodes map[string]*nodeState
	// sets has the units of a key.
	sets map[string]map[string]nodeCount
	// selected are the keys of grids that select units by further labels of their nodes.
	selected map[string]bool
}

// nodeState is the state of a node. The labels belong to the cache, and must not be changed.
type nodeState struct {
	labels map[string]string
	// lost is set if the control plane has lost contact with the node. since is since when that is so, or not so.
	lost  bool
	since time.Time
}

// unit returns the unit of a node; empty if it is in none, or if there is no node.
func (n *nodeState) unit(key string) string {
	if n == nil {
		return ""
	}
	return n.labels[key]
}

// nodeCount counts the nodes of a unit.
type nodeCount struct{ all, lost int }

// unitLife says whether a unit has nodes, and whether all of them are lost.
type unitLife struct{ exists, unreachable bool }

func (c nodeCount) life() unitLife { return unitLife{c.all > 0, c.all > 0 && c.lost == c.all} }

func newUnits() *units {
	return &units{nodes: map[string]*nodeState{}, sets: map[string]map[string]nodeCount{}, selected: map[string]bool{}}
}

// stateOf returns the state of a node. The node controller sets the condition Ready to Unknown when a kubelet falls
// silent. A node whose kubelet reports that it is not ready is not lost.
func stateOf(object client.Object) *nodeState {
	node, ok := object.(*corev1.Node)
	if !ok {
		return nil
	}
	s := &nodeState{labels: node.Labels}
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			s.lost = condition.Status == corev1.ConditionUnknown
			s.since = condition.LastTransitionTime.Time
		}
	}
	return s
}

// of returns the units of a key, sorted.
func (u *units) of(key string) []string {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.Sorted(maps.Keys(u.set(key)))
}

// unreachable returns the units of a key whose nodes are all lost, with the time at which the last one was.
func (u *units) unreachable(key string) map[string]time.Time {
	u.mu.Lock()
	defer u.mu.Unlock()
	lost := map[string]time.Time{}
	for unit, count := range u.set(key) {
		if count.life().unreachable {
			lost[unit] = time.Time{}
		}
	}
	if len(lost) == 0 {
		return lost
	}
	for _, node := range u.nodes {
		if at, ok := lost[node.labels[key]]; ok && node.since.After(at) {
			lost[node.labels[key]] = node.since
		}
	}
	return lost
}

// labelsOf returns the labels of the nodes of every unit of a key. From then on the key has changed when a label of one
// of its nodes has. The maps are not to be changed.
func (u *units) labelsOf(key string) map[string][]map[string]string {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.selected[key] = true
	of := map[string][]map[string]string{}
	for _, node := range u.nodes {
		if unit := node.labels[key]; unit != "" {
			of[unit] = append(of[unit], node.labels)
		}
	}
	return of
}

// relabelled reports whether the labels of a node that is, or was, in a unit of the key are others than before.
func relabelled(key string, before, now *nodeState) bool {
	var labels [2]map[string]string
	for i, node := range []*nodeState{before, now} {
		if node.unit(key) != "" {
			labels[i] = node.labels
		}
	}
	return !maps.Equal(labels[0], labels[1])
}

// nodesIn returns the states of the nodes of a unit, by name.
func (u *units) nodesIn(key, unit string) map[string]rollout.Node {
	u.mu.Lock()
	defer u.mu.Unlock()
	nodes := map[string]rollout.Node{}
	for name, node := range u.nodes {
		if node.labels[key] == unit {
			nodes[name] = rollout.Node{Silent: node.lost, ReadyAt: node.since}
		}
	}
	return nodes
}

// silentIn returns how many nodes of a unit the control plane has lost contact with.
func (u *units) silentIn(key, unit string) int64 {
	silent := int64(0)
	for _, node := range u.nodesIn(key, unit) {
		if node.Silent {
			silent++
		}
	}
	return silent
}

// set returns the units of a key. It counts them when it is called for the key for the first time. It must be called
// with mu held.
func (u *units) set(key string) map[string]nodeCount {
	set, ok := u.sets[key]
	if !ok {
		set = map[string]nodeCount{}
		for _, node := range u.nodes {
			count(set, node, key, 1)
		}
		u.sets[key] = set
	}
	return set
}

// count adds a node to its unit's count, or subtracts it.
func count(set map[string]nodeCount, node *nodeState, key string, by int) {
	unit := node.unit(key)
	if unit == "" {
		return
	}
	c := set[unit]
	c.all += by
	if node.lost {
		c.lost += by
	}
	if c.all == 0 {
		delete(set, unit)
		return
	}
	set[unit] = c
}

// note notes the state of a node, nil if it was deleted. It returns the keys for which a unit was added or removed, or
// became reachable or unreachable.
func (u *units) note(node string, now *nodeState) []string {
	u.mu.Lock()
	defer u.mu.Unlock()
	before := u.nodes[node]
	if now == nil {
		delete(u.nodes, node)
	} else {
		u.nodes[node] = now
	}
	var changed []string
	for key, set := range u.sets {
		from, to := before.unit(key), now.unit(key)
		was := [...]unitLife{set[from].life(), set[to].life()}
		count(set, before, key, -1)
		count(set, now, key, 1)
		if was != [...]unitLife{set[from].life(), set[to].life()} || (u.selected[key] && relabelled(key, before, now)) {
			changed = append(changed, key)
		}
	}
	return changed
}
