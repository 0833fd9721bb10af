package rollout_test

import (
	"cmp"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/gridcontroller/rollout"
	kubectlrollout "github.com/application-grid/application-grid/pkg/kubectlgrid/rollout"
)

var (
	judgeWorlds = flag.Int("rollout.worlds", 120, "worlds of TestJudge, of 400 steps each; a long run has 5000")
	judgeDepth  = flag.Int("rollout.depth", 2, "events of each history of TestEveryHistory; a long run has 3")
	judgeSeed   = flag.Uint64("rollout.seed", 1, "seed of the first of them")
)

const (
	// noticed is how long the control plane takes to notice that a node is silent.
	noticed  = 40 * time.Second
	deadline = 5 * time.Minute
	soakTime = 2 * time.Minute
)

// fate is what a revision does to a site: the truth, which the plan does not know.
type fate int

const (
	works   fate = iota
	dead         // its pods are never ready
	crashes      // its containers restart every 70 seconds
	denied       // the API server refuses the workload
	cutsOff      // the site falls silent when they start
	nowhere      // the template fits no node
	breaks       // nodes are not ready any more when they have run for a while
	fates
)

// place is a site, with what is so there.
type place struct {
	name       string
	wave       int
	away       bool // its label is away
	exists     bool
	uid        int
	revision   string
	held, idle bool
	withheld   bool // a person must approve of its change
	fate       map[string]fate
	fleet
	// excused is the attempt in which a person has excused it whenever it is silent.
	excused string
	// refusedAt is since when the API server has refused its workload.
	refusedAt time.Time
	// proof has the workload, by UID, on which a revision ran ready for the soak.
	proof map[string]int
	// begunAt is when it got the spec's revision; loose is set if something moved it since, which frees or takes
	// places.
	begunAt  time.Time
	loose    bool
	accepted bool
	// failed: it was called failed when it did not work.
	failed bool
	// suspected is in how many statuses it was suspected wrongly.
	suspected int
	// turns is how often it got another revision since something happened to it.
	turns int
	// before is the revision that it had before the spec's. stale is what a cache shows of its revision, until.
	before     string
	stale      string
	staleUntil time.Time
	// badCheck has the revisions that fail the check; checked has the workload, by UID, on which one passed it.
	// seen is the revision that the controller has read or given: it does nothing where that is what should be.
	seen string
	// edited is the revision that the workload still names, although somebody has edited it; empty if nobody has.
	// revision is what it runs then.
	edited string
	// returns is the revision with which its workload has to come back.
	returns  string
	badCheck map[string]bool
	checked  map[string]int
	jobs     map[string]*job
}

// job is the run of a check, on a node.
type job struct {
	on   *node
	ends time.Time
}

// world is a fleet with a truth, and people.
type world struct {
	*rand.Rand
	now      time.Time
	places   []*place
	in       rollout.Input
	count    int
	friendly bool
	// far: sites that are silent stay so for long. quiet: little happens. One in rare passes is the controller's last.
	far, quiet bool
	rare       int
	// backed: sites have gone back in this attempt.
	backed bool
	// shape is that of all workloads.
	shape shape
	// attempt is the startTime, attemptOf the revision; over are the waves that the judge has seen pass in it, approved
	// those that a person let pass.
	attempt, attemptOf string
	over, approved     map[string]bool
	maxFailures        int
	// other is what another leader, which does not know yet that it leads no more, has read, until.
	other      *rollout.Input
	otherUntil time.Time
	// muteUntil: until then no question for pods is answered. backAt is when the controller was away last.
	muteUntil, backAt time.Time
	// crashed: the controller has restarted since it wrote a status. writtenAt is when the status changed last. A
	// controller cannot know whether another one was there since then, so that time counts for no site: unheard has
	// when it ended, and how long it was.
	crashed   bool
	writtenAt time.Time
	unheard   map[time.Time]time.Duration
	// skew is how far the controller's clock is wrong. leapt is set until a status is written after it was set.
	// after that. refused: the next status cannot be written.
	skew           time.Duration
	leapt, refused bool
	log            []string
}

type verdict string

func (w *world) blame(format string, args ...any) { panic(verdict(fmt.Sprintf(format, args...))) }

func (w *world) note(format string, args ...any) {
	w.log = append(w.log, w.now.Format("15:04:05 ")+fmt.Sprintf(format, args...))
}

func newWorld(seed uint64) *world {
	w := &world{
		Rand: rand.New(rand.NewPCG(seed, 7)), now: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC),
		over: map[string]bool{}, approved: map[string]bool{}, unheard: map[time.Time]time.Duration{},
	}
	w.friendly, w.far, w.quiet = w.IntN(3) == 0, w.IntN(4) == 0, w.IntN(4) == 0
	w.rare = []int{20, 200}[w.IntN(2)]
	w.shape = w.newShape()
	spec := &v1.Rollout{OnFailure: v1.OnFailureHalt}
	if !w.friendly && w.IntN(6) == 0 {
		spec.Unreachable = v1.UnreachableWait
	}
	if w.IntN(2) == 0 {
		spec.OnFailure = v1.OnFailureRollback
	}
	if w.maxFailures = w.IntN(3); w.maxFailures > 0 {
		most := intstr.FromInt(w.maxFailures)
		spec.MaxFailures = &most
	}
	for i := range 1 + w.IntN(3) {
		spec.Waves = append(spec.Waves, w.wave(i))
	}
	w.in = rollout.Input{Rollout: spec, Deadline: deadline, Revision: "r0"}
	if w.IntN(8) == 0 {
		w.in.Most = 3
	}
	for i := range len(spec.Waves) + 1 + w.IntN(12) {
		wave := i // every wave has a site
		if i > len(spec.Waves) {
			wave = w.IntN(len(spec.Waves) + 1)
		}
		w.join(wave)
	}
	return w
}

// wave is a new one.
func (w *world) wave(i int) v1.Wave {
	wave := v1.Wave{Name: fmt.Sprintf("wave%d", i), Sites: &v1.SiteSelector{Names: []string{"x"}}}
	if w.IntN(2) == 0 {
		most := intstr.FromInt(1 + w.IntN(3))
		wave.MaxUnavailable = &most
	}
	if w.IntN(4) == 0 {
		most := intstr.FromInt(w.IntN(3))
		wave.MaxSilent = &most
	}
	if w.IntN(3) > 0 {
		wave.Soak = &metav1.Duration{Duration: soakTime}
	}
	if !w.friendly && w.IntN(4) == 0 {
		wave.Approval = v1.ApprovalManual
	}
	if w.IntN(3) == 0 {
		wave.Check = &v1.Check{Template: v1.Template{}}
		wave.Check.Template.Raw, wave.Check.DeadlineSeconds = []byte(`{}`), ptr.To[int32](60)
	}
	return wave
}

// gate names a wave, which may be renamed, and may come before or after others later.
func (w *world) gate(wave int) string {
	if wave < len(w.in.Rollout.Waves) {
		return w.in.Rollout.Waves[wave].Name
	}
	return ""
}

// editWaves is a person who edits the waves. Sites stay in theirs, unless it goes.
func (w *world) editWaves() {
	r := w.in.Rollout.DeepCopy()
	w.other = nil // it would find sites of waves that it does not know
	i, j := w.IntN(len(r.Waves)), w.IntN(len(r.Waves))
	switch w.IntN(5) {
	case 0:
		r.Waves[i].Name = fmt.Sprint("wave", w.unique())
	case 1:
		r.Waves[i], r.Waves[j] = r.Waves[j], r.Waves[i]
		for _, p := range w.places {
			switch p.wave {
			case i:
				p.wave = j
			case j:
				p.wave = i
			}
		}
	case 2:
		r.Waves = slices.Insert(r.Waves, i, w.wave(w.unique()))
		for _, p := range w.places {
			if p.wave >= i {
				p.wave++
			}
			if w.IntN(3) == 0 {
				defer w.move(p, i)
			}
		}
	case 3:
		if len(r.Waves) == 1 {
			return
		}
		r.Waves = slices.Delete(r.Waves, i, i+1)
		for _, p := range w.places {
			switch {
			case p.wave == i:
				defer w.move(p, len(r.Waves))
			case p.wave > i:
				p.wave--
			}
		}
	case 4:
		if r.Waves[i].Check != nil {
			r.Waves[i].Check.Template.Raw = fmt.Appendf(nil, "{%d}", w.unique())
		}
	}
	w.in.Rollout = r
	w.note("the waves are %v", r.Waves)
}

// move has a site move into another wave, whose soak and check count from now on.
func (w *world) move(p *place, wave int) {
	p.wave, p.loose = wave, true
	w.prove(p, 0)
	w.note("%s is in wave %d", p.name, p.wave)
}

func (w *world) join(wave int) {
	p := &place{
		name: fmt.Sprintf("s%02d", len(w.places)), wave: wave, fate: map[string]fate{}, proof: map[string]int{},
		badCheck: map[string]bool{}, checked: map[string]int{}, jobs: map[string]*job{},
	}
	p.replicas = w.shape.replicas
	for i := range 1 + w.IntN(w.shape.nodes) {
		p.nodes = append(p.nodes, &node{name: fmt.Sprint(p.name, "-", i)})
	}
	w.places = append(w.places, p)
}

func (w *world) unique() int { w.count++; return w.count }

// revise changes the template.
func (w *world) revise() {
	w.in.Revision = fmt.Sprint("r", w.unique())
	w.in.AtOnce = ""
	if w.shape.partitions && w.IntN(2) == 0 {
		w.shape.partition[w.in.Revision] = 1
	}
	kind, share := fate(w.IntN(int(fates))), 1+w.IntN(4)
	for _, p := range w.places {
		if p.loose = false; !w.friendly && w.IntN(share) == 0 {
			p.fate[w.in.Revision] = kind
			p.badCheck[w.in.Revision] = kind == works
		}
	}
	w.note("the spec is %s, fate %d", w.in.Revision, kind)
}

func (w *world) checkOf(p *place) *v1.Check {
	if p.wave < len(w.in.Rollout.Waves) {
		return w.in.Rollout.Waves[p.wave].Check
	}
	return nil
}

func (w *world) checkName(p *place) string { return p.revision + string(w.checkOf(p).Template.Raw) }

// check is what becomes of a site's check. Its Job is another one in each attempt, and for each workload.
func (w *world) check(p *place, attempt *metav1.Time) *rollout.CheckResult {
	name := fmt.Sprint(w.checkName(p), attempt, p.uid)
	runs := p.jobs[name]
	switch {
	case runs == nil && w.IntN(4) == 0:
		return &rollout.CheckResult{Message: "a quota"}
	case runs == nil, w.knownSilent(runs.on): // then it runs again, elsewhere
		if i := w.IntN(len(p.nodes)); !w.knownSilent(p.nodes[i]) && !p.nodes[i].tainted && !p.nodes[i].notReady {
			p.jobs[name] = &job{p.nodes[i], w.now.Add(time.Duration(5+w.IntN(20)) * time.Second)}
		}
		return &rollout.CheckResult{Runs: true}
	case w.now.Before(runs.ends), !runs.on.heard():
		return &rollout.CheckResult{Runs: true}
	case p.badCheck[p.revision]:
		return &rollout.CheckResult{Failed: true, Message: "no"}
	}
	p.checked[w.checkName(p)] = p.uid
	w.prove(p, 0)
	return &rollout.CheckResult{Passed: true}
}

func (w *world) soak(p *place) time.Duration {
	if p.wave < len(w.in.Rollout.Waves) && w.in.Rollout.Waves[p.wave].Soak != nil {
		return soakTime
	}
	return 0
}

// named is the revision that the workload names.
func (p *place) named() string { return cmp.Or(p.edited, p.revision) }

// shown is the revision that a cache shows.
func (w *world) shown(p *place) string {
	if w.now.Before(p.staleUntil) {
		return p.stale
	}
	return p.named()
}

// look is what the controller reads of a site.
func (w *world) look(p *place) rollout.Site {
	s := rollout.Site{
		Name: p.name, Wave: p.wave, Exists: p.exists, Held: p.held && p.exists, Revision: p.revision,
		UID: fmt.Sprint(p.uid), Idle: p.idle && p.exists, Withheld: p.withheld && p.exists,
		Uncompared: w.in.Followed == nil, Drifted: w.in.Followed != nil && p.edited != "",
	}
	switch {
	case !p.exists:
		s.Revision = ""
	default:
		s.Revision = w.shown(p)
	}
	w.lookAtPods(p, &s)
	refused := p.fate[w.in.Revision] == denied && p.named() != w.in.Revision && w.in.Update == w.in.Revision &&
		!p.begunAt.IsZero() && p.heard()
	switch {
	case !refused:
		p.refusedAt = time.Time{}
	case p.refusedAt.IsZero():
		p.refusedAt = w.now
	case w.now.Sub(p.refusedAt) >= deadline:
		s.Broken, s.Tried = "refused", w.in.Revision
	}
	return s
}

// sawTheChange reports whether the control plane knows that a kubelet has started a pod of a revision.
func (p *place) sawTheChange(revision string) bool {
	return slices.ContainsFunc(p.pods, func(pod *pod) bool {
		return pod.of == p.uid && pod.revision == revision && pod.told.started
	})
}

// share is a number of sites, or a part of them, rounded down.
func share(value *intstr.IntOrString, percent, of int) int {
	if value == nil {
		return percent * of / 100
	}
	if value.Type == intstr.Int {
		return value.IntValue()
	}
	var n int
	if _, err := fmt.Sscanf(value.StrVal, "%d%%", &n); err != nil {
		return 0
	}
	return n * of / 100
}

func (w *world) sitesOf(wave int) (all []*place) {
	for _, p := range w.places {
		if p.wave == wave && !p.away {
			all = append(all, p)
		}
	}
	return all
}

// most are how many sites of a wave may be unproven, and how many silent.
func (w *world) most(wave int) (unproven, silent int) {
	of := v1.Wave{}
	if wave < len(w.in.Rollout.Waves) {
		of = w.in.Rollout.Waves[wave]
	}
	sites := len(w.sitesOf(wave))
	if silent = share(of.MaxSilent, 10, sites); of.MaxSilent == nil {
		silent = max(1, silent)
	}
	return max(1, share(of.MaxUnavailable, 25, sites)), silent
}

// failed are the sites that the status calls failed.
func (w *world) failed() map[string]bool {
	all := map[string]bool{}
	if w.in.Status != nil && w.in.Update == w.in.Revision {
		for _, of := range w.in.Status.Sites {
			if p := w.find(of.Name); of.State == v1.RolloutSiteFailed && p != nil && !p.held && !p.idle && !p.away &&
				!p.accepted {
				all[of.Name] = true
			}
		}
	}
	return all
}

func (w *world) find(name string) *place {
	i := slices.IndexFunc(w.places, func(p *place) bool { return p.name == name })
	if i < 0 {
		return nil
	}
	return w.places[i]
}

// proved reports whether a site has true proof of a revision, on the workload that it has.
func (p *place) proved(revision string) bool {
	return p.exists && p.revision == revision && p.proof[revision] == p.uid
}

// settleGates notes which waves have passed by what is true now.
func (w *world) settleGates() {
	rev, failed := w.in.Revision, w.failed()
	within := len(failed) <= w.maxFailures
	for wave := 0; wave <= len(w.in.Rollout.Waves); wave++ {
		if w.over[w.gate(wave)] {
			continue
		}
		some, all, suspects := false, true, 0
		for _, p := range w.sitesOf(wave) {
			switch {
			case p.proved(rev):
				some = true
			case p.held, p.idle, p.accepted, within && failed[p.name]:
			case !p.heard() && p.excused == w.attempt:
			case !p.heard() && p.revision == rev && !p.loose:
				suspects++
			case !p.heard() && (p.loose || w.in.Rollout.Unreachable != v1.UnreachableWait):
			default:
				all = false
			}
		}
		_, silent := w.most(wave)
		all = all && suspects <= silent
		left := false // somebody who could begin
		for later := wave; later <= len(w.in.Rollout.Waves); later++ {
			left = left || slices.ContainsFunc(w.sitesOf(later), func(p *place) bool {
				return !p.held && !p.idle && !p.accepted && (!p.exists || p.named() != rev) // no gate keeps an edit
			})
		}
		manual := wave < len(w.in.Rollout.Waves) && w.in.Rollout.Waves[wave].Approval == v1.ApprovalManual
		proven := some || !left || wave == len(w.in.Rollout.Waves)
		w.over[w.gate(wave)] = w.approved[w.gate(wave)] || (all && proven && !manual)
		if !w.over[w.gate(wave)] {
			return
		}
	}
}

// wrong says why a site must not get a revision; empty if it may.
func (w *world) wrong(p *place, to string, status *v1.RolloutStatus) string {
	rev, current := w.in.Revision, w.in.Current
	if p.held && p.exists {
		return fmt.Sprintf("%s is held, and gets %s", p.name, to)
	}
	if p.exists && p.edited == to { // it keeps what it names
		return ""
	}
	if to != rev && to != current && to != p.before {
		return fmt.Sprintf("%s gets %s; the spec is %s, %s runs everywhere", p.name, to, rev, current)
	}
	if to == current && p.returns == rev && rev != current && !p.exists && status.HaltTime == nil &&
		status.GoesBack == "" {
		return fmt.Sprintf("%s had proven %s, and comes back with %s", p.name, rev, to)
	}
	if to == current && to != rev && p.exists && p.revision == rev && p.heard() && w.in.Status.GoesBack == "" {
		return fmt.Sprintf("%s goes back to %s, and the written status does not say so", p.name, to)
	}
	if to == current && to != rev && p.exists && p.revision == rev && w.in.Status.GoesBack == "" &&
		p.sawTheChange(rev) {
		return fmt.Sprintf("%s is put back to %s, and has seen the change: %s", p.name, to, w.describe(p))
	}
	if to == current && p.exists && status.GoesBack != "" && !status.AtOnce {
		return w.tooManyGoBack(p)
	}
	if to != rev || to == current || current == "" || !p.exists || p.idle || status.AtOnce {
		return ""
	}
	if w.in.Rollout.Paused {
		return fmt.Sprintf("%s begins, and the rollout is paused", p.name)
	}
	failed := w.failed()
	if len(failed) > w.maxFailures {
		return fmt.Sprintf("%s begins, and %d have failed; %d may", p.name, len(failed), w.maxFailures)
	}
	if failed[p.name] || p.accepted || slices.ContainsFunc(status.Sites, func(of v1.RolloutSite) bool {
		return of.Name == p.name && of.State == v1.RolloutSiteFailed
	}) { // it is tried again
		return ""
	}
	for wave := range p.wave {
		if !w.over[w.gate(wave)] {
			return fmt.Sprintf("%s of wave %d begins, and wave %d has not passed", p.name, p.wave, wave)
		}
	}
	var unproven []string
	for _, other := range w.sitesOf(p.wave) {
		silent := !other.heard() && (w.over[w.gate(p.wave)] || other.excused == w.attempt)
		if other != p && other.exists && other.revision == rev && !other.proved(rev) && !other.held && !other.idle &&
			!other.accepted && !other.loose && !failed[other.name] && !silent {
			unproven = append(unproven, other.name+": "+w.describe(other))
		}
	}
	if most, _ := w.most(p.wave); len(unproven) >= most {
		return fmt.Sprintf("%s begins, and of wave %d %q are unproven; %d may be: %+v", p.name, p.wave, unproven, most,
			w.in.Status.Sites)
	}
	return ""
}

// plan is what a controller makes of what it has read, and of the sites as they are.
func (w *world) plan(in rollout.Input) rollout.Plan {
	in.Now, in.Sites = w.clock(), nil
	for _, p := range w.places {
		if !p.away {
			in.Sites = append(in.Sites, w.look(p))
			p.seen = in.Sites[len(in.Sites)-1].Revision
		}
	}
	defer func() { w.in.Sites, w.in.Now = in.Sites, in.Now }()
	plan := rollout.NewPlan(in)
	if len(plan.Ask)+len(plan.Checks) == 0 || (!w.friendly && w.IntN(10) == 0) {
		return plan
	}
	site := func(name string) *rollout.Site {
		return &in.Sites[slices.IndexFunc(in.Sites, func(s rollout.Site) bool { return s.Name == name })]
	}
	for _, q := range plan.Ask {
		if w.now.Before(w.muteUntil) || w.IntN(20) == 0 {
			site(q.Name).Unread = true
			continue
		}
		told := w.answer(w.find(q.Name))
		site(q.Name).Pods = &told
	}
	for _, name := range rollout.NewPlan(in).Checks { // of a site that is silent in part they depend on its pods
		site(name).Check = w.check(w.find(name), plan.Status.StartTime)
	}
	return rollout.NewPlan(in)
}

// pass is one reconciliation, whose writes are lost from a step on.
func (w *world) pass(stopped int) {
	plan := w.plan(w.in)
	if w.in.Status != nil && w.in.Update == w.in.Revision {
		w.settleGates()
	}
	if w.leapt { // it must not restart now, see setClock
		stopped = -1
	}
	for i, name := range slices.Sorted(maps.Keys(plan.Revisions)) {
		if stopped == i {
			w.crash()
			return
		}
		p, to := w.find(name), plan.Revisions[name]
		if p.exists && p.edited == "" && (p.seen == to || p.revision == to) {
			continue
		}
		if wrong := w.wrong(p, to, plan.Status); wrong != "" {
			w.blame("%s", wrong)
		}
		w.apply(p, to)
	}
	if stopped >= 0 {
		w.crash()
		return
	}
	if w.in.Followed = plan.Followed; w.refused {
		w.note("the status cannot be written")
		return
	}
	w.leapt = false
	w.write(plan)
}

// crash ends the controller. Another one starts at once, and knows only what is written.
func (w *world) crash() {
	w.in.Followed, w.in.Leap, w.crashed = nil, 0, true
	w.note("the controller restarts")
}

// noteUnheard notes the time of which a restarted controller cannot know, when it writes a status. A controller that
// runs writes one at least each half of a deadline, if clocks run.
func (w *world) noteUnheard(s *v1.RolloutStatus) {
	if w.crashed && w.in.Status != nil {
		w.unheard[w.now] = min(w.now.Sub(w.writtenAt), deadline/2+30*time.Second) + time.Second
	}
	if w.crashed = false; !reflect.DeepEqual(w.in.Status, s) {
		w.writtenAt = w.now
	}
}

// heardFor is how long the controllers have followed what began at a time.
func (w *world) heardFor(began time.Time) time.Duration {
	heard := w.now.Sub(began)
	for at, lost := range w.unheard {
		if at.After(began) {
			heard -= lost
		}
	}
	return heard
}

// passOfAnother is one reconciliation of the other leader. Its status is refused, because there is a newer one. It is
// to blame for what is wrong by what it has read, and now too.
func (w *world) passOfAnother() {
	mine, sites := w.in, w.in.Sites
	plan := w.plan(*w.other)
	// What the two have read of the sites is of two moments.
	mine.Sites, w.other.Sites, mine.Now = nil, nil, w.clock()
	for _, name := range slices.Sorted(maps.Keys(plan.Revisions)) {
		p, to := w.find(name), plan.Revisions[name]
		if p.exists && p.edited == "" && (p.seen == to || p.revision == to) {
			continue
		}
		p.returns = "" // the other one may not know that
		w.in = *w.other
		w.swapSeen() // it does not know what the leader did since the cache was filled
		then := w.wrong(p, to, plan.Status)
		w.swapSeen()
		w.in = mine
		if now := w.wrong(p, to, plan.Status); now != "" && then != "" && mine.Revision == w.other.Revision {
			w.blame("another leader: %s, and now %s", then, now)
		}
		w.apply(p, to)
		p.loose = true
	}
	w.in, w.in.Sites = mine, sites
	if !w.now.Before(w.otherUntil) {
		w.other = nil
	}
}

// swapSeen exchanges the revisions that sites have with those that a controller has read.
func (w *world) swapSeen() {
	for _, p := range w.places {
		p.revision, p.seen = p.seen, p.revision
	}
}

func (w *world) apply(p *place, to string) {
	if p.withheld && p.exists {
		return
	}
	if to == w.in.Revision {
		if p.begunAt, p.loose = w.now, !p.exists || p.edited == to; p.named() != to {
			p.before = p.named()
		}
	}
	if p.fate[to] == denied && p.exists && to != w.in.Current {
		return
	}
	if p.exists && p.revision != to && w.other == nil {
		if p.turns++; p.turns > 4 {
			w.blame("%s gets %s, without an end: %s", p.name, to, w.describe(p))
		}
	}
	p.stale, p.staleUntil = p.named(), time.Time{}
	if p.exists && w.IntN(4) == 0 {
		p.staleUntil = w.now.Add(time.Duration(w.IntN(3)) * time.Second)
	}
	if !p.exists {
		p.uid = w.unique()
	}
	p.former, p.exists, p.revision, p.seen, p.appliedAt, p.edited = p.revision, true, to, to, w.now, ""
	w.note("%s gets %s", p.name, to)
}

// write is the write of a status.
func (w *world) write(plan rollout.Plan) {
	before := w.in.Status
	w.noteUnheard(plan.Status)
	complete := plan.Status.Phase == v1.RolloutComplete && (before == nil || before.Phase != plan.Status.Phase)
	moved := plan.Current != w.in.Current && w.in.Current != ""
	back := before != nil && before.GoesBack != "" && !moved && (complete || plan.Status.Phase == v1.RolloutRolledBack)
	w.in.Current, w.in.Update, w.in.Status = plan.Current, w.in.Revision, plan.Status.DeepCopy()
	if at := plan.Status.StartTime.String(); w.attempt != at {
		for _, p := range w.places {
			p.returns, p.failed = "", false
		}
		w.over, w.approved = map[string]bool{}, map[string]bool{}
		if before == nil || before.GoesBack == "" || w.attemptOf != w.in.Revision {
			for _, p := range w.places {
				p.accepted, p.loose, p.begunAt = false, false, time.Time{}
			}
		}
		w.attempt, w.attemptOf, w.backed = at, w.in.Revision, false // what was accepted when it was resumed still is
	}
	if before == nil || before.Phase != plan.Status.Phase || before.Message != plan.Status.Message {
		w.note("%s %s %q", plan.Status.Phase, plan.Status.Wave, plan.Status.Message)
	}
	w.backed = w.backed || plan.Status.GoesBack != ""
	w.settleGates() // by the failures, too, that the plan has found
	w.told(plan.Status, back)
	failed := w.failed()
	for _, p := range w.places {
		if p.away || !p.exists || p.held || p.idle || w.lost(p) || w.partly(p) || w.now.Before(p.staleUntil) {
			continue
		}
		if !back && moved && !plan.Status.AtOnce && !p.proved(w.in.Revision) && !p.accepted && !failed[p.name] {
			w.blame("complete, and %s has not proven it: %s", p.name, w.describe(p))
		}
		late := 2*soakTime + deadline + 2*time.Minute
		works := p.fate[w.in.Revision] == works && p.allWork() && !p.badCheck[w.in.Revision]
		// What has failed is called that until it is proven, also on a workload that was recreated.
		slow := p.good < late || w.checkOf(p) != nil || w.heardFor(w.calm()) < late
		// A site that was held, or away, until it was mended may be called failed first when it works, but does not
		// show that yet.
		mended := !p.mendedAt.IsZero()
		if p.failed = failed[p.name] && (!works || mended || p.failed && slow); failed[p.name] && !p.failed {
			w.blame("%s is called failed, and works: %+v; %s", p.name, plan.Status.Sites, w.describe(p))
		}
		kind := p.fate[w.in.Revision]
		fails := kind == dead || kind == nowhere || kind == breaks && w.soak(p) > 0 ||
			(kind == crashes && w.soak(p) > 0 && p.proof[w.in.Revision] != p.uid)
		if w.checkOf(p) != nil && p.badCheck[w.in.Revision] {
			fails, late = p.proof[w.in.Revision] != p.uid, late+2*time.Minute
		}
		at := p.triedAt()
		if kind == nowhere && w.shape.partition[p.revision] < p.replicas { // else no pod is to have it
			at = p.appliedAt
		}
		if fails && p.revision == w.in.Revision && !at.IsZero() && p.heard() &&
			w.heardFor(at) > late && w.heardFor(p.begunAt) > late && plan.Status.GoesBack == "" && !p.loose &&
			!p.accepted && !failed[p.name] && !p.begunAt.IsZero() && w.heardFor(w.calm()) > late {
			w.blame("%s cannot work, and is not called failed: %+v; %s", p.name, plan.Status, w.describe(p))
		}
	}
	w.judgeSuspects(plan.Status)
	if w.friendly && plan.Status.Awaits != "" && !w.idleWave() {
		w.blame("a person is asked, and all works: %s", plan.Status.Message)
	}
	if w.IntN(10) == 0 { // no write without a change
		in := w.in
		for range 10 { // a short list lets a few in at a time
			next := rollout.NewPlan(in)
			in.Current, in.Status = next.Current, next.Status
		}
		if again := rollout.NewPlan(in); !reflect.DeepEqual(again.Status, in.Status) {
			w.blame("the status changes, and nothing else: %+v became %+v", in.Status, again.Status)
		}
	}
}

// judgeSuspects blames a status that suspects the change of a silence that began before any kubelet there saw a pod of
// it. The workload has to be put back. The controller may not learn that at once, because questions fail.
func (w *world) judgeSuspects(s *v1.RolloutStatus) {
	for _, of := range s.Sites {
		p := w.find(of.Name)
		unseen := of.State == v1.RolloutSiteSuspect && p.exists && w.lost(p) && !p.loose && !p.begunAt.IsZero() &&
			p.revision == w.in.Revision && !p.held && !p.idle && !p.sawTheChange(p.revision)
		if !unseen {
			p.suspected = 0
			continue
		}
		if w.now.Before(w.muteUntil) {
			continue
		}
		if p.suspected++; p.suspected > 6 {
			w.blame("%s is suspected, and no kubelet there has seen the change: %+v; %s", p.name, of, w.describe(p))
		}
	}
}

// told judges what a status says, by what the controller has read; of proofs by what is true.
func (w *world) told(s *v1.RolloutStatus, back bool) {
	var updated, failed, suspects, proofs int32
	for _, of := range s.Sites {
		switch of.State {
		case v1.RolloutSiteFailed:
			failed++
		case v1.RolloutSiteSuspect:
			suspects++
		default:
		}
	}
	done, failure := w.exits(s)
	if failure != nil && w.friendly && !w.idleWave() {
		w.blame("kubectl grid rollout status fails, and all works: %v", failure)
	}
	answered := s.HaltTime != nil && w.in.Resumed == s.HaltTime.UTC().Format(time.RFC3339) // and not seen yet
	stands := w.in.Rollout.Paused && !done || s.Phase == v1.RolloutRolledBack
	if failure == nil && (stands || len(w.failed()) > w.maxFailures && s.GoesBack == "" && !answered) {
		w.blame("the rollout does not continue by itself, and kubectl grid rollout status does not fail: %+v", s)
	}
	for _, read := range w.in.Sites {
		p := w.find(read.Name)
		has := read.Exists && read.Revision == w.in.Revision
		if has {
			updated++
		}
		if p.proof[w.in.Revision] == p.uid {
			proofs++
		}
		if !read.Exists || read.Held || read.Idle || read.Silent || read.Partly {
			continue
		}
		owes := !p.begunAt.IsZero() && !p.loose && !w.backed && !s.AtOnce && !p.proved(w.in.Revision)
		if done && (!has || owes) && !p.accepted && !w.failed()[p.name] {
			w.blame("complete, and %s has %s: %s", p.name, read.Revision, w.describe(p))
		}
		if back && (read.Revision != w.in.Current || !read.Ready || read.Drifted) {
			w.blame("gone back, and %s has %s: %s", p.name, read.Revision, w.describe(p))
		}
	}
	all := slices.Contains(s.Passed, "*") || s.AtOnce // then all count
	if s.Updated != updated || s.Failed > failed || s.Suspects > suspects || (s.Proven > proofs && !all) {
		w.blame("%d have it, %d failed, %d suspects, %d have proven it, and the status says %+v", updated, failed,
			suspects, proofs, s)
	}
}

// exits is how kubectl grid rollout status ends with a status: with code 0 if it is done, or with an error. It goes on
// with neither.
func (w *world) exits(s *v1.RolloutStatus) (done bool, failure error) {
	grid := &v1.DeploymentGrid{
		ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{
			v1.AnnotationResumed: w.in.Resumed, v1.AnnotationApproved: w.in.Approved,
		}},
		Spec:   v1.WorkloadGridSpec{Rollout: w.in.Rollout},
		Status: v1.WorkloadGridStatus{UpdateRevision: w.in.Revision, Rollout: s},
	}
	command := &kubectlrollout.Grid{Kind: v1.DeploymentGridKind, Object: grid}
	state, err := command.State()
	if err != nil {
		return false, err
	}
	return state.Done, state.Err()
}

// read is what the controller has read of a site last; nil if it has not.
func (w *world) read(p *place) *rollout.Site {
	i := slices.IndexFunc(w.in.Sites, func(s rollout.Site) bool { return s.Name == p.name })
	if i < 0 {
		return nil
	}
	return &w.in.Sites[i]
}

// tooManyGoBack says whether a site that is ready goes back while as many as may be are not ready; empty if not.
func (w *world) tooManyGoBack(p *place) string {
	if read := w.read(p); read == nil || !read.Ready || read.Idle || read.Drifted { // an edit is reverted at once
		return ""
	}
	unready := 0
	for _, other := range w.sitesOf(p.wave) {
		switch read := w.read(other); {
		case other == p, read == nil, read.Silent, read.Partly, read.Held, read.Idle, !read.Exists, read.Broken != "":
		case read.Ready && read.Revision != w.in.Current && other.appliedAt.Equal(w.now),
			!read.Ready && read.Revision == w.in.Current:
			unready++
		}
	}
	if most, _ := w.most(p.wave); unready >= most {
		return fmt.Sprintf("%s goes back, and %d of wave %d are not ready; %d may be", p.name, unready, p.wave, most)
	}
	return ""
}

// knownProven reports whether a site has proven the spec's revision, and the controller knows.
func (w *world) knownProven(p *place) bool {
	s := w.in.Status
	if read := w.read(p); read == nil || read.Silent || read.Partly {
		return false
	}
	return p.proved(w.in.Revision) && !p.idle && !p.held && !p.accepted && !p.away && w.in.Most == 0 &&
		w.in.Update == w.in.Revision && !slices.ContainsFunc(s.Sites, func(of v1.RolloutSite) bool {
		return of.Name == p.name
	})
}

// idleWave reports whether all sites of a wave want no pods, or have no node, so that it can prove nothing.
func (w *world) idleWave() bool {
	for wave := range w.in.Rollout.Waves {
		if !slices.ContainsFunc(w.sitesOf(wave), func(p *place) bool { return !p.idle || !p.exists }) {
			return true
		}
	}
	return false
}

// calm is since when no site has been silent, so that clocks run.
func (w *world) calm() time.Time {
	for _, p := range w.places {
		if !p.heard() {
			return w.now
		}
	}
	if w.now.Before(w.muteUntil) {
		return w.now
	}
	if s := w.in.Status; s.HaltTime != nil || w.in.Rollout.Paused {
		return w.now
	}
	if w.muteUntil.After(w.backAt) {
		return w.muteUntil
	}
	return w.backAt
}

// happen lets something happen.
func (w *world) happen() {
	w.occur(w.places[w.IntN(len(w.places))], w.IntN(100))
}

// occur lets the event of a number happen to a site, or to the grid.
func (w *world) occur(p *place, n int) {
	status := w.in.Status
	for _, other := range w.places {
		if other == p || n >= 22 {
			other.turns = 0
		}
	}
	switch {
	case n < 3: // a label is away for a moment, or for long
		p.away, p.loose = !p.away, true
		if w.friendly {
			w.last(2)
			w.pass(-1)
			p.away = false
		}
	case n < 5:
		if len(w.places) < 20 {
			w.join(w.IntN(len(w.in.Rollout.Waves) + 1))
		}
	case n < 7: // the workload is deleted
		p.loose, p.staleUntil, p.held = true, time.Time{}, false
		p.revision, p.edited = p.named(), ""
		if w.IntN(3) == 0 && p.exists {
			p.uid = w.unique()
			w.note("%s is replaced by a copy", p.name)
			break
		}
		p.returns = ""
		if w.knownProven(p) {
			p.returns = w.in.Revision
		}
		p.exists = false
		w.note("%s is deleted", p.name)
	case n < 9 && w.shape.kind == daemonSet: // nobody can want no pods of a DaemonSet
		w.taint(p)
	case n < 9:
		p.idle, p.loose = !p.idle, true
		w.note("%s idle: %t", p.name, p.idle)
	case n < 11: // a drain
		if len(p.pods) > 0 && p.heard() {
			p.pods[w.IntN(len(p.pods))].deleting = true
			w.note("a pod of %s is evicted", p.name)
		}
	case n < 13 && !w.friendly:
		p.held, p.loose = !p.held && p.exists, true
		w.note("%s held: %t", p.name, p.held)
	case n < 15 && !w.friendly:
		w.move(p, w.IntN(len(w.in.Rollout.Waves)+1))
	case n < 18 && !w.friendly && p.heard():
		w.cut(p)
	case n < 24:
		switch {
		case !w.far:
			w.hear(p)
		case w.IntN(8) == 0: // a link is mended
			for _, p := range w.places {
				w.hear(p)
			}
		}
	case n < 25 && !w.friendly && status != nil:
		w.revise()
	case n < 26 && !w.friendly && w.in.Current != "":
		if w.in.Revision = w.in.Current; w.IntN(3) == 0 {
			w.in.AtOnce = w.in.Revision
		}
		w.note("undo, at once: %s", w.in.AtOnce)
	case n < 27 && !w.friendly:
		w.in.Rollout = w.in.Rollout.DeepCopy()
		w.in.Rollout.Paused = !w.in.Rollout.Paused
		w.note("paused: %t", w.in.Rollout.Paused)
	case n < 45 && !w.friendly:
		w.decide()
	case n < 47 && !w.friendly:
		w.editWaves()
	case n < 52 && !w.friendly && p.proved(w.in.Revision): // what worked breaks
		p.fate[w.in.Revision], p.loose, p.begunAt = dead, true, w.now
		w.note("%s breaks", p.name)
	case n < 54 && w.other == nil && status != nil:
		other := w.in
		w.other, w.otherUntil = &other, w.now.Add(15*time.Second)
	case n == 54 && w.IntN(4) == 0:
		w.muteUntil = w.now.Add(15 * time.Minute)
		w.note("pods cannot be read")
	case n == 55 && w.IntN(4) == 0 && !w.leapt: // the controller is away
		w.last(900)
		w.crash()
		w.other, w.backAt = nil, w.now
		w.note("the controller was away")
	case n == 56:
		w.setClock()
	case n > 56 && n < 60 && !w.friendly:
		p.withheld = !p.withheld
		w.note("the change of %s waits for an approval: %t", p.name, p.withheld)
	case n > 59 && n < 62 && w.shape.kind != daemonSet:
		w.scale(p)
	case n > 61 && n < 64 && p.exists: // a hotfix
		p.edited, p.revision, p.loose = p.named(), fmt.Sprint("edit", w.unique()), true
		if !w.friendly && w.IntN(2) == 0 {
			p.fate[p.revision] = dead
		}
		w.note("%s is edited", p.name)
	}
}

// scale has an autoscaler, or the template for all sites, change the replicas.
func (w *world) scale(p *place) {
	of, to := []*place{p}, 1+w.IntN(3)
	if w.IntN(2) == 0 {
		of = w.places
	}
	for _, p := range of {
		p.base, p.replicas, p.scaled, p.loose = min(p.base, to), to, p.scaled || p.replicas != to, true
		w.prove(p, 0)
	}
	w.note("%d sites are scaled to %d, %s among them", len(of), to, p.name)
}

// setClock has somebody set the controller's clock.
func (w *world) setClock() {
	by := time.Duration(w.IntN(10*60*60)-5*60*60) * time.Second
	if w.skew != 0 && w.IntN(2) == 0 {
		by = -w.skew
	}
	if w.in.Followed == nil { // a process cannot tell what was before its first pass from a long absence
		by = min(by, -by)
	}
	w.skew, w.in.Leap = w.skew+by, w.in.Leap+by
	w.leapt, w.other = true, nil
	w.note("the controller's clock was set by %s", by)
}

// clock is what the controller's clock shows.
func (w *world) clock() time.Time { return w.now.Add(w.skew) }

// decide is a person who answers what the status asks.
func (w *world) decide() {
	status := w.in.Status
	if status == nil || w.in.Update != w.in.Revision {
		return
	}
	switch {
	case status.Awaits != "" && w.in.Approved != status.Awaits:
		w.in.Approved = status.Awaits
		w.note("approved %s", status.Awaits)
		if strings.Contains(status.Awaits, "/silent-") {
			for _, of := range status.Sites {
				if p := w.find(of.Name); of.State == v1.RolloutSiteSuspect && p != nil {
					p.loose, p.excused = true, w.attempt
				}
			}
			for wave := range w.in.Rollout.Waves {
				if w.in.Rollout.Waves[wave].Name == status.Wave {
					w.excuse(wave)
				}
			}
			return
		}
		w.approved[status.Wave] = true
	case status.HaltTime != nil:
		w.in.Resumed = status.HaltTime.UTC().Format(time.RFC3339)
		if status.HaltReason == v1.HaltFailures {
			for name := range w.failed() {
				w.find(name).accepted = true
			}
		}
		w.note("resumed")
	}
}

// excuse is that the silent sites of a wave keep nobody.
func (w *world) excuse(wave int) {
	for _, p := range w.sitesOf(wave) {
		p.loose = p.loose || !p.heard()
	}
}

func (w *world) last(seconds int) {
	for range seconds {
		w.now = w.now.Add(time.Second)
		for _, p := range w.places {
			w.live(p)
		}
	}
}

// settle has nothing happen any more but that people answer, and expects that a change that works completes.
func (w *world) settle() {
	w.in.Rollout = w.in.Rollout.DeepCopy()
	w.in.Rollout.Paused = false
	if w.now.Before(w.muteUntil) {
		w.muteUntil = w.now
	}
	for _, p := range w.places {
		w.hear(p)
		p.loose = p.loose || p.idle || p.withheld
		p.idle, p.away, p.withheld = false, false, false
		for _, n := range p.nodes {
			w.setTaint(p, n, false)
		}
		p.held = p.held && p.exists && w.far // nobody waits for those
		if !w.friendly {
			if p.fate[p.revision] != works || !p.allWork() {
				p.mendedAt = w.now
			}
			clear(p.fate)
			clear(p.badCheck)
			p.loose = true
		}
	}
	for range 1500 {
		w.last(5)
		w.pass(-1)
		if w.in.Status.Phase == v1.RolloutComplete && w.in.Update == w.in.Revision {
			return
		}
		if !w.friendly {
			w.decide()
		}
	}
	w.blame("not complete: %s %q %+v", w.in.Status.Phase, w.in.Status.Message, w.in.Status.Sites)
}

// judged plays a history in a world, and returns what was wrong; empty if nothing was.
func (w *world) judged(history func()) (wrong string, log []string) {
	defer func() {
		switch found := recover().(type) {
		case nil:
		case verdict:
			wrong, log = string(found), w.log
		default: // the plan's
			wrong, log = fmt.Sprintf("panic: %v\n%s", found, debug.Stack()), w.log
		}
	}()
	history()
	w.settle()
	return "", nil
}

// play is a long history of random events.
func (w *world) play() {
	for step := range 400 {
		w.last(1 + w.IntN(8))
		if w.in.Status != nil && step > 20 && (!w.quiet || w.IntN(10) == 0) {
			w.happen()
		}
		if step == 20 {
			w.revise()
		}
		stopped := -1
		if w.IntN(w.rare) == 0 {
			stopped = w.IntN(len(w.places) + 1)
		}
		w.refused = w.IntN(20) == 0
		if w.pass(stopped); w.other != nil && w.IntN(2) == 0 {
			w.passOfAnother()
		}
	}
	w.refused = false
	switch {
	case w.friendly:
	case w.IntN(3) == 0 && w.in.Current != "" && w.in.Current != w.in.Revision:
		w.in.Revision = w.in.Current
		delete(w.shape.partition, w.in.Revision)
	default:
		w.revise()
		delete(w.shape.partition, w.in.Revision)
	}
}

// TestJudge plays histories of fleets whose truth the judge knows. It looks at what happens to sites, and counts shares
// and waves itself: nobody begins beyond the places of a wave, or before every earlier wave has passed by true proof or
// by a person; no site gets what is neither the spec's nor what ran everywhere; complete is complete; silence fails
// nobody; and a change that works completes, in friendly worlds without a person.
func TestJudge(t *testing.T) {
	for i, found := uint64(0), 0; i < uint64(*judgeWorlds) && found < 10; i++ {
		w := newWorld(*judgeSeed + i)
		wrong, log := w.judged(w.play)
		if wrong == "" {
			continue
		}
		if found++; found == 1 {
			t.Log(strings.Join(log[max(0, len(log)-60):], "\n"))
		}
		t.Errorf("-rollout.seed=%d -rollout.worlds=1: %s", *judgeSeed+i, wrong)
	}
}

// kinds are the numbers of events, one of each kind: see occur. crash is a controller that ends before its first write.
var kinds = []int{0, 5, 7, 9, 11, 15, 23, 24, 25, 26, 27, 50, 55, 56, 57, 60, 62, crash}

const crash = -1

// smallWorld has two waves of one site. Its change is that of a fate at the first site, and works at the other.
func smallWorld(of fate, on v1.OnFailure) *world {
	w := &world{
		Rand: rand.New(rand.NewPCG(1, 7)), now: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC),
		over: map[string]bool{}, approved: map[string]bool{}, unheard: map[time.Time]time.Duration{},
		shape: shape{nodes: 1, replicas: 1},
	}
	w.shape.partition = map[string]int{}
	spec := &v1.Rollout{OnFailure: on}
	for i := range 2 {
		spec.Waves = append(spec.Waves, v1.Wave{
			Name: fmt.Sprint("wave", i), Sites: &v1.SiteSelector{Names: []string{"x"}},
			Soak: &metav1.Duration{Duration: soakTime},
		})
		w.join(i)
	}
	w.in = rollout.Input{Rollout: spec, Deadline: deadline, Revision: "r0"}
	w.steps(20)
	w.revise()
	for _, p := range w.places {
		clear(p.fate)
		clear(p.badCheck)
	}
	w.places[0].fate[w.in.Revision] = of
	return w
}

// steps has so many reconciliations, one each five seconds.
func (w *world) steps(n int) {
	for range n {
		w.last(5)
		w.pass(-1)
	}
}

// TestEveryHistory plays all histories of small worlds in which a number of events follow each other, each of any kind
// and at either site: one while the first site soaks, one while the second one does, and one when it is complete.
func TestEveryHistory(t *testing.T) {
	choices := 2 * len(kinds)
	histories := 1
	for range *judgeDepth {
		histories *= choices
	}
	found := 0
	for _, of := range []fate{works, dead} {
		for history := range histories {
			w := smallWorld(of, v1.OnFailureHalt)
			told := ""
			wrong, log := w.judged(func() {
				for rest, i := history, 0; i < *judgeDepth; rest, i = rest/choices, i+1 {
					n, p := kinds[rest%choices/2], w.places[rest%2]
					told += fmt.Sprint(" ", n, "@", p.name)
					if w.steps(14 * (i + 1)); n == crash {
						w.pass(0)
						continue
					}
					w.occur(p, n)
				}
			})
			if wrong == "" {
				continue
			}
			if found++; found == 1 {
				t.Log(strings.Join(log[max(0, len(log)-60):], "\n"))
			}
			if t.Errorf("fate %d, events%s: %s", of, told, wrong); found == 10 {
				return
			}
		}
	}
}
