package facts

import (
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/application-grid/application-grid/pkg/wire"
)

// shareInputs are the inputs that a share fills, in the order in which they are applied.
var shareInputs = []string{InputNodes, InputNode, InputServices, InputEndpointSlices}

// ShareStep is what changed in this node's share of the cluster at one moment.
type ShareStep struct {
	// Put has the objects that came or changed, by input.
	Put map[string][]*wire.Object
	// Removed has the names of those that are gone, by input.
	Removed map[string][]types.NamespacedName
	// Whole, if set, reports which objects are gone if Put does not have them.
	Whole func(input string, name types.NamespacedName) bool
	// Mark names the state after the step, for the hub; nil if it is not that of a hub.
	Mark []byte
}

// ApplyShare applies a step, after which the facts are a complete share. If the facts were restored from a State, that
// is replaced once the other inputs are complete, too.
func (f *Facts) ApplyShare(step ShareStep) {
	f.update(func() {
		f.mark = step.Mark
		for _, name := range shareInputs {
			if f.hold.restoring() {
				held := f.hold.of(name)
				held.beginWith(f.hold.state.section(name))
				step.apply(name, held)
				continue
			}
			f.hold.drop(name)
			kept := f.inputs[name].kept
			step.apply(name, kept)
			kept.setSynced()
		}
		f.releaseIfComplete()
	})
}

// shareStore is what a step is applied to: what an input has, or what is held back for it.
type shareStore interface {
	apply(*wire.Object)
	remove(types.NamespacedName)
	names() []types.NamespacedName
}

// apply applies what the step has of an input.
func (step *ShareStep) apply(input string, to shareStore) {
	for _, o := range step.Put[input] {
		to.apply(o)
	}
	for _, removed := range step.Removed[input] {
		to.remove(removed)
	}
	if step.Whole == nil {
		return
	}
	for _, gone := range step.gone(input, to.names()) {
		to.remove(gone)
	}
}

// beginWith has what is held back begin with what the State has, unless it is complete already.
func (p *pending) beginWith(base *Section) {
	switch {
	case p.complete:
	case base == nil:
		p.replace(nil)
	default:
		p.replace(base.Objects)
	}
}

func (p *pending) names() []types.NamespacedName { return slices.Collect(maps.Keys(p.objects)) }

// gone returns which of the known objects of an input are in no share any more, by Whole.
func (step *ShareStep) gone(input string, known []types.NamespacedName) []types.NamespacedName {
	there := make(map[types.NamespacedName]struct{}, len(step.Put[input]))
	for _, o := range step.Put[input] {
		there[nameOf(o)] = struct{}{}
	}
	return slices.DeleteFunc(known, func(name types.NamespacedName) bool {
		_, stays := there[name]
		return stays || !step.Whole(input, name)
	})
}

// ShareMark returns the Mark of the last step of a share; that of the State, if the facts were restored from one. It is
// nil if the facts are not those of a share.
func (f *Facts) ShareMark() []byte {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.ShareMarkOf()
}

// ShareMarkOf returns what ShareMark returns. It is for Watchers.
func (f *Facts) ShareMarkOf() []byte {
	if f.mark == nil && f.hold.restoring() {
		return f.hold.state.ShareMark
	}
	return f.mark
}

// Held reports whether changes are held back. It is for Watchers.
func (f *Facts) Held() bool { return f.hold.pending != nil }
