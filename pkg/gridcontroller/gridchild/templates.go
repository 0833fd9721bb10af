package gridchild

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
)

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

// Merge applies a strategic merge patch to the spec of a workload, which it may change, and returns the result.
type Merge func(spec, patch map[string]any) (map[string]any, error)

// Cluster is what a site's template depends on besides the grid: the nodes, and the types of the API server. If HasNode
// is nil, no nodeSelector matches.
type Cluster struct {
	HasNode HasNode
	Merge   Merge
}

// Templates are a grid's templates, decoded once for all sites.
type Templates struct {
	// Revision is the name of their revision.
	Revision string

	spec    *v1.WorkloadGridSpec
	cluster Cluster
	// decoded has the decoded templates, and fits which nodes they fit, by variant.
	decoded map[string]map[string]any
	fits    map[string]func(*corev1.Node) bool
	// matchers are those of the overrides; nil if one of them cannot be read. invalid is the reason.
	matchers []*matcher
	invalid  error
}

// NewTemplates reads the templates of a grid's spec, which is of a revision.
func NewTemplates(revision string, spec *v1.WorkloadGridSpec, cluster Cluster) *Templates {
	t := &Templates{
		Revision: revision, spec: spec, cluster: cluster,
		decoded: map[string]map[string]any{}, fits: map[string]func(*corev1.Node) bool{},
	}
	for i := range spec.Overrides {
		m, err := newMatcher(&spec.Overrides[i].Sites, cluster.HasNode)
		if err != nil { // the sites report it
			t.matchers, t.invalid = nil, Errorf(v1.ReasonInvalidTemplate, "spec.overrides[%s].sites: %v",
				spec.Overrides[i].Name, err)
			break
		}
		t.matchers = append(t.matchers, m)
	}
	return t
}

// Variant identifies a site's template: sites with the same variant have the same template. It consists of the names of
// the overrides, which have no slash, a slash, and the name of the template, which may be any text.
func (t *Templates) Variant(site string) string {
	overrides := t.overridesOf(site)
	names := make([]string, len(overrides))
	for i, o := range overrides {
		names[i] = o.Name
	}
	return strings.Join(names, ",") + "/" + TemplateName(t.spec, site)
}

// DescribeVariant names the template of a variant, and the overrides that change it.
func DescribeVariant(variant string) string {
	overrides, name, _ := strings.Cut(variant, "/")
	name = cmp.Or(name, string(v1.DefaultTemplate))
	if overrides == "" {
		return name
	}
	return name + " with " + strings.ReplaceAll(overrides, ",", ", ")
}

// VariantAnnotation returns the AnnotationVariant of a site's child; empty if no override selects sites by labels of
// nodes.
func (t *Templates) VariantAnnotation(site string) string {
	if slices.ContainsFunc(t.spec.Overrides, func(o v1.Override) bool { return o.Sites.NodeSelector != nil }) {
		return t.Revision + "@" + t.Variant(site)
	}
	return ""
}

// Replicas returns the replicas that a site gets. set is false if its template leaves them to others.
func (t *Templates) Replicas(site string) (replicas int64, set bool, err error) {
	spec, err := t.decode(site)
	replicas, set = spec["replicas"].(int64)
	return replicas, set, err
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

func (t *Templates) override(spec map[string]any, o *v1.Override) (map[string]any, error) {
	if o.Replicas != nil {
		spec["replicas"] = int64(*o.Replicas)
	}
	if err := replaceImages(spec, o); err != nil {
		return nil, err
	}
	if o.Patch.IsZero() {
		return spec, nil
	}
	var patch map[string]any
	if err := utiljson.Unmarshal(o.Patch.Raw, &patch); err != nil || patch == nil {
		return nil, Errorf(v1.ReasonInvalidTemplate, "spec.overrides[%s].patch is not an object", o.Name)
	}
	merged, err := t.cluster.Merge(spec, patch)
	if err != nil {
		told := ErrorFrom(err)
		return nil, Errorf(told.Reason, "spec.overrides[%s].patch: %s", o.Name, told.Message)
	}
	return merged, nil
}

func replaceImages(spec map[string]any, o *v1.Override) error {
	if len(o.Images) == 0 {
		return nil
	}
	pod, err := object(spec, "template", "spec")
	if err != nil {
		return err
	}
	var names []string
	for _, field := range []string{"initContainers", "containers"} {
		containers, _ := pod[field].([]any)
		for _, element := range containers {
			container, is := element.(map[string]any)
			name, _ := container["name"].(string)
			names = append(names, name)
			if image, ok := o.Images[name]; ok && is {
				container["image"] = image
			}
		}
	}
	for name := range o.Images {
		if !slices.Contains(names, name) {
			return Errorf(v1.ReasonInvalidTemplate,
				"spec.overrides[%s].images: the template has no container %q; it has %s", o.Name, name,
				strings.Join(names, ", "))
		}
	}
	return nil
}

func (t *Templates) overridesOf(site string) (all []*v1.Override) {
	for i, m := range t.matchers {
		if m.matches(site) {
			all = append(all, &t.spec.Overrides[i])
		}
	}
	return all
}

// UnusedOverrides returns the names of the overrides that select none of the sites.
func (t *Templates) UnusedOverrides(sites []string) []string {
	var unused []string
	for i, m := range t.matchers {
		if !slices.ContainsFunc(sites, m.matches) {
			unused = append(unused, t.spec.Overrides[i].Name)
		}
	}
	return unused
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
