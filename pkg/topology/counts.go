package topology

// Counts count endpoints by tier, and by the values that their nodes have of topology keys. What a node finds best
// among them follows from the counts, at a cost that does not grow with the endpoints. The zero value has none.
type Counts struct {
	total  [Unusable]int
	values [Unusable]map[string]map[string]int
}

// Add counts an endpoint on a node with the labels there (delta 1), or subtracts it (delta -1). Unusable ones are not
// counted.
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

// Total is how many endpoints of a tier there are.
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
