package gridcontroller

import (
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/gridcontroller/gridchild"
)

// child has the facts about a live child that the controller needs. A child in a cache is shared, and must not be
// changed.
type child struct {
	name, uid, resourceVersion string
	deleting                   bool
	// grid is the value of the label that names the grid. site is the child's site; see v1.SiteOf. controller is the
	// owner that controls the child, if any.
	grid, site string
	controller *metav1.OwnerReference
	// applied is the digest of the last applied child: the value of an annotation that our field manager owns.
	applied string
	// fields is a hash of the fields that our manager owns: whoever changes one of them becomes its owner. owned is a
	// hash of them and of the spec, in which somebody may have changed the order of a list.
	fields, owned string
	// legacy is set if a controller with our name that updated instead of applying owns fields.
	legacy bool
	// selector selects the pods of the workload, and maybe others. selectsSite is set if it names the site.
	selector    labels.Selector
	selectsSite bool
	// revision is the revision that our manager has written to the child; empty without one, or if somebody has changed
	// it.
	revision string
	// annotated is set if it has the annotation of a revision, whoever wrote that.
	annotated bool
	// variant is the value of AnnotationVariant, if our manager has written it. key is the gridUniqKey for which the
	// child was made, from its annotation or label.
	variant, key string
	// held is set if somebody else's annotation forbids changes of the child. hold is the annotation's value.
	held bool
	hold string
	// ownsReplicas is set if our manager owns spec.replicas.
	ownsReplicas bool
	progress     progress
	// observed is set if the child's own controller has seen its current spec.
	observed bool
}

// condensed is the key under which an object in a cache has the *child that transform made from it.
const condensed = "condensed"

// transform replaces an object in a cache by a small one with its *child, so that a cache of thousands of objects is
// small. It may be called again with its result.
func transform(object any) (any, error) {
	u, ok := object.(*unstructured.Unstructured)
	if !ok {
		return object, nil
	}
	c, err := childOf(u)
	if err != nil {
		return nil, err
	}
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

// childOf returns the child of a live object, or of an object in a cache.
func childOf(u *unstructured.Unstructured) (*child, error) {
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
	spec, _ := u.Object["spec"].(map[string]any)
	owned, err := c.readManagedFields(u, spec)
	if err != nil {
		return nil, fmt.Errorf("managedFields of %s %s/%s: %w", u.GetKind(), u.GetNamespace(), u.GetName(), err)
	}
	owns := func(annotation string) bool {
		return owned.Has(fieldpath.MakePathOrDie("metadata", "annotations", annotation))
	}
	for name, field := range map[string]*string{
		v1.AnnotationAppliedDigest: &c.applied, v1.AnnotationRevision: &c.revision, v1.AnnotationVariant: &c.variant,
	} {
		if owns(name) {
			*field = u.GetAnnotations()[name]
		}
	}
	_, c.annotated = u.GetAnnotations()[v1.AnnotationRevision]
	c.key = cmp.Or(u.GetAnnotations()[v1.AnnotationGridUniqKey], u.GetLabels()[v1.LabelGridUniqKey])
	c.hold, c.held = u.GetAnnotations()[v1.AnnotationHold]
	c.held = c.held && !owns(v1.AnnotationHold)
	c.site = v1.SiteOf(u, c.grid)
	c.selectsSite = gridchild.SelectsSite(u)
	if progressOf := progressOf[u.GetKind()]; progressOf != nil {
		if c.selector, err = gridchild.Selector(spec); err != nil {
			return nil, fmt.Errorf("%s %s/%s: %w", u.GetKind(), u.GetNamespace(), u.GetName(), err)
		}
		status, _ := u.Object["status"].(map[string]any)
		c.progress = progressOf(c.name, spec, status)
		c.observed = integer(status, "observedGeneration") >= u.GetGeneration()
	}
	return c, nil
}

// readManagedFields reads which fields our field manager has applied, and hashes them.
func (c *child) readManagedFields(u *unstructured.Unstructured, spec map[string]any) (*fieldpath.Set, error) {
	hash := sha256.New()
	owned := &fieldpath.Set{}
	for _, entry := range u.GetManagedFields() {
		if entry.Manager != v1.FieldManager || entry.Subresource != "" {
			continue
		}
		if entry.Operation != metav1.ManagedFieldsOperationApply {
			c.legacy = true
			continue
		}
		if entry.FieldsV1 == nil {
			return nil, errors.New("an entry without fields")
		}
		var fields fieldpath.Set
		if err := fields.FromJSON(entry.FieldsV1.GetRawReader()); err != nil {
			return nil, err
		}
		owned = owned.Union(&fields)
		hash.Write(entry.FieldsV1.GetRawBytes())
	}
	c.fields = string(hash.Sum(nil)[:16])
	c.ownsReplicas = owned.Has(fieldpath.MakePathOrDie("spec", "replicas"))
	if !c.ownsReplicas { // an autoscaler may change the replicas
		spec = maps.Clone(spec)
		delete(spec, "replicas")
	}
	err := json.NewEncoder(hash).Encode(spec)
	c.owned = string(hash.Sum(nil)[:16])
	return owned, err
}
