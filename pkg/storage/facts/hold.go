package facts

import (
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/application-grid/application-grid/pkg/storage/served"
	"github.com/application-grid/application-grid/pkg/storage/wire"
)

// State is the state from which a process serves at one moment. Another process on the same node can serve the same
// from it. It is immutable.
//
// It has only those endpoints of a governed Service that one of the Service's keys matches, and only the nodes that
// these endpoints name. So it is small even in a large cluster, and little is written to the node's disk.
//
// Package snapshot writes it as JSON, and the fields with the tag "-" in its own format.
type State struct {
	// NodeName is the NodeName of Options.
	NodeName string
	// AsOf is when the upstream last confirmed the state.
	AsOf time.Time
	// Revision is the revision of the history in which the state was shown.
	Revision uint64
	// Sections has one section for each input, in no order.
	Sections []Section

	Notes

	// ShareMark is the value that ShareMark returns.
	ShareMark []byte `json:",omitempty"`
}

// Section is the complete state of one input.
type Section struct {
	// Input is the input's name.
	Input   string
	Objects []*wire.Object `json:"-"`
	// Shown says how each of the objects was shown; nil for an input that is not shown.
	Shown []Shown `json:"-"`
}

// Shown has the revision at which an object was shown, and the digest of the history.Version. Another process may show
// the object differently, because that does not depend on the State alone. Then the digests differ, and the object
// needs a new revision.
type Shown struct{ Revision, Digest uint64 }

// section returns the section of an input; the zero Section if the State, which may be nil, has none.
func (s *State) section(input string) Section {
	if s != nil {
		for _, section := range s.Sections {
			if section.Input == input {
				return section
			}
		}
	}
	return Section{}
}

// ShownOf returns how the objects of a resource were shown.
func (s *State) ShownOf(r *served.Resource) map[types.NamespacedName]Shown {
	shown := make(map[types.NamespacedName]Shown)
	section := s.section(InputOf(r))
	for i, how := range section.Shown {
		shown[section.Objects[i].Key()] = how
	}
	return shown
}

// hold has the changes from the upstream that are not applied yet.
type hold struct {
	// state is the State from which the facts were restored; nil once the upstream's state is applied.
	state *State
	// pending has the changes by input; nil if changes are applied as they arrive.
	pending map[string]*pending
}

// pending has the changes of one input that are held back.
type pending struct {
	// completion is synced if objects is a complete state, and not changes to what the input has. It is absent only
	// while restoring.
	completion

	in *Input
	// objects has nil for those that were removed.
	objects map[types.NamespacedName]*wire.Object
}

func (p *pending) apply(o *wire.Object)             { p.objects[o.Key()] = p.in.same(o) }
func (p *pending) remove(name types.NamespacedName) { p.objects[name] = nil }

func (p *pending) names() []types.NamespacedName { return slices.Collect(maps.Keys(p.objects)) }

// restoring reports whether the facts are those of a State.
func (h *hold) restoring() bool { return h.state != nil }

// pendingOf returns the collected changes of an input whose changes are held back.
func (h *hold) pendingOf(in *Input) *pending {
	p := h.pending[in.name]
	if p == nil {
		p = &pending{in: in, objects: make(map[types.NamespacedName]*wire.Object)}
		h.pending[in.name] = p
	}
	return p
}

// Restore fills the facts from a State. Changes from the upstream are then held back until its state is complete, and
// applied as one step. The Facts must be empty.
func (f *Facts) Restore(state *State) {
	f.update(func() {
		f.hold.state, f.hold.pending = state, make(map[string]*pending)
		f.notes = state.Notes
		for _, name := range inputOrder {
			if section := state.section(name); section.Input != "" {
				replace(f.inputs[name].store, section.Objects)
			}
		}
		// The State may come from a process without this input. Then nothing is rewritten.
		f.kubernetes.synced = true
	})
}

// Restored returns the State from which the facts were restored; nil if they are the upstream's.
func (f *Facts) Restored() *State {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.hold.state
}

// Restored returns what Facts.Restored returns.
func (in Reader) Restored() *State { return in.f.hold.state }

// Hold holds back changes from the upstream from now on. It implements follow.Barrier.
func (f *Facts) Hold() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.hold.pending == nil {
		f.hold.pending = make(map[string]*pending)
	}
}

// Release applies the changes that were held back since Hold, as one step. While restoring it applies nothing: the
// changes are held back until the upstream's state is complete.
func (f *Facts) Release() {
	f.update(func() {
		if !f.hold.restoring() {
			f.release()
		}
	})
}

// releaseIfComplete ends the restoring if the upstream's state is complete.
func (f *Facts) releaseIfComplete() {
	if !f.hold.restoring() {
		return
	}
	for _, name := range inputOrder {
		if p := f.hold.pending[name]; f.awaits(name) && (p == nil || (!p.synced && !p.absent)) {
			return
		}
	}
	f.hold.state = nil
	for _, name := range inputOrder {
		if p := f.hold.pending[name]; onDemand(name) && (p == nil || !p.synced) {
			f.inputs[name].forget() // the restored objects are outdated, and no client has asked for them
		}
	}
	f.release()
}

// awaits reports whether the upstream's state is complete only with this input.
func (f *Facts) awaits(input string) bool {
	switch input {
	case InputNode:
		return f.options.NodeName != ""
	case InputKubernetesEndpoints:
		return f.options.NeedsKubernetesEndpoints
	default:
		return !onDemand(input)
	}
}

// release applies everything that is held back.
func (f *Facts) release() {
	all := f.hold.pending
	f.hold.pending = nil
	for _, name := range inputOrder {
		p, in := all[name], f.inputs[name]
		switch {
		case p == nil:
		case p.absent:
			in.store.noteAbsent()
		case p.synced:
			maps.DeleteFunc(p.objects, func(_ types.NamespacedName, o *wire.Object) bool { return o == nil })
			replace(in.store, slices.SortedFunc(maps.Values(p.objects), (*wire.Object).Compare))
		default:
			for name, o := range p.objects {
				if o == nil {
					in.store.remove(name)
				} else {
					in.store.apply(o)
				}
			}
		}
	}
}
