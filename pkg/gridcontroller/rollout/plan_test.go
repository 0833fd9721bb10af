package rollout

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/gridrevision"
)

var (
	runs = flag.Int("rollout.runs", 150, "random histories of TestHistories")
	seed = flag.Uint64("rollout.seed", 1, "seed of the first of them")
)

// world is a grid's units, and what was told of its rollout.
type world struct {
	*testing.T
	rand *rand.Rand
	in   Input
	// bad are the revisions with which some units fail.
	bad map[string]bool
	// settled is when the units of a wave were first seen to be ready with the revision, by the wave's name; approved
	// are the approvals that were given.
	settled  map[string]time.Time
	approved map[string]bool
	// revisions counts those that were made.
	revisions int
	log       []string
}

func newWorld(t *testing.T, seed uint64) *world {
	t.Helper()
	w := &world{T: t, rand: rand.New(rand.NewPCG(seed, 0)), bad: map[string]bool{}}
	spec := &v1.Rollout{
		MaxFailures: w.rand.Int32N(3), OnFailure: v1.OnFailureHalt, Unreachable: v1.UnreachableDefer,
	}
	if w.rand.IntN(2) == 0 {
		spec.OnFailure = v1.OnFailureRollback
	}
	if w.rand.IntN(4) == 0 {
		spec.Unreachable = v1.UnreachableWait
	}
	for i := range w.rand.IntN(4) {
		wave := v1.Wave{Name: fmt.Sprintf("wave%d", i)}
		if w.rand.IntN(2) == 0 {
			wave.MaxUnavailable = ptr.To(intstr.FromInt32(1 + w.rand.Int32N(3)))
		}
		if w.rand.IntN(3) == 0 {
			wave.Soak = &metav1.Duration{Duration: time.Minute}
		}
		if w.rand.IntN(3) == 0 {
			wave.Approval = v1.ApprovalManual
		}
		spec.Waves = append(spec.Waves, wave)
	}
	for i := range spec.Waves {
		if i < len(spec.Waves)-1 || w.rand.IntN(2) == 0 { // the last one may leave them out
			spec.Waves[i].Units = &v1.UnitSelector{Names: []string{spec.Waves[i].Name}}
		}
	}
	w.in = Input{Rollout: spec, Now: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)}
	for range 1 + w.rand.IntN(12) {
		w.addUnit()
	}
	w.revise()
	return w
}

func (w *world) addUnit() {
	waves := len(w.in.Rollout.Waves)
	wave := w.rand.IntN(waves + 1)
	if wave == waves && waves > 0 && w.in.Rollout.Waves[waves-1].Units == nil {
		wave--
	}
	w.in.Units = append(w.in.Units, Unit{Name: fmt.Sprintf("unit%02d", len(w.in.Units)), Wave: wave})
}

// revise makes a new revision.
func (w *world) revise() {
	w.revisions++
	w.in.Revision = fmt.Sprintf("r%d", w.revisions)
	w.bad[w.in.Revision] = w.revisions > 1 && w.rand.IntN(3) == 0
	w.anew()
}

func (w *world) anew() {
	w.settled, w.approved = map[string]time.Time{}, map[string]bool{}
}

func (w *world) note(format string, args ...any) { w.log = append(w.log, fmt.Sprintf(format, args...)) }

func (w *world) fail(format string, args ...any) {
	w.Helper()
	for _, line := range w.log[max(0, len(w.log)-60):] {
		w.Log(line)
	}
	w.Fatalf(format, args...)
}

// absent is what the rule says of units that are not waited for.
func (w *world) absent(u Unit) bool {
	return u.Held || (u.Unreachable && w.in.Rollout.Unreachable == v1.UnreachableDefer)
}

// happen lets something happen to the units, or the grid.
func (w *world) happen() {
	i := w.rand.IntN(len(w.in.Units))
	u := &w.in.Units[i]
	switch n := w.rand.IntN(100); {
	case n < 50: // the workload gets on
		if !u.Exists || u.Unreachable || u.Ready {
			return
		}
		if w.bad[u.Revision] && i%2 == 0 {
			u.Failed, u.Tried, u.Why = true, u.Revision, "ImagePullBackOff"
		} else {
			u.Ready, u.Failed = true, false
		}
	case n < 60:
		u.Unreachable = !u.Unreachable
		if u.Unreachable {
			u.Ready = false
		}
	case n < 63:
		u.Held = !u.Held
	case n < 70:
		w.in.Now = w.in.Now.Add(time.Duration(w.rand.IntN(45000)) * time.Millisecond)
	case n < 74:
		if wave := w.in.Status.Wave; w.in.Status.Phase == v1.RolloutAwaitingApproval || w.rand.IntN(2) == 0 {
			w.in.Approved = gridrevision.ApprovalOf(w.in.Revision, wave)
		}
	case n < 77:
		if at := w.in.Status.HaltTime; at != nil {
			w.in.Resumed = at.UTC().Format(time.RFC3339)
		}
	case n < 80:
		w.in.Rollout.Paused = !w.in.Rollout.Paused
	case n < 83:
		w.revise()
	case n < 85: // an undo
		if to := fmt.Sprintf("r%d", 1+w.rand.IntN(w.revisions)); to != w.in.Revision {
			w.in.Revision = to
			w.anew()
		}
	case n < 88:
		w.addUnit()
	case n < 91: // a pod is lost
		u.Ready = false
	case n < 94: // the controller starts anew, and has to see again who has failed
		for i := range w.in.Units {
			w.in.Units[i].Failed = false
		}
	}
}

// look makes a plan, checks it, and does what it says. The status may not be written.
func (w *world) look() Plan {
	w.Helper()
	before := w.in.Status
	w.seeSettled()
	if a := w.in.Approved; a != "" {
		w.approved[a] = true
	}
	plan := New(w.in)
	if diff := cmp.Diff(plan, New(w.in)); diff != "" {
		w.fail("the same input gives another plan: %s", diff)
	}
	w.note("%s %s current %s: %s %q", w.in.Now.Format("15:04:05"), w.in.Revision, plan.Current, plan.Status.Phase,
		plan.Status.Message)
	w.check(before, plan)
	for i := range w.in.Units {
		u := &w.in.Units[i]
		to, ok := plan.Revisions[u.Name]
		if !ok || (u.Exists && to == u.Revision) || w.rand.IntN(10) == 0 {
			continue
		}
		w.note("  %s (wave %d): %s to %s", u.Name, u.Wave, u.Revision, to)
		u.Exists, u.Revision, u.Ready, u.Failed = true, to, false, false
	}
	// That the revision is another one is told before anything else can happen to it.
	if w.in.Update != w.in.Revision || w.rand.IntN(10) > 0 {
		w.in.Current, w.in.Update, w.in.Status = plan.Current, w.in.Revision, plan.Status
	}
	return plan
}

// TestUndoOfACanary: going back to what is proven waits for no soak and no approval if no later wave has changed.
func TestUndoOfACanary(t *testing.T) {
	t.Parallel()
	in := Input{
		Rollout: &v1.Rollout{Waves: []v1.Wave{
			{Name: "canary", Approval: v1.ApprovalManual, Soak: &metav1.Duration{Duration: time.Hour}}, {Name: "rest"},
		}},
		Units: []Unit{
			{Name: "lab", Exists: true, Revision: "old", Ready: true},
			{Name: "east", Wave: 1, Exists: true, Revision: "old", Ready: true},
		},
		Current: "old", Update: "new", Revision: "old", Status: &v1.RolloutStatus{Phase: v1.RolloutHalted},
		Now: time.Unix(0, 0),
	}
	if plan := New(in); plan.Status.Phase != v1.RolloutComplete {
		t.Errorf("got %+v", plan.Status)
	}
	in.Units[1].Revision = "new"
	in.Units[0].Revision = "new"
	if plan := New(in); plan.Status.Phase != v1.RolloutProgressing || plan.Revisions["lab"] != "old" ||
		plan.Revisions["east"] != "new" {
		t.Errorf("got %+v", plan)
	}
	in.Update, in.Status = in.Revision, New(in).Status
	in.Units[0].Revision = "old"
	if plan := New(in); plan.Status.Phase != v1.RolloutSoaking {
		t.Errorf("a later wave has to change: got %+v", plan.Status)
	}
	in.Units[1].Revision = "old"
	if plan := New(in); plan.Status.Phase != v1.RolloutComplete {
		t.Errorf("no later wave has to change: got %+v", plan.Status)
	}
}

// canary is a rollout of a wave and the rest, with one unit each, that has begun.
func canary(wave v1.Wave) Input {
	wave.Name = "canary"
	return Input{
		Rollout: &v1.Rollout{Waves: []v1.Wave{wave, {Name: "rest"}}},
		Units: []Unit{
			{Name: "lab", Exists: true, Revision: "old", Ready: true},
			{Name: "east", Wave: 1, Exists: true, Revision: "old", Ready: true},
		},
		Current: "old", Update: "new", Revision: "new", Status: &v1.RolloutStatus{Phase: v1.RolloutProgressing},
		Now: time.Unix(1000, 0),
	}
}

// TestDeletedWhileHalted: a workload that is deleted while the rollout has halted comes back as it was before the
// rollout.
func TestDeletedWhileHalted(t *testing.T) {
	t.Parallel()
	in := canary(v1.Wave{})
	in.Status.Phase = v1.RolloutHalted
	in.Units[0].Revision = "new"
	if plan := New(in); plan.Revisions["lab"] != "new" {
		t.Errorf("it is to keep what it has: %+v", plan)
	}
	in.Units[0].Exists, in.Units[0].Revision = false, ""
	if plan := New(in); plan.Revisions["lab"] != "old" || plan.Status.Phase != v1.RolloutHalted {
		t.Errorf("got %+v", plan)
	}
}

// TestWaveWithoutUnits: what comes after a wave whose selector is probably wrong waits for a person, and not for the
// wave's soak time.
func TestWaveWithoutUnits(t *testing.T) {
	t.Parallel()
	in := canary(v1.Wave{
		Units: &v1.UnitSelector{Names: []string{"lba"}}, Soak: &metav1.Duration{Duration: time.Hour},
	})
	in.Units[0].Wave = 1
	plan := New(in)
	if plan.Status.Phase != v1.RolloutAwaitingApproval || plan.Status.Wave != "canary" ||
		!strings.Contains(plan.Status.Message, "the wave's units select none") || plan.Revisions["lab"] != "old" {
		t.Errorf("got %+v, %v", plan.Status, plan.Revisions)
	}
	in.Approved = gridrevision.ApprovalOf("new", "canary")
	if plan := New(in); plan.Status.Phase != v1.RolloutProgressing || plan.Revisions["lab"] != "new" {
		t.Errorf("approved: got %+v, %v", plan.Status, plan.Revisions)
	}
	in.Approved, in.Rollout.Waves[0].Units = "", nil
	if plan := New(in); plan.Status.Wave != "rest" {
		t.Errorf("the units of all others may be none: got %+v", plan.Status)
	}
}

// TestApprovals: an approval is good for one revision and one wave. One that is for another is named.
func TestApprovals(t *testing.T) {
	t.Parallel()
	for approved, want := range map[string]v1.RolloutPhase{
		"":                      v1.RolloutAwaitingApproval,
		"new/canary":            v1.RolloutProgressing,
		"nwe/canary":            v1.RolloutAwaitingApproval,
		"new/canaries":          v1.RolloutAwaitingApproval,
		"old/canary":            v1.RolloutAwaitingApproval,
		"old/canary,new/canary": v1.RolloutProgressing,
		"new/rest, new/canary":  v1.RolloutProgressing,
		"new":                   v1.RolloutAwaitingApproval,
	} {
		in := canary(v1.Wave{Approval: v1.ApprovalManual})
		in.Units[0].Revision, in.Approved = "new", approved
		plan := New(in)
		if plan.Status.Phase != want {
			t.Errorf("%q: got phase %s, want %s", approved, plan.Status.Phase, want)
		}
		says := strings.Contains(plan.Status.Message, fmt.Sprintf("%q", approved))
		if waits := want == v1.RolloutAwaitingApproval && approved != ""; says != waits {
			t.Errorf("%q: the message is %q", approved, plan.Status.Message)
		}
	}
}

// TestAtOnce: all units get the revision, whatever fails. A pod that is lost afterwards begins no rollout.
func TestAtOnce(t *testing.T) {
	t.Parallel()
	in := canary(v1.Wave{Approval: v1.ApprovalManual, Soak: &metav1.Duration{Duration: time.Hour}})
	in.AtOnce = "new"
	plan := New(in)
	if plan.Status.Phase != v1.RolloutProgressing || plan.Revisions["lab"] != "new" || plan.Revisions["east"] != "new" {
		t.Fatalf("got %+v", plan)
	}
	in.Units[0].Revision, in.Units[1].Revision, in.Units[1].Ready = "new", "new", false
	in.Units[1].Failed, in.Units[1].Tried = true, "new"
	in.Status = New(in).Status
	if plan = New(in); plan.Status.Phase != v1.RolloutComplete || plan.Current != "new" {
		t.Fatalf("got %+v", plan)
	}
	in.Status, in.Current = plan.Status, plan.Current
	in.Units[0].Ready = false
	if plan = New(in); plan.Status.Phase != v1.RolloutComplete {
		t.Errorf("a pod is lost: got %+v", plan.Status)
	}
}

// TestHaltAfterResume: to resume one halt is not to resume the next one, even within the same second.
func TestHaltAfterResume(t *testing.T) {
	t.Parallel()
	in := canary(v1.Wave{})
	in.Units[0] = Unit{Name: "lab", Exists: true, Revision: "new", Failed: true, Tried: "new", Why: "no"}
	in.Status = New(in).Status
	if in.Status.Phase != v1.RolloutHalted {
		t.Fatalf("got %+v", in.Status)
	}
	in.Resumed = in.Status.HaltTime.UTC().Format(time.RFC3339)
	in.Status = New(in).Status
	if in.Status.Phase != v1.RolloutProgressing || in.Status.Tolerated != 1 {
		t.Fatalf("resumed: got %+v", in.Status)
	}
	in.Units[1] = Unit{Name: "east", Wave: 1, Exists: true, Revision: "new", Failed: true, Tried: "new", Why: "no"}
	for range 3 {
		in.Status = New(in).Status
		if in.Status.Phase != v1.RolloutHalted {
			t.Fatalf("got %+v", in.Status)
		}
	}
}

// seeSettled notes which waves have nothing left to wait for.
func (w *world) seeSettled() {
	for wave := range len(w.in.Rollout.Waves) + 1 {
		settled := true
		for _, u := range w.in.Units {
			ready := u.Exists && u.Revision == w.in.Revision && u.Ready
			failed := u.Failed && u.Tried == w.in.Revision
			settled = settled && (u.Wave != wave || ready || failed || w.absent(u))
		}
		if name := w.nameOf(wave); settled && w.settled[name].IsZero() {
			w.settled[name] = w.in.Now
		}
	}
}

func (w *world) nameOf(wave int) string {
	if wave < len(w.in.Rollout.Waves) {
		return w.in.Rollout.Waves[wave].Name
	}
	return ""
}

// check holds a plan against the rules.
func (w *world) check(before *v1.RolloutStatus, plan Plan) {
	w.Helper()
	in := w.in
	started := map[int]int{}
	for _, u := range in.Units {
		to, ok := plan.Revisions[u.Name]
		switch {
		case !ok && !u.Held && u.Exists && u.Revision != "":
			w.fail("%s has no revision", u.Name)
		case ok && u.Held:
			w.fail("%s is held, and changed", u.Name)
		case !ok, u.Exists && to == u.Revision:
		case to == in.Revision && plan.Current != in.Revision && u.Unreachable && u.Exists:
			w.fail("%s cannot be reached, and is changed", u.Name)
		case to == in.Revision:
			if u.Exists || plan.Current != in.Revision {
				started[u.Wave]++
			}
		case to == plan.Current && (!u.Exists || plan.Status.HaltTime != nil):
		default:
			w.fail("%s goes from %s to %s", u.Name, u.Revision, to)
		}
	}
	if len(started) == 0 {
		return
	}
	stopped := []v1.RolloutPhase{v1.RolloutHalted, v1.RolloutRollingBack, v1.RolloutRolledBack}
	if in.Rollout.Paused || slices.Contains(stopped, plan.Status.Phase) {
		w.fail("units are started in phase %s, paused %v", plan.Status.Phase, in.Rollout.Paused)
	}
	complete := before != nil && in.Update == in.Revision && before.Phase == v1.RolloutComplete
	if failed := w.failed(); !complete && failed > int(in.Rollout.MaxFailures+plan.Status.Tolerated) {
		w.fail("units are started though %d have failed", failed)
	}
	for wave := range started {
		w.checkPlaces(wave, plan)
		for earlier := range wave {
			if complete || in.Current == in.Revision {
				break
			}
			w.checkDone(earlier)
		}
	}
}

// failed counts the units that have failed with the revision.
func (w *world) failed() int {
	failed := 0
	for _, u := range w.in.Units {
		if u.Failed && u.Tried == w.in.Revision && !u.Held && !u.Unreachable {
			failed++
		}
	}
	return failed
}

// checkDone fails the test if a wave has begun before this one was done.
func (w *world) checkDone(wave int) {
	w.Helper()
	name := w.nameOf(wave)
	at := w.settled[name]
	if at.IsZero() {
		w.fail("a wave has begun before the units of %q were ready", name)
	}
	spec := v1.Wave{}
	if wave < len(w.in.Rollout.Waves) {
		spec = w.in.Rollout.Waves[wave]
	}
	empty := spec.Units != nil && !slices.ContainsFunc(w.in.Units, func(u Unit) bool { return u.Wave == wave })
	if spec.Soak != nil && w.in.Now.Before(at.Add(spec.Soak.Duration)) && !empty {
		w.fail("a wave has begun before %q has soaked", name)
	}
	manual := spec.Approval == v1.ApprovalManual || empty
	if manual && !w.approved[gridrevision.ApprovalOf(w.in.Revision, name)] {
		w.fail("a wave has begun before %q was approved of", name)
	}
}

// checkPlaces fails the test if more units of a wave than may be are not ready with the revision.
func (w *world) checkPlaces(wave int, plan Plan) {
	w.Helper()
	units, unready := 0, 0
	done := slices.ContainsFunc(plan.Status.Waves, func(s v1.WaveStatus) bool {
		return s.Name == w.nameOf(wave) && s.State == v1.WaveDone
	})
	for _, u := range w.in.Units {
		if u.Wave != wave {
			continue
		}
		units++
		failed := u.Failed && u.Tried == w.in.Revision
		if !u.Exists && plan.Current == w.in.Revision {
			continue // a new unit gets what is proven
		}
		ready := u.Ready && u.Exists && u.Revision == w.in.Revision
		if plan.Revisions[u.Name] == w.in.Revision && !ready && !w.absent(u) && (!failed || !done) {
			unready++
		}
	}
	limit := max(units/4, 1)
	if wave < len(w.in.Rollout.Waves) && w.in.Rollout.Waves[wave].MaxUnavailable != nil {
		limit = w.in.Rollout.Waves[wave].MaxUnavailable.IntValue()
	}
	if unready > limit+int(plan.Status.Tolerated) {
		w.fail("%d units of wave %q are not ready, and %d may be", unready, w.nameOf(wave), limit)
	}
}

// TestHistories lets random things happen to random grids, checks each plan against the rules, and sees that in the
// end, when all goes well again, every unit gets the revision.
func TestHistories(t *testing.T) {
	t.Parallel()
	phases := map[v1.RolloutPhase]int{}
	for n := range *runs {
		w := newWorld(t, *seed+uint64(n))
		w.look()
		for w.in.Status == nil {
			w.look()
		}
		for range 300 {
			w.happen()
			phases[w.look().Status.Phase]++
		}
		w.mend(n)
	}
	for _, phase := range []v1.RolloutPhase{
		v1.RolloutProgressing, v1.RolloutSoaking, v1.RolloutAwaitingApproval, v1.RolloutPaused, v1.RolloutHalted,
		v1.RolloutRollingBack, v1.RolloutRolledBack, v1.RolloutComplete,
	} {
		if phases[phase] == 0 {
			t.Errorf("no history came to phase %s", phase)
		}
	}
}

// mend lets all go well.
func (w *world) mend(n int) {
	w.Helper()
	w.revise()
	w.bad[w.in.Revision] = false
	w.in.Rollout.Paused = false
	for range 400 {
		for i := range w.in.Units {
			u := &w.in.Units[i]
			u.Unreachable, u.Held, u.Ready, u.Failed = false, false, u.Exists, false
		}
		w.in.Now = w.in.Now.Add(time.Minute)
		w.in.Approved = gridrevision.ApprovalOf(w.in.Revision, w.in.Status.Wave)
		w.look()
		behind := slices.ContainsFunc(w.in.Units, func(u Unit) bool { return u.Revision != w.in.Revision })
		if w.in.Status.Phase == v1.RolloutComplete && w.in.Update == w.in.Revision && !behind {
			return
		}
	}
	w.fail("history %d does not come to its end: %+v", n, w.in.Status)
}
