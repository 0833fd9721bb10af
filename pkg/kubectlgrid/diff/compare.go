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

	"github.com/application-grid/application-grid/pkg/apis/enumerate"
	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/gridcontroller/gridchild"
	"github.com/application-grid/application-grid/pkg/gridcontroller/gridrevision"
	"github.com/application-grid/application-grid/pkg/program/pages"
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

// Answer is what applying a grid would change in its child, or in the children of several sites that are the same now
// and would get the same.
type Answer struct {
	// Title names the grid, the template with the overrides that change it, and the site that was tried: the first of
	// Sites, as an example of all of them. Child names its child.
	Title, Child string
	Sites        []string
	// Live is the present child as YAML, empty if it does not exist. Merged is the child after applying.
	Live, Merged string
	// Notes are other actions of the controller, and why the grid or the child is Refused.
	Notes   []string
	Refused bool
}

// Differs reports whether the child would change.
func (a *Answer) Differs() bool { return !a.Refused && a.Live != a.Merged }

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
// itself. Its client cannot write.
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
	c := &comparison{
		Source: s, owner: gridchild.OwnerOf(*k, grid), live: map[string]*unstructured.Unstructured{},
		answers: []*Answer{about}, groups: map[string]*Answer{},
	}
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(k.Child.GroupVersion().WithKind(k.Child.Kind + "List"))
	visit := func(u *unstructured.Unstructured) { c.live[u.GetName()] = u }
	if err := pages.Each(ctx, s.API, list, visit, client.InNamespace(c.owner.Namespace)); err != nil {
		return nil, fmt.Errorf("asking for the %ss of namespace %s: %w", k.Child.Kind, c.owner.Namespace, err)
	}
	if service, ok := grid.(*v1.ServiceGrid); ok {
		child, err := gridchild.OfService(c.owner, service.Spec.Template)
		err = c.add(ctx, about.Title, "", child, err)
		return c.answers, err
	}
	err := c.addSites(ctx, grid)
	return c.answers, err
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
	live    map[string]*unstructured.Unstructured
	answers []*Answer
	// groups has the answer for sites whose children would change in the same way: they have the same now, and get the
	// same.
	groups map[string]*Answer
}

// addSites adds the sites of a grid of workloads, whose children package gridchild names and renders.
func (c *comparison) addSites(ctx context.Context, grid v1.Object) error {
	spec, status := v1.Workload(grid)
	about := c.answers[0]
	if follow := status.GridUniqKey; follow != "" && follow != spec.GridUniqKey {
		about.note("gridUniqKey changes from %s to %s: the workloads of the old key's sites are removed as "+
			"spec.removal says", follow, spec.GridUniqKey)
	}
	revision, err := gridrevision.Of(c.owner.Kind, grid)
	if err != nil {
		return err
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
	for _, site := range sites {
		if c.Site != "" && c.Site != site {
			continue
		}
		template, overrides := gridchild.Parts(templates.Variant(site))
		if len(overrides) > 0 {
			template += " with " + strings.Join(overrides, ", ")
		}
		child, err := names.Child(site, templates, templates)
		if err := c.add(ctx, about.Title+", template "+template, site, child, err); err != nil {
			return err
		}
	}
	if len(c.answers) == 1 {
		about.note("no node has the label %s, so there is nothing to compare",
			strings.TrimSuffix(c.owner.Key+"="+c.Site, "="))
	}
	return nil
}

// add adds a site to the answer of its group. The child of the first one is tried. err is why there is no child.
func (c *comparison) add(
	ctx context.Context, title, site string, child *unstructured.Unstructured, err error,
) error {
	a, group := &Answer{Title: title, Sites: []string{site}}, title
	var live *unstructured.Unstructured
	if err == nil {
		if live = c.live[child.GetName()]; live != nil {
			group += c.likeness(live, gridchild.SetsReplicas(child))
			err = gridchild.ExistingOf(live).Claim(c.owner, live.GetName())
		}
	}
	if err := a.refuse(err); err != nil {
		return err
	}
	group += strings.Join(a.Notes, "")
	if known := c.groups[group]; known != nil {
		known.Sites = append(known.Sites, site)
		return nil
	}
	c.groups[group], c.answers = a, append(c.answers, a)
	if title != c.answers[0].Title { // it is not a Service
		a.Title += ", site " + enumerate.First(a.Sites, 1)
	}
	if a.Refused {
		return nil
	}
	return a.try(ctx, c.API, live, child)
}

// likeness returns a text of everything that applying a child could change in a live one, except the site, and the
// replicas if they are kept: its labels, the controller's annotations, its owners, its spec, and the fields that the
// controller owns in it, which are removed when they are not applied again.
func (c *comparison) likeness(live *unstructured.Unstructured, replicas bool) string {
	annotations := live.GetAnnotations()
	maps.DeleteFunc(annotations, func(key, _ string) bool {
		return !strings.HasPrefix(key, v1.GroupName+"/") || key == v1.AnnotationAppliedDigest
	})
	spec, _ := live.Object["spec"].(map[string]any)
	if spec = maps.Clone(spec); !replicas {
		delete(spec, "replicas")
	}
	parts := []any{live.GetLabels(), annotations, live.GetOwnerReferences(), spec}
	for _, entry := range live.GetManagedFields() {
		if entry.Manager == v1.FieldManager {
			parts = append(parts, entry.Operation, entry.Subresource, entry.FieldsV1)
		}
	}
	text, err := json.Marshal(parts)
	if err != nil { // it is like no other
		return live.GetName()
	}
	site := v1.SiteOf(live, c.owner.Name)
	return strings.NewReplacer(fmt.Sprintf("%q:%q", v1.LabelGridSite, site), "",
		fmt.Sprintf("%q:%q", c.owner.Key, site), "").Replace(string(text))
}

// try asks the API server for the child after applying it, and notes other actions of the controller. live is the
// present child; nil if there is none. It keeps its replicas if no template sets them.
func (a *Answer) try(ctx context.Context, api client.Client, live, child *unstructured.Unstructured) error {
	merged := child.DeepCopy()
	a.Child = strings.Join([]string{merged.GetKind(), merged.GetNamespace(), merged.GetName()}, ".")
	if live != nil {
		merged.SetUID(live.GetUID())
	}
	err := api.Apply(ctx, client.ApplyConfigurationFromUnstructured(merged), client.FieldOwner(v1.FieldManager),
		client.ForceOwnership)
	if err := a.refuse(err); err != nil {
		return fmt.Errorf("applying %s (a dry run): %w", a.Child, err)
	}
	if live == nil || a.Refused {
		a.Merged = readable(merged)
		return nil
	}
	replicas, ok, _ := unstructured.NestedInt64(live.Object, "spec", "replicas")
	if ok && !gridchild.SetsReplicas(child) {
		_ = unstructured.SetNestedField(merged.Object, replicas, "spec", "replicas") // it has a spec
		if slices.ContainsFunc(live.GetManagedFields(), func(entry metav1.ManagedFieldsEntry) bool {
			return entry.Manager == v1.FieldManager && strings.Contains(entry.FieldsV1.GetRawString(), `"f:replicas":`)
		}) {
			a.note("the template no longer sets replicas, so each site keeps the number it has: %d here", replicas)
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
	return nil
}

// readable returns an object as YAML, without the fields that the API server or the controller counts.
func readable(object *unstructured.Unstructured) string {
	out := object.DeepCopy()
	for _, field := range []string{"managedFields", "generation", "resourceVersion", "uid", "creationTimestamp"} {
		unstructured.RemoveNestedField(out.Object, "metadata", field)
	}
	unstructured.RemoveNestedField(out.Object, "metadata", "annotations", v1.AnnotationAppliedDigest)
	if len(out.GetAnnotations()) == 0 {
		out.SetAnnotations(nil)
	}
	text, err := yaml.Marshal(out.Object)
	if err != nil { // impossible: it was read as JSON
		return err.Error()
	}
	return string(text)
}
