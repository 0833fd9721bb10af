package rollout

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/application-grid/application-grid/pkg/apis/enumerate"
	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/cluster"
	"github.com/application-grid/application-grid/pkg/program/pages"
)

// namedSites is how many sites the error about an unknown one names.
const namedSites = 10

var errNoRollout = errors.New("the grid has no spec.rollout: all its sites get a change at once")

// Name is a user's name for a grid of workloads.
type Name struct {
	Kind v1.GridKind
	Name string
}

// ParseName reads KIND/NAME or KIND NAME, and returns the arguments that follow, which are no more than most.
func ParseName(args []string, most int) (Name, []string, error) {
	if len(args) > 0 {
		args = append(strings.SplitN(args[0], "/", 2), args[1:]...)
	}
	if len(args) < 2 || args[1] == "" {
		return Name{}, nil, errors.New("name a grid: KIND/NAME")
	}
	more := args[2:]
	k, err := cluster.ParseKind(args[0])
	if err != nil {
		return Name{}, nil, err
	}
	if spec, _ := v1.SpecAndStatus(k.New()); spec == nil {
		return Name{}, nil, fmt.Errorf("a %s has no rollout", k.Kind)
	}
	if len(more) > most {
		return Name{}, nil, fmt.Errorf("too many arguments: %s", strings.Join(more, " "))
	}
	return Name{k, args[1]}, more, nil
}

// Grid is a grid of workloads in a cluster.
type Grid struct {
	cluster cluster.Cluster
	Kind    v1.GridKind
	Object  v1.Object
}

// Get reads a grid.
func Get(ctx context.Context, c cluster.Cluster, namespace string, name Name) (*Grid, error) {
	g := &Grid{c, name.Kind, name.Kind.New()}
	g.Object.SetNamespace(namespace)
	g.Object.SetName(name.Name)
	return g, g.Refresh(ctx)
}

// Refresh reads the grid again.
func (g *Grid) Refresh(ctx context.Context) error {
	fresh := g.Kind.New()
	if err := g.cluster.API.Get(ctx, client.ObjectKeyFromObject(g.Object), fresh); err != nil {
		return err
	}
	g.Object = fresh
	return nil
}

func (g *Grid) spec() *v1.WorkloadGridSpec {
	spec, _ := v1.SpecAndStatus(g.Object)
	return spec
}

func (g *Grid) status() *v1.WorkloadGridStatus {
	_, status := v1.SpecAndStatus(g.Object)
	return status
}

// String names the grid as kubectl does.
func (g *Grid) String() string {
	return strings.ToLower(g.Kind.Kind) + "." + v1.GroupName + "/" + g.Object.GetName()
}

// Unstructured returns the grid in the form of a manifest.
func (g *Grid) Unstructured() (*unstructured.Unstructured, error) {
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(g.Object)
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", g, err)
	}
	grid := &unstructured.Unstructured{Object: object}
	grid.SetGroupVersionKind(v1.GroupVersion.WithKind(g.Kind.Kind))
	return grid, nil
}

// change writes a change of the grid, unless somebody else has changed its spec meanwhile. If the controller has
// written its status meanwhile, the change is repeated with that status.
func (g *Grid) change(ctx context.Context, change func(v1.Object) error) error {
	generation := g.Object.GetGeneration()
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		changed, ok := g.Object.DeepCopyObject().(v1.Object)
		if !ok || changed.GetGeneration() != generation {
			return errors.New("the grid was changed by someone else at the same time; try again")
		}
		if err := change(changed); err != nil {
			return err
		}
		err := g.cluster.API.Patch(ctx, changed,
			client.MergeFromWithOptions(g.Object, client.MergeFromWithOptimisticLock{}))
		switch {
		case err == nil:
			g.Object = changed
		case apierrors.IsConflict(err):
			if err := g.Refresh(ctx); err != nil {
				return err
			}
		}
		return err
	})
}

// sign sets an annotation that approves, resumes or skips something, and records who did that, because a policy of the
// cluster may require it. If the API server does not return the user, no name is recorded.
func (g *Grid) sign(ctx context.Context, o v1.Object, key, value string) error {
	review := &authenticationv1.SelfSubjectReview{}
	err := g.cluster.API.Create(ctx, review)
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsForbidden(err) {
		return fmt.Errorf("asking who you are: %w", err)
	}
	user := review.Status.UserInfo.Username
	annotations := labels.Merge(o.GetAnnotations(), labels.Set{key: value, v1.AnnotationApprovedBy: user})
	if user == "" {
		delete(annotations, v1.AnnotationApprovedBy)
	}
	o.SetAnnotations(annotations)
	return nil
}

// Ref returns the grid's arguments for a command line of kubectl grid.
func (g *Grid) Ref() string {
	return fmt.Sprintf("%s/%s -n %s", g.Kind.Short, g.Object.GetName(), g.Object.GetNamespace())
}

// children returns the workloads of the grid, by site.
func (g *Grid) children(ctx context.Context) (map[string]*metav1.PartialObjectMetadata, error) {
	list := pages.Metadata(g.Kind.Child)
	err := g.cluster.API.List(ctx, list, client.InNamespace(g.Object.GetNamespace()),
		client.MatchingLabels{v1.LabelGridSelector: g.Object.GetName()})
	if err != nil {
		return nil, fmt.Errorf("asking for the %ss: %w", g.Kind.Child.Kind, err)
	}
	children := map[string]*metav1.PartialObjectMetadata{}
	for i := range list.Items {
		if item := &list.Items[i]; metav1.IsControlledBy(item, g.Object) {
			children[v1.SiteOf(item, g.Object.GetName())] = item
		}
	}
	return children, nil
}

// Child returns the workload of a site.
func (g *Grid) Child(ctx context.Context, site string) (*metav1.PartialObjectMetadata, error) {
	children, err := g.children(ctx)
	if err != nil {
		return nil, err
	}
	if child, ok := children[site]; ok {
		return child, nil
	}
	return nil, fmt.Errorf("%s has no site %q; it has %s", g, site,
		enumerate.First(slices.Sorted(maps.Keys(children)), namedSites))
}

// workload reads the whole of a child.
func (g *Grid) workload(ctx context.Context, child metav1.Object) (*unstructured.Unstructured, error) {
	workload := &unstructured.Unstructured{}
	workload.SetGroupVersionKind(g.Kind.Child)
	key := client.ObjectKey{Namespace: child.GetNamespace(), Name: child.GetName()}
	if err := g.cluster.API.Get(ctx, key, workload); err != nil {
		return nil, fmt.Errorf("asking for the %s %s: %w", g.Kind.Child.Kind, key.Name, err)
	}
	return workload, nil
}
