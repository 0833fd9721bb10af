package diff

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/gridcontroller/gridchild"
	"github.com/application-grid/application-grid/pkg/gridcontroller/gridrevision"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/cluster"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/pages"
	"github.com/application-grid/application-grid/pkg/topology"
)

// Answer is what applying a grid would change in its child, or in the children of several sites that are the same now
// and would get the same.
type Answer struct {
	// Kind, Namespace and Name are the grid's.
	Kind, Namespace, Name string
	// Template is the name of the template, and Overrides are the names of the overrides that change it; empty if the
	// answer is about a Service, or about the grid itself.
	Template  string
	Overrides []string
	// Sites are the sites of the answer. The child of the first one was tried as an example of all of them.
	Sites []string
	// Child is the name of the child that was tried.
	Child string
	// Live is the present child, nil if it does not exist, and Merged is the child after applying.
	Live, Merged *unstructured.Unstructured
	// Notes are other actions of the controller.
	Notes []string
	// Refused is why the grid or the child cannot be applied; empty if it can.
	Refused string
}

// Differs reports whether the child would change.
func (a *Answer) Differs() bool {
	return a.Refused == "" && a.Merged != nil && (a.Live == nil || !reflect.DeepEqual(a.Live.Object, a.Merged.Object))
}

// Source makes Answers.
type Source struct {
	API client.Client
	// Nodes has the labels of all nodes, by name.
	Nodes map[string]topology.Labels
	// Merge makes the function that applies the patches of overrides to one kind of workload; without it patches fail.
	Merge func(ctx context.Context, kind schema.GroupVersionKind) gridchild.Merge
	// Site is the only site to ask about; empty for all.
	Site string
}

// Compare returns what applying a grid would change. The grid must have a namespace.
func (s Source) Compare(ctx context.Context, manifest *unstructured.Unstructured) ([]Answer, error) {
	k, ok := kindOf(manifest)
	if !ok {
		return nil, fmt.Errorf("%s %s is not a grid", manifest.GetKind(), manifest.GetName())
	}
	answer := Answer{Kind: k.Kind, Namespace: manifest.GetNamespace(), Name: manifest.GetName()}
	applied, notes, err := s.applyGrid(ctx, manifest)
	if refusal, refused := refusal(err); refused {
		answer.Refused = refusal
		return []Answer{answer}, nil
	}
	if err != nil {
		return nil, err
	}
	grid := k.New()
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(applied.Object, grid); err != nil {
		return nil, fmt.Errorf("reading %s %s: %w", k.Kind, answer.Name, err)
	}
	o := gridchild.OwnerOf(k, grid)
	if err := gridchild.CheckKey(o.Key); err != nil {
		answer.Refused = err.Error()
		return []Answer{answer}, nil //nolint:nilerr // the refusal is in the answer
	}
	if service, ok := grid.(*v1.ServiceGrid); ok {
		child, err := gridchild.OfService(o, service.Spec.Template)
		if err != nil {
			answer.Refused = err.Error()
			return []Answer{answer}, nil //nolint:nilerr // the refusal is in the answer
		}
		err = s.ask(ctx, o, k, child, &answer)
		return []Answer{answer}, err
	}
	answers, err := s.sites(ctx, o, k, grid, answer)
	if err == nil && len(answers) == 0 {
		notes = append(notes, "no node has the label "+o.Key+", so there are no sites")
		answers = []Answer{answer}
	}
	if err == nil {
		answers[0].Notes = append(notes, answers[0].Notes...)
	}
	return answers, err
}

// applyGrid returns the grid after applying the manifest (a dry run), and notes about other actions of the controller
// than changing children.
func (s Source) applyGrid(
	ctx context.Context, manifest *unstructured.Unstructured,
) (*unstructured.Unstructured, []string, error) {
	live := &unstructured.Unstructured{}
	live.SetGroupVersionKind(manifest.GroupVersionKind())
	strict := client.FieldValidation(metav1.FieldValidationStrict)
	asking := func(err error) error {
		return fmt.Errorf("asking for %s %s: %w", manifest.GetKind(), manifest.GetName(), err)
	}
	err := s.API.Get(ctx, client.ObjectKeyFromObject(manifest), live)
	if apierrors.IsNotFound(err) {
		created := manifest.DeepCopy()
		if err := s.API.Create(ctx, created, client.DryRunAll, strict); err != nil {
			return nil, nil, asking(err)
		}
		return created, nil, nil
	}
	if err != nil {
		return nil, nil, asking(err)
	}
	var notes []string
	before, _, _ := unstructured.NestedString(live.Object, "spec", "gridUniqKey")
	updated := merge(live, manifest)
	if err := s.API.Update(ctx, updated, client.DryRunAll, strict); err != nil {
		return nil, nil, asking(err)
	}
	if after, _, _ := unstructured.NestedString(updated.Object, "spec", "gridUniqKey"); after != before &&
		manifest.GetKind() != v1.ServiceGridKind.Kind {
		notes = append(notes, fmt.Sprintf(
			"gridUniqKey changes from %s to %s: the workloads of the old key's sites are removed as spec.removal says",
			before, after))
	}
	return updated, notes, nil
}

// merge returns the live grid with the manifest's spec, labels and annotations. Labels and annotations that kubectl
// applied before, and that are no longer in the manifest, are removed.
func merge(live, manifest *unstructured.Unstructured) *unstructured.Unstructured {
	merged := live.DeepCopy()
	var before struct {
		Metadata metav1.ObjectMeta `json:"metadata"`
	}
	if text := live.GetAnnotations()[corev1.LastAppliedConfigAnnotation]; text != "" {
		_ = json.Unmarshal([]byte(text), &before) // an annotation that cannot be read removes nothing
	}
	combine := func(live, before, now map[string]string) map[string]string {
		out := map[string]string{}
		maps.Copy(out, live)
		maps.DeleteFunc(out, func(key, _ string) bool { _, ours := before[key]; return ours })
		maps.Copy(out, now)
		return out
	}
	merged.SetLabels(combine(live.GetLabels(), before.Metadata.Labels, manifest.GetLabels()))
	merged.SetAnnotations(combine(live.GetAnnotations(), before.Metadata.Annotations, manifest.GetAnnotations()))
	if spec, ok := manifest.DeepCopy().Object["spec"]; ok {
		merged.Object["spec"] = spec
	} else {
		delete(merged.Object, "spec")
	}
	return merged
}

// refusal returns the API server's message, if err means that it refuses the object because of its content.
func refusal(err error) (string, bool) {
	var status apierrors.APIStatus
	if err == nil || !gridchild.Refused(err) || !errors.As(err, &status) {
		return "", false
	}
	return status.Status().Message, true
}

// group identifies sites whose children would change in the same way: they have the same now, and get the same.
type group struct {
	// variant names the template and the overrides.
	variant string
	// now is the likeness of the live child; empty if it does not exist. replicas are its replicas, if the child that
	// would be applied sets them; otherwise they are kept.
	now      string
	replicas int64
	// problem is why the child cannot be made; empty if it can.
	problem string
}

// sites groups a grid's sites, and makes an Answer for each group by trying one of its sites.
func (s Source) sites(
	ctx context.Context, o *gridchild.Owner, k v1.GridKind, grid v1.Object, answer Answer,
) ([]Answer, error) {
	children, err := s.children(ctx, k, o.Namespace)
	if err != nil {
		return nil, err
	}
	mine := func(name string) bool {
		child := children[name]
		return child != nil && metav1.IsControlledBy(child, grid)
	}
	sites := s.sitesOf(o.Key)
	names := gridchild.Assign(o, sites, gridchild.Known{Exists: mine, Taken: func(site string) bool {
		other := children[o.Name+"-"+site]
		return other != nil && errors.Is(claim(o, k, other), gridchild.ErrTaken)
	}})
	spec, _ := v1.Workload(grid)
	templates := gridchild.NewTemplates(spec, s.around(ctx, k, o.Key))
	revision, err := s.revision(ctx, k, grid)
	if err != nil {
		return nil, err
	}
	live, err := s.present(ctx, k, o)
	if err != nil {
		return nil, err
	}
	source := gridchild.Source{
		Templates: templates, Scale: templates, Revision: revision, InRollout: spec.Rollout != nil,
	}
	render := func(site string) (*gridchild.Child, error) {
		if err := names.Clashes[site]; err != nil {
			return nil, err
		}
		selects := o.SelectsSite
		if child, ok := live[names.BySite[site]]; ok {
			selects = child.selectsSite
		}
		return source.Child(o, site, names.BySite[site], selects)
	}
	order, members := grouped(sites, func(site string) group {
		g := group{variant: templates.Variant(site)}
		child, err := render(site)
		if err == nil && children[child.Object.GetName()] != nil {
			name := child.Object.GetName()
			g.now = live[name].likeness
			if child.SetsReplicas() {
				g.replicas = live[name].replicas
			}
			err = claim(o, k, children[name])
		}
		if err != nil {
			g.problem = err.Error()
		}
		return g
	})
	var answers []Answer
	for _, g := range order {
		one := answer
		one.Template, one.Overrides = gridchild.Parts(g.variant)
		one.Sites, one.Refused = members[g], g.problem
		if g.problem == "" {
			child, err := render(members[g][0])
			if err != nil {
				return nil, err
			}
			if err := s.ask(ctx, o, k, child, &one); err != nil {
				return nil, err
			}
		}
		answers = append(answers, one)
	}
	return answers, nil
}

// grouped groups sites. order has the groups in the order of their first sites.
func grouped(sites []string, of func(site string) group) (order []group, members map[group][]string) {
	members = map[group][]string{}
	for _, site := range sites {
		g := of(site)
		if members[g] == nil {
			order = append(order, g)
		}
		members[g] = append(members[g], site)
	}
	return order, members
}

// revision returns the name of the revision that the controller gives to the grid's spec. For a user who may not read
// ControllerRevisions it is the name of a new one.
func (s Source) revision(ctx context.Context, k v1.GridKind, grid v1.Object) (string, error) {
	spec, status := v1.Workload(grid)
	revision, err := gridrevision.Of(k.Kind, grid.GetName(), spec)
	if err != nil {
		return "", err
	}
	own, err := cluster.Revisions(ctx, s.API, grid)
	if err != nil && !apierrors.IsForbidden(err) {
		return "", err
	}
	if found := gridrevision.Find(own, revision, status.UpdateRevision); found != nil {
		return found.Name, nil
	}
	return revision.Name, nil
}

// children returns all objects of a namespace that have the kind of a grid's children, by name. It includes those that
// are not children of a grid, because they may have a name that a child should get.
func (s Source) children(
	ctx context.Context, k v1.GridKind, namespace string,
) (map[string]*metav1.PartialObjectMetadata, error) {
	list := pages.Metadata(k.Child)
	if err := s.API.List(ctx, list, client.InNamespace(namespace)); err != nil {
		return nil, fmt.Errorf("asking for the %ss of namespace %s: %w", k.Child.Kind, namespace, err)
	}
	children := make(map[string]*metav1.PartialObjectMetadata, len(list.Items))
	for i := range list.Items {
		children[list.Items[i].Name] = &list.Items[i]
	}
	return children, nil
}

// present has the properties of a site's live workload that may differ between sites.
type present struct {
	// selectsSite is set if its selector names the site.
	selectsSite bool
	// likeness is the same for two workloads that differ only in their site and replicas.
	likeness string
	replicas int64
}

// present returns the properties of each workload with the label of the grid's name. It lists whole objects, so it
// lists them page by page, and keeps none.
func (s Source) present(ctx context.Context, k v1.GridKind, o *gridchild.Owner) (map[string]present, error) {
	all := map[string]present{}
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(k.Child.GroupVersion().WithKind(k.Child.Kind + "List"))
	var unreadable error
	visit := func(item *unstructured.Unstructured) {
		likeness, err := likenessOf(item, o)
		if err != nil {
			unreadable = fmt.Errorf("reading %s %s: %w", k.Child.Kind, item.GetName(), err)
		}
		replicas, _, _ := unstructured.NestedInt64(item.Object, "spec", "replicas")
		all[item.GetName()] = present{gridchild.SelectsSite(item), likeness, replicas}
	}
	err := pages.Each(ctx, s.API, list, func() { clear(all) }, visit, client.InNamespace(o.Namespace),
		client.MatchingLabels{v1.LabelGridSelector: o.Name})
	if err != nil {
		return nil, fmt.Errorf("asking for the %ss of grid %s/%s: %w", k.Child.Kind, o.Namespace, o.Name, err)
	}
	return all, unreadable
}

// likenessOf returns a digest of everything that applying a child could change in the live one, except the site and the
// replicas: its labels, the controller's annotations, its owners, its spec, and the fields that the controller owns in
// it, which are removed when they are not applied again.
func likenessOf(live *unstructured.Unstructured, o *gridchild.Owner) (string, error) {
	spec, _ := live.DeepCopy().Object["spec"].(map[string]any)
	for _, path := range [][]string{
		{"selector", "matchLabels", v1.LabelGridSite},
		{"template", "metadata", "labels", v1.LabelGridSite},
		{"template", "spec", "nodeSelector", o.Key},
	} {
		if value, ok, _ := unstructured.NestedString(spec, path...); ok && value == v1.SiteOf(live, o.Name) {
			if err := unstructured.SetNestedField(spec, "", path...); err != nil {
				return "", err //nolint:wrapcheck // the caller names the object
			}
		}
	}
	delete(spec, "replicas")
	labels := live.GetLabels()
	delete(labels, v1.LabelGridSite)
	annotations := live.GetAnnotations()
	maps.DeleteFunc(annotations, func(key, _ string) bool {
		return !strings.HasPrefix(key, v1.GroupName+"/") || key == v1.AnnotationAppliedDigest
	})
	var owned []string
	for _, entry := range live.GetManagedFields() {
		if entry.Manager == v1.FieldManager && entry.FieldsV1 != nil {
			owned = append(owned, string(entry.Operation)+entry.Subresource+string(entry.FieldsV1.GetRawBytes()))
		}
	}
	data, err := json.Marshal([]any{labels, annotations, live.GetOwnerReferences(), spec, owned})
	if err != nil {
		return "", err //nolint:wrapcheck // the caller names the object
	}
	sum := sha256.Sum256(data)
	return string(sum[:]), nil
}

// around returns what templates depend on besides the grid.
func (s Source) around(ctx context.Context, k v1.GridKind, key string) gridchild.Context {
	c := gridchild.Context{Nodes: func(site string) []map[string]string {
		var of []map[string]string
		for _, labels := range s.Nodes {
			if value, has := labels[key]; has && value == site {
				of = append(of, labels)
			}
		}
		return of
	}}
	if s.Merge != nil {
		c.Merge = s.Merge(ctx, k.Child)
	}
	return c
}

func (s Source) sitesOf(key string) []string {
	sites := map[string]bool{}
	for _, labels := range s.Nodes {
		if site, has := labels[key]; has && (s.Site == "" || s.Site == site) {
			sites[site] = true
		}
	}
	return slices.Sorted(maps.Keys(sites))
}

// claim returns why a live object must not become a child of the grid.
func claim(o *gridchild.Owner, k v1.GridKind, live metav1.Object) error {
	return gridchild.Claim(o, k, live.GetName(), metav1.GetControllerOf(live), live.GetLabels()[v1.LabelGridSelector])
}

// ask asks the API server for the child after applying it, and fills in the answer.
func (s Source) ask(
	ctx context.Context, o *gridchild.Owner, k v1.GridKind, child *gridchild.Child, answer *Answer,
) error {
	merged := child.Object.DeepCopy()
	answer.Child = merged.GetName()
	live := &unstructured.Unstructured{}
	live.SetGroupVersionKind(k.Child)
	options := []client.ApplyOption{client.FieldOwner(v1.FieldManager), client.DryRunAll}
	err := s.API.Get(ctx, client.ObjectKeyFromObject(merged), live)
	switch {
	case apierrors.IsNotFound(err):
		live = nil
	case err != nil:
		return fmt.Errorf("asking for %s %s: %w", k.Child.Kind, answer.Child, err)
	default:
		if err := claim(o, k, live); err != nil {
			answer.Refused = err.Error()
			return nil //nolint:nilerr // the refusal is in the answer
		}
		merged.SetUID(live.GetUID())
		options = append(options, client.ForceOwnership)
	}
	err = s.API.Apply(ctx, client.ApplyConfigurationFromUnstructured(merged), options...)
	if refusal, refused := refusal(err); refused {
		answer.Refused = refusal
		return nil
	}
	if err != nil {
		return fmt.Errorf("applying %s %s (a dry run): %w", k.Child.Kind, answer.Child, err)
	}
	if live != nil {
		answer.Notes = append(answer.Notes, keepReplicas(live, merged, child)...)
		if why, held := live.GetAnnotations()[v1.AnnotationHold]; held {
			answer.Notes = append(answer.Notes,
				fmt.Sprintf("the annotation %s keeps it as it is: %s", v1.AnnotationHold, why))
		}
		if by := metav1.GetControllerOf(live); by == nil || string(by.UID) != o.UID {
			answer.Notes = append(answer.Notes,
				"it is adopted: fields that kubectl wrote and that the template does not have are removed too, "+
					"which is not shown here")
		}
		answer.Live = readable(live)
	}
	answer.Merged = readable(merged)
	if live == nil { // the API server makes these up for each dry run
		unstructured.RemoveNestedField(answer.Merged.Object, "metadata", "uid")
		unstructured.RemoveNestedField(answer.Merged.Object, "metadata", "creationTimestamp")
	}
	return nil
}

// keepReplicas keeps the live replicas where a template no longer sets replicas, as the controller does.
func keepReplicas(live, merged *unstructured.Unstructured, child *gridchild.Child) []string {
	if child.SetsReplicas() || !appliesReplicas(live) {
		return nil
	}
	replicas, ok, err := unstructured.NestedInt64(live.Object, "spec", "replicas")
	if !ok || err != nil || unstructured.SetNestedField(merged.Object, replicas, "spec", "replicas") != nil {
		return nil
	}
	return []string{fmt.Sprintf(
		"the template no longer sets replicas, so each site keeps the number it has: %d here", replicas)}
}

// appliesReplicas reports whether the controller has applied spec.replicas.
func appliesReplicas(live *unstructured.Unstructured) bool {
	return slices.ContainsFunc(live.GetManagedFields(), func(entry metav1.ManagedFieldsEntry) bool {
		var fields fieldpath.Set
		return entry.Manager == v1.FieldManager && entry.Operation == metav1.ManagedFieldsOperationApply &&
			entry.Subresource == "" && entry.FieldsV1 != nil &&
			fields.FromJSON(entry.FieldsV1.GetRawReader()) == nil &&
			fields.Has(fieldpath.MakePathOrDie("spec", "replicas"))
	})
}

// readable returns a copy of an object without the fields that change with every write.
func readable(object *unstructured.Unstructured) *unstructured.Unstructured {
	out := object.DeepCopy()
	for _, field := range []string{"managedFields", "generation", "resourceVersion"} {
		unstructured.RemoveNestedField(out.Object, "metadata", field)
	}
	unstructured.RemoveNestedField(out.Object, "metadata", "annotations", v1.AnnotationAppliedDigest)
	if annotations := out.GetAnnotations(); annotations != nil && len(annotations) == 0 {
		out.SetAnnotations(nil)
	}
	return out
}
