package storage

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/application-grid/application-grid/pkg/topology"
)

// node is what the Store knows of one node: its labels, and the index from it to what lists endpoints on it.
// It also stands for a node that is named by endpoints but not known.
type node struct {
	known  bool
	labels topology.Labels
	// backends are those with endpoints on the node, each once, in no order.
	backends []*backend
}

func (s *Store) knownNodes() []types.NamespacedName {
	var names []types.NamespacedName
	for name, n := range s.nodes {
		if n.known {
			names = append(names, types.NamespacedName{Name: name})
		}
	}
	return names
}

// labelsOf are the labels of the node with this name; nil if it is not known or the name is empty.
func (s *Store) labelsOf(name []byte) topology.Labels {
	if n := s.nodes[string(name)]; n != nil {
		return n.labels
	}
	return nil
}

// setNode takes a node's labels, or that it is gone.
func (s *Store) setNode(name string, known bool, labels topology.Labels) {
	n := s.nodes[name]
	if n == nil {
		n = &node{}
		s.nodes[name] = n
	}
	before := n.labels
	n.known, n.labels = known, labels
	if !known {
		n.labels = nil
		s.forgetAddresses(name)
	}
	changed := changedKeys(before, n.labels)
	if name == s.options.NodeName {
		s.here = n.labels
	}
	s.forget(name, n)
	if s.unit != nil && len(changed) > 0 {
		s.nodeOfUnitChanged(before, n.labels)
	}
	switch {
	case len(changed) == 0:
	case name == s.options.NodeName:
		s.thisNodeChanged(changed)
	default:
		s.otherNodeChanged(n, changed)
	}
}

// forget drops a node that is not known and that nothing names.
func (s *Store) forget(name string, n *node) {
	if !n.known && len(n.backends) == 0 {
		delete(s.nodes, name)
	}
}

// thisNodeChanged: what this node may see changes for every Service governed by one of the keys.
func (s *Store) thisNodeChanged(changed []string) {
	affected := make(map[*service]struct{})
	for _, key := range changed {
		for svc := range s.byKey[key] {
			affected[svc] = struct{}{}
		}
	}
	for svc := range affected {
		s.refresh(svc)
	}
}

// otherNodeChanged: only what lists endpoints on that node changes, and, where that moves the decision of a
// Service with several keys, the rest of that Service.
func (s *Store) otherNodeChanged(n *node, changed []string) {
	for _, b := range n.backends {
		if b.service == nil || !governedByAny(b.service.keys, changed) {
			continue
		}
		s.rank(b)
		if !s.decideAndPublish(b.collection, b.service) {
			s.publish(b.collection, b)
		}
	}
}

func governedByAny(keys topology.Keys, changed []string) bool {
	for _, key := range keys {
		for _, c := range changed {
			if key == c {
				return true
			}
		}
	}
	return false
}

// changedKeys are the keys whose value, or presence, differs.
func changedKeys(before, after topology.Labels) []string {
	var changed []string
	for key, value := range before {
		if other, ok := after[key]; !ok || other != value {
			changed = append(changed, key)
		}
	}
	for key := range after {
		if _, ok := before[key]; !ok {
			changed = append(changed, key)
		}
	}
	return changed
}
