package gridrevision

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/utils/ptr"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/gridcontroller/gridchild"
)

// defaultLimit is spec.revisionHistoryLimit.
const defaultLimit = 10

// Of returns the ControllerRevision of a grid's spec, without a number: the named content, in canonical form, from
// which the grid's children are made. Replicas are left out, because scaling does not have to be proven, and unused
// templates of the pool, because autoDeleteUnusedTemplate may remove them.
func Of(kind string, grid v1.Object) (*appsv1.ControllerRevision, error) {
	spec, _ := v1.SpecAndStatus(grid)
	c := &v1.WorkloadGridSpec{
		Template: setReplicas(spec.Template, empty), TemplatePool: maps.Clone(spec.TemplatePool),
		Templates: spec.Templates, DefaultTemplateName: spec.DefaultTemplateName,
		TolerateUnreachable: spec.TolerateUnreachable,
	}
	for _, name := range gridchild.UnusedTemplates(spec) {
		delete(c.TemplatePool, name)
	}
	for name, template := range c.TemplatePool {
		c.TemplatePool[name] = setReplicas(template, empty)
	}
	for _, o := range spec.Overrides {
		o.Replicas, o.Patch = nil, setReplicas(o.Patch, empty)
		if bytes.Equal(o.Patch.Raw, empty.Raw) {
			o.Patch = v1.Template{}
		}
		if len(o.Images) > 0 || !o.Patch.IsZero() { // it does more than scale
			c.Overrides = append(c.Overrides, o)
		}
	}
	data, err := canonical(c)
	if err != nil {
		return nil, gridchild.Errorf(v1.ReasonInvalidTemplate, "the spec cannot be written as JSON: %v", err)
	}
	return &appsv1.ControllerRevision{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: grid.GetNamespace(), Name: nameOf(kind, grid.GetName(), data),
			Labels:          map[string]string{v1.LabelGridSelector: grid.GetName()},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(grid, v1.GroupVersion.WithKind(kind))},
		},
		Data: runtime.RawExtension{Raw: data},
	}, nil
}

// empty is a patch that changes nothing, and a template without replicas.
var empty = v1.Template{Raw: []byte("{}")}

// setReplicas returns a template, or a patch, with the replicas of another one, or without if that has none. It returns
// an invalid template unchanged, because other code refuses it.
func setReplicas(template, of v1.Template) v1.Template {
	var fields, others map[string]json.RawMessage
	if json.Unmarshal(template.Raw, &fields) != nil || json.Unmarshal(of.Raw, &others) != nil || fields == nil {
		return template
	}
	if delete(fields, "replicas"); others["replicas"] != nil {
		fields["replicas"] = others["replicas"]
	}
	raw, err := json.Marshal(fields)
	if err != nil {
		return template
	}
	return v1.Template{Raw: raw}
}

// nameOf returns the name of a revision. It depends on the kind, because grids of two kinds may have the same name.
func nameOf(kind, grid string, data []byte) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s/%s\n%s", kind, grid, data))
	return grid + "-" + hex.EncodeToString(sum[:5])
}

// IsOf reports whether a ControllerRevision is one of a grid: its name follows from the grid and its content.
func IsOf(kind, grid string, r *appsv1.ControllerRevision) bool {
	return r.Name == nameOf(kind, grid, content(r))
}

// Same reports whether two ControllerRevisions have the same content.
func Same(a, b *appsv1.ControllerRevision) bool {
	return content(a) != nil && bytes.Equal(content(a), content(b))
}

// content returns a ControllerRevision's JSON in canonical form, unlike the API server's; nil if it cannot be read.
func content(r *appsv1.ControllerRevision) []byte {
	data, _ := canonical(json.RawMessage(r.Data.Raw)) // nil with an error
	return data
}

// canonical writes the fields of a spec that belong to a revision as JSON whose keys are in order.
func canonical(value any) ([]byte, error) {
	data, err := json.Marshal(value)
	if err != nil {
		return nil, err
	}
	var decoded map[string]any
	if err := utiljson.Unmarshal(data, &decoded); err != nil {
		return nil, err
	}
	delete(decoded, "gridUniqKey") // the one other field that a spec always has
	return json.Marshal(decoded)
}

// Spec returns a copy of a grid's spec with the content of a ControllerRevision, without replicas.
func Spec(r *appsv1.ControllerRevision, spec *v1.WorkloadGridSpec) (*v1.WorkloadGridSpec, error) {
	out := spec.DeepCopy()
	out.Template, out.TemplatePool, out.Templates, out.DefaultTemplateName = v1.Template{}, nil, nil, ""
	out.Overrides, out.TolerateUnreachable = nil, false
	if err := json.Unmarshal(r.Data.Raw, out); err != nil {
		return nil, fmt.Errorf("reading ControllerRevision %s: %w", r.Name, err)
	}
	return out, nil
}

// Restore returns a copy of a grid's spec with a ControllerRevision, other templates of the pool, and all replicas.
func Restore(r *appsv1.ControllerRevision, spec *v1.WorkloadGridSpec) (*v1.WorkloadGridSpec, error) {
	out, err := Spec(r, spec)
	if err != nil {
		return nil, err
	}
	out.Template = setReplicas(out.Template, spec.Template)
	for name, template := range spec.TemplatePool {
		if restored, ok := out.TemplatePool[name]; ok {
			template = setReplicas(restored, template)
		}
		if out.TemplatePool == nil {
			out.TemplatePool = map[string]v1.Template{}
		}
		out.TemplatePool[name] = template
	}
	for _, o := range spec.Overrides {
		scale := setReplicas(empty, o.Patch)
		if o.Replicas == nil && bytes.Equal(scale.Raw, empty.Raw) {
			continue
		}
		i := slices.IndexFunc(out.Overrides, func(of v1.Override) bool { return of.Name == o.Name })
		if i < 0 {
			i, out.Overrides = len(out.Overrides), append(out.Overrides, v1.Override{Name: o.Name, Sites: o.Sites})
		}
		out.Overrides[i].Replicas = o.Replicas
		switch patch := out.Overrides[i].Patch; {
		case !patch.IsZero():
			out.Overrides[i].Patch = setReplicas(patch, o.Patch)
		case !bytes.Equal(scale.Raw, empty.Raw):
			out.Overrides[i].Patch = scale
		}
	}
	return out, nil
}

// AtOnce returns the value of the annotation that gives a revision to all sites without waves. It is valid for one
// generation of the grid: a later rollout of the same revision uses waves again.
func AtOnce(revision string, generation int64) string {
	return fmt.Sprintf("%s/%d", revision, generation)
}

// Sort puts ControllerRevisions in the order of their numbers.
func Sort(all []*appsv1.ControllerRevision) {
	slices.SortFunc(all, func(a, b *appsv1.ControllerRevision) int {
		return cmp.Or(cmp.Compare(a.Revision, b.Revision), cmp.Compare(a.Name, b.Name))
	})
}

// Superfluous returns the unused ControllerRevisions of a grid beyond its limit, the oldest first.
func Superfluous(all []*appsv1.ControllerRevision, inUse map[string]bool, limit *int32) []*appsv1.ControllerRevision {
	unused := slices.DeleteFunc(slices.Clone(all), func(of *appsv1.ControllerRevision) bool { return inUse[of.Name] })
	Sort(unused)
	return unused[:max(0, len(unused)-int(ptr.Deref(limit, defaultLimit)))]
}
