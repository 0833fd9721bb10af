package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/licenseclassifier/v2/assets"
)

// must ends a test if there is an error.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// known returns the text of a licence, by its name and variant in the classifier.
func known(t *testing.T, name string) string {
	t.Helper()
	data, err := assets.ReadLicenseFile("License/" + name + ".txt")
	must(t, err)
	return string(data)
}

func TestJudge(t *testing.T) {
	classifier, err := assets.DefaultClassifier()
	must(t, err)
	own := strings.Repeat("The software may be used on Tuesdays by people of good character.\n", unrecognised+1)
	for _, test := range []struct {
		name, content string
		want, problem string
	}{
		{name: "allowed", content: known(t, "MIT/pristine"), want: "MIT"},
		{
			name:    "several, allowed",
			content: known(t, "Apache-2.0/pristine") + "\n\n" + known(t, "BSD-3-Clause/pristine"),
			want:    "Apache-2.0 BSD-3-Clause",
		},
		{name: "allowed for unmodified modules", content: known(t, "MPL-2.0/license"), want: "MPL-2.0"},
		{name: "copyleft", content: known(t, "GPL-3.0/license"), problem: "is under GPL-3.0"},
		{
			name:    "one of two is not allowed",
			content: known(t, "MIT/pristine") + "\n\n" + known(t, "AGPL-3.0/license"), problem: "is under AGPL-3.0",
		},
		{name: "unknown", content: own, problem: "no known licence"},
		{
			name: "unknown beside an allowed one", content: known(t, "MIT/pristine") + "\n\n" + own,
			problem: "of no known licence: read it",
		},
		{name: "empty", problem: "no known licence"},
	} {
		t.Run(test.name, func(t *testing.T) {
			names, err := judge([]*text{{content: strings.TrimSpace(test.content), of: []string{"example.org/a"}}},
				classifier)
			if got := strings.Join(names, " "); got != test.want && test.problem == "" {
				t.Errorf("got %q, want %q", got, test.want)
			}
			if test.problem == "" && err != nil ||
				test.problem != "" && (err == nil || !strings.Contains(err.Error(), test.problem)) {
				t.Errorf("got the error %v, want %q", err, test.problem)
			}
			if test.problem != "" && !strings.Contains(err.Error(), "example.org/a") {
				t.Errorf("it does not say whose licence: %v", err)
			}
		})
	}
}

// TestPerModule: what lies in a directory of a module counts for the module, and notices count for nothing.
func TestPerModule(t *testing.T) {
	classifier, err := assets.DefaultClassifier()
	must(t, err)
	texts := []*text{
		{
			content: strings.TrimSpace(known(t, "MIT/pristine")),
			of:      []string{"example.org/a/taken/over", "example.org/a/v2"},
		},
		{content: strings.TrimSpace(known(t, "Apache-2.0/pristine")), of: []string{"example.org/a"}},
		{content: strings.TrimSpace(known(t, "BSD-3-Clause/pristine")), of: []string{standardLibrary}},
		{content: "Copyright", notice: true, of: []string{"example.org/b"}},
	}
	got, err := perModule(texts, []string{"example.org/a", "example.org/a/v2", "example.org/b"}, classifier)
	must(t, err)
	const want = `{
  "example.org/a": [
    "Apache-2.0",
    "MIT"
  ],
  "example.org/a/v2": [
    "MIT"
  ],
  "std": [
    "BSD-3-Clause"
  ]
}
`
	if string(got) != want {
		t.Errorf("got %s", got)
	}
}

// TestSources: of what is under the Mozilla Public License the file says where the source is, and a module that is
// replaced may be changed, so it is not allowed.
func TestSources(t *testing.T) {
	classifier, err := assets.DefaultClassifier()
	must(t, err)
	for _, replaced := range []bool{false, true} {
		var p linkedPackage
		said := `{"ImportPath": "example.org/a/v2/b", "Module": {"Path": "example.org/a/v2", "Version": "v2.0.1"}}`
		if replaced {
			said = strings.Replace(said, `"v2.0.1"`, `"v2.0.1", "Replace": {"Path": "../a"}`, 1)
		}
		must(t, json.Unmarshal([]byte(said), &p))
		texts := []*text{
			{content: strings.TrimSpace(known(t, "MPL-2.0/license")), of: []string{"example.org/a/v2"}},
			{content: strings.TrimSpace(known(t, "MIT/pristine")), of: []string{"example.org/a/v2/taken"}},
		}
		err := findSources(texts, map[string]linkedPackage{p.ImportPath: p}, classifier)
		if replaced {
			if err == nil || !strings.Contains(err.Error(), "example.org/a/v2 is under MPL-2.0") {
				t.Errorf("got %v", err)
			}
			continue
		}
		file := string(render(texts))
		const want = "Unmodified. The source code is that of\nexample.org/a/v2 v2.0.1, which go mod download " +
			"fetches, and https://example.org/a\n"
		if err != nil || strings.Count(file, want) != 1 || strings.Count(file, "Unmodified") != 1 {
			t.Errorf("got %v, %s", err, file)
		}
	}
}
