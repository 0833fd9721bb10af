package facts

import (
	"bytes"
	"errors"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/application-grid/application-grid/pkg/storage/wire"
)

// shareInputs are the inputs that a share fills, in the order in which they are applied.
//
// They are filled in one of two ways: by the methods of Input, or by ApplyShare. One way is followed. What comes by the
// other one is set aside until Switch makes it the one that is followed.
var shareInputs = []string{InputNodes, InputNode, InputServices, InputEndpointSlices}

// ways has what is known of the two ways.
type ways struct {
	// shared is set while ApplyShare is followed.
	shared bool
	// aside has what came by the other way, and no more than that.
	aside hold
	// mark and asideMark are those of the last ShareStep, if that was followed or set aside.
	mark, asideMark []byte
}

// ShareStep is what changed in this node's share of the cluster at one moment.
type ShareStep struct {
	// Objects has the objects that came or changed, by input; nil for those that are gone.
	Objects map[string]map[types.NamespacedName]*wire.Object
	// Whole reports which objects are gone if the step does not have them.
	Whole func(input string, name types.NamespacedName) bool
	// After is the Mark of the state on which the step follows; nil for none.
	After []byte
	// Mark names the state after the step, for the hub.
	Mark []byte
}

// errLost means that a share is not as the hub believes.
var errLost = errors.New("a step of the cache panicked, and a part of this node's share may be missing: it is asked " +
	"for again, whole")

// Put puts an object into the step, in place of what was put of it before; nil if it is gone.
func (step *ShareStep) Put(input string, name types.NamespacedName, o *wire.Object) {
	if step.Objects[input] == nil {
		step.Objects[input] = make(map[types.NamespacedName]*wire.Object)
	}
	step.Objects[input][name] = o
}

// ApplyShare applies a step, or sets it aside. If the facts were restored from a State, that is replaced once the other
// inputs are complete, too.
//
// After an error the stream that brought the step must end. What a step that panicked was to change may be missing, so
// the mark is forgotten with it, and no later step of the same stream brings it back: it follows on another state.
func (f *Facts) ApplyShare(step ShareStep) error {
	applied := false
	f.update(func() {
		if !bytes.Equal(f.shareMark(), step.After) {
			return
		}
		mark := &f.ways.mark
		if !f.ways.shared {
			mark = &f.ways.asideMark
		}
		*mark = step.Mark
		for _, name := range shareInputs {
			in := f.inputs[name]
			switch {
			case !f.ways.shared:
				step.apply(name, in, f.ways.aside.of(name))
			case f.hold.restoring():
				held := f.hold.of(name)
				if !held.complete {
					held.replace(f.hold.state.objects(name))
				}
				step.apply(name, in, held)
			default:
				f.hold.drop(name)
				step.apply(name, in, in.kept)
				in.kept.setSynced()
			}
		}
		f.releaseIfComplete()
		applied = true
	})
	if !applied {
		return errLost
	}
	return nil
}

// shareStore is what a step is applied to: what an input has, or what is kept back for it.
type shareStore interface {
	apply(*wire.Object)
	remove(types.NamespacedName)
	names() []types.NamespacedName
}

// apply applies what the step has of an input.
func (step *ShareStep) apply(input string, in *Input, to shareStore) {
	objects := step.Objects[input]
	for name, o := range objects {
		if o != nil {
			to.apply(in.same(o))
		} else {
			to.remove(name)
		}
	}
	for _, name := range to.names() {
		if _, there := objects[name]; !there && step.Whole(input, name) {
			to.remove(name)
		}
	}
}

func (p *pending) names() []types.NamespacedName { return slices.Collect(maps.Keys(p.objects)) }

// FollowShare has ApplyShare be the way that is followed, before anything came by either.
func (f *Facts) FollowShare() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ways.shared = true
	f.ways.clear()
}

// DropAside drops what was set aside.
func (f *Facts) DropAside() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ways.clear()
}

func (w *ways) clear() { w.aside.pending, w.asideMark = make(map[string]*pending), nil }

// Switch makes the other way the one that is followed. What was set aside replaces what was known, as one step.
func (f *Facts) Switch() {
	f.update(func() {
		aside := &f.ways.aside
		for _, name := range shareInputs {
			objects := slices.SortedFunc(maps.Values(aside.of(name).objects), (*wire.Object).Compare)
			if f.hold.restoring() {
				f.hold.of(name).replace(objects)
				continue
			}
			f.hold.drop(name)
			f.inputs[name].replace(objects)
		}
		f.ways.shared, f.ways.mark = !f.ways.shared, f.ways.asideMark
		f.ways.clear()
		f.releaseIfComplete()
	})
}

// held returns where what an input is given is kept until it is applied; nil if that is done at once.
func (in *Input) held() *pending {
	if in.isAside() {
		return in.f.ways.aside.of(in.name)
	}
	return in.f.hold.of(in.name)
}

// isAside reports whether what the input is given is set aside.
func (in *Input) isAside() bool { return in.f.ways.shared && slices.Contains(shareInputs, in.name) }

// ShareMark returns the Mark of the last ShareStep, which may have been set aside; that of the State, if the facts were
// restored from one that was a share. It is nil if there was none.
func (f *Facts) ShareMark() []byte {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.shareMark()
}

func (f *Facts) shareMark() []byte {
	if !f.ways.shared {
		return f.ways.asideMark
	}
	return f.reader().ShareMarkOf()
}

// ShareMarkOf returns the Mark of the state; nil if it is not that of a share.
func (in Reader) ShareMarkOf() []byte {
	if in.f.ways.mark == nil && in.f.hold.restoring() {
		return in.f.hold.state.ShareMark
	}
	return in.f.ways.mark
}

// Held reports whether changes are held back.
func (in Reader) Held() bool { return in.f.hold.pending != nil }
