package rollout

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/application-grid/application-grid/pkg/apis/enumerate"
	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/cluster"
)

// restartPause is the time between two reads of a site that restarts.
const restartPause = time.Second

// Restart replaces all pods of the grid, and returns what was done, in words. For a grid with spec.rollout it changes
// the templates, so that the controller rolls out the restart like any change. For a grid without waves it changes the
// workloads, one site after the other, and waits until each one is ready. It calls tell with what is done in every
// site, and stops at the first one that does not become ready.
func (g *Grid) Restart(ctx context.Context, now time.Time, tell func(site, what string)) (string, error) {
	at := now.Format(time.RFC3339)
	if g.spec().Rollout != nil {
		return "restarts; to follow it: kubectl grid rollout status " + g.Ref(), g.restart(ctx, at)
	}
	children, err := g.children(ctx)
	if err != nil {
		return "", err
	}
	done := 0
	for _, site := range slices.Sorted(maps.Keys(children)) {
		if err := g.Refresh(ctx); err != nil { // a site may have fallen silent meanwhile
			return "", err
		}
		child := children[site]
		if why := g.leftOut(site, child); why != "" {
			tell(site, "is left out: "+why)
			continue
		}
		if err := g.restartSite(ctx, child, at); err != nil {
			return "", fmt.Errorf("%d of %d sites have restarted; %s %s of site %s: %w", done, len(children),
				g.Kind.Child.Kind, child.GetName(), site, err)
		}
		done++
		tell(site, "restarted")
	}
	if left := len(children) - done; left > 0 {
		return fmt.Sprintf("restarted in %s; %d left out", enumerate.Count(done, "site"), left), nil
	}
	return "restarted", nil
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
	workload, err := g.workload(ctx, child)
	if err != nil {
		return err
	}
	if kind, _, _ := unstructured.NestedString(workload.Object, "spec", "updateStrategy", "type"); kind == "OnDelete" {
		return errors.New("its updateStrategy is OnDelete: delete the pods")
	}
	before := workload.DeepCopy()
	// This annotation is not in any template: the controller would revert one of its own.
	err = unstructured.SetNestedField(workload.Object, at, "spec", "template", "metadata", "annotations",
		v1.AnnotationRestarted)
	if err == nil {
		err = g.cluster.API.Patch(ctx, workload, client.MergeFrom(before))
	}
	if err != nil {
		return err
	}
	deadline := g.spec().ProgressDeadline()
	err = wait.PollUntilContextTimeout(ctx, restartPause, deadline, true, func(ctx context.Context) (bool, error) {
		workload, err := g.workload(ctx, child)
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
	number := func(path ...string) int64 {
		n, _, _ := unstructured.NestedInt64(workload.Object, path...)
		return n
	}
	of := func(name string) int64 { return number("status", name) }
	if of("observedGeneration") < workload.GetGeneration() {
		return false
	}
	switch want := number("spec", "replicas"); workload.GetKind() {
	case "DaemonSet":
		want = of("desiredNumberScheduled")
		return of("updatedNumberScheduled") >= want && of("numberAvailable") >= want
	case "StatefulSet":
		kept := number("spec", "updateStrategy", "rollingUpdate", "partition")
		return of("updatedReplicas") >= want-kept && of("availableReplicas") >= want
	default:
		return of("updatedReplicas") >= want && of("availableReplicas") >= want && of("replicas") <= want
	}
}
