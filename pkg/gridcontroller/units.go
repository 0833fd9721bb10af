package gridcontroller

import (
	"maps"
	"slices"
	"sync"
)

// units knows which units there are: the distinct, non-empty values of a label over all nodes. It keeps sets
// for the keys that it was asked for only, and a node's change costs the keys that changed.
type units struct {
	mu sync.Mutex // guards all below
	// nodes are the labels of every node; the maps are the cache's, and not to be changed.
	nodes map[string]map[string]string
	// sets are the units of a key, with the number of their nodes.
	sets map[string]map[string]int
}

func newUnits() *units {
	return &units{nodes: map[string]map[string]string{}, sets: map[string]map[string]int{}}
}

// of returns the units of a key, in order.
func (u *units) of(key string) []string {
	u.mu.Lock()
	defer u.mu.Unlock()
	set, ok := u.sets[key]
	if !ok {
		set = map[string]int{}
		for _, labels := range u.nodes {
			if unit := labels[key]; unit != "" {
				set[unit]++
			}
		}
		u.sets[key] = set
	}
	return slices.Sorted(maps.Keys(set))
}

// set notes the labels of a node, nil if it is gone, and returns the keys of which a unit came or went.
func (u *units) set(node string, labels map[string]string) []string {
	u.mu.Lock()
	defer u.mu.Unlock()
	before := u.nodes[node]
	if labels == nil {
		delete(u.nodes, node)
	} else {
		u.nodes[node] = labels
	}
	var changed []string
	for key, set := range u.sets {
		old, now := before[key], labels[key]
		if old == now {
			continue
		}
		moved := false
		if old != "" {
			if set[old]--; set[old] == 0 {
				delete(set, old)
				moved = true
			}
		}
		if now != "" {
			if set[now]++; set[now] == 1 {
				moved = true
			}
		}
		if moved {
			changed = append(changed, key)
		}
	}
	return changed
}
