package v1

import (
	"encoding/json"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

func TestKeyLabelValue(t *testing.T) {
	long := "a-prefix-that-is-rather-long.example.com/and-a-name-that-is-rather-long-too"
	for key, want := range map[string]string{
		"zone1":                       "zone1",
		"Zone_1.x":                    "Zone_1.x",
		"topology.kubernetes.io/zone": "topology.kubernetes.io_zone",
		long:                          "",
	} {
		got := KeyLabelValue(key)
		if problems := validation.IsValidLabelValue(got); len(problems) > 0 {
			t.Errorf("%s: %q is no valid value: %v", key, got, problems)
		}
		if key != long && got != want {
			t.Errorf("%s: got %q, want %q", key, got, want)
		}
	}
	if KeyLabelValue(long) == KeyLabelValue(long+"2") {
		t.Error("two long keys have one label")
	}
}

// TestTemplateIsKept: what this build does not know of a template is there after reading and writing it.
func TestTemplateIsKept(t *testing.T) {
	const in = `{"replicas":1,"newIn2030":{"deep":[1,{"x":null}]},"big":9007199254740993}`
	var spec WorkloadGridSpec
	if err := json.Unmarshal([]byte(`{"gridUniqKey":"zone1","template":`+in+`,"templatePool":{"a":`+in+`}}`),
		&spec); err != nil {
		t.Fatal(err)
	}
	out, err := json.Marshal(spec.DeepCopy())
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Count(string(out), in); got != 2 {
		t.Errorf("got %s", out)
	}
	if out, err := json.Marshal(WorkloadGridSpec{GridUniqKey: "zone1"}); err != nil ||
		string(out) != `{"gridUniqKey":"zone1"}` {
		t.Errorf("without templates: got %s, %v", out, err)
	}
}

// TestForeignFields: what the controller owns as well is nobody else's, and neither are subresources and handed over
// replicas.
func TestForeignFields(t *testing.T) {
	entry := func(manager, subresource, fields string) metav1.ManagedFieldsEntry {
		return metav1.ManagedFieldsEntry{
			Manager: manager, Subresource: subresource, FieldsV1: metav1.NewFieldsV1(fields),
		}
	}
	got := ForeignFields([]metav1.ManagedFieldsEntry{
		entry(FieldManager, "", `{"f:spec":{"f:paused":{},"f:template":{"f:spec":{"f:hostname":{}}}}}`),
		entry(HandOverManager, "", `{"f:spec":{"f:replicas":{}}}`),
		entry("hpa", "scale", `{"f:spec":{"f:replicas":{}}}`),
		entry("kubectl", "", `{"f:spec":{"f:paused":{}},"f:metadata":{"f:labels":{"f:x":{}}}}`),
		entry("argo", "", `{"f:spec":{"f:paused":{},"f:strategy":{"f:type":{}}}}`),
		entry("argo", "", `{"f:spec":{"f:template":{"f:spec":{"f:containers":{"k:{\"name\":\"c\"}":{"f:image":{}}}}},
			"f:minReadySeconds":{},"f:revisionHistoryLimit":{}}}`),
		entry("odd", "", `[]`),
		{Manager: "none"},
	})
	if want := "argo: spec.minReadySeconds, spec.revisionHistoryLimit, spec.strategy.type and 1 more"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
