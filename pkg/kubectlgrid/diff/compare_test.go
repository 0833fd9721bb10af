package diff

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

func TestRead(t *testing.T) {
	for _, test := range []struct {
		name, text, grids, err string
		others                 int
	}{
		{
			"documents, some of them empty",
			"# only a comment\n---\napiVersion: superedge.io/v1\nkind: ServiceGrid\nmetadata: {name: " +
				"a}\n---\n---\napiVersion: superedge.io/v1\nkind: DeploymentGrid\nmetadata: {name: b}\n",
			"a b", "", 0,
		},
		{
			"other objects",
			"{apiVersion: v1, kind: ConfigMap}\n---\n{apiVersion: superedge.io/v2, kind: " +
				"ServiceGrid}\n---\n{apiVersion: superedge.io/v1, kind: ServiceGrid, metadata: {name: a}}",
			"a", "", 2,
		},
		{
			"a list",
			`{"apiVersion":"v1","kind":"List","items":[{"apiVersion":"superedge.io/v1","kind":"DaemonSetGrid",` +
				`"metadata":{"name":"a"}},{"apiVersion":"v1","kind":"Secret"}]}`,
			"a", "", 1,
		},
		{"nothing", "", "", "found no grid in -", 0},
		{"no object", "a: b", "", "Object 'Kind' is missing", 0},
		{"no apiVersion", "kind: ServiceGrid", "", "found no grid in -", 0},
		{"no YAML", "a: [", "", "reading -: ", 0},
	} {
		grids, others, err := Read([]string{"-"}, strings.NewReader(test.text))
		if (err != nil) != (test.err != "") || (err != nil && !strings.Contains(err.Error(), test.err)) {
			t.Errorf("%s: %v", test.name, err)
		}
		if err != nil {
			continue
		}
		var names []string
		for _, grid := range grids {
			names = append(names, grid.GetName())
		}
		if got := strings.Join(names, " "); got != test.grids || others != test.others {
			t.Errorf("%s: got %q and %d others", test.name, got, others)
		}
	}
}

func object(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	u := &unstructured.Unstructured{}
	if err := yaml.UnmarshalStrict([]byte(text), &u.Object); err != nil {
		t.Fatal(err)
	}
	return u
}

// TestMerge: what kubectl has noted as its own goes with the manifest, and what others have added to the metadata
// stays.
func TestMerge(t *testing.T) {
	live := object(t, `{metadata: {name: a, uid: u, labels: {old: x, others: s}, annotations: {others: z,
		kubectl.kubernetes.io/last-applied-configuration: '{"metadata":{"labels":{"old":"x"},
			"annotations":{"gone":"x"}}}'}},
		spec: {a: 1, b: 2}, status: {c: 3}}`)
	merge(live, object(t, `{metadata: {name: a, labels: {new: x}}, spec: {a: 4}}`))
	want := object(t, `{metadata: {name: a, uid: u, labels: {new: x, others: s}, annotations: {others: z,
		kubectl.kubernetes.io/last-applied-configuration: '{"metadata":{"labels":{"old":"x"},
			"annotations":{"gone":"x"}}}'}},
		spec: {a: 4}, status: {c: 3}}`)
	encoded := func(u *unstructured.Unstructured) string {
		text, err := json.Marshal(u.Object)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	if diff := cmp.Diff(encoded(want), encoded(live)); diff != "" {
		t.Error(diff)
	}
}

func TestReadable(t *testing.T) {
	live := object(t,
		`{metadata: {name: a, generation: 3, resourceVersion: "7", managedFields: [],`+
			` annotations: {superedge.io/applied-digest: x}}, spec: {a: 1}}`)
	if got, want := readable(live), "metadata:\n  name: a\nspec:\n  a: 1\n"; got != want {
		t.Errorf("got %s", got)
	}
}
