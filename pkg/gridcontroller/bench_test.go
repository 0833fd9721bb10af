package gridcontroller

import (
	"context"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
)

// benchSites is how many sites the grid of a benchmark has.
const benchSites = 1000

// keptCache keeps the children, as an informer does.
type keptCache struct {
	client.Reader
	children *unstructured.UnstructuredList
}

func (c *keptCache) List(ctx context.Context, list client.ObjectList, o ...client.ListOption) error {
	u, ok := list.(*unstructured.UnstructuredList)
	if !ok {
		return c.Reader.List(ctx, list, o...)
	}
	if c.children == nil {
		c.children = &unstructured.UnstructuredList{Object: u.Object}
		if err := c.Reader.List(ctx, c.children, o...); err != nil {
			return err
		}
	}
	u.Items = c.children.Items
	return nil
}

// goOn reconciles until a rollout is complete. Workloads are ready one pass after they were applied. It returns how
// often workloads and the status were written.
func (f *fixture) goOn(grid *v1.DeploymentGrid, revision string) (applies, statuses, passes int) {
	f.Helper()
	f.calls = nil
	for passes < 100 {
		r := f.reconcilers["DeploymentGrid"]
		r.cache = &keptCache{condensedCache{f.client}, nil} // the events of the last pass have arrived
		f.pass(grid)
		passes++
		calls := f.calls
		f.calls = nil
		for _, call := range calls {
			name, ok := strings.CutPrefix(call, "apply ")
			if !ok {
				statuses++
				continue
			}
			applies++
			f.report(name, running)
		}
		if s := grid.Status; len(calls) == 0 && s.CurrentRevision != revision && int(s.ReadySites) == benchSites &&
			s.Rollout.Phase == v1.RolloutComplete {
			return applies, statuses, passes
		}
	}
	f.Fatalf("the rollout is not complete: %s", grid.Status.Rollout.Message)
	return 0, 0, 0
}

// BenchmarkSites measures a grid of 1,000 sites in two waves: a pass without a change, and a change of all sites, with
// the writes that it takes.
func BenchmarkSites(b *testing.B) {
	grid := deploymentGrid("demo", plain)
	grid.Spec.Rollout = inWaves(named("canary", "u000"), v1.Wave{Name: "rest"})
	f := newFixture(b, grid)
	f.nodesIn(numbered(benchSites)...)
	f.goOn(grid, "")
	b.Run("unchanged", func(b *testing.B) {
		for b.Loop() {
			f.reconcile(grid)
		}
		if len(f.calls) > 0 {
			b.Errorf("it wrote %q", f.calls)
		}
	})
	b.Run("change", func(b *testing.B) {
		var applies, statuses, passes int
		now, next := plain, other
		for b.Loop() {
			now, next = next, now
			before := grid.Status.CurrentRevision
			f.update(grid, func() { grid.Spec.Template = raw(now) })
			a, s, p := f.goOn(grid, before)
			applies, statuses, passes = applies+a, statuses+s, passes+p
		}
		b.ReportMetric(float64(applies)/float64(b.N), "applies/change")
		b.ReportMetric(float64(statuses)/float64(b.N), "statuses/change")
		b.ReportMetric(float64(passes)/float64(b.N), "passes/change")
	})
}
