package diff

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/yaml"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/gridcontroller/gridchild"
	"github.com/application-grid/application-grid/pkg/gridcontroller/gridrevision"
	"github.com/application-grid/application-grid/pkg/gridcontroller/workloadpatch"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/cluster"
	"github.com/application-grid/application-grid/pkg/topology"
)

// Source makes Answers.
type Source struct {
	API client.Client
	// Nodes has the labels of all nodes, by name. Schemas are for the patches of overrides.
	Nodes   map[string]topology.Labels
	Schemas *workloadpatch.Schemas
	// Site is the only site to ask about; empty for all.
	Site string

	// owner is the grid that Compare asks about. live has the objects of its namespace that have the kind of its
	// children, by name, whoever owns them.
	owner *gridchild.Owner
	live  map[string]*unstructured.Unstructured
}

// Answer is what applying a grid would change in its child, or in the same way in the children of several sites.
type Answer struct {
	// Title names the grid and the template with the overrides that change it. Child names the child of the first site.
	Title, Child string
	// Sites is empty for the grid itself and its Service.
	Sites []string
	// Live is the present child as YAML, empty if it does not exist. Merged is the child after applying.
	Live, Merged string
	// Notes are other actions of the controller, and why the grid or the child is Refused.
	Notes   []string
	Refused bool

	// change has both directions of a patch of an existing child.
	change string
}

// Differs reports whether the child would change.
func (a *Answer) Differs() bool { return a.Live != a.Merged }

// refuse notes an error that means that something is refused because of its content. It returns any other error.
func (a *Answer) refuse(err error) error {
	if known, ok := errors.AsType[*gridchild.Error](gridchild.Rejected(err)); ok {
		a.Refused = true
		a.Notes = append(a.Notes, "REFUSED: "+known.Message)
		return nil
	}
	return fmt.Errorf("trying %s: %w", strings.Join(append([]string{a.Title}, a.Sites...), ", site "), err)
}

// Compare returns what applying a grid, which must have a namespace, would change: first an answer about the grid
// itself, or its Service. Its client cannot write.
func (s Source) Compare(ctx context.Context, manifest *unstructured.Unstructured) ([]*Answer, error) {
	k, err := cluster.ParseKind(manifest.GetKind())
	if err != nil {
		return nil, err
	}
	grid, about := k.New(), &Answer{
		Title: fmt.Sprintf("%s %s/%s", k.Kind, manifest.GetNamespace(), manifest.GetName()),
	}
	s.API = client.NewDryRunClient(client.WithFieldValidation(s.API, metav1.FieldValidationStrict))
	if err := applyGrid(ctx, s.API, manifest, grid); err != nil {
		return []*Answer{about}, about.refuse(err)
	}
	s.owner, s.live = gridchild.NewOwner(k, grid), map[string]*unstructured.Unstructured{}
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(k.Child)
	if err := s.API.List(ctx, list, client.InNamespace(s.owner.Namespace)); err != nil {
		return nil, fmt.Errorf("asking for the %ss of namespace %s: %w", k.Child.Kind, s.owner.Namespace, err)
	}
	for i := range list.Items {
		s.live[list.Items[i].GetName()] = &list.Items[i]
	}
	if service, ok := grid.(*v1.ServiceGrid); ok {
		child, err := gridchild.RenderService(s.owner, service.Spec.Template)
		return []*Answer{about}, s.try(ctx, about, child, err)
	}
	sites, err := s.sites(ctx, about, grid)
	return append([]*Answer{about}, sites...), err
}

// applyGrid applies the manifest, and reads the resulting grid.
func applyGrid(ctx context.Context, api client.Client, manifest *unstructured.Unstructured, grid v1.Object) error {
	applied := manifest.DeepCopy()
	_, err := controllerutil.CreateOrUpdate(ctx, api, applied, func() error {
		merge(applied, manifest)
		return nil
	})
	if err == nil {
		err = runtime.DefaultUnstructuredConverter.FromUnstructured(applied.Object, grid)
	}
	return err
}

// merge gives a live grid the spec, labels and annotations of the manifest. Labels and annotations that kubectl applied
// before, and that are no longer in the manifest, are removed.
func merge(live, manifest *unstructured.Unstructured) {
	var before metav1.PartialObjectMetadata
	// An annotation that does not exist, or cannot be read, removes nothing.
	_ = json.Unmarshal([]byte(live.GetAnnotations()[corev1.LastAppliedConfigAnnotation]), &before)
	combine := func(live, before, now map[string]string) map[string]string {
		maps.DeleteFunc(live, func(key, _ string) bool { _, ours := before[key]; return ours })
		return labels.Merge(live, now)
	}
	live.SetLabels(combine(live.GetLabels(), before.Labels, manifest.GetLabels()))
	live.SetAnnotations(combine(live.GetAnnotations(), before.Annotations, manifest.GetAnnotations()))
	live.Object["spec"] = manifest.DeepCopy().Object["spec"]
}

// sites returns the answers about the sites of a grid of workloads, whose children package gridchild names and renders.
func (s Source) sites(ctx context.Context, about *Answer, grid v1.Object) (answers []*Answer, err error) {
	spec, status := v1.SpecAndStatus(grid)
	revision, invalid := gridrevision.Of(s.owner.Kind, grid)
	_, err = gridchild.NewWaves(ptr.Deref(spec.Rollout, v1.Rollout{}).Waves, nil)
	if err = cmp.Or(gridchild.CheckKey(s.owner.Key), invalid, err); err != nil {
		return nil, about.refuse(err)
	}
	if follow := status.GridUniqKey; follow != "" && follow != s.owner.Key {
		about.Notes = append(about.Notes, fmt.Sprintf("gridUniqKey changes from %s to %s: the workloads of the old "+
			"key's sites are removed as spec.removal says", follow, s.owner.Key))
	}
	nodes := map[string][]labels.Labels{}
	for _, node := range s.Nodes {
		if site, has := node[s.owner.Key]; has {
			nodes[site] = append(nodes[site], labels.Set(node))
		}
	}
	templates := gridchild.NewTemplates(revision.Name, spec, gridchild.Cluster{
		HasNode: func(site string, of labels.Selector) bool { return slices.ContainsFunc(nodes[site], of.Matches) },
		Merge:   s.Schemas.Merge(s.owner.Child),
	})
	sites := slices.Sorted(maps.Keys(nodes))
	names := gridchild.Assign(s.owner, sites, func(name string) *gridchild.Existing {
		if live := s.live[name]; live != nil {
			return gridchild.ExistingOf(live)
		}
		return nil
	})
	sites = slices.DeleteFunc(sites, func(site string) bool { return s.Site != "" && site != s.Site })
	if len(sites) == 0 {
		about.Notes = append(about.Notes, "no node has the label "+strings.TrimSuffix(s.owner.Key+"="+s.Site, "=")+
			", so there is nothing to compare")
	}
	groups := map[string]*Answer{} // by how their children change
	for _, site := range sites {
		template := gridchild.DescribeVariant(templates.Variant(site))
		a := &Answer{Title: about.Title + ", template " + template, Sites: []string{site}}
		child, err := names.Render(site, templates, templates)
		if err := s.try(ctx, a, child, err); err != nil {
			return nil, err
		}
		key := strings.ReplaceAll(fmt.Sprint(a.Title, a.Notes, a.change), names.BySite[site], "") // refusals name it
		if known := groups[key]; known != nil {
			known.Sites = append(known.Sites, site)
			continue
		}
		groups[key], answers = a, append(answers, a)
	}
	return answers, nil
}

// try asks the API server for the child after applying it, and notes other actions of the controller. err is why there
// is no child.
func (s Source) try(ctx context.Context, a *Answer, child *unstructured.Unstructured, err error) error {
	if err != nil {
		return a.refuse(err)
	}
	live, merged := s.live[child.GetName()], child.DeepCopy()
	if live != nil {
		err = gridchild.ExistingOf(live).CheckClaim(s.owner, live.GetName())
	}
	if err == nil {
		err = s.API.Apply(ctx, client.ApplyConfigurationFromUnstructured(merged), client.FieldOwner(v1.FieldManager),
			client.ForceOwnership)
	}
	if err != nil {
		return a.refuse(err)
	}
	a.Child = strings.Join([]string{child.GetKind(), child.GetNamespace(), child.GetName()}, ".")
	if live == nil {
		a.Merged, a.change = readable(merged), "it is made"
		return nil
	}
	if !gridchild.SetsReplicas(child) { // the controller keeps them
		before, set, _ := unstructured.NestedInt64(live.Object, "spec", "replicas")
		if now, _, _ := unstructured.NestedInt64(merged.Object, "spec", "replicas"); set && now != before {
			a.Notes = append(a.Notes, "the template no longer sets replicas, so each site keeps the number it has")
			_ = unstructured.SetNestedField(merged.Object, before, "spec", "replicas") // it has a spec
		}
	}
	if why, held := live.GetAnnotations()[v1.AnnotationHold]; held {
		a.Notes = append(a.Notes, fmt.Sprintf("the annotation %s keeps it as it is: %s", v1.AnnotationHold, why))
	}
	if metav1.GetControllerOf(live) == nil {
		a.Notes = append(a.Notes, "it is adopted: fields that kubectl wrote and that the template does not have are "+
			"removed too, which is not shown here")
	}
	a.Live, a.Merged = readable(live), readable(merged)
	there, err := client.MergeFrom(live).Data(merged)
	back, also := client.MergeFrom(merged).Data(live)
	a.change = string(there) + string(back)
	return errors.Join(err, also)
}

// readable returns an object as YAML, and removes its status and the fields that the API server or the controller
// counts.
func readable(object *unstructured.Unstructured) string {
	for _, path := range []string{
		"status", "metadata.managedFields", "metadata.generation", "metadata.resourceVersion", "metadata.uid",
		"metadata.creationTimestamp",
	} {
		unstructured.RemoveNestedField(object.Object, strings.Split(path, ".")...)
	}
	unstructured.RemoveNestedField(object.Object, "metadata", "annotations", v1.AnnotationAppliedDigest)
	if len(object.GetAnnotations()) == 0 {
		object.SetAnnotations(nil)
	}
	text, _ := yaml.Marshal(object.Object) // it was read as JSON
	return string(text)
}
