package gridcontroller

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/gridcontroller/gridchild"
	"github.com/application-grid/application-grid/pkg/gridcontroller/rollout"
)

const (
	// atOnce is the largest number of children of one grid that are written concurrently.
	atOnce = 16
	// perPass is the largest number of children that are written before the status is written.
	perPass = 256
	// passBudget is how long a pass over a grid may start requests, because other grids wait for the worker.
	passBudget = 2 * time.Second
	// statusPause is the least time between two writes of one grid's status.
	statusPause = 500 * time.Millisecond
)

// pass is one pass over all sites of a grid. Its methods are called in the order in which run calls them.
type pass struct {
	*workloadReconciler

	grid v1.Object
	spec *v1.WorkloadGridSpec
	// status is the grid's status in the cache.
	status *v1.WorkloadGridStatus
	owner  *gridchild.Owner
	memory *gridMemory
	sites  sites
	// names are the names of the sites, sorted.
	names []string

	// assigned says which site has which child; nil if gridUniqKey is held, so that no site is processed. children has
	// the grid's children by name. strangers has other workloads with the names of children; nil for a name that no
	// workload has.
	assigned            *gridchild.Names
	children, strangers map[string]*child
	// gone are the children of sites without nodes.
	gone []vanished

	// around is what templates and waves depend on besides the grid.
	around gridchild.Context
	// current are the templates of the spec, update is its revision.
	current *gridchild.Templates
	update  string
	// waves are nil without a rollout.
	waves gridchild.Waves
	// templates has the templates that were read, by revision; nil for one that cannot be read.
	templates map[string]*gridchild.Templates
	// planned is the plan of the rollout; its status is nil without a rollout. before is the rollout's status before
	// that plan.
	planned rollout.Plan
	before  *v1.RolloutStatus
	// ran is the revision that ran everywhere before this pass; "" if none did. fits has which nodes the templates of a
	// revision fit, by the revision and the variant of the site. fitsSome reports whether update fits a node of any.
	ran      string
	fits     map[string]fits
	fitsSome func() bool
	// targets say what every site's child should be made from. results are the results of syncing them.
	targets map[string]target
	results map[string]result

	states map[string]v1.SiteState
	// keepSelector has the sites whose workload's selector lacks the site, although spec.siteLabel is true.
	keepSelector []string
	// applied and removed have the sites whose child was written or deleted. vanished and returned have the sites that
	// lost their last node, or got one again. handedOver has those whose replicas were handed over, with the replicas.
	applied, removed, vanished, returned, handedOver []string
	// noEffect has messages about overrides and waves without effect.
	noEffect []string
	// held is why vanished sites, or a change of gridUniqKey, must wait for an approval.
	held error
	// budget is how many more children may be written, and deadline until when.
	budget   int
	deadline time.Time
	// again is when to reconcile again if nothing changes before; zero for never.
	again time.Time
	// leap is how far the clock was set since the last pass.
	leap time.Duration
}

// fits reports whether a template fits a node with this name, labels and taints.
type fits = func(node string, labels map[string]string, taints []corev1.Taint) bool

func (r *workloadReconciler) newPass(grid v1.Object, m *gridMemory) *pass {
	p := &pass{
		workloadReconciler: r, grid: grid, owner: gridchild.OwnerOf(r.GridKind, grid), memory: m,
		targets: map[string]target{}, results: map[string]result{}, states: map[string]v1.SiteState{},
		templates: map[string]*gridchild.Templates{}, fits: map[string]fits{}, strangers: map[string]*child{},
		budget: perPass,
	}
	p.leap, m.lastPass = leap(m.lastPass, r.clock.Now()), r.clock.Now()
	for _, of := range m.sites {
		of.progressAt = of.progressAt.Add(p.leap)
	}
	p.spec, p.status = v1.Workload(grid)
	p.sites = r.nodes.sitesOf(p.spec.GridUniqKey)
	p.names = slices.Sorted(maps.Keys(p.sites))
	p.fitsSome = sync.OnceValue(func() bool {
		return slices.ContainsFunc(p.names, func(site string) bool { return p.fitsSite(site, p.update) })
	})
	return p
}

// leap returns how far the clock was set between two times that were read from it. The zero time was not.
func leap(before, now time.Time) time.Duration {
	if before.IsZero() {
		return 0
	}
	return now.Round(0).Sub(before.Round(0)) - now.Sub(before) // the latter is by the monotonic clock
}

func (p *pass) lookAgain(at time.Time) {
	if !at.IsZero() && (p.again.IsZero() || at.Before(p.again)) {
		p.again = at
	}
}

// spent reports whether the time for requests of this pass has passed.
func (p *pass) spent() bool { return p.clock.Now().After(p.deadline) }

// child returns the child of a site, or nil.
func (p *pass) child(site string) *child { return p.children[p.assigned.BySite[site]] }

// orphan returns the workload that a site without a child may adopt, or nil.
func (p *pass) orphan(site string) *child {
	live := p.strangers[p.assigned.BySite[site]]
	if live == nil || live.deleting || live.controller != nil || live.grid != p.owner.Name {
		return nil
	}
	return live
}

// known returns the workload in the cache that has a name, whoever owns it.
func (p *pass) known(ctx context.Context, name string) (gridchild.Existing, bool) {
	live := p.children[name]
	if live == nil {
		var looked bool
		if live, looked = p.strangers[name]; !looked {
			live, _ = p.get(ctx, p.cache, p.kind, p.owner.Namespace, name) // an error shows again when it is applied
			p.strangers[name] = live
		}
	}
	if live == nil {
		return gridchild.Existing{}, false
	}
	return gridchild.Existing{
		Claim: gridchild.Claim(p.owner, name, live.controller, live.grid), SelectsSite: live.selectsSite,
	}, true
}

func (p *pass) run(ctx context.Context) (err error) {
	m := p.memory
	if p.children, err = p.childrenOf(ctx, p.kind, p.owner); err != nil {
		return err
	}
	if m.generation != p.grid.GetGeneration() || !maps.Equal(m.labels, p.owner.Labels) {
		m.generation, m.labels = p.grid.GetGeneration(), p.owner.Labels
		m.templates, m.rollout.revisions = map[string]*templateMemory{}, nil
		for _, site := range m.sites {
			site.desired = identity{}
		}
	}
	if p.holdKey() {
		return nil
	}
	p.assigned = gridchild.Assign(p.owner, p.names, func(name string) (gridchild.Existing, bool) {
		return p.known(ctx, name)
	})
	if err := p.aim(ctx); err != nil {
		return err
	}
	p.findVanished(ctx)
	held := p.holdLosses()
	p.sync(ctx)
	for _, site := range p.names {
		p.look(site)
	}
	p.explainStalled(ctx)
	p.conclude(ctx)
	p.removeVanished(ctx, held)
	maps.DeleteFunc(m.sites, func(site string, _ *siteMemory) bool {
		_, exists := p.states[site]
		return !exists
	})
	return nil
}

// look records the state of a site that was synced.
func (p *pass) look(site string) {
	result := p.results[site]
	if result.child == nil {
		// An existing child is kept, whatever is wrong now.
		result.child = cmp.Or(p.child(site), p.orphan(site))
		p.results[site] = result
	}
	live := result.child
	state := siteState(gridchild.TemplateName(p.spec, site), result)
	if live != nil && state.Phase == v1.SiteReady && !p.complete(live) {
		state.Phase = v1.SiteProgressing
	}
	if live != nil && p.spec.Rollout != nil && live.revision != p.update {
		state.Revision = live.revision
	}
	p.followProgress(site, &state, live)
	p.states[site] = state
	p.lookAgain(result.again)
	if live != nil && ptr.Deref(p.spec.SiteLabel, false) && !live.selectsSite {
		p.keepSelector = append(p.keepSelector, site)
	}
	if result.applied {
		p.applied = append(p.applied, site)
	}
	if result.handedOver != "" {
		p.handedOver = append(p.handedOver, site+" "+result.handedOver)
	}
	if _, ok := p.memory.removals[site]; ok {
		p.returned = append(p.returned, site)
		delete(p.memory.removals, site)
	}
}

// templateMemory has the results of the attempts to apply one template.
type templateMemory struct {
	// shapes has the children's shapes, by whether the selector names the site.
	shapes map[bool]*shape
	// proven is set once the API server has accepted the template. refused is why it has refused the template since
	// then, for the site by.
	proven  bool
	refused error
	by      string
	// turn counts the refused attempts. The next attempt is at retryAt.
	turn    int
	retryAt time.Time
}

// sync syncs the children of all sites. The cache and the memory show that most of them need no change. The others are
// written concurrently, as many as fit into one pass. A template that the API server has not accepted yet is first
// tried on one site.
func (p *pass) sync(ctx context.Context) {
	pending := map[string][]*desired{}
	for _, site := range p.names {
		live, to := p.child(site), p.targets[site]
		if to.Templates == nil || (live != nil && live.held) {
			p.results[site] = result{child: live, err: to.err}
			continue
		}
		d, err := p.desire(site)
		if err != nil {
			p.results[site] = result{err: err}
			if gridchild.Tellable(err).Reason == v1.ReasonSyncFailed { // the schema for a patch could not be read
				p.results[site] = result{err: err, again: p.clock.Now().Add(firstRetry * 5)}
			}
			continue
		}
		if result, done := settled(p.clock.Now(), live, d, &p.memory.of(site).childMemory); done {
			p.results[site] = result
			continue
		}
		pending[to.variant] = append(pending[to.variant], d)
	}
	// The time for requests begins here. Rendering is not included, because its results are kept for the next pass.
	p.deadline = p.clock.Now().Add(passBudget)
	for _, name := range slices.Sorted(maps.Keys(pending)) {
		p.syncTemplate(ctx, p.memory.templates[name], pending[name])
	}
}

func (p *pass) syncTemplate(ctx context.Context, t *templateMemory, all []*desired) {
	switch {
	case t.refused != nil && p.clock.Now().Before(t.retryAt):
		p.refuse(t, all)
		return
	case !t.proven || t.refused != nil:
		// Each attempt uses another site, because the reason may be the site's own child and not the template.
		i := t.turn % len(all)
		probe := all[i]
		all = slices.Delete(slices.Clone(all), i, i+1)
		t.turn++
		p.budget--
		outcome := p.syncOne(ctx, probe)
		p.results[probe.site] = outcome
		switch {
		case outcome.err == nil && outcome.again.IsZero():
			t.proven, t.refused, t.turn = true, nil, 0
		case outcome.err != nil && gridchild.Tellable(outcome.err).Reason == v1.ReasonRejected:
			t.refused, t.by = outcome.err, probe.site
			t.retryAt = p.clock.Now().Add(min(firstRetry<<min(t.turn, 10), lastRetry))
		}
		if t.refused != nil {
			p.refuse(t, all)
			return
		}
		// The probe has set the template's shape, by which children in the cache are recognised as settled. After a
		// restart these are all children.
		all = slices.DeleteFunc(all, func(d *desired) bool {
			outcome, done := settled(p.clock.Now(), p.child(d.site), d, &p.memory.of(d.site).childMemory)
			if done {
				p.results[d.site] = outcome
			}
			return done
		})
	}
	outcomes := make([]result, len(all))
	var group errgroup.Group
	group.SetLimit(atOnce)
	for i, d := range all {
		if p.budget <= 0 || p.spent() {
			outcomes[i].again = p.clock.Now()
			continue
		}
		p.budget--
		if _, err := d.child(); err != nil { // rendered here, because it must not be called concurrently
			outcomes[i].err = err
			continue
		}
		group.Go(func() error {
			outcomes[i] = p.syncOne(ctx, d)
			return nil
		})
	}
	_ = group.Wait() // its functions return no errors
	for i, d := range all {
		p.results[d.site] = outcomes[i]
	}
}

// refuse records that a template was refused for one site, and not tried for the others.
func (p *pass) refuse(t *templateMemory, some []*desired) {
	untried := gridchild.Errorf(v1.ReasonRejected,
		"not tried, because the API server has refused this template for site %s: %s",
		t.by, gridchild.Tellable(t.refused).Message)
	for _, d := range some {
		p.results[d.site] = result{err: untried, again: t.retryAt, untried: true}
		if d.site == t.by {
			p.results[d.site] = result{err: t.refused, again: t.retryAt}
		}
	}
}

// syncOne syncs a child. If another grid has taken its name, it gets its alternative name once the cache shows that.
func (p *pass) syncOne(ctx context.Context, d *desired) result {
	outcome := p.cluster.sync(ctx, p.kind, p.owner, d, &p.memory.sites[d.site].childMemory)
	if errors.Is(outcome.err, gridchild.ErrTaken) && d.name != p.AlternativeChildName(p.owner.Name, d.site) {
		outcome = result{again: p.clock.Now().Add(cacheLag)}
	}
	return outcome
}

// desire returns the desired child of a site. Its identity is remembered for the same generation of the grid, so that
// not all sites of a large grid are rendered again in each pass.
func (p *pass) desire(site string) (*desired, error) {
	m, to := p.memory, p.targets[site]
	known, selects := &m.of(site).desired, p.assigned.SelectsSite[site]
	d := &desired{
		identity: identity{p.assigned.BySite[site], selects, to.variant, known.digest},
		site:     site,
		child:    sync.OnceValues(func() (*gridchild.Child, error) { return p.assigned.Child(site, to.Source) }),
	}
	if d.digest == "" || d.identity != *known {
		child, err := p.assigned.Child(site, to.Source) // not kept: most are not needed, and there may be ten thousand
		if err != nil {
			return nil, err
		}
		d.digest = child.Digest
		*known = d.identity
	}
	if m.templates[to.variant] == nil {
		m.templates[to.variant] = &templateMemory{shapes: map[bool]*shape{true: {}, false: {}}}
	}
	d.shape = m.templates[to.variant].shapes[selects]
	return d, nil
}
