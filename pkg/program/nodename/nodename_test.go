package nodename

import (
	"os"
	"slices"
	"strings"
	"testing"
)

func TestOf(t *testing.T) {
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	for override, want := range map[string]string{
		//nolint:gocritic // spaces are meant
		"edge-1": "edge-1", "EDGE-1": "edge-1", " Edge-1.Example.com\n": "edge-1.example.com",
		"": strings.ToLower(host),
	} {
		if got, err := Of(override); err != nil || got != want {
			t.Errorf("%q: got %q, %v, want %q", override, got, err, want)
		}
	}
	if got, err := Of("  "); err == nil {
		t.Errorf("spaces: got %q", got)
	}
}

func TestNear(t *testing.T) {
	nodes := []string{"edge-1", "edge-2", "edge-10", "edge-1.shop.example", "cloud-1", "x"}
	tests := []struct {
		name string
		want []string
	}{
		{"edge-1.example.com", []string{"edge-1"}},
		{"edge-1.shop", []string{"edge-1", "edge-1.shop.example"}},
		{"edge-2-old", []string{"edge-2"}},
		{"edge-3", nil},
		{"edge", []string{"edge-1", "edge-1.shop.example", "edge-10"}},
		{"warehouse", nil},
		{"xy", nil},
		{"", nil},
	}
	for _, test := range tests {
		if got := Near(test.name, nodes); !slices.Equal(got, test.want) {
			t.Errorf("%q: got %q, want %q", test.name, got, test.want)
		}
	}
}
