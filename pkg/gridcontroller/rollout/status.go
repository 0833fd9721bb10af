package rollout

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/utils/ptr"

	"github.com/application-grid/application-grid/pkg/apis/enumerate"
	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
)

// setPhase sets the phase, the wave and the message of the status.
func (p *planner) setPhase(phase v1.RolloutPhase, wave int, message string) {
	p.status.Phase, p.status.Wave, p.status.Message = phase, p.specs[wave].Name, message
}

// setStatus fills in the status: its sets and its counts.
func (p *planner) setStatus() {
	s := p.status
	s.Updated, s.Ready, s.Proven, s.Failed, s.Suspects, s.Deferred, s.Waves, s.Sites = 0, 0, 0, 0, 0, 0, nil, nil
	// Names that are no sites at present keep their proofs, because a label may be missing for seconds. Most of them
	// never return, so there may not be too many.
	if len(p.proofs) > len(p.all)+p.Most {
		sites := marks{}
		for _, u := range p.all {
			sites.add(u)
		}
		maps.DeleteFunc(p.proofs, func(name, _ string) bool { _, is := sites[name]; return !is })
	}
	s.ProvenSites, s.AcceptedSites = p.proofs.list(), p.accepted.list()
	if p.runsEverywhere() {
		s.ProvenSites = nil
	}
	for i := range p.waves {
		if i == len(p.waves)-1 && len(p.waves[i]) == 0 {
			continue // every site has a wave
		}
		of := v1.WaveStatus{Name: p.specs[i].Name, State: cmp.Or(p.states[i], v1.WavePending)}
		if p.passed(i) {
			of.State = v1.WaveDone
		}
		for _, u := range p.waves[i] {
			p.count(u, &of)
		}
		s.Updated, s.Ready, s.Proven = s.Updated+of.Updated, s.Ready+of.Ready, s.Proven+of.Proven
		s.Failed, s.Suspects, s.Deferred = s.Failed+of.Failed, s.Suspects+of.Suspects, s.Deferred+of.Deferred
		s.Waves = append(s.Waves, of)
	}
	for _, name := range slices.Sorted(maps.Keys(p.listed)) {
		s.Sites = append(s.Sites, *p.listed[name])
	}
	p.plan.Status = s
}

func (p *planner) count(u *Site, of *v1.WaveStatus) {
	of.Sites++
	if p.hasRevision(u) {
		of.Updated++
		if p.ready(u) {
			of.Ready++
		}
	}
	switch state := p.state(u); {
	case state == v1.RolloutSiteFailed:
		of.Failed++
	case state == v1.RolloutSiteSuspect:
		of.Suspects++
	case p.proven(u) && !u.Idle:
		of.Proven++
	case !p.hasRevision(u) && state == "" && (u.Held || p.silent(u)):
		of.Deferred++
	}
}

// waitsFor says for which sites the rollout waits, and why they cannot begin if that is not their fault.
func (p *planner) waitsFor(sites []*Site) string {
	text := "waits for " + p.describe(sites)
	if p.isListBlocked() {
		text += fmt.Sprintf("; no other site can begin, because the status lists %d sites, which is the most, and all "+
			"of them are held or excused: %s", p.Most,
			enumerate.First(slices.Sorted(maps.Keys(p.listed)), namedSites))
	}
	return text
}

// describe names some sites, each with its problem.
func (p *planner) describe(sites []*Site) string {
	parts := make([]string, 0, namedSites+1)
	for _, site := range sites[:min(len(sites), namedSites)] {
		why := cmp.Or(ptr.Deref(p.listed[site.Name], v1.RolloutSite{}).Message, site.Broken, site.Trouble)
		parts = append(parts, strings.TrimSuffix(site.Name+": "+why, ": "))
	}
	if more := len(sites) - len(parts); more > 0 {
		parts = append(parts, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(parts, "; ")
}
