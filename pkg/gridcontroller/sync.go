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

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/gridcontroller/gridchild"
)

const (
	// atOnce is the largest number of children of one grid that are written concurrently.
	atOnce = 16
	// perPass is the largest number of children that are written before the status is written.
	perPass = 256
	// passBudget is how long a pass over a grid may start requests, because other grids wait for the worker.
	passBudget = 2 * time.Second
)

// templateMemory has the results of the attempts to apply one template.
type templateMemory struct {
	// shapes has the children's shapes, by whether the selector names the site.
	shapes map[bool]*shape
	// proven is set once the API server has accepted the template. refused is why it has refused the template before
	// that, for the site by.
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
func (p *planned) sync(ctx context.Context) *synced {
	s := &synced{planned: p, results: map[string]result{}, leaving: map[string]v1.SiteState{}}
	pending := map[string][]*desired{}
	for _, site := range p.names {
		live, to := p.child(site), p.targets[site]
		if to.Templates == nil || (live != nil && live.held) {
			s.results[site] = result{child: live, err: to.err}
			continue
		}
		d, err := p.desiredChild(site)
		if err != nil {
			s.results[site] = result{err: err}
			if gridchild.Tellable(err).Reason == v1.ReasonSyncFailed { // the schema for a patch could not be read
				s.results[site] = result{err: err, again: p.clock.Now().Add(firstRetry * 5)}
			}
			continue
		}
		if result, done := settled(p.clock.Now(), live, d, &p.memory.ofSite(site).childMemory); done {
			s.results[site] = result
			continue
		}
		pending[to.variant] = append(pending[to.variant], d)
	}
	// The time for requests begins here. Rendering is not included, because its results are kept for the next pass.
	p.deadline = p.clock.Now().Add(passBudget)
	for _, name := range slices.Sorted(maps.Keys(pending)) {
		s.syncTemplate(ctx, p.memory.templates[name], pending[name])
	}
	for _, site := range p.names {
		r := s.results[site]
		r.child = cmp.Or(r.child, p.child(site), p.orphan(site)) // it is kept, whatever is wrong now
		s.results[site] = r
		if r.applied {
			s.applied = append(s.applied, site)
		}
		if r.handedOver != "" {
			s.handedOver = append(s.handedOver, site+" "+r.handedOver)
		}
		if p.memory.ofSite(site).state.Phase == v1.SiteRemoving {
			s.returned = append(s.returned, site)
		}
	}
	s.removeVanished(ctx)
	return s
}

func (p *synced) syncTemplate(ctx context.Context, t *templateMemory, all []*desired) {
	switch {
	case t.refused != nil && p.clock.Now().Before(t.retryAt):
		p.refuse(t, all)
		return
	case !t.proven:
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
			t.proven, t.refused = true, nil
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
			outcome, done := settled(p.clock.Now(), p.child(d.site), d, &p.memory.ofSite(d.site).childMemory)
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
func (p *synced) refuse(t *templateMemory, some []*desired) {
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
	outcome := p.syncChild(ctx, p.owner, d, &p.memory.sites[d.site].childMemory)
	if errors.Is(outcome.err, gridchild.ErrTaken) && d.name != p.AlternativeChildName(p.owner.Name, d.site) {
		outcome = result{again: p.clock.Now().Add(cacheLag)}
	}
	return outcome
}

// desiredChild returns the desired child of a site. Its identity is remembered for the same generation of the grid, so
// that not all sites of a large grid are rendered again in each pass.
func (p *planned) desiredChild(site string) (*desired, error) {
	m, to := p.memory, p.targets[site]
	known, selects := &m.ofSite(site).desired, p.assignment.SelectsSite[site]
	d := &desired{
		identity: identity{p.assignment.BySite[site], selects, to.variant, known.digest},
		site:     site,
		child:    sync.OnceValues(func() (*gridchild.Child, error) { return p.assignment.Child(site, to.Source) }),
	}
	if d.digest == "" || d.identity != *known {
		// It is not kept: most are not needed, and there may be ten thousand.
		child, err := p.assignment.Child(site, to.Source)
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
