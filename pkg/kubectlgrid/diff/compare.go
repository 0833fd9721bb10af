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
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/yaml"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/gridcontroller/gridchild"
	"github.com/application-grid/application-grid/pkg/gridcontroller/gridrevision"
	"github.com/application-grid/application-grid/pkg/topology"
)

// Source makes Answers.
type Source struct {
	API client.Client
	// Nodes has the labels of all nodes, by name.
	Nodes map[string]topology.Labels
	// Merge makes the function that applies the patches of overrides to one kind of workload.
	Merge func(kind schema.GroupVersionKind) gridchild.Merge
	// Site is the only site to ask about; empty for all.
	Site string
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

func (a *Answer) note(format string, args ...any) {
	a.Notes = append(a.Notes, fmt.Sprintf(format, args...))
}

// refuse notes an error that means that something is refused because of its content. It returns any other error.
func (a *Answer) refuse(err error) error {
	if known, ok := errors.AsType[*gridchild.Error](gridchild.Rejected(err)); ok {
		a.Refused = true
		a.note("REFUSED: %s", known.Message)
		return nil
	}
	return err
}

// Compare returns what applying a grid, which must have a namespace, would change: first an answer about the grid
// itself, or its Service. Its client cannot write.
func (s Source) Compare(ctx context.Context, manifest *unstructured.Unstructured) ([]*Answer, error) {
	about := &Answer{
		Title: fmt.Sprintf("%s %s/%s", manifest.GetKind(), manifest.GetNamespace(), manifest.GetName()),
	}
	k := kindOf(manifest)
	if k == nil {
		return nil, fmt.Errorf("%s is not a grid", about.Title)
	}
	s.API = client.NewDryRunClient(client.WithFieldValidation(s.API, metav1.FieldValidationStrict))
	grid := k.New()
	if err := about.refuse(applyGrid(ctx, s.API, manifest, grid)); err != nil || about.Refused {
		return []*Answer{about}, err
	}
	c := &comparison{Source: s, owner: gridchild.OwnerOf(*k, grid), live: map[string]*unstructured.Unstructured{}}
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(k.Child)
	if err := s.API.List(ctx, list, client.InNamespace(c.owner.Namespace)); err != nil {
		return nil, fmt.Errorf("asking for the %ss of namespace %s: %w", k.Child.Kind, c.owner.Namespace, err)
	}
	for i := range list.Items {
		c.live[list.Items[i].GetName()] = &list.Items[i]
	}
	if service, ok := grid.(*v1.ServiceGrid); ok {
		child, err := gridchild.OfService(c.owner, service.Spec.Template)
		return []*Answer{about}, c.try(ctx, about, child, err)
	}
	sites, err := c.sites(ctx, about, grid)
	return append([]*Answer{about}, sites...), err
}

// applyGrid applies the manifest, and reads the resulting grid.
func applyGrid(ctx context.Context, api client.Client, manifest *unstructured.Unstructured, grid v1.Object) error {
	applied := manifest.DeepCopy()
	_, err := controllerutil.CreateOrUpdate(ctx, api, applied, func() error {
		merge(applied, manifest)
		return nil
	})
	if err != nil {
		return err
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(applied.Object, grid); err != nil {
		return fmt.Errorf("reading the grid %s: %w", grid.GetName(), err)
	}
	spec, _ := v1.Workload(grid)
	if spec == nil {
		return nil
	}
	_, err = gridchild.NewWaves(cmp.Or(spec.Rollout, &v1.Rollout{}), nil)
	return cmp.Or(gridchild.CheckKey(spec.GridUniqKey), err)
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

// comparison is about one grid.
type comparison struct {
	Source

	owner *gridchild.Owner
	// live has the objects of the namespace that have the kind of the grid's children, by name, whoever owns them.
	live map[string]*unstructured.Unstructured
}

// sites returns the answers about the sites of a grid of workloads, whose children package gridchild names and renders.
func (c *comparison) sites(ctx context.Context, about *Answer, grid v1.Object) ([]*Answer, error) {
	spec, status := v1.Workload(grid)
	if follow := status.GridUniqKey; follow != "" && follow != spec.GridUniqKey {
		about.note("gridUniqKey changes from %s to %s: the workloads of the old key's sites are removed as "+
			"spec.removal says", follow, spec.GridUniqKey)
	}
	revision, err := gridrevision.Of(c.owner.Kind, grid)
	if err != nil {
		return nil, err
	}
	nodes := map[string][]labels.Labels{}
	for _, node := range c.Nodes {
		if site, has := node[c.owner.Key]; has {
			nodes[site] = append(nodes[site], labels.Set(node))
		}
	}
	templates := gridchild.NewTemplates(spec, gridchild.Context{
		HasNode: func(site string, of labels.Selector) bool { return slices.ContainsFunc(nodes[site], of.Matches) },
		Merge:   c.Merge(c.owner.Child),
	})
	templates.Revision = revision.Name
	sites := slices.Sorted(maps.Keys(nodes))
	names := gridchild.Assign(c.owner, sites, func(name string) *gridchild.Existing {
		if live := c.live[name]; live != nil {
			return gridchild.ExistingOf(live)
		}
		return nil
	})
	if c.Site != "" {
		sites = slices.DeleteFunc(sites, func(site string) bool { return site != c.Site })
	}
	if len(sites) == 0 {
		about.note("no node has the label %s, so there is nothing to compare",
			strings.TrimSuffix(c.owner.Key+"="+c.Site, "="))
	}
	var answers []*Answer
	groups := map[string]*Answer{} // by how their children change
	for _, site := range sites {
		template, overrides := gridchild.Parts(templates.Variant(site))
		if len(overrides) > 0 {
			template += " with " + strings.Join(overrides, ", ")
		}
		a := &Answer{Title: about.Title + ", template " + template, Sites: []string{site}}
		child, err := names.Render(site, templates, templates)
		if err := c.try(ctx, a, child, err); err != nil {
			return nil, err
		}
		key := fmt.Sprint(a.Title, a.Notes, a.change)
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
func (c *comparison) try(ctx context.Context, a *Answer, child *unstructured.Unstructured, err error) error {
	var live *unstructured.Unstructured
	if err == nil {
		if live = c.live[child.GetName()]; live != nil {
			err = gridchild.ExistingOf(live).Claim(c.owner, live.GetName())
		}
	}
	merged := child.DeepCopy()
	if err == nil {
		a.Child = strings.Join([]string{child.GetKind(), child.GetNamespace(), child.GetName()}, ".")
		err = c.API.Apply(ctx, client.ApplyConfigurationFromUnstructured(merged), client.FieldOwner(v1.FieldManager),
			client.ForceOwnership)
	}
	if err := a.refuse(err); err != nil {
		return fmt.Errorf("trying %s, site %s: %w", a.Title, strings.Join(a.Sites, ""), err)
	}
	if a.Refused {
		return nil
	}
	if live == nil {
		a.Merged, a.change = readable(merged), "it is made"
		return nil
	}
	if !gridchild.SetsReplicas(child) { // the controller keeps them
		before, set, _ := unstructured.NestedInt64(live.Object, "spec", "replicas")
		if now, _, _ := unstructured.NestedInt64(merged.Object, "spec", "replicas"); set && now != before {
			a.note("the template no longer sets replicas, so each site keeps the number it has")
			_ = unstructured.SetNestedField(merged.Object, before, "spec", "replicas") // it has a spec
		}
	}
	if why, held := live.GetAnnotations()[v1.AnnotationHold]; held {
		a.note("the annotation %s keeps it as it is: %s", v1.AnnotationHold, why)
	}
	if metav1.GetControllerOf(live) == nil {
		a.note("it is adopted: fields that kubectl wrote and that the template does not have are removed too, " +
			"which is not shown here")
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
	unstructured.RemoveNestedField(object.Object, "status")
	for _, field := range []string{"managedFields", "generation", "resourceVersion", "uid", "creationTimestamp"} {
		unstructured.RemoveNestedField(object.Object, "metadata", field)
	}
	unstructured.RemoveNestedField(object.Object, "metadata", "annotations", v1.AnnotationAppliedDigest)
	if len(object.GetAnnotations()) == 0 {
		object.SetAnnotations(nil)
	}
	text, err := yaml.Marshal(object.Object)
	if err != nil { // impossible: it was read as JSON
		return err.Error()
	}
	return string(text)
}
