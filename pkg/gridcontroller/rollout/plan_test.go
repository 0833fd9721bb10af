package rollout

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
)

// scene is a fleet at one moment: sites of a wave of two places, without a soak, in the midst of an attempt. Each
// change is what differs in a test. The sites have the change, and are ready.
func scene(names string, changes ...func(in *Input)) Input {
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	in := Input{
		Rollout: rest(0, 2), Revision: "new", Update: "new", Current: "old", Deadline: 10 * time.Minute, Now: now,
		Status: &v1.RolloutStatus{
			StartTime: &metav1.Time{Time: now.Add(-time.Hour)}, HeardTime: &metav1.Time{Time: now},
		},
	}
	for _, n := range strings.Fields(names) {
		in.Sites = append(in.Sites, Site{Name: n, UID: n, Exists: true, Revision: "new", Ready: true})
	}
	for _, change := range changes {
		change(&in)
	}
	return in
}

// proven lists sites as proven.
func proven(names string) func(in *Input) {
	return func(in *Input) {
		all := marks{}
		for _, n := range strings.Fields(names) {
			all.add(&Site{Name: n, UID: n})
		}
		in.Status.ProvenSites = all.list()
	}
}

// lists has the status list a site in a state, for a minute.
func lists(name string, state v1.RolloutSiteState) func(in *Input) {
	return func(in *Input) {
		in.Status.Sites = append(in.Status.Sites, v1.RolloutSite{
			Name: name, Workload: hashOf(name, uidMark), State: state,
			Since: &metav1.Time{Time: in.Now.Add(-time.Minute)},
		})
	}
}

// where changes sites.
func where(names string, change func(u *Site)) func(in *Input) {
	return func(in *Input) {
		for i := range in.Sites {
			if slices.Contains(strings.Fields(names), in.Sites[i].Name) {
				change(&in.Sites[i])
			}
		}
	}
}

// complete is a rollout that is complete.
func complete(in *Input) { in.Current, in.Status.Passed = "new", []string{allGates} }

func old(u *Site)     { u.Revision = "old" }
func unready(u *Site) { u.Ready = false }
func gone(u *Site)    { u.Exists, u.UID, u.Revision, u.Ready = false, "", "", false }
func silent(u *Site)  { u.Silent, u.Ready = true, false }

// brokenWith has a site not work with a revision.
func brokenWith(revision string) func(u *Site) {
	return func(u *Site) { u.Broken, u.Tried = "no progress", revision }
}

// TestGoesBackByPlaces: of sites that are ready, as many go back at once as may be unready, the last ones first. One
// that is on its way takes a place, one that does not work takes none.
func TestGoesBackByPlaces(t *testing.T) {
	for name, of := range map[string]struct {
		change func(in *Input)
		back   string
	}{
		"all are ready":            {func(*Input) {}, "c d"},
		"one is on its way":        {where("a", func(u *Site) { old(u); unready(u) }), "a d"},
		"one is broken with old":   {where("a", func(u *Site) { old(u); unready(u); brokenWith("old")(u) }), "a c d"},
		"one refuses to go back":   {where("d", brokenWith("old")), "b c d"},
		"one is broken with new":   {where("d", brokenWith("new")), "c d"},
		"one is not ready":         {where("a", unready), "a c d"},
		"one is silent":            {where("a", silent), "a c d"},
		"one is held":              {where("d", func(u *Site) { u.Held = true }), "b c"},
		"one wants no pods":        {where("d", func(u *Site) { u.Idle = true }), "b c d"},
		"one wants none, with old": {where("a", func(u *Site) { old(u); unready(u); u.Idle = true }), "a c d"},
	} {
		goesBack := func(in *Input) { in.Status.GoesBack = "sites failed" }
		plan := NewPlan(scene("a b c d", proven("a b c d"), goesBack, of.change))
		var back []string
		for site, to := range plan.Revisions {
			if to == "old" {
				back = append(back, site)
			}
		}
		if slices.Sort(back); strings.Join(back, " ") != of.back {
			t.Errorf("%s: %v go back, want %s", name, back, of.back)
		}
	}
}

// TestCounts: the status counts the sites of each wave, by what each of them is.
func TestCounts(t *testing.T) {
	all := intstr.FromString("100%")
	in := scene("", func(in *Input) {
		in.Rollout = &v1.Rollout{MaxFailures: &all, Waves: []v1.Wave{
			soaking("first", 5*time.Minute, 9, true), soaking("second", 5*time.Minute, 9, true),
		}}
		in.Status.OutageAccepted = &metav1.Time{Time: in.Now}
	})
	var proof []string
	for wave := range 3 {
		for _, kind := range []string{"proven", "soaks", "failed", "suspect", "away", "held"} {
			u := Site{Name: fmt.Sprint(kind, wave), Wave: wave, Exists: true, Revision: "new", Ready: true}
			switch u.UID = u.Name; kind {
			case "proven":
				proof = append(proof, u.Name)
			case "soaks":
				u.Uncompared = true // so that it does not prove it at once
				lists(u.Name, v1.RolloutSiteSoaking)(&in)
			case "failed":
				unready(&u)
				lists(u.Name, v1.RolloutSiteFailed)(&in)
			case "suspect":
				silent(&u)
				lists(u.Name, v1.RolloutSiteSuspect)(&in)
			case "away":
				silent(&u)
				old(&u)
			case "held":
				old(&u)
				u.Held = true
			}
			in.Sites = append(in.Sites, u)
		}
	}
	proven(strings.Join(proof, " "))(&in)
	s := NewPlan(in).Status
	for i, of := range s.Waves {
		want := v1.WaveStatus{
			Name: []string{"first", "second", ""}[i], State: of.State,
			Sites: 6, Updated: 4, Ready: 2, Proven: 1, Failed: 1, Suspects: 1, Deferred: 2,
		}
		if of != want {
			t.Errorf("got %+v, want %+v", of, want)
		}
	}
	got := []int32{int32(len(s.Waves)), s.Updated, s.Ready, s.Proven, s.Failed, s.Suspects, s.Deferred}
	if !slices.Equal(got, []int32{3, 12, 6, 3, 3, 3, 6}) {
		t.Errorf("the counts are %v", got)
	}
	in.Sites = slices.DeleteFunc(in.Sites, func(u Site) bool { return u.Wave > 0 })
	if s := NewPlan(in).Status; len(s.Waves) != 2 || s.Waves[1].Sites != 0 || s.Waves[1].Name != "second" {
		t.Errorf("the sites of one wave make %+v", s.Waves)
	}
}

// told is a plan in a line: its phase, when the attempt began if that is new, since when it has halted, which sites are
// to have the change, which ones the status lists, and whose pods and checks it asks for.
func told(plan Plan) string {
	s, parts := plan.Status, []string{}
	if at := s.StartTime.UTC().Format(time.TimeOnly); at != "23:00:00" {
		parts = append(parts, "from "+at)
	}
	if s.HaltTime != nil {
		parts = append(parts, fmt.Sprint(s.HaltReason, " ", s.HaltTime.UTC().Format(time.TimeOnly)))
	}
	for _, site := range slices.Sorted(maps.Keys(plan.Revisions)) {
		if plan.Revisions[site] == "new" {
			parts = append(parts, site)
		}
	}
	for _, of := range s.Sites {
		parts = append(parts, of.Name+":"+string(of.State))
	}
	for _, q := range plan.Ask {
		parts = append(parts, "pods of "+q.Name)
	}
	for _, name := range plan.Checks {
		parts = append(parts, "check of "+name)
	}
	return strings.Join(append([]string{string(s.Phase)}, parts...), " ")
}

// halted is a rollout that has halted a minute ago.
func halted(why v1.HaltReason) func(in *Input) {
	return func(in *Input) {
		in.Status.Phase, in.Status.HaltReason = v1.RolloutHalted, why
		in.Status.HaltTime = &metav1.Time{Time: in.Now.Add(-time.Minute)}
	}
}

// TestNextPlan makes one plan of a fleet.
func TestNextPlan(t *testing.T) {
	of := scene
	newGrid := func(in *Input) { in.Current, in.Update, in.Status = "", "", nil }
	most := func(n int) func(in *Input) { return func(in *Input) { in.Most = n } }
	partly := func(pods *Pods) func(u *Site) {
		return func(u *Site) { u.Partly, u.Ready, u.Pods = true, false, pods }
	}
	wait := func(in *Input) { in.Rollout.Unreachable = v1.UnreachableWait }
	noneSilent := func(in *Input) { in.Rollout.Waves[0].MaxSilent = ptr.To(intstr.FromInt32(0)) }
	accepted := func(in *Input) { in.Status.OutageAccepted = &metav1.Time{Time: in.Now} }
	resumed := func(in *Input) { in.Resumed = in.Status.HaltTime.UTC().Format(time.RFC3339) }
	for _, test := range []struct {
		name string
		in   Input
		want string
	}{
		{"a new grid adopts what has its revision", of("a b c", newGrid), "Complete from 00:00:00 a b c"},
		{"a new grid adopts what has another one", of("a b c", newGrid, where("a b c", old)),
			"Progressing from 00:00:00 a:Pending b:Pending"},
		{"it is complete, and a site joins with the change", of("a b", complete, where("b", unready)), "Complete a b"},
		{"the spec changes twice in a second", of("a b", func(in *Input) {
			in.Revision, in.Status.StartTime = "newer", &metav1.Time{Time: in.Now}
		}), "Progressing from 00:00:01 a b a:Pending b:Pending"},
		{"a pod is missing on a silent node",
			of("a b", proven("b"), lists("a", v1.RolloutSiteProgressing), where("a", partly(&Pods{Missing: 1}))),
			"Complete a b a:Suspect"},
		{"none is",
			of("a b", proven("b"), lists("a", v1.RolloutSiteProgressing), where("a", partly(&Pods{}))),
			"Progressing a b a:Progressing"},
		{"an autoscaler wants no pods at a silent site",
			of("a b c", accepted, proven("b c"), where("a", func(u *Site) { old(u); silent(u); u.Idle = true }), wait),
			"Complete b c"},
		{"it wants none at a suspect",
			of("a b c", accepted, proven("b c"), lists("a", v1.RolloutSiteSuspect), noneSilent,
				where("a", func(u *Site) { silent(u); u.Idle = true })), "AwaitingApproval a b c a:Suspect"},
		{"a site of a full list has lost its workload",
			of("a b", most(1), proven("a"), lists("a", v1.RolloutSitePending),
				where("a", func(u *Site) { gone(u); u.Wave = 1 }), where("b", old)), "Progressing a a:Pending"},
		{"one breaks, and the list is full",
			of("a b", most(1), proven("b"), lists("a", v1.RolloutSiteProgressing), where("a", unready),
				where("b", func(u *Site) { unready(u); brokenWith("new")(u) })),
			"Halted Failures 00:00:00 a b a:Progressing"},
		{"it has halted, and another one fails",
			of("a b", halted(v1.HaltFailures), lists("a", v1.RolloutSiteFailed), lists("b", v1.RolloutSiteProgressing),
				where("a", unready), where("b", func(u *Site) { unready(u); brokenWith("new")(u) })),
			"Halted Failures 00:00:00 a b a:Failed b:Failed"},
		{"it has halted, and none fails",
			of("a b", halted(v1.HaltFailures), lists("a", v1.RolloutSiteFailed), where("a", unready)),
			"Halted Failures 23:59:00 a b a:Failed"},
		{"somebody resumes it, and another one fails",
			of("a b", halted(v1.HaltFailures), resumed, lists("a", v1.RolloutSiteFailed), where("a", unready),
				lists("b", v1.RolloutSiteProgressing), where("b", func(u *Site) { unready(u); brokenWith("new")(u) })),
			"Halted Failures 00:00:00 a b b:Failed"},
		{"somebody resumes it, and another one fails that the list has no room for",
			of("a b", halted(v1.HaltFailures), resumed, most(1), lists("a", v1.RolloutSiteFailed),
				where("a b", func(u *Site) { unready(u); brokenWith("new")(u) })), "Complete a b"},
		{"somebody resumes it after it went back",
			of("a b", halted(v1.HaltFailures), resumed, func(in *Input) { in.Status.GoesBack = "sites failed" },
				lists("a", v1.RolloutSiteFailed), where("a", unready), where("b", old)),
			"Progressing from 00:00:00 a"},
		{"the gate has passed with a suspect too many",
			of("a b c d e", accepted, func(in *Input) { in.Status.Passed = []string{"rest"} },
				lists("a", v1.RolloutSiteSuspect), lists("b", v1.RolloutSiteSuspect), lists("c", v1.RolloutSiteSuspect),
				where("a b c", silent), where("d e", old)), "AwaitingApproval a b c a:Suspect b:Suspect c:Suspect"},
		{"the gate has passed with a suspect",
			of("a b c d e", accepted, func(in *Input) { in.Status.Passed = []string{"rest"} },
				lists("a", v1.RolloutSiteSuspect), lists("b", v1.RolloutSiteSuspect), proven("c"),
				where("a b", silent), where("d e", old)), "Progressing a b c a:Suspect b:Suspect d:Pending"},
		{"a site has no workload yet", of("a b", proven("b"), where("a", gone)),
			"Progressing b a:Pending"},
		{"the only site is a suspect", of("a", accepted, lists("a", v1.RolloutSiteSuspect), where("a", silent)),
			"AwaitingApproval a a:Suspect"},
		{"a node is silent at a proven site",
			of("a b", proven("a b"), where("a", partly(nil))), "Complete a b"},
		{"a node is silent at a proven site that breaks",
			of("a b", proven("a b"), where("a", partly(nil)), where("a", brokenWith("new"))), "Complete a b pods of a"},
		{"a node is silent at a site in flight",
			of("a b", proven("b"), lists("a", v1.RolloutSiteProgressing), where("a", partly(nil))),
			"Progressing a b a:Suspect pods of a"},
		{"it is complete, and paused",
			of("a b", complete, func(in *Input) { in.Rollout.Paused = true }), "Complete a b"},
		{"all gates have passed, and a workload was not compared yet",
			of("a b", proven("a b"), where("a", func(u *Site) { u.Uncompared = true }),
				func(in *Input) { in.Status.Passed = []string{"rest", restWave} }), "Progressing a b"},
		{"all have gone back but one that has no workload",
			of("a b", where("a b", old), where("a", gone),
				func(in *Input) { in.Status.GoesBack = "sites failed" }), "RollingBack"},
		{"a grid gets a rollout",
			of("a b", complete, func(in *Input) { in.Status = nil }, where("a b", unready)),
			"Complete from 00:00:00 a b"},
		{"a grid gets a rollout, and all have a change that is not complete",
			of("a b", func(in *Input) { in.Update, in.Status = "old", nil }, where("a b", unready)),
			"Progressing from 00:00:00 a b a:Progressing b:Progressing"},
		{"the only site was silent before it was listed", of("a", accepted, where("a", silent)), "Complete a"},
	} {
		if got := told(NewPlan(test.in)); got != test.want {
			t.Errorf("%s: %s, want %s", test.name, got, test.want)
		}
	}
}

// TestOutage: more than a tenth of the sites, and at least five, fall silent within a minute, or more than half.
func TestOutage(t *testing.T) {
	for _, test := range []struct {
		sites, silent int
		within        time.Duration
		want          bool
	}{
		{60, 6, time.Minute, false}, {60, 7, time.Minute, true}, {60, 7, 61 * time.Second, false},
		{20, 4, 0, false}, {20, 5, 0, true}, {6, 3, 0, false}, {6, 4, time.Hour, true},
	} {
		var names []string
		for i := range test.sites {
			names = append(names, fmt.Sprintf("u%02d", i))
		}
		in := scene(strings.Join(names, " "), proven(strings.Join(names, " ")))
		for i := range test.silent {
			u := &in.Sites[i]
			old(u)
			silent(u)
			u.SilentSince = in.Now.Add(-test.within * time.Duration(i) / time.Duration(test.silent-1))
		}
		if s := NewPlan(in).Status; (s.Phase == v1.RolloutOutage) != test.want {
			t.Errorf("%d of %d within %s: %s %q", test.silent, test.sites, test.within, s.Phase, s.Message)
		}
	}
}

// TestManyFail: the message names the first three of the sites that have failed.
func TestManyFail(t *testing.T) {
	for names, want := range map[string]string{
		"a b c":     "3 failed, 0 allowed: a: no progress; b: no progress; c: no progress",
		"a b c d e": "5 failed, 0 allowed: a: no progress; b: no progress; c: no progress; and 2 more",
	} {
		in := scene(names, where(names, unready), where(names, brokenWith("new")))
		if got := NewPlan(in).Status.Message; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// TestProofsOfNames: a status remembers the proofs of names that are no sites at present, until there are more proofs
// than sites and entries together.
func TestProofsOfNames(t *testing.T) {
	for names, want := range map[string]int{"a away": 2, "a away gone": 1} {
		in := scene("a b", proven(names), where("b", old))
		in.Sites, in.Most = in.Sites[:1], 1
		in.Rollout.Waves[0].Approval = v1.ApprovalManual // so that it is not complete
		if got := NewPlan(in).Status.ProvenSites; len(got) != want {
			t.Errorf("of the proofs of %s, %d remain, want %d", names, len(got), want)
		}
	}
}

// TestSummarizePods counts pods by what is known of them.
func TestSummarizePods(t *testing.T) {
	pod := func(node string, changes ...func(*corev1.Pod)) corev1.Pod {
		p := corev1.Pod{Spec: corev1.PodSpec{NodeName: node}}
		p.Status.StartTime, p.Labels = &metav1.Time{}, map[string]string{"revision": "new"}
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		for _, change := range changes {
			change(&p)
		}
		return p
	}
	unready := func(p *corev1.Pod) { p.Status.Conditions = nil }
	deleting := func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{} }
	old := func(p *corev1.Pod) { p.Labels = nil }
	waits := func(p *corev1.Pod) { p.Status.StartTime = nil }
	phase := func(of corev1.PodPhase) func(*corev1.Pod) { return func(p *corev1.Pod) { p.Status.Phase = of } }
	if new(Pods).readyWhereHeard() {
		t.Error("no pods are ready")
	}
	for name, test := range map[string]struct {
		pod corev1.Pod
		// counts are of Marks, Unready, Current, Lacking, Silent and Missing.
		counts                       []int
		acknowledged, readyIfPerNode bool
	}{
		"new":                 {pod("heard"), []int{1, 0, 1, 0, 0, 0}, true, true},
		"old":                 {pod("heard", old), []int{1, 0, 0, 1, 0, 0}, false, false},
		"on another node":     {pod("other"), []int{1, 0, 1, 1, 0, 0}, true, false},
		"not ready":           {pod("heard", unready), []int{0, 1, 0, 1, 0, 0}, true, false},
		"not started":         {pod("", unready, waits), []int{0, 1, 0, 1, 0, 0}, false, false},
		"deleted":             {pod("heard", deleting), []int{0, 0, 0, 1, 0, 0}, true, false},
		"failed":              {pod("heard", unready, phase(corev1.PodFailed)), []int{0, 0, 0, 1, 0, 0}, true, false},
		"succeeded":           {pod("heard", phase(corev1.PodSucceeded)), []int{0, 0, 0, 1, 0, 0}, true, false},
		"silent":              {pod("silent"), []int{0, 0, 0, 1, 1, 0}, true, false},
		"silent, not ready":   {pod("silent", unready), []int{0, 0, 0, 1, 1, 1}, true, false},
		"silent, and deleted": {pod("silent", deleting), []int{0, 0, 0, 1, 1, 1}, true, false},
	} {
		nodes := map[string]Node{"heard": {Wants: true}, "silent": {Silent: true, Wants: true}, "other": {}}
		p := SummarizePods([]corev1.Pod{test.pod}, nodes,
			func(p *corev1.Pod) bool { return p.Labels["revision"] == "new" }, time.Time{})
		counts := []int{len(p.Marks), len(p.Unready), p.Current, p.Lacking, len(p.Silent), p.Missing}
		if !slices.Equal(counts, test.counts) || p.Acknowledged != test.acknowledged ||
			p.readyWhereHeard() != test.readyIfPerNode {
			t.Errorf("%s: %v %t %t, want %+v", name, counts, p.Acknowledged, p.readyWhereHeard(), test)
		}
	}
}

// entry is what the status lists of a site.
func entry(s *v1.RolloutStatus, name string) string {
	i := slices.IndexFunc(s.Sites, func(of v1.RolloutSite) bool { return of.Name == name })
	if i < 0 {
		return "none"
	}
	of, text := s.Sites[i], string(s.Sites[i].State)
	for _, clock := range []struct {
		name string
		at   *metav1.Time
	}{{"since", of.Since}, {"stands", of.SilentTime}, {"ready", of.ReadyTime}, {"checks", of.CheckTime}} {
		if clock.at != nil {
			text += fmt.Sprint(" ", clock.name, " ", clock.at.UTC().Format(time.TimeOnly))
		}
	}
	if of.SoakedSeconds != 0 {
		text += fmt.Sprint(" soaked ", of.SoakedSeconds)
	}
	if of.From != "" {
		text += " from " + of.From
	}
	if of.Checked {
		text += " checked"
	}
	if of.Message != "" {
		text += ": " + of.Message
	}
	return text
}

// TestNextEntry makes one plan of a site, and looks at what the status lists of it. It has been listed for a minute.
func TestNextEntry(t *testing.T) {
	mark := hashOf("pod", podMark) + hashOf("containers", containersMark)
	soaks := func(in *Input) { in.Rollout.Waves[0].Soak = &metav1.Duration{Duration: 5 * time.Minute} }
	checks := func(in *Input) {
		in.Rollout.Waves[0].Check = &v1.Check{Template: v1.Template{Raw: []byte("{}")}}
	}
	hash := CheckHash(&v1.Check{Template: v1.Template{Raw: []byte("{}")}})
	of := func(change func(of *v1.RolloutSite)) func(in *Input) {
		return func(in *Input) { change(&in.Status.Sites[0]) }
	}
	before := func(d time.Duration) *metav1.Time {
		return &metav1.Time{Time: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC).Add(-d)}
	}
	a := func(state v1.RolloutSiteState, changes ...func(in *Input)) Input {
		accepted := func(in *Input) { in.Status.OutageAccepted = before(0) }
		return scene("a", slices.Concat([]func(in *Input){accepted, lists("a", state)}, changes)...)
	}
	begins := func(in *Input) { in.Sites[0].Revision, in.Status.Sites[0].From = "old", "old" }
	recreated := where("a", func(u *Site) { u.UID = "a-2"; unready(u) })
	long := of(func(of *v1.RolloutSite) { of.Since = before(time.Hour) })
	away := func(in *Input) { in.Status.HeardTime = before(10 * time.Minute) }
	runs := func(d time.Duration) func(in *Input) {
		return func(in *Input) {
			in.Status.Sites[0].CheckHash, in.Status.Sites[0].CheckTime = hash, before(d)
			in.Sites[0].Check = &CheckResult{Runs: true}
		}
	}
	stands := of(func(of *v1.RolloutSite) { of.SilentTime = before(30 * time.Second) })
	pods := func(in *Input) { in.Sites[0].Pods = &Pods{At: in.Now, Marks: []string{mark}, Acknowledged: true} }
	for _, test := range []struct {
		name string
		in   Input
		want string
	}{
		{"it waits while it is paused", a(v1.RolloutSitePending, begins, func(in *Input) { in.Rollout.Paused = true }),
			"Pending since 23:59:00 stands 00:00:00 from old"},
		{"others have failed", a(v1.RolloutSitePending, begins, halted(v1.HaltFailures)),
			"Pending since 23:59:00 stands 00:00:00 from old"},
		{"it begins", a(v1.RolloutSitePending, begins), "Pending since 23:59:00 from old"},
		{"it cannot be given the change", a(v1.RolloutSitePending, begins, long),
			"Failed since 23:00:00 from old: it could not be given the change within 10m0s"},
		{"it breaks after it was proven", scene("a", proven("a"), where("a", unready), where("a", brokenWith("new"))),
			"Failed since 00:00:00 checked: no progress"},
		{"it was recreated", a(v1.RolloutSiteProgressing, recreated), "Progressing since 00:00:00 from old"},
		{"it was recreated after a silence", a(v1.RolloutSiteProgressing, recreated, stands),
			"Progressing since 00:00:00 from old"},
		{"it was recreated during a silence", a(v1.RolloutSiteSuspect, recreated, stands, where("a", silent)),
			"Suspect since 00:00:00 stands 00:00:00 from old: it fell silent with the change"},
		{"it was recreated after it failed", a(v1.RolloutSiteFailed, recreated), "Failed since 00:00:00 from old"},
		{"it was recreated with what runs everywhere",
			a(v1.RolloutSiteFailed, recreated, complete),
			"Failed since 00:00:00"},
		{"no controller followed it", a(v1.RolloutSiteProgressing, where("a", unready), away),
			"Progressing since 00:09:00"},
		{"no controller followed it in a silence", a(v1.RolloutSiteSuspect, where("a", silent), away, stands),
			"Suspect since 23:59:00 stands 23:59:30: it fell silent with the change"},
		{"it soaks", a(v1.RolloutSiteProgressing, soaks, pods), "Soaking since 23:59:00 ready 00:00:00"},
		{"it falls silent in its soak", a(v1.RolloutSiteSoaking, soaks, pods, where("a", silent), stands,
			of(func(of *v1.RolloutSite) { of.ReadyTime, of.Pods = before(2*time.Minute), []string{mark} })),
			"Suspect since 23:59:00 stands 23:59:30 soaked 90: it fell silent with the change"},
		{"it soaks again after a silence",
			a(v1.RolloutSiteSuspect, soaks, pods, of(func(of *v1.RolloutSite) { of.SoakedSeconds = 90 })),
			"Soaking since 23:59:00 ready 23:58:30"},
		{"it made progress", a(v1.RolloutSiteProgressing, where("a", func(u *Site) {
			unready(u)
			u.Progress = before(30 * time.Second).Time
		})), "Progressing since 23:59:30"},
		{"it made progress before", a(v1.RolloutSiteProgressing, where("a", func(u *Site) {
			unready(u)
			u.Progress = before(90 * time.Second).Time
		})), "Progressing since 23:59:00"},
		{"it is never ready", a(v1.RolloutSiteProgressing, long, where("a", unready)),
			"Failed since 23:00:00: it was not ready within 10m0s"},
		{"it is never ready for long", a(v1.RolloutSiteProgressing, long, soaks, where("a", unready)),
			"Failed since 23:00:00: it was not ready for 5m0s without a break within 20m0s"},
		{"its pods could not be read", a(v1.RolloutSiteProgressing, where("a", func(u *Site) { u.Unread = true })),
			"Progressing since 23:59:00 stands 00:00:00: its pods could not be read"},
		{"it has failed, and its pods could not be read",
			a(v1.RolloutSiteFailed, where("a", func(u *Site) { u.Unread = true }),
				of(func(of *v1.RolloutSite) { of.Message = "no progress" })),
			"Failed since 23:59:00 stands 00:00:00: no progress"},
		{"its check waits", a(v1.RolloutSiteProgressing, checks), "Checking since 23:59:00 ready 00:00:00"},
		{"its check waits since it was ready", a(v1.RolloutSiteChecking, checks,
			of(func(of *v1.RolloutSite) { of.ReadyTime = before(30 * time.Second) })),
			"Checking since 23:59:00 ready 23:59:30"},
		{"its check waits for long", a(v1.RolloutSiteChecking, checks, long),
			"Failed since 23:00:00 ready 00:00:00: its check did not succeed within 20m0s"},
		{"its check has succeeded", a(v1.RolloutSiteSoaking, soaks, checks, pods,
			of(func(of *v1.RolloutSite) { of.CheckHash, of.Checked = hash, true })),
			"Soaking since 23:59:00 ready 00:00:00 checked"},
		{"its check has succeeded, and was edited", a(v1.RolloutSiteSoaking, soaks, checks, pods,
			of(func(of *v1.RolloutSite) { of.CheckHash, of.Checked, of.CheckTime = "other", true, before(0) })),
			"Soaking since 23:59:00 ready 00:00:00"},
		{"its check runs", a(v1.RolloutSiteChecking, checks, runs(10*time.Minute+29*time.Second)),
			"Checking since 23:59:00 ready 00:00:00 checks 23:49:31"},
		{"its check runs for too long", a(v1.RolloutSiteChecking, checks, runs(10*time.Minute+30*time.Second)),
			"Failed since 23:59:00 ready 00:00:00 checks 23:49:30: its check did not succeed within 10m0s"},
		{"it falls silent before it begins", a(v1.RolloutSitePending, begins, where("a", silent)),
			"Returning since 23:59:00 stands 00:00:00 from old"},
		{"it falls silent before it begins, and what it had is not known",
			a(v1.RolloutSitePending, where("a", old), where("a", silent)), "none"},
		{"it has failed without a check", a(v1.RolloutSiteFailed, soaks, checks, pods,
			of(func(of *v1.RolloutSite) { of.Checked = true })), "Failed since 23:59:00 ready 00:00:00 checked"},
	} {
		if got := entry(NewPlan(test.in).Status, "a"); got != test.want {
			t.Errorf("%s: %s, want %s", test.name, got, test.want)
		}
	}
}
