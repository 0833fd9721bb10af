package gridchild

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
)

// raw is a template.
func raw(text string) v1.Template { return v1.Template{Raw: []byte(text)} }

const plain = `{"selector":{"matchLabels":{"app":"x"}},"template":{"metadata":{"labels":{"app":"x"}},` +
	`"spec":{"containers":[{"name":"c","image":"i"}]}}}`

func demoOwner() *Owner {
	return &Owner{GridKind: v1.DeploymentGridKind, Key: "zone1", ObjectMeta: metav1.ObjectMeta{
		Name: "demo", Namespace: "shop", UID: "u1",
		Labels: map[string]string{"team": "x"}, Annotations: map[string]string{"note": "y"},
	}}
}

func desire(t *testing.T, o *Owner, template, site string) *unstructured.Unstructured {
	t.Helper()
	decoded, p := decodeTemplate(raw(template), "spec.template")
	if p != nil {
		t.Fatal(p)
	}
	d, p := RenderSite(o, site, o.Name+"-"+site, decoded, map[string]string{})
	if p != nil {
		t.Fatal(p)
	}
	return d
}

// TestWorkloadChild: nothing of the controller is in the pods. SuperEdge's wrote a hash over Go structs into them, so
// that a new build of it replaced every pod. The digest is that of former releases: with another one, an upgrade would
// apply every child again, which gives each Deployment a new generation.
func TestWorkloadChild(t *testing.T) {
	d := desire(t, demoOwner(), plain, "east")
	want := `{"apiVersion":"apps/v1","kind":"Deployment",
		"metadata":{"name":"demo-east","namespace":"shop",
			"labels":{"team":"x","superedge.io/grid-selector":"demo","superedge.io/grid-uniq-key":"zone1",
				"superedge.io/grid-site":"east"},
			"annotations":{"superedge.io/applied-digest":"dada5eaeefd5a1412f9eca804fc029b4"},
			"ownerReferences":[{"apiVersion":"superedge.io/v1","kind":"DeploymentGrid","name":"demo","uid":"u1",
				"controller":true,"blockOwnerDeletion":true}]},
		"spec":{"selector":{"matchLabels":{"app":"x"}},"template":{"metadata":{"labels":{"app":"x"}},
			"spec":{"nodeSelector":{"zone1":"east"},"containers":[{"name":"c","image":"i"}]}}}}`
	var expected map[string]any
	if err := json.Unmarshal([]byte(want), &expected); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(expected, d.Object); diff != "" {
		t.Error(diff)
	}
}

// TestNothingIsSharedBetweenSites: with a nodeSelector of the user's, SuperEdge's controller put all sites' pods
// into the last site, and wrote the children's labels into the grid's.
func TestNothingIsSharedBetweenSites(t *testing.T) {
	const template = `{"template":{"spec":{"nodeSelector":{"disk":"ssd"}}}}`
	o := demoOwner()
	spec := &v1.WorkloadGridSpec{GridUniqKey: "zone1", Template: raw(template)}
	templates := NewTemplates("", spec, Cluster{})
	children := map[string]*unstructured.Unstructured{}
	for _, site := range []string{"east", "west", "north"} {
		decoded, p := templates.Of(site)
		if p != nil {
			t.Fatal(p)
		}
		if children[site], p = RenderSite(o, site, o.Name+"-"+site, decoded, map[string]string{}); p != nil {
			t.Fatal(p)
		}
	}
	for site, d := range children {
		got, _, err := unstructured.NestedStringMap(d.Object, "spec", "template", "spec", "nodeSelector")
		if err != nil {
			t.Fatal(err)
		}
		if want := map[string]string{"disk": "ssd", "zone1": site}; !maps.Equal(got, want) {
			t.Errorf("site %s: got the nodeSelector %v", site, got)
		}
	}
	if string(spec.Template.Raw) != template || !maps.Equal(o.Labels, demoOwner().Labels) ||
		!maps.Equal(o.Annotations, demoOwner().Annotations) {
		t.Errorf("the grid has changed: %s %v %v", spec.Template.Raw, o.Labels, o.Annotations)
	}
}

// TestUnknownFieldsReachTheChild, and replicas that are left out stay so: SuperEdge's controller crashed on them.
func TestUnknownFieldsReachTheChild(t *testing.T) {
	d := desire(t, demoOwner(), `{"newIn2030":{"deep":[{"x":1}]},"template":{"spec":{"alsoNew":"y"}}}`, "east")
	spec, _ := d.Object["spec"].(map[string]any)
	if got, _, _ := unstructured.NestedSlice(spec, "newIn2030", "deep"); len(got) != 1 {
		t.Errorf("got %v", spec)
	}
	if got, _, _ := unstructured.NestedString(spec, "template", "spec", "alsoNew"); got != "y" {
		t.Errorf("got %v", spec)
	}
	if _, ok := spec["replicas"]; ok {
		t.Errorf("got replicas in %v", spec)
	}
}

// TestSourceOfAnOlderRevision: the replicas are those of the spec, whatever the revision says. Only in a rollout does
// the child have the revision's name. A workload that exists keeps its selector.
func TestSourceOfAnOlderRevision(t *testing.T) {
	templates := func(more string, rollout *v1.Rollout) *Templates {
		template := "{" + more + plain[1:]
		return NewTemplates("", &v1.WorkloadGridSpec{GridUniqKey: "zone1", Template: raw(template), Rollout: rollout},
			Cluster{})
	}
	older := templates(`"replicas":9,"minReadySeconds":1,`, nil)
	older.Revision = "demo-1"
	for name, c := range map[string]struct {
		scale              string
		inRollout, selects bool
		replicas           int64
	}{
		"scaled":                  {`"replicas":2,`, true, false, 2},
		"scaled by others":        {"", true, true, 0},
		"scaled to 0, no rollout": {`"replicas":0,`, false, true, 0},
	} {
		var rollout *v1.Rollout
		if c.inRollout {
			rollout = &v1.Rollout{}
		}
		names := Assign(demoOwner(), []string{"east"}, func(string) *Existing {
			return &Existing{SelectsSite: c.selects}
		})
		child, err := names.Render("east", older, templates(c.scale, rollout))
		if err != nil {
			t.Fatal(err)
		}
		spec, _ := child.Object["spec"].(map[string]any)
		replicas, _, _ := unstructured.NestedInt64(spec, "replicas")
		if replicas != c.replicas || SetsReplicas(child) != (c.scale != "") || spec["minReadySeconds"] != int64(1) {
			t.Errorf("%s: got %v", name, spec)
		}
		if ExistingOf(child).SelectsSite != c.selects {
			t.Errorf("%s: got the selector %v", name, spec["selector"])
		}
		if _, noted := child.GetAnnotations()[v1.AnnotationRevision]; noted != c.inRollout {
			t.Errorf("%s: got the annotations %v", name, child.GetAnnotations())
		}
	}
}

func TestKeyWithASlash(t *testing.T) {
	o := demoOwner()
	o.Key = "topology.kubernetes.io/zone"
	d := desire(t, o, plain, "eu-1")
	if got := d.GetLabels()[v1.LabelGridUniqKey]; got != "topology.kubernetes.io_zone" {
		t.Errorf("got the label %q", got)
	}
	if got := d.GetAnnotations()[v1.AnnotationGridUniqKey]; got != o.Key {
		t.Errorf("got the annotation %q", got)
	}
	selector, _, _ := unstructured.NestedStringMap(d.Object, "spec", "template", "spec", "nodeSelector")
	if selector[o.Key] != "eu-1" {
		t.Errorf("got the nodeSelector %v", selector)
	}
}

func TestServiceChild(t *testing.T) {
	o := demoOwner()
	o.GridKind = v1.ServiceGridKind
	o.Annotations = map[string]string{
		"note": "y", "kubectl.kubernetes.io/last-applied-configuration": "{}", "topologyKeys": "mine",
		v1.AnnotationHold: "it is the grid's", v1.AnnotationApproved: "x",
	}
	d, p := RenderService(o, raw(`{"selector":{"app":"x"},"ports":[{"port":80}]}`))
	if p != nil {
		t.Fatal(p)
	}
	if d.GetName() != "demo-svc" || d.GetKind() != "Service" {
		t.Errorf("got %s %s", d.GetKind(), d.GetName())
	}
	if want := map[string]string{
		"note": "y", "topologyKeys": `["zone1"]`, v1.AnnotationAppliedDigest: "b5aa4f386af733c9846f343ba51ea0fb",
	}; !maps.Equal(d.GetAnnotations(), want) {
		t.Errorf("got the annotations %v", d.GetAnnotations())
	}
	if d.GetLabels()[v1.LabelGridSelector] != "demo" || d.GetLabels()["team"] != "x" {
		t.Errorf("got the labels %v", d.GetLabels())
	}
}

func TestTemplates(t *testing.T) {
	spec := &v1.WorkloadGridSpec{
		GridUniqKey: "zone1", Template: raw(`{"a":"template"}`), DefaultTemplateName: "small",
		TemplatePool: map[string]v1.Template{
			"small": raw(`{"a":"small"}`), "big": raw(`{"a":"big"}`), "broken": raw(`[1]`),
		},
		Templates: map[string]v1.TemplateName{
			"east": "big", "west": "default", "south": "", "north": "absent", "up": "broken",
		},
	}
	for site, want := range map[string]string{
		"east": "big", "west": "template", "south": "template", "other": "small",
		"north": v1.ReasonTemplateNotFound, "up": v1.ReasonInvalidTemplate,
	} {
		got, p := NewTemplates("", spec, Cluster{}).Of(site)
		switch {
		case p != nil && ErrorFrom(p).Reason != want:
			t.Errorf("%s: got %+v, want %s", site, p, want)
		case p == nil && got["a"] != want:
			t.Errorf("%s: got %v, want %s", site, got, want)
		}
	}
	spec.DefaultTemplateName = "gone"
	if _, p := NewTemplates("", spec, Cluster{}).Of("other"); p == nil ||
		!strings.Contains(ErrorFrom(p).Message, `spec.templatePool.gone`) ||
		!strings.Contains(ErrorFrom(p).Message, "defaultTemplateName") {
		t.Errorf("got %+v", p)
	}
	spec.DefaultTemplateName, spec.Template = "", v1.Template{}
	if _, p := NewTemplates("", spec, Cluster{}).Of("other"); p == nil ||
		ErrorFrom(p).Reason != v1.ReasonTemplateNotFound {
		t.Errorf("without spec.template: got %+v", p)
	}
	if unused := UnusedTemplates(spec); !slices.Equal(unused, []string{"small"}) {
		t.Errorf("unused: got %v", unused)
	}
}

// TestNames: where grid and site make no name another one is found; where the grid's own cannot be the value of a label
// none is.
func TestNames(t *testing.T) {
	for _, k := range []v1.GridKind{v1.DeploymentGridKind, v1.StatefulSetGridKind, v1.DaemonSetGridKind} {
		grid, o := k.Kind, demoOwner()
		o.GridKind = k
		for _, site := range []string{"east", "v1.2", "East", "shop_1", strings.Repeat("u", 63)} {
			_, err := RenderSite(o, site, k.ChildName("demo", site), map[string]any{}, map[string]string{})
			if err != nil {
				t.Errorf("%s, site %s: %v", grid, site, err)
			}
		}
		o.Name = strings.Repeat("g", 64)
		_, err := RenderSite(o, "east", k.ChildName(o.Name, "east"), map[string]any{}, map[string]string{})
		if told := ErrorFrom(err); told.Reason != v1.ReasonInvalidName || !strings.Contains(told.Message, "63") {
			t.Errorf("%s: got %v", grid, err)
		}
	}
	o := demoOwner()
	o.GridKind, o.Name = v1.ServiceGridKind, strings.Repeat("g", 60)
	if _, p := RenderService(o, raw(`{}`)); p == nil || ErrorFrom(p).Reason != v1.ReasonInvalidName {
		t.Errorf("Service: got %+v", p)
	}
}

func TestBadTemplates(t *testing.T) {
	for template, says := range map[string]string{
		`{"template":[]}`:                              "template.template is not an object",
		`{"template":{"spec":"x"}}`:                    "template.template.spec is not an object",
		`{"template":{"spec":{"nodeSelector":["x"]}}}`: "nodeSelector is not an object",
	} {
		decoded, p := decodeTemplate(raw(template), "spec.template")
		if p != nil {
			t.Fatal(p)
		}
		if _, p = RenderSite(demoOwner(), "east", "demo-east", decoded, map[string]string{}); p == nil ||
			ErrorFrom(p).Reason != v1.ReasonInvalidTemplate || !strings.Contains(ErrorFrom(p).Message, says) {
			t.Errorf("%s: got %+v", template, p)
		}
	}
}

func TestCheckKey(t *testing.T) {
	for key, ok := range map[string]bool{
		"zone1": true, "topology.kubernetes.io/zone": true, "": false, "a/b/c": false, "no way": false, "/x": false,
	} {
		if p := CheckKey(key); (p == nil) != ok {
			t.Errorf("%q: got %+v", key, p)
		}
	}
}
