package topology

// Labels are the labels of one node. The labels of a node that is not known are nil.
type Labels = map[string]string

// NoRank is the rank of an endpoint, or of a Service, that matches none of its keys.
const NoRank = MaxKeys + 1

// Rank returns the position of the first key whose value is the same in here, the labels of the viewing node, and in
// there, the labels of the endpoint's node. It returns NoRank if no key has.
func (k Keys) Rank(here, there Labels) int {
	for i, key := range k {
		if Match(key, here, there) {
			return i
		}
	}
	return NoRank
}

// Match reports whether both nodes carry the same value of the key. A node without the key matches nothing.
func Match(key string, here, there Labels) bool {
	if key == Any {
		return true
	}
	ours, has := here[key]
	theirs, both := there[key]
	return has && both && ours == theirs
}

// Decision keeps or hides each endpoint of one Service, seen from one node. The zero Decision keeps nothing.
type Decision struct {
	key  string
	here Labels
}

// Decide picks the key that decides. best is the rank of the Value by which a slice is shown (NoRank without one).
//
// A single key decides alone, usable endpoints or not. Of several keys, the one with that rank decides. When none is
// matched, a last "*" keeps everything, else nothing is kept. (This is the order of preference of Kubernetes' former
// service topology, KEP-536.)
func (k Keys) Decide(here Labels, best int) Decision {
	switch {
	case len(k) == 1:
		return Decision{key: k[0], here: here}
	case best < len(k):
		return Decision{key: k[best], here: here}
	case len(k) > 0 && k[len(k)-1] == Any:
		return Decision{key: Any}
	default:
		return Decision{}
	}
}

// Keep reports whether an endpoint on a node with these labels is kept. An endpoint without a node name, or on an
// unknown node, has nil labels.
func (d Decision) Keep(there Labels) bool {
	return d.key != "" && Match(d.key, d.here, there)
}

// Key returns the key that decided, "" if nothing is kept.
func (d Decision) Key() string { return d.key }
