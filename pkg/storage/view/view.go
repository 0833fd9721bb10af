package view

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"

	"github.com/application-grid/application-grid/pkg/storage/facts"
	"github.com/application-grid/application-grid/pkg/storage/history"
	"github.com/application-grid/application-grid/pkg/topology"
)

// Options configure a View.
type Options struct {
	Facts   *facts.Facts
	Viewer  Viewer
	History history.Options
	// LocalEndpoint, if set, replaces the endpoints of default/kubernetes, whatever its annotations say.
	LocalEndpoint *LocalEndpoint
	// KeepKubernetesEndpoint turns the rewriting of default/kubernetes off.
	KeepKubernetesEndpoint bool
	Logger                 logr.Logger
}

// View shows one viewer the facts. Its methods may be called from any goroutine.
type View struct {
	options Options
	facts   *facts.Facts
	history *history.History
	// serveRestored is set once facts that are restored from a State may be served.
	serveRestored atomic.Bool

	// What follows is guarded by the lock of the facts: it changes within their steps, and is read in Facts.Read.

	here    topology.Labels
	present bool
	// filled are the resources whose objects are published.
	filled map[*history.Resource]bool
	// building is set until a View of facts that were there before it has published them.
	building bool
	// decided has, of every Service with several keys, what decided when it was shown.
	decided map[*facts.Service]decided
	counts  map[*facts.Object]EndpointCount
	totals  map[*history.Resource]EndpointCount
	// content is the revision of the newest event that is worth a new State at once.
	content  uint64
	nodeMeta []byte
}

// decided is the deciding key of each collection of a Service, as long as its keys are these.
type decided struct {
	keys         topology.Keys
	slices, list string
}

// EndpointCount counts the endpoints that the shown objects keep and hide.
type EndpointCount struct{ Kept, Hidden int }

// buildStep is how many objects a new View publishes at a time. The facts cannot change meanwhile.
const buildStep = 64

// New makes a View, which follows the facts until Close.
func New(options Options) *View {
	if options.Logger.GetSink() == nil {
		options.Logger = logr.Discard()
	}
	v := &View{
		options: options, facts: options.Facts, history: history.New(options.History),
		building: true,
		filled:   make(map[*history.Resource]bool),
		decided:  make(map[*facts.Service]decided),
		counts:   make(map[*facts.Object]EndpointCount),
		totals:   make(map[*history.Resource]EndpointCount),
	}
	// What changes from here on is published by the step that changes it; what is there is published little by little,
	// so that no step waits long. Nobody can read the History meanwhile.
	var there publication
	v.facts.Attach(v, func() {
		v.here, v.present = options.Viewer(v.facts)
		for _, r := range history.Resources() {
			if v.facts.State(r) == history.Ready {
				v.fill(r, &there)
			}
		}
	})
	for part := range slices.Chunk(there.objects(), buildStep) {
		v.facts.Read(func() { v.publish(time.Time{}, &publication{listed: setOf(part)}) })
	}
	for part := range slices.Chunk(sortedNames(there.services), buildStep) {
		v.facts.Read(func() { v.publish(time.Time{}, &publication{services: setOf(part)}) })
	}
	v.facts.Read(func() {
		v.building = false
		v.publish(time.Time{}, &publication{node: there.node})
	})
	return v
}

// Close ends the View and its History.
func (v *View) Close() {
	v.facts.Detach(v)
	v.history.Close()
}

// History is what the viewer is served from.
func (v *View) History() *history.History { return v.history }

// ServeRestored serves the facts that are restored from a State, until those of the upstream are complete. It returns
// false if the facts are not restored.
func (v *View) ServeRestored() bool {
	v.serveRestored.Store(true)
	v.facts.Touch()
	return v.facts.Restored() != nil
}

// ServesRestored is the State that is served; nil if the facts are the upstream's, or nothing is served.
func (v *View) ServesRestored() *facts.State {
	if !v.serveRestored.Load() {
		return nil
	}
	return v.facts.Restored()
}

// Endpoints counts the endpoints of the shown objects of a resource.
func (v *View) Endpoints(r *history.Resource) EndpointCount {
	var count EndpointCount
	v.facts.Read(func() { count = v.totals[r] })
	return count
}

// FactsChanged implements facts.Watcher.
func (v *View) FactsChanged(c *facts.Change) {
	p := &publication{services: c.Services, node: len(c.Nodes) > 0, listed: c.Objects}
	v.viewerChanged(p)
	v.nodesChanged(c, p)
	for s := range c.Governed {
		if v.decide(s) {
			p.addService(s)
		}
	}
	for _, r := range history.Resources() {
		switch state := v.facts.State(r); {
		case state == history.Ready && !v.filled[r]:
			v.fill(r, p)
		case state == history.NotReady && v.filled[r]:
			p.cleared = append(p.cleared, r)
		}
	}
	v.publish(c.Received, p)
}

// viewerChanged shows anew what the viewer's own labels govern, where they changed.
func (v *View) viewerChanged(p *publication) {
	here, present := v.options.Viewer(v.facts)
	changed := changedKeys(v.here, here)
	if present != v.present {
		changed = append(changed, topology.Any)
	}
	v.here, v.present = here, present
	for _, key := range changed {
		for s := range v.facts.GovernedBy(key) {
			v.decide(s)
			p.addService(s)
		}
	}
}

// nodesChanged shows anew what lists endpoints on nodes that the viewer now sees otherwise.
func (v *View) nodesChanged(c *facts.Change, p *publication) {
	for n, before := range c.Relabelled {
		for _, key := range changedKeys(before, n.Labels) {
			ours, ok := v.here[key]
			if !ok || matches(before, key, ours) == matches(n.Labels, key, ours) {
				continue
			}
			for _, o := range n.Objects() {
				if o.Service != nil && slices.Contains(o.Service.Keys, key) {
					p.add(o)
				}
			}
		}
	}
	for name := range c.Died {
		for _, o := range v.facts.NodeObjectsOf(name) {
			p.add(o)
		}
	}
}

func matches(labels topology.Labels, key, value string) bool {
	theirs, ok := labels[key]
	return ok && theirs == value
}

// changedKeys are the keys whose value, or presence, differs.
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

// decide notes what decides for a Service, and reports whether all of it is to be shown anew.
func (v *View) decide(s *facts.Service) bool {
	if len(s.Keys) < 2 {
		// A single key decides alone; the Service is here because its keys changed.
		delete(v.decided, s)
		return true
	}
	now := decided{
		keys:   s.Keys,
		slices: v.decision(s, history.EndpointSlices).Key(),
		list:   v.decision(s, history.Endpoints).Key(),
	}
	before, found := v.decided[s]
	v.decided[s] = now
	return !found || !slices.Equal(before.keys, now.keys) || before.slices != now.slices || before.list != now.list
}

// decision is what the viewer sees of a Service.
func (v *View) decision(s *facts.Service, r *history.Resource) topology.Decision {
	if !v.present {
		return topology.Unsatisfiable().Decide(nil, topology.NoRank)
	}
	return s.Decide(r, v.here)
}

// fill publishes all objects of a resource.
func (v *View) fill(r *history.Resource, p *publication) {
	v.filled[r] = true
	switch r {
	case history.Services:
		p.services = make(map[types.NamespacedName]struct{})
		v.facts.Services(func(s *facts.Service) { p.services[s.Name] = struct{}{} })
	case history.Nodes:
		p.node = true
	default:
		v.facts.Objects(r, p.add)
		v.facts.Services(func(s *facts.Service) { v.decide(s) })
	}
}
