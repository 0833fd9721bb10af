package storage

import (
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"

	"github.com/application-grid/application-grid/pkg/topology"
	"github.com/application-grid/application-grid/pkg/wire"
)

// Options configure a Store.
type Options struct {
	// NodeName is the node whose view is served. When it is empty or not (yet) a node of the cluster, it
	// matches no topology key and governed Services have no endpoints.
	NodeName string
	// LocalEndpoint, if set, replaces the endpoints of default/kubernetes, whatever its annotations say.
	LocalEndpoint *LocalEndpoint
	// KeepKubernetesEndpoint turns the rewriting of default/kubernetes off.
	KeepKubernetesEndpoint bool
	// MaxEvents and MaxBytes bound the log of each resource; 0 means DefaultMaxEvents and DefaultMaxBytes.
	MaxEvents, MaxBytes int
	// Clock is time.Now if nil.
	Clock  func() time.Time
	Logger logr.Logger
}

// The log of a resource holds at most this many events, and events that hold on to at most this many bytes
// of superseded objects. A watcher that lags further behind lists again.
const (
	DefaultMaxEvents = 8192
	DefaultMaxBytes  = 8 << 20
)

// Store is the cache. Its methods may be called from any goroutine.
type Store struct {
	options Options

	// mu guards everything below and everything reachable from it, except Objects, which are immutable.
	mu sync.RWMutex
	// revision is that of the newest event of any resource. It starts at the clock's microseconds, so that
	// it grows across restarts as long as the clock does and there are fewer than a million events a second.
	revision uint64
	// received is when the change that is being applied arrived.
	received time.Time

	nodes       map[string]*node
	nodesSynced bool
	// here are the labels of this node; nil while it is not known.
	here topology.Labels
	// dead are the nodes whose endpoints are hidden; never this node.
	dead map[string]struct{}
	// addresses are the names of nodes by address, as far as somebody asked for them.
	addresses map[netip.Addr]string

	services       map[types.NamespacedName]*service
	servicesSynced bool
	// byKey leads from a topology key to the Services that it governs.
	byKey map[string]map[*service]struct{}
	// invalid are the Services whose topologyKeys do not parse, with the reason.
	invalid map[types.NamespacedName]string

	local          localEndpointState
	serviceTable   *table
	nodeTable      *table
	endpointslices *collection
	endpoints      *collection
}

// New makes an empty Store. It serves nothing until its inputs were filled.
func New(options Options) *Store {
	if options.Clock == nil {
		options.Clock = time.Now
	}
	if options.MaxEvents == 0 {
		options.MaxEvents = DefaultMaxEvents
	}
	if options.MaxBytes == 0 {
		options.MaxBytes = DefaultMaxBytes
	}
	if options.Logger.GetSink() == nil {
		options.Logger = logr.Discard()
	}
	s := &Store{
		options:  options,
		revision: uint64(max(options.Clock().UnixMicro(), 1)),
		nodes:    make(map[string]*node),
		services: make(map[types.NamespacedName]*service),
		byKey:    make(map[string]map[*service]struct{}),
		invalid:  make(map[types.NamespacedName]string),
	}
	s.serviceTable = s.newTable(Services)
	s.nodeTable = s.newTable(Nodes)
	s.endpointslices = &collection{table: s.newTable(EndpointSlices), backends: make(map[types.NamespacedName]*backend)}
	s.endpoints = &collection{table: s.newTable(Endpoints), backends: make(map[types.NamespacedName]*backend)}
	return s
}

func (s *Store) newTable(r *Resource) *table {
	return &table{resource: r, log: newEventLog(s.options.MaxEvents, s.options.MaxBytes)}
}

// tableOf is the table of a served resource.
func (s *Store) tableOf(r *Resource) *table {
	switch r {
	case Services:
		return s.serviceTable
	case Nodes:
		return s.nodeTable
	case EndpointSlices:
		return s.endpointslices.table
	case Endpoints:
		return s.endpoints.table
	default:
		panic("storage: " + r.Kind + " is not a served resource")
	}
}

func (s *Store) collections() [2]*collection { return [2]*collection{s.endpointslices, s.endpoints} }

func (s *Store) nextRevision() uint64 {
	s.revision++
	return s.revision
}

// update applies one change of upstream state and wakes the watchers that it concerns.
func (s *Store) update(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.received = s.options.Clock()
	change()
	for _, r := range Resources() {
		s.tableOf(r).log.broadcast()
	}
}

// openTables makes readable what has become complete. A view of endpoints is complete when the nodes, the
// Services, and what rewrites default/kubernetes are known too: without them it would leak or lie.
func (s *Store) openTables() {
	for _, c := range s.collections() {
		if c.table.ready || !c.synced || !s.nodesSynced || !s.servicesSynced || !s.localSynced() {
			continue
		}
		backends := make([]*backend, 0, len(c.backends))
		for _, b := range c.backends {
			backends = append(backends, b)
		}
		slices.SortFunc(backends, func(a, b *backend) int {
			if n := strings.Compare(a.upstream.Namespace, b.upstream.Namespace); n != 0 {
				return n
			}
			return strings.Compare(a.upstream.Name, b.upstream.Name)
		})
		c.table.ready = true
		for _, svc := range s.services {
			s.decide(c, svc)
		}
		for _, b := range backends {
			s.publish(c, b)
		}
		c.table.open(s)
	}
}

// Input takes the upstream's state of one kind of object.
type Input struct {
	s *Store
	// apply takes an object that is new or changed, remove one that is gone.
	apply  func(*wire.Object)
	remove func(types.NamespacedName)
	// names lists what the input holds.
	names func() []types.NamespacedName
	// synced is called after the first complete state was applied.
	synced func()
	// absent is called when the upstream does not serve the resource.
	absent func(bool)
}

// Apply takes an object that is new or changed.
func (in *Input) Apply(o *wire.Object) { in.s.update(func() { in.apply(o) }) }

// Remove takes the name of an object that is gone.
func (in *Input) Remove(namespace, name string) {
	in.s.update(func() { in.remove(types.NamespacedName{Namespace: namespace, Name: name}) })
}

// Replace takes the complete state. Only what differs from the state before becomes events.
func (in *Input) Replace(objects []*wire.Object) {
	in.s.update(func() {
		in.absent(false)
		listed := make(map[types.NamespacedName]struct{}, len(objects))
		for _, o := range objects {
			listed[types.NamespacedName{Namespace: o.Namespace, Name: o.Name}] = struct{}{}
			in.apply(o)
		}
		for _, name := range in.names() {
			if _, ok := listed[name]; !ok {
				in.remove(name)
			}
		}
		in.synced()
		in.s.openTables()
	})
}

// SetAbsent says that the upstream does not serve the resource at all.
func (in *Input) SetAbsent() {
	in.s.update(func() {
		in.absent(true)
		in.s.openTables()
	})
}

// tableAbsent is the absent function of an input that fills a table.
func tableAbsent(t *table) func(bool) {
	return func(absent bool) {
		if t.absent != absent {
			t.absent = absent
			t.log.dirty = true
		}
	}
}

// plainInput fills a table whose objects are served as they come.
func (s *Store) plainInput(t *table, applied func(*wire.Object), removed func(types.NamespacedName), synced func()) *Input {
	return &Input{
		s: s,
		apply: func(o *wire.Object) {
			values, err := t.resource.fieldsOf(o.Body)
			if err != nil {
				s.options.Logger.Error(err, "Cannot read an object, serving it without its fields", "resource", t.resource.Resource, "namespace", o.Namespace, "name", o.Name)
			}
			t.put(s, o, o.Body, values)
			applied(o)
		},
		remove: func(name types.NamespacedName) {
			t.remove(s, name.Namespace, name.Name)
			removed(name)
		},
		names: func() []types.NamespacedName {
			names := make([]types.NamespacedName, len(t.objects))
			for i, o := range t.objects {
				names[i] = types.NamespacedName{Namespace: o.Namespace(), Name: o.Name()}
			}
			return names
		},
		synced: func() {
			if !t.ready {
				t.open(s)
			}
			synced()
		},
		absent: tableAbsent(t),
	}
}

// Services is the input of all Services.
func (s *Store) Services() *Input {
	return s.plainInput(s.serviceTable, s.applyService, s.removeService, func() { s.servicesSynced = true })
}

// Node is the input of this node's Node object, which is served to clients as it is.
func (s *Store) Node() *Input {
	return s.plainInput(s.nodeTable, func(*wire.Object) {}, func(types.NamespacedName) {}, func() {})
}

// NodeLabels is the input of all nodes' metadata.
func (s *Store) NodeLabels() *Input {
	return &Input{
		s:      s,
		apply:  func(o *wire.Object) { s.setNode(o.Name, true, o.Labels) },
		remove: func(name types.NamespacedName) { s.setNode(name.Name, false, nil) },
		names:  s.knownNodes,
		synced: func() { s.nodesSynced = true },
		absent: func(bool) {},
	}
}

// EndpointSlices is the input of all EndpointSlices.
func (s *Store) EndpointSlices() *Input { return s.collectionInput(s.endpointslices) }

// Endpoints is the input of all Endpoints.
func (s *Store) Endpoints() *Input { return s.collectionInput(s.endpoints) }

func (s *Store) collectionInput(c *collection) *Input {
	return &Input{
		s:      s,
		apply:  func(o *wire.Object) { s.applyBackend(c, o) },
		remove: func(name types.NamespacedName) { s.removeBackend(c, name) },
		names: func() []types.NamespacedName {
			names := make([]types.NamespacedName, 0, len(c.backends))
			for name := range c.backends {
				names = append(names, name)
			}
			return names
		},
		synced: func() { c.synced = true },
		absent: tableAbsent(c.table),
	}
}
