package gridchild

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/topology"
)

// Owner has the facts about a grid that rendering a child needs.
type Owner struct {
	v1.GridKind
	metav1.ObjectMeta // the name, namespace, UID, labels and annotations

	// Key is the grid's gridUniqKey. Fallback has the fallbackKeys of a ServiceGrid.
	Key      string
	Fallback []string
	// SelectsSite is set if a workload's selector and its pods' labels have the site.
	SelectsSite bool
}

// NewOwner makes the Owner of a grid.
func NewOwner(k v1.GridKind, grid v1.Object) *Owner {
	o := &Owner{GridKind: k, ObjectMeta: metav1.ObjectMeta{
		Name: grid.GetName(), Namespace: grid.GetNamespace(), UID: grid.GetUID(),
		Labels: grid.GetLabels(), Annotations: grid.GetAnnotations(),
	}}
	if services, ok := grid.(*v1.ServiceGrid); ok {
		o.Key, o.Fallback = services.Spec.GridUniqKey, services.Spec.FallbackKeys
		return o
	}
	spec, _ := v1.SpecAndStatus(grid)
	o.Key, o.SelectsSite = spec.GridUniqKey, ptr.Deref(spec.SiteLabel, true)
	return o
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

// RenderSite renders the child of one site. It changes template, which becomes part of the result, and the annotations.
func RenderSite(
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

// RenderService renders the Service of a ServiceGrid.
func RenderService(o *Owner, template v1.Template) (*unstructured.Unstructured, error) {
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
	child.SetOwnerReferences([]metav1.OwnerReference{*metav1.NewControllerRef(o, v1.GroupVersion.WithKind(o.Kind))})
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

// object returns the object at a path of a template, and adds it if it is missing.
func object(template map[string]any, path ...string) (map[string]any, error) {
	at := "template"
	inner := template
	for _, field := range path {
		at += "." + field
		if inner[field] == nil {
			inner[field] = map[string]any{}
		}
		object, ok := inner[field].(map[string]any)
		if !ok {
			return nil, Errorf(v1.ReasonInvalidTemplate,
				"%s is not an object but %v; the site cannot be written into it", at, inner[field])
		}
		inner = object
	}
	return inner, nil
}

// SetsReplicas reports whether a child has spec.replicas. Without it a live workload keeps the replicas that it has.
func SetsReplicas(child *unstructured.Unstructured) bool {
	value, found, err := unstructured.NestedFieldNoCopy(child.Object, "spec", "replicas")
	return err == nil && found && value != nil
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
