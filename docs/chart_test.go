package docs

import (
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/application-grid/application-grid/docs/docstest"
)

const chart = "charts/application-grid/"

// TestChartCopies: what the chart copies of manifests/ is the same there.
func TestChartCopies(t *testing.T) {
	t.Parallel()
	for from, to := range map[string]string{
		"manifests/crds/superedge.io_*.yaml": "crds/", "manifests/monitoring/alerts.yaml": "files/",
		"manifests/monitoring/dashboard.json": "files/", "manifests/kubeadm/kube-proxy-away.yaml": "files/",
	} {
		paths, err := filepath.Glob("../" + from)
		if err != nil || len(paths) == 0 {
			t.Fatalf("%s: %d files, %v", from, len(paths), err)
		}
		for _, path := range paths {
			path = strings.TrimPrefix(path, "../")
			copied := chart + to + filepath.Base(path)
			if docstest.Page(t, copied) != docstest.Page(t, path) {
				t.Errorf("%s is not %s: run make generate", copied, path)
			}
		}
	}
}

// TestChartValues: the chart's page has each of its values with its default, and the schema describes each and nothing
// else.
func TestChartValues(t *testing.T) {
	t.Parallel()
	var values map[string]any
	if err := yaml.UnmarshalStrict([]byte(docstest.Page(t, chart+"values.yaml")), &values); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{}
	flatten(want, "", values)
	got := map[string]string{}
	for _, row := range docstest.Table(t, chart+"README.md", "## Values")[2:] {
		name, value := strings.Trim(row[0], " `"), strings.TrimSpace(row[1])
		if strings.TrimSpace(row[2]) == "" {
			t.Errorf("%s has no meaning", name)
		}
		if value != "see `values.yaml`" {
			value = strings.Trim(value, "`")
		}
		got[name] = value
	}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if got[name] != want[name] {
			t.Errorf("the page has %s with the default %q, and it is %q", name, got[name], want[name])
		}
	}
	for name := range got {
		if _, found := want[name]; !found {
			t.Errorf("the page has %s, which is no value", name)
		}
	}

	var schema map[string]any
	if err := json.Unmarshal([]byte(docstest.Page(t, chart+"values.schema.json")), &schema); err != nil {
		t.Fatal(err)
	}
	definitions, _ := schema["definitions"].(map[string]any)
	described := map[string]bool{}
	describe(t, described, definitions, "", schema)
	delete(described, "global") // helm's own
	for name := range want {
		if !described[name] {
			t.Errorf("the schema does not describe %s", name)
		}
	}
	for name := range described {
		if _, found := want[name]; !found {
			t.Errorf("the schema describes %s, which is no value", name)
		}
	}
}

// leaves are values that are maps, and are told of as a whole.
var leaves = []string{"nodeSelector", "resources", "labels"}

// flatten writes the paths of all values, each with its default as the page has it.
func flatten(into map[string]string, path string, value any) {
	last := path[strings.LastIndex(path, ".")+1:]
	object, isObject := value.(map[string]any)
	switch {
	case isObject && !slices.Contains(leaves, last):
		for name, inner := range object {
			flatten(into, strings.TrimPrefix(path+"."+name, "."), inner)
		}
	case last == "resources":
		into[path] = "see `values.yaml`"
	case last == "labels":
		for name, label := range object {
			into[path] = fmt.Sprintf("%s: %v", name, label)
			if name == "grafana_dashboard" {
				into[path] = fmt.Sprintf("%s: %q", name, label)
			}
		}
	default:
		data, err := json.Marshal(value)
		if err != nil {
			panic(err)
		}
		if text := string(data); text == `""` || !strings.HasPrefix(text, `"`) {
			into[path] = text
		} else {
			into[path] = strings.Trim(text, `"`)
		}
	}
}

// describe writes the paths of all values that a schema describes.
func describe(t *testing.T, into map[string]bool, definitions map[string]any, path string, schema map[string]any) {
	t.Helper()
	if name, found := schema["$ref"].(string); found {
		definition, ok := definitions[strings.TrimPrefix(name, "#/definitions/")].(map[string]any)
		if !ok {
			t.Fatalf("%s: there is no %s", path, name)
		}
		schema = definition
	}
	properties, found := schema["properties"].(map[string]any)
	if !found {
		into[path] = true
		return
	}
	if schema["additionalProperties"] != false {
		t.Errorf("the schema takes anything in %q", path)
	}
	for name, inner := range properties {
		object, ok := inner.(map[string]any)
		if !ok {
			t.Fatalf("%s.%s is no schema", path, name)
		}
		describe(t, into, definitions, strings.TrimPrefix(path+"."+name, "."), object)
	}
}
