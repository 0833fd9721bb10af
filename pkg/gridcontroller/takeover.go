package gridcontroller

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/util/csaupgrade"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
)

// takenOver reports whether the fields of a manager become ours. Those of a controller of our name, which updated
// instead of applying, always do: otherwise it would go on owning them beside us, and what leaves the template would
// stay in the child. Those of a person with kubectl do when a child is adopted. What kubectl rollout restart has
// written does not: without it the pods would be replaced.
func takenOver(entry metav1.ManagedFieldsEntry, adopted bool) bool {
	if entry.Subresource != "" {
		return false
	}
	if entry.Manager == v1.FieldManager {
		return entry.Operation == metav1.ManagedFieldsOperationUpdate
	}
	switch command, isKubectl := strings.CutPrefix(entry.Manager, "kubectl"); {
	case !adopted || !isKubectl:
		return false
	default:
		switch command {
		case "", "-client-side-apply", "-create", "-edit", "-replace", "-patch", "-set", "-label", "-annotate":
			return true
		}
		return false
	}
}

// takeOver makes fields of others ours, and returns the child as it is then; nil if there were none.
func (c *cluster) takeOver(ctx context.Context, k kind, namespace, name string, adopted bool) (*child, error) {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(k.Child)
	if err := c.live.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, u); err != nil {
		return nil, fmt.Errorf("taking over: %w", err)
	}
	entries := u.GetManagedFields()
	managers := sets.New[string]()
	for i := range entries {
		if takenOver(entries[i], adopted) {
			managers.Insert(entries[i].Manager)
			entries[i].Operation = metav1.ManagedFieldsOperationUpdate // as csaupgrade expects
		}
	}
	if len(managers) == 0 {
		return nil, nil //nolint:nilnil // none is an answer
	}
	u.SetManagedFields(entries)
	if err := csaupgrade.UpgradeManagedFields(u, managers, v1.FieldManager); err != nil {
		return nil, fmt.Errorf("taking over: %w", err)
	}
	patch, err := json.Marshal([]map[string]any{
		{"op": "replace", "path": "/metadata/managedFields", "value": u.GetManagedFields()},
		// a conflict if it has changed
		{"op": "replace", "path": "/metadata/resourceVersion", "value": u.GetResourceVersion()},
	})
	if err != nil {
		return nil, fmt.Errorf("taking over: %w", err)
	}
	if err := c.writer.Patch(ctx, u, client.RawPatch(types.JSONPatchType, patch)); err != nil {
		return nil, fmt.Errorf("taking over: %w", err)
	}
	return k.childOf(u)
}

// hasReplicas reports whether the template says how many replicas there are to be.
func (d *desired) hasReplicas() bool {
	object, err := d.object()
	if err != nil {
		return false
	}
	value, found, err := unstructured.NestedFieldNoCopy(object.Object, "spec", "replicas")
	return err == nil && found && value != nil
}

// handOver gives spec.replicas, as it is, to a manager of its own. When a field leaves what we apply, and nobody else
// owns it, the API server resets it: to 1 replica, in every unit at once. It returns the replicas.
func (c *cluster) handOver(ctx context.Context, k kind, namespace string, live *child) (string, error) {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(k.Child)
	if err := c.live.Get(ctx, types.NamespacedName{Namespace: namespace, Name: live.name}, u); err != nil {
		return "", fmt.Errorf("handing over the replicas: %w", err)
	}
	spec, _ := u.Object["spec"].(map[string]any)
	replicas := replicasOf(spec)
	only := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"replicas": replicas}}}
	only.SetGroupVersionKind(k.Child)
	only.SetNamespace(namespace)
	only.SetName(live.name)
	only.SetUID(types.UID(live.uid))
	only.SetResourceVersion(u.GetResourceVersion()) // a conflict if somebody scales it at the same time
	if err := c.writer.Apply(ctx, client.ApplyConfigurationFromUnstructured(only),
		client.FieldOwner(v1.HandOverManager)); err != nil {
		return "", fmt.Errorf("handing over the replicas: %w", err)
	}
	return strconv.FormatInt(replicas, 10), nil
}
