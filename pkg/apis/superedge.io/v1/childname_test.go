package v1

import (
	"strings"
	"testing"
)

func TestChildName(t *testing.T) {
	long := strings.Repeat("u", 63)
	for _, test := range []struct {
		kind             GridKind
		grid, site, want string
	}{
		{DeploymentGridKind, "demo", "east", "demo-east"},
		{DeploymentGridKind, "demo", "v1.2", "demo-v1.2"},
		{DeploymentGridKind, "demo", "Zone_A", "demo-zone-a-c6c7339b"},
		{DeploymentGridKind, "my.demo", "Zone_A", "my.demo-zone-a-02af7e4e"},
		{DaemonSetGridKind, "demo", long, "demo-" + long},
		{StatefulSetGridKind, "demo", "v1.2", "demo-v1-2-228926db"},
		{StatefulSetGridKind, "my.demo", "east", "my-demo-east-756524a9"},
		{StatefulSetGridKind, "demo", strings.Repeat("u", 47), "demo-" + strings.Repeat("u", 47)},
		{StatefulSetGridKind, "demo", long, "demo-" + strings.Repeat("u", 38) + "-6d06f912"},
	} {
		got := test.kind.ChildName(test.grid, test.site)
		if got != test.want {
			t.Errorf("%s %s %s: got %s, want %s", test.kind.Kind, test.grid, test.site, got, test.want)
		}
		if why := test.kind.CheckName(got); why != "" {
			t.Errorf("%s: %s", got, why)
		}
	}
	seen := map[string]string{}
	for _, site := range []string{"a.b", "a_b", "A-b", "a-B", "a-b", long + "1", long + "2"} {
		name := StatefulSetGridKind.ChildName("demo", site)
		if other, ok := seen[name]; ok {
			t.Errorf("%s and %s have the name %s", site, other, name)
		}
		seen[name] = site
	}
}

func TestGridOf(t *testing.T) {
	long := strings.Repeat("abc-", 8)
	for _, test := range []struct {
		grid, site  string
		alternative bool
	}{
		{"demo", "east", false},
		{"demo-east", "east", false},
		{"east", "east", false},
		{"demo", "east-1", true},
		{"demo", "East_1", true},
		{"my-demo", "a.b", true},
		{"a.b", "east", true},
		{"a.b-c.d", "East", true},
		{"demo", strings.Repeat("x-", 20) + "1", true},
		{long + "d", "East", true},
	} {
		name := StatefulSetGridKind.ChildName(test.grid, test.site)
		if test.alternative {
			name = StatefulSetGridKind.AlternativeChildName(test.grid, test.site)
		}
		got, alternative := StatefulSetGridKind.GridOf(name, test.site)
		if got != test.grid || alternative != test.alternative {
			t.Errorf("%s in %s: %q, alternative %v; want %q, %v", name, test.site, got, alternative, test.grid,
				test.alternative)
		}
		if got, _ := StatefulSetGridKind.GridOf(name, test.site+"x"); got != "" {
			t.Errorf("%s in another site: %q", name, got)
		}
	}
	for _, name := range []string{
		"", "-", "east", "-east", "demo", "demo-", "x-01234567", strings.Repeat("a", 80) + "-east",
	} {
		if got, _ := StatefulSetGridKind.GridOf(name, "east"); got != "" {
			t.Errorf("%q: %q", name, got)
		}
	}
	if got, _ := StatefulSetGridKind.GridOf("demo-", ""); got != "" {
		t.Errorf("without a site: %q", got)
	}
}
