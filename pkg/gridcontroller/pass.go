package gridcontroller

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/utils/ptr"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/gridcontroller/gridchild"
	"github.com/application-grid/application-grid/pkg/gridcontroller/rollout"
)

// pass is one pass over all sites of a grid. It has what lives during the whole pass. What it finds out is in stages:
// assigned, planned, synced, report. Each is made from the one before, which it embeds, and is not changed afterwards.
type pass struct {
	*reconciler

	grid v1.Object
	spec *v1.WorkloadGridSpec
	// status is the grid's status in the cache.
	status *v1.WorkloadGridStatus
	owner  *gridchild.Owner
	memory *gridMemory
	sites  sites
	// names are the names of the sites, sorted.
	names []string

	// deadline is until when children may be written.
	deadline time.Time
	// requeueTime is when to reconcile again if nothing changes before; zero for never.
	requeueTime time.Time
}

// assigned has the workload of each site, and the revisions that the sites may get.
type assigned struct {
	*pass

	// assignment says which site has which child. children has the grid's children by name, and those to be adopted.
	assignment *gridchild.Assignment
	children   map[string]*liveChild
	// cluster is what templates and waves depend on besides the grid.
	cluster gridchild.Cluster
	waves   gridchild.Waves
	// update are the templates of the spec, with its revision.
	update *gridchild.Templates
	// templates has the templates that were read, by revision; nil for one that cannot be read. fitsSome reports
	// whether update fits a node of any site. Both are computed when they are needed.
	templates map[string]*gridchild.Templates
	fitsSome  func() bool
}

// planned has what each site's child should be made from, and the children that are to go.
type planned struct {
	*assigned

	targets map[string]target
	// rollout is the plan of the rollout; its status is nil without a rollout.
	rollout rollout.Plan
	// gone are the children of sites without nodes.
	gone []vanished
	// lossesHeld is why losses must wait for an approval; nil if none do.
	lossesHeld error
}

// synced has what became of the children.
type synced struct {
	*planned

	results map[string]result
	// removed has the sites whose child was deleted.
	removed []string
}

// report is what the status and events say.
type report struct {
	*synced

	states map[string]v1.SiteState
	// in has the sites in each phase, sorted.
	in map[v1.SitePhase][]string
}

func (r *reconciler) newPass(grid v1.Object, owner *gridchild.Owner, m *gridMemory) *pass {
	p := &pass{reconciler: r, grid: grid, owner: owner, memory: m}
	now := r.clock.Now()
	leap := now.Round(0).Sub(m.lastPass.Round(0)) - now.Sub(m.lastPass) // the latter is by the monotonic clock
	m.leap, m.lastPass = m.leap+leap, now
	if made := fmt.Sprint(grid.GetGeneration(), owner.Labels); m.madeFor != made {
		m.madeFor, m.templates, m.revisions = made, map[string]*templateMemory{}, nil
		for _, of := range m.sites {
			of.desired = identity{}
		}
	}
	for _, of := range m.sites {
		of.progressAt = of.progressAt.Add(leap)
	}
	p.spec, p.status = v1.SpecAndStatus(grid)
	p.sites = sitesOf(r.nodes, owner.Key)
	p.names = slices.Sorted(maps.Keys(p.sites))
	return p
}

func (p *pass) requeueAt(at time.Time) { p.requeueTime = sooner(p.requeueTime, at) }

// sooner returns the earlier one of two times; zero means never.
func sooner(a, b time.Time) time.Time {
	if a.IsZero() || (!b.IsZero() && b.Before(a)) {
		return b
	}
	return a
}

func (p *pass) runStages(ctx context.Context, children map[string]*liveChild) (*report, error) {
	assigned, err := p.assign(ctx, children)
	if err != nil {
		return nil, err
	}
	synced := assigned.plan(ctx).sync(ctx)
	report := synced.makeReport(ctx, synced.removeVanished(ctx))
	synced.removePassedJobs(ctx)
	synced.markCompleted(ctx)
	synced.deleteOldRevisions(ctx)
	return report, nil
}

// assign assigns the grid's workloads to its sites, and reads the revisions.
func (p *pass) assign(ctx context.Context, children map[string]*liveChild) (_ *assigned, err error) {
	revision, err := p.ensureRevision(ctx)
	if err != nil {
		return nil, err
	}
	cluster := gridchild.Cluster{HasNode: p.sites.haveNode, Merge: p.schemas.Merge(p.Child)}
	update := gridchild.NewTemplates(revision, p.spec, cluster)
	a := &assigned{
		pass: p, children: children, cluster: cluster, update: update,
		templates: map[string]*gridchild.Templates{revision: update},
	}
	a.assignment = gridchild.Assign(p.owner, p.names, func(name string) *gridchild.Existing {
		live := children[name]
		if live == nil {
			live, _ = p.getChild(ctx, p.cache, p.owner, name) // an error shows again when it is applied
			if live != nil && !live.deleting && live.Controller == nil && live.Grid == p.owner.Name {
				a.children[name] = live
			}
		}
		return cmp.Or(live, &liveChild{}).Existing
	})
	a.fitsSome = sync.OnceValue(func() bool {
		return slices.ContainsFunc(p.names, func(site string) bool { return a.fitsSite(site, a.update.Revision) })
	})
	a.waves, err = gridchild.NewWaves(ptr.Deref(p.spec.Rollout, v1.Rollout{}).Waves, cluster.HasNode)
	return a, err
}

// child returns the child of a site, or the workload that may be adopted; nil if neither exists.
func (p *assigned) child(site string) *liveChild { return p.children[p.assignment.BySite[site]] }
