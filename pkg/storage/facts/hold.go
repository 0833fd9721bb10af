package facts

import (
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/application-grid/application-grid/pkg/storage/served"
	"github.com/application-grid/application-grid/pkg/storage/wire"
)

// Snapshot is the state from which a process serves at one moment. Another process on the same node can serve the same
// from it. It is immutable.
//
// It has only those endpoints of a governed Service that one of the Service's keys matches, and only the nodes that
// these endpoints name. So it is small even in a large cluster, and little is written to the node's disk.
//
// Package snapshot writes it as JSON, and the fields with the tag "-" in its own format.
type Snapshot struct {
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
// the object differently, because that does not depend on the Snapshot alone. Then the digests differ, and the object
// needs a new revision.
type Shown struct{ Revision, Digest uint64 }

// section returns the section of an input; the zero Section if the Snapshot, which may be nil, has none.
func (s *Snapshot) section(input string) Section {
	if s != nil {
		if i := slices.IndexFunc(s.Sections, func(of Section) bool { return of.Input == input }); i >= 0 {
			return s.Sections[i]
		}
	}
	return Section{}
}

// Shown returns how the objects were shown.
func (s *Snapshot) Shown() map[Key]Shown {
	shown := make(map[Key]Shown)
	for _, r := range served.All() {
		section := s.section(InputOf(r))
		for i, how := range section.Shown {
			shown[Key{r, section.Objects[i].Key()}] = how
		}
	}
	return shown
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

func (p *pending) apply(o *wire.Object)             { p.objects[o.Key()] = p.in.intern(o) }
func (p *pending) remove(name types.NamespacedName) { p.objects[name] = nil }

func (p *pending) names() []types.NamespacedName { return slices.Collect(maps.Keys(p.objects)) }

// Restore fills the facts from a Snapshot. Changes from the upstream are then held back until its state is complete,
// and applied as one step. The Facts must be empty.
func (f *Facts) Restore(state *Snapshot) {
	f.runStep(func() {
		f.restored, f.holding, f.notes = state, true, state.Notes
		for _, in := range f.inputs {
			if section := state.section(in.name); section.Input != "" {
				replace(in.store, section.Objects)
			}
		}
		// The State may come from a process without this input. Then nothing is rewritten.
		f.kubernetes.synced = true
	})
}

// Restored returns the Snapshot from which the facts were restored; nil if they are the upstream's.
func (f *Facts) Restored() *Snapshot { return get(f, Reader.Restored) }

// Restored returns what Facts.Restored returns.
func (in Reader) Restored() *Snapshot { return in.f.restored }

// Hold holds back changes from the upstream from now on. It implements follow.Barrier.
func (f *Facts) Hold() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.holding = true
}

// Release applies the changes that were held back since Hold, as one step. While restoring it applies nothing: the
// changes are held back until the upstream's state is complete.
func (f *Facts) Release() {
	f.runStep(func() {
		if f.restored == nil {
			f.release()
		}
	})
}

// releaseIfComplete ends the restoring if the upstream's state is complete.
func (f *Facts) releaseIfComplete() {
	if f.restored == nil {
		return
	}
	for _, in := range f.inputs {
		if in.needed && (in.held == nil || !in.held.synced && !in.held.absent) {
			return
		}
	}
	f.restored = nil
	for _, in := range f.inputs {
		if onDemand(in.name) && (in.held == nil || !in.held.synced) {
			in.forget() // the restored objects are outdated, and no client has asked for them
		}
	}
	f.release()
}

// release applies everything that is held back.
func (f *Facts) release() {
	f.holding = false
	for _, in := range f.inputs {
		held := in.held
		in.held = nil
		switch {
		case held == nil:
		case held.absent:
			in.store.noteAbsent()
		case held.synced:
			changeTarget(in.store, held.objects, all)
		default:
			changeTarget(in.store, held.objects, nil)
		}
	}
}
