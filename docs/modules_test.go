package docs

import (
	"regexp"
	"testing"

	"github.com/application-grid/application-grid/docs/docstest"
)

// required is a line of a go.mod that requires a module: its path and version.
var required = regexp.MustCompile(`(?m)^(?:require )?\s*([a-z][\w.-]*\.[\w./~-]+) (v[\w.+-]+)`)

// TestTheClusterIsBuiltOfTheSameModules: the embedded cluster shares most of its packages with the product. With another
// version of one of the modules below them, such as golang.org/x/sys, nearly all of them would be compiled twice.
func TestTheClusterIsBuiltOfTheSameModules(t *testing.T) {
	versions := func(file string) map[string]string {
		found := map[string]string{}
		for _, m := range required.FindAllStringSubmatch(docstest.Page(t, file), -1) {
			found[m[1]] = m[2]
		}
		return found
	}
	cluster, shared := versions("test/go.mod"), 0
	for module, version := range versions("go.mod") {
		switch other := cluster[module]; other {
		case "":
		case version:
			shared++
		default:
			t.Errorf("%s is %s in go.mod and %s in test/go.mod: run go get %s@%s where it is older", module, version,
				other, module, other)
		}
	}
	if shared < 50 {
		t.Errorf("only %d modules are required by both", shared)
	}
}
