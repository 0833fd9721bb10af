package diff

import (
	"cmp"
	"context"
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
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/gridcontroller/gridchild"
)

// Answer is what applying a grid would change in its child, or in the children of several sites that are the same now
// and would get the same.
type Answer struct {
	// Grid names the grid. Template names the template and the overrides that change it; it is empty if the answer is
	// about a Service, or about the grid itself.
	Grid, Template string
	// Sites are the sites of the answer. The child of the first one was tried as an example of all of them.
	Sites []string
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

// refuse notes an error that means that something is refused because of its content. It returns any other error.
func (a *Answer) refuse(err error) error {
	var status apierrors.APIStatus
	if known, ok := errors.AsType[*gridchild.Error](err); ok {
		a.Refused = known.Message
		return nil
	}
	if gridchild.Refused(err) && errors.As(err, &status) {
		a.Refused = status.Status().Message
		return nil
	}
	return err
}

// applyGrid applies the manifest, and reads the resulting grid. It is about the grid itself.
func (a *Answer) applyGrid(
	ctx context.Context, api client.Client, manifest *unstructured.Unstructured, grid v1.Object,
) error {
	applied, before := manifest.DeepCopy(), ""
	_, err := controllerutil.CreateOrUpdate(ctx, api, applied, func() error {
		before, _, _ = unstructured.NestedString(applied.Object, "spec", "gridUniqKey")
		merge(applied, manifest)
		return nil
	})
	if err := a.refuse(err); err != nil || a.Refused != "" {
		return err
	}
	after, _, _ := unstructured.NestedString(applied.Object, "spec", "gridUniqKey")
	if before != after && applied.GetKind() != v1.ServiceGridKind.Kind {
		a.Notes = append(a.Notes, fmt.Sprintf(
			"gridUniqKey changes from %s to %s: the workloads of the old key's sites are removed as spec.removal says",
			before, after))
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(applied.Object, grid); err != nil {
		return fmt.Errorf("reading %s: %w", a.Grid, err)
	}
	if spec, _ := v1.Workload(grid); spec != nil && spec.Rollout != nil {
		_, err = gridchild.NewWaves(spec.Rollout, nil)
	}
	return a.refuse(cmp.Or(gridchild.CheckKey(after), err))
}

// merge gives a live grid the spec, labels and annotations of the manifest. Labels and annotations that kubectl applied
// before, and that are no longer in the manifest, are removed.
func merge(live, manifest *unstructured.Unstructured) {
	var before struct {
		Metadata metav1.ObjectMeta `json:"metadata"`
	}
	// An annotation that does not exist, or cannot be read, removes nothing.
	_ = json.Unmarshal([]byte(live.GetAnnotations()[corev1.LastAppliedConfigAnnotation]), &before)
	combine := func(live, before, now map[string]string) map[string]string {
		maps.DeleteFunc(live, func(key, _ string) bool { _, ours := before[key]; return ours })
		return labels.Merge(live, now)
	}
	live.SetLabels(combine(live.GetLabels(), before.Metadata.Labels, manifest.GetLabels()))
	live.SetAnnotations(combine(live.GetAnnotations(), before.Metadata.Annotations, manifest.GetAnnotations()))
	live.Object["spec"] = manifest.DeepCopy().Object["spec"]
}

// tryApply asks the API server for the child after applying it.
func (a *Answer) tryApply(ctx context.Context, api client.Client, child *gridchild.Child) error {
	live, merged := child.Object.DeepCopy(), child.Object.DeepCopy()
	err := api.Get(ctx, client.ObjectKeyFromObject(live), live)
	switch {
	case err == nil:
		merged.SetUID(live.GetUID())
		a.Live = readable(live)
	case !apierrors.IsNotFound(err):
		return fmt.Errorf("asking for %s %s: %w", live.GetKind(), live.GetName(), err)
	}
	err = api.Apply(ctx, client.ApplyConfigurationFromUnstructured(merged), client.FieldOwner(v1.FieldManager),
		client.ForceOwnership)
	if err := a.refuse(err); err != nil {
		return fmt.Errorf("applying %s %s (a dry run): %w", merged.GetKind(), merged.GetName(), err)
	}
	if a.Merged = readable(merged); a.Live != nil && a.Refused == "" {
		a.addNotes(live, child)
	}
	return nil
}

// addNotes adds other actions of the controller. One is that a live child keeps its replicas if no template sets them.
func (a *Answer) addNotes(live *unstructured.Unstructured, child *gridchild.Child) {
	if replicas, ok, _ := unstructured.NestedInt64(live.Object, "spec", "replicas"); ok && !child.SetsReplicas() {
		_ = unstructured.SetNestedField(a.Merged.Object, replicas, "spec", "replicas") // it has a spec
		if slices.ContainsFunc(live.GetManagedFields(), func(entry metav1.ManagedFieldsEntry) bool {
			return entry.Manager == v1.FieldManager && strings.Contains(entry.FieldsV1.GetRawString(), `"f:replicas":`)
		}) {
			a.Notes = append(a.Notes, fmt.Sprintf(
				"the template no longer sets replicas, so each site keeps the number it has: %d here", replicas))
		}
	}
	if why, held := live.GetAnnotations()[v1.AnnotationHold]; held {
		a.Notes = append(a.Notes, fmt.Sprintf("the annotation %s keeps it as it is: %s", v1.AnnotationHold, why))
	}
	if metav1.GetControllerOf(live) == nil {
		a.Notes = append(a.Notes, "it is adopted: fields that kubectl wrote and that the template does not have are "+
			"removed too, which is not shown here")
	}
}

// readable returns a copy of an object without the fields that the API server or the controller counts.
func readable(object *unstructured.Unstructured) *unstructured.Unstructured {
	out := object.DeepCopy()
	for _, field := range []string{"managedFields", "generation", "resourceVersion", "uid", "creationTimestamp"} {
		unstructured.RemoveNestedField(out.Object, "metadata", field)
	}
	unstructured.RemoveNestedField(out.Object, "metadata", "annotations", v1.AnnotationAppliedDigest)
	if annotations := out.GetAnnotations(); annotations != nil && len(annotations) == 0 {
		out.SetAnnotations(nil)
	}
	return out
}
