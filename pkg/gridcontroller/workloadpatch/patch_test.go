package workloadpatch

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/kube-openapi/pkg/spec3"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/gridcontroller/gridchild"
)

// document is a schema as an API server has it, with a list that no build of this program knows.
const document = `{"openapi":"3.0.0","components":{"schemas":{
	"Deployment":{"type":"object",
		"x-kubernetes-group-version-kind":[{"group":"apps","kind":"Deployment","version":"v1"}],
		"properties":{"spec":{"allOf":[{"$ref":"#/components/schemas/Spec"}]}}},
	"Spec":{"type":"object","properties":{
		"replicas":{"type":"integer"},
		"args":{"type":"array","items":{"type":"string"}},
		"newIn2030":{"type":"array","x-kubernetes-patch-merge-key":"id","x-kubernetes-patch-strategy":"merge",
			"items":{"allOf":[{"$ref":"#/components/schemas/Item"}]}}}},
	"Item":{"type":"object",
		"properties":{"id":{"type":"string"},"value":{"type":"integer"},"more":{"type":"integer"}}}}}}`

func decode(t *testing.T, text string) map[string]any {
	t.Helper()
	var out map[string]any
	if err := utiljson.Unmarshal([]byte(text), &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// server is an API server with the document, or none if it is away.
type server struct {
	away  bool
	reads int
}

// merge merges by the server's schema of Deployments.
func (s *server) merge(t *testing.T) gridchild.Merge {
	t.Helper()
	schemas := &Schemas{read: func() (*spec3.OpenAPI, error) {
		s.reads++
		if s.away {
			return nil, errors.New("the API server is away")
		}
		of := &spec3.OpenAPI{}
		return of, json.Unmarshal([]byte(document), of)
	}}
	return schemas.Merge(appsv1.SchemeGroupVersion.WithKind("Deployment"))
}

func TestMerge(t *testing.T) {
	t.Parallel()
	s := &server{}
	merge := s.merge(t)
	for name, c := range map[string]struct{ spec, patch, want, refused string }{
		"a list with keys": {
			`{"newIn2030":[{"id":"a","value":1,"more":2},{"id":"b"}]}`, `{"newIn2030":[{"id":"a","value":3}]}`,
			`{"newIn2030":[{"id":"a","value":3,"more":2},{"id":"b"}]}`, "",
		},
		"an element is removed": {
			`{"newIn2030":[{"id":"a"},{"id":"b"}]}`, `{"newIn2030":[{"id":"a","$patch":"delete"}]}`,
			`{"newIn2030":[{"id":"b"}]}`, "",
		},
		"a list without keys": {`{"args":["a","b"]}`, `{"args":["c"]}`, `{"args":["c"]}`, ""},
		"a field is removed":  {`{"replicas":3,"args":["a"]}`, `{"replicas":null}`, `{"args":["a"]}`, ""},
		"fields of tomorrow": {
			`{"alsoNew":{"deep":[1]}}`, `{"replicas":2}`, `{"alsoNew":{"deep":[1]},"replicas":2}`, "",
		},
		"a key is missing": {
			`{"newIn2030":[{"id":"a"}]}`, `{"newIn2030":[{"value":3}]}`, "",
			"does not contain declared merge key: id",
		},
		"a field of no schema": {`{"odd":{"a":1}}`, `{"odd":{"b":1}}`, "", `unable to find api field "odd"`},
	} {
		got, err := merge(decode(t, c.spec), decode(t, c.patch))
		if c.refused != "" {
			told := gridchild.ErrorFrom(err)
			if told.Reason != v1.ReasonInvalidTemplate || !strings.Contains(told.Message, c.refused) {
				t.Errorf("%s: got %v", name, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if diff := cmp.Diff(decode(t, c.want), got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	if s.reads != 1 {
		t.Errorf("the schema was read %d times", s.reads)
	}
}

// TestSchemaIsAway: an API server that does not answer is not asked again for each of a thousand sites.
func TestSchemaIsAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, schemaIsAway)
}

func schemaIsAway(t *testing.T) {
	s := &server{away: true}
	merge := s.merge(t)
	for range 1000 {
		_, err := merge(map[string]any{}, map[string]any{})
		if told := gridchild.ErrorFrom(err); told.Reason != v1.ReasonSyncFailed ||
			!strings.Contains(told.Message, "the API server is away") {
			t.Fatalf("got %v", err)
		}
	}
	if s.reads != 1 {
		t.Errorf("the schema was asked for %d times", s.reads)
	}
	s.away = false
	time.Sleep(retryPause)
	if _, err := merge(map[string]any{}, map[string]any{}); err != nil {
		t.Errorf("got %v", err)
	}
	s.away = true
	time.Sleep(maxAge)
	for range 10 {
		if _, err := merge(map[string]any{}, map[string]any{}); err != nil {
			t.Fatalf("an old schema is better than none: got %v", err)
		}
	}
	if s.reads != 3 {
		t.Errorf("the schema was asked for %d times", s.reads)
	}
}
