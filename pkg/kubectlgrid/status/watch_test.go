package status

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/rest"

	"github.com/application-grid/application-grid/internal/testkit/clustertest"
	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/gridview"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/cluster"
)

// follow calls Follow on the API server until stop. What it shows comes on one channel, and what it returns on the
// other.
func follow(t *testing.T, a *clustertest.API) (shown <-chan []gridview.Grid, ended <-chan error, stop func()) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	connected, err := cluster.Connect(&rest.Config{Host: a.Serve()}, io.Discard)
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

// echoPath is that of echo, a grid of one site with this phase.
const echoPath = "/apis/superedge.io/v1/namespaces/shop/deploymentgrids/echo"

func echo(phase v1.SitePhase) string {
	return fmt.Sprintf(`{apiVersion: superedge.io/v1, kind: DeploymentGrid, metadata: {namespace: shop, name: echo},
 spec: {gridUniqKey: zone}, status: {sites: 1, states: {east: {phase: %s, replicas: 2, readyReplicas: 1}},
 conditions: [{type: Ready, status: "True", reason: Ready}]}}`, phase)
}

// TestUnreadOnce: what could not be read is named once, however many grids there are.
func TestUnreadOnce(t *testing.T) {
	a := clustertest.New(t, echo(v1.SiteProgressing)+"\n---\n"+strings.Replace(echo(v1.SiteProgressing), "name: echo", "name: other", 1))
	for _, grid := range a.Objects {
		template := map[string]any{"selector": map[string]any{"matchLabels": map[string]any{"app": "x"}}}
		grid.Object["spec"].(map[string]any)["template"] = template
	}
	a.Forbidden = func(resource, _ string) bool { return resource == "pods" || resource == "nodes" }
	connected, err := cluster.Connect(&rest.Config{Host: a.Serve()}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	var said []string
	reader := &Reader{API: connected.API, Warn: func(format string, args ...any) {
		said = append(said, fmt.Sprintf(format, args...))
	}}
	if _, err := reader.Read(t.Context(), Query{Kinds: []v1.GridKind{v1.DeploymentGridKind}, Namespace: "shop",
		Selector: labels.Everything()}); err != nil || len(said) != 2 || !strings.Contains(said[0], "nodes could not be read") ||
		!strings.HasPrefix(said[1], "why pods are not ready is left out") {
		t.Errorf("%v, %q", err, said)
	}
	if !reader.Unread(gridview.Finding{Check: gridview.CheckRead, Object: gridview.Object{Kind: "Pod"}}) {
		t.Error("pods would be named again")
	}
}

// TestFollow: the first answer comes at once, and another with every change; the end of ctx is no error.
func TestFollow(t *testing.T) {
	a := clustertest.New(t, echo(v1.SiteFailed))
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
	phase := func(want v1.SitePhase) func([]gridview.Grid) bool {
		return func(grids []gridview.Grid) bool {
			return len(grids) == 1 && len(grids[0].Sites) == 1 && grids[0].Sites[0].Phase == want
		}
	}
	await("the first answer", phase(v1.SiteFailed))
	a.Change(func() { a.Add(echo(v1.SiteStalled)) })
	await("a change, and that the site has no workload", phase(gridview.Missing))
	a.Change(func() { delete(a.Objects, echoPath) })
	await("a deletion", func(grids []gridview.Grid) bool { return len(grids) == 0 })
	stop()
	if err := <-ended; err != nil {
		t.Errorf("it ended with %v", err)
	}
}

// TestFollowAsksForLittle: while no grid changes, nodes and children are not read each time that grids are.
func TestFollowAsksForLittle(t *testing.T) {
	a := clustertest.New(t, echo(v1.SiteReady))
	reads := 0
	a.Forbidden = func(resource, _ string) bool {
		if resource == "nodes" {
			reads++
		}
		return false
	}
	shown, _, stop := follow(t, a)
	defer stop()
	<-shown
	time.Sleep(4 * gridsEvery)
	a.Change(func() {
		if reads > 2 {
			t.Errorf("nodes were read %d times", reads)
		}
	})
}

// TestFollowAway: an API server that is away is asked again, and a right that was taken away is an error.
func TestFollowAway(t *testing.T) {
	a := clustertest.New(t, echo(v1.SiteReady))
	shown, ended, stop := follow(t, a)
	defer stop()
	<-shown
	refuse := func(code int) {
		a.Change(func() { a.Refused[filepath.Dir(echoPath)] = code })
	}
	refuse(http.StatusServiceUnavailable)
	time.Sleep(2 * gridsEvery)
	refuse(0)
	a.Change(func() { a.Add(echo(v1.SiteFailed)) })
	for grids := range shown {
		if len(grids) == 1 && grids[0].Sites[0].Phase == v1.SiteFailed {
			break
		}
	}
	refuse(http.StatusForbidden)
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "asking for deploymentgrids") {
		t.Errorf("it ended with %v", err)
	}
}
