package topology

import (
	"fmt"
	"strings"
	"testing"
)

// placed is an endpoint on a node.
type placed struct {
	node string
	tier Tier
}

// worldOf reads slices from lines such as "IPv4 web,admin: node1 node2! node3~", one slice each: the address type, the
// ports, and the nodes of the endpoints. ! is an endpoint that is terminating and serves, - one that is not ready, ?
// one that is suspected, and ~ one on a silent node.
func worldOf(keys Keys, nodes map[string]Labels, lines string) (all []List, on [][]placed) {
	tiers := map[byte]Tier{'!': Terminating, '-': Unusable, '?': Suspected, '~': Silent}
	for line := range strings.SplitSeq(strings.TrimSpace(lines), "\n") {
		head, endpoints, _ := strings.Cut(line, ":")
		family, names, _ := strings.Cut(strings.TrimSpace(head), " ")
		list := List{Counts: &Counts{}}
		for name := range strings.SplitSeq(names, ",") {
			if name != "" {
				list.Ports = append(list.Ports, Port{family, name, "TCP"})
			}
		}
		var there []placed
		for node := range strings.FieldsSeq(endpoints) {
			tier := Ready
			if t, marked := tiers[node[len(node)-1]]; marked {
				tier, node = t, node[:len(node)-1]
			}
			list.Add(tier, keys, nodes[node], 1)
			there = append(there, placed{node, tier})
		}
		all, on = append(all, list), append(on, there)
	}
	return all, on
}

func TestChoices(t *testing.T) {
	nodes := map[string]Labels{
		"node1": {"host": "node1", "pool": "a"}, "node2": {"host": "node2", "pool": "b"},
		"node3": {"host": "node3", "pool": "a"},
	}
	pool, hostPool, poolAny, one := Keys{"pool"}, Keys{"host", "pool"}, Keys{"pool", Any}, Keys{}
	for _, c := range []struct {
		name  string
		keys  Keys
		world string
		want  string // of each slice: the deciding key, the endpoints that stay, and the ports that do not
	}{
		{"each port by itself", poolAny, "4 web: node1 node2\n4 admin: node2", "pool: node1; *: node2"},
		{"each family by itself", poolAny, "4 http: node1\n6 http: node2", "pool: node1; *: node2"},
		{"a slice by its worst port", poolAny, "4 web: node1\n4 web,admin: node2", "pool: node1; *: node2 -web"},
		{
			"what is left of the better port has a worse tier", poolAny, "4 web: node1\n4 web,admin: node1! node2",
			"pool: node1; *: node1 node2 -web",
		},
		{"a port over all slices", poolAny, "4 web: node2\n4 web: node3", "pool: ; pool: node3"},
		{"several ports left out", poolAny, "4 a: node1\n4 b: node1\n4 a,b,c: node2",
			"pool: node1; pool: node1; *: node2 -a -b"},
		{"terminating, where none is ready", hostPool, "4 http: node1!", "host: node1"},
		{"terminating, of the best key", poolAny, "4 http: node1! node2!", "pool: node1"},
		{"ready elsewhere before terminating here", poolAny, "4 http: node1! node2", "*: node1 node2"},
		{"terminating before one that is not ready", hostPool, "4 http: node1- node3!", "pool: node1 node3"},
		{"nothing usable", hostPool, "4 http: node1- node3-", ": "},
		{"nothing usable, any", poolAny, "4 http: node1- node2-", "*: node1 node2"},
		{"one key alone", pool, "4 web: node2\n4 admin: node1-", "pool: ; pool: node1"},
		{"one key leaves no port out", pool, "4 web: node1\n4 web,admin: node1!", "pool: node1; pool: node1"},
		{"without keys nothing is left out", one, "4 web: node1\n4 web,admin: node1!", ": node1; : node1"},
		{"suspected elsewhere hidden", pool, "4 web: node1 node3?", "pool: node1"},
		{"suspected, where none is better", pool, "4 web: node1- node3?", "pool: node1 node3"},
		{"suspected before silent", one, "4 web: node1? node3~", ": node1"},
		{"suspected before terminating", one, "4 web: node1! node3~", ": node1 node3"},
		{"ready elsewhere before suspected here", poolAny, "4 web: node1? node2", "*: node2"},
		{"suspected for one port", one, "4 web: node1\n4 web,admin: node2~", ": node1; : node2 -web"},
		{"no port decides with all", poolAny, "4 web: node1\n4 : node1 node2", "pool: node1; pool: node1"},
		{"no ports at all decide as one", poolAny, "4 : node1!\n6 : node2", "*: node1; *: node2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			all, on := worldOf(c.keys, nodes, c.world)
			here := nodes["node1"]
			var got []string
			for i, choice := range c.keys.Choices(here, all) {
				decision := c.keys.Decide(here, choice.Rank())
				var kept []string
				for _, e := range on[i] {
					if (!c.keys.Governed() || decision.Keep(nodes[e.node])) && !choice.Hides(e.tier) {
						kept = append(kept, e.node)
					}
				}
				said := fmt.Sprintf("%s: %s", decision.Key(), strings.Join(kept, " "))
				for _, port := range choice.Without {
					said += " -" + port.Name
				}
				if len(all[i].Ports) > 0 && len(choice.Without) == len(all[i].Ports) {
					t.Errorf("slice %d keeps no port", i)
				}
				got = append(got, said)
			}
			if said := strings.Join(got, "; "); said != c.want {
				t.Errorf("got  %q\nwant %q", said, c.want)
			}
		})
	}
}

func TestTierOf(t *testing.T) {
	for conditions, want := range map[[3]bool]Tier{
		{true, true, false}: Ready, {true, false, true}: Ready, {false, true, true}: Terminating,
		{false, false, true}: Unusable, {false, true, false}: Unusable,
	} {
		if got := TierOf(conditions[0], conditions[1], conditions[2]); got != want {
			t.Errorf("%v: tier %d, want %d", conditions, got, want)
		}
	}
}
