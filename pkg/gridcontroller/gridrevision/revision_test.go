package gridrevision

import (
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
)

func raw(text string) v1.Template { return v1.Template{Raw: []byte(text)} }

func of(t *testing.T, kind, name string, spec *v1.WorkloadGridSpec) *appsv1.ControllerRevision {
	t.Helper()
	grid := &v1.DeploymentGrid{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: "u"}, Spec: *spec}
	r, err := Of(kind, grid)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestOf: a revision follows from what sites are made of, however that is written, and from nothing else.
func TestOf(t *testing.T) {
	spec := func(change func(*v1.WorkloadGridSpec)) *v1.WorkloadGridSpec {
		s := &v1.WorkloadGridSpec{
			GridUniqKey: "zone1", Template: raw(`{"replicas":3,"b":9007199254740993,"a":{"x":1,"y":2}}`),
			TemplatePool: map[string]v1.Template{"used": raw(`{}`), "unused": raw(`{}`)},
			Templates:    map[string]v1.TemplateName{"lab": "used"},
		}
		if change != nil {
			change(s)
		}
		return s
	}
	first := of(t, "DeploymentGrid", "echo", spec(nil))
	if !strings.HasPrefix(first.Name, "echo-") || !strings.Contains(string(first.Data.Raw), "9007199254740993") ||
		strings.Contains(string(first.Data.Raw), "replicas") {
		t.Errorf("got %s: %s", first.Name, first.Data.Raw)
	}
	for name, c := range map[string]struct {
		change func(*v1.WorkloadGridSpec)
		same   bool
	}{
		"the order of keys": {func(s *v1.WorkloadGridSpec) {
			s.Template = raw(`{ "a": {"y":2, "x":1}, "b": 9007199254740993, "replicas": 4 }`)
		}, true},
		"a template that no site gets": {func(s *v1.WorkloadGridSpec) { delete(s.TemplatePool, "unused") }, true},
		"the rollout": {func(s *v1.WorkloadGridSpec) {
			s.Rollout, s.RevisionHistoryLimit = &v1.Rollout{Paused: true}, ptr.To[int32](3)
		}, true},
		"the template":      {func(s *v1.WorkloadGridSpec) { s.Template = raw(`{"b":1}`) }, false},
		"a template in use": {func(s *v1.WorkloadGridSpec) { s.TemplatePool["used"] = raw(`{"b":1}`) }, false},
		"who gets it":       {func(s *v1.WorkloadGridSpec) { s.Templates["east"] = "used" }, false},
		"the default":       {func(s *v1.WorkloadGridSpec) { s.DefaultTemplateName = "used" }, false},
		"an override": {func(s *v1.WorkloadGridSpec) {
			s.Overrides = []v1.Override{{Name: "big", Images: map[string]string{"c": "i"}}}
		}, false},
		"scaling": {func(s *v1.WorkloadGridSpec) {
			s.TemplatePool["used"] = raw(`{"replicas":1}`)
			s.Overrides = []v1.Override{
				{Name: "big", Replicas: ptr.To[int32](5)}, {Name: "none", Patch: raw(`{"replicas":0}`)},
			}
		}, true},
	} {
		got := of(t, "DeploymentGrid", "echo", spec(c.change))
		if (got.Name == first.Name) != c.same || Same(got, first) != c.same {
			t.Errorf("%s: got %s, was %s", name, got.Name, first.Name)
		}
	}
	if other := of(t, "DaemonSetGrid", "echo", spec(nil)); other.Name == first.Name {
		t.Errorf("two kinds of grids have a revision of the name %s", other.Name)
	}
}

// TestObject: what is kept as a ControllerRevision is read as it was, whose it is can be seen, and it is restored into
// a spec without what it has not.
func TestObject(t *testing.T) {
	spec := &v1.WorkloadGridSpec{Template: raw(`{"replicas":3,"b":9007199254740993}`)}
	kept := of(t, "DeploymentGrid", "echo", spec)
	if by := metav1.GetControllerOf(kept); by == nil || by.UID != "u" || kept.Namespace != "shop" {
		t.Errorf("got %+v", kept)
	}
	kept.Data.Raw = slices.Concat([]byte(" "), kept.Data.Raw, []byte("\n")) // as an API server may write it
	if !Same(kept, of(t, "DeploymentGrid", "echo", spec)) {
		t.Fatalf("got %s", kept.Data.Raw)
	}
	if !IsOf("DeploymentGrid", "echo", kept) || IsOf("DaemonSetGrid", "echo", kept) ||
		IsOf("DeploymentGrid", "o", kept) {
		t.Error("it does not tell whose it is")
	}
	now := &v1.WorkloadGridSpec{
		GridUniqKey: "zone1", Template: raw(`{"replicas":7}`), TemplatePool: map[string]v1.Template{"new": raw(`{}`)},
		Overrides: []v1.Override{
			{Name: "big", Replicas: ptr.To[int32](9), Images: map[string]string{"c": "i"}},
			{Name: "new", Patch: raw(`{"x":1}`)},
		}, Rollout: &v1.Rollout{},
	}
	restored, err := Restore(kept, now)
	if err != nil || string(restored.Template.Raw) != `{"b":9007199254740993,"replicas":7}` ||
		len(restored.Overrides) != 1 || *restored.Overrides[0].Replicas != 9 || restored.Overrides[0].Images != nil ||
		restored.GridUniqKey != "zone1" || restored.Rollout == nil || len(restored.TemplatePool) != 1 {
		t.Errorf("got %+v, %v", restored, err)
	}
	kept.Data.Raw = []byte("no JSON")
	if _, err := Spec(kept, now); err == nil || Same(kept, kept) || IsOf("DeploymentGrid", "echo", kept) {
		t.Error("what is no JSON was read")
	}
}

func TestSuperfluous(t *testing.T) {
	var all []*appsv1.ControllerRevision
	for i, name := range []string{"c", "a", "d", "b"} {
		all = append(all, &appsv1.ControllerRevision{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Revision: int64(10 - i),
		})
	}
	for _, c := range []struct {
		limit *int32
		want  string
	}{
		{nil, ""}, {ptr.To[int32](10), ""}, {ptr.To[int32](2), "b"}, {ptr.To[int32](1), "bd"},
		{ptr.To[int32](0), "bdc"},
	} {
		got := ""
		for _, object := range Superfluous(all, map[string]bool{"a": true}, c.limit) {
			got += object.Name
		}
		if got != c.want {
			t.Errorf("limit %v: got %q, want %q", ptr.Deref(c.limit, -1), got, c.want)
		}
	}
}
