package gridcontroller

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/validation"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/topology"
)

// gridError is why a child, or a grid, cannot be what it should.
type gridError struct {
	// reason is one of the reasons in package v1, message tells the user what to change.
	reason, message string
}

func (e *gridError) Error() string { return e.message }

func failf(reason, format string, args ...any) error {
	return &gridError{reason, fmt.Sprintf(format, args...)}
}

// tellable is what a user is told of an error.
func tellable(err error) gridError {
	var known *gridError
	if errors.As(err, &known) {
		return *known
	}
	return gridError{v1.ReasonSyncFailed, shorten(err.Error())}
}

// desired is a child as it should be: what is applied, and nothing else.
type desired struct {
	object *unstructured.Unstructured
	// digest is equal for equal objects. It also stands in an annotation of the object, where it is found again.
	digest string
	// shape is shared with the children of the same template.
	shape *shape
}

// shape is what the children of one template have in common: they differ in the unit alone, so our field manager owns
// the same fields of each.
type shape struct {
	mu sync.Mutex // guards fields
	// fields is the hash of the fields that were found to be what is desired, of one of them; see child.is.
	fields string
}

func (s *shape) learn(live *child) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fields = live.fields
}

func (s *shape) fits(live *child) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fields == live.fields
}

// checkKey says why a gridUniqKey cannot be one. The CRD refuses such keys; a CRD that someone else installed
// may not.
func checkKey(key string) error {
	if key == "" {
		return failf(v1.ReasonInvalidKey, "spec.gridUniqKey is empty; set it to the key of the node label whose values are the units")
	}
	if problems := validation.IsQualifiedName(key); len(problems) > 0 {
		return failf(v1.ReasonInvalidKey, "spec.gridUniqKey %q cannot be the key of a node label: %s", key, problems[0])
	}
	return nil
}

// checkFallback says why fallbackKeys cannot be what they are. The CRD refuses them too.
func checkFallback(keys []string) error {
	for i, key := range keys {
		switch {
		case key == topology.Any && i < len(keys)-1:
			return failf(v1.ReasonInvalidKey, "spec.fallbackKeys: %q must be the last one", key)
		case key == topology.Any:
		case len(validation.IsQualifiedName(key)) > 0:
			return failf(v1.ReasonInvalidKey, "spec.fallbackKeys: %q cannot be the key of a node label: %s", key, validation.IsQualifiedName(key)[0])
		}
	}
	return nil
}

// templateName is the name of the template that a unit gets; empty for spec.template.
func templateName(spec *v1.WorkloadGridSpec, unit string) string {
	name, ok := spec.Templates[unit]
	if !ok {
		name = spec.DefaultTemplateName
	}
	if name == v1.DefaultTemplate {
		return ""
	}
	return string(name)
}

// unusedTemplates are the templates of the pool that no unit can get.
func unusedTemplates(spec *v1.WorkloadGridSpec) []string {
	used := map[string]bool{string(spec.DefaultTemplateName): true}
	for _, name := range spec.Templates {
		used[string(name)] = true
	}
	var unused []string
	for name := range spec.TemplatePool {
		if !used[name] {
			unused = append(unused, name)
		}
	}
	return unused
}

// templates are a grid's templates, decoded once for all units.
type templates struct {
	spec    *v1.WorkloadGridSpec
	decoded map[string]map[string]any
}

// of returns a copy of the template that a unit gets, for the caller to change.
func (t *templates) of(unit string) (map[string]any, error) {
	name := templateName(t.spec, unit)
	if spec, ok := t.decoded[name]; ok {
		return runtime.DeepCopyJSON(spec), nil
	}
	template, where := t.spec.Template, "spec.template"
	if name != "" {
		var ok bool
		where = "spec.templatePool." + name
		if template, ok = t.spec.TemplatePool[name]; !ok {
			by := "spec.defaultTemplateName names it"
			if _, ok := t.spec.Templates[unit]; ok {
				by = "spec.templates." + unit + " names it"
			}
			return nil, failf(v1.ReasonTemplateNotFound, "there is no template %q in spec.templatePool, and %s; add it there or name another one", name, by)
		}
	}
	spec, p := decodeTemplate(template, where)
	if p != nil {
		return nil, p
	}
	t.decoded[name] = spec
	return runtime.DeepCopyJSON(spec), nil
}

func decodeTemplate(template v1.Template, where string) (map[string]any, error) {
	if template.IsZero() {
		return nil, failf(v1.ReasonTemplateNotFound, "there is no %s; write one", where)
	}
	var spec map[string]any
	if err := utiljson.Unmarshal(template.Raw, &spec); err != nil || spec == nil {
		return nil, failf(v1.ReasonInvalidTemplate, "%s is not an object", where)
	}
	return spec, nil
}

// owner is what children need of their grid.
type owner struct {
	kind            string
	name, namespace string
	uid             string
	key             string
	// fallback are a ServiceGrid's further keys.
	fallback []string
	// unitLabel: the unit is a label of the pods too, and in their selector.
	unitLabel           bool
	labels, annotations map[string]string
}

// reference is the controller's reference to the grid.
func (o *owner) reference() map[string]any {
	return map[string]any{
		"apiVersion": v1.GroupVersion.String(), "kind": o.kind, "name": o.name, "uid": o.uid,
		"controller": true, "blockOwnerDeletion": true,
	}
}

// workloadChild is the child of one unit. The template is the caller's copy, and becomes part of the result.
func workloadChild(o *owner, k kind, unit, name string, template map[string]any) (*desired, error) {
	if err := checkName(o, k, name, unit); err != nil {
		return nil, err
	}
	selector, err := nodeSelector(template)
	if err != nil {
		return nil, err
	}
	selector[o.key] = unit
	if o.unitLabel {
		for _, path := range [][]string{{"selector", "matchLabels"}, {"template", "metadata", "labels"}} {
			labels, err := object(template, path...)
			if err != nil {
				return nil, err
			}
			labels[v1.LabelGridUnit] = unit
		}
	}
	return newDesired(o, k, name, unit, nil, template)
}

// object returns what is at a path of a template, which it makes if it is missing.
func object(template map[string]any, path ...string) (map[string]any, error) {
	at := "template"
	inner := template
	for _, field := range path {
		at += "." + field
		value, ok := inner[field]
		if !ok || value == nil {
			value = map[string]any{}
			inner[field] = value
		}
		object, ok := value.(map[string]any)
		if !ok {
			return nil, failf(v1.ReasonInvalidTemplate, "%s is not an object but %v; the unit cannot be written into it", at, value)
		}
		inner = object
	}
	return inner, nil
}

// nodeSelector returns spec.template.spec.nodeSelector, which it makes if it is missing.
func nodeSelector(template map[string]any) (map[string]any, error) {
	const at = "template.template.spec.nodeSelector"
	inner, err := object(template, "template", "spec", "nodeSelector")
	if err != nil {
		return nil, err
	}
	for key, value := range inner {
		text, ok := value.(string)
		switch {
		case !ok:
			return nil, failf(v1.ReasonInvalidTemplate, "%s.%s is not a string but %v; quote it", at, key, value)
		case len(validation.IsQualifiedName(key)) > 0 || len(validation.IsValidLabelValue(text)) > 0:
			return nil, failf(v1.ReasonInvalidTemplate, "%s: %s: %s cannot be the label of a node", at, key, text)
		}
	}
	return inner, nil
}

// serviceChild is the Service of a ServiceGrid.
func serviceChild(o *owner, template v1.Template) (*desired, error) {
	name := o.name + v1.ServiceSuffix
	if p := checkName(o, services, name, ""); p != nil {
		return nil, p
	}
	spec, p := decodeTemplate(template, "spec.template")
	if p != nil {
		return nil, p
	}
	keys, err := json.Marshal(append([]string{o.key}, o.fallback...))
	if err != nil {
		return nil, failf(v1.ReasonInvalidKey, "spec.gridUniqKey: %v", err)
	}
	annotations := map[string]string{v1.AnnotationTopologyKeys: string(keys)}
	for key, value := range o.annotations {
		switch key {
		case corev1.LastAppliedConfigAnnotation: // kubectl's note of what was applied to the grid says nothing of the Service
		case v1.AnnotationTopologyKeys, v1.AnnotationAppliedDigest, v1.AnnotationApproveRemoval:
		default:
			annotations[key] = value
		}
	}
	return newDesired(o, services, name, "", annotations, spec)
}

func checkName(o *owner, k kind, name, unit string) error {
	// A grid's name becomes the value of a label.
	if problems := validation.IsValidLabelValue(o.name); len(problems) > 0 {
		return failf(v1.ReasonInvalidName, "the grid's name cannot be the value of a label: %s; give the grid another name", problems[0])
	}
	why := k.CheckName(name)
	if why == "" {
		return nil
	}
	if unit == "" {
		return failf(v1.ReasonInvalidName, "%q cannot be the name of a %s: %s; give the grid another name", name, k.Child.Kind, why)
	}
	return failf(v1.ReasonInvalidName, "%q cannot be the name of a %s: %s; give the grid, or the unit (label %s=%s on its nodes), another name",
		name, k.Child.Kind, why, o.key, unit)
}

// newDesired puts a child together.
func newDesired(o *owner, k kind, name, unit string, annotations map[string]string, spec map[string]any) (*desired, error) {
	labels := maps.Clone(o.labels)
	if labels == nil {
		labels = map[string]string{}
	}
	labels[v1.LabelGridSelector] = o.name
	labels[v1.LabelGridUniqKey] = v1.KeyLabelValue(o.key)
	delete(labels, v1.LabelGridUnit)
	if unit != "" {
		labels[v1.LabelGridUnit] = unit // the value of a label of a node
	}
	if labels[v1.LabelGridUniqKey] != o.key {
		annotations = maps.Clone(annotations)
		if annotations == nil {
			annotations = map[string]string{}
		}
		annotations[v1.AnnotationGridUniqKey] = o.key
	}
	metadata := map[string]any{
		"name": name, "namespace": o.namespace,
		"labels":          anyMap(labels),
		"ownerReferences": []any{o.reference()},
	}
	if len(annotations) > 0 {
		metadata["annotations"] = anyMap(annotations)
	}
	content := map[string]any{"metadata": metadata, "spec": spec}
	content["apiVersion"], content["kind"] = k.Child.ToAPIVersionAndKind()
	digest, err := digestOf(content)
	if err != nil {
		return nil, failf(v1.ReasonInvalidTemplate, "the template cannot be written as JSON: %v", err)
	}
	marked := anyMap(annotations)
	marked[v1.AnnotationAppliedDigest] = digest
	metadata["annotations"] = marked
	return &desired{object: &unstructured.Unstructured{Object: content}, digest: digest, shape: &shape{}}, nil
}

func anyMap(in map[string]string) map[string]any {
	out := make(map[string]any, len(in))
	for key, value := range in {
		out[key] = value
	}
	return out
}

// convert reads JSON that was decoded into a type.
func convert(from map[string]any, into any) error {
	data, err := json.Marshal(from)
	if err != nil {
		return err
	}
	return json.Unmarshal(data, into)
}

func digestOf(value any) (string, error) {
	data, err := json.Marshal(value)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:16]), nil
}

// newOwner reads a grid.
func newOwner(kind, key string, grid metav1.Object) *owner {
	return &owner{
		kind: kind, name: grid.GetName(), namespace: grid.GetNamespace(), uid: string(grid.GetUID()), key: key,
		labels: grid.GetLabels(), annotations: grid.GetAnnotations(),
	}
}
