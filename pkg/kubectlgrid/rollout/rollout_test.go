package rollout

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/gridcontroller/gridrevision"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/cluster"
)

const (
	one = `{"template":{"spec":{"containers":[{"name":"c","image":"one"}]}}}`
	two = `{"template":{"spec":{"containers":[{"name":"c","image":"two"}]}}}`
)

// testGrid has a grid whose template is two, and whose history has both.
func testGrid(t *testing.T) (*Grid, client.Client) {
	t.Helper()
	all := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{scheme.AddToScheme, v1.AddToScheme} {
		if err := add(all); err != nil {
			t.Fatal(err)
		}
	}
	grid := &v1.DeploymentGrid{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "echo", UID: "u1"},
		Spec: v1.WorkloadGridSpec{
			GridUniqKey: "zone1", Template: v1.Template{Raw: []byte(one)},
			Rollout: &v1.Rollout{Waves: []v1.Wave{{Name: "lab", Approval: v1.ApprovalManual, Sites: &v1.SiteSelector{Names: []string{"lab"}}}, {Name: "rest"}}},
		},
	}
	objects := []client.Object{}
	for i, template := range []string{one, two} {
		grid.Spec.Template.Raw = []byte(template)
		revision, err := gridrevision.Of("DeploymentGrid", grid)
		if err != nil {
			t.Fatal(err)
		}
		revision.Revision = int64(i + 1)
		objects = append(objects, revision)
		grid.Status.CurrentRevision, grid.Status.UpdateRevision = grid.Status.UpdateRevision, revision.Name
	}
	grid.Status.Rollout = &v1.RolloutStatus{
		Phase: v1.RolloutAwaitingApproval, Wave: "lab", Message: "waits", Awaits: "echo-2/lab/1000",
		Waves: []v1.WaveStatus{
			{Name: "lab", State: v1.WaveAwaitingApproval, Sites: 1, Updated: 1, Ready: 1, Proven: 1, Suspects: 2},
			{Name: "rest", State: v1.WavePending, Sites: 3},
		},
	}
	api := fake.NewClientBuilder().WithScheme(all).WithObjects(append(objects, grid)...).WithStatusSubresource(grid).
		WithInterceptorFuncs(interceptor.Funcs{Create: whoIsJane}).Build()
	connected := cluster.Cluster{API: api, Watcher: api}
	g, err := Get(t.Context(), connected, "shop", Name{v1.DeploymentGridKind, "echo"})
	if err != nil {
		t.Fatal(err)
	}
	return g, api
}

// whoIsJane answers who asks.
func whoIsJane(ctx context.Context, api client.WithWatch, o client.Object, options ...client.CreateOption) error {
	if review, ok := o.(*authenticationv1.SelfSubjectReview); ok {
		review.Status.UserInfo.Username = "jane"
		return nil
	}
	return api.Create(ctx, o, options...)
}

// becomes changes the status of the grid, as the controller does.
func (g *Grid) becomes(t *testing.T, change func(*v1.WorkloadGridStatus)) {
	t.Helper()
	if err := g.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	change(g.status())
	if err := g.cluster.API.Status().Update(t.Context(), g.Object); err != nil {
		t.Fatal(err)
	}
}

// state is the state of the rollout as it is now.
func (g *Grid) state(t *testing.T) State {
	t.Helper()
	if err := g.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	state, err := g.State()
	if err != nil {
		t.Fatal(err)
	}
	return state
}

func (g *Grid) expect(t *testing.T, what string, ok func(*v1.DeploymentGrid) bool) {
	t.Helper()
	if err := g.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	if grid, is := g.Object.(*v1.DeploymentGrid); !is || !ok(grid) {
		t.Errorf("%s: got %+v", what, g.Object)
	}
}

// TestNothingIsApplied: the controller refuses the present spec as a whole, so what is complete is an earlier one.
func TestNothingIsApplied(t *testing.T) {
	t.Parallel()
	g, _ := testGrid(t)
	for _, reason := range []string{v1.ReasonNotAllowed, v1.ReasonInvalidKey, v1.ReasonMassRemoval} {
		g.becomes(t, func(s *v1.WorkloadGridStatus) {
			s.Rollout.Phase = v1.RolloutComplete
			s.Conditions = []metav1.Condition{{
				Type: v1.ConditionReady, Status: metav1.ConditionFalse, Reason: reason, Message: "nothing is changed",
			}}
		})
		state := g.state(t)
		if err := state.Err(); state.Done || !errors.Is(err, ErrPerson) || !strings.Contains(err.Error(), reason) {
			t.Errorf("%s: done: %t, %v", reason, state.Done, err)
		}
	}
}

func TestVerbs(t *testing.T) {
	t.Parallel()
	g, _ := testGrid(t)
	ctx := t.Context()
	if _, err := g.Resume(ctx); err == nil {
		t.Error("what is not paused was resumed")
	}
	if err := g.Pause(ctx); err != nil {
		t.Fatal(err)
	}
	g.expect(t, "paused", func(o *v1.DeploymentGrid) bool { return o.Spec.Rollout.Paused })
	if err := g.Pause(ctx); err == nil {
		t.Error("it was paused twice")
	}
	if still, err := g.Resume(ctx); err != nil || still != "" {
		t.Fatal(still, err)
	}
	g.expect(t, "resumed", func(o *v1.DeploymentGrid) bool {
		return !o.Spec.Rollout.Paused && o.Annotations[v1.AnnotationApprovedBy] == ""
	})
	done, err := g.Restart(ctx, time.Unix(0, 0).UTC(), func(site, _ string) { t.Errorf("site %s restarts past the waves", site) })
	if err != nil || !strings.HasPrefix(done, "restarts; to follow it") {
		t.Fatal(done, err)
	}
	g.expect(t, "restarted", func(o *v1.DeploymentGrid) bool {
		return strings.Contains(string(o.Spec.Template.Raw), `"kubectl.kubernetes.io/restartedAt":"1970-01-01T00:00:00Z"`)
	})
}

// TestApprove: what the controller waits for is copied, with the name of who approves, and nothing else is approved.
func TestApprove(t *testing.T) {
	t.Parallel()
	g, _ := testGrid(t)
	ctx := t.Context()
	if _, err := g.Approve(ctx, "rest"); err == nil || !strings.Contains(err.Error(), `"lab" does`) {
		t.Errorf("a wave that does not wait: got %v", err)
	}
	if state := g.state(t); !state.Waits || state.Command != "kubectl grid rollout approve dg/echo -n shop" {
		t.Errorf("got %+v", state)
	}
	if wave, err := g.Approve(ctx, ""); err != nil || wave != "lab" {
		t.Errorf("got %s, %v", wave, err)
	}
	g.expect(t, "approved", func(o *v1.DeploymentGrid) bool {
		return o.Annotations[v1.AnnotationApproved] == "echo-2/lab/1000" && o.Annotations[v1.AnnotationApprovedBy] == "jane"
	})
	if state := g.state(t); state.Waits || state.Command != "" {
		t.Errorf("the controller has not seen the approval yet: got %+v", state)
	}
	if _, err := g.Approve(ctx, "lab"); err == nil || !strings.Contains(err.Error(), "there already") {
		t.Errorf("a second time: got %v", err)
	}
	g.becomes(t, func(s *v1.WorkloadGridStatus) { s.Rollout.Awaits = "echo-2/lab/2000" })
	if state := g.state(t); !state.Waits {
		t.Error("an approval of an earlier attempt counts")
	}
	g.becomes(t, func(s *v1.WorkloadGridStatus) { s.Rollout.Awaits, s.Rollout.Phase = "", v1.RolloutProgressing })
	if _, err := g.Approve(ctx, ""); err == nil || !strings.Contains(err.Error(), "the rollout is Progressing") {
		t.Errorf("nothing waits: got %v", err)
	}
}

// TestRestartKeepsNumbers: numbers of the template do not become floating point.
func TestRestartKeepsNumbers(t *testing.T) {
	t.Parallel()
	got := v1.Template{Raw: []byte(`{"x":9007199254740993}`)}
	err := restartTemplate(&got, "now")
	if want := `{"template":{"metadata":{"annotations":{"kubectl.kubernetes.io/restartedAt":"now"}}},` +
		`"x":9007199254740993}`; err != nil || string(got.Raw) != want {
		t.Errorf("got %s, %v", got.Raw, err)
	}
	if err := restartTemplate(&v1.Template{Raw: []byte(`{"template":7}`)}, "now"); err == nil {
		t.Error("a template that is none was changed")
	}
}

// TestHalt: a halt waits for a person until someone resumes it, also before the controller has seen that.
func TestHalt(t *testing.T) {
	t.Parallel()
	g, _ := testGrid(t)
	at := metav1.NewTime(time.Unix(1000, 0))
	halts := func(phase v1.RolloutPhase) {
		t.Helper()
		g.becomes(t, func(s *v1.WorkloadGridStatus) { s.Rollout.Phase, s.Rollout.HaltTime = phase, &at })
	}
	for _, phase := range []v1.RolloutPhase{v1.RolloutHalted, v1.RolloutOutage, v1.RolloutRolledBack, v1.RolloutComplete} {
		halts(phase)
		state := g.state(t)
		err := state.Err()
		if err == nil || errors.Is(err, ErrPerson) != (phase != v1.RolloutRolledBack) || state.Done {
			t.Errorf("%s: got %+v, %v", phase, state, err)
		}
		if state.Waits && state.Command != "kubectl grid rollout resume dg/echo -n shop" {
			t.Errorf("%s: got %+v", phase, state)
		}
		if still, err := g.Resume(t.Context()); err != nil || still != "" {
			t.Fatal(still, err)
		}
		g.expect(t, "resumed", func(o *v1.DeploymentGrid) bool {
			return o.Annotations[v1.AnnotationResumed] == at.UTC().Format(time.RFC3339) &&
				o.Annotations[v1.AnnotationApprovedBy] == "jane"
		})
		if state = g.state(t); state.Waits || state.Failed {
			t.Errorf("%s, and the controller has not seen that it is resumed: got %+v", phase, state)
		}
		if _, err := g.Resume(t.Context()); err == nil || !strings.Contains(err.Error(), "resumed already") {
			t.Errorf("%s, a second time: got %v", phase, err)
		}
		at.Time = at.Add(time.Second)
		halts(phase)
		if state = g.state(t); state.Err() == nil {
			t.Errorf("%s once more: got %+v", phase, state)
		}
		at.Time = at.Add(time.Second)
	}
}

// TestResumeOfAPause: who lifts a pause has not been shown a halt, and is told of it.
func TestResumeOfAPause(t *testing.T) {
	t.Parallel()
	g, _ := testGrid(t)
	at := metav1.NewTime(time.Unix(1000, 0))
	if err := g.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	g.becomes(t, func(s *v1.WorkloadGridStatus) {
		s.Rollout.Phase, s.Rollout.HaltTime, s.Rollout.Message = v1.RolloutPaused, &at, "3 sites have failed"
	})
	if state := g.state(t); !errors.Is(state.Err(), ErrPerson) {
		t.Errorf("got %+v", state)
	}
	if still, err := g.Resume(t.Context()); err != nil || still != "3 sites have failed" {
		t.Errorf("got %q, %v", still, err)
	}
	g.expect(t, "the pause is lifted", func(o *v1.DeploymentGrid) bool {
		return !o.Spec.Rollout.Paused && o.Annotations[v1.AnnotationResumed] == ""
	})
}

func TestHistoryAndUndo(t *testing.T) {
	t.Parallel()
	g, _ := testGrid(t)
	entries, err := g.History(t.Context())
	if err != nil || len(entries) != 2 || entries[0].Role != "current" || entries[1].Role != "update" {
		t.Fatalf("got %+v, %v", entries, err)
	}
	if text := string(entries[0].Data.Raw); !strings.Contains(text, `"image":"one"`) {
		t.Errorf("got %s", text)
	}
	if _, err := g.Undo(t.Context(), Undo{Revision: 7}); err == nil || !strings.Contains(err.Error(), "unable to find revision 7") {
		t.Errorf("got %v", err)
	}
	if _, err := g.Undo(t.Context(), Undo{Revision: 2}); !errors.Is(err, ErrSkipped) {
		t.Errorf("got %v", err)
	}
	if number, err := g.Undo(t.Context(), Undo{AtOnce: true}); err != nil || number != 1 {
		t.Fatalf("got %d, %v", number, err)
	}
	g.expect(t, "undone", func(o *v1.DeploymentGrid) bool {
		return strings.Contains(string(o.Spec.Template.Raw), "one") && len(o.Spec.Rollout.Waves) == 2 &&
			o.Annotations[v1.AnnotationAtOnce] == entries[0].Name+"/1" && o.Annotations[v1.AnnotationApprovedBy] == "jane"
	})
}

// TestUndoGoesToWhatWorked: without a number, undo goes to what ran everywhere last, and not to what was tried last.
func TestUndoGoesToWhatWorked(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		present, current int
		completed        []int
		want             int64
	}{
		"what ran everywhere":           {4, 1, []int{1, 3}, 1},
		"the last complete one":         {4, 4, []int{1, 2, 4}, 2},
		"none was ever complete":        {4, 4, nil, 3},
		"the current one is gone":       {4, 9, []int{2}, 2},
		"the present one is not newest": {2, 2, nil, 4},
	} {
		var entries []Entry
		revision := func(n int) *appsv1.ControllerRevision {
			return &appsv1.ControllerRevision{
				ObjectMeta: metav1.ObjectMeta{Name: "echo-" + strconv.Itoa(n)}, Revision: int64(n),
				Data: runtime.RawExtension{Raw: fmt.Appendf(nil, `{"template":{"minReadySeconds":%d}}`, n)},
			}
		}
		for n := 1; n <= 4; n++ {
			object := revision(n)
			if slices.Contains(c.completed, n) {
				object.Annotations = map[string]string{v1.AnnotationCompleted: "true"}
			}
			entries = append(entries, Entry{ControllerRevision: object})
		}
		present := revision(c.present)
		present.Name = "of another controller"
		if i := earlier(entries, present, revision(c.current).Name); i < 0 || entries[i].Revision != c.want {
			t.Errorf("%s: got the entry %d, want the revision %d", name, i, c.want)
		}
	}
	only := &appsv1.ControllerRevision{
		ObjectMeta: metav1.ObjectMeta{Name: "a"}, Data: runtime.RawExtension{Raw: []byte("{}")},
	}
	if i := earlier([]Entry{{ControllerRevision: only}}, only, "a"); i >= 0 {
		t.Errorf("there is no other: got %d", i)
	}
}

func TestState(t *testing.T) {
	t.Parallel()
	g, _ := testGrid(t)
	state, err := g.State()
	if err != nil || state.Done || state.Failed || state.Sites != 4 || state.Updated != 1 {
		t.Errorf("got %+v, %v", state, err)
	}
	if got := strings.Join(state.Rows[1], " "); got != "lab 1 1 1 1 0 2 0 AwaitingApproval" {
		t.Errorf("got the row %s", got)
	}
	g.spec().Rollout.Waves[0].Sites, g.status().Rollout.Waves[0].Sites = &v1.SiteSelector{Names: []string{"lba"}}, 0
	if state, err = g.State(); err != nil || len(state.Warnings) != 1 ||
		!strings.HasPrefix(state.Warnings[0], "Wave lab selects no site") ||
		!strings.Contains(state.Warnings[0], "label zone1,") {
		t.Errorf("got %+v, %v", state, err)
	}
	var out strings.Builder
	if err := (&Printer{Out: &out}).Print(state); err != nil || !strings.Contains(out.String(), "\n"+state.Warnings[0]+"\n") {
		t.Errorf("got %q, %v", out.String(), err)
	}
	// The workloads cannot be listed, say.
	failed := metav1.Condition{
		Type: v1.ConditionDegraded, Status: metav1.ConditionTrue, Reason: v1.ReasonSyncFailed, Message: "no connection",
		ObservedGeneration: g.Object.GetGeneration(),
	}
	meta.SetStatusCondition(&g.status().Conditions, failed)
	const why = "; the controller cannot reconcile it: SyncFailed: no connection"
	if state, err = g.State(); err != nil || !strings.Contains(state.Summary, "lab") ||
		!strings.HasSuffix(state.Summary, why) {
		t.Errorf("got %+v, %v", state, err)
	}
	g.Object.SetGeneration(9)
	if state, err = g.State(); err != nil || !strings.HasPrefix(state.Summary, "Waiting for the controller") ||
		strings.Contains(state.Summary, why) { // which is about another generation
		t.Errorf("got %+v, %v", state, err)
	}
	failed.ObservedGeneration = 9
	meta.SetStatusCondition(&g.status().Conditions, failed)
	if state, err = g.State(); err != nil || !strings.HasPrefix(state.Summary, "Waiting for the controller") ||
		!strings.HasSuffix(state.Summary, why) {
		t.Errorf("got %+v, %v", state, err)
	}
	g.spec().Rollout = nil
	if _, err := g.State(); !errors.Is(err, errNoRollout) {
		t.Errorf("got %v", err)
	}
}
