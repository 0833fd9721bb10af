package v1

import (
	"strings"
	"testing"
)

func TestChildName(t *testing.T) {
	long := strings.Repeat("u", 63)
	for _, test := range []struct {
		kind             GridKind
		grid, unit, want string
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
		got := test.kind.ChildName(test.grid, test.unit)
		if got != test.want {
			t.Errorf("%s %s %s: got %s, want %s", test.kind.Kind, test.grid, test.unit, got, test.want)
		}
		if why := test.kind.CheckName(got); why != "" {
			t.Errorf("%s: %s", got, why)
		}
	}
	seen := map[string]string{}
	for _, unit := range []string{"a.b", "a_b", "A-b", "a-B", "a-b", long + "1", long + "2"} {
		name := StatefulSetGridKind.ChildName("demo", unit)
		if other, ok := seen[name]; ok {
			t.Errorf("%s and %s have the name %s", unit, other, name)
		}
		seen[name] = unit
	}
}

func TestGridOf(t *testing.T) {
	long := strings.Repeat("abc-", 8)
	for _, test := range []struct {
		grid, unit  string
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
		name := StatefulSetGridKind.ChildName(test.grid, test.unit)
		if test.alternative {
			name = StatefulSetGridKind.AlternativeChildName(test.grid, test.unit)
		}
		got, alternative := StatefulSetGridKind.GridOf(name, test.unit)
		if got != test.grid || alternative != test.alternative {
			t.Errorf("%s in %s: %q, alternative %v; want %q, %v", name, test.unit, got, alternative, test.grid,
				test.alternative)
		}
		if got, _ := StatefulSetGridKind.GridOf(name, test.unit+"x"); got != "" {
			t.Errorf("%s in another unit: %q", name, got)
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
		t.Errorf("without a unit: %q", got)
	}
}
