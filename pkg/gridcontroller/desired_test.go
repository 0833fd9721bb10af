package gridcontroller

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
)

// raw is a template.
func raw(text string) v1.Template { return v1.Template{Raw: []byte(text)} }

const plain = `{"selector":{"matchLabels":{"app":"x"}},"template":{"metadata":{"labels":{"app":"x"}},"spec":{"containers":[{"name":"c","image":"i"}]}}}`

func kindOf(t *testing.T, grid string) kind {
	t.Helper()
	for _, w := range workloads {
		if w.Kind == grid {
			return w
		}
	}
	t.Fatalf("there is no %s", grid)
	return kind{}
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
	d, p := workloadChild(o, kindOf(t, "DeploymentGrid"), unit, o.name+"-"+unit, decoded)
	if p != nil {
		t.Fatal(p)
	}
	return d
}

func TestWorkloadChild(t *testing.T) {
	d := desire(t, demoOwner(), plain, "east")
	want := `{"apiVersion":"apps/v1","kind":"Deployment",
		"metadata":{"name":"demo-east","namespace":"shop",
			"labels":{"team":"x","superedge.io/grid-selector":"demo","superedge.io/grid-uniq-key":"zone1","superedge.io/grid-unit":"east"},
			"annotations":{"superedge.io/applied-digest":"` + d.digest + `"},
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
		if children[unit], p = workloadChild(o, kindOf(t, "DeploymentGrid"), unit, o.name+"-"+unit, decoded); p != nil {
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

// TestNoMarksInThePods: SuperEdge's controller wrote a hash over Go structs into the pod template, so that a new build
// of it replaced every pod.
func TestNoMarksInThePods(t *testing.T) {
	d := desire(t, demoOwner(), plain, "east")
	spec, err := json.Marshal(d.object.Object["spec"])
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(spec), "superedge.io") || strings.Contains(string(spec), d.digest) {
		t.Errorf("got the spec %s", spec)
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
	if want := map[string]string{"note": "y", "topologyKeys": `["zone1"]`, v1.AnnotationAppliedDigest: d.digest}; !maps.Equal(d.object.GetAnnotations(), want) {
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
		case p != nil && tellable(p).reason != want:
			t.Errorf("%s: got %+v, want %s", unit, p, want)
		case p == nil && got["a"] != want:
			t.Errorf("%s: got %v, want %s", unit, got, want)
		}
	}
	spec.DefaultTemplateName = "gone"
	if _, p := (&templates{spec: spec, decoded: map[string]map[string]any{}}).of("other"); p == nil || !strings.Contains(tellable(p).message, `"gone"`) || !strings.Contains(tellable(p).message, "defaultTemplateName") {
		t.Errorf("got %+v", p)
	}
	spec.DefaultTemplateName, spec.Template = "", v1.Template{}
	if _, p := (&templates{spec: spec, decoded: map[string]map[string]any{}}).of("other"); p == nil || tellable(p).reason != v1.ReasonTemplateNotFound {
		t.Errorf("without spec.template: got %+v", p)
	}
	unused := unusedTemplates(spec)
	slices.Sort(unused)
	if !slices.Equal(unused, []string{"small"}) {
		t.Errorf("unused: got %v", unused)
	}
}

// TestNames: where grid and unit make no name another one is found; where the grid's own cannot be the value of a label
// none is.
func TestNames(t *testing.T) {
	for _, grid := range []string{"DeploymentGrid", "StatefulSetGrid", "DaemonSetGrid"} {
		k := kindOf(t, grid)
		for _, unit := range []string{"east", "v1.2", "East", "shop_1", strings.Repeat("u", 63)} {
			if _, err := workloadChild(demoOwner(), k, unit, k.ChildName("demo", unit), map[string]any{}); err != nil {
				t.Errorf("%s, unit %s: %v", grid, unit, err)
			}
		}
		o := demoOwner()
		o.name = strings.Repeat("g", 64)
		_, err := workloadChild(o, k, "east", k.ChildName(o.name, "east"), map[string]any{})
		if told := tellable(err); told.reason != v1.ReasonInvalidName || !strings.Contains(told.message, "63") {
			t.Errorf("%s: got %v", grid, err)
		}
	}
	o := demoOwner()
	o.name = strings.Repeat("g", 60)
	if _, p := serviceChild(o, raw(`{}`)); p == nil || tellable(p).reason != v1.ReasonInvalidName {
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
		if _, p = workloadChild(demoOwner(), kindOf(t, "DeploymentGrid"), "east", "demo-east", decoded); p == nil || tellable(p).reason != v1.ReasonInvalidTemplate || !strings.Contains(tellable(p).message, says) {
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
	node := func(labels map[string]string) *nodeState { return &nodeState{labels: labels} }
	u.note("n1", node(map[string]string{"zone1": "east"}))
	u.note("n2", node(map[string]string{"zone1": "", "rack": "r1"}))
	expect := func(key string, want ...string) {
		t.Helper()
		if got := u.of(key); !slices.Equal(got, want) {
			t.Errorf("%s: got %v, want %v", key, got, want)
		}
	}
	expect("zone1", "east")
	expect("rack", "r1")
	changes := func(want string, name string, state *nodeState) {
		t.Helper()
		got := u.note(name, state)
		slices.Sort(got)
		if fmt.Sprint(got) != want {
			t.Errorf("%s %v: got %v, want %s", name, state, got, want)
		}
	}
	changes("[]", "n3", node(map[string]string{"zone1": "east"})) // one more node in a unit is nothing to a grid
	changes("[]", "n1", node(map[string]string{"zone1": "east", "other": "x"}))
	changes("[zone1]", "n1", node(map[string]string{"zone1": "west"}))
	expect("zone1", "east", "west")
	changes("[rack zone1]", "n2", node(map[string]string{"zone1": "north"}))
	changes("[zone1]", "n3", nil)
	expect("zone1", "north", "west")
	expect("rack")
	expect("other")

	// A unit is unreachable when its last node is.
	lost := func(unit string) *nodeState {
		return &nodeState{labels: map[string]string{"zone1": unit}, lost: true}
	}
	unreachable := func(want string) {
		t.Helper()
		if got := fmt.Sprint(u.unreachable("zone1")); got != want {
			t.Errorf("unreachable: got %s, want %s", got, want)
		}
	}
	changes("[]", "n4", node(map[string]string{"zone1": "west"}))
	changes("[]", "n4", lost("west"))
	unreachable("map[]")
	changes("[zone1]", "n1", lost("west"))
	unreachable("map[west:true]")
	changes("[]", "n1", lost("west"))
	changes("[]", "n1", lost("north"))
	changes("[zone1]", "n4", node(map[string]string{"zone1": "west"}))
	unreachable("map[]")
	changes("[zone1]", "n2", nil)
	unreachable("map[north:true]")
	changes("[zone1]", "n1", nil)
	unreachable("map[]")
}

func TestNodeState(t *testing.T) {
	for status, lost := range map[corev1.ConditionStatus]bool{"": false, corev1.ConditionTrue: false, corev1.ConditionFalse: false, corev1.ConditionUnknown: true} {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{"a": "b"}, Annotations: map[string]string{"large": "x"}}}
		if status != "" {
			node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeDiskPressure, Status: corev1.ConditionUnknown}, {Type: corev1.NodeReady, Status: status}}
		}
		small, err := onlyState(node)
		if err != nil {
			t.Fatal(err)
		}
		kept := small.(*corev1.Node)
		if s := stateOf(kept); s.lost != lost || s.labels["a"] != "b" || len(kept.Annotations) > 0 || len(kept.Status.Conditions) > 1 {
			t.Errorf("%s: got %+v of %+v", status, s, kept)
		}
	}
}
