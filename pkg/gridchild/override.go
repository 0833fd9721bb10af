package gridchild

import (
	"path"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
)

// NodesOf gives the labels of the nodes of a unit.
type NodesOf func(unit string) []map[string]string

// Merge applies a strategic merge patch to the spec of a workload, both decoded, and returns the result. It may change
// the spec.
type Merge func(spec, patch map[string]any) (map[string]any, error)

// Context is what a unit's template follows from besides the grid. Either may be nil: then no nodeSelector matches, and
// a patch is an error.
type Context struct {
	Nodes NodesOf
	Merge Merge
}

// Selects reports whether a selector selects a unit.
func Selects(selector *v1.UnitSelector, unit string, nodes NodesOf) (bool, error) {
	for _, pattern := range selector.Names {
		if ok, err := path.Match(pattern, unit); ok || err != nil {
			return ok, err
		}
	}
	if selector.NodeSelector == nil || nodes == nil {
		return false, nil
	}
	matches, err := metav1.LabelSelectorAsSelector(selector.NodeSelector)
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(nodes(unit), func(of map[string]string) bool { return matches.Matches(labels.Set(of)) }), nil
}

// WaveOf is the index of a unit's wave; the number of waves for a unit that is in none.
func WaveOf(rollout *v1.Rollout, unit string, nodes NodesOf) (int, error) {
	rest := len(rollout.Waves)
	for i := range rollout.Waves {
		if rollout.Waves[i].Units == nil {
			rest = i
			continue
		}
		selected, err := Selects(rollout.Waves[i].Units, unit, nodes)
		if err != nil {
			return 0, Errorf(v1.ReasonInvalidTemplate, "spec.rollout.waves[%s].units: %v", rollout.Waves[i].Name, err)
		}
		if selected {
			return i, nil
		}
	}
	return rest, nil
}

// overridesOf are the overrides of a unit, in order.
func (t *Templates) overridesOf(unit string) ([]*v1.Override, error) {
	var all []*v1.Override
	for i := range t.spec.Overrides {
		o := &t.spec.Overrides[i]
		selected, err := Selects(&o.Units, unit, t.context.Nodes)
		if err != nil {
			return nil, Errorf(v1.ReasonInvalidTemplate, "spec.overrides[%s].units: %v", o.Name, err)
		}
		if selected {
			all = append(all, o)
		}
	}
	return all, nil
}

// Variant names what a unit's template is made of: the units with the same variant have the same template.
func (t *Templates) Variant(unit string) string {
	name := t.Name(unit)
	if len(t.spec.Overrides) == 0 {
		return name
	}
	all, err := t.overridesOf(unit)
	if err != nil {
		return name + "/!" // rendering it is the same error
	}
	parts := []string{name}
	for _, o := range all {
		parts = append(parts, o.Name)
	}
	return strings.Join(parts, "/")
}

// override changes a template as an override says.
func (t *Templates) override(spec map[string]any, o *v1.Override) (map[string]any, error) {
	if o.Replicas != nil {
		spec["replicas"] = int64(*o.Replicas)
	}
	if err := replaceImages(spec, o); err != nil {
		return nil, err
	}
	if o.Patch.IsZero() {
		return spec, nil
	}
	var patch map[string]any
	if err := utiljson.Unmarshal(o.Patch.Raw, &patch); err != nil || patch == nil {
		return nil, Errorf(v1.ReasonInvalidTemplate, "spec.overrides[%s].patch is not an object", o.Name)
	}
	if t.context.Merge == nil {
		return nil, Errorf(v1.ReasonSyncFailed, "spec.overrides[%s].patch: the API server's schema is not known", o.Name)
	}
	merged, err := t.context.Merge(spec, patch)
	if err != nil {
		told := Tellable(err)
		return nil, Errorf(told.Reason, "spec.overrides[%s].patch: %s", o.Name, told.Message)
	}
	return merged, nil
}

// replaceImages replaces the images of containers.
func replaceImages(spec map[string]any, o *v1.Override) error {
	if len(o.Images) == 0 {
		return nil
	}
	pod, err := object(spec, "template", "spec")
	if err != nil {
		return err
	}
	found := map[string]bool{}
	var names []string
	for _, field := range []string{"initContainers", "containers"} {
		containers, _ := pod[field].([]any)
		for _, element := range containers {
			container, ok := element.(map[string]any)
			if !ok {
				continue
			}
			name, _ := container["name"].(string)
			names = append(names, name)
			if image, ok := o.Images[name]; ok {
				container["image"], found[name] = image, true
			}
		}
	}
	for name := range o.Images {
		if !found[name] {
			return Errorf(v1.ReasonInvalidTemplate, "spec.overrides[%s].images: the template has no container %q; it has %s", o.Name, name, strings.Join(names, ", "))
		}
	}
	return nil
}
