package main

import (
	"strings"
	"testing"
)

func TestCheckVersion(t *testing.T) {
	for version, want := range map[string]string{
		"v1.2.3": "", "v0.1.0-rc.1": "",
		"": "make release VERSION=v1.2.3", "1.2.3": "does not begin with v", "v1.2": "v1.2.0 would be",
		"v1":      "v1.0.0 would be",
		"v01.2.3": "no semantic version", "latest": "does not begin with v", "vlatest": "no semantic version",
		"v1.2.3+linux": "no tag of an image", "v1.2.3-5-gabc1234-dirty": "", "v1.2.3; true": "no semantic version",
	} {
		err := checkVersion(version)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: got %v, want something of %q", version, err, want)
		}
	}
}
