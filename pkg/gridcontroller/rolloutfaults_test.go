package gridcontroller

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
)

var (
	faultRuns = flag.Int("rollout.faults", 2, "random histories of TestRolloutWithFaults")
	faultSeed = flag.Uint64("rollout.faultseed", 1, "seed of the first of them")
)

// faulty is a cluster in which a grid of three waves is rolled out: workloads become ready one after the other, the
// controller restarts at any point, and requests fail, some after they have had their effect.
type faulty struct {
	*fixture
	rand *rand.Rand
	grid *v1.DeploymentGrid
	// waves has the sites of each wave, limit how many of each may be unready.
	waves [][]string
	limit int
	log   []string
}

func newFaulty(t *testing.T, seed uint64) *faulty {
	t.Helper()
	f := &faulty{
		rand: rand.New(rand.NewPCG(seed, 0)), limit: 1,
		waves: [][]string{{"lab"}, {"eu-1", "eu-2"}, {"us-1", "us-2"}},
	}
	sites := slices.Concat(f.waves...)
	f.fixture, f.grid = demo(t, sites, rollingIn(named("canary", "lab"), named("eu", "eu-*"), named("rest")))
	f.update(f.grid, func() { f.grid.Spec.ProgressDeadlineSeconds = ptr.To[int32](60) })
	f.completes(f.grid, sites...)
	f.took()
	return f
}

// fault is what an API server may answer.
func (f *faulty) fault(call string) error {
	of := schema.GroupResource{Resource: "things"}
	switch f.rand.IntN(4) {
	case 0:
		return apierrors.NewConflict(of, call, errBroken)
	case 1:
		return apierrors.NewTooManyRequests("busy", 1)
	case 2:
		return apierrors.NewInternalError(errBroken)
	default:
		return errors.New("connection reset by peer")
	}
}

// shake makes requests fail now and then; workloads whose template has changed begin again.
func (f *faulty) shake(often int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	fails := func(call string) error {
		if often > 0 && f.rand.IntN(often) == 0 {
			return f.fault(call)
		}
		return nil
	}
	f.fail, f.after = fails, fails
}

// happen lets something happen, and the controller look once.
func (f *faulty) happen() {
	f.Helper()
	for _, site := range slices.Concat(f.waves...) {
		d := f.deployment("demo-" + site)
		works := d.Spec.Template.Spec.Containers[0].Image != "broken" || site == "lab"
		if works && d.Status.ReadyReplicas == 0 && f.rand.IntN(2) == 0 {
			f.ready("demo", site)
		}
	}
	if f.rand.IntN(12) == 0 {
		f.restart()
		f.log = append(f.log, "the controller restarts")
	}
	f.step(time.Duration(f.rand.IntN(4000)) * time.Millisecond)
	f.look()
}

// look reconciles once. Errors are retried by the queue.
func (f *faulty) look() {
	if _, err := f.try(f.grid); err != nil {
		f.log = append(f.log, "error: "+err.Error())
	}
	f.get(f.grid)
	f.log = append(f.log, f.took()...)
	if r := f.grid.Status.Rollout; r != nil {
		f.log = append(f.log, fmt.Sprint(r.Phase, " ", r.Wave, " ", r.Message))
	}
}

// check holds the workloads against the rules: no more than the limit of a wave are unready with the image, and none
// has it while an earlier wave is not done.
func (f *faulty) check(image string) {
	f.Helper()
	earlier := true // all sites of earlier waves are ready with the image
	for i, sites := range f.waves {
		unready, with := 0, 0
		for _, site := range sites {
			d := f.deployment("demo-" + site)
			if d.Spec.Template.Spec.Containers[0].Image != image {
				continue
			}
			with++
			if d.Status.ReadyReplicas == 0 {
				unready++
			}
		}
		back := f.inPhase(v1.RolloutRollingBack)() || f.inPhase(v1.RolloutRolledBack)() // waves go back together
		if with > 0 && !earlier && !back {
			f.fatal("wave %d has begun before the one before was done", i)
		}
		if unready > f.limit {
			f.fatal("%d sites of wave %d are not ready with %s", unready, i, image)
		}
		earlier = with == len(sites) && unready == 0
	}
}

func (f *faulty) fatal(format string, args ...any) {
	f.Helper()
	for _, line := range f.log[max(0, len(f.log)-60):] {
		f.Log(line)
	}
	f.Fatalf(format, args...)
}

// until lets things happen until ok.
func (f *faulty) until(what, image string, ok func() bool) {
	f.Helper()
	for range 600 {
		if ok() {
			return
		}
		f.happen()
		f.check(image)
	}
	f.fatal("it does not come to this: %s: %+v", what, f.grid.Status.Rollout)
}

func (f *faulty) inPhase(phase v1.RolloutPhase) func() bool {
	return func() bool {
		s := f.grid.Status
		return s.Rollout != nil && s.Rollout.Phase == phase && s.ObservedGeneration == f.grid.Generation
	}
}

// TestRolloutWithFaults: whatever fails, and wherever the controller restarts, a change goes from wave to wave, one
// that fails halts or goes back, and what was once stopped is not started again.
func TestRolloutWithFaults(t *testing.T) {
	t.Parallel()
	for n := range *faultRuns {
		t.Run(fmt.Sprint("seed ", *faultSeed+uint64(n)), func(t *testing.T) {
			t.Parallel()
			f := newFaulty(t, *faultSeed+uint64(n))
			f.shake(5)
			change := func(image string, onFailure v1.OnFailure) {
				f.shake(0)
				f.update(f.grid, func() {
					f.grid.Spec.Template = raw(strings.ReplaceAll(other, "two", image))
					f.grid.Spec.Rollout.OnFailure = onFailure
				})
				f.shake(5)
				f.log = append(f.log, "the template is "+image)
			}
			change("good", v1.OnFailureHalt)
			f.until("complete", "good", f.inPhase(v1.RolloutComplete))

			change("broken", v1.OnFailureHalt)
			f.until("halted", "broken", f.inPhase(v1.RolloutHalted))
			for range 40 {
				f.happen()
				if f.image("demo-us-1") == "broken" || !f.inPhase(v1.RolloutHalted)() {
					f.fatal("it goes on by itself: %+v", f.grid.Status.Rollout)
				}
			}
			change("mended", v1.OnFailureHalt)
			f.until("complete", "mended", f.inPhase(v1.RolloutComplete))

			change("broken", v1.OnFailureRollback)
			stopped := false
			f.until("gone back", "broken", func() bool {
				broken := f.image("demo-lab") == "broken"
				if stopped && broken {
					f.fatal("what has gone back is started again")
				}
				stopped = stopped || (f.image("demo-lab") == "mended" && f.inPhase(v1.RolloutRollingBack)())
				return f.inPhase(v1.RolloutRolledBack)()
			})
			change("last", v1.OnFailureHalt)
			f.until("complete", "last", f.inPhase(v1.RolloutComplete))
			f.shake(0)
			for range 5 {
				f.pass(f.grid)
			}
			for _, site := range slices.Concat(f.waves...) {
				f.expectImages("demo", map[string]string{site: "last"})
			}
		})
	}
}

// TestRevisionsOfADeletedGrid: ControllerRevisions that a deleted grid of the same name has left orphaned are the new
// grid's, as its workloads are; what somebody else owns is a conflict.
func TestRevisionsOfADeletedGrid(t *testing.T) {
	t.Parallel()
	f, grid := demo(t, in("east"), rollingIn(named("all")))
	f.passes(grid)
	revision := &appsv1.ControllerRevision{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Name: grid.Status.UpdateRevision,
	}}
	own := func(owners ...metav1.OwnerReference) {
		f.get(revision)
		revision.OwnerReferences = owners
		if err := f.client.Update(f.Context(), revision); err != nil {
			t.Fatal(err)
		}
		f.restart()
	}
	own() // as the garbage collector does for --cascade=orphan
	f.passes(grid)
	f.get(revision)
	if len(revision.OwnerReferences) != 1 || revision.OwnerReferences[0].UID != grid.UID {
		t.Errorf("got the owners %+v", revision.OwnerReferences)
	}
	own(metav1.OwnerReference{
		APIVersion: "apps/v1", Kind: "StatefulSet", Name: "theirs", UID: "theirs", Controller: ptr.To(true),
	})
	f.tries(grid)
	f.expect(grid, "Degraded=True NameConflict", "ControllerRevision "+revision.Name)
	f.expectEvent(f.told(), v1.ReasonNameConflict, revision.Name)
}

// TestRevisionsForbidden: a controller whose role has no right to ControllerRevisions says so in a condition, and keeps
// what runs.
func TestRevisionsForbidden(t *testing.T) {
	t.Parallel()
	f, grid := demo(t, in("east"))
	f.passes(grid)
	f.failOn("list revisions", apierrors.NewForbidden(
		schema.GroupResource{Group: "apps", Resource: "controllerrevisions"}, "", errors.New("no right")))
	f.update(grid, func() { grid.Spec.Rollout, grid.Spec.Template = inWaves(named("all")), raw(other) })
	f.tries(grid)
	f.expect(grid, "Degraded=True SyncFailed", "controllerrevisions", "no right")
	f.expectImages("demo", map[string]string{"east": "i"})
	f.failing(nil)
	f.tries(grid)
	f.expectWell(grid)
}

// TestRollbackIsWrittenFirst: sites go back only once the status says so. A controller that restarts before would
// take them for sites that are still to get the change.
func TestRollbackIsWrittenFirst(t *testing.T) {
	t.Parallel()
	f, grid := demo(t, in("east"), rollingIn(named("all")), stallsSoon, func(grid *v1.DeploymentGrid) {
		grid.Spec.Rollout.OnFailure = v1.OnFailureRollback
	})
	f.rolls(grid, "east")
	f.template(grid, other)
	f.expectImages("demo", map[string]string{"east": "two"})
	f.failOn("status ", errBroken)
	f.step(40 * time.Second)
	for range 3 {
		f.tries(grid)
		f.expectImages("demo", map[string]string{"east": "two"})
	}
	f.restart()
	f.failing(nil)
	f.tries(grid)
	f.step(40 * time.Second) // the deadline does not run while nobody follows the rollout
	f.tries(grid)
	f.rolls(grid, "east")
	f.expectImages("demo", map[string]string{"east": "i"})
	f.expectPhase(grid, v1.RolloutRolledBack, "1 failed, 0 allowed")
}

// TestProgressIsOfOneRevision: a site that made no progress with one revision has the whole deadline with the next,
// also if the controller restarts before it has written what it did.
func TestProgressIsOfOneRevision(t *testing.T) {
	t.Parallel()
	for name, spec := range map[string]*v1.Rollout{"with a rollout": inWaves(named("all")), "without": nil} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, grid := demo(t, in("east"), stallsSoon, func(grid *v1.DeploymentGrid) { grid.Spec.Rollout = spec })
			f.rolls(grid, "east")
			f.template(grid, strings.ReplaceAll(other, "two", "broken"))
			f.step(40 * time.Second)
			f.passes(grid)
			f.expectSite(grid, "east", v1.SiteStalled)
			f.update(grid, func() { grid.Spec.Template = raw(other) })
			written := spec == nil // with a rollout the site is listed first
			f.failing(func(call string) error {
				if strings.HasPrefix(call, "status ") && written {
					return errBroken
				}
				written = written || strings.HasPrefix(call, "status ")
				return nil
			})
			f.tries(grid)
			f.expectImages("demo", map[string]string{"east": "two"})
			f.restart()
			f.failing(nil)
			f.passes(grid)
			f.expectSite(grid, "east", v1.SiteProgressing)
			if spec != nil {
				f.expectPhase(grid, v1.RolloutProgressing, "")
			}
			f.step(40 * time.Second)
			f.passes(grid)
			f.expectSite(grid, "east", v1.SiteStalled)
		})
	}
}
