package facts

import (
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"github.com/application-grid/application-grid/pkg/storage/served"
	"github.com/application-grid/application-grid/pkg/storage/wire"
	"github.com/application-grid/application-grid/pkg/topology"
)

// Options configure Facts.
type Options struct {
	// NodeName is the name of this process's node, which is never dead. Its Node object has an input of its own
	// (InputNode).
	NodeName string
	// NeedsKubernetesEndpoints says that endpoints are not complete without the Endpoints object default/kubernetes,
	// whose annotations name the local API server.
	NeedsKubernetesEndpoints bool
	// SiteKeys are the keys of labels. Nodes that share the value of any of them belong to one site. If empty, the
	// topology keys of all Services are used.
	SiteKeys []string
	// OnPanic, if set, is called with the reason and the stack when a step panicked. The stored objects are kept. The
	// indexes are rebuilt, and so is everything that Watchers have derived from them. The change of the step itself may
	// be lost, so the upstream should be listed again. OnPanic must not call the Facts. Without it the panic ends the
	// program.
	OnPanic func(error)
	// Clock is time.Now if nil.
	Clock  func() time.Time
	Logger logr.Logger
}

// Facts store the known state of the cluster. The methods may be called from any goroutine. The state is read through a
// Reader.
type Facts struct {
	options Options

	mu sync.RWMutex // guards everything below and everything reachable from it, except wire.Objects, which never change

	nodes nodeStore
	node  plainStore
	// namespaces are followed on demand.
	namespaces plainStore
	services   serviceStore
	slices     endpointStore
	legacy     endpointStore
	// kubernetes has the Endpoints object default/kubernetes.
	kubernetes plainStore

	// doubted has the names of the nodes with each Doubt; never this node.
	doubted [NoDoubt]map[string]struct{}
	notes   Notes
	// noteChanges counts the changes of notes.
	noteChanges uint64
	// livePods has the pods of nodes by the node's name, as reported by the nodes themselves.
	livePods map[string]*LivePods

	// inputs are in the order in which they are applied in one step.
	inputs []*Input
	// restored is the Snapshot from which the facts were restored; nil once the upstream's state is applied.
	restored *Snapshot
	// holding is set while changes from the upstream are held back.
	holding bool
	// shareMark is the Mark of the last ShareStep.
	shareMark []byte
	// live is closed once the upstream's state is complete and applied.
	live chan struct{}

	watchers map[Watcher]struct{}
	// step is everything that the current step has touched so far.
	step Change
	// changes counts the steps that have touched anything.
	changes uint64
}

// New makes empty Facts.
func New(options Options) *Facts {
	if options.Clock == nil {
		options.Clock = time.Now
	}
	f := &Facts{
		options: options, live: make(chan struct{}), watchers: make(map[Watcher]struct{}),
		livePods: make(map[string]*LivePods),
	}
	f.nodes, f.services, f.kubernetes = nodeStore{f: f}, serviceStore{f: f}, f.newKubernetesEndpoints()
	f.node, f.namespaces = f.newPlainStore(served.Nodes), f.newPlainStore(served.Namespaces)
	f.slices = endpointStore{f: f, resource: served.EndpointSlices, codec: &wire.EndpointSlice}
	f.legacy = endpointStore{f: f, resource: served.Endpoints, codec: &wire.Endpoints}
	f.emptyIndexes()
	f.inputs = []*Input{
		{f: f, name: InputNodes, store: &f.nodes, needed: true},
		{f: f, name: InputNode, store: &f.node, needed: options.NodeName != ""},
		{
			f: f, name: InputKubernetesEndpoints, store: &f.kubernetes,
			needed: options.NeedsKubernetesEndpoints,
		},
		{f: f, name: InputServices, store: &f.services, needed: true},
		{f: f, name: InputEndpointSlices, store: &f.slices, needed: true},
		{f: f, name: InputEndpoints, store: &f.legacy},
		{f: f, name: InputNamespaces, store: &f.namespaces},
	}
	return f
}

// Live is closed once the state of the upstream is complete and applied.
func (f *Facts) Live() <-chan struct{} { return f.live }

// IsLive reports whether Live is closed.
func (f *Facts) IsLive() bool {
	select {
	case <-f.live:
		return true
	default:
		return false
	}
}

// Input returns the input with that name, which is one of the constants.
func (f *Facts) Input(name string) *Input {
	return f.inputs[slices.IndexFunc(f.inputs, func(in *Input) bool { return in.name == name })]
}

// runStep runs one step, and passes its Change to the Watchers.
func (f *Facts) runStep(step func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.step = Change{Received: f.options.Clock()}
	if f.runRecovered(func() {
		step()
		f.services.recount()
	}) {
		f.rebuild()
	}
	if f.restored == nil && f.complete(&f.slices) && !f.IsLive() {
		close(f.live)
	}
	for w := range f.watchers {
		if f.runRecovered(func() { w.FactsChanged(f.reader(), &f.step) }) {
			all := &Change{Received: f.step.Received, Rebuilt: true}
			_ = f.runRecovered(func() { w.FactsChanged(f.reader(), all) })
		}
	}
	c := &f.step
	if c.Rebuilt || len(c.Plain)+len(c.EndpointSets)+len(c.Rejudged)+len(c.Relabelled)+len(c.DoubtChanged) > 0 {
		f.changes++
	}
	f.step = Change{}
}

// Changes returns a number that grows with every step that touches anything.
func (f *Facts) Changes() uint64 { return get(f, func(Reader) uint64 { return f.changes }) }

// complete reports whether an endpointStore can be shown. That also requires the nodes, the Services, and the
// annotations for rewriting default/kubernetes: without them too many endpoints, or wrong ones, would be shown.
func (f *Facts) complete(c *endpointStore) bool {
	return c.synced && f.nodes.synced && f.services.synced &&
		(!f.options.NeedsKubernetesEndpoints || f.kubernetes.synced || f.kubernetes.absent)
}

// Readable returns served.ErrNotReady or served.ErrAbsent if a resource cannot be shown.
func (in Reader) Readable(r *served.Resource) error {
	store := in.store(r)
	absent, ready := store.state()
	if c, lists := store.(*endpointStore); lists {
		ready = in.f.complete(c)
	}
	switch {
	case absent:
		return served.ErrAbsent
	case ready:
		return nil
	default:
		return served.ErrNotReady
	}
}

// Attach calls first, and then passes every step to the Watcher. No step is made between the two.
func (f *Facts) Attach(w Watcher, first func(Reader)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	first(f.reader())
	f.watchers[w] = struct{}{}
}

// Detach removes a Watcher.
func (f *Facts) Detach(w Watcher) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.watchers, w)
}

// Touch makes a step without a change. A Watcher whose own state has changed uses it to be called.
func (f *Facts) Touch() { f.runStep(func() {}) }

// Read calls read, during which no step is made, so that several facts can be read consistently. read must be quick: it
// delays every step.
func (f *Facts) Read(read func(Reader)) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	read(f.reader())
}

// get returns what of reads. No step is made meanwhile.
func get[T any](f *Facts, of func(Reader) T) (value T) {
	f.Read(func(in Reader) { value = of(in) })
	return value
}

// LabelsOf returns the labels of a node; nil if the node is not known or the name is empty.
func (in Reader) LabelsOf(name []byte) topology.Labels {
	if n := in.f.nodes.byName[string(name)]; n != nil {
		return n.Labels
	}
	return nil
}
