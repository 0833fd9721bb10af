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

	"github.com/application-grid/application-grid/pkg/apis/enumerate"
	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/gridcontroller/gridchild"
)

// liveChild has the facts about a live child that the controller needs. It is shared, and must not be changed.
type liveChild struct {
	*gridchild.Existing

	name, uid, resourceVersion string
	deleting                   bool
	site                       string // see v1.SiteOf
	// appliedDigest is the digest of the last applied child: the value of an annotation that our field manager owns.
	appliedDigest string
	// fieldSetHash is a hash of the fields that our manager owns: whoever changes one of them becomes its owner.
	// specHash is a hash of them and of the spec, in which somebody may have changed the order of a list.
	fieldSetHash, specHash string
	// legacy is set if a controller with our name that updated instead of applying owns fields.
	legacy bool
	// selector selects the pods of the workload, and maybe others.
	selector labels.Selector
	// revision and variant are annotations, if our manager has written them. annotated is set if the child has the
	// annotation of a revision, whoever wrote that. key is the gridUniqKey for which the child was made.
	revision, variant, key string
	annotated              bool
	// held is set if somebody else's annotation forbids changes of the child. hold is the annotation's value.
	held bool
	hold string
	// ownsReplicas is set if our manager owns spec.replicas.
	ownsReplicas bool
	progress     progress
	// observed is set if the child's own controller has seen its current spec.
	observed bool
}

// condensed is the key under which an object in a cache has the *child that condenseChild made from it.
const condensed = "condensed"

// condenseChild replaces an object in a cache by a small one with its *child. It may be called again with its result.
func condenseChild(object any) (any, error) {
	u, ok := object.(*unstructured.Unstructured)
	if !ok {
		return object, nil
	}
	c, err := parseChild(u)
	if err != nil {
		return nil, err
	}
	metadata, _ := u.Object["metadata"].(map[string]any)
	small := map[string]any{"labels": map[string]any{v1.LabelGridSelector: c.Grid}}
	for _, field := range []string{"name", "namespace", "uid", "resourceVersion", "ownerReferences"} {
		small[field] = metadata[field]
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": u.GetAPIVersion(), "kind": u.GetKind(), "metadata": small, condensed: c,
	}}, nil
}

func parseChild(u *unstructured.Unstructured) (*liveChild, error) {
	if c, ok := u.Object[condensed].(*liveChild); ok {
		return c, nil
	}
	c := &liveChild{
		name: u.GetName(), uid: string(u.GetUID()), resourceVersion: u.GetResourceVersion(),
		Existing: gridchild.ExistingOf(u), deleting: u.GetDeletionTimestamp() != nil,
		progress: progress{complete: true}, observed: true,
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
		v1.AnnotationAppliedDigest: &c.appliedDigest, v1.AnnotationRevision: &c.revision,
		v1.AnnotationVariant: &c.variant,
	} {
		if owns(name) {
			*field = u.GetAnnotations()[name]
		}
	}
	_, c.annotated = u.GetAnnotations()[v1.AnnotationRevision]
	c.key = cmp.Or(u.GetAnnotations()[v1.AnnotationGridUniqKey], u.GetLabels()[v1.LabelGridUniqKey])
	c.hold, c.held = u.GetAnnotations()[v1.AnnotationHold]
	c.held = c.held && !owns(v1.AnnotationHold)
	c.site = v1.SiteOf(u, c.Grid)
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
func (c *liveChild) readManagedFields(u *unstructured.Unstructured, spec map[string]any) (*fieldpath.Set, error) {
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
	c.fieldSetHash = string(hash.Sum(nil)[:16])
	c.ownsReplicas = owned.Has(fieldpath.MakePathOrDie("spec", "replicas"))
	if !c.ownsReplicas { // an autoscaler may change the replicas
		spec = maps.Clone(spec)
		delete(spec, "replicas")
	}
	err := json.NewEncoder(hash).Encode(spec)
	c.specHash = string(hash.Sum(nil)[:16])
	return owned, err
}

// progressOf has functions that read the progress from the spec and status of a live child. Services have no pods.
var progressOf = map[string]func(name string, spec, status map[string]any) progress{
	v1.DeploymentGridKind.Child.Kind:  deploymentProgress,
	v1.StatefulSetGridKind.Child.Kind: statefulSetProgress,
	v1.DaemonSetGridKind.Child.Kind:   daemonSetProgress,
}

// progress is the progress of the child's own controller.
type progress struct {
	replicas, updated, ready, available int64
	// complete is set if all pods of the spec exist and are available, or wait for a person (a partition, OnDelete).
	// strays is how many nodes have a pod that a DaemonSet's status does not count: a taint keeps new ones away.
	complete bool
	strays   int64
	// waits describes pods that wait until a person replaces them; empty if none do.
	waits string
	// stranded is how many pods have the template of an abandoned attempt: neither the newest template nor the former
	// one. With podManagementPolicy OrderedReady they are not replaced while one is not ready.
	stranded int64
	// serves is set if enough pods are available, new or old ones.
	serves bool
	// stuck is why the child's controller makes no progress; its Reason is empty if that is not known.
	stuck gridchild.Error
}

// onDelete is the update strategy with which a person replaces pods.
const onDelete = "OnDelete"

// waitForDeletion describes the pods that wait until a person deletes them; "" if none do.
func (p *progress) waitForDeletion(which string) string {
	if p.updated >= p.replicas {
		return ""
	}
	return fmt.Sprintf("%d of %d pods wait until somebody deletes them (OnDelete): %s", p.replicas-p.updated,
		p.replicas, which)
}

// podsOfSet names the first pods of a StatefulSet, which may be somebody else's and want billions.
func podsOfSet(name string, spec map[string]any, pods int64) string {
	first := integer(spec, "ordinals", "start")
	names := make([]string, 0, 3)
	for ordinal := range min(pods, 3) {
		names = append(names, fmt.Sprintf("%s-%d", name, first+ordinal))
	}
	return enumerate.FirstOf(names, int(pods))
}

func integer(object map[string]any, fields ...string) int64 {
	value, _, _ := unstructured.NestedInt64(object, fields...) // 0 if the field is not a number
	return value
}

func countPods(spec, status map[string]any) progress {
	replicas := int64(1) // the default
	if _, set := spec["replicas"]; set {
		replicas = integer(spec, "replicas")
	}
	return progress{
		replicas: replicas, updated: integer(status, "updatedReplicas"),
		ready: integer(status, "readyReplicas"), available: integer(status, "availableReplicas"),
	}
}

func deploymentProgress(_ string, spec, status map[string]any) progress {
	p := countPods(spec, status)
	p.complete = p.updated >= p.replicas && p.available >= p.replicas && integer(status, "replicas") <= p.updated
	p.serves = p.available >= p.replicas
	conditions, _ := status["conditions"].([]any)
	for _, condition := range conditions {
		c, _ := condition.(map[string]any) // nil if it is none
		reason, _ := c["reason"].(string)
		message, _ := c["message"].(string)
		switch {
		case c["type"] == "Available" && c["status"] == "True":
			p.serves = true
		// A ReplicaFailure says why pods cannot be created, so it takes precedence over the lack of progress.
		case c["type"] == "ReplicaFailure" && c["status"] == "True",
			c["type"] == "Progressing" && c["status"] == "False" && reason != "DeploymentPaused" &&
				p.stuck.Reason == "":
			p.stuck = gridchild.Error{Reason: reason, Message: gridchild.Shorten(message)}
		}
	}
	return p
}

func statefulSetProgress(name string, spec, status map[string]any) progress {
	p := countPods(spec, status)
	toUpdate := p.replicas
	if strategy, _, _ := unstructured.NestedString(spec, "updateStrategy", "type"); strategy == onDelete {
		which := fmt.Sprintf("those with controller-revision-hash!=%s", status["updateRevision"])
		if p.updated == 0 {
			which = podsOfSet(name, spec, p.replicas)
		}
		toUpdate, p.waits = 0, p.waitForDeletion(which)
	} else if partition := integer(spec, "updateStrategy", "rollingUpdate", "partition"); partition > 0 {
		toUpdate -= partition
		if p.updated < p.replicas {
			p.waits = fmt.Sprintf("updateStrategy.rollingUpdate.partition is %d, and keeps %s as before", partition,
				podsOfSet(name, spec, min(partition, p.replicas)))
		}
	}
	if policy, _, _ := unstructured.NestedString(spec, "podManagementPolicy"); policy != "Parallel" {
		p.stranded = integer(status, "replicas") - p.updated
		if status["currentRevision"] != status["updateRevision"] {
			p.stranded -= integer(status, "currentReplicas")
		}
	}
	p.complete = p.updated >= toUpdate && p.available >= p.replicas && integer(status, "replicas") <= p.replicas
	p.serves = p.available > 0 || p.replicas == 0
	return p
}

func daemonSetProgress(_ string, spec, status map[string]any) progress {
	p := progress{
		replicas: integer(status, "desiredNumberScheduled"), updated: integer(status, "updatedNumberScheduled"),
		ready: integer(status, "numberReady"), available: integer(status, "numberAvailable"),
		strays: integer(status, "numberMisscheduled"),
	}
	strategy, _, _ := unstructured.NestedString(spec, "updateStrategy", "type")
	if strategy == onDelete {
		// The status of a DaemonSet does not name the newest revision.
		p.waits = p.waitForDeletion("those without the newest controller-revision-hash")
	}
	p.complete = (p.updated >= p.replicas || strategy == onDelete) && p.available >= p.replicas
	p.serves = p.available > 0
	return p
}
