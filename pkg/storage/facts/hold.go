package facts

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/application-grid/application-grid/pkg/storage/history"
	"github.com/application-grid/application-grid/pkg/wire"
)

// State is what a process served from at one moment: enough for another process on the same node to serve the same. It
// is immutable.
//
// Of a governed Service it has only the endpoints that one of the Service's keys matches, and of the nodes only those
// that it names. A node's share of a large cluster is small, and so is what is written to its disk.
type State struct {
	// NodeName is that of Options.
	NodeName string
	// AsOf is when the upstream last confirmed the state.
	AsOf time.Time
	// Revision is that of the history that the state was shown in.
	Revision uint64
	// Sections are by input, in no order.
	Sections []Section
	// Addresses are Facts.NodeAddresses.
	Addresses map[netip.Addr]string
}

// Section is the complete state of one input.
type Section struct {
	// Input is the input's name.
	Input   string
	Objects []*wire.Object
	// Shown is how the objects were shown, one for each; nil for an input that is not shown.
	Shown []Shown
}

// Shown is how an object was shown: at which revision, and the history.Version's digest. What another process shows of
// a State may differ, for it does not follow from the State alone; then the revision is of no use to it.
type Shown struct{ Revision, Digest uint64 }

// section is the section of an input; nil if the State, which may be nil, has none.
func (s *State) section(input string) *Section {
	if s == nil {
		return nil
	}
	for i := range s.Sections {
		if s.Sections[i].Input == input {
			return &s.Sections[i]
		}
	}
	return nil
}

func (s *State) count(input string) int {
	if section := s.section(input); section != nil {
		return len(section.Objects)
	}
	return 0
}

// ShownOf is how the objects of a resource were shown.
func (s *State) ShownOf(r *history.Resource) map[types.NamespacedName]Shown {
	input := map[*history.Resource]string{
		history.Services: InputServices, history.Nodes: InputNode,
		history.EndpointSlices: InputEndpointSlices, history.Endpoints: InputEndpoints,
	}[r]
	shown := make(map[types.NamespacedName]Shown)
	if section := s.section(input); section != nil {
		for i, how := range section.Shown {
			shown[nameOf(section.Objects[i])] = how
		}
	}
	return shown
}

// hold is what the upstream said and what is not applied yet.
type hold struct {
	// state is that which the facts were restored from; nil once the upstream's is applied.
	state *State
	// barrier is set between Hold and Release.
	barrier bool
	// pending is by input; nil when the upstream's word is applied as it comes.
	pending map[string]*pending
}

// pending is what the upstream said of one input.
type pending struct {
	objects map[types.NamespacedName]*wire.Object
	removed map[types.NamespacedName]struct{}
	// complete is set once objects is a complete state.
	complete bool
	// absent is set if the upstream does not serve an optional resource, while the facts are restored.
	absent bool
}

func (p *pending) apply(o *wire.Object) {
	p.objects[nameOf(o)] = o
	delete(p.removed, nameOf(o))
}

func (p *pending) remove(name types.NamespacedName) {
	delete(p.objects, name)
	p.removed[name] = struct{}{}
}

func (p *pending) replace(objects []*wire.Object) {
	p.complete, p.absent = true, false
	p.objects = make(map[types.NamespacedName]*wire.Object, len(objects))
	for _, o := range objects {
		p.objects[nameOf(o)] = o
	}
}

// restoring reports whether the facts are those of a State.
func (h *hold) restoring() bool { return h.state != nil }

// of is where an input's changes go while they are held back; nil when they are applied.
func (h *hold) of(input string) *pending {
	if h.pending == nil {
		return nil
	}
	p := h.pending[input]
	if p == nil {
		p = &pending{
			objects: make(map[types.NamespacedName]*wire.Object),
			removed: make(map[types.NamespacedName]struct{}),
		}
		h.pending[input] = p
	}
	return p
}

// drop forgets what an input said.
func (h *hold) drop(input string) { delete(h.pending, input) }

// Restore makes a State the facts, until those of the upstream are complete: what it says is held back until then, and
// applied as one step. It is for Facts that know nothing yet.
func (f *Facts) Restore(state *State) {
	f.update(func() {
		f.hold.state, f.hold.pending = state, make(map[string]*pending)
		f.addresses = maps.Clone(state.Addresses)
		for _, name := range inputOrder {
			if section := state.section(name); section != nil {
				f.inputs[name].replace(section.Objects)
			}
		}
		// The State may come from a process that had no use for it; then nothing is rewritten.
		f.kubernetes.synced = true
	})
}

// Restored is the State that the facts are restored from; nil if they are the upstream's.
func (f *Facts) Restored() *State {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.hold.state
}

// RestoredState is Restored for Watchers.
func (f *Facts) RestoredState() *State { return f.hold.state }

// Hold holds back what the upstream says from now on. It implements follow.Barrier.
func (f *Facts) Hold() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hold.barrier = true
	if f.hold.pending == nil {
		f.hold.pending = make(map[string]*pending)
	}
}

// Release applies what was held back since Hold, as one step. While the facts are restored it waits for the rest.
func (f *Facts) Release() {
	f.update(func() {
		f.hold.barrier = false
		if !f.hold.restoring() {
			f.release()
		}
	})
}

// releaseIfComplete ends restoring once the upstream's state is complete.
func (f *Facts) releaseIfComplete() {
	if !f.hold.restoring() {
		return
	}
	for _, name := range inputOrder {
		if p := f.hold.pending[name]; f.awaits(name) && (p == nil || (!p.complete && !p.absent)) {
			return
		}
	}
	f.hold.state = nil
	if p := f.hold.pending[InputEndpoints]; p == nil || !p.complete {
		// That a snapshot has them is no reason to follow them, and they are not current.
		f.legacy.forget()
	}
	f.release()
}

// awaits reports whether the upstream's state is incomplete without an input.
func (f *Facts) awaits(input string) bool {
	switch input {
	case InputNode:
		return f.options.NodeName != ""
	case InputKubernetesEndpoints:
		return f.options.NeedsKubernetesEndpoints
	default:
		return input != InputEndpoints
	}
}

// release applies everything that is held back.
func (f *Facts) release() {
	all := f.hold.pending
	f.hold.pending, f.hold.barrier = nil, false
	for _, name := range inputOrder {
		p, in := all[name], f.inputs[name]
		switch {
		case p == nil:
		case p.absent:
			in.kept.setAbsent()
		case p.complete:
			in.replace(slices.SortedFunc(maps.Values(p.objects), compareObjects))
		default:
			for _, o := range p.objects {
				in.kept.apply(o)
			}
			for removed := range p.removed {
				in.kept.remove(removed)
			}
		}
	}
}
