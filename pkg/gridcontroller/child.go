package gridcontroller

import (
	"encoding/json"
	"errors"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
)

// child is what is kept of a live child.
type child struct {
	name, uid, resourceVersion string
	deleting                   bool
	// grid is the label that names the grid, controller the owner that manages the child, if any.
	grid       string
	controller *metav1.OwnerReference
	// owned is the part of the child that our field manager owns, as JSON; see project.
	owned string
	// legacy: a controller of the same name, which updated instead of applying, owns fields of it.
	legacy   bool
	progress progress
	// observed: the child's own controller has seen its current spec.
	observed bool
}

// condensed is the key under which a child in a cache carries what condense has made of it.
const condensed = "condensed"

// ownedParts are the parts of an object that are applied.
var ownedParts = [][]string{{"metadata", "labels"}, {"metadata", "annotations"}, {"metadata", "ownerReferences"}, {"spec"}}

// condense reduces a live object to what child needs, so that a thousand of them are a small cache. It may be
// called again with its result.
func (k kind) condense(u *unstructured.Unstructured) error {
	if _, done := u.Object[condensed]; done {
		return nil
	}
	fields, legacy, err := appliedFields(u.GetManagedFields())
	if err != nil {
		return fmt.Errorf("managedFields of %s %s/%s: %w", u.GetKind(), u.GetNamespace(), u.GetName(), err)
	}
	owned := map[string]any{}
	for _, path := range ownedParts {
		tree := fields
		for _, field := range path {
			tree = subtree(tree["f:"+field])
		}
		value, found, err := unstructured.NestedFieldNoCopy(u.Object, path...)
		if err == nil && found && len(tree) > 0 {
			owned[path[len(path)-1]] = project(value, tree)
		}
	}
	text, err := json.Marshal(owned)
	if err != nil {
		return fmt.Errorf("%s %s/%s: %w", u.GetKind(), u.GetNamespace(), u.GetName(), err)
	}
	c := map[string]any{"owned": string(text), "legacy": legacy}
	if k.progress != nil {
		spec, _ := u.Object["spec"].(map[string]any)
		status, _ := u.Object["status"].(map[string]any)
		p := k.progress(spec, status)
		c["replicas"], c["updated"], c["ready"], c["available"] = p.replicas, p.updated, p.ready, p.available
		c["complete"] = p.complete
		c["observed"] = integer(status, "observedGeneration") >= u.GetGeneration()
	} else {
		c["complete"], c["observed"] = true, true
	}
	small := &unstructured.Unstructured{Object: map[string]any{"apiVersion": u.GetAPIVersion(), "kind": u.GetKind(), condensed: c}}
	small.SetName(u.GetName())
	small.SetNamespace(u.GetNamespace())
	small.SetUID(u.GetUID())
	small.SetResourceVersion(u.GetResourceVersion())
	small.SetDeletionTimestamp(u.GetDeletionTimestamp())
	small.SetOwnerReferences(u.GetOwnerReferences())
	if grid, ok := u.GetLabels()[v1.LabelGridSelector]; ok {
		small.SetLabels(map[string]string{v1.LabelGridSelector: grid})
	}
	u.Object = small.Object
	return nil
}

// transform is condense for a cache.
func (k kind) transform(object any) (any, error) {
	if u, ok := object.(*unstructured.Unstructured); ok {
		return u, k.condense(u)
	}
	return object, nil
}

// appliedFields is the tree of fields that our field manager has applied.
func appliedFields(entries []metav1.ManagedFieldsEntry) (fields map[string]any, legacy bool, err error) {
	fields = map[string]any{}
	for _, entry := range entries {
		if entry.Manager != FieldManager || entry.Subresource != "" {
			continue
		}
		if entry.Operation != metav1.ManagedFieldsOperationApply {
			legacy = true
			continue
		}
		if entry.FieldsV1 == nil {
			return nil, false, errors.New("an entry without fields")
		}
		if err := json.Unmarshal(entry.FieldsV1.GetRawBytes(), &fields); err != nil {
			return nil, false, err
		}
	}
	return fields, legacy, nil
}

// childOf reads a live object, or one of a cache. It changes the object.
func (k kind) childOf(u *unstructured.Unstructured) (*child, error) {
	if err := k.condense(u); err != nil {
		return nil, err
	}
	content, ok := u.Object[condensed].(map[string]any)
	if !ok {
		return nil, fmt.Errorf("%s %s/%s was not condensed", u.GetKind(), u.GetNamespace(), u.GetName())
	}
	c := &child{
		name: u.GetName(), uid: string(u.GetUID()), resourceVersion: u.GetResourceVersion(),
		deleting:   u.GetDeletionTimestamp() != nil,
		grid:       u.GetLabels()[v1.LabelGridSelector],
		controller: metav1.GetControllerOf(u),
		progress: progress{
			replicas: integer(content, "replicas"), updated: integer(content, "updated"),
			ready: integer(content, "ready"), available: integer(content, "available"),
		},
	}
	c.owned, _ = content["owned"].(string)
	c.legacy, _ = content["legacy"].(bool)
	c.progress.complete, _ = content["complete"].(bool)
	c.observed, _ = content["observed"].(bool)
	return c, nil
}

// is tells whether what our field manager owns of the child is what is desired.
func (c *child) is(d *desired) bool {
	if c.legacy {
		return false
	}
	var owned map[string]any
	if err := json.Unmarshal([]byte(c.owned), &owned); err != nil {
		return false
	}
	want := map[string]any{}
	for _, path := range ownedParts {
		if value, found, err := unstructured.NestedFieldNoCopy(d.object.Object, path...); err == nil && found {
			want[path[len(path)-1]] = value
		}
	}
	return covers(want, owned, false)
}
