package livepods

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/application-grid/application-grid/pkg/storage/facts"
)

// passWords passes the neighbours' reports to the facts, without pods that claim an address which is known to belong to
// others. Otherwise a node could redirect connections to places that it may not reach itself.
func (k *Keeper) passWords() {
	held := k.config.Facts.HeldByOthers(k.words)
	for name, word := range k.words {
		if k.phase == away {
			k.about[name] = make(map[facts.PodKey]struct{})
			for pod, known := range k.known[name] {
				if known.Governed {
					k.about[name][pod] = struct{}{}
				}
			}
		}
		pods := maps.Clone(word.Pods)
		maps.DeleteFunc(pods, func(_ facts.PodKey, pod facts.LivePod) bool {
			return slices.ContainsFunc(pod.Addresses, func(a netip.Addr) bool {
				_, isHeld := held[name][a]
				return isHeld
			})
		})
		if refused := len(word.Pods) - len(pods); refused > 0 && k.passed[name] != word {
			k.config.Observer.PodsRefused(refused)
		}
		k.config.Facts.SetLivePods(name, &facts.LivePods{AsOf: word.AsOf, Pods: pods, About: maps.Clone(k.about[name])})
	}
	k.passed = k.words
}
