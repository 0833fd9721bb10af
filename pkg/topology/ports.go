package topology

import (
	"cmp"
	"slices"
)

// Tier is the quality of an endpoint, apart from its place. A lower tier is better: a data plane uses an endpoint only
// where a Service has none of a lower tier.
type Tier uint8

// The tiers.
const (
	// Ready is an endpoint that is ready.
	Ready Tier = iota
	// Suspected is an endpoint that is ready, but that may not answer, according to its own node or because its wrapper
	// does not answer.
	Suspected
	// Silent is an endpoint that is ready, on a node that no longer answers its neighbours.
	Silent
	// Terminating is an endpoint that is not ready and is terminating, unless its condition serving is false.
	Terminating
	// Unusable is any other endpoint. No data plane uses it.
	Unusable
)

// TierOf returns the tier of an unsuspected endpoint with these conditions, which have the defaults of discovery/v1.
func TierOf(ready, serving, terminating bool) Tier {
	switch {
	case ready:
		return Ready
	case terminating && serving:
		return Terminating
	default:
		return Unusable
	}
}

// Value is the quality of an endpoint, or of the best one of several, for one node: first its tier, then the rank of
// its key.
type Value struct {
	Tier Tier
	// rank is the result of Keys.Rank.
	rank uint8
}

// NoValue is the value of an endpoint that is unusable, or that no key matches.
func NoValue() Value { return Value{Unusable, NoRank} }

// Value returns the value of an endpoint of this tier, whose Keys.Rank is rank.
func (t Tier) Value(rank int) Value {
	if t == Unusable || rank == NoRank {
		return NoValue()
	}
	return Value{t, uint8(rank)} //nolint:gosec // at most NoRank
}

// Rank returns the rank of the key.
func (v Value) Rank() int { return int(v.rank) }

// Compare returns a negative number if the value is better than the other one.
func (v Value) Compare(other Value) int {
	return cmp.Or(cmp.Compare(v.Tier, other.Tier), cmp.Compare(v.rank, other.rank))
}

// Port is one port of a Service in its EndpointSlices that has a number.
type Port struct {
	// AddressType is that of the EndpointSlice.
	AddressType, Name, Protocol string
}

// Compare orders ports by family, name and protocol.
func (p Port) Compare(other Port) int {
	return cmp.Or(cmp.Compare(p.AddressType, other.AddressType), cmp.Compare(p.Name, other.Name),
		cmp.Compare(p.Protocol, other.Protocol))
}

// Choice is how a slice is shown to one node.
type Choice struct {
	// Value is the value of the slice. The key with its rank decides which endpoints are kept (Keys.Decide). Endpoints
	// of a worse tier than Value.Tier that are ready nevertheless, because they are Suspected or Silent, are hidden.
	Value

	// Without has the ports that the slice is shown without.
	Without []Port
}

// Equal reports whether both show a slice in the same way.
func (c Choice) Equal(other Choice) bool {
	return c.Value == other.Value && slices.Equal(c.Without, other.Without)
}

// Hides reports whether an endpoint of this tier is hidden: it is suspected, and a better one exists.
func (c Choice) Hides(t Tier) bool { return t > c.Tier && (t == Suspected || t == Silent) }

// List has the endpoints of all slices of a Service with the same list of ports, or those of one slice.
type List struct {
	// Ports are those with a number; nil if the Service decides as one (IgnoresPorts).
	Ports []Port
	*Counts
}

// IgnoresPorts reports whether the slices of a Service are shown by one value, whatever their ports. A headless Service
// is resolved by name, without a port. A Service whose traffic all stays on its node (all its traffic policies are
// Local) uses endpoints there even if better ones exist elsewhere.
func IgnoresPorts(headless, local bool) bool { return headless || local }

// Choices returns how the slices of each of the lists of a Service are shown to a node with the labels here. Unless
// endpoints are suspected, a Service without keys shows all endpoints, and one with a single key those that it matches,
// whatever their ports.
//
// The value of a port is the best one of all lists that have it. A slice is shown by the worst value among its ports,
// and without the ports that have a better one: in this slice, the endpoints that the better port's key matches have a
// worse tier than others, and no data plane uses them when better ones exist. So no slice is split. A list without
// ports has the best value of all: its slices decide as one with the rest of the Service.
func (k Keys) Choices(here Labels, lists []List) []Choice {
	choices, suspected := make([]Choice, len(lists)), false
	for _, list := range lists {
		suspected = suspected || list.Total(Suspected)+list.Total(Silent) > 0
	}
	if len(k) < 2 && !suspected {
		return choices
	}
	if !k.Governed() {
		k = Keys{Any}
	}
	whole, values := NoValue(), make(map[Port]Value)
	for _, list := range lists {
		best := list.Best(k, here)
		if best.Compare(whole) < 0 {
			whole = best
		}
		for _, port := range list.Ports {
			if value, found := values[port]; !found || best.Compare(value) < 0 {
				values[port] = best
			}
		}
	}
	for i, list := range lists {
		if len(lists) == 1 || len(list.Ports) == 0 {
			choices[i].Value = whole
		} else {
			choices[i] = choose(list.Ports, values)
		}
	}
	return choices
}

func choose(list []Port, values map[Port]Value) Choice {
	var worst Value
	for _, port := range list {
		if worst.Compare(values[port]) < 0 {
			worst = values[port]
		}
	}
	choice := Choice{Value: worst}
	for _, port := range list {
		if values[port] != worst {
			choice.Without = append(choice.Without, port)
		}
	}
	return choice
}
