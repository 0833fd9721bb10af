package livepods

import "github.com/application-grid/application-grid/pkg/storage/facts"

func (k *Keeper) keyOf(p *pod) facts.PodKey {
	key := facts.PodKey{Namespace: "ns", Name: p.name, UID: p.uid}
	if p.static {
		key.UID = ""
	}
	return key
}

func (k *Keeper) apiKeyOf(p *pod) facts.PodKey {
	key := facts.PodKey{Namespace: "ns", Name: p.name, UID: p.uid}
	if p.static {
		key.UID = "mirror-of-" + p.uid
	}
	return key
}
