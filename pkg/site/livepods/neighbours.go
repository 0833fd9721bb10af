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

// hear passes what the neighbours say to the facts, before the upstream is known to be there or while it is away.
func (k *Keeper) hear() {
	if k.config.Neighbours == nil {
		return
	}
	words := k.config.Neighbours.Words()
	changed := k.heard != k.config.Facts.Changes()
	news := make(map[string]struct{})
	for name, word := range words {
		if n := k.neighbours[name]; changed || n == nil || n.word != word {
			news[name] = struct{}{}
		}
	}
	known := k.config.Facts.PodsOnNodes(news)
	if k.phase == away && k.config.Upstream() != Away {
		return // it may have come back meanwhile, with pods that it did not know before
	}
	for name := range k.neighbours {
		if words[name] == nil {
			k.config.Facts.SetLivePods(name, nil)
			delete(k.neighbours, name)
		}
	}
	for name := range news {
		n := &neighbour{word: words[name], about: make(map[facts.PodKey]struct{})}
		if before := k.neighbours[name]; before != nil && before.word == n.word {
			n.refused = before.refused
		}
		for pod, said := range known[name] {
			if said.Governed {
				n.about[pod] = struct{}{}
			}
		}
		k.neighbours[name] = n
	}
	before := k.config.Facts.Changes()
	refused := k.giveNeighbours(news)
	if k.heard = k.config.Facts.Changes(); refused {
		k.heard = before // what others have said now may set the addresses free
	}
	if len(news) > 0 || len(words) == 0 {
		k.countNeighbours()
	}
}

// hearAgain passes what the neighbours say of the pods that the upstream knew before it went away to the facts.
func (k *Keeper) hearAgain() {
	if k.config.Neighbours == nil {
		return
	}
	news := make(map[string]struct{})
	for name, word := range k.config.Neighbours.Words() {
		if n := k.neighbours[name]; n != nil && n.word != word {
			n.word, n.refused = word, 0
			news[name] = struct{}{}
		}
	}
	if len(news) > 0 {
		k.giveNeighbours(news)
		k.countNeighbours()
	}
}

// agree drops the pods of which the upstream says what the neighbours say, and returns how many are left.
func (k *Keeper) agree() (left int) {
	names := make(map[string]struct{}, len(k.neighbours))
	for name := range k.neighbours {
		names[name] = struct{}{}
	}
	known := k.config.Facts.PodsOnNodes(names)
	fewer := make(map[string]struct{})
	for name, n := range k.neighbours {
		before := len(n.about)
		disputed(n.about, known[name])
		switch {
		case len(n.about) == 0:
			k.config.Facts.SetLivePods(name, nil)
			delete(k.neighbours, name)
		case len(n.about) < before:
			fewer[name] = struct{}{}
		}
		left += len(n.about)
	}
	if len(fewer)+len(names) > len(k.neighbours) { // fewer pods, or fewer neighbours
		k.giveNeighbours(fewer)
		k.countNeighbours()
	}
	return left
}

// forgetNeighbours lets the upstream's word count for the neighbours' pods, and takes this node's pods from them.
func (k *Keeper) forgetNeighbours() {
	if k.config.Neighbours == nil {
		return
	}
	for name := range k.neighbours {
		k.config.Facts.SetLivePods(name, nil)
	}
	clear(k.neighbours)
	k.share(nil)
	k.update(func(s *Status) { s.Neighbours, s.NeighboursCorrected = nil, 0 })
}

// giveNeighbours passes what neighbours say to the facts, without the pods that have an address which is known to
// belong to others: a node could lead connections to places that others may reach and it may not. It reports whether
// there are such pods.
func (k *Keeper) giveNeighbours(names map[string]struct{}) (refused bool) {
	claimed := make(map[string][]netip.Addr, len(names))
	for name := range names {
		for _, pod := range k.neighbours[name].word.Pods {
			claimed[name] = append(claimed[name], pod.Addresses...)
		}
	}
	held := k.config.Facts.HeldByOthers(claimed)
	for name := range names {
		n := k.neighbours[name]
		pods := n.word.Pods
		if of := held[name]; len(of) > 0 {
			pods = maps.Clone(pods)
			maps.DeleteFunc(pods, func(_ facts.PodKey, pod facts.LivePod) bool {
				return slices.ContainsFunc(pod.Addresses, func(a netip.Addr) bool {
					_, isHeld := of[a]
					return isHeld
				})
			})
		}
		count := len(n.word.Pods) - len(pods)
		if count > n.refused {
			k.config.Observer.PodsRefused(count - n.refused)
		}
		n.refused, refused = count, refused || count > 0
		k.config.Facts.SetLivePods(name, &facts.LivePods{AsOf: n.word.AsOf, Pods: pods, About: maps.Clone(n.about)})
	}
	return refused
}

// countNeighbours updates the status.
func (k *Keeper) countNeighbours() {
	names := make(map[string]struct{}, len(k.neighbours))
	for name := range k.neighbours {
		names[name] = struct{}{}
	}
	corrected := 0
	for _, pods := range k.config.Facts.PodsOnNodes(names) {
		for _, pod := range pods {
			if pod.Disputed {
				corrected++
			}
		}
	}
	k.update(func(s *Status) {
		s.Neighbours, s.NeighboursCorrected = slices.Sorted(maps.Keys(names)), corrected
	})
}
