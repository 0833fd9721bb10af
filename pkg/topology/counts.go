package topology

// Counts count endpoints by tier, and by their nodes' values of topology keys. They give the best endpoint for a node
// at a cost that does not grow with the number of endpoints. The zero value is empty.
type Counts struct {
	total  [Unusable]int
	values [Unusable]map[string]map[string]int
}

// Add counts an endpoint on a node with the labels there (delta 1), or subtracts it (delta -1). Unusable endpoints are
// not counted.
func (c *Counts) Add(tier Tier, keys Keys, there Labels, delta int) {
	if tier == Unusable {
		return
	}
	c.total[tier] += delta
	for _, key := range keys {
		value, has := there[key]
		if !has || key == Any {
			continue
		}
		if c.values[tier] == nil {
			c.values[tier] = make(map[string]map[string]int, len(keys))
		}
		if c.values[tier][key] == nil {
			c.values[tier][key] = make(map[string]int)
		}
		c.values[tier][key][value] += delta
	}
}

// Total returns the number of endpoints of a tier.
func (c *Counts) Total(tier Tier) int { return c.total[tier] }

// Best returns the value of the best endpoint for a node with the labels here. keys are among those that were counted.
func (c *Counts) Best(keys Keys, here Labels) Value {
	for tier, total := range c.total {
		if total == 0 {
			continue
		}
		for rank, key := range keys {
			if value, has := here[key]; key == Any || has && c.values[tier][key][value] > 0 {
				return Tier(tier).Value(rank)
			}
		}
	}
	return NoValue()
}
