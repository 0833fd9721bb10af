package gridchild

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"
)

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
