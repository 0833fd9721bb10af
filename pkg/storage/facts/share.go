package facts

import (
	"bytes"
	"errors"

	"k8s.io/apimachinery/pkg/types"

	"github.com/application-grid/application-grid/pkg/storage/wire"
)

// shareInputs are the inputs that a share fills, in the order in which they are applied.
var shareInputs = []string{InputNodes, InputNode, InputServices, InputEndpointSlices}

// ShareStep is a change of this node's share of the cluster at one moment.
type ShareStep struct {
	// Objects has the added or changed objects, by input; nil for removed ones.
	Objects map[string]map[types.NamespacedName]*wire.Object
	// Drops reports whether an object is removed if the step does not have it.
	Drops func(input string, name types.NamespacedName) bool
	// Base is the Mark of the state before the step; nil for none.
	Base []byte
	// Mark identifies the state after the step, for the hub.
	Mark []byte
}

// errLost means that this node's share differs from the hub's record of it.
var errLost = errors.New("a step of the cache panicked, and a part of this node's share may be missing: it is asked " +
	"for again, whole")

// Put puts an object into the step; nil if it was removed. It replaces an earlier Put of the object.
func (step *ShareStep) Put(input string, name types.NamespacedName, o *wire.Object) {
	if step.Objects[input] == nil {
		step.Objects[input] = make(map[types.NamespacedName]*wire.Object)
	}
	step.Objects[input][name] = o
}

// ApplyShare applies a step. It replaces the methods of the inputs that a share fills. If the facts were restored from
// a Snapshot, that is replaced once the other inputs are complete as well.
//
// After an error the stream that brought the step must end. If a step panicked, its change may be missing, so the mark
// is forgotten. No later step of the same stream can repair that, because it is based on another state.
func (f *Facts) ApplyShare(step ShareStep) error {
	err := errLost
	f.runStep(func() {
		if !bytes.Equal(f.reader().ShareMark(), step.Base) {
			return
		}
		f.shareMark = step.Mark
		for _, name := range shareInputs {
			in := f.Input(name)
			to := target(in.store)
			if f.restored == nil {
				in.held = nil
			} else if to = in.target(); !in.held.synced {
				replace(to, f.restored.section(name).Objects)
			}
			changeTarget(to, step.Objects[name], func(o types.NamespacedName) bool { return step.Drops(name, o) })
		}
		f.releaseIfComplete()
		err = nil
	})
	return err
}

// ShareMark returns the Mark of the last ShareStep, or that of the Snapshot from which the facts were restored, or nil.
func (f *Facts) ShareMark() []byte { return get(f, Reader.ShareMark) }

// ShareMark returns what Facts.ShareMark returns.
func (in Reader) ShareMark() []byte {
	if in.f.shareMark == nil && in.f.restored != nil {
		return in.f.restored.ShareMark
	}
	return in.f.shareMark
}

// Held reports whether changes are held back.
func (in Reader) Held() bool { return in.f.holding }
