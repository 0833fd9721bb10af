package rollout

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
)

// history is a fleet that runs the revision old, is given new, and does what the plan says at once.
type history struct {
	*testing.T
	in    Input
	sites map[string]*Site
	// since is when the pods of a site were made, pods how many times its workload was.
	since map[string]time.Time
	made  int
	plan  Plan
	// deaf: pods cannot be read. refused: no status can be written.
	deaf, refused bool
	// check is the result of the check of a site that has run for so long.
	check func(ran time.Duration) CheckResult
	began map[string]time.Time
	// behave changes a site after it got a revision. Without it the site is ready at once.
	behave func(u *Site, to string)
}

// begins makes a history of sites, in the waves of the rollout.
func begins(t *testing.T, r *v1.Rollout, waves map[string]int) *history {
	t.Helper()
	h := &history{
		T: t, sites: map[string]*Site{}, since: map[string]time.Time{}, began: map[string]time.Time{},
	}
	h.in = Input{
		Rollout: r, Revision: "new", Update: "old", Current: "old", Deadline: 10 * time.Minute,
		Now: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC),
	}
	h.in.Status = &v1.RolloutStatus{
		Phase: v1.RolloutComplete, StartTime: &metav1.Time{Time: h.in.Now.Add(-time.Hour)}, Passed: []string{allGates},
	}
	for name, wave := range waves {
		h.sites[name] = &Site{Name: name, UID: name + "-1", Wave: wave, Exists: true, Revision: "old", Ready: true}
		h.since[name] = h.in.Now.Add(-time.Hour)
	}
	return h
}

func (h *history) pass() {
	h.in.Now = h.in.Now.Add(5 * time.Second)
	h.in.Sites = nil
	for _, n := range slices.Sorted(maps.Keys(h.sites)) {
		h.in.Sites = append(h.in.Sites, *h.sites[n])
	}
	h.plan = NewPlan(h.in)
	if len(h.plan.Ask) > 0 && !h.deaf {
		for _, q := range h.plan.Ask {
			i := slices.IndexFunc(h.in.Sites, func(u Site) bool { return u.Name == q.Name })
			u := &h.in.Sites[i]
			u.Pods = &Pods{At: h.in.Now}
			u.Pods.Acknowledged = u.Revision == h.in.Revision && h.since[u.Name].After(h.in.Status.StartTime.Time)
			switch mark := []string{hashOf(fmt.Sprint(u.Name, h.since[u.Name]), 10)}; {
			case u.Silent:
				u.Pods.Silent = mark
			case u.Partly && u.PerNode: // the pod on the other node waits for that on the silent one, or does not
				u.Pods.Silent, u.Pods.Missing = mark, 1
				u.Pods.Marks, u.Pods.Acknowledged = []string{"other pod."}, false
				if u.Pods.Lacking = 1; u.Revision == "old" || u.Name == "well" {
					u.Pods.Current, u.Pods.Lacking = 1, 0
				}
			case u.Ready:
				u.Pods.Marks = mark
			default:
				u.Pods.Unready = mark
			}
		}
		h.plan = NewPlan(h.in)
	}
	if len(h.plan.Checks) > 0 {
		for _, name := range h.plan.Checks {
			if h.began[name].IsZero() {
				h.began[name] = h.in.Now
			}
			result := h.check(h.in.Now.Sub(h.began[name]))
			h.in.Sites[slices.IndexFunc(h.in.Sites, func(u Site) bool { return u.Name == name })].Check = &result
		}
		h.plan = NewPlan(h.in)
	}
	for n, to := range h.plan.Revisions {
		u := h.sites[n]
		if u.Held || (u.Exists && u.Revision == to) {
			continue
		}
		if !u.Exists {
			h.made++
			u.UID = fmt.Sprint(n, "-again-", h.made)
		}
		u.Exists, u.Revision, u.Ready, u.Progress = true, to, true, h.in.Now
		h.since[n] = h.in.Now
		if h.behave != nil {
			h.behave(u, to)
		}
	}
	if h.in.Followed = h.plan.Followed; !h.refused {
		h.in.Current, h.in.Update, h.in.Status = h.plan.Current, h.in.Revision, h.plan.Status.DeepCopy()
	}
}

func (h *history) last(d time.Duration) {
	for end := h.in.Now.Add(d); h.in.Now.Before(end); {
		h.pass()
	}
}

func (h *history) with(revision string) (all []string) {
	for _, n := range slices.Sorted(maps.Keys(h.sites)) {
		if h.sites[n].Exists && h.sites[n].Revision == revision {
			all = append(all, n)
		}
	}
	return all
}

// expect checks the phase, and which sites run the new revision.
func (h *history) expect(when string, phase v1.RolloutPhase, with ...string) {
	h.Helper()
	if s := h.in.Status; s.Phase != phase || !slices.Equal(h.with("new"), with) {
		h.Errorf("%s: %s %q, and %v have it; want %s, %v", when, s.Phase, s.Message, h.with("new"), phase, with)
	}
}

// breaks has a site that gets the change never ready.
func breaks(site string) func(u *Site, to string) {
	return func(u *Site, to string) { u.Ready = u.Name != site || to != "new" }
}

func soaking(name string, soak time.Duration, most int32, sites bool) v1.Wave {
	w := v1.Wave{Name: name, Soak: &metav1.Duration{Duration: soak}}
	if most > 0 {
		m := intstr.FromInt32(most)
		w.MaxUnavailable = &m
	}
	if sites {
		w.Sites = &v1.SiteSelector{Names: []string{"x"}}
	}
	return w
}

// rest is one wave of all sites, in which most may be unproven.
func rest(soak time.Duration, most int32) *v1.Rollout {
	return &v1.Rollout{Waves: []v1.Wave{soaking("rest", soak, most, false)}}
}

// canary is a wave of some sites before the rest, one site at a time.
func canary(soak time.Duration) *v1.Rollout {
	return &v1.Rollout{Waves: []v1.Wave{
		soaking("canary", soak, 1, true), soaking("rest", 30*time.Minute, 1, false),
	}}
}

// many are sites of the first wave.
func many(sites int) map[string]int {
	all := map[string]int{}
	for i := range sites {
		all[fmt.Sprintf("u%04d", i)] = 0
	}
	return all
}

// TestHeldAfterFailure: a site has failed, a person holds it to debug it, and resumes.
func TestHeldAfterFailure(t *testing.T) {
	h := begins(t, rest(0, 0), map[string]int{"a": 0, "b": 0, "c": 0, "d": 0})
	h.behave = breaks("a")
	h.last(11 * time.Minute)
	h.expect("a is broken", v1.RolloutHalted, "a")
	h.sites["a"].Held = true
	h.last(time.Minute)
	h.in.Resumed = h.in.Status.HaltTime.UTC().Format(time.RFC3339)
	h.last(time.Minute)
	h.expect("it is held, and somebody resumes", v1.RolloutComplete, "a", "b", "c", "d")
}

// TestCheckOfALateSite: a site has failed because it was not ready in time. Once it is, its check runs, and proves it.
func TestCheckOfALateSite(t *testing.T) {
	r := rest(0, 1)
	r.MaxFailures = ptr.To(intstr.FromInt32(1))
	r.Waves[0].Check = &v1.Check{Template: v1.Template{Raw: []byte("{}")}}
	h := begins(t, r, map[string]int{"a": 0, "b": 0})
	h.behave = breaks("a")
	h.check = func(ran time.Duration) CheckResult {
		return CheckResult{Runs: ran < time.Minute, Passed: ran >= time.Minute}
	}
	h.last(30 * time.Minute)
	if h.in.Status.Failed != 1 {
		t.Fatalf("%d have failed", h.in.Status.Failed)
	}
	h.sites["a"].Ready = true
	h.last(5 * time.Minute)
	if h.expect("a is ready", v1.RolloutComplete, "a", "b"); h.in.Status.Failed > 0 {
		t.Errorf("its check was not read: %+v", h.in.Status.Sites)
	}
}

// TestCheckFailsOnce: a check that has failed is not asked for again.
func TestCheckFailsOnce(t *testing.T) {
	r := rest(0, 1)
	r.Waves[0].Check = &v1.Check{Template: v1.Template{Raw: []byte("{}")}}
	h := begins(t, r, map[string]int{"a": 0, "b": 0})
	h.check = func(ran time.Duration) CheckResult { return CheckResult{Runs: true, Failed: ran > 0, Message: "no"} }
	h.last(time.Minute)
	if h.expect("a has failed", v1.RolloutHalted, "a"); len(h.plan.Checks) > 0 {
		t.Errorf("asks for the checks of %v", h.plan.Checks)
	}
}

// TestHeldInProgress: nobody waits for a site that is held while it soaks.
func TestHeldInProgress(t *testing.T) {
	h := begins(t, rest(30*time.Minute, 0), map[string]int{"a": 0, "b": 0, "c": 0, "d": 0})
	h.last(5 * time.Minute)
	h.sites["a"].Held = true
	h.last(4 * time.Hour)
	h.expect("a is held", v1.RolloutComplete, "a", "b", "c", "d")
}

// TestHotfixProvesNothing: a person has held the workload of a site that does not work, has changed its image, and
// gives it back. For a moment it is ready with that.
func TestHotfixProvesNothing(t *testing.T) {
	h := begins(t, canary(0), map[string]int{"lab": 0, "a": 1})
	h.behave = breaks("lab")
	h.last(time.Minute)
	lab := h.sites["lab"]
	lab.Held, lab.Ready, lab.Drifted = true, true, true
	h.last(time.Minute)
	lab.Held = false
	h.pass()
	lab.Ready, lab.Drifted = false, false // the controller has reverted that
	h.last(time.Minute)
	h.expect("it is as applied again", v1.RolloutProgressing, "lab")
}

// TestHotfixDuringARestart: a person has done the same while the controller restarted, so the first pass does not know.
func TestHotfixDuringARestart(t *testing.T) {
	h := begins(t, canary(0), map[string]int{"lab": 0, "a": 1})
	h.behave = breaks("lab")
	h.last(time.Minute)
	lab := h.sites["lab"]
	h.in.Followed, lab.Ready, lab.Uncompared = nil, true, true
	h.pass()
	lab.Ready, lab.Uncompared = false, false // the controller has reverted that
	h.last(time.Minute)
	h.expect("it is as applied again", v1.RolloutProgressing, "lab")
	lab.Ready = true
	h.last(time.Minute)
	h.expect("it works", v1.RolloutSoaking, "a", "lab")
}

// TestHotfixHidesBehindAProof: somebody edits a workload that has proven the change. A controller that restarts has not
// compared it yet when the last other site is excused.
func TestHotfixHidesBehindAProof(t *testing.T) {
	h := begins(t, rest(0, 2), map[string]int{"a": 0, "b": 0})
	h.behave = breaks("b")
	h.last(time.Minute)
	a, b := h.sites["a"], h.sites["b"]
	h.in.Followed, a.Uncompared, b.Held = nil, true, true
	h.pass()
	h.expect("a was not compared", v1.RolloutProgressing, "a", "b")
	a.Uncompared, a.Drifted = false, true
	h.last(time.Minute)
	h.expect("a is edited", v1.RolloutProgressing, "a", "b")
	a.Drifted = false
	h.pass()
	h.expect("that is reverted", v1.RolloutComplete, "a", "b")
}

// TestChangeWaitsForAnApproval: the workload of a site is left alone, because the change means a loss there, and a
// person answers hours later. The site gets the change then, with its whole deadline.
func TestChangeWaitsForAnApproval(t *testing.T) {
	h := begins(t, rest(0, 1), map[string]int{"a": 0, "b": 0})
	h.sites["a"].Held = true // for this test, so that it is not changed
	h.pass()
	h.sites["a"].Held, h.sites["a"].Withheld, h.sites["a"].Trouble = false, true, "waits for an approval"
	keep := func(d time.Duration) {
		for end := h.in.Now.Add(d); h.in.Now.Before(end); {
			h.pass()
			h.sites["a"].Revision = "old"
		}
	}
	keep(3 * time.Hour)
	h.expect("nobody has approved", v1.RolloutProgressing, "b")
	if !strings.Contains(h.in.Status.Message, "a: waits for an approval") {
		t.Errorf("the message is %q", h.in.Status.Message)
	}
	h.sites["a"].Withheld, h.sites["a"].Trouble = false, ""
	keep(9 * time.Minute)
	h.expect("it is approved, and cannot be applied", v1.RolloutProgressing, "b")
	h.last(30 * time.Second)
	h.expect("it is applied", v1.RolloutComplete, "a", "b")
}

// TestQuestionIsAskedAgain: the pods cannot be read in the pass in which a site falls silent before it has seen the
// change.
func TestQuestionIsAskedAgain(t *testing.T) {
	h := begins(t, rest(30*time.Minute, 0), map[string]int{"a": 0, "b": 0, "c": 0, "d": 0, "e": 0})
	h.behave = func(u *Site, to string) {
		if u.Name == "a" && to == "new" {
			u.Ready, u.Silent, u.SilentSince = false, true, h.in.Now
			h.since["a"] = h.in.Now.Add(-time.Hour)
		}
	}
	h.deaf = true
	h.last(15 * time.Second)
	h.expect("nobody answers", v1.RolloutAwaitingApproval, "a")
	h.deaf = false
	h.last(2 * time.Minute)
	h.expect("it is put back", v1.RolloutProgressing, "b")
}

// TestProofIsOfNameAndWorkload: neither a label that is away for seconds, nor a site that is closed, nor one without
// pods, gives or takes the proof of another.
func TestProofIsOfNameAndWorkload(t *testing.T) {
	t.Run("a label is away", func(t *testing.T) {
		h := begins(t, rest(30*time.Minute, 4), many(20))
		h.last(100 * time.Minute)
		proven, victim := h.in.Status.Proven, h.in.Status.Sites[0].Name
		u := h.sites[victim]
		delete(h.sites, victim)
		h.last(30 * time.Second)
		h.sites[victim] = u
		h.last(10 * time.Second)
		if s := h.in.Status; s.Proven != proven || h.sites[victim].Revision != "new" {
			t.Errorf("%d proven sites became %d; listed %v", proven, s.Proven, s.Sites)
		}
	})
	t.Run("a proven site is closed, another returns", func(t *testing.T) {
		h := begins(t, canary(30*time.Minute), map[string]int{"a": 0, "b": 0, "x": 1, "y": 1})
		h.behave = breaks("b")
		h.last(35 * time.Minute)
		h.expect("a is proven, b has it", v1.RolloutProgressing, "a", "b")
		b := h.sites["b"]
		delete(h.sites, "a")
		delete(h.sites, "b")
		h.last(20 * time.Second)
		h.sites["b"] = b
		h.last(30 * time.Second)
		if slices.Contains(h.with("new"), "x") && h.in.Status.Awaits == "" {
			t.Errorf("the rest begins, and b never ran the change: %v", h.with("new"))
		}
	})
	t.Run("a site is scaled down and up", func(t *testing.T) {
		h := begins(t, rest(30*time.Minute, 4), many(20))
		for i := 15; i < 20; i++ {
			h.sites[fmt.Sprintf("u%04d", i)].Idle = true
		}
		h.last(100 * time.Minute)
		proven := h.in.Status.Proven
		h.sites["u0019"].Idle = false
		h.last(10 * time.Second)
		if h.in.Status.Proven < proven {
			t.Errorf("%d proven sites became %d", proven, h.in.Status.Proven)
		}
		for i := range 200 { // an autoscaler
			u := h.sites[fmt.Sprintf("u%04d", 15+i%5)]
			u.Idle = !u.Idle
			h.last(29 * time.Minute)
			if h.in.Status.Phase == v1.RolloutComplete {
				return
			}
		}
		t.Errorf("not complete after four days: %s %q", h.in.Status.Phase, h.in.Status.Message)
	})
	t.Run("one is scaled down, another up", func(t *testing.T) {
		h := begins(t, canary(30*time.Minute), map[string]int{"a": 0, "b": 0, "c": 0, "x": 1, "y": 1})
		h.sites["b"].Idle = true
		h.last(32 * time.Minute)
		h.sites["a"].Idle = true
		h.sites["b"].Idle, h.sites["b"].Ready = false, false
		h.last(30 * time.Minute)
		if slices.Contains(h.with("new"), "x") {
			t.Errorf("the rest begins, and b was never ready: %v", h.with("new"))
		}
	})
	t.Run("a proven workload is deleted", func(t *testing.T) {
		h := begins(t, canary(5*time.Minute), map[string]int{"lab": 0, "a": 1, "b": 1})
		h.last(6 * time.Minute)
		h.sites["lab"].Exists = false
		h.last(7 * time.Minute)
		if h.in.Status.Proven != 1 || h.sites["lab"].Revision != "new" {
			t.Errorf("%d are proven; lab has %s", h.in.Status.Proven, h.sites["lab"].Revision)
		}
		a := h.sites["a"]
		delete(h.sites, "a")
		h.last(10 * time.Second)
		h.sites["a"] = a
		h.last(10 * time.Second)
		if !slices.ContainsFunc(h.in.Status.Sites, func(of v1.RolloutSite) bool { return of.Name == "a" }) {
			t.Errorf("a counts as proven after 7 of 30 minutes: %v", h.in.Status.Sites)
		}
	})
}

// TestNamesComeAndGo: while a rollout waits for a person, sites join, prove the change, go, and never return, as with
// nodes that are made for a day. The status does not grow with their number.
func TestNamesComeAndGo(t *testing.T) {
	r := canary(0)
	r.Waves[0].Approval = v1.ApprovalManual
	h := begins(t, r, map[string]int{"lab": 0, "a": 1})
	h.in.Most = 10
	for i := range 100 {
		name := fmt.Sprint("day", i)
		h.sites[name] = &Site{Name: name, UID: name, Exists: true, Revision: "new", Ready: true}
		h.pass()
		h.pass()
		delete(h.sites, name)
	}
	h.pass()
	s := h.in.Status
	if len(s.ProvenSites) > 20 || h.sites["lab"].Revision != "new" || s.Proven != 1 {
		t.Errorf("%d of 2 sites are proven, and %d are remembered", s.Proven, len(s.ProvenSites))
	}
}

// TestSitesMoveIntoAPassedWave before they have the change, by a label of their nodes: they get it there.
func TestSitesMoveIntoAPassedWave(t *testing.T) {
	h := begins(t, canary(5*time.Minute), map[string]int{"lab": 0, "a": 1, "b": 1, "c": 1, "d": 1})
	h.last(6 * time.Minute)
	for _, n := range []string{"a", "b", "c", "d"} {
		h.sites[n].Wave = 0
	}
	h.last(10 * time.Second)
	h.expect("they have moved", v1.RolloutProgressing, "a", "lab")
	h.last(25 * time.Minute)
	h.expect("they have proven it", v1.RolloutComplete, "a", "b", "c", "d", "lab")
}

// TestMovesBeforeItBegins: a site that is about to get the change moves into a later wave. It waits for its turn there,
// and does not fail meanwhile.
func TestMovesBeforeItBegins(t *testing.T) {
	h := begins(t, &v1.Rollout{Waves: []v1.Wave{soaking("canary", 3*time.Hour, 2, true), soaking("rest", 0, 1, false)}},
		map[string]int{"a": 0, "b": 0})
	h.pass()
	h.sites["b"].Wave = 1
	h.last(time.Hour)
	h.expect("a soaks", v1.RolloutSoaking, "a")
	h.last(2*time.Hour + time.Minute)
	h.expect("it is b's turn", v1.RolloutComplete, "a", "b")
}

// TestFailureIsWrittenFirst: a site has failed, which maxFailures allows. A site that moves into its wave meanwhile,
// and was about to get the change in another one, does not get it before the status says so.
func TestFailureIsWrittenFirst(t *testing.T) {
	r := canary(0)
	r.MaxFailures = ptr.To(intstr.FromInt32(1))
	h := begins(t, r, map[string]int{"lab": 0, "b": 1})
	h.behave = breaks("b")
	h.last(time.Minute)
	h.sites["a"] = &Site{Name: "a", UID: "a-1", Exists: true, Revision: "old", Ready: true}
	h.pass()
	h.sites["a"].Wave, h.sites["b"].Broken, h.sites["b"].Tried = 1, "no progress", "new"
	h.pass()
	h.expect("b has failed", v1.RolloutProgressing, "b", "lab")
	h.last(time.Minute)
	h.expect("the status says so", v1.RolloutSoaking, "a", "b", "lab")
}

// TestRollbackOfThree: sites with a revision that was given up go back too.
func TestRollbackOfThree(t *testing.T) {
	r := canary(5 * time.Minute)
	r.OnFailure, r.Waves[1] = v1.OnFailureRollback, soaking("rest", 30*time.Minute, 4, false)
	h := begins(t, r, map[string]int{"lab": 0, "a": 1, "b": 1, "c": 1, "d": 1})
	h.last(10 * time.Minute)
	h.in.Revision = "newer"
	h.behave = func(u *Site, to string) { u.Ready = to != "newer" }
	h.last(30 * time.Minute)
	h.expect("what came after has failed", v1.RolloutRolledBack)
}

// TestSilentSitesFillTheList: a person is asked.
func TestSilentSitesFillTheList(t *testing.T) {
	all := intstr.FromString("100%")
	r := rest(5*time.Minute, 0)
	r.Waves[0].MaxUnavailable, r.Waves[0].MaxSilent = &all, &all
	h := begins(t, r, many(600))
	n := 0
	h.behave = func(u *Site, to string) {
		if n++; to == "new" && n <= mostListed { // long ago, so that it is no outage
			u.Ready, u.Silent, u.SilentSince = false, true, h.in.Now.Add(-24*time.Hour)
			h.since[u.Name] = h.in.Now.Add(time.Hour)
		}
	}
	h.pass()
	h.in.Status.OutageAccepted = &metav1.Time{Time: h.in.Now}
	h.last(20 * time.Minute)
	if h.in.Status.Awaits == "" {
		t.Fatalf("%s %q", h.in.Status.Phase, h.in.Status.Message)
	}
	h.in.Approved = h.in.Status.Awaits
	h.last(20 * time.Minute)
	if got := len(h.with("new")); got != 600 || h.in.Status.Phase != v1.RolloutComplete {
		t.Errorf("%d have it: %s %q", got, h.in.Status.Phase, h.in.Status.Message)
	}
}

// TestSuspectsFillTheList: suspects fill the list when a site that had no pods, and got the change, has pods again. It
// must prove the change, and does not fit into the list. A person is asked.
func TestSuspectsFillTheList(t *testing.T) {
	r := rest(0, 3)
	r.Waves[0].MaxSilent = ptr.To(intstr.FromString("100%"))
	h := begins(t, r, many(20))
	h.in.Most = 3
	idle := h.sites["u0019"]
	idle.Idle, idle.Revision = true, "new"
	h.behave = func(u *Site, to string) {
		if to == "new" && u.Name < "u0003" { // long ago, so that it is no outage
			u.Ready, u.Silent, u.SilentSince = false, true, h.in.Now.Add(-24*time.Hour)
			h.since[u.Name] = h.in.Now.Add(time.Hour)
		}
	}
	h.last(time.Minute)
	idle.Idle = false
	h.last(time.Minute)
	h.expect("the list is full", v1.RolloutAwaitingApproval, "u0000", "u0001", "u0002", "u0019")
	h.in.Approved = h.in.Status.Awaits
	h.last(20 * time.Minute)
	if got := len(h.with("new")); got != 20 || h.in.Status.Phase != v1.RolloutComplete {
		t.Errorf("%d have it: %s %q", got, h.in.Status.Phase, h.in.Status.Message)
	}
}

// TestFailedSitesFillTheList: as many sites have failed as the status can list, which maxFailures allows. A person is
// asked, and the others get the change then. Nothing goes back, because not too many have failed.
func TestFailedSitesFillTheList(t *testing.T) {
	r := rest(0, 500)
	r.MaxFailures, r.OnFailure = ptr.To(intstr.FromString("100%")), v1.OnFailureRollback
	h := begins(t, r, many(20))
	h.in.Most = 5
	h.behave = func(u *Site, to string) { u.Ready = to != "new" || u.Name >= "u0005" }
	h.last(30 * time.Minute)
	s := h.in.Status
	if s.Phase != v1.RolloutHalted || len(h.with("new")) != 5 {
		t.Fatalf("%s %q, and %v have it", s.Phase, s.Message, h.with("new"))
	}
	h.in.Resumed = s.HaltTime.UTC().Format(time.RFC3339)
	h.last(30 * time.Minute)
	if got := len(h.with("new")); got != 20 || h.in.Status.Phase != v1.RolloutComplete {
		t.Errorf("%d have it: %s %q", got, h.in.Status.Phase, h.in.Status.Message)
	}
}

// TestHeldSitesFillTheList: a person holds as many sites as the status can list before they are proven. No other site
// can begin, and the message says why.
func TestHeldSitesFillTheList(t *testing.T) {
	h := begins(t, rest(5*time.Minute, 5), many(20))
	h.in.Most = 3
	h.last(time.Minute)
	for _, name := range h.with("new") {
		h.sites[name].Held = true
	}
	h.last(time.Hour)
	h.expect("three are held", v1.RolloutProgressing, "u0000", "u0001", "u0002")
	if want := "held or excused: u0000, u0001, u0002"; !strings.Contains(h.in.Status.Message, want) {
		t.Errorf("the message is %q, and does not have %q", h.in.Status.Message, want)
	}
	h.sites["u0001"].Held = false
	h.last(10 * time.Minute)
	if strings.Contains(h.in.Status.Message, "held or excused") {
		t.Errorf("one is not held any more, and the message is %q", h.in.Status.Message)
	}
	h.last(2 * time.Hour)
	if got := len(h.with("new")); got != 20 || h.in.Status.Phase != v1.RolloutComplete {
		t.Errorf("%d have it: %s %q", got, h.in.Status.Phase, h.in.Status.Message)
	}
}

// TestOutageReadsOneClock: the clock of the control plane, which says since when sites are silent, is hours before or
// after the controller's. Sites that were silent when the attempt began make no outage. Those that fall silent later
// do, until somebody resumes it.
func TestOutageReadsOneClock(t *testing.T) {
	for _, off := range []time.Duration{-5 * time.Hour, 0, 5 * time.Hour} {
		h := begins(t, rest(30*time.Minute, 1), many(6))
		silent := func(first, last int) {
			for i := first; i <= last; i++ {
				u := h.sites[fmt.Sprintf("u%04d", i)]
				u.Silent, u.SilentSince, u.Ready = true, h.in.Now.Add(off), false
			}
		}
		silent(2, 5)
		h.last(time.Minute)
		h.expect(fmt.Sprint("silent before, ", off), v1.RolloutProgressing, "u0000")
		h.last(time.Minute)
		silent(0, 1)
		h.last(time.Minute)
		h.expect(fmt.Sprint("all are silent, ", off), v1.RolloutOutage, "u0000")
		h.in.Resumed = h.in.Status.HaltTime.UTC().Format(time.RFC3339)
		h.last(time.Minute)
		h.expect(fmt.Sprint("resumed, ", off), v1.RolloutAwaitingApproval, "u0000")
	}
}

// TestPausedInAnOutage: nothing happens, so the status stays.
func TestPausedInAnOutage(t *testing.T) {
	h := begins(t, rest(30*time.Minute, 1), map[string]int{"a": 0, "b": 0, "c": 0})
	h.last(time.Minute)
	for _, n := range []string{"b", "c"} {
		h.sites[n].Silent, h.sites[n].SilentSince, h.sites[n].Ready = true, h.in.Now, false
	}
	h.last(20 * time.Second)
	h.in.Rollout.Paused = true
	h.pass()
	before := h.in.Status
	for range 20 {
		if h.pass(); !before.HaltTime.Equal(h.in.Status.HaltTime) || before.Phase != h.in.Status.Phase {
			t.Fatalf("%v %s became %v %s", before.HaltTime, before.Phase, h.in.Status.HaltTime, h.in.Status.Phase)
		}
	}
}

// TestUpgrade: what an older controller has written of a rollout under way counts.
func TestUpgrade(t *testing.T) {
	h := begins(t, canary(5*time.Minute), map[string]int{"lab": 0, "a": 1, "b": 1, "c": 1})
	h.in.Update = "new"
	for _, n := range []string{"lab", "a", "b"} {
		h.sites[n].Revision = "new"
	}
	start := metav1.NewTime(h.in.Now.Add(-time.Hour))
	h.in.Status = &v1.RolloutStatus{
		Phase: v1.RolloutProgressing, Wave: "rest", StartTime: &start, Proven: 2,
		Waves: []v1.WaveStatus{{Name: "canary", State: v1.WaveDone}, {Name: "rest", State: v1.WaveProgressing}},
		Sites: []v1.RolloutSite{{
			Name: "b", State: v1.RolloutSiteSoaking, From: "old", Since: &start, ReadyTime: &start,
		}},
	}
	h.pass()
	s := h.in.Status
	if s.Proven != 2 || !slices.Equal(s.Passed, []string{"canary"}) || !s.StartTime.Equal(&start) {
		t.Errorf("got %+v", s)
	}
	for phase, want := range map[v1.RolloutPhase]v1.RolloutPhase{
		v1.RolloutHalted: v1.RolloutHalted, v1.RolloutRolledBack: v1.RolloutRolledBack,
		v1.RolloutRollingBack: v1.RolloutRolledBack,
	} {
		h.in.Status = &v1.RolloutStatus{
			Phase: phase, StartTime: &start, HaltTime: &start, Message: "1 failed, 0 allowed: b",
			Sites: []v1.RolloutSite{{Name: "b", State: v1.RolloutSiteFailed, Since: &start}},
		}
		h.in.Current = "old"
		h.last(2 * time.Minute)
		if got := h.in.Status; got.Phase != want || got.HaltTime == nil || !got.HaltTime.Equal(&start) {
			t.Errorf("%s: got %+v", phase, got)
		}
	}
	h.in.Status = &v1.RolloutStatus{Phase: v1.RolloutOutage, StartTime: &start, HaltTime: &start}
	if h.pass(); h.in.Status.HaltTime != nil {
		t.Errorf("no site is silent any more: got %+v", h.in.Status)
	}
}

// TestLongDays: all of 500 sites are switched off at night, and three of them are away for each whole day. Their nodes
// boot when they return. Nobody has to decide anything, and nobody fails, whether the change comes by day or by night.
func TestLongDays(t *testing.T) {
	for name, begin := range map[string]int{"at noon": 12, "at night": 23} {
		t.Run(name, func(t *testing.T) { playLongDays(t, begin) })
	}
}

// playLongDays has the change come at an hour of the day.
func playLongDays(t *testing.T, begin int) {
	t.Helper()
	const day = 24 * 60
	h := begins(t, rest(time.Hour, 25), many(500))
	for minute := 0; minute < 5*day; minute += 2 {
		hour := (minute/60 + begin) % 24
		for i := range 500 {
			u := h.sites[fmt.Sprintf("u%04d", i)]
			away := hour >= 22 || hour < 6 || (i*7+minute/day)%500 < 3
			if away == u.Silent {
				continue
			}
			u.Silent, u.Ready, u.SilentSince = away, !away, h.in.Now
			if !away {
				h.since[u.Name] = h.in.Now
			}
		}
		h.in.Now = h.in.Now.Add(115 * time.Second)
		h.pass()
		s := h.in.Status
		if s.Phase == v1.RolloutComplete && minute > 1 {
			t.Logf("complete after %d hours", minute/60)
			return
		}
		// A person may let a wave pass of which no site is reachable yet.
		asked := s.Awaits != "" && len(h.with("new")) > 0
		if asked || s.Failed > 0 || s.Phase == v1.RolloutHalted {
			t.Fatalf("after %d hours: %s %q", minute/60, s.Phase, s.Message)
		}
	}
	t.Errorf("not complete after five days: %s %q", h.in.Status.Phase, h.in.Status.Message)
}

// TestSuspectAfterAGap: a site falls silent while it soaks. Its times have moved on before, because no controller
// followed the rollout for a while. It has seen the change, so it is a suspect, and no other site begins.
func TestSuspectAfterAGap(t *testing.T) {
	h := begins(t, rest(30*time.Minute, 1), map[string]int{"a": 0, "b": 0, "c": 0, "d": 0, "e": 0})
	h.last(5 * time.Minute)
	h.in.Followed = nil // another controller
	h.last(10 * time.Minute)
	h.sites["a"].Silent, h.sites["a"].Ready, h.sites["a"].SilentSince = true, false, h.in.Now
	h.last(10 * time.Minute)
	h.expect("a is a suspect", v1.RolloutAwaitingApproval, "a")
}

// TestRecreatedDuringAPause: the workload of a site that is about to get the change is recreated while the rollout is
// paused. Its clocks begin then. So it is a suspect when it falls silent with the change, and is not put back.
func TestRecreatedDuringAPause(t *testing.T) {
	h := begins(t, rest(30*time.Minute, 1), map[string]int{"a": 0, "b": 0, "c": 0, "d": 0, "e": 0})
	h.pass()
	h.in.Rollout.Paused = true
	h.last(3 * time.Hour)
	h.sites["a"].UID = "a-2"
	h.last(time.Minute)
	h.in.Rollout.Paused = false
	h.last(5 * time.Minute)
	h.sites["a"].Silent, h.sites["a"].Ready, h.sites["a"].SilentSince = true, false, h.in.Now
	h.last(10 * time.Minute)
	h.expect("a is a suspect", v1.RolloutAwaitingApproval, "a")
}

// leaps sets the clock of the controller.
func (h *history) leaps(by time.Duration) {
	h.in.Now, h.in.Leap = h.in.Now.Add(by), h.in.Leap+by
	for _, u := range h.sites {
		u.Progress = u.Progress.Add(by)
	}
}

// TestClockIsSet: somebody sets the controller's clock, or its machine was suspended. No site fails or is proven by
// that, and each is in time all the same: also if the next status cannot be written, or if the clock was set back while
// the controller restarted.
func TestClockIsSet(t *testing.T) {
	for _, of := range []struct {
		by               time.Duration
		refused, restart bool
		then             time.Duration
	}{
		{by: 8 * time.Hour}, {by: -8 * time.Hour}, {by: 8 * time.Hour, refused: true},
		{by: -8 * time.Hour, refused: true}, {by: -8 * time.Hour, restart: true},
		{restart: true, refused: true, then: 8 * time.Hour}, {restart: true, refused: true, then: -8 * time.Hour},
	} {
		h := begins(t, rest(30*time.Minute, 2), map[string]int{"a": 0, "b": 0, "c": 0})
		h.behave = breaks("a")
		h.last(2 * time.Minute)
		if h.leaps(of.by); of.restart {
			h.in.Followed, h.in.Leap = nil, 0
		}
		h.refused = of.refused
		h.pass()
		h.leaps(of.then)
		h.refused = false
		h.last(25 * time.Minute)
		h.expect("the clock was set", v1.RolloutProgressing, "a", "b")
		h.last(7 * time.Minute) // a restarted controller forgets two of them
		h.expect("b is proven", v1.RolloutProgressing, "a", "b", "c")
		h.last(time.Hour)
		h.expect("a does not work", v1.RolloutHalted, "a", "b", "c")
	}
}

// TestControllerRestartsOften: a controller that restarts every few minutes knows only that another one was there when
// the status was written. That is often enough for a site that does not work to fail.
func TestControllerRestartsOften(t *testing.T) {
	h := begins(t, rest(0, 1), map[string]int{"a": 0, "b": 0})
	h.behave = breaks("a")
	for range 8 {
		h.last(7 * time.Minute)
		h.in.Followed = nil
	}
	h.expect("it has restarted eight times", v1.RolloutHalted, "a")
}

// TestSilenceStopsClocks: a site falls silent with the change for hours, and its pods start again when it returns.
func TestSilenceStopsClocks(t *testing.T) {
	h := begins(t, rest(5*time.Minute, 4), many(20))
	u := h.sites["u0000"]
	h.behave = func(of *Site, to string) {
		if of == u && to == "new" {
			u.Ready, u.Silent, u.SilentSince = false, true, h.in.Now
			h.since[u.Name] = h.in.Now.Add(time.Second) // its kubelet has seen the change
		}
	}
	h.last(3 * time.Hour)
	u.Silent = false
	h.last(2 * time.Minute)
	if s := h.in.Status; s.Failed > 0 || u.Revision != "new" {
		t.Errorf("%s %q %+v", s.Phase, s.Message, s.Sites)
	}
	u.Ready = true
	h.last(10 * time.Minute)
	if s := h.in.Status; s.Phase != v1.RolloutComplete || s.Proven != 20 {
		t.Errorf("%s %q, %d are proven", s.Phase, s.Message, s.Proven)
	}
}

// TestPartlySilentIsNotPutBack: a node of a DaemonSet's site falls silent before it has seen the change. Its other node
// is heard, so the site would get the change again at once.
func TestPartlySilentIsNotPutBack(t *testing.T) {
	h := begins(t, rest(0, 1), map[string]int{"a": 0, "b": 0})
	turns := 0
	h.behave = func(u *Site, _ string) {
		if u.Name == "a" {
			turns++
			u.PerNode, u.Partly, u.Ready = true, true, false
		}
	}
	h.last(10 * time.Minute)
	if turns != 1 {
		t.Errorf("it got another revision %d times", turns)
	}
	h.expect("a is silent in part", v1.RolloutAwaitingApproval, "a")
	h.sites["a"].Partly, h.sites["a"].Ready = false, true
	h.last(time.Minute)
	h.expect("a is heard", v1.RolloutComplete, "a", "b")
}

// TestPartlySilentInAStaleCache: a site gets the change while one of its nodes is silent, and its pods cannot be read.
// The cache shows its former revision for a moment.
func TestPartlySilentInAStaleCache(t *testing.T) {
	h := begins(t, rest(0, 1), map[string]int{"a": 0})
	h.deaf = true
	h.behave = func(u *Site, _ string) { u.Partly, u.Ready = true, false }
	h.last(time.Minute)
	h.expect("a got the change", v1.RolloutProgressing, "a")
	h.sites["a"].Revision = "old"
	h.pass()
	h.sites["a"].Revision = "new"
	h.pass()
	h.expect("the cache shows the change", v1.RolloutProgressing, "a")
}

// TestUnreadExcusesNobody: a person has approved of the silence of a site. Whether the site is still silent depends on
// its pods, which cannot be read. So its place is not free meanwhile, and its gate does not pass.
func TestUnreadExcusesNobody(t *testing.T) {
	h := begins(t, canary(0), map[string]int{"a": 0, "b": 0, "c": 1})
	h.behave = func(u *Site, _ string) {
		if u.Name == "a" {
			u.PerNode, u.Partly, u.Ready = true, true, false
		}
	}
	h.last(time.Minute)
	h.expect("a is silent in part", v1.RolloutAwaitingApproval, "a")
	h.in.Approved = h.in.Status.Awaits
	h.pass()
	h.deaf = true
	h.last(time.Minute)
	h.expect("pods cannot be read", v1.RolloutProgressing, "a")
	h.sites["b"].Held = true
	h.last(time.Minute)
	h.expect("b is held", v1.RolloutProgressing, "a")
	h.deaf, h.sites["b"].Held = false, false
	h.last(time.Minute)
	h.expect("a is known to be silent", v1.RolloutSoaking, "a", "b", "c")
}

// TestPartlySilentFails: a site fails on the nodes that are heard.
func TestPartlySilentFails(t *testing.T) {
	h := begins(t, rest(0, 1), map[string]int{"a": 0, "b": 0})
	h.behave = func(u *Site, to string) {
		if u.Name == "a" && to == "new" {
			u.Partly, u.Ready, u.Broken, u.Tried = true, false, "no progress", "new"
		}
	}
	h.last(time.Minute)
	h.expect("a is broken", v1.RolloutHalted, "a")
}

// TestPartlySilentIsProven: a DaemonSet proves the change on the nodes that are heard.
func TestPartlySilentIsProven(t *testing.T) {
	h := begins(t, rest(5*time.Minute, 1), map[string]int{"well": 0})
	h.behave = func(u *Site, _ string) { u.PerNode, u.Partly, u.Ready = true, true, false }
	h.last(6 * time.Minute)
	h.expect("a node is silent", v1.RolloutComplete, "well")
	if h.in.Status.Proven != 1 {
		t.Errorf("%d are proven", h.in.Status.Proven)
	}
}
