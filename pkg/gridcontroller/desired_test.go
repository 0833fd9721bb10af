package gridcontroller

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
)

// raw is a template.
func raw(text string) v1.Template { return v1.Template{Raw: []byte(text)} }

const plain = `{"selector":{"matchLabels":{"app":"x"}},"template":{"metadata":{"labels":{"app":"x"}},"spec":{"containers":[{"name":"c","image":"i"}]}}}`

func kindOf(t *testing.T, grid string) workload {
	t.Helper()
	for _, w := range workloads {
		if w.grid == grid {
			return w
		}
	}
	t.Fatalf("there is no %s", grid)
	return workload{}
}

func demoOwner() *owner {
	return &owner{kind: "DeploymentGrid", name: "demo", namespace: "shop", uid: "u1", key: "zone1", labels: map[string]string{"team": "x"}, annotations: map[string]string{"note": "y"}}
}

func desire(t *testing.T, o *owner, template, unit string) *desired {
	t.Helper()
	decoded, p := decodeTemplate(raw(template), "spec.template")
	if p != nil {
		t.Fatal(p)
	}
	d, p := workloadChild(o, kindOf(t, "DeploymentGrid").kind, unit, decoded)
	if p != nil {
		t.Fatal(p)
	}
	return d
}

func TestWorkloadChild(t *testing.T) {
	d := desire(t, demoOwner(), plain, "east")
	want := `{"apiVersion":"apps/v1","kind":"Deployment",
		"metadata":{"name":"demo-east","namespace":"shop",
			"labels":{"team":"x","superedge.io/grid-selector":"demo","superedge.io/grid-uniq-key":"zone1"},
			"ownerReferences":[{"apiVersion":"superedge.io/v1","kind":"DeploymentGrid","name":"demo","uid":"u1","controller":true,"blockOwnerDeletion":true}]},
		"spec":{"selector":{"matchLabels":{"app":"x"}},"template":{"metadata":{"labels":{"app":"x"}},
			"spec":{"nodeSelector":{"zone1":"east"},"containers":[{"name":"c","image":"i"}]}}}}`
	var expected map[string]any
	if err := json.Unmarshal([]byte(want), &expected); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(expected, d.object.Object); diff != "" {
		t.Error(diff)
	}
}

// TestNothingIsSharedBetweenUnits: with a nodeSelector of the user's, SuperEdge's controller put all units' pods
// into the last unit, and wrote the children's labels into the grid's.
func TestNothingIsSharedBetweenUnits(t *testing.T) {
	const template = `{"template":{"spec":{"nodeSelector":{"disk":"ssd"}}}}`
	o := demoOwner()
	spec := &v1.WorkloadGridSpec{GridUniqKey: "zone1", Template: raw(template)}
	templates := &templates{spec: spec, decoded: map[string]map[string]any{}}
	children := map[string]*desired{}
	for _, unit := range []string{"east", "west", "north"} {
		decoded, p := templates.of(unit)
		if p != nil {
			t.Fatal(p)
		}
		if children[unit], p = workloadChild(o, kindOf(t, "DeploymentGrid").kind, unit, decoded); p != nil {
			t.Fatal(p)
		}
	}
	for unit, d := range children {
		got, _, err := unstructured.NestedStringMap(d.object.Object, "spec", "template", "spec", "nodeSelector")
		if err != nil {
			t.Fatal(err)
		}
		if want := map[string]string{"disk": "ssd", "zone1": unit}; !maps.Equal(got, want) {
			t.Errorf("unit %s: got the nodeSelector %v", unit, got)
		}
	}
	if string(spec.Template.Raw) != template || !maps.Equal(o.labels, demoOwner().labels) || !maps.Equal(o.annotations, demoOwner().annotations) {
		t.Errorf("the grid has changed: %s %v %v", spec.Template.Raw, o.labels, o.annotations)
	}
}

// TestUnknownFieldsReachTheChild, and replicas that are left out stay so: SuperEdge's controller crashed on them.
func TestUnknownFieldsReachTheChild(t *testing.T) {
	d := desire(t, demoOwner(), `{"newIn2030":{"deep":[{"x":1}]},"template":{"spec":{"alsoNew":"y"}}}`, "east")
	spec, _ := d.object.Object["spec"].(map[string]any)
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

// TestNoMarksInTheChild: SuperEdge's controller wrote a hash over Go structs into it.
func TestNoMarksInTheChild(t *testing.T) {
	if annotations := desire(t, demoOwner(), plain, "east").object.GetAnnotations(); len(annotations) > 0 {
		t.Errorf("got annotations %v", annotations)
	}
}

func TestKeyWithASlash(t *testing.T) {
	o := demoOwner()
	o.key = "topology.kubernetes.io/zone"
	d := desire(t, o, plain, "eu-1")
	if got := d.object.GetLabels()[v1.LabelGridUniqKey]; got != "topology.kubernetes.io_zone" {
		t.Errorf("got the label %q", got)
	}
	if got := d.object.GetAnnotations()[v1.AnnotationGridUniqKey]; got != o.key {
		t.Errorf("got the annotation %q", got)
	}
	selector, _, _ := unstructured.NestedStringMap(d.object.Object, "spec", "template", "spec", "nodeSelector")
	if selector[o.key] != "eu-1" {
		t.Errorf("got the nodeSelector %v", selector)
	}
}

func TestServiceChild(t *testing.T) {
	o := demoOwner()
	o.kind = "ServiceGrid"
	o.annotations = map[string]string{"note": "y", "kubectl.kubernetes.io/last-applied-configuration": "{}", "topologyKeys": "mine"}
	d, p := serviceChild(o, raw(`{"selector":{"app":"x"},"ports":[{"port":80}]}`))
	if p != nil {
		t.Fatal(p)
	}
	if d.object.GetName() != "demo-svc" || d.object.GetKind() != "Service" {
		t.Errorf("got %s %s", d.object.GetKind(), d.object.GetName())
	}
	if want := map[string]string{"note": "y", "topologyKeys": `["zone1"]`}; !maps.Equal(d.object.GetAnnotations(), want) {
		t.Errorf("got the annotations %v", d.object.GetAnnotations())
	}
	if d.object.GetLabels()[v1.LabelGridSelector] != "demo" || d.object.GetLabels()["team"] != "x" {
		t.Errorf("got the labels %v", d.object.GetLabels())
	}
}

func TestTemplates(t *testing.T) {
	spec := &v1.WorkloadGridSpec{
		GridUniqKey: "zone1", Template: raw(`{"a":"template"}`), DefaultTemplateName: "small",
		TemplatePool: map[string]v1.Template{"small": raw(`{"a":"small"}`), "big": raw(`{"a":"big"}`), "broken": raw(`[1]`)},
		Templates:    map[string]v1.TemplateName{"east": "big", "west": "default", "south": "", "north": "absent", "up": "broken"},
	}
	for unit, want := range map[string]string{
		"east": "big", "west": "template", "south": "template", "other": "small",
		"north": v1.ReasonTemplateNotFound, "up": v1.ReasonInvalidTemplate,
	} {
		got, p := (&templates{spec: spec, decoded: map[string]map[string]any{}}).of(unit)
		switch {
		case p != nil && p.reason != want:
			t.Errorf("%s: got %+v, want %s", unit, p, want)
		case p == nil && got["a"] != want:
			t.Errorf("%s: got %v, want %s", unit, got, want)
		}
	}
	spec.DefaultTemplateName = "gone"
	if _, p := (&templates{spec: spec, decoded: map[string]map[string]any{}}).of("other"); p == nil || !strings.Contains(p.message, `"gone"`) || !strings.Contains(p.message, "defaultTemplateName") {
		t.Errorf("got %+v", p)
	}
	spec.DefaultTemplateName, spec.Template = "", v1.Template{}
	if _, p := (&templates{spec: spec, decoded: map[string]map[string]any{}}).of("other"); p == nil || p.reason != v1.ReasonTemplateNotFound {
		t.Errorf("without spec.template: got %+v", p)
	}
	unused := unusedTemplates(spec)
	slices.Sort(unused)
	if !slices.Equal(unused, []string{"small"}) {
		t.Errorf("unused: got %v", unused)
	}
}

// TestNames are told per unit.
func TestNames(t *testing.T) {
	tests := []struct {
		kind, grid, unit string
		says             string
	}{
		{"DeploymentGrid", "demo", "east", ""},
		{"DeploymentGrid", "demo", "v1.2", ""},
		{"DeploymentGrid", "demo", "East", "lowercase"},
		{"DeploymentGrid", "demo", "shop_1", "lowercase"},
		{"DeploymentGrid", strings.Repeat("g", 64), "east", "63"},
		{"StatefulSetGrid", "demo", "east", ""},
		{"StatefulSetGrid", "demo", "v1.2", "dots"},
		{"StatefulSetGrid", "demo", strings.Repeat("u", 47), ""},
		{"StatefulSetGrid", "demo", strings.Repeat("u", 48), "52"},
		{"DaemonSetGrid", "demo", strings.Repeat("u", 63), ""},
	}
	for _, test := range tests {
		o := demoOwner()
		o.name = test.grid
		_, p := workloadChild(o, kindOf(t, test.kind).kind, test.unit, map[string]any{})
		switch {
		case p == nil && test.says != "":
			t.Errorf("%+v: accepted", test)
		case p != nil && (test.says == "" || p.reason != v1.ReasonInvalidName || !strings.Contains(p.message, test.says)):
			t.Errorf("%+v: got %+v", test, p)
		}
	}
	o := demoOwner()
	o.name = strings.Repeat("g", 60)
	if _, p := serviceChild(o, raw(`{}`)); p == nil || p.reason != v1.ReasonInvalidName {
		t.Errorf("Service: got %+v", p)
	}
}

func TestBadTemplates(t *testing.T) {
	for template, says := range map[string]string{
		`{"template":[]}`:                                       "template.template is not an object",
		`{"template":{"spec":"x"}}`:                             "template.template.spec is not an object",
		`{"template":{"spec":{"nodeSelector":["x"]}}}`:          "nodeSelector is not an object",
		`{"template":{"spec":{"nodeSelector":{"a":1}}}}`:        "quote it",
		`{"template":{"spec":{"nodeSelector":{"a":"no way"}}}}`: "cannot be the label",
	} {
		decoded, p := decodeTemplate(raw(template), "spec.template")
		if p != nil {
			t.Fatal(p)
		}
		if _, p = workloadChild(demoOwner(), kindOf(t, "DeploymentGrid").kind, "east", decoded); p == nil || p.reason != v1.ReasonInvalidTemplate || !strings.Contains(p.message, says) {
			t.Errorf("%s: got %+v", template, p)
		}
	}
}

func TestCheckKey(t *testing.T) {
	for key, ok := range map[string]bool{"zone1": true, "topology.kubernetes.io/zone": true, "": false, "a/b/c": false, "no way": false, "/x": false} {
		if p := checkKey(key); (p == nil) != ok {
			t.Errorf("%q: got %+v", key, p)
		}
	}
}

func TestUnits(t *testing.T) {
	u := newUnits()
	u.set("n1", map[string]string{"zone1": "east"})
	u.set("n2", map[string]string{"zone1": "", "rack": "r1"})
	expect := func(key string, want ...string) {
		t.Helper()
		if got := u.of(key); !slices.Equal(got, want) {
			t.Errorf("%s: got %v, want %v", key, got, want)
		}
	}
	expect("zone1", "east")
	expect("rack", "r1")
	changes := func(want string, node string, labels map[string]string) {
		t.Helper()
		got := u.set(node, labels)
		slices.Sort(got)
		if fmt.Sprint(got) != want {
			t.Errorf("%s %v: got %v, want %s", node, labels, got, want)
		}
	}
	changes("[]", "n3", map[string]string{"zone1": "east"}) // one more node in a unit is nothing to a grid
	changes("[]", "n1", map[string]string{"zone1": "east", "other": "x"})
	changes("[zone1]", "n1", map[string]string{"zone1": "west"})
	expect("zone1", "east", "west")
	changes("[rack zone1]", "n2", map[string]string{"zone1": "north"})
	changes("[zone1]", "n3", nil)
	expect("zone1", "north", "west")
	expect("rack")
	expect("other")
}
