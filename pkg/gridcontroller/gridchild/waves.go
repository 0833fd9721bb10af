package gridchild

import (
	"fmt"
	"path"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
)

// HasNode reports whether a site has a node whose labels match.
type HasNode func(site string, of labels.Selector) bool

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

func (m *matcher) matches(site string) bool {
	return m.names[site] || slices.ContainsFunc(m.patterns, func(pattern string) bool {
		ok, _ := path.Match(pattern, site) // newMatcher has checked the pattern
		return ok
	}) || (m.hasNode != nil && m.hasNode(site, m.nodes))
}

// Waves knows the wave of every site. The wave of all other sites has no matcher.
type Waves []*matcher

// NewWaves reads the waves of a rollout.
func NewWaves(waves []v1.Wave, hasNode HasNode) (Waves, error) {
	w := make(Waves, len(waves))
	for i, wave := range waves {
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
