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
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/gridview"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/status"
	"github.com/application-grid/application-grid/pkg/topology"
)

// facts are the known objects of the cluster, and the results computed from them. Objects in it are never changed.
type facts struct {
	mu sync.Mutex // guards the fields below

	// objects are those of each resource.
	objects map[string]map[types.NamespacedName]client.Object
	// nodes are the labels of the nodes, the last diagnosis, which is nil before the first, and the nodes' groupings.
	nodes gridview.Groupings
	// pods are those of the sites of grids that are not ready.
	pods map[gridview.Object]readPods
	// summaries and states are results. A missing summary has to be computed again, and so have all states if they are
	// nil.
	summaries map[types.NamespacedName]*gridview.ServiceSummary
	states    []gridview.Grid
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

// readPods are pods that are not ready. They are old if they could not be read again.
type readPods struct {
	pods []corev1.Pod
	old  bool
}

func newFacts() *facts {
	f := &facts{
		objects:   map[string]map[types.NamespacedName]client.Object{},
		nodes:     gridview.Groupings{Nodes: map[string]topology.Labels{}},
		summaries: map[types.NamespacedName]*gridview.ServiceSummary{}, known: map[string]bool{}, revision: 1,
	}
	for _, r := range resources() {
		f.objects[r.name] = map[types.NamespacedName]client.Object{}
	}
	return f
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
	f.states = nil
}

// set takes an object of a resource, nil if it is gone, and reports whether that may affect results. It drops those
// that depend on the object.
func (f *facts) set(resource string, name types.NamespacedName, object client.Object) (changed bool) {
	before := f.objects[resource][name]
	if reflect.DeepEqual(before, object) {
		return false
	}
	if f.objects[resource][name] = object; object == nil {
		delete(f.objects[resource], name)
	}
	switch resource {
	case nodes:
		if delete(f.nodes.Nodes, name.Name); object != nil {
			f.nodes.Nodes[name.Name] = gridview.LabelsOf(object)
		}
		f.forgetAll()
	case endpointSlices:
		for _, o := range []client.Object{before, object} {
			if o != nil {
				delete(f.summaries, serviceOf(o))
			}
		}
	default:
		delete(f.summaries, name)
		f.states = nil
	}
	return true
}

func serviceOf(slice client.Object) types.NamespacedName {
	return types.NamespacedName{Namespace: slice.GetNamespace(), Name: slice.GetLabels()[discoveryv1.LabelServiceName]}
}

// service returns a Service; nil if it does not exist.
func (f *facts) service(name types.NamespacedName) *corev1.Service {
	s, _ := f.objects[services][name].(*corev1.Service)
	return s
}

func (f *facts) endpointSlices() map[types.NamespacedName][]discoveryv1.EndpointSlice {
	all := map[types.NamespacedName][]discoveryv1.EndpointSlice{}
	for _, object := range f.objects[endpointSlices] {
		if s, ok := object.(*discoveryv1.EndpointSlice); ok {
			all[serviceOf(s)] = append(all[serviceOf(s)], *s)
		}
	}
	return all
}

// serviceSummaries returns the summaries of all Services with endpoints in the cluster, the worst first. It returns
// none if nodes or EndpointSlices are not known, because both are needed.
func (f *facts) serviceSummaries() []gridview.ServiceSummary {
	summaries := []gridview.ServiceSummary{}
	if !f.known[nodes] || !f.known[endpointSlices] {
		return summaries
	}
	endpoints := f.endpointSlices()
	for name := range f.objects[services] {
		s := f.service(name)
		if s.Spec.Type == corev1.ServiceTypeExternalName {
			continue
		}
		if f.summaries[name] == nil {
			f.summaries[name] = new(f.nodes.View(s, endpoints[name]).Summary())
		}
		summaries = append(summaries, *f.summaries[name])
	}
	slices.SortFunc(summaries, gridview.CompareServices)
	return summaries
}

// viewOf returns the view of a Service: the endpoints that every node sees. It returns nil if the Service does not
// exist, or if nodes or EndpointSlices are not known.
func (f *facts) viewOf(name types.NamespacedName) *gridview.View {
	s := f.service(name)
	if s == nil || !f.known[nodes] || !f.known[endpointSlices] {
		return nil
	}
	return f.nodes.View(s, f.endpointSlices()[name])
}

func kindOf(name gridview.Object) v1.GridKind {
	return v1.Kinds[slices.IndexFunc(v1.Kinds, func(k v1.GridKind) bool { return k.Kind == name.Kind })]
}

// gridObject returns a grid; nil if it does not exist.
func (f *facts) gridObject(name gridview.Object) v1.Object {
	in := types.NamespacedName{Namespace: name.Namespace, Name: name.Name}
	grid, _ := f.objects[kindOf(name).Plural][in].(v1.Object)
	return grid
}

// gridStates returns the states of all grids, in the order of kubectl grid status.
func (f *facts) gridStates() []gridview.Grid {
	if f.states != nil {
		return f.states
	}
	for _, kind := range v1.Kinds {
		children := f.childrenOf(kind)
		for _, object := range f.objects[kind.Plural] {
			grid, ok := object.(v1.Object)
			if !ok {
				continue
			}
			pods := f.pods[gridview.Object{Kind: kind.Kind, Namespace: grid.GetNamespace(), Name: grid.GetName()}]
			s := gridview.Surroundings{Pods: pods.pods, PodsOld: pods.old, Children: children[grid.GetNamespace()]}
			if f.known[nodes] {
				s.Nodes = f.nodes.Nodes
			}
			f.states = append(f.states, gridview.Of(kind, grid, s))
		}
	}
	slices.SortFunc(f.states, func(a, b gridview.Grid) int { return status.CompareNames(a.Object(), b.Object()) })
	return f.states
}

// childrenOf returns the children of the grids of a kind, by namespace and name; nil if they are not known.
func (f *facts) childrenOf(kind v1.GridKind) map[string]map[string]metav1.Object {
	resource, children := resourceOf(kind.Child), map[string]map[string]metav1.Object{}
	if !f.known[resource] {
		return nil
	}
	for name := range f.objects[kind.Plural] {
		children[name.Namespace] = map[string]metav1.Object{}
	}
	for name, child := range f.objects[resource] {
		// Of Services, those with the label are the children of grids.
		_, ours := child.GetLabels()[v1.LabelGridSelector]
		if in := children[name.Namespace]; in != nil && (ours || resource != services) {
			in[name.Name] = child
		}
	}
	return children
}

// setPods sets the pods of the sites of grids that are not ready, and reports whether they have changed. Where they
// could not be read, the last ones stay.
func (f *facts) setPods(pods map[gridview.Object]readPods) bool {
	for name, now := range pods {
		if now.old {
			pods[name] = readPods{f.pods[name].pods, true}
		}
	}
	if maps.EqualFunc(f.pods, pods, func(a, b readPods) bool { return reflect.DeepEqual(a, b) }) {
		return false
	}
	f.pods, f.states = pods, nil
	return true
}
