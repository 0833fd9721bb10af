package livepods

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/application-grid/application-grid/pkg/storage/facts"
)

// neighbour is a neighbour whose word the facts have.
type neighbour struct {
	word *facts.LivePods
	// about has the pods for which the word counts: those of governed Services that the upstream knew before it went
	// away, and in the phase returning only those of which it does not say the same yet.
	about map[facts.PodKey]struct{}
	// refused is the number of pods of the word that have addresses of others, so that they are not shown.
	refused int
}

// hear passes what the neighbours say to the facts. In the phase returning that is only what they say of the pods for
// which their word counts still.
func (k *Keeper) hear() {
	words, changes := k.config.Neighbours.Words(), k.config.Facts.Changes()
	if changes == k.heardAt && maps.Equal(words, k.heard) {
		return
	}
	known := k.config.Facts.PodsOnNodes(maps.Keys(words))
	if k.phase == away && k.config.Upstream() != Away {
		return // it may have come back meanwhile, with pods that it did not know before
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
		k.heardAt = changes // what others have said now may set the addresses free
	}
}

// forget lets the upstream's word count for a neighbour's pods.
func (k *Keeper) forget(name string) {
	k.config.Facts.SetLivePods(name, nil)
	delete(k.neighbours, name)
}

// agree drops the pods of which the upstream says what the neighbours say, and the neighbours of which none are left.
func (k *Keeper) agree() {
	known := k.config.Facts.PodsOnNodes(maps.Keys(k.neighbours))
	for name, n := range k.neighbours {
		if disputed(n.about, known[name]); len(n.about) == 0 {
			k.forget(name)
		}
	}
	k.giveNeighbours()
}

// giveNeighbours passes what neighbours say to the facts, without the pods that have an address which is known to
// belong to others: a node could lead connections to places that others may reach and it may not. It reports whether
// there are such pods.
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
	corrected := 0
	for _, pods := range k.config.Facts.PodsOnNodes(maps.Keys(k.neighbours)) {
		for _, pod := range pods {
			if pod.Disputed {
				corrected++
			}
		}
	}
	k.update(func(s *Status) {
		s.Neighbours, s.NeighboursCorrected = slices.Sorted(maps.Keys(k.neighbours)), corrected
	})
	return refused
}
