package status

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/gridview"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/cluster"
	"github.com/application-grid/application-grid/pkg/program/pages"
	"github.com/application-grid/application-grid/pkg/topology"
)

// Query selects grids.
type Query struct {
	// Kinds are the kinds of the grids.
	Kinds []v1.GridKind
	// Names are the grids of the one kind; none for all.
	Names []string
	// Namespace is that of the grids; empty for all namespaces.
	Namespace string
	// Selector selects grids by their labels.
	Selector labels.Selector
}

// The kinds in Reader.unread besides those of grids and of their children.
const (
	kindNode = "Node"
	kindPod  = "Pod"
)

// Reader reads grids, and the objects with which they are compared, as far as the user may read them.
type Reader struct {
	API client.Reader
	// Now is the time to which times are relative; zero for absolute times.
	Now time.Time
	// Warn is called with the parts that an answer leaves out.
	Warn func(format string, args ...any)

	// unread are the kinds that could not be read. They are not requested again.
	unread map[string]bool
}

type foundGrid struct {
	kind *v1.GridKind // a pointer, as Follow compares: functions are never equal
	grid v1.Object
}

func (f foundGrid) name() gridview.Object {
	return gridview.Object{Kind: f.kind.Kind, Namespace: f.grid.GetNamespace(), Name: f.grid.GetName()}
}

// Read returns the grids with their states, in the order of namespaces, kinds and names. It returns an error if a named
// grid does not exist.
func (r *Reader) Read(ctx context.Context, q Query) ([]gridview.Grid, error) {
	found, err := r.find(ctx, q)
	if err != nil {
		return nil, err
	}
	for _, name := range q.Names {
		if !slices.ContainsFunc(found, func(f foundGrid) bool { return f.grid.GetName() == name }) {
			return nil, fmt.Errorf("%s %q not found in namespace %s", q.Kinds[0].Plural, name, q.Namespace)
		}
	}
	return r.states(ctx, q.Namespace, found), nil
}

// Unread reports whether Warn was called with the kind that a finding says could not be read.
func (r *Reader) Unread(f gridview.Finding) bool {
	return f.Check == gridview.CheckRead && f.Object.Name == "" && r.unread[f.Object.Kind]
}

// find reads the selected grids, in order.
func (r *Reader) find(ctx context.Context, q Query) ([]foundGrid, error) {
	if r.unread == nil {
		r.unread = map[string]bool{}
	}
	var found []foundGrid
	served := false
	for i := range q.Kinds {
		k := &q.Kinds[i]
		if r.unread[k.Kind] {
			continue
		}
		err := pages.Each(ctx, r.API, k.NewList(), func(grid v1.Object) {
			if len(q.Names) == 0 || slices.Contains(q.Names, grid.GetName()) {
				found = append(found, foundGrid{k, grid})
			}
		}, client.InNamespace(q.Namespace), client.MatchingLabelsSelector{Selector: q.Selector})
		switch {
		case err == nil:
			served = true
		case cluster.IsNotServed(err) && len(q.Kinds) > 1:
			r.unread[k.Kind] = true // a controller before ours brought no DaemonSetGrid
		default:
			return nil, fmt.Errorf("asking for %s: %w", k.Plural, cluster.Explain(err))
		}
	}
	if !served {
		return nil, cluster.ErrNotServed
	}
	slices.SortFunc(found, func(a, b foundGrid) int { return CompareNames(a.name(), b.name()) })
	return found, nil
}

// states reads the objects with which the grids are compared, and returns the grids with their states.
func (r *Reader) states(ctx context.Context, namespace string, found []foundGrid) []gridview.Grid {
	var nodes map[string]topology.Labels
	workloads := slices.ContainsFunc(found, func(f foundGrid) bool { return f.kind.Kind != v1.ServiceGridKind.Kind })
	if workloads && !r.unread[kindNode] {
		var err error
		if nodes, err = cluster.Nodes(ctx, r.API); err != nil {
			r.Warn("the sites are those that the controller has reported, as nodes could not be read: %v", err)
			r.unread[kindNode] = true
		}
	}
	children := map[string]map[string]map[string]metav1.Object{} // by kind, namespace and name
	grids := make([]gridview.Grid, 0, len(found))
	for _, f := range found {
		kind, in := f.kind.Kind, f.grid.GetNamespace()
		if _, asked := children[kind]; !asked {
			children[kind] = r.children(ctx, *f.kind, namespace)
		}
		s := gridview.Surroundings{Nodes: nodes, Now: r.Now, Children: children[kind][in]}
		if s.Children == nil && children[kind] != nil {
			s.Children = map[string]metav1.Object{} // it has none, which is known
		}
		if !r.unread[kindPod] {
			var err error
			if s.Pods, err = Pods(ctx, r.API, f.grid); err != nil {
				r.Warn("why pods are not ready is left out, as they could not be read: %v", err)
				r.unread[kindPod] = apierrors.IsForbidden(err)
			}
		}
		grids = append(grids, gridview.Of(*f.kind, f.grid, s))
	}
	return grids
}

// children reads the objects with the label of children of one kind of grid, by namespace and name; nil if they cannot
// be read.
func (r *Reader) children(ctx context.Context, k v1.GridKind,
	namespace string) map[string]map[string]metav1.Object {
	if r.unread[k.Child.Kind] {
		return nil
	}
	list := pages.Metadata(k.Child)
	err := r.API.List(ctx, list, client.InNamespace(namespace), client.HasLabels{v1.LabelGridSelector})
	if err != nil {
		r.Warn("whether the grids' %ss exist is left out, as they could not be read: %v", k.Child.Kind, err)
		r.unread[k.Child.Kind] = true
		return nil
	}
	children := map[string]map[string]metav1.Object{}
	for i := range list.Items {
		item := &list.Items[i]
		if children[item.Namespace] == nil {
			children[item.Namespace] = map[string]metav1.Object{}
		}
		children[item.Namespace][item.Name] = item
	}
	return children
}

// Pods reads the pods of the grid's sites that are not ready, by the selectors of their templates.
func Pods(ctx context.Context, api client.Reader, grid v1.Object) ([]corev1.Pod, error) {
	spec, status := v1.SpecAndStatus(grid)
	if spec == nil { // a ServiceGrid
		return nil, nil
	}
	var pods []corev1.Pod
	asked := map[string]bool{}
	for _, state := range status.States {
		if state.Phase == v1.SiteReady || asked[state.Template] {
			continue
		}
		asked[state.Template] = true
		template := spec.Template
		if state.Template != "" {
			template = spec.TemplatePool[state.Template]
		}
		var workload struct {
			Selector *metav1.LabelSelector `json:"selector"`
		}
		err := json.Unmarshal(template.Raw, &workload)
		selector, selectorErr := metav1.LabelSelectorAsSelector(workload.Selector)
		if err != nil || selectorErr != nil || workload.Selector == nil {
			continue // the site's problem is its template
		}
		list := &corev1.PodList{}
		selected := client.MatchingLabelsSelector{Selector: selector}
		if err := api.List(ctx, list, client.InNamespace(grid.GetNamespace()), selected); err != nil {
			return nil, fmt.Errorf("asking for pods: %w", err)
		}
		pods = append(pods, list.Items...)
	}
	return pods, nil
}

// OnlyProblems leaves out healthy grids and sites.
func OnlyProblems(grids []gridview.Grid) []gridview.Grid {
	var problems []gridview.Grid
	for _, g := range grids {
		if g.Healthy {
			continue
		}
		g.Sites = slices.DeleteFunc(slices.Clone(g.Sites), func(u gridview.Site) bool {
			return u.Phase == v1.SiteReady
		})
		problems = append(problems, g)
	}
	return problems
}

// Healthy reports whether all grids are healthy.
func Healthy(grids []gridview.Grid) bool {
	return !slices.ContainsFunc(grids, func(g gridview.Grid) bool { return !g.Healthy })
}
