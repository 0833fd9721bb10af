package diff

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

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
