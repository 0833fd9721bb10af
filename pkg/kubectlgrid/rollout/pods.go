package rollout

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/gridcontroller/gridchild"
	"github.com/application-grid/application-grid/pkg/gridview"
	"github.com/application-grid/application-grid/pkg/program/pages"
)

// Pods returns the pods of a site's workload: those that are ready first, then those that run, then the others, each by
// name. Pods that are being deleted come last. Pods are found by their owners: the workloads of a grid may have the
// same selector, and kubectl would choose a pod of any site.
func (g *Grid) Pods(ctx context.Context, site string) ([]corev1.Pod, error) {
	child, err := g.Child(ctx, site)
	if err != nil {
		return nil, err
	}
	workload, err := g.workload(ctx, child)
	if err != nil {
		return nil, err
	}
	spec, _ := workload.Object["spec"].(map[string]any)
	selector, err := gridchild.Selector(spec)
	if err != nil {
		return nil, fmt.Errorf("reading the selector of the %s %s: %w", g.Kind.Child.Kind, child.Name, err)
	}
	list := &corev1.PodList{}
	err = g.cluster.API.List(ctx, list, client.InNamespace(child.Namespace),
		client.MatchingLabelsSelector{Selector: selector})
	if err != nil {
		return nil, fmt.Errorf("asking for the pods: %w", err)
	}
	pods := slices.DeleteFunc(list.Items, func(pod corev1.Pod) bool {
		return !gridchild.OwnsPod(g.Kind.Child.Kind, child.Name, string(child.UID), &pod)
	})
	slices.SortFunc(pods, func(a, b corev1.Pod) int {
		return cmp.Or(cmp.Compare(rank(&a), rank(&b)), strings.Compare(a.Name, b.Name))
	})
	if len(pods) == 0 {
		return nil, fmt.Errorf("the %s %s of site %q has no pods", g.Kind.Child.Kind, child.Name, site)
	}
	return pods, nil
}

// Check returns the name of the Job of a site's last check.
func (g *Grid) Check(ctx context.Context, site string) (string, error) {
	list := pages.Metadata(batchv1.SchemeGroupVersion.WithKind("Job"))
	err := g.cluster.API.List(ctx, list, client.InNamespace(g.Object.GetNamespace()),
		client.MatchingLabels{v1.LabelCheck: g.Object.GetName(), v1.LabelGridSite: site})
	if err != nil {
		return "", fmt.Errorf("asking for the Jobs: %w", err)
	}
	jobs := slices.DeleteFunc(list.Items, func(job metav1.PartialObjectMetadata) bool {
		return !metav1.IsControlledBy(&job, g.Object)
	})
	if len(jobs) == 0 {
		return "", fmt.Errorf("site %q has no check; checks that have succeeded are removed", site)
	}
	return slices.MaxFunc(jobs, func(a, b metav1.PartialObjectMetadata) int {
		return a.CreationTimestamp.Compare(b.CreationTimestamp.Time)
	}).Name, nil
}

// rank returns the rank of a pod among those of its workload; lower is better.
func rank(pod *corev1.Pod) int {
	switch {
	case pod.DeletionTimestamp != nil:
		return 3
	case gridview.IsReady(pod):
		return 0
	case pod.Status.Phase == corev1.PodRunning:
		return 1
	}
	return 2
}
