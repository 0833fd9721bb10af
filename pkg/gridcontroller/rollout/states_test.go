package rollout

import (
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
)

// small is a world of two or three sites in two waves, small enough to visit every state that it can reach. Its step is
// a minute. All of it is in the state, so that it can be copied.
type small struct {
	Sites     []smallSite
	Status    *v1.RolloutStatus
	OnFailure v1.OnFailure
	// Approved and Resumed are what a person was asked for, and has answered.
	Approved, Resumed string
	now               time.Time
}

type smallSite struct {
	// Has: its workload has the change; Runs: so have its pods, since Age minutes, of which they were ready for Ready.
	Has, Runs  bool
	Age, Ready int
	// Silent is for how many minutes it has been silent; 0 for a site that is heard. Proven is the truth.
	Silent int
	Proven bool
}

const (
	smallSoak     = 1 * time.Minute
	smallDeadline = 1 * time.Minute
)

// smallKey names a state: worlds with the same key have the same future. Times are in it as what plans compare, up to
// the age from which on they compare alike.
type smallKey struct {
	sites     [3]smallSiteKey
	onFailure v1.OnFailure
	phase     v1.RolloutPhase
	// done are the waves that are done. Other states of waves follow from the rest.
	done             [2]bool
	heard, unlisted  int32
	proven           int
	lost             bool
	halted, resumed  bool
	awaits, approved string
}

type smallSiteKey struct {
	has, runs, late, proven bool
	ready                   int
	// silent: it is silent; counts: that makes part of an outage, which is newer than the last halt.
	silent, counts, newer bool
	state                 v1.RolloutSiteState
	from                  string
	stopped               bool
	since, readyTime      int
}

// key names the state.
func (s *small) key() smallKey {
	k := smallKey{onFailure: s.OnFailure}
	st := s.Status
	listed := map[string]*v1.RolloutSite{}
	if st != nil {
		switch k.phase = st.Phase; k.phase {
		case v1.RolloutSoaking, v1.RolloutAwaitingApproval, v1.RolloutPaused: // the next plan finds out itself
			k.phase = v1.RolloutProgressing
		default:
		}
		for i := range st.Sites {
			listed[st.Sites[i].Name] = &st.Sites[i]
		}
		for i, wave := range st.Waves {
			k.done[i] = wave.State == v1.WaveDone
		}
		k.heard, k.proven, k.unlisted = st.Heard, min(int(st.Proven), len(s.Sites)), st.Unlisted
		k.lost = int(st.Listed) != len(st.Sites)
		k.halted = st.HaltTime != nil
		k.resumed = k.halted && s.Resumed == st.HaltTime.UTC().Format(time.RFC3339)
		// An approval of another attempt is good for nothing.
		attempt := st.StartTime.UTC().Format(time.RFC3339)
		k.awaits = strings.ReplaceAll(st.Awaits, attempt, "")
		if strings.Contains(s.Approved, attempt) &&
			(!k.done[0] || !strings.Contains(s.Approved, "/first/")) {
			k.approved = strings.ReplaceAll(s.Approved, attempt, "")
		}
	}
	for i, u := range s.Sites {
		of := smallSiteKey{
			has: u.Has, runs: u.Runs, late: u.Ready == 0 && time.Duration(u.Age)*time.Minute >= smallDeadline,
			proven: u.Proven, ready: min(u.Ready, s.soak(i)+1), silent: u.Silent > 0,
		}
		if at := s.silentSince(i); st != nil && u.Silent > 0 {
			of.counts = !at.Before(st.StartTime.Time) && (st.OutageAccepted == nil || at.After(st.OutageAccepted.Time))
			of.newer = of.counts && k.halted && at.After(st.HaltTime.Time)
		}
		if l := listed[smallName(i)]; l != nil {
			of.state, of.from, of.stopped = l.State, l.From, l.SilentTime != nil
			now := metav1.NewTime(s.now)
			if l.SilentTime != nil {
				now = *l.SilentTime
			}
			age := func(at *metav1.Time, most int) int {
				if at == nil {
					return -1
				}
				return min(int(now.Sub(at.Time)/time.Minute), most)
			}
			soak := s.soak(i)
			switch l.State {
			case v1.RolloutSiteAccepted, v1.RolloutSiteFailed: // they have no deadline, and are not put back
				of.from, of.stopped = "", of.stopped && soak > 0 && l.ReadyTime != nil
			case v1.RolloutSitePending: // its deadline begins later
				of.stopped = false
			default:
				of.since = age(l.Since, 2*soak+int(smallDeadline/time.Minute))
			}
			if soak > 0 {
				of.readyTime = age(l.ReadyTime, soak)
				if u.Ready > 0 && age(l.ReadyTime, u.Ready) > u.Ready-1 { // the pods have had a break since then
					of.readyTime = soak + 1
				}
			}
		}
		k.sites[i] = of
	}
	return k
}

// soak is for how many minutes a site has to be ready.
func (s *small) soak(site int) int {
	if site == 0 {
		return int(smallSoak / time.Minute)
	}
	return 0
}

func (s *small) silentSince(site int) time.Time {
	return s.now.Add(-time.Duration(s.Sites[site].Silent-1) * time.Minute)
}

func smallName(site int) string { return fmt.Sprint("u", site) }

func (s *small) clone() *small {
	of := *s
	of.Sites, of.Status = slices.Clone(s.Sites), s.Status.DeepCopy()
	return &of
}

// input is what the controller sees.
func (s *small) input() Input {
	in := Input{
		Rollout: &v1.Rollout{OnFailure: s.OnFailure, Waves: []v1.Wave{
			{Name: "first", Sites: &v1.SiteSelector{}, Soak: &metav1.Duration{Duration: smallSoak}}, {Name: "rest"},
		}},
		Revision: "new", Update: "new", Current: "old", Deadline: smallDeadline, Status: s.Status,
		Approved: s.Approved, Resumed: s.Resumed, Now: s.now,
	}
	for i, u := range s.Sites {
		site := Site{Name: smallName(i), Wave: min(i, 1), Exists: true, Revision: "old", Ready: true}
		if u.Has {
			site.Revision, site.Ready = "new", u.Runs && u.Ready > 0
			if !site.Ready && u.Age >= int(smallDeadline/time.Minute) {
				site.Broken, site.Tried = "no progress", "new"
			}
		}
		if u.Silent > 0 {
			site.Silent, site.SilentSince = true, s.silentSince(i)
			site.Ready, site.Broken = false, ""
		}
		in.Sites = append(in.Sites, site)
	}
	return in
}

// pass is a reconciliation of which stop sites are changed; with more than there are, the status is written.
func (s *small) pass(stop int) error {
	in := s.input()
	for i := range in.Sites {
		u := s.Sites[i]
		in.Sites[i].Pods = &Pods{Acknowledged: u.Runs}
		if u.Ready > 0 {
			in.Sites[i].Pods.ReadySince = s.now.Add(-time.Duration(u.Ready-1) * time.Minute)
		}
	}
	plan := New(in)
	for i := range s.Sites {
		u := &s.Sites[i]
		if i == stop {
			return nil
		}
		switch to := plan.Revisions[smallName(i)]; {
		case to == "new" && !u.Has:
			passed := Approves(s.Approved, s.Status.Awaits) || s.Status.Waves[0].State == v1.WaveDone
			if i > 0 && !s.Sites[0].Proven && !passed {
				return fmt.Errorf("u%d gets the change, and u0 has not proven it", i)
			}
			u.Has, u.Age = true, 0
		case to == "old" && u.Has:
			*u = smallSite{Silent: u.Silent, Proven: u.Proven}
		}
	}
	if stop < len(s.Sites) {
		return nil
	}
	// Where no site is left that could get the change, and none that is silent with it, there is nothing to prove.
	left := slices.ContainsFunc(s.Sites, func(u smallSite) bool { return !u.Has }) ||
		slices.ContainsFunc(plan.Status.Sites, func(u v1.RolloutSite) bool { return u.State == v1.RolloutSiteSuspect })
	was := s.Status != nil && s.Status.Waves[0].State == v1.WaveDone
	if plan.Status.Waves[0].State == v1.WaveDone && !was && left && !s.Sites[0].Proven &&
		!Approves(s.Approved, Approval("new", "first", plan.Status.StartTime, "unproven")) {
		return fmt.Errorf("the first wave is done, and u0 has not proven the change")
	}
	unproven := 0
	for i := 1; i < len(s.Sites); i++ {
		if s.Sites[i].Has && !s.Sites[i].Proven && plan.Status.Phase != v1.RolloutComplete {
			unproven++
		}
	}
	if unproven > 2 { // a place, and a suspect
		return fmt.Errorf("%d sites of the second wave are unproven", unproven)
	}
	s.Status = plan.Status.DeepCopy()
	return nil
}

// next returns what may become of the state in a minute: the pods of one site start, get ready or break, it falls
// silent or is heard, a person answers, the controller stops in the middle.
func (s *small) next() (all []*small, wrong error) {
	for event := range 5*len(s.Sites) + 6 {
		n := s.clone()
		n.now = n.now.Add(time.Minute)
		for i := range n.Sites {
			u := &n.Sites[i]
			if u.Has {
				u.Age++
			}
			if u.Ready > 0 && u.Silent == 0 {
				u.Ready++
			}
			if u.Silent > 0 {
				u.Silent++
			}
		}
		stop := len(n.Sites)
		if event < 5*len(n.Sites) {
			u := &n.Sites[event/5]
			switch event % 5 {
			case 0:
				if u.Has && u.Silent == 0 {
					u.Runs = true
				}
			case 1:
				if u.Has && (u.Runs || u.Silent == 0) && u.Ready == 0 {
					u.Runs, u.Ready = true, 1
				}
			case 2:
				u.Ready = 0
			case 3:
				u.Silent = max(u.Silent, 1)
			case 4:
				u.Silent = 0
			}
		} else {
			switch event - 5*len(n.Sites) {
			case 1:
				if n.Status != nil && n.Status.Awaits != "" {
					n.Approved = n.Status.Awaits
				}
			case 2:
				if n.Status != nil && n.Status.HaltTime != nil {
					n.Resumed = n.Status.HaltTime.UTC().Format(time.RFC3339)
				}
			case 3, 4, 5:
				stop = event - 5*len(n.Sites) - 3
			}
		}
		for i := range n.Sites {
			u := &n.Sites[i]
			u.Proven = u.Proven || (u.Runs && u.Ready > n.soak(i))
		}
		if err := n.pass(stop); err != nil {
			return nil, err
		}
		all = append(all, n)
	}
	return all, nil
}

var every = flag.Bool("rollout.every", false, "TestEveryState visits the worlds of three sites, for minutes")

// mostStates is more than a small world has.
const mostStates = 3000000

// TestEveryState visits every state that small worlds can reach, each once, the nearest first: those of two sites, and
// with -rollout.every of three. Once a rollout is complete there is nothing left to judge.
func TestEveryState(t *testing.T) {
	t.Parallel()
	sites := 2
	if *every {
		sites = 3
	}
	for _, onFailure := range []v1.OnFailure{v1.OnFailureHalt, v1.OnFailureRollback} {
		t.Run(string(onFailure), func(t *testing.T) {
			t.Parallel()
			began := time.Now()
			start := &small{
				Sites: make([]smallSite, sites), OnFailure: onFailure, now: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC),
			}
			if err := start.pass(sites); err != nil {
				t.Fatal(err)
			}
			seen := map[smallKey]bool{start.key(): true}
			for queue := []*small{start}; len(queue) > 0; queue = queue[1:] {
				if len(seen) > mostStates {
					t.Fatalf("more than %d states: the key tells states apart that are one", len(seen))
				}
				all, err := queue[0].next()
				if err != nil {
					t.Fatalf("%v after %+v", err, queue[0].key())
				}
				for _, n := range all {
					key := n.key()
					if !seen[key] && key.phase != v1.RolloutComplete {
						queue = append(queue, n)
					}
					seen[key] = true
				}
			}
			t.Logf("%d sites: %d states, all of them followed, in %s", sites, len(seen),
				time.Since(began).Round(time.Second))
		})
	}
}
