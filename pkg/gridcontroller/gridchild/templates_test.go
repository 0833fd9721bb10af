package gridchild

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
)

// sized has two nodes in the sites whose name begins with big, one of which has the label.
func sized(site string, of labels.Selector) bool {
	if strings.HasPrefix(site, "big") {
		return of.Matches(labels.Set{"other": "x"}) || of.Matches(labels.Set{"size": "big"})
	}
	return of.Matches(labels.Set{"size": "small"})
}

func sites(names ...string) *v1.SiteSelector { return &v1.SiteSelector{Names: names} }

// TestWaves: a site is in the first wave that matches it, by a name, a pattern or a label of one of its nodes; the last
// wave may have all others.
func TestWaves(t *testing.T) {
	big := &v1.SiteSelector{
		Names: []string{"lab"}, NodeSelector: &v1.NodeSelector{MatchLabels: map[string]string{"size": "big"}},
	}
	rollout := &v1.Rollout{Waves: []v1.Wave{
		{Name: "a", Sites: sites("lab", "hz-*")}, {Name: "b", Sites: big},
		{Name: "c", Sites: sites("lab", "hz-1", "x.y")}, {Name: "d"},
	}}
	waves, err := NewWaves(rollout.Waves, sized)
	if err != nil {
		t.Fatal(err)
	}
	for site, want := range map[string]int{
		"lab": 0, "hz-1": 0, "hz-": 0, "big-1": 1, "x.y": 2, "xzy": 3, "hz": 3, "la": 3, "": 3,
	} {
		if got := waves.Of(site); got != want {
			t.Errorf("%q is in wave %d, want %d", site, got, want)
		}
	}
	rollout.Waves = rollout.Waves[:3]
	if waves, err = NewWaves(rollout.Waves, nil); err != nil || waves.Of("big-1") != 3 {
		t.Errorf("without the last wave, and without nodes: got %d, %v", waves.Of("big-1"), err)
	}
	rollout.Waves[1].Sites = sites("[")
	if _, err := NewWaves(rollout.Waves, nil); err == nil ||
		!strings.Contains(err.Error(), "spec.rollout.waves[b].sites") {
		t.Errorf("a pattern that is none: got %v", err)
	}
}

// TestOverrides: overrides apply in order; sites with the same ones have one variant.
func TestOverrides(t *testing.T) {
	spec := &v1.WorkloadGridSpec{
		Template: v1.Template{Raw: []byte(`{"replicas":1,"template":{"spec":{
			"initContainers":[{"name":"i","image":"init"}],"containers":[{"name":"c","image":"one"}]}}}`)},
		Overrides: []v1.Override{
			{Name: "more", Sites: *sites("big-*"), Replicas: ptr.To[int32](5)},
			{Name: "new", Sites: *sites("big-1"), Images: map[string]string{"c": "two", "i": "init2"}},
			{Name: "none", Sites: *sites("big-1"), Replicas: ptr.To[int32](0)},
			{Name: "idle", Sites: *sites("nobody"), Replicas: ptr.To[int32](1)},
		},
	}
	templates := NewTemplates("", spec, Cluster{})
	for site, want := range map[string]struct {
		variant  string
		replicas int64
		image    string
	}{
		"lab": {"/", 1, "one"}, "big-2": {"more/", 5, "one"}, "big-1": {"more,new,none/", 0, "two"},
	} {
		if got := templates.Variant(site); got != want.variant {
			t.Errorf("%s has the variant %q, want %q", site, got, want.variant)
		}
		for range 2 { // the second one is a copy
			got, err := templates.Of(site)
			if err != nil {
				t.Fatal(err)
			}
			if image := imageOf(t, got); got["replicas"] != want.replicas || image != want.image {
				t.Errorf("%s: got the image %v in %v", site, image, got)
			}
		}
	}
	if got := templates.UnusedOverrides([]string{"big-1", "lab"}); !slices.Equal(got, []string{"idle"}) {
		t.Errorf("got %q", got)
	}
}

// TestVariantsDiffer: the name of a template in the pool may be any text, also one that looks like a template and an
// override.
func TestVariantsDiffer(t *testing.T) {
	template := func(image string) v1.Template {
		return v1.Template{Raw: []byte(`{"template":{"spec":{"containers":[{"name":"c","image":"` + image + `"}]}}}`)}
	}
	spec := &v1.WorkloadGridSpec{
		TemplatePool: map[string]v1.Template{"x": template("x"), "x/y": template("x/y"), "y/x": template("y/x")},
		Templates:    map[string]v1.TemplateName{"a": "x", "b": "x/y", "c": "y/x", "d": "x/y"},
		Overrides: []v1.Override{
			{Name: "y", Sites: *sites("a", "d"), Images: map[string]string{"c": "override"}},
		},
	}
	templates := NewTemplates("", spec, Cluster{})
	for site, want := range map[string]string{"a": "override", "b": "x/y", "c": "y/x", "d": "override"} {
		got, err := templates.Of(site)
		if err != nil {
			t.Fatal(err)
		}
		if image := imageOf(t, got); image != want {
			t.Errorf("%s has the image %v, want %s (variant %s)", site, image, want, templates.Variant(site))
		}
	}
	if got := DescribeVariant(templates.Variant("d")); got != "x/y with y" {
		t.Errorf("got %s", got)
	}
}

// TestPatchRefused: why a patch cannot be applied names the override, and is the problem of its sites alone.
func TestPatchRefused(t *testing.T) {
	spec := &v1.WorkloadGridSpec{
		Template: v1.Template{Raw: []byte(`{"replicas":1}`)},
		Overrides: []v1.Override{
			{Name: "odd", Sites: *sites("east"), Patch: v1.Template{Raw: []byte(`{"x":1}`)}},
			{Name: "list", Sites: *sites("west"), Patch: v1.Template{Raw: []byte(`[]`)}},
		},
	}
	refuse := func(map[string]any, map[string]any) (map[string]any, error) {
		return nil, Errorf(v1.ReasonInvalidTemplate, "it says no")
	}
	for _, c := range []struct {
		site, says, reason string
		merge              Merge
	}{
		{"east", "spec.overrides[odd].patch: it says no", v1.ReasonInvalidTemplate, refuse},
		{"west", "spec.overrides[list].patch is not an object", v1.ReasonInvalidTemplate, refuse},
		{"lab", "", "", refuse},
	} {
		_, err := NewTemplates("", spec, Cluster{Merge: c.merge}).Of(c.site)
		var told *Error
		if c.says == "" {
			if err != nil {
				t.Errorf("%s: got %v", c.site, err)
			}
			continue
		}
		if !errors.As(err, &told) || told.Reason != c.reason || !strings.Contains(told.Message, c.says) {
			t.Errorf("%s: got %v", c.site, err)
		}
	}
}
