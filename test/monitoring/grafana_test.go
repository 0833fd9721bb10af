package monitoring

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestGrafanaSchema lets the TypeScript compiler check the dashboard against the types of Grafana's own package, which
// are generated from its schema: a field that Grafana does not know, or one of another type, is an error. `make
// test-monitoring` fetches both.
func TestGrafanaSchema(t *testing.T) {
	compiler, err := filepath.Abs("grafana/node_modules/.bin/tsc")
	must(t, err)
	if _, err := os.Stat(compiler); err != nil {
		t.Fatalf("%v: run `make test-monitoring`", err)
	}
	// The compiler has to complain of the second one, or its silence about the first would mean nothing.
	program := `import type { Dashboard } from "@grafana/schema";
export const shipped: Dashboard = ` + string(read(t, "dashboard.json")) + `;
// @ts-expect-error: a refresh is no number
export const wrong: Dashboard = { schemaVersion: 39, refresh: 30 };
// @ts-expect-error: nothing is called so
export const unknown: Dashboard = { schemaVersion: 39, nobodyKnowsThis: "" };
`
	file := filepath.Join("grafana", "dashboard.gen.ts") // where the compiler finds the package
	must(t, os.WriteFile(file, []byte(program), 0o600))
	defer os.Remove(file)
	out, err := exec.CommandContext(t.Context(), compiler, "--noEmit", "--strict", "--target", "es2022", "--module",
		"nodenext", "--moduleResolution", "nodenext", file).CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
