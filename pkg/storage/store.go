package storage

import (
	"maps"
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
	// State is what Restore may serve before the upstream's state is complete; nil if there is none. With a
	// State, what the upstream says is held back until it is complete, and then applied as one change.
	State *State
	// MinRevision is above every revision that earlier processes gave out.
	MinRevision uint64
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
	// revision is that of the newest event of any resource. It starts at the clock's microseconds, or above
	// what earlier processes gave out if the clock was set back.
	revision uint64
	// content is the revision of the newest event that is worth a new State at once.
	content uint64
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

	// inputs are all inputs, by name.
	inputs map[string]*Input
	// pending is what the upstream said, by input, while it is held back; nil when it is applied as it comes.
	pending map[string]*pending
	// restored is the State that is served; nil once that of the upstream is.
	restored *State
	// live is closed once the state of the upstream is complete and served.
	live chan struct{}
	// suspended is set while several changes are applied that clients are to see as one.
	suspended bool

	// views are this Store as seen from units, by unit.
	views map[string]*unitView
	// unit is set in such a view; its here is then the unit's value of every key. inhabited tells whether any
	// node is of the unit.
	unit      *string
	inhabited bool

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
		revision: max(uint64(max(options.Clock().UnixMicro(), 1)), options.MinRevision),
		live:     make(chan struct{}),
		nodes:    make(map[string]*node),
		services: make(map[types.NamespacedName]*service),
		byKey:    make(map[string]map[*service]struct{}),
		invalid:  make(map[types.NamespacedName]string),
	}
	s.serviceTable = s.newTable(Services)
	s.nodeTable = s.newTable(Nodes)
	s.endpointslices = &collection{table: s.newTable(EndpointSlices), backends: make(map[types.NamespacedName]*backend)}
	s.endpoints = &collection{table: s.newTable(Endpoints), backends: make(map[types.NamespacedName]*backend)}
	s.makeInputs()
	if options.State != nil {
		s.pending = make(map[string]*pending)
	}
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
	if s.pending == nil && s.servicesSynced && s.viewSynced(s.endpointslices) {
		select {
		case <-s.live:
		default:
			close(s.live)
		}
	}
	for _, r := range Resources() {
		s.tableOf(r).log.broadcast()
	}
}

// viewSynced tells whether a view of endpoints is complete. It is when the nodes, the Services, and what
// rewrites default/kubernetes are known too: without them it would leak or lie.
func (s *Store) viewSynced(c *collection) bool {
	return c.synced && s.nodesSynced && s.servicesSynced && s.localSynced()
}

// openTables makes readable what has become complete.
func (s *Store) openTables() {
	for _, c := range s.collections() {
		if c.table.ready || !s.viewSynced(c) {
			continue
		}
		c.table.ready = true
		s.publishAll(c)
		c.table.open(s)
	}
}

// publishAll shows all of a collection anew, in the order of lists.
func (s *Store) publishAll(c *collection) {
	for _, svc := range s.services {
		s.decide(c, svc)
	}
	for _, b := range sorted(slices.Collect(maps.Values(c.backends))) {
		s.publish(c, b)
	}
}

// sorted are the backends in the order of lists.
func sorted(backends []*backend) []*backend {
	return slices.SortedFunc(slices.Values(backends), func(a, b *backend) int { return compareObjects(a.upstream, b.upstream) })
}

func compareObjects(a, b *wire.Object) int {
	if n := strings.Compare(a.Namespace, b.Namespace); n != 0 {
		return n
	}
	return strings.Compare(a.Name, b.Name)
}
