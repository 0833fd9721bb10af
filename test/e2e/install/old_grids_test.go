package install

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/application-grid/application-grid/test/cluster"
)

// before6 are the rules that the CRDs have since version 6: a path below spec, and what was there before.
var before6 = []struct {
	path []string
	was  any
}{
	{[]string{"defaultTemplateName", "pattern"}, nil},
	{[]string{"templates", "additionalProperties", "pattern"}, nil},
	{[]string{"overrides", "items", "properties", "sites", "properties", "nodeSelector"}, anySelector},
	{[]string{"rollout", "properties", "waves", "items", "properties", "sites", "properties", "nodeSelector"}, anySelector},
}

var anySelector = map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true}

// TestOldGrids: a grid that an older CRD took and the present one would not is read, changed elsewhere and mended; it
// cannot be made, or be changed into another such one.
func TestOldGrids(t *testing.T) {
	t.Parallel()
	f := start(t, cluster.Options{APIViewOnly: true, NoKwok: true, NoScheduler: true})
	shipped := manifests + "/crds/superedge.io_deploymentgrids.yaml"
	f.applyCRDBefore6(shipped)

	spec := func(name, more string) string {
		return `{apiVersion: superedge.io/v1, kind: DeploymentGrid, metadata: {name: ` + name + `}, spec: {gridUniqKey: zone1, template: {replicas: 1}, ` +
			more + `}}`
	}
	odd := map[string]string{ // by the name of the grid
		"empty":    `overrides: [{name: all, sites: {nodeSelector: {}}, replicas: 2}, {name: lab, sites: {names: [lab]}, replicas: 3}]`,
		"empties":  `rollout: {waves: [{name: all, sites: {nodeSelector: {matchLabels: {}}}}, {name: rest}]}`,
		"operator": `overrides: [{name: all, sites: {nodeSelector: {matchExpressions: [{key: size, operator: in, values: [big]}]}}, replicas: 2}]`,
		"values":   `overrides: [{name: all, sites: {nodeSelector: {matchExpressions: [{key: size, operator: In}]}}, replicas: 2}]`,
		"named":    `templatePool: {x/y: {replicas: 2}, z: {replicas: 3}}, templates: {east: x/y, west: z}`,
		"default":  `templatePool: {x/y: {replicas: 2}}, defaultTemplateName: x/y`,
	}
	for name, more := range odd {
		f.Must(f.apply(spec(name, more)))
	}
	f.kubectl("apply", "-f", shipped)
	f.Eventually("the present CRD is in effect", func() error {
		_, err := f.tryKubectl(spec("probe", odd["empty"]), "create", "--dry-run=server", "-f", "-")
		if err == nil {
			return os.ErrExist
		}
		return nil
	})
	refusals := map[string]string{
		"empty": "give matchLabels or matchExpressions", "empties": "give matchLabels or matchExpressions",
		"operator": `Unsupported value: "in"`, "named": `spec.templates.east in body should match`,
		"values":  "the operators In and NotIn need values",
		"default": "spec.defaultTemplateName in body should match",
	}
	refused := func(what, name string, err error) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), refusals[name]) {
			t.Errorf("%s, %s: want it refused with %q, got %v", name, what, refusals[name], err)
		}
	}
	patch := func(name, patch string, more ...string) error {
		_, err := f.tryKubectl("", append([]string{"patch", "deploymentgrid", name, "--type=merge", "-p", patch}, more...)...)
		return err
	}
	for name, more := range odd {
		_, err := f.tryKubectl(spec("new-"+name, more), "create", "-f", "-")
		refused("made", name, err)
		f.Must(patch(name, `{"spec":{"template":{"replicas":5}}}`))
		f.Must(patch(name, `{"metadata":{"labels":{"a":"b"}}}`))
		f.Must(patch(name, `{"status":{"sites":1,"readySites":1}}`, "--subresource=status"))
		if got := f.kubectl("get", "deploymentgrid", name, "-o", "jsonpath={.spec.template.replicas}"); got != "5" {
			t.Errorf("%s: got %s", name, got)
		}
	}
	// Beside what is odd, also in the same list or map; applied again; mended; and not worse.
	f.Must(f.apply(spec("empty", strings.Replace(odd["empty"], "replicas: 3", "replicas: 4", 1))))
	f.Must(f.apply(spec("empties", strings.Replace(odd["empties"], "{name: rest}", "{name: lab, sites: {names: [lab]}}, {name: rest}", 1))))
	f.Must(f.apply(spec("operator", odd["operator"])))
	f.Must(patch("named", `{"spec":{"templates":{"north":"z","west":null},"templatePool":{"v w":{}}}}`))
	refused("another site", "named", patch("named", `{"spec":{"templates":{"east":"v w"}}}`))
	refused("another empty one", "empties", patch("empties", `{"spec":{"rollout":{"waves":[{"name":"new","sites":{"nodeSelector":{}}}]}}}`))
	refused("written again", "operator", patch("operator", `{"spec":{"overrides":[{"name":"all","sites":{"nodeSelector":{"matchExpressions":[{"key":"other","operator":"in","values":["big"]}]}},"replicas":2}]}}`))
	f.Must(patch("operator", `{"spec":{"overrides":[{"name":"all","sites":{"nodeSelector":{"matchExpressions":[{"key":"size","operator":"In","values":["big"]}]}},"replicas":2}]}}`))
	f.Must(patch("default", `{"spec":{"defaultTemplateName":null}}`))
	f.ownTogether()
}

// applyCRDBefore6 applies the CRD as it was before its version 6.
func (f *fixture) applyCRDBefore6(shipped string) {
	f.Helper()
	text, err := os.ReadFile(shipped)
	f.Must(err)
	crd := &unstructured.Unstructured{}
	f.Must(yaml.UnmarshalStrict(text, &crd.Object))
	versions, _, err := unstructured.NestedSlice(crd.Object, "spec", "versions")
	f.Must(err)
	version, ok := versions[0].(map[string]any)
	if !ok {
		f.Fatalf("got %T", versions[0])
	}
	for _, rule := range before6 {
		path := append([]string{"schema", "openAPIV3Schema", "properties", "spec", "properties"}, rule.path...)
		if _, found, err := unstructured.NestedFieldNoCopy(version, path...); !found || err != nil {
			f.Fatalf("there is no %q: %v", rule.path, err)
		}
		unstructured.RemoveNestedField(version, path...)
		if rule.was != nil {
			f.Must(unstructured.SetNestedField(version, rule.was, path...))
		}
	}
	f.Must(unstructured.SetNestedSlice(crd.Object, versions, "spec", "versions"))
	old, err := json.Marshal(crd)
	f.Must(err)
	_, err = f.tryKubectl(string(old), "apply", "-f", "-")
	f.Must(err)
	f.kubectl("wait", "--for=condition=Established", "crd/deploymentgrids.superedge.io")
}

// ownTogether has two managers own parts of one list: each has its own elements, and the order is the one that is
// applied.
func (f *fixture) ownTogether() {
	f.Helper()
	apply := func(manager, waves string) {
		f.Helper()
		_, err := f.tryKubectl(`{apiVersion: superedge.io/v1, kind: DeploymentGrid, metadata: {name: two}, spec: {gridUniqKey: zone1, rollout: {waves: [`+waves+`]}}}`,
			"apply", "--server-side", "--field-manager="+manager, "-f", "-")
		f.Must(err)
	}
	wave := func(name string) string { return `{name: ` + name + `, sites: {names: [` + name + `]}}` }
	apply("ops", wave("a")+", "+wave("b"))
	apply("security", wave("c"))
	apply("ops", wave("b")+", "+wave("a"))
	if got := f.kubectl("get", "deploymentgrid", "two", "-o", "jsonpath={.spec.rollout.waves[*].name}"); !strings.Contains(got, "b") ||
		strings.Index(got, "b") > strings.Index(got, "a") || !strings.Contains(got, "c") {
		f.Errorf("got the waves %s", got)
	}
}
