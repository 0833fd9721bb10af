package grid

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// file writes manifests, in which KEY stands for the test's unit label, and returns the path.
func (f *fixture) file(manifests ...string) string {
	f.Helper()
	path := filepath.Join(f.TempDir(), "grids.yaml")
	f.Must(os.WriteFile(path, []byte(strings.NewReplacer("KEY", f.key, "\t",
		" ").Replace(strings.Join(manifests, "\n---\n"))), 0o600))
	return path
}

// TestPluginDiff: kubectl grid diff says what the API server would make of grids, and changes nothing.
func TestPluginDiff(t *testing.T) {
	f := newFixture(t)
	for _, unit := range []string{"east", "north", "west"} {
		f.node(unit)
	}
	diff := func(manifests ...string) string { return "grid diff -n " + f.namespace + " -f " + f.file(manifests...) }
	grid := func(template, more string) string {
		return `{apiVersion: superedge.io/v1, kind: DeploymentGrid, metadata: {name: demo}, spec: {gridUniqKey: KEY, ` +
			more + `
			template: {` + template + `, ` + selector + `, template: {metadata: {labels: {app: x}}, spec: {nodeSelector: {kubernetes.io/os: linux}, containers: [{name: c, image: i}]}}}}}`
	}
	const service = `{apiVersion: superedge.io/v1, kind: ServiceGrid, metadata: {name: demo}, spec: {gridUniqKey: KEY, template: {selector: {app: x}, ports: [{port: 80}]}}}`
	const configMap = `{apiVersion: v1, kind: ConfigMap, metadata: {name: demo}}`
	title := "# DeploymentGrid " + f.namespace + "/demo, template default, unit east\n"
	others := title + "# the same for 2 units: north, west\n"

	// Grids that are not there yet. What the API server fills in is in the answer, and nothing has been made.
	f.expectSaid(diff(grid("replicas: 2", ""), service, configMap), 1, others, "+kind: Deployment\n", "+ $KEY: east\n",
		"+ revisionHistoryLimit: 10\n",
		"# ServiceGrid "+f.namespace+"/demo\n", "+ topologyKeys: '[\"$KEY\"]'\n", "Not compared: 1 object")
	if got := f.names("Deployment") + f.names("Service") + f.names("DeploymentGrid"); got != "" {
		t.Fatalf("a question has made %s", got)
	}

	f.apply(grid("replicas: 2", ""))
	f.apply(service)
	f.expectReady("DeploymentGrid", "demo", 3)
	if s := f.expectSaid(diff(grid("replicas: 2", ""), service), 0); s.stdout != "" {
		t.Errorf("without a difference: %s", s.stdout)
	}
	before := f.get("Deployment", "demo-east")

	// A key that leaves a map which the schema takes as a whole is a difference, and so is what is added. A unit with a
	// template of its own is answered for apart, and a unit that is new to the cluster too.
	changed := strings.Replace(grid("replicas: 2, minReadySeconds: 1",
		`templates: {west: more}, templatePool: {more: {replicas: 3, `+selector+`, template: `+podTemplate+`}},`),
		"nodeSelector: {kubernetes.io/os: linux}, ", "", 1)
	f.node("south")
	f.expectReady("DeploymentGrid", "demo", 4)
	said := f.expectSaid(diff(changed, service), 1, "+ minReadySeconds: 1\n", "- kubernetes.io/os: linux\n",
		title+"# the same for 2 units: north, south\n",
		"# DeploymentGrid "+f.namespace+"/demo, template more, unit west\n", "- replicas: 2\n+ replicas: 3\n")
	if strings.Contains(said.stdout, "ServiceGrid") || strings.Contains(said.stdout, "managedFields") ||
		strings.Contains(said.stdout, "applied-digest") {
		t.Errorf("says more than it should: %s", said.stdout)
	}
	if now := f.get("Deployment", "demo-east"); now.GetGeneration() != before.GetGeneration() {
		t.Error("a question has changed the Deployment")
	}

	// Replicas that a template names no more stay.
	f.expectSaid(diff(grid("paused: false", "")), 0,
		"# the template does not set replicas any more, so each unit keeps the number it has: 2 here\n")

	// What is refused is told in the API server's words, and what is not is told beside it.
	f.expectSaid(diff(strings.Replace(changed, "replicas: 3", "replicas: -3", 1)), 3, "+ minReadySeconds: 1\n",
		"template more, unit west\n# REFUSED: Deployment.apps \"demo-west\" is invalid: spec.replicas: Invalid value: -3: must be greater than or equal to 0\n")
	f.expectSaid(diff(strings.Replace(changed, "minReadySeconds: 1", "minReadySecond: 1", 1)), 3,
		`template default, unit east`, "REFUSED: ", "minReadySecond: field not declared in schema")
	f.expectSaid(diff(grid("replicas: 2", "gridUniqeKey: x,")), 3, "# DeploymentGrid "+f.namespace+"/demo\n# REFUSED: ",
		`unknown field "spec.gridUniqeKey"`)
	f.expectSaid(diff(strings.Replace(service, "KEY", "no way", 1)), 3,
		"REFUSED: ServiceGrid.superedge.io \"demo\" is invalid")
	f.expectSaid(diff(grid("replicas: 2", ""))+" --as=jane", 2, `User "jane" cannot list resource "nodes"`)
	f.expectSaid(diff(configMap), 2, "there is no grid in ")
	f.expectSaid("grid diff", 2, "-f FILE")
	f.expectSaid("__complete grid di", 0, "diff Show what applying grids would change")

	// It says what the controller then does.
	f.apply(changed)
	f.Eventually("it is applied", func() error {
		if s := f.kubectl(strings.Fields(diff(changed, service))...); s.code != 0 {
			return errors.New(s.stdout + s.stderr)
		}
		return nil
	})
	if selector, _, _ := unstructured.NestedStringMap(f.get("Deployment", "demo-east").Object, "spec", "template",
		"spec", "nodeSelector"); len(selector) != 1 {
		t.Errorf("the nodeSelector is %v", selector)
	}

	// A name that somebody else's object has.
	f.node("taken")
	f.expectReady("DeploymentGrid", "demo", 5)
	f.expectSaid(diff(strings.Replace(grid("replicas: 1", ""), "name: demo", "name: other", 1)), 1,
		"other, template default, unit east\n# the same for 4 units: north, south, taken, west\n")
	deployment := f.get("Deployment", "demo-taken")
	deployment.Object = map[string]any{"apiVersion": "apps/v1", "kind": "Deployment",
		"metadata": map[string]any{"name": "other-taken"}, "spec": deployment.Object["spec"]}
	_, err := f.of("Deployment").Create(f.ctx, deployment, metav1.CreateOptions{})
	f.Must(err)
	f.expectSaid(diff(strings.Replace(grid("replicas: 1", ""), "name: demo", "name: other", 1)), 3,
		"REFUSED: Deployment other-taken exists already and was not made by this grid")
}
