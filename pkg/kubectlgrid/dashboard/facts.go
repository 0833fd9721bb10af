package dashboard

import (
	"maps"
	"reflect"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/gridview"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/status"
	"github.com/application-grid/application-grid/pkg/topology"
)

// facts are the known objects of the cluster, and the results computed from them. Objects in it are never changed.
type facts struct {
	mu sync.Mutex // guards the fields below

	// nodes are the labels of the nodes, the last diagnosis, which is nil before the first, and the nodes' groupings.
	nodes    gridview.Groupings
	services map[types.NamespacedName]*serviceFacts
	// serviceOf has the Service of each EndpointSlice.
	serviceOf map[types.NamespacedName]types.NamespacedName
	grids     map[status.GridName]*gridFacts
	// children has the children of the grids of a kind in a namespace, by name.
	children map[kindIn]map[string]*metav1.PartialObjectMetadata
	// known are the resources that were read; nothing is known of the others.
	known map[string]bool
}

// serviceFacts is a Service with its EndpointSlices. Either may arrive before the other.
type serviceFacts struct {
	service *corev1.Service
	slices  map[string]*discoveryv1.EndpointSlice
	// summary is nil if it has to be computed again.
	summary *gridview.ServiceSummary
}

// kindIn identifies the grids of a kind in a namespace.
type kindIn struct{ kind, namespace string }

// gridFacts is a grid with the pods of its sites that are not ready.
type gridFacts struct {
	kind   v1.GridKind
	object v1.Object
	pods   []corev1.Pod
	// state is nil if it has to be computed again.
	state *gridview.Grid
}

func newFacts() *facts {
	return &facts{
		nodes:     gridview.Groupings{Nodes: map[string]topology.Labels{}},
		services:  map[types.NamespacedName]*serviceFacts{},
		serviceOf: map[types.NamespacedName]types.NamespacedName{},
		grids:     map[status.GridName]*gridFacts{},
		children:  map[kindIn]map[string]*metav1.PartialObjectMetadata{},
		known:     map[string]bool{},
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
	for _, s := range f.services {
		s.summary = nil
	}
	for _, g := range f.grids {
		g.state = nil
	}
}

// The methods set… and remove… take a change of an object, and report whether it may affect results.

func (f *facts) setNode(node *metav1.PartialObjectMetadata) bool {
	labels, known := f.nodes.Nodes[node.Name]
	if known && maps.Equal(labels, node.Labels) {
		return false
	}
	if node.Labels == nil {
		node.Labels = topology.Labels{}
	}
	f.nodes.Nodes[node.Name] = node.Labels
	f.forgetAll()
	return true
}

func (f *facts) removeNode(name types.NamespacedName) {
	delete(f.nodes.Nodes, name.Name)
	f.forgetAll()
}

// service returns the facts of a Service, and adds them if they are missing.
func (f *facts) service(name types.NamespacedName) *serviceFacts {
	if f.services[name] == nil {
		f.services[name] = &serviceFacts{slices: map[string]*discoveryv1.EndpointSlice{}}
	}
	return f.services[name]
}

func (f *facts) setService(service *corev1.Service) bool {
	name := types.NamespacedName{Namespace: service.Namespace, Name: service.Name}
	s := f.service(name)
	if s.service != nil && reflect.DeepEqual(s.service, service) {
		return false
	}
	s.service, s.summary = service, nil
	if _, isChild := service.Labels[v1.LabelGridSelector]; isChild {
		f.setChild(v1.ServiceGridKind, &metav1.PartialObjectMetadata{ObjectMeta: service.ObjectMeta})
	} else {
		f.removeChild(v1.ServiceGridKind, name)
	}
	return true
}

func (f *facts) removeService(name types.NamespacedName) {
	if s := f.services[name]; s != nil {
		s.service, s.summary = nil, nil
		f.dropIfEmpty(name)
	}
	f.removeChild(v1.ServiceGridKind, name)
}

func (f *facts) dropIfEmpty(name types.NamespacedName) {
	if s := f.services[name]; s != nil && s.service == nil && len(s.slices) == 0 {
		delete(f.services, name)
	}
}

func (f *facts) setSlice(slice *discoveryv1.EndpointSlice) bool {
	name := types.NamespacedName{Namespace: slice.Namespace, Name: slice.Name}
	of := types.NamespacedName{Namespace: slice.Namespace, Name: slice.Labels[discoveryv1.LabelServiceName]}
	if before, known := f.serviceOf[name]; known && before != of {
		f.removeSlice(name)
	}
	s := f.service(of)
	if old := s.slices[slice.Name]; old != nil && reflect.DeepEqual(old, slice) {
		return false
	}
	f.serviceOf[name] = of
	s.slices[slice.Name], s.summary = slice, nil
	return true
}

func (f *facts) removeSlice(name types.NamespacedName) {
	of, known := f.serviceOf[name]
	if !known {
		return
	}
	delete(f.serviceOf, name)
	s := f.services[of]
	delete(s.slices, name.Name)
	s.summary = nil
	f.dropIfEmpty(of)
}

func (f *facts) setGrid(kind v1.GridKind, grid v1.Object) bool {
	name := status.GridName{Kind: kind.Kind, Namespace: grid.GetNamespace(), Name: grid.GetName()}
	var pods []corev1.Pod
	// Pods from an earlier time when sites were not ready are outdated.
	if old := f.grids[name]; old != nil && status.AskForPods(*f.gridState(old)) {
		pods = old.pods
	}
	f.grids[name] = &gridFacts{kind: kind, object: grid, pods: pods}
	return true
}

func (f *facts) removeGrid(kind v1.GridKind, name types.NamespacedName) {
	delete(f.grids, status.GridName{Kind: kind.Kind, Namespace: name.Namespace, Name: name.Name})
}

func (f *facts) setChild(kind v1.GridKind, child *metav1.PartialObjectMetadata) bool {
	in := kindIn{kind.Kind, child.Namespace}
	if old := f.children[in][child.Name]; old != nil && reflect.DeepEqual(old, child) {
		return false
	}
	if f.children[in] == nil {
		f.children[in] = map[string]*metav1.PartialObjectMetadata{}
	}
	f.children[in][child.Name] = child
	f.forgetGrids(in)
	return true
}

func (f *facts) removeChild(kind v1.GridKind, name types.NamespacedName) {
	if in := (kindIn{kind.Kind, name.Namespace}); f.children[in][name.Name] != nil {
		delete(f.children[in], name.Name)
		f.forgetGrids(in)
	}
}

// forgetGrids drops the states of grids.
func (f *facts) forgetGrids(in kindIn) {
	for name, g := range f.grids {
		if name.Kind == in.kind && name.Namespace == in.namespace {
			g.state = nil
		}
	}
}

// summaries returns the summaries of all Services with endpoints in the cluster, in no order. It returns nil if nodes
// or EndpointSlices are not known, because both are needed.
func (f *facts) summaries() []gridview.ServiceSummary {
	if !f.known[nodes] || !f.known[endpointSlices] {
		return nil
	}
	summaries := make([]gridview.ServiceSummary, 0, len(f.services))
	for _, s := range f.services {
		if s.service == nil || s.service.Spec.Type == corev1.ServiceTypeExternalName {
			continue
		}
		if s.summary == nil {
			summary := f.view(s).Summary()
			s.summary = &summary
		}
		summaries = append(summaries, *s.summary)
	}
	return summaries
}

// view returns the view of a Service: the endpoints that every node sees.
func (f *facts) view(s *serviceFacts) *gridview.View { return f.nodes.View(s.service, s.all()) }

func (s *serviceFacts) all() []discoveryv1.EndpointSlice {
	all := make([]discoveryv1.EndpointSlice, 0, len(s.slices))
	for _, slice := range s.slices {
		all = append(all, *slice)
	}
	return all
}

// gridStates returns the states of all grids, in the order of kubectl grid status.
func (f *facts) gridStates() []gridview.Grid {
	names := slices.SortedFunc(maps.Keys(f.grids), status.CompareNames)
	states := make([]gridview.Grid, 0, len(names))
	for _, name := range names {
		states = append(states, *f.gridState(f.grids[name]))
	}
	return states
}

func (f *facts) gridState(g *gridFacts) *gridview.Grid {
	if g.state != nil {
		return g.state
	}
	surroundings := gridview.Surroundings{Pods: g.pods}
	if f.known[nodes] {
		surroundings.Nodes = f.nodes.Nodes
	}
	if f.known[resourceOf(g.kind.Child)] {
		surroundings.Children = f.children[kindIn{g.kind.Kind, g.object.GetNamespace()}]
		if surroundings.Children == nil {
			surroundings.Children = map[string]*metav1.PartialObjectMetadata{}
		}
	}
	state := gridview.Of(g.kind, g.object, surroundings)
	g.state = &state
	return g.state
}

// setDiagnosis sets the diagnosis of the cluster, and reports whether it has changed.
func (f *facts) setDiagnosis(diagnosis *gridview.Diagnosis) bool {
	if diagnosis == nil || reflect.DeepEqual(f.nodes.Diagnosis, diagnosis) {
		return false
	}
	f.nodes.Diagnosis = diagnosis
	f.forgetAll()
	return true
}

// setPods sets the pods of a grid's sites that are not ready, and reports whether they may change its state.
func (f *facts) setPods(name status.GridName, pods []corev1.Pod) bool {
	g := f.grids[name]
	if g == nil {
		return false
	}
	before := f.gridState(g)
	g.pods, g.state = pods, nil
	return !reflect.DeepEqual(before, f.gridState(g))
}
