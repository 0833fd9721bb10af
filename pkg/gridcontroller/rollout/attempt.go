package rollout

import (
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
)

const (
	// allGates means all gates in status.passed.
	allGates = "*"
	// restWave means the sites that no wave names, in status.passed and in approvals.
	restWave = "_"
	// undone is the reason why all sites go back after an undo.
	undone = "the spec is what ran everywhere before"
	// nameMark and uidMark are the lengths of the two parts of a mark: the hash of a name, and the hash of a UID.
	nameMark, uidMark = 6, 4
)

// marks is a set of sites: the hashes of their workloads' UIDs, by the hashes of their names.
type marks map[string]string

func hashOf(text string, characters int) string {
	sum := sha256.Sum256([]byte(text))
	return base64.RawURLEncoding.EncodeToString(sum[:])[:characters]
}

func readMarks(all []string) marks {
	m := marks{}
	for _, mark := range all {
		if len(mark) == nameMark+uidMark {
			m[mark[:nameMark]] = mark[nameMark:]
		}
	}
	return m
}

func (m marks) add(u *Site) { m[hashOf(u.Name, nameMark)] = hashOf(u.UID, uidMark) }

// has reports whether a site is in the set with this workload. named reports whether a site of this name is in it.
func (m marks) has(u *Site) bool { return m[hashOf(u.Name, nameMark)] == hashOf(u.UID, uidMark) }

func (m marks) named(site string) bool { return m[hashOf(site, nameMark)] != "" }

func (m marks) list() []string {
	all := make([]string, 0, len(m))
	for name, uid := range m {
		all = append(all, name+uid)
	}
	slices.Sort(all)
	return all
}

// resumeOrBegin continues the attempt of the written status, or begins a new one.
func (p *planner) resumeOrBegin() {
	p.heard = p.lastHeartbeat()
	others := slices.ContainsFunc(p.Sites, func(u Site) bool { return u.Exists && u.Revision != p.Revision })
	switch {
	case p.Status != nil && p.Status.StartTime != nil && p.Update == p.Revision:
		p.status = p.Status.DeepCopy()
		for i := range p.status.Sites {
			of := &p.status.Sites[i]
			p.listed[of.Name], p.written[of.Name] = of, of.State
		}
		p.upgradeStatus()
		p.shiftClocks()
	case p.Current == "" && !others: // a new grid: all sites get the revision at once
		p.newAttempt()
		p.status.AtOnce, p.plan.Current = true, p.Revision
	case p.Current == p.Revision && p.Status == nil && !others: // the grid gets a rollout, without a change
		p.newAttempt()
		p.status.Passed = []string{allGates}
	default:
		p.newAttempt()
		if p.Current == p.Revision {
			p.status.GoesBack = undone
		}
	}
	p.proofs, p.accepted = readMarks(p.status.ProvenSites), readMarks(p.status.AcceptedSites)
	p.done = slices.Contains(p.status.Passed, allGates)
	p.status.AtOnce = p.status.AtOnce || (p.AtOnce == p.Revision && !p.done)
	p.status.Wave, p.status.Message, p.status.Awaits, p.status.Phase = "", "", "", v1.RolloutProgressing
	if p.haltedByFailures() {
		p.status.Message = p.Status.Message
	}
	p.specs = slices.Concat(p.Rollout.Waves, []v1.Wave{{}})
	if p.status.AtOnce && !p.done { // one wave of all sites, which only have to become ready to prove the revision
		all := intstr.FromString("100%")
		p.specs = []v1.Wave{{Name: "(at once)", MaxUnavailable: &all, MaxSilent: &all}, {}}
		for _, u := range p.all {
			u.Wave = 0
		}
	}
	p.waves = make([][]*Site, len(p.specs))
	for _, site := range p.all {
		p.waves[site.Wave] = append(p.waves[site.Wave], site)
	}
	p.states = make([]v1.WaveState, len(p.waves))
}

// gate names the end of a wave.
func (p *planner) gate(wave int) string { return cmp.Or(p.specs[wave].Name, restWave) }

func (p *planner) passed(wave int) bool {
	return p.done || slices.Contains(p.status.Passed, p.gate(wave))
}

// upgradeStatus reads the status of a controller from before gates, which has no heardTime. There waves in state Done
// have passed, sites that have the revision and are not listed are proven, and phases are decisions.
func (p *planner) upgradeStatus() {
	s, proofs := p.status, marks{}
	switch {
	case s.HeardTime != nil:
		return
	case s.Phase == v1.RolloutComplete:
		s.Passed = []string{allGates}
		return
	case s.Phase == v1.RolloutRollingBack, s.Phase == v1.RolloutRolledBack:
		s.GoesBack, s.HaltReason = cmp.Or(s.Message, "sites failed"), v1.HaltFailures
	case s.Phase == v1.RolloutOutage:
		s.HaltReason = v1.HaltOutage
	case s.HaltTime != nil:
		s.HaltReason = v1.HaltFailures
	}
	for _, wave := range s.Waves {
		if wave.State == v1.WaveDone {
			s.Passed = append(s.Passed, cmp.Or(wave.Name, restWave))
		}
	}
	for i := range p.Sites {
		if u := &p.Sites[i]; p.hasRevision(u) && !u.Idle && p.listed[u.Name] == nil {
			proofs.add(u)
		}
	}
	s.ProvenSites = proofs.list()
}

// newAttempt begins an attempt, without proofs, approvals and accepted sites. Sites silent by now are no outage.
func (p *planner) newAttempt() {
	start := p.Now.Truncate(time.Second)
	if last := p.Status; last != nil && last.StartTime != nil && !start.After(last.StartTime.Time) {
		start = last.StartTime.Add(time.Second) // the start time identifies the attempt
	}
	p.status = &v1.RolloutStatus{AtOnce: p.AtOnce == p.Revision, StartTime: &metav1.Time{Time: start}}
	p.acceptSilence()
}

// complete completes the rollout: its revision becomes the currentRevision.
func (p *planner) complete() {
	p.plan.Current, p.done = p.Revision, true
	p.status.Passed, p.status.GoesBack, p.status.Phase = []string{allGates}, "", v1.RolloutComplete
}
