package griddiff

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/gridchild"
	"github.com/application-grid/application-grid/pkg/topology"
)

// Answer is what applying a grid would do to its child, or to those of several units that have the same template.
type Answer struct {
	// Kind and Name are the grid's.
	Kind, Namespace, Name string
	// Template is the name of the template; empty where the answer is of a Service, or of the grid.
	Template string
	// Units are those that the answer is for. The first one's child was asked about, and is an example of the others'.
	Units []string
	// Child is the name of the child that was asked about.
	Child string
	// Live is what there is, nil for nothing, and Merged what there would be.
	Live, Merged *unstructured.Unstructured
	// Notes say what the controller does besides.
	Notes []string
	// Refused is why the grid or the child cannot be applied; empty if it can.
	Refused string
}

// Differs reports whether the child would change.
func (a *Answer) Differs() bool {
	return a.Refused == "" && a.Merged != nil && (a.Live == nil || !reflect.DeepEqual(a.Live.Object, a.Merged.Object))
}

// Source is what answers follow from.
type Source struct {
	API client.Client
	// Nodes are the labels of all nodes.
	Nodes map[string]topology.Labels
}

// Compare says what applying a grid would change. The grid has a namespace.
func (s Source) Compare(ctx context.Context, manifest *unstructured.Unstructured) ([]Answer, error) {
	k, ok := kindOf(manifest)
	if !ok {
		return nil, fmt.Errorf("%s %s is no grid", manifest.GetKind(), manifest.GetName())
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
	data, err := applied.MarshalJSON()
	if err != nil {
		return nil, fmt.Errorf("reading %s %s: %w", k.Kind, answer.Name, err)
	}
	grid := k.New()
	if err := json.Unmarshal(data, grid); err != nil {
		return nil, fmt.Errorf("reading %s %s: %w", k.Kind, answer.Name, err)
	}
	o := gridchild.OwnerOf(k, grid)
	if err := errors.Join(gridchild.CheckKey(o.Key), gridchild.CheckFallback(o.Fallback)); err != nil {
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
	answers, err := s.units(ctx, o, k, grid, answer)
	if err == nil && len(answers) == 0 {
		notes = append(notes, "no node has the label "+o.Key+", so there are no units")
		answers = []Answer{answer}
	}
	if err == nil {
		answers[0].Notes = append(notes, answers[0].Notes...)
	}
	return answers, err
}

// applyGrid asks what the API server would make of the grid, and says what the controller makes of that besides what it
// does to the children.
func (s Source) applyGrid(
	ctx context.Context, manifest *unstructured.Unstructured,
) (*unstructured.Unstructured, []string, error) {
	live := &unstructured.Unstructured{}
	live.SetGroupVersionKind(manifest.GroupVersionKind())
	strict := client.FieldValidation(metav1.FieldValidationStrict)
	err := s.API.Get(ctx, client.ObjectKeyFromObject(manifest), live)
	if apierrors.IsNotFound(err) {
		created := manifest.DeepCopy()
		if err := s.API.Create(ctx, created, client.DryRunAll, strict); err != nil {
			return nil, nil, fmt.Errorf("asking for %s %s: %w", manifest.GetKind(), manifest.GetName(), err)
		}
		return created, nil, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("asking for %s %s: %w", manifest.GetKind(), manifest.GetName(), err)
	}
	var notes []string
	before, _, _ := unstructured.NestedString(live.Object, "spec", "gridUniqKey")
	updated := merge(live, manifest)
	if err := s.API.Update(ctx, updated, client.DryRunAll, strict); err != nil {
		return nil, nil, fmt.Errorf("asking for %s %s: %w", manifest.GetKind(), manifest.GetName(), err)
	}
	if after, _, _ := unstructured.NestedString(updated.Object, "spec", "gridUniqKey"); after != before &&
		manifest.GetKind() != v1.ServiceGridKind.Kind {
		notes = append(notes, fmt.Sprintf(
			"gridUniqKey changes from %s to %s: the workloads of units that are gone by that are removed as "+
				"spec.removal says",
			before, after))
	}
	return updated, notes, nil
}

// merge is the live grid with the manifest's spec, and with its labels and annotations. Those go that kubectl has noted
// as its own, and that are not in the manifest any more.
func merge(live, manifest *unstructured.Unstructured) *unstructured.Unstructured {
	merged := live.DeepCopy()
	var before struct {
		Metadata metav1.ObjectMeta `json:"metadata"`
	}
	if text := live.GetAnnotations()[corev1.LastAppliedConfigAnnotation]; text != "" {
		_ = json.Unmarshal([]byte(text), &before) // what cannot be read says nothing
	}
	combine := func(live, before, now map[string]string) map[string]string {
		out := maps.Clone(live)
		maps.DeleteFunc(out, func(key, _ string) bool { _, ours := before[key]; return ours })
		if out == nil {
			out = map[string]string{}
		}
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

// refusal are the API server's words, if it refuses an object for what it says.
func refusal(err error) (string, bool) {
	var status apierrors.APIStatus
	if err == nil || !gridchild.Refused(err) || !errors.As(err, &status) {
		return "", false
	}
	return status.Status().Message, true
}

// selectorsPage is how many workloads are asked for at once.
const selectorsPage = 100

// group is of units whose children change alike.
type group struct {
	template string
	// exists: there is a child. same: the configuration that was applied last is the one that would be.
	exists, same bool
	// problem is why there can be no child.
	problem string
}

// units asks about one unit of each group.
func (s Source) units(
	ctx context.Context, o *gridchild.Owner, k v1.GridKind, grid v1.Object, answer Answer,
) ([]Answer, error) {
	children, err := s.children(ctx, k, o.Namespace)
	if err != nil {
		return nil, err
	}
	mine := func(name string) bool {
		child := children[name]
		return child != nil && ownerUID(child) == o.UID
	}
	units := s.unitsOf(o.Key)
	names := gridchild.Assign(k, o.Name, units, gridchild.Known{Exists: mine, Taken: func(unit string) bool {
		other := children[o.Name+"-"+unit]
		return other != nil && errors.Is(claim(o, k, other), gridchild.ErrTaken)
	}})
	spec, _ := v1.Workload(grid)
	templates := gridchild.NewTemplates(spec)
	selects, err := s.selectors(ctx, k, o)
	if err != nil {
		return nil, err
	}
	render := func(unit string) (*gridchild.Child, error) {
		if err := names.Clash(unit); err != nil {
			return nil, err
		}
		template, err := templates.Of(unit)
		if err != nil {
			return nil, err
		}
		owner := o
		if named, ok := selects[names.ByUnit[unit]]; ok {
			owner = o.WithUnitInSelector(named)
		}
		return gridchild.OfUnit(owner, k, unit, names.ByUnit[unit], template)
	}
	members := map[group][]string{}
	var order []group
	for _, unit := range units {
		g := group{template: templates.Name(unit)}
		if g.template == "" {
			g.template = string(v1.DefaultTemplate)
		}
		child, err := render(unit)
		if err == nil {
			if live := children[child.Object.GetName()]; live != nil {
				g.exists, g.same = true, live.Annotations[v1.AnnotationAppliedDigest] == child.Digest
				err = claim(o, k, live)
			}
		}
		if err != nil {
			g.problem = err.Error()
		}
		if members[g] == nil {
			order = append(order, g)
		}
		members[g] = append(members[g], unit)
	}
	var answers []Answer
	for _, g := range order {
		one := answer
		one.Template, one.Units, one.Refused = g.template, members[g], g.problem
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

// children are the objects of a namespace that have the kind of a grid's children, by name. Those that are nobody's
// children are among them: they may have a name that a child should get.
func (s Source) children(
	ctx context.Context, k v1.GridKind, namespace string,
) (map[string]*metav1.PartialObjectMetadata, error) {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(k.Child.GroupVersion().WithKind(k.Child.Kind + "List"))
	if err := s.API.List(ctx, list, client.InNamespace(namespace)); err != nil {
		return nil, fmt.Errorf("asking for the %ss of namespace %s: %w", k.Child.Kind, namespace, err)
	}
	children := make(map[string]*metav1.PartialObjectMetadata, len(list.Items))
	for i := range list.Items {
		children[list.Items[i].Name] = &list.Items[i]
	}
	return children, nil
}

// selectors says of each workload of the grid's name whether its selector names the unit. They are asked for whole, so
// page by page.
func (s Source) selectors(ctx context.Context, k v1.GridKind, o *gridchild.Owner) (map[string]bool, error) {
	named := map[string]bool{}
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(k.Child.GroupVersion().WithKind(k.Child.Kind + "List"))
	for {
		err := s.API.List(ctx, list, client.InNamespace(o.Namespace),
			client.MatchingLabels{v1.LabelGridSelector: o.Name},
			client.Limit(selectorsPage), client.Continue(list.GetContinue()))
		if err != nil {
			return nil, fmt.Errorf("asking for the %ss of grid %s/%s: %w", k.Child.Kind, o.Namespace, o.Name, err)
		}
		for i := range list.Items {
			named[list.Items[i].GetName()] = gridchild.SelectsUnit(&list.Items[i])
		}
		if list.GetContinue() == "" {
			return named, nil
		}
	}
}

// unitsOf are the units of a key, in order.
func (s Source) unitsOf(key string) []string {
	units := map[string]bool{}
	for _, labels := range s.Nodes {
		if unit := labels[key]; unit != "" {
			units[unit] = true
		}
	}
	return slices.Sorted(maps.Keys(units))
}

// claim says why a live object must not become a child of the grid.
func claim(o *gridchild.Owner, k v1.GridKind, live metav1.Object) error {
	err := gridchild.Claim(o, k, live.GetName(), metav1.GetControllerOf(live), live.GetLabels()[v1.LabelGridSelector])
	if errors.Is(err, gridchild.ErrLeftOver) {
		return fmt.Errorf("%s %s of a deleted grid of this name is still there; the garbage collector removes it: %w",
			k.Child.Kind, live.GetName(), err)
	}
	return err
}

func ownerUID(object metav1.Object) string {
	if by := metav1.GetControllerOf(object); by != nil {
		return string(by.UID)
	}
	return ""
}

// ask asks the API server what would become of a child.
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
		return fmt.Errorf("asking what would become of %s %s: %w", k.Child.Kind, answer.Child, err)
	}
	if live != nil {
		answer.Notes = append(answer.Notes, keepReplicas(live, merged, child)...)
		if ownerUID(live) != o.UID {
			answer.Notes = append(answer.Notes,
				"it is adopted: fields that kubectl has written, and the template has not, go too, though they are "+
					"not shown here")
		}
		answer.Live = readable(live)
	}
	answer.Merged = readable(merged)
	if live == nil { // what the API server invents anew each time
		unstructured.RemoveNestedField(answer.Merged.Object, "metadata", "uid")
		unstructured.RemoveNestedField(answer.Merged.Object, "metadata", "creationTimestamp")
	}
	return nil
}

// keepReplicas does what the controller does where a template names no replicas any more: they stay.
func keepReplicas(live, merged *unstructured.Unstructured, child *gridchild.Child) []string {
	if _, named, _ := unstructured.NestedFieldNoCopy(child.Object.Object, "spec", "replicas"); named ||
		!appliesReplicas(live) {
		return nil
	}
	replicas, ok, err := unstructured.NestedInt64(live.Object, "spec", "replicas")
	if !ok || err != nil || unstructured.SetNestedField(merged.Object, replicas, "spec", "replicas") != nil {
		return nil
	}
	return []string{
		"the template names no replicas any more, and each unit keeps those that it has: here " + strconv.FormatInt(
			replicas, 10,
		),
	}
}

// appliesReplicas reports whether the controller has applied spec.replicas.
func appliesReplicas(live *unstructured.Unstructured) bool {
	for _, entry := range live.GetManagedFields() {
		if entry.Manager != v1.FieldManager || entry.Operation != metav1.ManagedFieldsOperationApply ||
			entry.Subresource != "" || entry.FieldsV1 == nil {
			continue
		}
		var fields struct {
			Spec map[string]any `json:"f:spec"`
		}
		if json.Unmarshal(entry.FieldsV1.GetRawBytes(), &fields) != nil {
			continue
		}
		if _, ok := fields.Spec["f:replicas"]; ok {
			return true
		}
	}
	return false
}

// readable leaves out what changes with every write, and says nothing of its own.
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
