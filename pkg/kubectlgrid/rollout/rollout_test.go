package rollout

import (
	"errors"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/gridrevision"
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
			Rollout: &v1.Rollout{Waves: []v1.Wave{{Name: "lab", Approval: v1.ApprovalManual, Units: &v1.UnitSelector{Names: []string{"lab"}}}, {Name: "rest"}}},
		},
	}
	objects := []client.Object{}
	for i, template := range []string{one, two} {
		grid.Spec.Template.Raw = []byte(template)
		revision, err := gridrevision.Of("DeploymentGrid", "echo", &grid.Spec)
		if err != nil {
			t.Fatal(err)
		}
		objects = append(objects, revision.Object("DeploymentGrid", grid, int64(i+1)))
		grid.Status.CurrentRevision, grid.Status.UpdateRevision = grid.Status.UpdateRevision, revision.Name
	}
	grid.Status.Rollout = &v1.RolloutStatus{
		Phase: v1.RolloutAwaitingApproval, Wave: "lab", Message: "waits",
		Waves: []v1.WaveStatus{{Name: "lab", State: v1.WaveAwaitingApproval, Units: 1, Updated: 1, Ready: 1}, {Name: "rest", State: v1.WavePending, Units: 3}},
	}
	api := fake.NewClientBuilder().WithScheme(all).WithObjects(append(objects, grid)...).WithStatusSubresource(grid).Build()
	connected := cluster.Cluster{API: api, Watcher: api}
	g, err := Get(t.Context(), connected, "shop", Name{v1.DeploymentGridKind, "echo"})
	if err != nil {
		t.Fatal(err)
	}
	return g, api
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

func TestVerbs(t *testing.T) {
	t.Parallel()
	g, _ := testGrid(t)
	ctx := t.Context()
	if err := g.Resume(ctx); err == nil {
		t.Error("what is not paused was resumed")
	}
	if err := g.Pause(ctx); err != nil {
		t.Fatal(err)
	}
	g.expect(t, "paused", func(o *v1.DeploymentGrid) bool { return o.Spec.Rollout.Paused })
	if err := g.Pause(ctx); err == nil {
		t.Error("it was paused twice")
	}
	if err := g.Resume(ctx); err != nil {
		t.Fatal(err)
	}
	g.expect(t, "resumed", func(o *v1.DeploymentGrid) bool { return !o.Spec.Rollout.Paused })
	if _, err := g.Approve(ctx, "rest"); err == nil {
		t.Error("a wave that asks for no approval was approved of")
	}
	if wave, err := g.Approve(ctx, ""); err != nil || wave != "lab" {
		t.Errorf("approving: %s, %v", wave, err)
	}
	g.expect(t, "approved", func(o *v1.DeploymentGrid) bool {
		return o.Annotations[v1.AnnotationApproved] == o.Status.UpdateRevision+"/lab"
	})
	if err := g.Restart(ctx, time.Unix(0, 0).UTC()); err != nil {
		t.Fatal(err)
	}
	g.expect(t, "restarted", func(o *v1.DeploymentGrid) bool {
		return strings.Contains(string(o.Spec.Template.Raw), `"kubectl.kubernetes.io/restartedAt":"1970-01-01T00:00:00Z"`)
	})
}

// TestRestartKeepsNumbers: numbers of the template do not become floating point.
func TestRestartKeepsNumbers(t *testing.T) {
	t.Parallel()
	got, err := restarted(v1.Template{Raw: []byte(`{"x":9007199254740993}`)}, "now")
	if want := `{"template":{"metadata":{"annotations":{"kubectl.kubernetes.io/restartedAt":"now"}}},` +
		`"x":9007199254740993}`; err != nil || string(got.Raw) != want {
		t.Errorf("got %s, %v", got.Raw, err)
	}
	if _, err := restarted(v1.Template{Raw: []byte(`{"template":7}`)}, "now"); err == nil {
		t.Error("a template that is none was changed")
	}
}

func TestResumeOfAHalt(t *testing.T) {
	t.Parallel()
	g, api := testGrid(t)
	at := metav1.NewTime(time.Unix(1000, 0))
	g.status().Rollout.Phase, g.status().Rollout.HaltTime = v1.RolloutHalted, &at
	if err := api.Status().Update(t.Context(), g.Object); err != nil {
		t.Fatal(err)
	}
	if state, err := g.State(); err != nil || !strings.Contains(state.Failed, "Halted, wave lab: waits") {
		t.Errorf("got %+v, %v", state, err)
	}
	if err := g.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	g.expect(t, "resumed", func(o *v1.DeploymentGrid) bool {
		return o.Annotations[v1.AnnotationResumed] == "1970-01-01T00:16:40Z"
	})
}

func TestHistoryAndUndo(t *testing.T) {
	t.Parallel()
	g, _ := testGrid(t)
	entries, err := g.History(t.Context())
	if err != nil || len(entries) != 2 || entries[0].Role != "current" || entries[1].Role != "update" {
		t.Fatalf("got %+v, %v", entries, err)
	}
	if text, err := entries[0].YAML(); err != nil || !strings.Contains(text, "image: one") {
		t.Errorf("got %s, %v", text, err)
	}
	if _, err := g.Undo(t.Context(), 7, InWaves); err == nil || !strings.Contains(err.Error(), "unable to find revision 7") {
		t.Errorf("got %v", err)
	}
	if _, err := g.Undo(t.Context(), 2, InWaves); !errors.Is(err, ErrSkipped) {
		t.Errorf("got %v", err)
	}
	if entry, err := g.Undo(t.Context(), 0, AtOnce); err != nil || entry.Number != 1 {
		t.Fatalf("got %+v, %v", entry, err)
	}
	g.expect(t, "undone", func(o *v1.DeploymentGrid) bool {
		return strings.Contains(string(o.Spec.Template.Raw), "one") && len(o.Spec.Rollout.Waves) == 2 &&
			o.Annotations[v1.AnnotationAtOnce] == entries[0].Name+"/1"
	})
}

func TestState(t *testing.T) {
	t.Parallel()
	g, _ := testGrid(t)
	state, err := g.State()
	if err != nil || state.Done || state.Failed != "" || state.Units != 4 || state.Updated != 1 {
		t.Errorf("got %+v, %v", state, err)
	}
	if got := strings.Join(state.Rows[1], " "); got != "lab 1 1 1 0 0 AwaitingApproval" {
		t.Errorf("got the row %s", got)
	}
	g.Object.SetGeneration(9)
	if state, err = g.State(); err != nil || !strings.Contains(state.Summary, "Waiting for the controller") {
		t.Errorf("got %+v, %v", state, err)
	}
	g.spec().Rollout = nil
	if _, err := g.State(); !errors.Is(err, errNoRollout) {
		t.Errorf("got %v", err)
	}
}
