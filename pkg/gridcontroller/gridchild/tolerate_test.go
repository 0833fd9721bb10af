package gridchild

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
)

// TestTolerateUnreachable: the tolerations are added after those of the template and of overrides, and what these say
// of the same taints stays.
func TestTolerateUnreachable(t *testing.T) {
	const (
		unreachable = `{"key":"node.kubernetes.io/unreachable","operator":"Exists","effect":"NoExecute"}`
		notReady    = `{"key":"node.kubernetes.io/not-ready","operator":"Exists","effect":"NoExecute"}`
		ownTime     = `{"key":"node.kubernetes.io/unreachable","operator":"Exists","effect":"NoExecute",` +
			`"tolerationSeconds":60}`
		anyEffect  = `{"key":"node.kubernetes.io/not-ready","operator":"Exists"}`
		noSchedule = `{"key":"node.kubernetes.io/not-ready","operator":"Exists","effect":"NoSchedule"}`
		other      = `{"key":"edge","operator":"Exists"}`
	)
	for name, test := range map[string]struct {
		has, want []string
		off       bool
	}{
		"none": {nil, []string{unreachable, notReady}, false},
		"others": {
			[]string{other, noSchedule}, []string{other, noSchedule, unreachable, notReady}, false,
		},
		"one with its own time": {[]string{ownTime}, []string{ownTime, notReady}, false},
		"one of any effect":     {[]string{anyEffect}, []string{anyEffect, unreachable}, false},
		"both":                  {[]string{notReady, unreachable}, []string{notReady, unreachable}, false},
		"off":                   {[]string{other}, []string{other}, true},
	} {
		spec := &v1.WorkloadGridSpec{TolerateUnreachable: !test.off, Template: raw(
			`{"template":{"spec":{"tolerations":[` + strings.Join(test.has, ",") + `]}}}`)}
		template, err := NewTemplates(spec, Context{}).Of("east")
		if err != nil {
			t.Fatal(err)
		}
		var want []any
		if err := json.Unmarshal([]byte("["+strings.Join(test.want, ",")+"]"), &want); err != nil {
			t.Fatal(err)
		}
		pod, err := object(template, "template", "spec")
		if err != nil {
			t.Fatal(err)
		}
		got, err := json.Marshal(pod["tolerations"])
		if err != nil {
			t.Fatal(err)
		}
		var decoded []any
		if err := json.Unmarshal(got, &decoded); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, decoded); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	for _, template := range []string{`{}`, `{"template":{"spec":{"tolerations":null}}}`} {
		spec := &v1.WorkloadGridSpec{TolerateUnreachable: true, Template: raw(template)}
		got, err := NewTemplates(spec, Context{}).Of("east")
		if err != nil || !strings.Contains(jsonOf(t, got), "node.kubernetes.io/not-ready") {
			t.Errorf("%s: %v, %v", template, got, err)
		}
	}
	spec := &v1.WorkloadGridSpec{
		TolerateUnreachable: true, Template: raw(`{"template":{"spec":{"tolerations":{"key":"edge"}}}}`),
	}
	if got, err := NewTemplates(spec, Context{}).Of("east"); err == nil {
		t.Errorf("tolerations that are no list: %v", got)
	}
}

// jsonOf writes a template as JSON.
func jsonOf(t *testing.T, template map[string]any) string {
	t.Helper()
	data, err := json.Marshal(template)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
