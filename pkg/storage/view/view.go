package view

import (
	"errors"
	"slices"
	"sync/atomic"

	"github.com/go-logr/logr"

	"github.com/application-grid/application-grid/pkg/storage/facts"
	"github.com/application-grid/application-grid/pkg/storage/history"
	"github.com/application-grid/application-grid/pkg/storage/served"
	"github.com/application-grid/application-grid/pkg/topology"
)

// Options configure a View.
type Options struct {
	Facts   *facts.Facts
	Viewer  Viewer
	History history.Options
	// LocalEndpoint, if set, replaces the endpoints of default/kubernetes, whatever its annotations say.
	LocalEndpoint *LocalEndpoint
	// KeepKubernetesEndpoint turns off the rewriting of default/kubernetes.
	KeepKubernetesEndpoint bool
	Logger                 logr.Logger
}

// View shows the facts to one viewer. Its methods may be called from any goroutine.
type View struct {
	options Options
	source  *facts.Facts
	history *history.History
	// serveRestored is set once facts that were restored from a Snapshot may be served.
	serveRestored atomic.Bool

	// The fields below are guarded by the lock of the facts: they change within steps, and are read in Facts.Read.

	here    topology.Labels
	present bool
	// filled has the resources whose objects are published.
	filled map[*served.Resource]bool
	// stale is set while the View must be built from all facts.
	stale bool
	// choices has how Services are shown, for those whose keys alone do not decide it.
	choices map[*facts.Service]serviceChoices
	counts  map[*facts.EndpointSet]EndpointCount
	// former has how an earlier process showed the objects of the restored State; nil if the facts are the upstream's.
	former map[facts.Key]facts.Shown
	// snapshotVersion is the revision of the newest event that is worth a new snapshot on disk.
	snapshotVersion uint64
	nodeMeta        []byte
}

// lockedView is a View with a Reader, while the facts do not change.
type lockedView struct {
	*View
	facts facts.Reader
}

// serviceChoices has how a Service's slices and its Endpoints (list) are shown, for these keys.
type serviceChoices struct {
	keys         topology.Keys
	slices, list []facts.Choice
}

// EndpointCount counts the endpoints that the shown objects keep and hide.
type EndpointCount struct{ Kept, Hidden int }

// New makes a View, which follows the facts until Close.
func New(options Options) *View {
	v := &View{
		options: options, source: options.Facts, history: history.New(options.History), stale: true,
		filled:  make(map[*served.Resource]bool),
		choices: make(map[*facts.Service]serviceChoices),
		counts:  make(map[*facts.EndpointSet]EndpointCount),
	}
	v.source.Attach(v, func(in facts.Reader) { v.FactsChanged(in, &facts.Change{}) })
	return v
}

// Close ends the View and its History.
func (v *View) Close() {
	v.source.Detach(v)
	v.history.Close()
}

// History returns the History from which the viewer is served.
func (v *View) History() *history.History { return v.history }

// AllowRestored serves the facts that were restored from a Snapshot, until those of the upstream are complete. It
// returns false if the facts were not restored, or are complete already.
func (v *View) AllowRestored() bool {
	v.serveRestored.Store(true)
	v.source.Touch()
	return v.source.Restored() != nil
}

// ServedSnapshot returns the restored State that is served; nil if the facts are the upstream's, or if nothing is
// served.
func (v *View) ServedSnapshot() *facts.Snapshot {
	if !v.serveRestored.Load() {
		return nil
	}
	return v.source.Restored()
}

// CountEndpoints counts the endpoints of the shown objects of a resource.
func (v *View) CountEndpoints(r *served.Resource) (count EndpointCount) {
	v.source.Read(func(facts.Reader) {
		for o, of := range v.counts {
			if o.Resource() == r {
				count.Kept, count.Hidden = count.Kept+of.Kept, count.Hidden+of.Hidden
			}
		}
	})
	return count
}

// Divided returns the names of the Services whose ports are shown to the viewer by different keys, sorted.
func (v *View) Divided() (names []string) {
	v.source.Read(func(facts.Reader) {
		for s, d := range v.choices {
			if slices.ContainsFunc(d.slices, func(c facts.Choice) bool { return c.Rank() != d.slices[0].Rank() }) {
				names = append(names, s.Name.String())
			}
		}
	})
	slices.Sort(names)
	return names
}

// FactsChanged implements facts.Watcher.
func (v *View) FactsChanged(in facts.Reader, c *facts.Change) {
	now := lockedView{v, in}
	if v.stale = v.stale || c.Rebuilt; v.stale {
		now.rebuild(c)
		v.stale = false
		return
	}
	p := newPublication(c)
	now.updateViewer(p)
	now.addNodeChanges(c, p)
	for s := range c.Rejudged {
		if now.recomputeChoices(s) {
			p.addService(s)
		}
	}
	for _, r := range served.All() {
		now.fillOrClear(r, p)
	}
	now.publish(c.Received, p)
}

// fillOrClear fills a resource that can be shown now, and clears one that no longer can.
func (v lockedView) fillOrClear(r *served.Resource, p *publication) {
	switch err := v.facts.Readable(r); {
	case err == nil && !v.filled[r]:
		v.fill(r, p)
	case errors.Is(err, served.ErrNotReady) && v.filled[r]:
		p.cleared = append(p.cleared, r)
	}
}

// rebuild publishes all objects, and removes shown ones that no longer exist.
func (v lockedView) rebuild(c *facts.Change) {
	clear(v.choices)
	clear(v.counts)
	v.here, v.present = v.options.Viewer(v.facts)
	p := newPublication(&facts.Change{})
	for _, r := range served.All() {
		if v.facts.Readable(r) == nil {
			delete(v.filled, r)
		}
		v.fillOrClear(r, p)
		for name := range v.history.Objects(r) {
			if v.facts.Upstream(r, name) == nil {
				p.whole[facts.Key{Resource: r, Name: name}] = struct{}{}
			}
		}
	}
	v.publish(c.Received, p)
}

// updateViewer adds the objects that must be shown differently because the viewer's own labels changed.
func (v lockedView) updateViewer(p *publication) {
	here, present := v.options.Viewer(v.facts)
	changed := changedKeys(v.here, here)
	if present != v.present {
		changed = append(changed, topology.Any)
	}
	v.here, v.present = here, present
	for _, key := range changed {
		for s := range v.facts.GovernedBy(key) {
			v.recomputeChoices(s)
			p.addService(s)
		}
	}
}

// addNodeChanges adds the objects that list endpoints on nodes whose labels changed for this viewer, or that died or
// came back to life.
func (v lockedView) addNodeChanges(c *facts.Change, p *publication) {
	for n, before := range c.Relabelled {
		for _, key := range changedKeys(before, n.Labels) {
			if one := (topology.Keys{key}); one.Rank(v.here, before) == one.Rank(v.here, n.Labels) {
				continue
			}
			for _, o := range n.Objects {
				if o.Service != nil && slices.Contains(o.Service.Keys, key) {
					p.addObject(o)
				}
			}
		}
	}
	for name := range c.DoubtChanged {
		for _, o := range v.facts.NodeObjectsOf(name) {
			p.addObject(o)
		}
	}
}

// changedKeys returns the keys whose value or presence differs.
func changedKeys(before, after topology.Labels) []string {
	var changed []string
	for key, value := range before {
		if other, ok := after[key]; !ok || other != value {
			changed = append(changed, key)
		}
	}
	for key := range after {
		if _, ok := before[key]; !ok {
			changed = append(changed, key)
		}
	}
	return changed
}

// recomputeChoices updates the choices for a Service, and reports whether all its objects may have to be shown
// differently.
func (v lockedView) recomputeChoices(s *facts.Service) bool {
	now := serviceChoices{
		keys:   s.Keys,
		slices: s.Choices(served.EndpointSlices, v.here),
		list:   s.Choices(served.Endpoints, v.here),
	}
	if len(now.slices)+len(now.list) == 0 {
		// It was called because the keys changed, or because the last suspicion ended.
		delete(v.choices, s)
		return true
	}
	before, found := v.choices[s]
	v.choices[s] = now
	return !found || !slices.Equal(before.keys, now.keys) ||
		!slices.EqualFunc(before.slices, now.slices, facts.Choice.Equal) ||
		!slices.EqualFunc(before.list, now.list, facts.Choice.Equal)
}

// choiceFor returns how an object of a Service is shown. For a Service without choices it is the zero value: the
// Service's key decides alone.
func (v lockedView) choiceFor(o *facts.EndpointSet) topology.Choice {
	d := v.choices[o.Service]
	choices := d.slices
	if o.Resource() == served.Endpoints {
		choices = d.list
	}
	for i := range choices {
		if choices[i].AppliesTo(o) {
			return choices[i].Choice
		}
	}
	return topology.Choice{}
}

func (v lockedView) fill(r *served.Resource, p *publication) {
	v.filled[r] = true
	if listsEndpoints(r) {
		v.facts.Objects(r, p.addObject)
		v.facts.Services(func(s *facts.Service) { v.recomputeChoices(s) })
		return
	}
	for _, name := range v.facts.Names(r) {
		p.whole[facts.Key{Resource: r, Name: name}] = struct{}{}
	}
}
