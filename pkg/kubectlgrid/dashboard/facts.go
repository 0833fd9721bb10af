package dashboard

import (
	"iter"
	"maps"
	"reflect"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/gridview"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/status"
	"github.com/application-grid/application-grid/pkg/topology"
)

// facts are the known objects of the cluster, and the results computed from them. Objects in it are never changed.
type facts struct {
	mu sync.Mutex // guards the fields below

	// objects has the objects, and groups has them by what is computed from them together.
	objects map[key]client.Object
	groups  map[key]map[string]client.Object
	// nodes are the labels of the nodes, the last diagnosis, which is nil before the first, and the nodes' groupings.
	nodes gridview.Groupings
	// pods are those of the sites of grids that are not ready.
	pods map[gridview.Object]readPods
	// summaries and states are results. One that is missing has to be computed again.
	summaries map[types.NamespacedName]*gridview.ServiceSummary
	states    map[gridview.Object]*gridview.Grid
	// known are the resources that were read; nothing is known of the others.
	known map[string]bool
	// revision grows with every change that may affect an answer.
	revision uint64
}

// update makes a change, which reports whether it may affect an answer.
func (f *facts) update(change func() bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if change() {
		f.revision++
	}
}

// latest returns the newest revision.
func (f *facts) latest() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.revision
}

// readPods are pods that are not ready. They are old if they could not be read again.
type readPods struct {
	pods []corev1.Pod
	old  bool
}

// key names an object, or a group of objects: the EndpointSlices of a Service, or those of another resource in a
// namespace.
type key struct {
	resource string
	types.NamespacedName
}

func groupOf(resource string, o client.Object) key {
	group := key{resource, types.NamespacedName{Namespace: o.GetNamespace()}}
	if resource == endpointSlices {
		group.Name = o.GetLabels()[discoveryv1.LabelServiceName]
	}
	return group
}

func newFacts() *facts {
	return &facts{
		objects: map[key]client.Object{}, groups: map[key]map[string]client.Object{},
		nodes:     gridview.Groupings{Nodes: map[string]topology.Labels{}},
		pods:      map[gridview.Object]readPods{},
		summaries: map[types.NamespacedName]*gridview.ServiceSummary{}, states: map[gridview.Object]*gridview.Grid{},
		known: map[string]bool{}, revision: 1,
	}
}

// know notes whether a resource could be read. If that changes, results must be recomputed.
func (f *facts) know(resource string, known bool) (changed bool) {
	if f.known[resource] == known {
		return false
	}
	f.known[resource] = known
	f.forgetAll()
	return true
}

// forgetAll drops all results.
func (f *facts) forgetAll() {
	f.nodes = gridview.Groupings{Nodes: f.nodes.Nodes, Diagnosis: f.nodes.Diagnosis}
	clear(f.summaries)
	clear(f.states)
}

// set takes an object of a resource, nil if it is gone, and reports whether that may affect results.
func (f *facts) set(resource string, name types.NamespacedName, object client.Object) (changed bool) {
	k := key{resource, name}
	before := f.objects[k]
	if reflect.DeepEqual(before, object) {
		return false
	}
	delete(f.objects, k)
	if before != nil {
		group := groupOf(resource, before)
		f.forget(group, name)
		if delete(f.groups[group], name.Name); len(f.groups[group]) == 0 {
			delete(f.groups, group)
		}
	}
	if object != nil {
		group := groupOf(resource, object)
		f.forget(group, name)
		if f.groups[group] == nil {
			f.groups[group] = map[string]client.Object{}
		}
		f.objects[k], f.groups[group][name.Name] = object, object
	}
	if resource == nodes {
		if delete(f.nodes.Nodes, name.Name); object != nil {
			f.nodes.Nodes[name.Name] = gridview.LabelsOf(object)
		}
		f.forgetAll()
	}
	return true
}

// forget drops the results that depend on an object of a group.
func (f *facts) forget(group key, name types.NamespacedName) {
	switch group.resource {
	case services:
		delete(f.summaries, name)
	case endpointSlices:
		delete(f.summaries, group.NamespacedName)
	}
	for _, kind := range v1.Kinds {
		switch group.resource {
		case kind.Plural:
			delete(f.states, gridview.Object{Kind: kind.Kind, Namespace: name.Namespace, Name: name.Name})
		case resourceOf(kind.Child):
			maps.DeleteFunc(f.states, func(of gridview.Object, _ *gridview.Grid) bool {
				return of.Kind == kind.Kind && of.Namespace == name.Namespace
			})
		}
	}
}

// all returns the objects of a resource.
func (f *facts) all(resource string) iter.Seq[client.Object] {
	return func(yield func(client.Object) bool) {
		for group, members := range f.groups {
			for _, object := range members {
				if group.resource == resource && !yield(object) {
					return
				}
			}
		}
	}
}

// service returns a Service; nil if it does not exist.
func (f *facts) service(name types.NamespacedName) *corev1.Service {
	s, _ := f.objects[key{services, name}].(*corev1.Service)
	return s
}

// slicesOf returns the EndpointSlices of a Service.
func (f *facts) slicesOf(name types.NamespacedName) []discoveryv1.EndpointSlice {
	group := f.groups[key{endpointSlices, name}]
	all := make([]discoveryv1.EndpointSlice, 0, len(group))
	for _, object := range group {
		if s, ok := object.(*discoveryv1.EndpointSlice); ok {
			all = append(all, *s)
		}
	}
	return all
}

// serviceSummaries returns the summaries of all Services with endpoints in the cluster, in no order. It returns nil if
// nodes or EndpointSlices are not known, because both are needed.
func (f *facts) serviceSummaries() []gridview.ServiceSummary {
	if !f.known[nodes] || !f.known[endpointSlices] {
		return nil
	}
	summaries := []gridview.ServiceSummary{}
	for object := range f.all(services) {
		name := client.ObjectKeyFromObject(object)
		if f.service(name).Spec.Type == corev1.ServiceTypeExternalName {
			continue
		}
		if f.summaries[name] == nil {
			f.summaries[name] = new(f.viewOf(name).Summary())
		}
		summaries = append(summaries, *f.summaries[name])
	}
	return summaries
}

// viewOf returns the view of a Service: the endpoints that every node sees. It returns nil if the Service does not
// exist, or if nodes or EndpointSlices are not known.
func (f *facts) viewOf(name types.NamespacedName) *gridview.View {
	s := f.service(name)
	if s == nil || !f.known[nodes] || !f.known[endpointSlices] {
		return nil
	}
	return f.nodes.View(s, f.slicesOf(name))
}

// gridNames returns the names of all grids, in the order of kubectl grid status.
func (f *facts) gridNames() []gridview.Object {
	var names []gridview.Object
	for _, kind := range v1.Kinds {
		for object := range f.all(kind.Plural) {
			names = append(names, gridview.Object{Kind: kind.Kind, Namespace: object.GetNamespace(),
				Name: object.GetName()})
		}
	}
	slices.SortFunc(names, status.CompareNames)
	return names
}

// gridStates returns the states of all grids, in the order of kubectl grid status.
func (f *facts) gridStates() []gridview.Grid {
	names := f.gridNames()
	states := make([]gridview.Grid, 0, len(names))
	for _, name := range names {
		states = append(states, *f.gridState(name))
	}
	return states
}

func kindOf(name gridview.Object) v1.GridKind {
	return v1.Kinds[slices.IndexFunc(v1.Kinds, func(k v1.GridKind) bool { return k.Kind == name.Kind })]
}

// gridObject returns a grid; nil if it does not exist.
func (f *facts) gridObject(name gridview.Object) v1.Object {
	in := types.NamespacedName{Namespace: name.Namespace, Name: name.Name}
	grid, _ := f.objects[key{kindOf(name).Plural, in}].(v1.Object)
	return grid
}

// gridState returns the state of a grid that exists.
func (f *facts) gridState(name gridview.Object) *gridview.Grid {
	if f.states[name] != nil {
		return f.states[name]
	}
	kind, surroundings := kindOf(name), gridview.Surroundings{Pods: f.pods[name].pods, PodsOld: f.pods[name].old}
	if f.known[nodes] {
		surroundings.Nodes = f.nodes.Nodes
	}
	if children := resourceOf(kind.Child); f.known[children] {
		surroundings.Children = map[string]metav1.Object{}
		for child, object := range f.groups[key{children, types.NamespacedName{Namespace: name.Namespace}}] {
			// Of Services, those with the label are the children of grids.
			if _, ours := object.GetLabels()[v1.LabelGridSelector]; ours || children != services {
				surroundings.Children[child] = object
			}
		}
	}
	f.states[name] = new(gridview.Of(kind, f.gridObject(name), surroundings))
	return f.states[name]
}

// setDiagnosis sets the diagnosis of the cluster, and reports whether it has changed.
func (f *facts) setDiagnosis(diagnosis *gridview.Diagnosis) bool {
	if reflect.DeepEqual(f.nodes.Diagnosis, diagnosis) {
		return false
	}
	f.nodes.Diagnosis = diagnosis
	f.forgetAll()
	return true
}

// setPods sets the pods of the sites of grids that are not ready, and reports whether they may change the state of one.
// Where they could not be read, the last ones stay.
func (f *facts) setPods(pods map[gridview.Object]readPods) (changed bool) {
	of := slices.Collect(maps.Keys(f.pods)) // those of grids that have become ready are outdated
	for _, name := range slices.AppendSeq(of, maps.Keys(pods)) {
		before, now := f.pods[name], pods[name]
		if now.old {
			now.pods = before.pods
			pods[name] = now
		}
		if f.gridObject(name) == nil || reflect.DeepEqual(before, now) {
			continue
		}
		state := f.gridState(name)
		delete(f.states, name)
		f.pods[name] = now
		changed = changed || !reflect.DeepEqual(state, f.gridState(name))
	}
	f.pods = pods
	return changed
}
