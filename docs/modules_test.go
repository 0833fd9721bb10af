package docs

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/application-grid/application-grid/docs/docstest"
)

// TestTheClusterIsBuiltOfTheSameModules: the embedded cluster shares most of its packages with the product. With
// another version of one of the modules below them, such as golang.org/x/sys, nearly all of them would be compiled
// twice.
func TestTheClusterIsBuiltOfTheSameModules(t *testing.T) {
	cluster, shared := moduleVersions(t, "test"), 0
	for path, version := range moduleVersions(t, ".") {
		switch other := cluster[path]; other {
		case "":
		case version:
			shared++
		default:
			t.Errorf("%s is %s in go.mod and %s in test/go.mod: make them equal", path, version, other)
		}
	}
	if shared < 50 {
		t.Errorf("only %d modules are required by both", shared)
	}
}

// moduleVersions returns the version of each module that the go.mod of a directory of the repository requires, or by
// which it replaces it.
func moduleVersions(t *testing.T, directory string) map[string]string {
	t.Helper()
	command := exec.CommandContext(t.Context(), "go", "mod", "edit", "-json")
	command.Dir = filepath.Join(docstest.Root(t), directory)
	output, err := command.Output()
	if err != nil {
		t.Fatal(err)
	}
	type module struct{ Path, Version string }
	var file struct {
		Require []module
		Replace []struct{ Old, New module }
	}
	if err := json.Unmarshal(output, &file); err != nil {
		t.Fatal(err)
	}
	versions := map[string]string{}
	for _, required := range file.Require {
		versions[required.Path] = required.Version
	}
	for _, replaced := range file.Replace {
		versions[replaced.Old.Path] = replaced.New.Version
	}
	return versions
}
