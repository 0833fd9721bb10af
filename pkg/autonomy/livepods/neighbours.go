package livepods

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/application-grid/application-grid/pkg/storage/facts"
)

// neighbour is a neighbour whose report the facts have.
type neighbour struct {
	word *facts.LivePods
	// about has the pods for which the report is used: those of governed Services that the upstream knew before it went
	// away. In the phase returning only those on which the upstream does not agree yet are left.
	about map[facts.PodKey]struct{}
	// refused is the number of pods in the report that have addresses of others, so that they are not shown.
	refused int
}

// hear passes the neighbours' reports to the facts. In the phase returning it passes only the pods for which their
// reports are still used.
func (k *Keeper) hear() {
	words, changes := k.config.Neighbours.Words(), k.config.Facts.Changes()
	if changes == k.heardAt && maps.Equal(words, k.heard) {
		return
	}
	known := k.config.Facts.PodsOn(slices.Collect(maps.Keys(words))...)
	if k.phase == away && k.config.Upstream() != Away {
		return // the upstream may be back, with pods that it did not know before
	}
	for name, word := range words {
		n := k.neighbours[name]
		if n == nil && k.phase == returning {
			continue
		}
		if n == nil {
			n = &neighbour{}
			k.neighbours[name] = n
		}
		if n.word != word {
			n.word, n.refused = word, 0
		}
		if k.phase != returning {
			n.about = make(map[facts.PodKey]struct{})
			for pod, said := range known[name] {
				if said.Governed {
					n.about[pod] = struct{}{}
				}
			}
		}
	}
	for name := range k.neighbours {
		if words[name] == nil && k.phase != returning {
			k.forget(name)
		}
	}
	refused := k.giveNeighbours()
	if k.heard, k.heardAt = maps.Clone(words), k.config.Facts.Changes(); refused {
		k.heardAt = changes // the other reports may have released the addresses
	}
}

// forget makes the upstream's status apply to a neighbour's pods.
func (k *Keeper) forget(name string) {
	k.config.Facts.SetLivePods(name, nil)
	delete(k.neighbours, name)
}

// agree drops the pods on which the upstream and the neighbours agree, and then the neighbours without pods.
func (k *Keeper) agree() {
	known := k.config.Facts.PodsOn(slices.Collect(maps.Keys(k.neighbours))...)
	for name, n := range k.neighbours {
		maps.DeleteFunc(n.about, func(pod facts.PodKey, _ struct{}) bool { return !known[name][pod].Disputed })
		if len(n.about) == 0 {
			k.forget(name)
		}
	}
	k.giveNeighbours()
}

// giveNeighbours passes the neighbours' reports to the facts, without pods that claim an address which is known to
// belong to others. Otherwise a node could redirect connections to places that it may not reach itself. It reports
// whether there are such pods.
func (k *Keeper) giveNeighbours() (refused bool) {
	claimed := make(map[string][]netip.Addr, len(k.neighbours))
	for name, n := range k.neighbours {
		for _, pod := range n.word.Pods {
			claimed[name] = append(claimed[name], pod.Addresses...)
		}
	}
	held := k.config.Facts.HeldByOthers(claimed)
	for name, n := range k.neighbours {
		pods := maps.Clone(n.word.Pods)
		maps.DeleteFunc(pods, func(_ facts.PodKey, pod facts.LivePod) bool {
			return slices.ContainsFunc(pod.Addresses, func(a netip.Addr) bool {
				_, isHeld := held[name][a]
				return isHeld
			})
		})
		count := len(n.word.Pods) - len(pods)
		if count > n.refused {
			k.config.Observer.PodsRefused(count - n.refused)
		}
		n.refused, refused = count, refused || count > 0
		k.config.Facts.SetLivePods(name, &facts.LivePods{AsOf: n.word.AsOf, Pods: pods, About: maps.Clone(n.about)})
	}
	corrected, names := 0, slices.Sorted(maps.Keys(k.neighbours))
	for _, pods := range k.config.Facts.PodsOn(names...) {
		for _, pod := range pods {
			if pod.Disputed {
				corrected++
			}
		}
	}
	k.update(func(s *Status) { s.Neighbours, s.NeighboursCorrected = names, corrected })
	return refused
}
