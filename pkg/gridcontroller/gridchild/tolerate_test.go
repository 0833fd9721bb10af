package gridchild

import (
	"encoding/json"
	"strings"
	"testing"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
)

// TestTolerateUnreachable: the tolerations are added after those of the template and of overrides, and what these say
// of the same taints stays.
func TestTolerateUnreachable(t *testing.T) {
	const (
		unreachable = `{"effect":"NoExecute","key":"node.kubernetes.io/unreachable","operator":"Exists"}`
		notReady    = `{"effect":"NoExecute","key":"node.kubernetes.io/not-ready","operator":"Exists"}`
		ownTime     = `{"effect":"NoExecute","key":"node.kubernetes.io/unreachable","operator":"Exists",` +
			`"tolerationSeconds":60}`
		anyEffect  = `{"key":"node.kubernetes.io/not-ready","operator":"Exists"}`
		noSchedule = `{"effect":"NoSchedule","key":"node.kubernetes.io/not-ready","operator":"Exists"}`
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
		template, err := NewTemplates("", spec, Cluster{}).Of("east")
		if err != nil {
			t.Fatal(err)
		}
		want := "[" + strings.Join(test.want, ",") + "]"
		if got := jsonOf(t, podOf(t, template)["tolerations"]); got != want {
			t.Errorf("%s: got %s, want %s", name, got, want)
		}
	}
	for _, template := range []string{`{}`, `{"template":{"spec":{"tolerations":null}}}`} {
		spec := &v1.WorkloadGridSpec{TolerateUnreachable: true, Template: raw(template)}
		got, err := NewTemplates("", spec, Cluster{}).Of("east")
		if err != nil || !strings.Contains(jsonOf(t, got), "node.kubernetes.io/not-ready") {
			t.Errorf("%s: %v, %v", template, got, err)
		}
	}
	spec := &v1.WorkloadGridSpec{
		TolerateUnreachable: true, Template: raw(`{"template":{"spec":{"tolerations":{"key":"edge"}}}}`),
	}
	if got, err := NewTemplates("", spec, Cluster{}).Of("east"); err == nil {
		t.Errorf("tolerations that are no list: %v", got)
	}
}

// jsonOf writes a part of a template as JSON.
func jsonOf(t *testing.T, part any) string {
	t.Helper()
	data, err := json.Marshal(part)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// podOf is the spec of a template's pods.
func podOf(t *testing.T, template map[string]any) map[string]any {
	t.Helper()
	pod, err := object(template, "template", "spec")
	if err != nil {
		t.Fatal(err)
	}
	return pod
}

// imageOf is the image of a template's first container, which is changed then.
func imageOf(t *testing.T, template map[string]any) any {
	t.Helper()
	container := podOf(t, template)["containers"].([]any)[0].(map[string]any)
	image := container["image"]
	container["image"] = "changed by a caller"
	return image
}
