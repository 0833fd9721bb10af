package gridcontroller

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/gridchild"
)

// child is what is kept of a live child. One of a cache is shared, and not to be changed.
type child struct {
	name, uid, resourceVersion string
	deleting                   bool
	// grid is the label that names the grid, unit the one that names the unit, or for want of it what the name says of
	// it; controller is the owner that manages the child, if any.
	grid, unit string
	controller *metav1.OwnerReference
	// applied is the digest of what was last applied, which stands in an annotation that our field manager owns.
	applied string
	// fields is a hash of which fields our manager owns, owned one of those and of their values.
	fields, owned string
	// legacy: a controller of the same name, which updated instead of applying, owns fields of it.
	legacy bool
	// selectsUnit: the selector names the unit.
	selectsUnit bool
	// ownsReplicas: spec.replicas is among the fields that our manager owns.
	ownsReplicas bool
	// others says which fields of the spec others own; empty if none.
	others   string
	progress progress
	// observed: the child's own controller has seen its current spec.
	observed bool
	// tree are the fields that our manager owns, as owns reads them. A child of a cache has none.
	tree map[string]any
}

// condensed is the key under which an object in a cache carries the *child that condense has made of it.
const condensed = "condensed"

// ownedParts are the parts of an object that are applied.
var ownedParts = [][]string{
	{"metadata", "labels"}, {"metadata", "annotations"}, {"metadata", "ownerReferences"}, {"spec"},
}

// transform replaces an object that comes into a cache by what is needed of it, so that thousands of them are a small
// cache. It may be called again with its result.
func (k kind) transform(object any) (any, error) {
	u, ok := object.(*unstructured.Unstructured)
	if !ok {
		return object, nil
	}
	c, err := k.childOf(u)
	if err != nil {
		return nil, err
	}
	c.tree = nil
	small := &unstructured.Unstructured{
		Object: map[string]any{"apiVersion": u.GetAPIVersion(), "kind": u.GetKind(), condensed: c},
	}
	small.SetName(u.GetName())
	small.SetNamespace(u.GetNamespace())
	small.SetUID(u.GetUID())
	small.SetResourceVersion(u.GetResourceVersion())
	small.SetOwnerReferences(u.GetOwnerReferences())
	if c.grid != "" {
		small.SetLabels(map[string]string{v1.LabelGridSelector: c.grid})
	}
	return small, nil
}

// childOf reads a live object, or one of a cache.
func (k kind) childOf(u *unstructured.Unstructured) (*child, error) {
	if c, ok := u.Object[condensed].(*child); ok {
		return c, nil
	}
	c := &child{
		name: u.GetName(), uid: string(u.GetUID()), resourceVersion: u.GetResourceVersion(),
		deleting:   u.GetDeletionTimestamp() != nil,
		grid:       u.GetLabels()[v1.LabelGridSelector],
		controller: metav1.GetControllerOf(u),
		progress:   progress{complete: true},
		observed:   true,
	}
	if err := c.readManagedFields(u); err != nil {
		return nil, fmt.Errorf("managedFields of %s %s/%s: %w", u.GetKind(), u.GetNamespace(), u.GetName(), err)
	}
	if owns := at(c.tree, "metadata", "annotations"); owns["f:"+v1.AnnotationAppliedDigest] != nil {
		c.applied = u.GetAnnotations()[v1.AnnotationAppliedDigest]
	}
	_, c.ownsReplicas = at(c.tree, "spec")["f:replicas"]
	c.unit = v1.UnitOf(u, c.grid)
	c.selectsUnit = gridchild.SelectsUnit(u)
	c.others = v1.ForeignFields(u.GetManagedFields())
	if k.progress != nil {
		spec, _ := u.Object["spec"].(map[string]any)
		status, _ := u.Object["status"].(map[string]any)
		c.progress = k.progress(spec, status)
		c.observed = integer(status, "observedGeneration") >= u.GetGeneration()
	}
	return c, nil
}

// readManagedFields notes which fields our field manager has applied, and hashes of them.
func (c *child) readManagedFields(u *unstructured.Unstructured) error {
	hash := sha256.New()
	c.tree = map[string]any{}
	for _, entry := range u.GetManagedFields() {
		if entry.Manager != v1.FieldManager || entry.Subresource != "" {
			continue
		}
		if entry.Operation != metav1.ManagedFieldsOperationApply {
			c.legacy = true
			continue
		}
		if entry.FieldsV1 == nil {
			return errors.New("an entry without fields")
		}
		raw := entry.FieldsV1.GetRawBytes()
		if err := json.Unmarshal(raw, &c.tree); err != nil {
			return err
		}
		hash.Write(raw)
	}
	c.fields = string(hash.Sum(nil)[:16])
	for _, path := range ownedParts {
		value, found, err := unstructured.NestedFieldNoCopy(u.Object, path...)
		tree := at(c.tree, path...)
		if err != nil || !found || len(tree) == 0 {
			continue
		}
		text, err := json.Marshal(project(value, tree))
		if err != nil {
			return err
		}
		hash.Write(text)
	}
	c.owned = string(hash.Sum(nil)[:16])
	return nil
}

// at is what is below a path of a tree of managedFields.
func at(tree map[string]any, path ...string) map[string]any {
	for _, field := range path {
		tree = subtree(tree["f:"+field])
	}
	return tree
}

// is reports whether the child is what is desired, as far as it tells by itself: the digest says that this was applied
// last, and that all of it is still ours, and nothing else, says that nobody has changed it since. It needs a child
// that was read from the API server.
func (c *child) is(d *desired) bool {
	if c.legacy || c.applied != d.digest {
		return false
	}
	object, err := d.object()
	if err != nil {
		return false
	}
	for _, path := range ownedParts {
		value, _, err := unstructured.NestedFieldNoCopy(object.Object, path...)
		if err != nil || !owns(value, at(c.tree, path...)) {
			return false
		}
	}
	return true
}
