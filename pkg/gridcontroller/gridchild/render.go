package gridchild

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/topology"
)

// SetsReplicas reports whether a child has spec.replicas. Without it a live workload keeps the replicas that it has.
func SetsReplicas(child *unstructured.Unstructured) bool {
	value, found, err := unstructured.NestedFieldNoCopy(child.Object, "spec", "replicas")
	return err == nil && found && value != nil
}

// CheckKey returns an error for an invalid gridUniqKey, which our CRD refuses, but somebody else's may accept.
func CheckKey(key string) error {
	if key == "" {
		return Errorf(v1.ReasonInvalidKey,
			"spec.gridUniqKey is empty; set it to the key of the node label whose values are the sites")
	}
	if problems := validation.IsQualifiedName(key); len(problems) > 0 {
		return Errorf(v1.ReasonInvalidKey, "spec.gridUniqKey %q cannot be the key of a node label: %s",
			key, problems[0])
	}
	return nil
}

// TemplateName returns the name of the template that a site gets; empty for spec.template.
func TemplateName(spec *v1.WorkloadGridSpec, site string) string {
	name, ok := spec.Templates[site]
	if !ok {
		name = spec.DefaultTemplateName
	}
	if name == v1.DefaultTemplate {
		return ""
	}
	return string(name)
}

// UnusedTemplates returns the names of the templates in the pool that no site can get, sorted.
func UnusedTemplates(spec *v1.WorkloadGridSpec) []string {
	used := map[string]bool{string(spec.DefaultTemplateName): true}
	for _, name := range spec.Templates {
		used[string(name)] = true
	}
	return slices.DeleteFunc(slices.Sorted(maps.Keys(spec.TemplatePool)), func(name string) bool { return used[name] })
}

// Templates are a grid's templates, decoded once for all sites.
type Templates struct {
	// Revision is the name of their revision.
	Revision string

	spec    *v1.WorkloadGridSpec
	context Context
	// decoded has the decoded templates, and fits which nodes they fit, by variant.
	decoded map[string]map[string]any
	fits    map[string]func(*corev1.Node) bool
	// matchers are those of the overrides; nil if one of them cannot be read. invalid is the reason.
	matchers []*matcher
	invalid  error
}

// NewTemplates reads the templates of a grid's spec.
func NewTemplates(spec *v1.WorkloadGridSpec, context Context) *Templates {
	t := &Templates{
		spec: spec, context: context, decoded: map[string]map[string]any{}, fits: map[string]func(*corev1.Node) bool{},
	}
	for i := range spec.Overrides {
		m, err := newMatcher(&spec.Overrides[i].Sites, context.HasNode)
		if err != nil { // the sites report it
			t.matchers, t.invalid = nil, Errorf(v1.ReasonInvalidTemplate, "spec.overrides[%s].sites: %v",
				spec.Overrides[i].Name, err)
			break
		}
		t.matchers = append(t.matchers, m)
	}
	return t
}

// Of returns a copy of the template that a site gets, with its overrides and the tolerations of
// spec.tolerateUnreachable, for the caller to change.
func (t *Templates) Of(site string) (map[string]any, error) {
	spec, err := t.decode(site)
	return runtime.DeepCopyJSON(spec), err
}

func (t *Templates) decode(site string) (map[string]any, error) {
	variant := t.Variant(site)
	if spec, ok := t.decoded[variant]; ok {
		return spec, nil
	}
	if t.invalid != nil {
		return nil, t.invalid
	}
	name := TemplateName(t.spec, site)
	template, where := t.spec.Template, "spec.template"
	if name != "" {
		by := "spec.defaultTemplateName"
		if _, own := t.spec.Templates[site]; own {
			by = "spec.templates." + site
		}
		template, where = t.spec.TemplatePool[name], fmt.Sprintf("spec.templatePool.%s (%s names it)", name, by)
	}
	spec, err := decodeTemplate(template, where)
	if err != nil {
		return nil, err
	}
	for _, o := range t.overridesOf(site) {
		if spec, err = t.override(spec, o); err != nil {
			return nil, err
		}
	}
	if t.spec.TolerateUnreachable {
		if err := tolerateUnreachable(spec); err != nil {
			return nil, err
		}
	}
	t.decoded[variant] = spec
	return spec, nil
}

// Replicas returns the replicas that a site gets. set is false if its template leaves them to others.
func (t *Templates) Replicas(site string) (replicas int64, set bool, err error) {
	spec, err := t.decode(site)
	replicas, set = spec["replicas"].(int64)
	return replicas, set, err
}

// Mark returns the AnnotationVariant of a site's child; empty if no override selects sites by labels of nodes.
func (t *Templates) Mark(site string) string {
	if slices.ContainsFunc(t.spec.Overrides, func(o v1.Override) bool { return o.Sites.NodeSelector != nil }) {
		return t.Revision + "@" + t.Variant(site)
	}
	return ""
}

func decodeTemplate(template v1.Template, where string) (map[string]any, error) {
	if template.IsZero() {
		return nil, Errorf(v1.ReasonTemplateNotFound, "there is no %s; write one", where)
	}
	var spec map[string]any
	if err := utiljson.Unmarshal(template.Raw, &spec); err != nil || spec == nil {
		return nil, Errorf(v1.ReasonInvalidTemplate, "%s is not an object", where)
	}
	return spec, nil
}

// Owner has the facts about a grid that rendering a child needs.
type Owner struct {
	v1.GridKind

	Name, Namespace string
	UID             string
	// Key is the grid's gridUniqKey. Fallback has the fallbackKeys of a ServiceGrid.
	Key      string
	Fallback []string
	// SelectsSite is set if a workload's selector and its pods' labels have the site.
	SelectsSite         bool
	Labels, Annotations map[string]string
}

// OwnerOf makes the Owner of a grid.
func OwnerOf(k v1.GridKind, grid v1.Object) *Owner {
	o := &Owner{
		GridKind: k, Name: grid.GetName(), Namespace: grid.GetNamespace(), UID: string(grid.GetUID()),
		Labels: grid.GetLabels(), Annotations: grid.GetAnnotations(),
	}
	if services, ok := grid.(*v1.ServiceGrid); ok {
		o.Key, o.Fallback = services.Spec.GridUniqKey, services.Spec.FallbackKeys
		return o
	}
	spec, _ := v1.Workload(grid)
	o.Key, o.SelectsSite = spec.GridUniqKey, ptr.Deref(spec.SiteLabel, true)
	return o
}

// PodSpec returns the pods' selector and spec from the spec of a workload.
func PodSpec(spec map[string]any) (labels.Selector, corev1.PodSpec, error) {
	var workload appsv1.DaemonSetSpec // all kinds have these fields
	err := runtime.DefaultUnstructuredConverter.FromUnstructured(spec, &workload)
	if err != nil {
		err = fmt.Errorf("reading the template: %w", err)
	}
	selector, unreadable := Selector(spec)
	return selector, workload.Template.Spec, cmp.Or(err, unreadable)
}

// OfSite renders the child of one site. It changes template, which becomes part of the result, and the annotations.
func OfSite(
	o *Owner, site, name string, template map[string]any, annotations map[string]string,
) (*unstructured.Unstructured, error) {
	if err := checkName(o, name, site); err != nil {
		return nil, err
	}
	// A template without a selector is refused by the API server. The site alone would select other grids' pods.
	own, _, err := unstructured.NestedMap(template, "selector")
	selects := o.SelectsSite && err == nil && len(own) > 0
	paths := [][]string{{o.Key, "template", "spec", "nodeSelector"}}
	if selects {
		paths = append(paths, []string{v1.LabelGridSite, "selector", "matchLabels"},
			[]string{v1.LabelGridSite, "template", "metadata", "labels"})
	}
	for _, path := range paths {
		labels, err := object(template, path[1:]...)
		if err != nil {
			return nil, err
		}
		labels[path[0]] = site
	}
	return newChild(o, name, site, annotations, template)
}

// object returns the object at a path of a template, and adds it if it is missing.
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
			return nil, Errorf(v1.ReasonInvalidTemplate,
				"%s is not an object but %v; the site cannot be written into it", at, value)
		}
		inner = object
	}
	return inner, nil
}

// OfService renders the Service of a ServiceGrid.
func OfService(o *Owner, template v1.Template) (*unstructured.Unstructured, error) {
	name := o.Name + v1.ServiceSuffix
	spec, err := decodeTemplate(template, "spec.template")
	if err = cmp.Or(checkName(o, name, ""), err); err != nil {
		return nil, err
	}
	keys, err := json.Marshal(append([]string{o.Key}, o.Fallback...))
	if err == nil { // our CRD refuses the keys that the wrapper refuses, but somebody else's CRD may not
		_, err = topology.ParseKeys(string(keys))
	}
	if err != nil {
		return nil, Errorf(v1.ReasonInvalidKey, "spec.gridUniqKey and spec.fallbackKeys: %v", err)
	}
	annotations := labels.Merge(o.Annotations, labels.Set{v1.AnnotationTopologyKeys: string(keys)})
	for _, key := range []string{ // they are about the grid, or hold an object
		corev1.LastAppliedConfigAnnotation, v1.AnnotationAppliedDigest, v1.AnnotationApproveRemoval,
		v1.AnnotationApproved, v1.AnnotationApprovedBy, v1.AnnotationResumed, v1.AnnotationAtOnce, v1.AnnotationHold,
	} {
		delete(annotations, key)
	}
	return newChild(o, name, "", annotations, spec)
}

func checkName(o *Owner, name, site string) error {
	// The name of the grid is the value of a label of its children.
	if problems := validation.IsValidLabelValue(o.Name); len(problems) > 0 {
		return Errorf(v1.ReasonInvalidName,
			"the grid's name cannot be the value of a label: %s; give the grid another name", problems[0])
	}
	why := o.CheckName(name)
	if why == "" {
		return nil
	}
	orSite := ""
	if site != "" {
		orSite = fmt.Sprintf(", or the site (label %s=%s on its nodes),", o.Key, site)
	}
	return Errorf(v1.ReasonInvalidName, "%q cannot be the name of a %s: %s; give the grid%s another name",
		name, o.Child.Kind, why, orSite)
}

// newChild makes a child with the labels, annotations and owner reference of every child. One of the annotations is a
// digest of the rest, which is equal for equal children. It may add to the annotations.
func newChild(
	o *Owner, name, site string, annotations map[string]string, spec map[string]any,
) (*unstructured.Unstructured, error) {
	key := v1.KeyLabelValue(o.Key)
	own := labels.Merge(o.Labels, labels.Set{v1.LabelGridSelector: o.Name, v1.LabelGridUniqKey: key})
	delete(own, v1.LabelGridSite)
	if site != "" {
		own[v1.LabelGridSite] = site // valid, because it is the value of a node's label
	}
	if key != o.Key {
		annotations[v1.AnnotationGridUniqKey] = o.Key
	}
	child := &unstructured.Unstructured{Object: map[string]any{"spec": spec}}
	child.SetGroupVersionKind(o.Child)
	child.SetNamespace(o.Namespace)
	child.SetName(name)
	child.SetLabels(own)
	grid := &metav1.ObjectMeta{Name: o.Name, UID: types.UID(o.UID)}
	child.SetOwnerReferences([]metav1.OwnerReference{*metav1.NewControllerRef(grid, v1.GroupVersion.WithKind(o.Kind))})
	if len(annotations) > 0 { // the digest of a child without any is the one that former versions wrote
		child.SetAnnotations(annotations)
	}
	data, err := json.Marshal(child.Object)
	if err != nil {
		return nil, Errorf(v1.ReasonInvalidTemplate, "the template cannot be written as JSON: %v", err)
	}
	sum := sha256.Sum256(data)
	annotations[v1.AnnotationAppliedDigest] = hex.EncodeToString(sum[:16])
	child.SetAnnotations(annotations)
	return child, nil
}

// unreachableTaints are the keys of the taints that evict pods from a node whose kubelet does not report.
var unreachableTaints = []string{corev1.TaintNodeUnreachable, corev1.TaintNodeNotReady}

// tolerateUnreachable adds tolerations of these taints to a template that does not mention them. They have no time
// limit. The API server would add tolerations of 5 minutes to pods without any.
func tolerateUnreachable(template map[string]any) error {
	pod, err := object(template, "template", "spec")
	if err != nil {
		return err
	}
	tolerations, ok := pod["tolerations"].([]any)
	if value := pod["tolerations"]; !ok && value != nil {
		return Errorf(v1.ReasonInvalidTemplate, "template.template.spec.tolerations is not a list but %v", value)
	}
	for _, taint := range unreachableTaints {
		mentions := func(value any) bool {
			of, _ := value.(map[string]any)
			effect, _ := of["effect"].(string)
			return of["key"] == taint && (effect == "" || effect == string(corev1.TaintEffectNoExecute))
		}
		if !slices.ContainsFunc(tolerations, mentions) {
			tolerations = append(tolerations, map[string]any{
				"key": taint, "operator": string(corev1.TolerationOpExists),
				"effect": string(corev1.TaintEffectNoExecute),
			})
		}
	}
	pod["tolerations"] = tolerations
	return nil
}

// OwnsPod reports whether a pod is a workload's. Others may have the labels that the workload selects. The ReplicaSets
// of a Deployment have its name, and the hash of their template. A StatefulSet cannot make its pods before those of a
// former one of its name have ended.
func OwnsPod(kind, name, uid string, pod *corev1.Pod) bool {
	by := metav1.GetControllerOf(pod)
	switch {
	case by == nil:
		return false
	case kind == "Deployment":
		return by.Kind == "ReplicaSet" && by.Name == name+"-"+pod.Labels[appsv1.DefaultDeploymentUniqueLabelKey]
	case kind == "StatefulSet" && by.Kind == kind && by.Name == name && pod.DeletionTimestamp != nil:
		return true
	}
	return string(by.UID) == uid
}

// Selector returns the selector in the spec of a workload. Without one it selects nothing.
func Selector(spec map[string]any) (labels.Selector, error) {
	var of struct {
		Selector *metav1.LabelSelector `json:"selector"`
	}
	unreadable := runtime.DefaultUnstructuredConverter.FromUnstructured(spec, &of)
	selector, err := metav1.LabelSelectorAsSelector(of.Selector)
	if err = cmp.Or(unreadable, err); err != nil {
		return nil, fmt.Errorf("reading the selector: %w", err)
	}
	return selector, nil
}

// Fits returns a function that reports whether the pods of a site's DaemonSet fit a node of the site, by the node's
// name, labels and taints. What the template selects by the grid's key does not count: the child selects its site by
// it. The taints of the control plane, for nodes that are not ready or not heard, do not count either.
func (t *Templates) Fits(site string) (func(*corev1.Node) bool, error) {
	variant := t.Variant(site)
	if known := t.fits[variant]; known != nil {
		return known, nil
	}
	spec, err := t.decode(site)
	_, pod, unreadable := PodSpec(spec)
	if err = cmp.Or(err, unreadable); err != nil {
		return nil, err
	}
	delete(pod.NodeSelector, t.spec.GridUniqKey)
	wants := nodeaffinity.GetRequiredNodeAffinity(&corev1.Pod{Spec: pod})
	keepsAway := func(taint corev1.Taint) bool {
		tolerated := func(t corev1.Toleration) bool { return t.ToleratesTaint(klog.Background(), &taint, false) }
		return taint.Effect != corev1.TaintEffectPreferNoSchedule &&
			!strings.HasPrefix(taint.Key, "node.kubernetes.io/") && !slices.ContainsFunc(pod.Tolerations, tolerated)
	}
	t.fits[variant] = func(node *corev1.Node) bool {
		matches, err := wants.Match(node)
		return err == nil && matches && !slices.ContainsFunc(node.Spec.Taints, keepsAway)
	}
	return t.fits[variant], nil
}
