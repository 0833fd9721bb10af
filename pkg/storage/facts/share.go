package facts

import (
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
				f.hold.of(name).applyShare(f.hold.state.section(name), name, step)
				continue
			}
			f.hold.drop(name)
			in := f.inputs[name]
			for _, o := range step.Put[name] {
				in.kept.apply(o)
			}
			for _, removed := range step.Removed[name] {
				in.kept.remove(removed)
			}
			if step.Whole != nil {
				for _, known := range step.gone(name, in.kept.names()) {
					in.kept.remove(known)
				}
			}
			in.kept.setSynced()
		}
		f.releaseIfComplete()
	})
}

// applyShare applies a step to what is held back, which begins with the State.
func (p *pending) applyShare(base *Section, name string, step ShareStep) {
	if !p.complete {
		var objects []*wire.Object
		if base != nil {
			objects = base.Objects
		}
		p.replace(objects)
	}
	for _, o := range step.Put[name] {
		p.apply(o)
	}
	for _, removed := range step.Removed[name] {
		p.remove(removed)
	}
	if step.Whole == nil {
		return
	}
	known := make([]types.NamespacedName, 0, len(p.objects))
	for object := range p.objects {
		known = append(known, object)
	}
	for _, gone := range step.gone(name, known) {
		p.remove(gone)
	}
}

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
