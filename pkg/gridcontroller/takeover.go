package gridcontroller

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/util/csaupgrade"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
)

// takenOver reports whether the fields of a manager become ours. Those of a controller with our name that updated
// instead of applying always do: otherwise it would continue to own them as well, and a field that is removed from the
// template would stay in the child. Fields that a person set with kubectl do when a child is adopted. Those of kubectl
// rollout restart do not, because removing them would replace the pods.
func takenOver(entry metav1.ManagedFieldsEntry, adopted bool) bool {
	if entry.Subresource != "" {
		return false
	}
	if entry.Manager == v1.FieldManager {
		return entry.Operation == metav1.ManagedFieldsOperationUpdate
	}
	command, isKubectl := strings.CutPrefix(entry.Manager, "kubectl")
	return adopted && isKubectl && slices.Contains([]string{
		"", "-client-side-apply", "-create", "-edit", "-replace", "-patch", "-set", "-label", "-annotate",
	}, command)
}

// takeOver makes fields of other managers ours, and returns the resulting child; nil if there were no such fields.
func (a attempt) takeOver(ctx context.Context, adopted bool) (*child, error) {
	u := childObject(a.o.GridKind)
	if err := a.live.Get(ctx, types.NamespacedName{Namespace: a.o.Namespace, Name: a.d.name}, u); err != nil {
		return nil, err
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
		return nil, nil //nolint:nilnil // as the comment says
	}
	u.SetManagedFields(entries)
	// The patch is a conflict if the child has changed meanwhile.
	patch, err := csaupgrade.UpgradeManagedFieldsPatch(u, managers, v1.FieldManager)
	if err == nil {
		err = a.writer.Patch(ctx, u, client.RawPatch(types.JSONPatchType, patch))
	}
	if err != nil {
		return nil, err
	}
	return childOf(u)
}

// handOver gives the current spec.replicas to a separate field manager, and returns the replicas. Without that, when
// the template stops setting replicas, the API server would reset the field to its default: 1 replica, in all sites at
// once.
func (a attempt) handOver(ctx context.Context, live *child) (string, error) {
	only := objectOf(a.o, live)
	only.Object["spec"] = map[string]any{"replicas": live.progress.replicas}
	only.SetResourceVersion(live.resourceVersion) // a conflict if someone has scaled it meanwhile
	apply := client.ApplyConfigurationFromUnstructured(only)
	if err := a.writer.Apply(ctx, apply, client.FieldOwner(v1.HandOverManager)); err != nil {
		return "", fmt.Errorf("handing over the replicas: %w", err)
	}
	return strconv.FormatInt(live.progress.replicas, 10), nil
}
