package gridchild

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
)

// HasNode reports whether a site has a node whose labels match.
type HasNode func(site string, of labels.Selector) bool

// Merge applies a strategic merge patch to the spec of a workload, which it may change, and returns the result.
type Merge func(spec, patch map[string]any) (map[string]any, error)

// Context is what a site's template depends on besides the grid. If HasNode is nil, no nodeSelector matches.
type Context struct {
	HasNode HasNode
	Merge   Merge
}

// matcher matches sites against a SiteSelector.
type matcher struct {
	names    map[string]bool
	patterns []string
	nodes    labels.Selector // matches nothing without a nodeSelector
	hasNode  HasNode
}

func newMatcher(selector *v1.SiteSelector, hasNode HasNode) (m *matcher, err error) {
	m = &matcher{names: map[string]bool{}, hasNode: hasNode}
	for _, name := range selector.Names {
		if !strings.ContainsAny(name, `*?[\`) {
			m.names[name] = true
			continue
		}
		if _, err := path.Match(name, ""); err != nil {
			return nil, fmt.Errorf("%q: %w", name, err)
		}
		m.patterns = append(m.patterns, name)
	}
	m.nodes, err = metav1.LabelSelectorAsSelector(selector.NodeSelector.LabelSelector())
	return m, err
}

// matches reports whether the selector selects a site.
func (m *matcher) matches(site string) bool {
	return m.names[site] || slices.ContainsFunc(m.patterns, func(pattern string) bool {
		ok, _ := path.Match(pattern, site) // newMatcher has checked the pattern
		return ok
	}) || (m.hasNode != nil && m.hasNode(site, m.nodes))
}

// Waves knows the wave of every site. The wave of all other sites has no matcher.
type Waves []*matcher

// NewWaves reads the waves of a rollout.
func NewWaves(rollout *v1.Rollout, hasNode HasNode) (Waves, error) {
	w := make(Waves, len(rollout.Waves))
	for i, wave := range rollout.Waves {
		if wave.Sites == nil {
			continue
		}
		var err error
		if w[i], err = newMatcher(wave.Sites, hasNode); err != nil {
			return nil, Errorf(v1.ReasonInvalidTemplate, "spec.rollout.waves[%s].sites: %v", wave.Name, err)
		}
	}
	return w, nil
}

// Of returns the index of a site's wave; the number of waves for a site without one.
func (w Waves) Of(site string) int {
	rest := len(w)
	for i, m := range w {
		switch {
		case m == nil:
			rest = i
		case m.matches(site):
			return i
		}
	}
	return rest
}

// Idle returns the names of the overrides that select none of the sites.
func (t *Templates) Idle(sites []string) []string {
	var idle []string
	for i, m := range t.matchers {
		if !slices.ContainsFunc(sites, m.matches) {
			idle = append(idle, t.spec.Overrides[i].Name)
		}
	}
	return idle
}

func (t *Templates) overridesOf(site string) (all []*v1.Override) {
	for i, m := range t.matchers {
		if m.matches(site) {
			all = append(all, &t.spec.Overrides[i])
		}
	}
	return all
}

// Variant identifies a site's template: sites with the same variant have the same template. It consists of the names of
// the overrides, which have no slash, a slash, and the name of the template, which may be any text.
func (t *Templates) Variant(site string) string {
	overrides := t.overridesOf(site)
	names := make([]string, len(overrides))
	for i, o := range overrides {
		names[i] = o.Name
	}
	return strings.Join(names, ",") + "/" + TemplateName(t.spec, site)
}

// Parts returns the name of the template of a variant, and those of the overrides that change it.
func Parts(variant string) (template string, overrides []string) {
	names, template, _ := strings.Cut(variant, "/")
	if template = cmp.Or(template, string(v1.DefaultTemplate)); names == "" {
		return template, nil
	}
	return template, strings.Split(names, ",")
}

// override applies an override to a template.
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
	merged, err := t.context.Merge(spec, patch)
	if err != nil {
		told := Tellable(err)
		return nil, Errorf(told.Reason, "spec.overrides[%s].patch: %s", o.Name, told.Message)
	}
	return merged, nil
}

func replaceImages(spec map[string]any, o *v1.Override) error {
	if len(o.Images) == 0 {
		return nil
	}
	pod, err := object(spec, "template", "spec")
	if err != nil {
		return err
	}
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
				container["image"] = image
			}
		}
	}
	for name := range o.Images {
		if !slices.Contains(names, name) {
			return Errorf(v1.ReasonInvalidTemplate,
				"spec.overrides[%s].images: the template has no container %q; it has %s", o.Name, name,
				strings.Join(names, ", "))
		}
	}
	return nil
}
