package facts

import (
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/application-grid/application-grid/pkg/storage/history"
	"github.com/application-grid/application-grid/pkg/wire"
)

// The names of the inputs.
const (
	// InputNodes is all nodes' metadata.
	InputNodes = "nodes"
	// InputNode is the Node objects that are served whole: this node's in a wrapper, all in a hub.
	InputNode = "node"
	// InputServices is all Services.
	InputServices = "services"
	// InputEndpointSlices is all EndpointSlices.
	InputEndpointSlices = "endpointslices"
	// InputKubernetesEndpoints is the Endpoints object default/kubernetes.
	InputKubernetesEndpoints = "kubernetes-endpoints"
	// InputEndpoints is all Endpoints. It may be followed for a while only; see Input.Forget.
	InputEndpoints = "endpoints"
)

// inputOrder is the order in which inputs are applied in one step.
var inputOrder = []string{InputNodes, InputNode, InputKubernetesEndpoints, InputServices, InputEndpointSlices, InputEndpoints}

// kept is what an input fills. Its methods are called within a step.
type kept interface {
	// apply takes an object that is new or changed, remove one that is gone.
	apply(*wire.Object)
	remove(types.NamespacedName)
	// names are those of all objects that are kept.
	names() []types.NamespacedName
	// setSynced is called after a complete state was applied.
	setSynced()
	// setAbsent says that the upstream does not serve the resource.
	setAbsent()
	// count is the number of objects that are kept.
	count() int
}

// Input takes the upstream's state of one kind of object. It is the Sink of a follow.Source.
type Input struct {
	f    *Facts
	name string
	kept kept
}

// Name is what the input is called.
func (in *Input) Name() string { return in.name }

// Apply takes an object that is new or changed.
func (in *Input) Apply(o *wire.Object) {
	in.f.update(func() {
		if held := in.f.hold.of(in.name); held != nil {
			held.apply(o)
			return
		}
		in.kept.apply(o)
	})
}

// Remove takes the name of an object that is gone.
func (in *Input) Remove(namespace, name string) {
	in.f.update(func() {
		key := types.NamespacedName{Namespace: namespace, Name: name}
		if held := in.f.hold.of(in.name); held != nil {
			held.remove(key)
			return
		}
		in.kept.remove(key)
	})
}

// Replace takes the complete state.
func (in *Input) Replace(objects []*wire.Object) {
	in.f.update(func() {
		if held := in.f.hold.of(in.name); held != nil {
			held.replace(objects)
			in.f.releaseIfComplete()
			return
		}
		in.replace(objects)
	})
}

func (in *Input) replace(objects []*wire.Object) {
	listed := make(map[types.NamespacedName]struct{}, len(objects))
	for _, o := range objects {
		listed[nameOf(o)] = struct{}{}
		in.kept.apply(o)
	}
	for _, name := range in.kept.names() {
		if _, ok := listed[name]; !ok {
			in.kept.remove(name)
		}
	}
	in.kept.setSynced()
}

// SetAbsent says that the upstream answers 404 for the resource. It is not believed of a resource that was served
// before, nor of what every API server serves while there is a State to fall back on: that is what a gateway says
// that has lost its API server.
func (in *Input) SetAbsent() {
	in.f.update(func() {
		if in.f.hold.restoring() {
			if held := in.f.hold.of(in.name); !held.complete {
				held.absent = in.isOptional()
				in.f.releaseIfComplete()
			}
			return
		}
		in.kept.setAbsent()
	})
}

// SetForbidden says that the upstream keeps refusing the resource. What can do without it does so from now on.
func (in *Input) SetForbidden() {
	if in.isOptional() {
		in.SetAbsent()
	}
}

// isOptional reports whether the facts can be complete without the input.
func (in *Input) isOptional() bool {
	return in.name == InputKubernetesEndpoints || in.name == InputEndpoints
}

// Known is how many objects the input has, in the facts or in a State that they are restored from.
func (in *Input) Known() int {
	in.f.mu.RLock()
	defer in.f.mu.RUnlock()
	return max(in.kept.count(), in.f.hold.state.count(in.name))
}

// ForgetEndpoints drops all Endpoints, which are not followed any more. They are not ready until they are complete again.
func (f *Facts) ForgetEndpoints() {
	f.update(func() {
		f.legacy.forget()
		f.hold.drop(InputEndpoints)
	})
}

func nameOf(o *wire.Object) types.NamespacedName {
	return types.NamespacedName{Namespace: o.Namespace, Name: o.Name}
}

// plainObjects are objects that are served as they come.
type plainObjects struct {
	f              *Facts
	resource       *history.Resource
	objects        map[types.NamespacedName]*wire.Object
	synced, absent bool
}

func (p *plainObjects) apply(o *wire.Object) {
	p.objects[nameOf(o)] = o
	add(&p.f.step.Nodes, nameOf(o))
}

func (p *plainObjects) remove(name types.NamespacedName) {
	delete(p.objects, name)
	add(&p.f.step.Nodes, name)
}

func (p *plainObjects) names() []types.NamespacedName {
	names := make([]types.NamespacedName, 0, len(p.objects))
	for name := range p.objects {
		names = append(names, name)
	}
	return names
}

func (p *plainObjects) setSynced() { p.synced, p.absent = true, false }

func (p *plainObjects) setAbsent() { p.absent = !p.synced }

func (p *plainObjects) count() int { return len(p.objects) }

// NodeObjects are those of InputNode. It is for Watchers.
func (f *Facts) NodeObjects() map[types.NamespacedName]*wire.Object { return f.node.objects }

func compareObjects(a, b *wire.Object) int {
	if n := strings.Compare(a.Namespace, b.Namespace); n != 0 {
		return n
	}
	return strings.Compare(a.Name, b.Name)
}
