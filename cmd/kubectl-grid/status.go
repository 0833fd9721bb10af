package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/gridview"
	"github.com/application-grid/application-grid/pkg/topology"
)

// statusOptions are the flags and arguments of `kubectl grid status`.
type statusOptions struct {
	allNamespaces bool
	selector      string
	problems      bool
	output        format
	// kinds are those to ask for, names the grids of the one kind; none for all.
	kinds []v1.GridKind
	names []string
}

func newStatusCommand(c *command) *cobra.Command {
	o := &statusOptions{}
	cmd := &cobra.Command{
		Use:   "status [KIND | KIND/NAME | KIND NAME...]",
		Short: "How it stands with the grids, unit by unit",
		Long: "Prints, for every unit of the grids, how many pods there should be, how many are ready and updated, and what is\n" +
			"wrong, in words: also what the controller cannot tell because it is away.\n" + exitCodes,
		Example: "  kubectl grid status                 # all grids of the namespace\n" +
			"  kubectl grid status -A --problems   # what is wrong anywhere\n" +
			"  kubectl grid status dg/echo -o wide",
		ValidArgsFunction: c.completeGrids,
		Args:              usageArgs(o.parse),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.run(cmd.Context(), c)
		},
	}
	f := cmd.Flags()
	f.BoolVarP(&o.allNamespaces, "all-namespaces", "A", false, "Grids of all namespaces")
	f.StringVarP(&o.selector, "selector", "l", "", "Only grids with these labels, such as team=a,tier!=b")
	f.BoolVar(&o.problems, "problems", false, "Only the units that are not ready, and the grids with problems")
	bindOutput(cmd, &o.output, formatTable, formatWide, formatJSON, formatYAML)
	return cmd
}

// parse reads the arguments as kubectl get does.
func (o *statusOptions) parse(_ *cobra.Command, args []string) error {
	o.kinds, o.names = v1.Kinds, nil
	if len(args) == 0 {
		return nil
	}
	kind, name, hasName := strings.Cut(args[0], "/")
	k, err := kindOf(kind)
	if err != nil {
		return err
	}
	o.kinds, o.names = []v1.GridKind{k}, args[1:]
	if hasName {
		if name == "" || len(args) > 1 {
			return fmt.Errorf("give one KIND/NAME, or KIND and then names: %s", strings.Join(args, " "))
		}
		o.names = []string{name}
	}
	switch {
	case len(o.names) > 0 && o.allNamespaces:
		return errors.New("a grid cannot be asked for by name in all namespaces: leave out -A or the name")
	case len(o.names) > 0 && o.selector != "":
		return errors.New("a grid is asked for by name or by label: leave out -l or the name")
	}
	return nil
}

func (o *statusOptions) run(ctx context.Context, c *command) error {
	selector, err := labels.Parse(o.selector)
	if err != nil {
		return usageError{fmt.Errorf("--selector: %w", err)}
	}
	cluster, namespace, err := c.connect()
	if err != nil {
		return err
	}
	if o.allNamespaces {
		namespace = ""
	}
	found, err := o.find(ctx, cluster, namespace, selector)
	if err != nil {
		return err
	}
	grids := cluster.statuses(ctx, namespace, found)
	if o.problems {
		grids = onlyProblems(grids)
	}
	if err := printGrids(c.stdout, grids, o.output, o.allNamespaces); err != nil {
		return err
	}
	switch {
	case slices.ContainsFunc(grids, func(g gridview.Grid) bool { return !g.Healthy }):
		return errProblems
	case len(grids) > 0 || o.output == formatJSON || o.output == formatYAML:
	case len(found) > 0:
		fmt.Fprintln(c.stderr, "No problems found.")
	case o.allNamespaces:
		fmt.Fprintln(c.stderr, "No grids found.")
	default:
		fmt.Fprintf(c.stderr, "No grids found in %s namespace.\n", namespace)
	}
	return nil
}

// foundGrid is a grid and its kind.
type foundGrid struct {
	kind v1.GridKind
	grid v1.Object
}

// find reads the grids that were asked for, in order.
func (o *statusOptions) find(ctx context.Context, cluster cluster, namespace string, selector labels.Selector) ([]foundGrid, error) {
	var found []foundGrid
	served := false
	for _, k := range o.kinds {
		list := k.NewList()
		err := cluster.api.List(ctx, list, client.InNamespace(namespace), client.MatchingLabelsSelector{Selector: selector})
		if isNotServed(err) && len(o.kinds) > 1 {
			continue // a controller before ours brought no DaemonSetGrid
		}
		if err != nil {
			return nil, fmt.Errorf("asking for %s: %w", k.Plural, explain(err))
		}
		served = true
		err = meta.EachListItem(list, func(item runtime.Object) error {
			grid, ok := item.(v1.Object)
			if !ok {
				return fmt.Errorf("%T is no grid", item)
			}
			if len(o.names) == 0 || slices.Contains(o.names, grid.GetName()) {
				found = append(found, foundGrid{k, grid})
			}
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("asking for %s: %w", k.Plural, err)
		}
	}
	if !served {
		return nil, errNotServed
	}
	for _, name := range o.names {
		if !slices.ContainsFunc(found, func(f foundGrid) bool { return f.grid.GetName() == name }) {
			return nil, fmt.Errorf("%s %q not found in namespace %s", o.kinds[0].Plural, name, namespace)
		}
	}
	slices.SortStableFunc(found, func(a, b foundGrid) int {
		return cmp.Or(cmp.Compare(a.grid.GetNamespace(), b.grid.GetNamespace()), kindOrder(a.kind, b.kind), cmp.Compare(a.grid.GetName(), b.grid.GetName()))
	})
	return found, nil
}

func kindOrder(a, b v1.GridKind) int {
	index := func(k v1.GridKind) int {
		return slices.IndexFunc(v1.Kinds, func(other v1.GridKind) bool { return other.Kind == k.Kind })
	}
	return cmp.Compare(index(a), index(b))
}

// statuses reads what the grids are compared with, as far as the user may, and says how it stands.
func (c cluster) statuses(ctx context.Context, namespace string, found []foundGrid) []gridview.Grid {
	if len(found) == 0 {
		return nil
	}
	var nodes map[string]topology.Labels
	if slices.ContainsFunc(found, func(f foundGrid) bool { return f.kind.Kind != "ServiceGrid" }) {
		var err error
		if nodes, err = c.nodes(ctx); err != nil {
			c.warn("units are those that the controller has told of: %s", whyNot(err))
		}
	}
	children := map[string]map[string]map[string]*metav1.PartialObjectMetadata{}
	grids := make([]gridview.Grid, 0, len(found))
	for _, f := range found {
		if _, asked := children[f.kind.Kind]; !asked {
			var err error
			if children[f.kind.Kind], err = c.children(ctx, f.kind, namespace); err != nil {
				c.warn("not compared with the %ss that there are: %s", f.kind.Child.Kind, whyNot(err))
			}
		}
		s := gridview.Surroundings{Nodes: nodes, Now: time.Now()}
		if known := children[f.kind.Kind]; known != nil {
			s.Children = known[f.grid.GetNamespace()]
			if s.Children == nil {
				s.Children = map[string]*metav1.PartialObjectMetadata{}
			}
		}
		if grid, ok := f.grid.(*v1.ServiceGrid); ok {
			grids = append(grids, gridview.Service(grid, s))
			continue
		}
		spec, status := v1.Workload(f.grid)
		var err error
		if s.Pods, err = c.pods(ctx, f.grid.GetNamespace(), spec, status); err != nil {
			c.warn("not said why pods of %s %s are not ready: %s", f.kind.Kind, f.grid.GetName(), whyNot(err))
		}
		grids = append(grids, gridview.Workloads(f.kind, f.grid, s))
	}
	return grids
}

// pods are those that the templates of units that are not ready select; none if all are.
func (c cluster) pods(ctx context.Context, namespace string, spec *v1.WorkloadGridSpec, status *v1.WorkloadGridStatus) ([]corev1.Pod, error) {
	var pods []corev1.Pod
	asked := map[string]bool{}
	for _, state := range status.States {
		if state.Phase == v1.UnitReady || asked[state.Template] {
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
		if err := json.Unmarshal(template.Raw, &workload); err != nil || workload.Selector == nil {
			continue // the unit's problem is its template
		}
		selector, err := metav1.LabelSelectorAsSelector(workload.Selector)
		if err != nil {
			continue
		}
		list := &corev1.PodList{}
		if err := c.api.List(ctx, list, client.InNamespace(namespace), client.MatchingLabelsSelector{Selector: selector}); err != nil {
			return nil, fmt.Errorf("asking for pods: %w", err)
		}
		pods = append(pods, list.Items...)
	}
	return pods, nil
}

// whyNot is the error of a request that the answer can do without.
func whyNot(err error) string {
	if apierrors.IsForbidden(err) {
		return "you may not read them: " + err.Error()
	}
	return err.Error()
}

// onlyProblems leaves out what is well.
func onlyProblems(grids []gridview.Grid) []gridview.Grid {
	var problems []gridview.Grid
	for _, g := range grids {
		if g.Healthy {
			continue
		}
		g.Units = slices.DeleteFunc(slices.Clone(g.Units), func(u gridview.Unit) bool { return u.Phase == v1.UnitReady })
		problems = append(problems, g)
	}
	return problems
}
