package storage

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/application-grid/application-grid/pkg/topology"
	"github.com/application-grid/application-grid/pkg/wire"
)

// State is what a Store served from at one moment: enough for another Store of the same node to serve the
// same. It is immutable.
//
// Of a governed Service it has only the endpoints that one of the Service's keys matches, and of the nodes
// only those that it names. A node's share of a large cluster is small, and so is what is written to its disk.
type State struct {
	// NodeName is that of Options.
	NodeName string
	// AsOf is when the upstream last confirmed the state.
	AsOf time.Time
	// Sections are by input, in no order.
	Sections []Section
	// Addresses are Store.NodeAddresses.
	Addresses map[netip.Addr]string
}

// Section is the complete state of one input.
type Section struct {
	// Input is the input's name.
	Input   string
	Objects []*wire.Object
}

// pending is what the upstream said of one input while it is held back.
type pending struct {
	objects map[types.NamespacedName]*wire.Object
	// complete is set once objects is a complete state.
	complete bool
	// absent is set if the upstream says that it does not serve the resource.
	absent bool
}

func (p *pending) replace(objects []*wire.Object) {
	p.complete, p.absent = true, false
	p.objects = make(map[types.NamespacedName]*wire.Object, len(objects))
	for _, o := range objects {
		p.objects[nameOf(o)] = o
	}
}

// held is where an input's changes go while they are held back; nil when they are not.
func (s *Store) held(in *Input) *pending {
	if s.pending == nil {
		return nil
	}
	if s.pending[in.name] == nil {
		s.pending[in.name] = &pending{objects: make(map[types.NamespacedName]*wire.Object)}
	}
	return s.pending[in.name]
}

// awaited tells whether the upstream's state is incomplete without an input.
func (s *Store) awaited(name string) bool {
	switch name {
	case InputNode:
		return s.options.NodeName != ""
	case InputKubernetesEndpoints:
		return !s.options.KeepKubernetesEndpoint && s.options.LocalEndpoint == nil
	case InputEndpoints:
		return s.options.State.Has(InputEndpoints)
	default:
		return true
	}
}

// Has tells whether the State, which may be nil, has a section.
func (s *State) Has(input string) bool {
	return s != nil && slices.ContainsFunc(s.Sections, func(section Section) bool { return section.Input == input })
}

// release applies what was held back once it is complete. Clients see the differences to what is served, and
// nothing between: that a node is in another unit now, say, comes to them together with that unit's endpoints.
func (s *Store) release() {
	for _, name := range inputOrder {
		if !s.awaited(name) {
			continue
		}
		if held := s.pending[name]; held == nil || (!held.complete && !held.absent) {
			return
		}
	}
	all := s.pending
	s.pending, s.restored, s.options.State = nil, nil, nil
	s.asOne(func(s *Store) {
		for _, name := range inputOrder {
			held := all[name]
			switch {
			case held == nil:
			case held.absent:
				s.inputs[name].replace(nil)
				s.inputs[name].absent(true)
			case held.complete:
				s.inputs[name].replace(slices.SortedFunc(maps.Values(held.objects), compareObjects))
			}
		}
	})
}

// asOne makes changes of which clients see the outcome only.
func (s *Store) asOne(change func(*Store)) {
	s.each(func(s *Store) {
		s.suspended = true
		change(s)
		s.suspended = false
		for _, c := range s.collections() {
			if c.table.ready {
				s.publishAll(c)
			}
		}
		s.openTables()
	})
}

// Restore serves Options.State until the upstream's state is complete. It does nothing, and returns false, if
// that is so already, or if there is no State.
func (s *Store) Restore() bool {
	restored := false
	s.update(func() {
		state := s.options.State
		if state == nil || s.restored != nil {
			return
		}
		restored, s.restored = true, state
		s.addresses = maps.Clone(state.Addresses)
		s.asOne(func(s *Store) {
			// The State may come from a process that had no use for it; then nothing is rewritten.
			s.local.synced = true
			for _, name := range inputOrder {
				for _, section := range state.Sections {
					if section.Input == name {
						s.inputs[name].replace(section.Objects)
					}
				}
			}
		})
	})
	return restored
}

// Restored tells whether a State is served, and as of when.
func (s *Store) Restored() (asOf time.Time, restored bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.restored == nil {
		return time.Time{}, false
	}
	return s.restored.AsOf, true
}

// Live is closed once the state of the upstream is complete and served.
func (s *Store) Live() <-chan struct{} { return s.live }

// Content is the revision of the newest event that is worth a new State at once.
func (s *Store) Content() uint64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.content
}

// State is what the Store serves from. It has the Endpoints only if they are asked for and known. The error
// is ErrNotReady before the Store is live.
func (s *Store) State(asOf time.Time, withEndpoints bool) (*State, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	select {
	case <-s.live:
	default:
		return nil, ErrNotReady
	}
	state := &State{NodeName: s.options.NodeName, AsOf: asOf, Addresses: maps.Clone(s.addresses)}
	add := func(input string, objects []*wire.Object) {
		state.Sections = append(state.Sections, Section{Input: input, Objects: objects})
	}
	add(InputServices, upstreamOf(s.serviceTable))
	if s.nodeTable.ready {
		add(InputNode, upstreamOf(s.nodeTable))
	}
	named := map[string]struct{}{s.options.NodeName: {}}
	for _, c := range s.collections() {
		if !c.table.ready || (c == s.endpoints && !withEndpoints) {
			continue
		}
		objects := make([]*wire.Object, 0, len(c.backends))
		for _, b := range c.backends {
			o := *b.upstream
			o.Body = s.share(c, b)
			if err := c.table.resource.codec.Scan(o.Body, func(e wire.Endpoint) { named[string(e.NodeName)] = struct{}{} }); err != nil {
				return nil, err
			}
			objects = append(objects, &o)
		}
		slices.SortFunc(objects, compareObjects)
		add(c.inputName(), objects)
	}
	if s.local.held {
		o, err := metadataObject(&metav1.ObjectMeta{Namespace: kubernetesService.Namespace, Name: kubernetesService.Name, Annotations: s.local.annotations})
		if err != nil {
			return nil, err
		}
		add(InputKubernetesEndpoints, []*wire.Object{o})
	}
	nodes := make([]*wire.Object, 0, len(named))
	for name := range named {
		n := s.nodes[name]
		if n == nil || !n.known {
			continue
		}
		o, err := metadataObject(&metav1.ObjectMeta{Name: name, Labels: n.labels})
		if err != nil {
			return nil, err
		}
		nodes = append(nodes, o)
	}
	slices.SortFunc(nodes, compareObjects)
	add(InputNodes, nodes)
	return state, nil
}

// share is the body of a backend as far as this node may ever have to do with it.
func (s *Store) share(c *collection, b *backend) []byte {
	if s.localEndpointFor(b) != nil || b.service == nil || !b.service.keys.Governed() {
		return b.upstream.Body
	}
	if shown, found := c.table.find(b.upstream.Namespace, b.upstream.Name); found && len(b.service.keys) == 1 && len(s.dead) == 0 {
		// The one key decided what is shown, and nothing else hides endpoints.
		return c.table.objects[shown].body
	}
	return s.edit(b, c.table.resource.codec.Prune, func(e wire.Endpoint) bool {
		return b.service.keys.Rank(s.here, s.labelsOf(e.NodeName)) != topology.NoRank
	})
}

func (c *collection) inputName() string {
	if c.table.resource == Endpoints {
		return InputEndpoints
	}
	return InputEndpointSlices
}

func upstreamOf(t *table) []*wire.Object {
	objects := make([]*wire.Object, len(t.objects))
	for i, o := range t.objects {
		objects[i] = o.meta
	}
	return objects
}

// metadataObject is an object that has nothing but metadata.
func metadataObject(meta *metav1.ObjectMeta) (*wire.Object, error) {
	message, err := (&corev1.Node{ObjectMeta: *meta}).Marshal()
	if err != nil {
		return nil, err
	}
	return wire.ParseObject(message)
}
