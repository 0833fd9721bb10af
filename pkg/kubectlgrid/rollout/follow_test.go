package rollout

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
)

// follow follows the rollout of a grid. Each time that a watch has begun, the next of the events happens; watching is
// refused while there is an error for it. It returns what was shown, a phase a state, and the error.
func follow(t *testing.T, patience Patience, refused []error, events ...func(*Grid, client.Client)) (string, error) {
	t.Helper()
	g, api := testGrid(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	watching, ok := api.(client.WithWatch)
	if !ok {
		t.Fatalf("%T does not watch", api)
	}
	other := *g // what happens is not the follower's doing
	g.cluster.Watcher = interceptor.NewClient(watching, interceptor.Funcs{
		Watch: func(ctx context.Context, api client.WithWatch, list client.ObjectList, options ...client.ListOption,
		) (watch.Interface, error) {
			if len(refused) > 0 {
				err := refused[0]
				refused = refused[1:]
				return nil, err
			}
			w, err := api.Watch(ctx, list, options...)
			if len(events) == 0 {
				cancel(ErrTimeout)
				return w, err
			}
			event := events[0]
			events = events[1:]
			go event(&other, api)
			return w, err
		},
	})
	var phases []string
	err := g.Follow(ctx, patience, func(state State) error {
		_, phase, _ := strings.Cut(state.Summary, ": ")
		phase, _, _ = strings.Cut(phase, ",")
		phases = append(phases, phase)
		return nil
	})
	return strings.Join(phases, " "), err
}

// becomes changes the phase of the rollout.
func becomes(t *testing.T, phases ...v1.RolloutPhase) func(*Grid, client.Client) {
	t.Helper()
	return func(g *Grid, api client.Client) {
		for _, phase := range phases {
			if err := g.Refresh(context.WithoutCancel(t.Context())); err != nil {
				t.Error(err)
				return
			}
			g.status().Rollout.Phase, g.status().Rollout.Wave = phase, "lab"
			if err := api.Status().Update(context.WithoutCancel(t.Context()), g.Object); err != nil {
				t.Error(err)
			}
		}
	}
}

func TestFollow(t *testing.T) {
	t.Parallel()
	shown, err := follow(t, UntilDone, nil, becomes(t, v1.RolloutProgressing, v1.RolloutComplete))
	if err != nil || shown != "AwaitingApproval Progressing Complete" {
		t.Errorf("got %s, %v", shown, err)
	}
	shown, err = follow(t, UntilDone, nil, becomes(t, v1.RolloutProgressing, v1.RolloutRolledBack))
	if err == nil || errors.Is(err, ErrPerson) || shown != "AwaitingApproval Progressing RolledBack" {
		t.Errorf("rolled back: got %s, %v", shown, err)
	}
	shown, err = follow(t, UntilPerson, nil)
	if !errors.Is(err, ErrPerson) || !strings.Contains(err.Error(), "AwaitingApproval, wave lab") ||
		shown != "AwaitingApproval" {
		t.Errorf("until a person is needed: got %s, %v", shown, err)
	}
	if _, err = follow(t, UntilDone, nil); !errors.Is(err, ErrTimeout) {
		t.Errorf("no more time: got %v", err)
	}
	_, err = follow(t, UntilDone, nil, func(g *Grid, api client.Client) {
		if err := api.Delete(context.WithoutCancel(t.Context()), g.Object); err != nil {
			t.Error(err)
		}
	})
	if !errors.Is(err, errDeleted) {
		t.Errorf("deleted: got %v", err)
	}
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "deploymentgrids"}, "echo", errors.New("no right"))
	if _, err = follow(t, UntilDone, []error{forbidden}); !apierrors.IsForbidden(err) {
		t.Errorf("forbidden: got %v", err)
	}
	// An API server that is away, and one that has forgotten the revision, are asked again.
	away := []error{errors.New("connection refused"), apierrors.NewResourceExpired("too old")}
	if shown, err = follow(t, UntilDone, away, becomes(t, v1.RolloutComplete)); err != nil ||
		!strings.HasSuffix(shown, " Complete") {
		t.Errorf("away: got %s, %v", shown, err)
	}
}

// TestPrinter: the same state is printed once; on a terminal a state replaces the one before, with a bar.
func TestPrinter(t *testing.T) {
	t.Parallel()
	g, _ := testGrid(t)
	state, err := g.State()
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	printer := &Printer{Out: &out}
	for range 3 {
		if err := printer.Print(state); err != nil {
			t.Fatal(err)
		}
	}
	if got := out.String(); strings.Count(got, "WAVE") != 1 || strings.Contains(got, "\x1b") ||
		!strings.Contains(got, "lab    1       1") {
		t.Errorf("got %q", got)
	}
	out.Reset()
	printer = &Printer{Out: &out, Live: true}
	if err := printer.Print(state); err != nil {
		t.Fatal(err)
	}
	lines := strings.Count(out.String(), "\n")
	bar := "[" + strings.Repeat("#", 10) + strings.Repeat(".", 30) + "] 1/4\n"
	if !strings.Contains(out.String(), bar) {
		t.Errorf("got %q, without %q", out.String(), bar)
	}
	state.Summary = "another"
	if err := printer.Print(state); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), fmt.Sprintf("\x1b[%dA\x1b[J", lines)) {
		t.Errorf("got %q", out.String())
	}
}
