package status

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/rest"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/gridview"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/cluster"
)

// api is an API server with one DeploymentGrid, without children and nodes. What is sent to events goes to whoever
// watches grids.
type api struct {
	mu     sync.Mutex         // guards grid
	grid   *v1.DeploymentGrid // nil for none
	events chan metav1.WatchEvent
	// unwatchable refuses every watch.
	unwatchable bool
}

func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	grids := strings.HasSuffix(r.URL.Path, "/deploymentgrids")
	query := r.URL.Query()
	w.Header().Set("Content-Type", "application/json")
	switch {
	case query.Get("watch") != "" && a.unwatchable:
		a.fail(w, http.StatusForbidden, metav1.StatusReasonForbidden)
	case query.Get("watch") != "" && query.Get("sendInitialEvents") != "": // as servers before Kubernetes 1.32 answer
		a.fail(w, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid)
	case query.Get("watch") != "":
		w.WriteHeader(http.StatusOK)
		w.(http.Flusher).Flush()
		events := a.events
		if !grids {
			events = nil
		}
		for {
			select {
			case event := <-events:
				write(w, event)
				w.(http.Flusher).Flush()
			case <-r.Context().Done():
				return
			}
		}
	case grids:
		list := &v1.DeploymentGridList{TypeMeta: metav1.TypeMeta{APIVersion: "superedge.io/v1", Kind: "DeploymentGridList"}}
		a.mu.Lock()
		if a.grid != nil {
			list.Items = append(list.Items, *a.grid)
		}
		a.mu.Unlock()
		write(w, list)
	default:
		write(w, &metav1.PartialObjectMetadataList{
			TypeMeta: metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "PartialObjectMetadataList"},
			ListMeta: metav1.ListMeta{ResourceVersion: "1"},
		})
	}
}

func (a *api) fail(w http.ResponseWriter, code int32, reason metav1.StatusReason) {
	w.WriteHeader(int(code))
	write(w, &metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: "Failure", Code: code, Reason: reason,
		Message: string(reason),
	})
}

// write writes an object as a line of JSON.
func write(w io.Writer, object any) {
	data, err := json.Marshal(object)
	if err != nil {
		panic(err) // an object of the test's
	}
	_, _ = w.Write(append(data, '\n'))
}

// follow calls Follow on the API server until stop. What it shows comes on one channel, and what it returns on the
// other.
func follow(t *testing.T, a *api) (shown <-chan []gridview.Grid, ended <-chan error, stop func()) {
	t.Helper()
	server := httptest.NewServer(a)
	ctx, stop := context.WithCancel(t.Context())
	t.Cleanup(func() {
		stop() // before Close, which waits for the watches
		server.Close()
	})
	connected, err := cluster.Connect(&rest.Config{Host: server.URL}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	answers, result := make(chan []gridview.Grid, 10), make(chan error, 1)
	go func() {
		result <- Follow(ctx, connected, Query{Kinds: []v1.GridKind{v1.DeploymentGridKind}, Namespace: "shop",
			Selector: labels.Everything()},
			func(grids []gridview.Grid) error {
				answers <- grids
				return nil
			})
	}()
	return answers, result, stop
}

// echo is a grid of one unit with this phase.
func echo(revision string, phase v1.UnitPhase) *v1.DeploymentGrid {
	return &v1.DeploymentGrid{
		TypeMeta:   metav1.TypeMeta{APIVersion: "superedge.io/v1", Kind: "DeploymentGrid"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "echo", UID: "u", ResourceVersion: revision},
		Spec:       v1.WorkloadGridSpec{GridUniqKey: "zone"},
		Status: v1.WorkloadGridStatus{
			Units: 1, States: map[string]v1.UnitState{"east": {Phase: phase, Replicas: 2, ReadyReplicas: 1}},
			Conditions: []metav1.Condition{
				{Type: v1.ConditionReady, Status: metav1.ConditionTrue, Reason: v1.ReasonReady},
			},
		},
	}
}

// TestFollow: the first answer comes at once, and another with every change; the end of ctx is no error.
func TestFollow(t *testing.T) {
	a := &api{grid: echo("1", v1.UnitFailed), events: make(chan metav1.WatchEvent)}
	shown, ended, stop := follow(t, a)
	await := func(what string, wanted func([]gridview.Grid) bool) {
		t.Helper()
		late := time.After(30 * time.Second)
		for {
			select {
			case grids := <-shown:
				if wanted(grids) {
					return
				}
			case err := <-ended:
				t.Fatalf("%s: it ended with %v", what, err)
			case <-late:
				t.Fatalf("%s: it is not shown", what)
			}
		}
	}
	phase := func(want v1.UnitPhase) func([]gridview.Grid) bool {
		return func(grids []gridview.Grid) bool {
			return len(grids) == 1 && len(grids[0].Units) == 1 && grids[0].Units[0].Phase == want
		}
	}
	send := func(kind string, grid *v1.DeploymentGrid) {
		data, err := json.Marshal(grid)
		if err != nil {
			t.Fatal(err)
		}
		a.mu.Lock()
		if a.grid = grid; kind == "DELETED" {
			a.grid = nil
		}
		a.mu.Unlock()
		event := metav1.WatchEvent{Type: kind}
		event.Object.Raw = data
		select {
		case a.events <- event:
		case <-time.After(30 * time.Second):
			t.Fatal("no client watches")
		}
	}
	await("the first answer", phase(v1.UnitFailed))
	send("MODIFIED", echo("2", v1.UnitStalled))
	await("a change, and that the unit has no workload", phase(gridview.Missing))
	send("DELETED", echo("3", v1.UnitStalled))
	await("a deletion", func(grids []gridview.Grid) bool { return len(grids) == 0 })
	stop()
	if err := <-ended; err != nil {
		t.Errorf("it ended with %v", err)
	}
}

// TestFollowForbidden: who may not watch gets an error, and does not wait.
func TestFollowForbidden(t *testing.T) {
	shown, ended, _ := follow(t, &api{grid: echo("1", v1.UnitReady), unwatchable: true})
	select {
	case err := <-ended:
		if err == nil || !strings.Contains(err.Error(), "takes the right to list and watch") {
			t.Errorf("it ended with %v", err)
		}
	case <-time.After(30 * time.Second):
		t.Error("it has not ended")
	}
	if len(shown) != 1 {
		t.Errorf("%d answers were shown, and one could be read", len(shown))
	}
}
