package rollout

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/cluster"
)

// restartPause is the time between two reads of a site that restarts.
const restartPause = time.Second

// Restart replaces all pods of the grid. For a grid with spec.rollout it changes the templates, so that the controller
// rolls out the restart like any change, and returns true, because the restart has only begun. For a grid without waves
// it changes the workloads, one site after the other, and waits until each one is ready. It calls tell with every site
// that has restarted, or with why it was left out, and stops at the first one that does not become ready.
func (g *Grid) Restart(ctx context.Context, now time.Time, tell func(site, leftOut string)) (begun bool, err error) {
	at := now.Format(time.RFC3339)
	if g.spec().Rollout != nil {
		return true, g.restart(ctx, at)
	}
	children, err := g.children(ctx)
	if err != nil {
		return false, err
	}
	done := 0
	for _, site := range slices.Sorted(maps.Keys(children)) {
		if err := g.Refresh(ctx); err != nil { // a site may have fallen silent meanwhile
			return false, err
		}
		child := children[site]
		if why := g.leftOut(site, child); why != "" {
			tell(site, why)
			continue
		}
		if err := g.restartSite(ctx, child, at); err != nil {
			return false, fmt.Errorf("%d of %d sites have restarted; %s %s of site %s: %w", done, len(children),
				g.Kind.Child.Kind, child.GetName(), site, err)
		}
		done++
		tell(site, "")
	}
	return false, nil
}

// leftOut returns why a site is not restarted; empty if it is.
func (g *Grid) leftOut(site string, child metav1.Object) string {
	if _, held := child.GetAnnotations()[v1.AnnotationHold]; held {
		return "it is held"
	}
	switch phase := g.status().States[site].Phase; phase {
	case v1.SiteUnreachable, v1.SiteRetained, v1.SiteRemoving:
		return "it is " + string(phase)
	default:
		return ""
	}
}

// restartSite changes the pods of a workload, and waits until the new ones are ready.
func (g *Grid) restartSite(ctx context.Context, child metav1.Object, at string) error {
	workload := &unstructured.Unstructured{}
	workload.SetGroupVersionKind(g.Kind.Child)
	workload.SetNamespace(child.GetNamespace())
	workload.SetName(child.GetName())
	key := client.ObjectKeyFromObject(workload)
	if err := g.cluster.API.Get(ctx, key, workload); err != nil {
		return err
	}
	if kind, _, _ := unstructured.NestedString(workload.Object, "spec", "updateStrategy", "type"); kind == "OnDelete" {
		return errors.New("its updateStrategy is OnDelete: delete the pods")
	}
	// This annotation is not in any template: the controller would revert one of its own.
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"template": map[string]any{
		"metadata": map[string]any{"annotations": map[string]any{v1.AnnotationRestarted: at}},
	}}})
	if err != nil {
		return err
	}
	if err := g.cluster.API.Patch(ctx, workload, client.RawPatch(types.MergePatchType, patch)); err != nil {
		return err
	}
	deadline := g.spec().ProgressDeadline()
	err = wait.PollUntilContextTimeout(ctx, restartPause, deadline, true, func(ctx context.Context) (bool, error) {
		err := g.cluster.API.Get(ctx, key, workload)
		if cluster.IsFinal(err) {
			return false, err
		}
		return err == nil && isFinished(workload), nil // an API server that is away is asked again
	})
	if wait.Interrupted(err) && ctx.Err() == nil {
		return fmt.Errorf("its pods are not ready after %s", deadline)
	}
	return err
}

// isFinished reports whether all pods of a workload are of its template, and available.
func isFinished(workload *unstructured.Unstructured) bool {
	number := func(without int64, path ...string) int64 {
		n, ok, err := unstructured.NestedInt64(workload.Object, path...)
		if !ok || err != nil {
			return without
		}
		return n
	}
	of := func(name string) int64 { return number(0, "status", name) }
	if of("observedGeneration") < workload.GetGeneration() {
		return false
	}
	switch want := number(1, "spec", "replicas"); workload.GetKind() {
	case "DaemonSet":
		want = of("desiredNumberScheduled")
		return of("updatedNumberScheduled") >= want && of("numberAvailable") >= want
	case "StatefulSet":
		kept := number(0, "spec", "updateStrategy", "rollingUpdate", "partition")
		return of("updatedReplicas") >= want-kept && of("availableReplicas") >= want
	default:
		return of("updatedReplicas") >= want && of("availableReplicas") >= want && of("replicas") <= want
	}
}
