package rollout

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
)

var errTimeout = errors.New("timed out")

// follow follows the rollout of a grid. Each time that the grid is read again, the next of the events happens before;
// reading is refused while there is an error for it. It returns what was shown, a phase a state, and the error.
func follow(t *testing.T, wait bool, refused []error, events ...func(*Grid, client.Client)) (
	shown string, err error) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		g, api := testGrid(t)
		ctx, cancel := context.WithCancelCause(t.Context())
		defer cancel(nil)
		other := *g // what happens is not the follower's doing
		g.cluster.API = interceptor.NewClient(api.(client.WithWatch), interceptor.Funcs{
			Get: func(ctx context.Context, api client.WithWatch, name client.ObjectKey, o client.Object,
				options ...client.GetOption) error {
				switch {
				case len(refused) > 0:
					err := refused[0]
					refused = refused[1:]
					return err
				case len(events) > 0:
					events[0](&other, api)
					events = events[1:]
				default:
					cancel(errTimeout)
				}
				return api.Get(ctx, name, o, options...)
			},
		})
		err = Follower{Wait: wait, Show: func(state State) error {
			_, phase, _ := strings.Cut(state.Summary, ": ")
			phase, _, _ = strings.Cut(phase, ",")
			shown += " " + phase
			return nil
		}}.Follow(ctx, g)
	})
	return strings.TrimSpace(shown), err
}

// becomes changes the phase of the rollout.
func becomes(t *testing.T, phase v1.RolloutPhase) func(*Grid, client.Client) {
	t.Helper()
	return func(g *Grid, api client.Client) {
		if err := g.Refresh(t.Context()); err != nil {
			t.Error(err)
			return
		}
		g.status().Rollout.Phase, g.status().Rollout.Wave = phase, "lab"
		if err := api.Status().Update(t.Context(), g.Object); err != nil {
			t.Error(err)
		}
	}
}

// unchanged is nothing that happens.
func unchanged(*Grid, client.Client) {}

func TestFollow(t *testing.T) {
	t.Parallel()
	shown, err := follow(t, true, nil, becomes(t, v1.RolloutProgressing), unchanged, becomes(t, v1.RolloutComplete))
	if err != nil || shown != "AwaitingApproval Progressing Complete" {
		t.Errorf("got %s, %v", shown, err)
	}
	shown, err = follow(t, true, nil, becomes(t, v1.RolloutProgressing), becomes(t, v1.RolloutRolledBack))
	if err == nil || errors.Is(err, ErrPerson) || shown != "AwaitingApproval Progressing RolledBack" {
		t.Errorf("rolled back: got %s, %v", shown, err)
	}
	shown, err = follow(t, false, nil)
	if !errors.Is(err, ErrPerson) || !strings.Contains(err.Error(), "AwaitingApproval, wave lab") ||
		shown != "AwaitingApproval" {
		t.Errorf("until a person is needed: got %s, %v", shown, err)
	}
	if _, err = follow(t, true, nil); !errors.Is(err, errTimeout) {
		t.Errorf("no more time: got %v", err)
	}
	_, err = follow(t, true, nil, func(g *Grid, api client.Client) {
		if err := api.Delete(t.Context(), g.Object); err != nil {
			t.Error(err)
		}
	})
	if !errors.Is(err, errDeleted) {
		t.Errorf("deleted: got %v", err)
	}
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "deploymentgrids"}, "echo", errors.New("no right"))
	if _, err = follow(t, true, []error{forbidden}); !apierrors.IsForbidden(err) {
		t.Errorf("forbidden: got %v", err)
	}
	// An API server that is away is asked again.
	away := []error{errors.New("connection refused"), apierrors.NewServiceUnavailable("etcd")}
	if shown, err = follow(t, true, away, becomes(t, v1.RolloutComplete)); err != nil ||
		shown != "AwaitingApproval Complete" {
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
