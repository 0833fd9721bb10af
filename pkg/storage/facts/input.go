package facts

import (
	"strconv"

	"k8s.io/apimachinery/pkg/types"

	"github.com/application-grid/application-grid/pkg/storage/served"
	"github.com/application-grid/application-grid/pkg/storage/wire"
)

// The names of the inputs.
const (
	// InputNodes takes all nodes, and keeps only their labels. A wrapper gives it their metadata.
	InputNodes = "nodes"
	// InputNode takes the Node objects that are served whole: this node's.
	InputNode = "node"
	// InputServices takes all Services.
	InputServices = "services"
	// InputEndpointSlices takes all EndpointSlices.
	InputEndpointSlices = "endpointslices"
	// InputKubernetesEndpoints takes the Endpoints object default/kubernetes.
	InputKubernetesEndpoints = "kubernetes-endpoints"
	// InputEndpoints takes all Endpoints, InputNamespaces all Namespaces. They are followed only while clients ask for
	// them; see Forget.
	InputEndpoints  = "endpoints"
	InputNamespaces = "namespaces"
)

// target takes the changes of one input: its store, or what is held back for it. The methods are called within a step.
type target interface {
	// apply adds or replaces an object, remove removes one.
	apply(*wire.Object)
	remove(types.NamespacedName)
	// names returns the names of all objects.
	names() []types.NamespacedName
	// setSynced is called after a complete state was applied, noteAbsent if the upstream does not serve the resource.
	setSynced()
	noteAbsent()
}

// store is the store of one input.
type store interface {
	target

	// upstream returns an object, as far as it is kept; nil if it is not known.
	upstream(types.NamespacedName) *wire.Object
	// reset is called if the resource is no longer followed.
	reset()
	state() (absent, synced bool)
}

// completion is whether the state of a target is complete (synced), or not served by the upstream (absent).
type completion struct{ synced, absent bool }

func (c *completion) setSynced()                   { c.synced, c.absent = true, false }
func (c *completion) noteAbsent()                  { c.absent = !c.synced }
func (c *completion) reset()                       { c.synced, c.absent = false, false }
func (c *completion) state() (absent, synced bool) { return c.absent, c.synced }

// InputOf returns the name of the input of a served resource.
func InputOf(r *served.Resource) string {
	if r == served.Nodes {
		return InputNode
	}
	return r.Resource
}

func (in Reader) store(r *served.Resource) store { return in.f.Input(InputOf(r)).store }

// Upstream returns the upstream's object of a served resource; nil if it is not known.
func (in Reader) Upstream(r *served.Resource, name types.NamespacedName) *wire.Object {
	return in.store(r).upstream(name)
}

// Names returns the names of all objects of a served resource, in no order.
func (in Reader) Names(r *served.Resource) []types.NamespacedName { return in.store(r).names() }

// Input takes the upstream's state of one kind of object. It is the Sink of a follow.Source.
type Input struct {
	f     *Facts
	name  string
	store store
	// needed is set if the upstream's state is complete only with this input.
	needed bool
	// held has the changes that are held back; nil if none are.
	held *pending
	// arriving is the version of the input after the next change, and version that after the last one. progress is
	// version, or that of a later bookmark. The lock of the facts guards them.
	arriving, version, progress uint64
}

// ChangeAt implements follow.Versioned.
func (in *Input) ChangeAt(version string, change func()) {
	at, _ := strconv.ParseUint(version, 10, 64) // 0 if it is not a number
	if change == nil {
		in.f.runStep(func() { in.progress = at })
		return
	}
	in.f.mu.Lock()
	in.arriving = at
	in.f.mu.Unlock()
	change()
}

// Versions returns the version of the last change, and the version up to which no further change has happened. Changes
// that are held back are included.
func (in *Input) Versions() (version, progress uint64) { return in.version, in.progress }

// runStep runs a step in which the input changes.
func (in *Input) runStep(step func()) {
	in.f.runStep(func() {
		in.version, in.progress = in.arriving, in.arriving
		step()
	})
}

// intern returns the input's own object if it is equal, so that no memory is held twice, and the given one otherwise.
func (in *Input) intern(o *wire.Object) *wire.Object {
	if known := in.store.upstream(o.Key()); known != nil && known.Equal(o) {
		return known.At(o.ResourceVersion)
	}
	return o
}

// target returns what takes the changes of the input now.
func (in *Input) target() target {
	if !in.f.holding {
		return in.store
	}
	if in.held == nil {
		in.held = &pending{in: in, objects: make(map[types.NamespacedName]*wire.Object)}
	}
	return in.held
}

// Apply adds or replaces an object.
func (in *Input) Apply(o *wire.Object) {
	in.runStep(func() { in.target().apply(o) })
}

// Remove removes an object.
func (in *Input) Remove(namespace, name string) {
	in.runStep(func() { in.target().remove(types.NamespacedName{Namespace: namespace, Name: name}) })
}

// Replace replaces all objects of the input.
func (in *Input) Replace(objects []*wire.Object) {
	in.runStep(func() {
		replace(in.target(), objects)
		in.f.releaseIfComplete()
	})
}

func replace(to target, objects []*wire.Object) {
	listed := make(map[types.NamespacedName]*wire.Object, len(objects))
	for _, o := range objects {
		listed[o.Key()] = o
	}
	changeTarget(to, listed, all)
}

// all says that a change drops all objects that it does not have.
func all(types.NamespacedName) bool { return true }

// changeTarget adds or replaces objects of a target, and removes those that are nil. The state is then complete if
// drops is not nil; that says which of the target's other objects are removed.
func changeTarget(
	to target, objects map[types.NamespacedName]*wire.Object, drops func(name types.NamespacedName) bool,
) {
	for name, o := range objects {
		if o != nil {
			to.apply(o)
		} else {
			to.remove(name)
		}
	}
	if drops == nil {
		return
	}
	for _, name := range to.names() {
		if _, there := objects[name]; !there && drops(name) {
			to.remove(name)
		}
	}
	to.setSynced()
}

// SetAbsent notes that the upstream answers 404 for the resource. It has no effect on a resource that was served
// before. While the facts are those of a Snapshot, it has no effect on a resource that every API server serves. In both
// cases the 404 probably comes from a gateway that has lost its API server.
func (in *Input) SetAbsent() {
	in.f.runStep(func() {
		switch {
		case in.f.restored == nil:
			in.store.noteAbsent()
		case in.isOptional():
			in.target().noteAbsent()
			in.f.releaseIfComplete()
		}
	})
}

// SetForbidden notes that the upstream keeps refusing the resource. An optional resource then counts as absent.
func (in *Input) SetForbidden() {
	if in.isOptional() {
		in.SetAbsent()
	}
}

// isOptional reports whether the facts can be complete without the input.
func (in *Input) isOptional() bool {
	return in.name == InputKubernetesEndpoints || onDemand(in.name)
}

// ObjectCount returns how many objects the input has, in the facts or in the Snapshot from which they were restored.
func (in *Input) ObjectCount() int {
	return get(in.f, func(now Reader) int {
		return max(len(in.store.names()), len(now.Restored().section(in.name).Objects))
	})
}

// onDemand reports whether an input is followed only while clients ask for it.
func onDemand(input string) bool { return input == InputEndpoints || input == InputNamespaces }

// Forget drops all objects of a resource that is followed on demand when it is no longer followed. The resource is not
// ready until it is complete again.
func (f *Facts) Forget(r *served.Resource) {
	f.runStep(func() {
		in := f.Input(r.Resource)
		in.forget()
		in.held = nil
	})
}

func (in *Input) forget() {
	for _, name := range in.store.names() {
		in.store.remove(name)
	}
	in.store.reset()
}
