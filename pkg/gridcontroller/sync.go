package gridcontroller

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/gridcontroller/gridchild"
)

const (
	// maxWrites is the largest number of children of one grid that are written concurrently.
	maxWrites = 16
	// passBudget is how long a pass may start requests: the status is written after it, and other grids wait.
	passBudget = 2 * time.Second
)

// templateMemory has the results of the attempts to apply one template.
type templateMemory struct {
	// fieldSetHash is desired.fieldSetHash, once the API server has accepted the template. refused is why it did
	// not, for site by.
	fieldSetHash atomic.Value
	refused      error
	by           string
	// turn counts the refused attempts. The next attempt is at retryAt.
	turn    int
	retryAt time.Time
}

// sync syncs the children of all sites: most need no change, the others are written concurrently, as many as fit into
// one pass. A template that the API server has not accepted yet is first tried on one site.
func (p *planned) sync(ctx context.Context) *synced {
	s := &synced{planned: p, results: map[string]result{}}
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
			if gridchild.ErrorFrom(err).Reason == v1.ReasonSyncFailed { // the schema for a patch could not be read
				s.results[site] = result{err: err, requeueTime: p.clock.Now().Add(firstRetry * 5)}
			}
			continue
		}
		if result, done := settled(p.clock.Now(), live, d, p.memory.ofSite(site)); done {
			s.results[site] = result
			continue
		}
		pending[d.variant] = append(pending[d.variant], d)
	}
	// The time for requests begins here. Rendering is not included, because its results are kept for the next pass.
	p.deadline = p.clock.Now().Add(passBudget)
	for _, name := range slices.Sorted(maps.Keys(pending)) {
		s.syncTemplate(ctx, p.memory.templates[name], pending[name])
	}
	for _, site := range p.names {
		r := s.results[site]
		r.child = cmp.Or(r.child, p.child(site)) // it is kept, whatever is wrong now
		s.results[site] = r
	}
	return s
}

func (p *synced) syncTemplate(ctx context.Context, t *templateMemory, all []*desired) {
	if t.fieldSetHash.Load() == nil && !p.clock.Now().Before(t.retryAt) {
		// Each attempt uses another site, because the reason may be the site's own child and not the template.
		i := t.turn % len(all)
		probe := all[i]
		t.turn++
		p.syncAll(ctx, []*desired{probe})
		switch outcome := p.results[probe.site]; {
		case outcome.err == nil && outcome.requeueTime.IsZero():
			t.refused = nil
		case outcome.err != nil && gridchild.ErrorFrom(outcome.err).Reason == v1.ReasonRejected:
			t.refused, t.by = outcome.err, probe.site
			t.retryAt = p.clock.Now().Add(min(firstRetry<<min(t.turn, 10), lastRetry))
		}
		all = slices.Delete(slices.Clone(all), i, i+1)
	}
	if t.refused == nil {
		// A probe has set the fieldSetHash, which shows that cached children are settled: all, after a restart.
		p.syncAll(ctx, slices.DeleteFunc(all, func(d *desired) bool {
			outcome, done := settled(p.clock.Now(), p.child(d.site), d, p.memory.ofSite(d.site))
			if done {
				p.results[d.site] = outcome
			}
			return done
		}))
		return
	}
	// The template was refused for one site, and is not tried for the others.
	untried := gridchild.Errorf(v1.ReasonRejected,
		"not tried, because the API server has refused this template for site %s: %s",
		t.by, gridchild.ErrorFrom(t.refused).Message)
	for _, d := range all {
		p.results[d.site] = result{err: untried, requeueTime: t.retryAt, untried: true}
		if d.site == t.by {
			p.results[d.site] = result{err: t.refused, requeueTime: t.retryAt}
		}
	}
}

// syncAll syncs children concurrently. Those for which the pass has no time are left to the next one.
func (p *synced) syncAll(ctx context.Context, all []*desired) {
	outcomes := make([]result, len(all))
	var group errgroup.Group
	group.SetLimit(maxWrites)
	for i, d := range all {
		if p.clock.Now().After(p.deadline) {
			outcomes[i].requeueTime = p.clock.Now()
			continue
		}
		d.child, outcomes[i].err = p.assignment.Render(d.site, p.targets[d.site].Templates, p.update)
		if outcomes[i].err != nil {
			continue
		}
		group.Go(func() error { // rendering is not safe for concurrent use
			outcomes[i] = p.syncChild(ctx, p.owner, d, p.memory.sites[d.site])
			return nil
		})
	}
	_ = group.Wait() // its functions return no errors
	for i, d := range all {
		p.results[d.site] = outcomes[i]
	}
}

// desiredChild returns the desired child of a site. Its identity is remembered for the same generation of the grid, so
// that not all sites of a large grid are rendered again in each pass.
func (p *planned) desiredChild(site string) (*desired, error) {
	m, to := p.memory, p.targets[site]
	known, variant := &m.ofSite(site).desired, fmt.Sprintf("%s\n%s\n%s\n%t", to.Revision, to.Variant(site),
		p.update.Variant(site), p.assignment.SelectsSite[site])
	d := &desired{identity: identity{p.assignment.BySite[site], variant, known.digest}, site: site}
	if d.digest == "" || d.identity != *known {
		// It is not kept: most are not needed, and there may be ten thousand.
		child, err := p.assignment.Render(site, to.Templates, p.update)
		if err != nil {
			return nil, err
		}
		d.digest = child.GetAnnotations()[v1.AnnotationAppliedDigest]
		*known = d.identity
	}
	if m.templates[variant] == nil {
		m.templates[variant] = &templateMemory{}
	}
	d.fieldSetHash = &m.templates[variant].fieldSetHash
	return d, nil
}
