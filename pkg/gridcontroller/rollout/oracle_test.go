package rollout

import (
	"flag"
	"fmt"
	"math/rand/v2"
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

var (
	steps = flag.Int("rollout.steps", 100000, "steps of TestOracle, over all its worlds")
	seed  = flag.Uint64("rollout.seed", 1, "seed of its first world")
)

const (
	// noticed is how long the control plane takes to notice that a node is silent.
	noticed  = 40 * time.Second
	deadline = 10 * time.Minute
	// slack is what the times of a status, which has seconds, may be off.
	slack = 2 * time.Second
)

// fault is what a revision does to a site: the truth that the plan does not know.
type fault int

const (
	works     fault = iota
	dead            // its pods are never ready
	flaps           // they are ready for 2 of 100 seconds
	breaks          // they break a minute after they were ready
	cutsOff         // the site falls silent when they start, and stays so
	cutsUp          // the site falls silent a minute after they were ready
	refused         // the API server refuses the workload
	unchecked       // its check fails
	crashes         // its pods restart every 3 minutes
	tires           // they break 6 minutes after they were ready, which is later than any soak
	faults
)

// site is a site of the world, with what is so there.
type site struct {
	site Site
	// silentAt is since when nobody hears the site; zero if it is heard. returnedAt is when it was last heard again.
	silentAt, returnedAt time.Time
	// reportAt is when its kubelet reports after that.
	reportAt time.Time
	// undone is set if it has gone back from the spec's revision, because sites failed.
	undone bool
	// seen is the revision of the workload that the site knows. learnAt is when it learns of another one.
	seen    string
	learnAt time.Time
	// podAt is when its pods were made, readyAt since when they are ready.
	podAt, readyAt time.Time
	readyDelay     time.Duration
	// best is when the workload last came closer to being ready; was is whether it was ready since the last change.
	best time.Time
	was  bool
	// before is what a stale cache shows of the workload's revision, until.
	before string
	until  time.Time
	// had is set if it had the spec's revision already when the spec became so.
	had bool
	// proven has the revisions that ran here, ready without a break, for the soak time.
	proven map[string]bool
	// api is what the API server has of the pod.
	api corev1.Pod
}

// world is a fleet with a truth, the API server's word on it, and people.
type world struct {
	rand  *rand.Rand
	now   time.Time
	sites []*site
	in    Input
	// fault is what a revision does to a site: fault[revision][site].
	fault map[string]map[string]fault
	made  int
	// accepted are sites that a person accepts in this attempt; approved the waves that a person lets pass; skip is set
	// if a person has put the revision everywhere at once.
	accepted, approved map[string]bool
	skip               bool
	// back is set if the spec has gone back to what ran everywhere.
	back    bool
	attempt *metav1.Time
	of      string
	// hostile worlds have faults, people and outages. quiet are the sites that go silent by themselves.
	hostile bool
	// heard is how many sites were heard when the attempt began. outageAccepted is when a person let it go on although
	// many are silent. began are the waves of which a site has got the revision, over those after which one has begun.
	audible        int
	outageAccepted time.Time
	began, over    map[int]bool
	log            []string
}

// emptyWorld is a world without sites.
func emptyWorld(seed uint64) *world {
	return &world{
		rand: rand.New(rand.NewPCG(seed, 0)), now: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC),
		fault: map[string]map[string]fault{}, accepted: map[string]bool{}, approved: map[string]bool{},
	}
}

func newWorld(seed uint64) *world {
	w := emptyWorld(seed)
	w.hostile = w.rand.IntN(5) > 0
	spec := &v1.Rollout{OnFailure: v1.OnFailureHalt}
	if w.rand.IntN(2) == 0 {
		spec.OnFailure = v1.OnFailureRollback
	}
	if n := w.rand.Int32N(3); n > 0 {
		spec.MaxFailures = ptr.To(intstr.FromInt32(n))
	}
	for i := range 1 + w.rand.IntN(3) {
		wave := v1.Wave{Name: fmt.Sprintf("wave%d", i), Sites: &v1.SiteSelector{Names: []string{"x"}}}
		if w.rand.IntN(2) == 0 {
			wave.MaxUnavailable = ptr.To(intstr.FromInt32(1 + w.rand.Int32N(3)))
		}
		if w.rand.IntN(3) > 0 {
			wave.Soak = &metav1.Duration{Duration: 5 * time.Minute}
		}
		if w.rand.IntN(3) == 0 {
			wave.MaxSilent = ptr.To(intstr.FromInt32(w.rand.Int32N(2)))
		}
		if w.rand.IntN(4) == 0 {
			wave.Approval = v1.ApprovalManual
		}
		if w.rand.IntN(4) == 0 {
			wave.Check = &v1.Check{}
		}
		spec.Waves = append(spec.Waves, wave)
	}
	w.in = Input{Rollout: spec, Deadline: deadline, Now: w.now}
	for i := range 2 + w.rand.IntN(14) {
		w.join(i)
	}
	w.revise()
	return w
}

func (w *world) join(i int) {
	planned := Site{Name: fmt.Sprintf("site%02d", i), Wave: min(i/2, w.rand.IntN(len(w.in.Rollout.Waves)+1))}
	w.sites = append(w.sites, &site{
		site: planned, proven: map[string]bool{}, readyDelay: time.Duration(5+w.rand.IntN(50)) * time.Second,
	})
}

// revise is a person who changes the template.
func (w *world) revise() {
	w.made++
	w.edit(fmt.Sprintf("r%d", w.made), "a change")
	truth := map[string]fault{}
	if kind := fault(w.rand.IntN(int(faults))); w.hostile && w.in.Current != "" {
		share := 1 + w.rand.IntN(4)
		for _, s := range w.sites {
			if w.rand.IntN(share) == 0 && (kind != cutsUp && kind != breaks || w.soak(s) > 0) {
				truth[s.site.Name] = kind
			}
		}
	}
	w.fault[w.in.Revision] = truth
	w.note("the spec is %s: %v", w.in.Revision, truth)
}

func (w *world) soak(s *site) time.Duration {
	if s.site.Wave < len(w.in.Rollout.Waves) && w.in.Rollout.Waves[s.site.Wave].Soak != nil {
		return w.in.Rollout.Waves[s.site.Wave].Soak.Duration
	}
	return 0
}

func (w *world) checks(s *site) bool {
	return s.site.Wave < len(w.in.Rollout.Waves) && w.in.Rollout.Waves[s.site.Wave].Check != nil
}

func (w *world) note(format string, args ...any) {
	w.log = append(w.log, w.now.Format("15:04:05 ")+fmt.Sprintf(format, args...))
	if len(w.log) > 400 {
		w.log = w.log[200:]
	}
}

func (w *world) heard(s *site) bool { return s.silentAt.IsZero() }

// goSilent cuts a site off, hear lets it be heard again.
func (w *world) goSilent(s *site) {
	if w.heard(s) {
		s.silentAt = w.now
		w.note("%s falls silent", s.site.Name)
	}
}

func (w *world) hear(s *site) {
	if w.heard(s) {
		return
	}
	if w.now.Sub(s.silentAt) >= noticed { // the control plane calls the pods not ready until the kubelet reports
		s.api.Status.Conditions = nil
	}
	s.silentAt, s.returnedAt = time.Time{}, w.now
	s.reportAt = w.now.Add(time.Duration(w.rand.IntN(10)) * time.Second)
	w.note("%s is heard again", s.site.Name)
}

// live lets a site live for a second: it learns of its workload, starts pods, and these do what the revision does.
func (w *world) live(s *site) {
	if s.site.Exists && w.heard(s) && s.seen != s.site.Revision {
		switch {
		case s.learnAt.IsZero():
			s.learnAt = w.now.Add(time.Duration(1+w.rand.IntN(5)) * time.Second)
		case !w.now.Before(s.learnAt):
			s.seen, s.podAt, s.readyAt, s.learnAt = s.site.Revision, w.now, time.Time{}, time.Time{}
			s.was = false
			s.api = corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Name: s.site.Name, CreationTimestamp: metav1.NewTime(w.now)},
				Spec:       corev1.PodSpec{NodeName: s.site.Name},
			}
			w.report(s)
		}
	}
	if s.podAt.IsZero() {
		return
	}
	if w.heard(s) && !s.reportAt.IsZero() && !w.now.Before(s.reportAt) {
		s.reportAt = time.Time{}
		w.report(s)
	}
	age, kind := w.now.Sub(s.podAt)-s.readyDelay, w.fault[s.seen][s.site.Name]
	ready := age >= 0
	switch kind {
	case dead:
		ready = false
	case flaps:
		ready = ready && age%(100*time.Second) < 2*time.Second
	case breaks:
		ready = ready && age < time.Minute
	case tires:
		ready = ready && age < 6*time.Minute
	case crashes:
		ready = ready && age%(3*time.Minute) >= 2*time.Second
	case cutsOff:
		w.goSilent(s)
	case cutsUp:
		if age >= time.Minute {
			w.goSilent(s)
		}
	default:
	}
	if ready == s.readyAt.IsZero() {
		if s.readyAt = (time.Time{}); ready {
			s.readyAt = w.now
		}
		w.report(s)
	}
	bad := kind == cutsOff || (kind == unchecked && w.checks(s)) || (kind == cutsUp && !w.heard(s))
	if ready && !bad && w.now.Sub(s.readyAt)+slack >= w.soak(s) {
		s.proven[s.seen] = true
	}
}

// report is what the kubelet tells of its pod, if it is heard.
func (w *world) report(s *site) {
	if !w.heard(s) || s.podAt.IsZero() || w.now.Before(s.reportAt) {
		return
	}
	at := metav1.NewTime(s.podAt)
	s.api.Status.StartTime = &at
	s.api.Status.Conditions = []corev1.PodCondition{
		{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: at},
	}
	s.api.Status.ContainerStatuses = nil
	if !s.readyAt.IsZero() {
		since := s.readyAt
		if s.returnedAt.After(since) && w.rand.IntN(2) == 0 { // the control plane had called it not ready
			since = s.returnedAt
		}
		started := s.podAt
		if kind := w.fault[s.seen][s.site.Name]; kind == flaps || kind == crashes {
			started = s.readyAt
		}
		s.api.Status.Conditions = append(s.api.Status.Conditions, corev1.PodCondition{
			Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(since),
		})
		s.api.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{
			Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(started)},
		}}}
	}
}

// look is what the controller sees of a site.
func (w *world) look(s *site) Site {
	u := s.site
	if w.now.Before(s.until) {
		u.Revision = s.before
	}
	if at := s.silentAt.Add(noticed); !w.heard(s) && !w.now.Before(at) {
		u.Silent, u.SilentSince = true, at
	}
	_, sound := unbrokenSince(&s.api, Node{})
	u.Ready = u.Exists && !u.Silent && s.seen == s.site.Revision && u.Revision == s.site.Revision && (sound || u.Idle)
	if sound && !s.was {
		s.was, s.best = true, w.now
	}
	u.Progress = s.best
	switch {
	case u.Silent:
	case u.Revision != w.in.Revision && w.fault[w.in.Revision][u.Name] == refused &&
		(w.in.Revision == w.in.Current || slices.Contains(w.in.listedSites(), u.Name)):
		u.Broken, u.Tried = "the API server refuses it", w.in.Revision
	case u.Ready:
	case u.Exists && w.now.Sub(s.best) >= deadline && w.now.Sub(s.returnedAt) >= deadline:
		u.Broken, u.Tried = "no progress", u.Revision
	}
	return u
}

func (in Input) listedSites() []string {
	var all []string
	if in.Status != nil && in.Update == in.Revision {
		for _, u := range in.Status.Sites {
			all = append(all, u.Name)
		}
	}
	return all
}

// edit is a change of the spec, with which an annotation that is about its generation is void.
func (w *world) edit(revision, why string) {
	w.in.AtOnce = ""
	w.note("%s: the spec is %s", why, revision)
	if revision == w.in.Revision {
		return
	}
	w.in.Revision, w.back = revision, revision == w.in.Current
	for _, s := range w.sites {
		s.had, s.undone = s.site.Exists && s.site.Revision == revision, false
	}
	w.outageAccepted, w.began, w.over = time.Time{}, map[int]bool{}, map[int]bool{}
}

// pass is one reconciliation. Its writes are lost if the controller is stopped in it.
func (w *world) pass(stopped int) Plan {
	w.in.Now, w.in.Sites = w.now, nil
	for _, s := range w.sites {
		w.in.Sites = append(w.in.Sites, w.look(s))
	}
	plan := New(w.in)
	if len(plan.Ask) > 0 || len(plan.Checks) > 0 {
		for i, s := range w.sites {
			if slices.Contains(plan.Checks, s.site.Name) && w.rand.IntN(4) == 0 {
				bad := w.fault[s.seen][s.site.Name] == unchecked
				w.in.Sites[i].Check = &CheckResult{Passed: !bad, Failed: bad, Message: "BackoffLimitExceeded"}
			}
			asked := slices.IndexFunc(plan.Ask, func(of v1.RolloutSite) bool { return of.Name == s.site.Name })
			if asked >= 0 {
				of, u := plan.Ask[asked], &w.in.Sites[i]
				node := Node{Silent: u.Silent, ReadyAt: s.returnedAt}
				pods := Ask([]corev1.Pod{s.api}, map[string]Node{s.site.Name: node}, of.Since.Time,
					ptr.Deref(of.ReadyTime, metav1.Time{}).Time)
				u.Pods = &pods
			}
		}
		plan = New(w.in)
	}
	for i, s := range w.sites {
		if stopped == i {
			return plan
		}
		to, ok := plan.Revisions[s.site.Name]
		if !ok || s.site.Held || to == s.site.Revision && s.site.Exists {
			continue
		}
		if w.fault[to][s.site.Name] == refused && to != "r1" {
			continue
		}
		s.before, s.until = s.site.Revision, time.Time{}
		if w.rand.IntN(4) == 0 && s.site.Exists {
			s.until = w.now.Add(time.Duration(w.rand.IntN(3)) * time.Second)
		}
		if !plan.Status.AtOnce {
			w.judgeStart(s, to)
		}
		if rolling := plan.Status.Phase == v1.RolloutRollingBack; rolling && s.site.Revision == w.in.Revision {
			s.undone = true
		}
		s.had = s.had && to == s.site.Revision
		s.site.Exists, s.site.Revision, s.best = true, to, w.now
		w.note("%s gets %s", s.site.Name, to)
	}
	if stopped >= 0 {
		return plan
	}
	if was := w.in.Status; was == nil || was.Phase != plan.Status.Phase || was.Message != plan.Status.Message {
		w.note("%s %s %q", plan.Status.Phase, plan.Status.Wave, plan.Status.Message)
	}
	w.in.Current, w.in.Update, w.in.Status = plan.Current, w.in.Revision, plan.Status.DeepCopy()
	if w.attempt == nil || !w.attempt.Equal(plan.Status.StartTime) {
		w.approved, w.skip = map[string]bool{}, plan.Status.AtOnce
		if w.of != w.in.Revision { // who resumes a rollout that has gone back has accepted sites in the new attempt
			w.accepted = map[string]bool{}
		}
		w.attempt, w.of, w.audible = plan.Status.StartTime, w.in.Revision, 0
		for _, s := range w.sites {
			if _, silent := w.silence(s); !silent {
				w.audible++
			}
		}
	}
	return plan
}

// violation is what the judge finds.
type violation string

func (w *world) blame(format string, args ...any) {
	panic(violation(fmt.Sprintf(format, args...)))
}

// judgeStart judges that a site gets a revision: a later wave begins only after a site of each earlier one has proven
// it.
func (w *world) judgeStart(s *site, to string) {
	if to != w.in.Revision || to == w.in.Current || w.skip || w.in.Current == "" || !s.site.Exists {
		return
	}
	if s.undone {
		w.blame("%s gets %s again, from which it went back, and nobody has resumed that", s.site.Name, to)
	}
	w.judgeOutage(s)
	first := !w.began[s.site.Wave]
	w.began[s.site.Wave] = true
	failed := 0
	for _, u := range w.in.Status.Sites {
		of := w.site(u.Name).site
		if u.State == v1.RolloutSiteFailed && !w.accepted[u.Name] && !of.Held && !of.Idle {
			failed++
		}
	}
	for _, u := range w.in.Sites { // those that had proven it, and are broken now
		listed := slices.Contains(w.in.listedSites(), u.Name)
		if u.Broken != "" && u.Tried == to && !listed && !u.Silent && !u.Held && !u.Idle && !w.accepted[u.Name] {
			failed++
		}
	}
	if most := Share(w.in.Rollout.MaxFailures, "0%", len(w.sites)); failed > most && w.in.Update == to {
		w.blame("%s gets %s, and %d have failed with it; %d may", s.site.Name, to, failed, most)
	}
	for wave := range s.site.Wave {
		if first && !w.over[wave] { // who gets the change later takes a place of the wave
			w.judgeSuspects(wave, to)
			w.over[wave] = true
		}
		some, proven := false, false
		for _, other := range w.sites {
			if other.site.Wave == wave { // one that was scaled to 0 later has proven it all the same
				some = some || !other.site.Idle
				proven = proven || other.proven[to]
			}
		}
		if some && !proven && !w.approved[fmt.Sprint(wave)] {
			w.blame("%s of wave %d gets %s, and no site of wave %d has proven it", s.site.Name, s.site.Wave, to, wave)
		}
		if of := w.in.Rollout.Waves[wave]; of.Approval == v1.ApprovalManual && !w.approved[fmt.Sprint(wave)] {
			w.blame("%s gets %s, and nobody approved of wave %d in this attempt", s.site.Name, to, wave)
		}
	}
}

// silence returns since when the control plane knows that a site is silent, and whether it does.
func (w *world) silence(s *site) (time.Time, bool) {
	at := s.silentAt.Add(noticed)
	return at, !w.heard(s) && !w.now.Before(at)
}

// judgeOutage judges that a site gets a change while most of them have fallen silent.
func (w *world) judgeOutage(s *site) {
	if w.attempt == nil || w.of != w.in.Revision {
		return
	}
	silent := 0
	for _, other := range w.sites {
		if at, known := w.silence(other); known && at.After(w.attempt.Time) && at.After(w.outageAccepted) {
			silent++
		}
	}
	if 2*silent > w.audible && s.site.Revision != w.in.Revision {
		w.blame("%s gets %s, and %d of %d have fallen silent", s.site.Name, w.in.Revision, silent, w.audible)
	}
}

// judgeSuspects judges how many sites of a wave have fallen silent with the change when a later one begins.
func (w *world) judgeSuspects(wave int, to string) {
	suspects := 0
	p := &planner{Input: w.in, waves: make([][]*Site, len(w.in.Rollout.Waves)+1)}
	for _, s := range w.sites {
		if s.site.Wave != wave {
			continue
		}
		p.waves[wave] = append(p.waves[wave], &s.site)
		_, silent := w.silence(s)
		has := s.site.Revision == to && s.seen == to
		failed := slices.ContainsFunc(w.in.Status.Sites, func(u v1.RolloutSite) bool { // it counts as that
			return u.Name == s.site.Name && u.State == v1.RolloutSiteFailed
		})
		if silent && has && !s.proven[to] && !failed && !w.accepted[s.site.Name] && !s.site.Held && !s.site.Idle {
			suspects++
		}
	}
	if most := p.silent(wave); suspects > most {
		w.blame("%d sites of wave %d have fallen silent with %s, and the next begins; %d may", suspects, wave, to, most)
	}
}

// judge judges the state of the world.
func (w *world) judge() {
	rev := w.in.Revision
	if w.in.Status == nil || w.in.Update != rev {
		return
	}
	failures := Share(w.in.Rollout.MaxFailures, "0%", len(w.sites))
	p := &planner{Input: w.in, waves: make([][]*Site, len(w.in.Rollout.Waves)+1)}
	for _, s := range w.sites {
		p.waves[s.site.Wave] = append(p.waves[s.site.Wave], &s.site)
	}
	for wave := range p.waves {
		var bad []string
		for _, s := range w.sites {
			if s.site.Wave != wave || rev == w.in.Current || w.skip || w.accepted[s.site.Name] ||
				!s.site.Exists || s.site.Idle {
				continue
			}
			if s.site.Revision == rev && !s.proven[rev] && !s.had {
				bad = append(bad, s.site.Name)
			}
		}
		if most := p.limit(wave) + p.silent(wave) + failures; len(bad) > most {
			w.blame("wave %d has %v with %s, unproven; %d may be", wave, bad, rev, most)
		}
	}
	for _, u := range w.in.Status.Sites {
		s := w.site(u.Name)
		if u.State == v1.RolloutSiteFailed && w.fault[rev][u.Name] == works && s.readyDelay < deadline {
			w.blame("%s is called failed (%s), and all is well there", u.Name, u.Message)
		}
	}
	if w.in.Status.Phase == v1.RolloutComplete && w.in.Current == rev && !w.skip && !w.back {
		for _, s := range w.sites {
			never := s.site.Exists && !s.site.Idle && s.site.Revision == rev && w.fault[rev][s.site.Name] == dead
			if never && !w.accepted[s.site.Name] &&
				len(w.in.Status.Sites) == 0 && failures == 0 {
				w.blame("complete, and %s never ran it", s.site.Name)
			}
		}
	}
}

func (w *world) site(name string) *site {
	i := slices.IndexFunc(w.sites, func(s *site) bool { return s.site.Name == name })
	return w.sites[i]
}

// pick picks a site.
func (w *world) pick() *site { return w.sites[w.rand.IntN(len(w.sites))] }

// happen lets something happen.
func (w *world) happen() {
	status := w.in.Status
	switch n := w.rand.IntN(1000); {
	case n < 8:
		w.goSilent(w.pick())
	case n < 40:
		if s := w.pick(); w.fault[s.seen][s.site.Name] != cutsOff && w.fault[s.seen][s.site.Name] != cutsUp {
			w.hear(s)
		}
	case n < 42: // a site that the change has cut off is repaired by hand
		w.hear(w.pick())
	case n < 44 && w.hostile: // most of them at once
		for _, s := range w.sites {
			if w.rand.IntN(4) > 0 {
				w.goSilent(s)
			}
		}
	case n < 47: // and back
		for _, s := range w.sites {
			if w.fault[s.seen][s.site.Name] != cutsOff && w.fault[s.seen][s.site.Name] != cutsUp {
				w.hear(s)
			}
		}
	case n < 50 && w.hostile:
		w.revise()
	case n < 53 && w.hostile && w.in.Current != "":
		w.edit(w.in.Current, "undo")
	case n < 54 && w.hostile && w.made > 1:
		w.edit(fmt.Sprintf("r%d", 1+w.rand.IntN(w.made)), "again")
	case n < 55 && w.hostile:
		w.in.AtOnce = w.in.Revision
		if status != nil && w.in.Update == w.in.Revision && status.Phase != v1.RolloutComplete {
			w.skip = true
		}
		w.note("%s at once", w.in.AtOnce)
	case n < 58 && w.hostile:
		w.in.Rollout.Paused = !w.in.Rollout.Paused
		w.note("paused: %t", w.in.Rollout.Paused)
	case n < 63 && w.hostile:
		s := w.pick()
		s.site.Held = !s.site.Held
		w.note("%s held: %t", s.site.Name, s.site.Held)
	case n < 64 && w.hostile: // somebody scales it to 0, or up again
		s := w.pick()
		s.site.Idle = !s.site.Idle
		w.accepted[s.site.Name] = true
		w.note("%s idle: %t", s.site.Name, s.site.Idle)
	case n < 65 && w.hostile && status != nil && status.Phase != v1.RolloutComplete: // somebody edits the status
		status.Sites = nil
		w.note("the list is lost")
	case n < 67 && w.hostile && len(w.sites) < 20:
		w.join(len(w.sites))
	case n < 90:
		w.person(w.rand.IntN(3) > 0)
	}
}

// person is somebody who approves and resumes what the status asks for; careless people do it when nothing is asked.
func (w *world) person(careful bool) {
	status := w.in.Status
	if status == nil || w.in.Update != w.in.Revision || !w.hostile && status.Awaits == "" {
		return
	}
	switch {
	case !careful:
		w.in.Approved = w.in.Revision + "/wave0"
		w.in.Resumed = w.now.UTC().Format(time.RFC3339)
	case status.Awaits != "":
		w.in.Approved = status.Awaits
		wave := slices.IndexFunc(w.in.Rollout.Waves, func(of v1.Wave) bool { return of.Name == status.Wave })
		kind := strings.TrimPrefix(status.Awaits, Approval(w.in.Revision, status.Wave, status.StartTime, ""))
		if strings.HasPrefix(kind, "/silent") {
			w.acceptAll(v1.RolloutSiteSuspect)
		} else {
			w.approved[fmt.Sprint(wave)] = true
		}
		w.note("approved: %s", status.Awaits)
	case status.HaltTime != nil:
		w.in.Resumed = status.HaltTime.UTC().Format(time.RFC3339)
		if status.Phase == v1.RolloutOutage {
			w.outageAccepted = w.now
			break
		}
		w.acceptAll(v1.RolloutSiteFailed)
		for _, s := range w.sites {
			s.undone = false
		}
		w.note("resumed: %s", w.in.Resumed)
	}
}

func (w *world) acceptAll(state v1.RolloutSiteState) {
	for _, u := range w.in.Status.Sites {
		if u.State == state {
			w.accepted[u.Name] = true
		}
	}
}

// last lets seconds pass.
func (w *world) last(seconds int) {
	for range seconds {
		w.now = w.now.Add(time.Second)
		for _, s := range w.sites {
			w.live(s)
		}
	}
}

// step is a second, or more of them in which little happens.
func (w *world) step() {
	w.last(1 + w.rand.IntN(10))
	w.happen()
	stopped := -1
	if w.rand.IntN(20) == 0 {
		stopped = w.rand.IntN(len(w.sites) + 1)
	}
	w.pass(stopped)
	w.judge()
}

// settle has everything work, nobody interfere, and whoever is asked answer: the rollout completes.
func (w *world) settle() {
	w.revise()
	clear(w.fault)
	w.in.Rollout.Paused, w.hostile = false, false
	for _, s := range w.sites {
		w.hear(s)
		s.site.Held, s.site.Idle = false, false
	}
	for range 4000 {
		w.last(5)
		plan := w.pass(-1)
		w.judge()
		if plan.Status.Phase == v1.RolloutComplete {
			return
		}
		w.person(true)
	}
	w.blame("not complete: %s %q", w.in.Status.Phase, w.in.Status.Message)
}

// return has people go back to what ran everywhere: every site gets it.
func (w *world) returns() {
	if w.in.Current == "" || w.in.Revision == w.in.Current {
		return
	}
	w.in.Rollout.Paused = false
	w.edit(w.in.Current, "undo at the end")
	for range 400 {
		w.last(5)
		w.pass(-1)
		if !slices.ContainsFunc(w.sites, func(s *site) bool {
			return s.site.Revision != w.in.Current && !s.site.Held && w.fault[w.in.Current][s.site.Name] != refused
		}) {
			return
		}
	}
	w.blame("not back: %s %q", w.in.Status.Phase, w.in.Status.Message)
}

// play plays a world, and returns how it went wrong; empty if it did not.
func play(seed uint64, steps int) (wrong string, log []string) {
	w := newWorld(seed)
	defer func() {
		if found, ok := recover().(violation); ok {
			wrong, log = string(found), w.log
		}
	}()
	for range steps {
		w.step()
	}
	w.returns()
	w.settle()
	return "", nil
}

// TestOracle plays random histories of fleets whose truth it knows: in no wave are more sites unproven than the spec
// allows, no wave begins without proof in the earlier ones, an approval is good once, silence alone fails nobody, what
// ran everywhere reaches everyone, and what works completes.
func TestOracle(t *testing.T) {
	t.Parallel()
	const each = 1000
	for i := range uint64(*steps / each) {
		if wrong, log := play(*seed+i, each); wrong != "" {
			for _, line := range log[max(0, len(log)-80):] {
				t.Log(line)
			}
			t.Fatalf("-rollout.seed=%d -rollout.steps=%d: %s", *seed+i, each, wrong)
		}
	}
}
