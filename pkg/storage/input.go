package storage

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/application-grid/application-grid/pkg/wire"
)

// The names of the inputs.
const (
	// InputNodes is all nodes' metadata.
	InputNodes = "nodes"
	// InputNode is this node's Node object.
	InputNode = "node"
	// InputServices is all Services.
	InputServices = "services"
	// InputEndpointSlices is all EndpointSlices.
	InputEndpointSlices = "endpointslices"
	// InputKubernetesEndpoints is the Endpoints object default/kubernetes.
	InputKubernetesEndpoints = "kubernetes-endpoints"
	// InputEndpoints is all Endpoints.
	InputEndpoints = "endpoints"
)

// inputOrder is the order in which complete states are applied: what a view depends on comes first.
var inputOrder = []string{InputNodes, InputNode, InputKubernetesEndpoints, InputServices, InputEndpointSlices, InputEndpoints}

// Input takes the upstream's state of one kind of object.
type Input struct {
	s    *Store
	name string
	// apply takes an object that is new or changed, remove one that is gone.
	apply  func(*wire.Object)
	remove func(types.NamespacedName)
	// names lists what the input holds.
	names func() []types.NamespacedName
	// synced is called after the first complete state was applied.
	synced func()
	// absent is called when the upstream does not serve the resource, and when it does (again).
	absent func(bool)
}

// Name is what the input is called.
func (in *Input) Name() string { return in.name }

// Apply takes an object that is new or changed.
func (in *Input) Apply(o *wire.Object) {
	in.s.update(func() {
		if held := in.s.held(in); held != nil {
			held.objects[nameOf(o)] = o
			return
		}
		in.each(func(in *Input) { in.apply(o) })
	})
}

// Remove takes the name of an object that is gone.
func (in *Input) Remove(namespace, name string) {
	in.s.update(func() {
		name := types.NamespacedName{Namespace: namespace, Name: name}
		if held := in.s.held(in); held != nil {
			delete(held.objects, name)
			return
		}
		in.each(func(in *Input) { in.remove(name) })
	})
}

// Replace takes the complete state. Only what differs from the state before becomes events.
func (in *Input) Replace(objects []*wire.Object) {
	in.s.update(func() {
		if held := in.s.held(in); held != nil {
			held.replace(objects)
			in.s.release()
			return
		}
		in.each(func(in *Input) {
			in.replace(objects)
			in.s.openTables()
		})
	})
}

// each makes a change through this input and through that of every view.
func (in *Input) each(change func(*Input)) {
	in.s.each(func(s *Store) { change(s.inputs[in.name]) })
}

func (in *Input) replace(objects []*wire.Object) {
	in.absent(false)
	listed := make(map[types.NamespacedName]struct{}, len(objects))
	for _, o := range objects {
		listed[nameOf(o)] = struct{}{}
		in.apply(o)
	}
	for _, name := range in.names() {
		if _, ok := listed[name]; !ok {
			in.remove(name)
		}
	}
	in.synced()
}

// SetAbsent says that the upstream does not serve the resource at all.
func (in *Input) SetAbsent() {
	in.s.update(func() {
		if held := in.s.held(in); held != nil {
			// That there are no Services at all is what a gateway says that has lost its API server.
			held.absent = in.name == InputKubernetesEndpoints || in.name == InputEndpoints
			in.s.release()
			return
		}
		in.each(func(in *Input) {
			in.absent(true)
			in.s.openTables()
		})
	})
}

func nameOf(o *wire.Object) types.NamespacedName {
	return types.NamespacedName{Namespace: o.Namespace, Name: o.Name}
}

// Services is the input of all Services.
func (s *Store) Services() *Input { return s.inputs[InputServices] }

// Node is the input of this node's Node object, which is served to clients as it is.
func (s *Store) Node() *Input { return s.inputs[InputNode] }

// NodeLabels is the input of all nodes' metadata.
func (s *Store) NodeLabels() *Input { return s.inputs[InputNodes] }

// EndpointSlices is the input of all EndpointSlices.
func (s *Store) EndpointSlices() *Input { return s.inputs[InputEndpointSlices] }

// Endpoints is the input of all Endpoints.
func (s *Store) Endpoints() *Input { return s.inputs[InputEndpoints] }

// KubernetesEndpoints is the input of the Endpoints object default/kubernetes, for its annotations.
func (s *Store) KubernetesEndpoints() *Input { return s.inputs[InputKubernetesEndpoints] }

func (s *Store) makeInputs() {
	s.inputs = make(map[string]*Input, len(inputOrder))
	for _, in := range []*Input{
		s.nodeLabelsInput(),
		s.plainInput(InputNode, s.nodeTable, func(*wire.Object) {}, func(types.NamespacedName) {}, func() {}),
		s.kubernetesEndpointsInput(),
		s.plainInput(InputServices, s.serviceTable, s.applyService, s.removeService, func() { s.servicesSynced = true }),
		s.collectionInput(InputEndpointSlices, s.endpointslices),
		s.collectionInput(InputEndpoints, s.endpoints),
	} {
		in.s = s
		s.inputs[in.name] = in
	}
}

func (s *Store) nodeLabelsInput() *Input {
	return &Input{
		name:   InputNodes,
		apply:  func(o *wire.Object) { s.setNode(o.Name, true, o.Labels) },
		remove: func(name types.NamespacedName) { s.setNode(name.Name, false, nil) },
		names:  s.knownNodes,
		synced: func() { s.nodesSynced = true },
		absent: func(bool) {},
	}
}

// plainInput fills a table whose objects are served as they come.
func (s *Store) plainInput(name string, t *table, applied func(*wire.Object), removed func(types.NamespacedName), synced func()) *Input {
	return &Input{
		name: name,
		apply: func(o *wire.Object) {
			values, err := t.resource.fieldsOf(o.Body)
			if err != nil {
				s.options.Logger.Error(err, "Cannot read an object, serving it without its fields", "resource", t.resource.Resource, "namespace", o.Namespace, "name", o.Name)
			}
			t.put(s, o, o.Body, values)
			applied(o)
		},
		remove: func(name types.NamespacedName) {
			t.remove(s, name.Namespace, name.Name)
			removed(name)
		},
		names: func() []types.NamespacedName {
			names := make([]types.NamespacedName, len(t.objects))
			for i, o := range t.objects {
				names[i] = nameOf(o.meta)
			}
			return names
		},
		synced: func() {
			if !t.ready {
				t.open(s)
			}
			synced()
		},
		absent: tableAbsent(t),
	}
}

func (s *Store) collectionInput(name string, c *collection) *Input {
	return &Input{
		name:   name,
		apply:  func(o *wire.Object) { s.applyBackend(c, o) },
		remove: func(name types.NamespacedName) { s.removeBackend(c, name) },
		names: func() []types.NamespacedName {
			names := make([]types.NamespacedName, 0, len(c.backends))
			for name := range c.backends {
				names = append(names, name)
			}
			return names
		},
		synced: func() { c.synced = true },
		absent: tableAbsent(c.table),
	}
}

// tableAbsent is the absent function of an input that fills a table.
func tableAbsent(t *table) func(bool) {
	return func(absent bool) {
		if t.absent != absent {
			t.absent = absent
			t.log.dirty = true
		}
	}
}
