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

// file writes manifests, in which KEY stands for the test's site label, and returns the path.
func (f *fixture) file(manifests ...string) string {
	f.Helper()
	path := filepath.Join(f.TempDir(), "grids.yaml")
	f.Must(os.WriteFile(path, []byte(strings.NewReplacer("KEY", f.key, "\t",
		" ").Replace(strings.Join(manifests, "\n---\n"))), 0o600))
	return path
}

// diff is the command that asks what these manifests would change.
func (f *fixture) diff(manifests ...string) string {
	f.Helper()
	return "grid diff -n " + f.namespace + " -f " + f.file(manifests...)
}

// diffGrid is a DeploymentGrid demo with these fields in its template, and these in its spec.
func diffGrid(template, more string) string {
	return `{apiVersion: superedge.io/v1, kind: DeploymentGrid, metadata: {name: demo}, spec: {gridUniqKey: KEY, ` + more + `
		template: {` + template + `, ` + selector + `, template: {metadata: {labels: {app: x}}, spec: {nodeSelector: {kubernetes.io/os: linux}, containers: [{name: c, image: i}]}}}}}`
}

const (
	diffService   = `{apiVersion: superedge.io/v1, kind: ServiceGrid, metadata: {name: demo}, spec: {gridUniqKey: KEY, template: {selector: {app: x}, ports: [{port: 80}]}}}`
	diffConfigMap = `{apiVersion: v1, kind: ConfigMap, metadata: {name: demo}}`
)

// TestPluginDiff: kubectl grid diff says what the API server would make of grids, and changes nothing.
func TestPluginDiff(t *testing.T) {
	t.Parallel()
	f := newFixture(t, alone)
	f.nodesIn("east", "north", "west")
	title := "# DeploymentGrid " + f.namespace + "/demo, template default, 3 sites: east, north, "

	// Grids that are not there yet. What the API server fills in is in the answer, and nothing has been made.
	f.expectSaid(f.diff(diffGrid("replicas: 2", ""), diffService, diffConfigMap), 1, title+"west\n", "+kind: Deployment\n", "+ $KEY: east\n",
		"+ revisionHistoryLimit: 10\n",
		"# ServiceGrid "+f.namespace+"/demo\n", "+ topologyKeys: '[\"$KEY\"]'\n", "Not compared: 1 object")
	if got := f.names("Deployment") + f.names("Service") + f.names("DeploymentGrid"); got != "" {
		t.Fatalf("a question has made %s", got)
	}
	f.apply(diffGrid("replicas: 2", ""))
	f.apply(diffService)
	f.expectReady("DeploymentGrid", "demo", 3)
	if s := f.expectSaid(f.diff(diffGrid("replicas: 2", ""), diffService), 0); s.stdout != "" {
		t.Errorf("without a difference: %s", s.stdout)
	}
	before := f.get("Deployment", "demo-east")

	// A key that leaves a map which the schema takes as a whole is a difference, and so is what is added. A site with a
	// template of its own is answered for apart, and a site that is new to the cluster too.
	changed := strings.Replace(diffGrid("replicas: 2, minReadySeconds: 1",
		`templates: {west: more}, templatePool: {more: {replicas: 3, `+selector+`, template: `+podTemplate+`}},`),
		"nodeSelector: {kubernetes.io/os: linux}, ", "", 1)
	f.node("south")
	f.expectReady("DeploymentGrid", "demo", 4)
	said := f.expectSaid(f.diff(changed, diffService), 1, "+ minReadySeconds: 1\n", "- kubernetes.io/os: linux\n",
		title+"south\n", "# DeploymentGrid "+f.namespace+"/demo, template more, 1 site: west\n", "- replicas: 2\n+ replicas: 3\n")
	if strings.Contains(said.stdout, "ServiceGrid") || strings.Contains(said.stdout, "managedFields") ||
		strings.Contains(said.stdout, "applied-digest") {
		t.Errorf("says more than it should: %s", said.stdout)
	}
	if now := f.get("Deployment", "demo-east"); now.GetGeneration() != before.GetGeneration() {
		t.Error("a question has changed the Deployment")
	}

	// Replicas that a template names no more stay.
	f.expectSaid(f.diff(diffGrid("paused: false", "")), 0,
		"# the template no longer sets replicas, so each site keeps the number it has\n")

	f.expectRefusedDiffs(changed)

	// It says what the controller then does.
	f.apply(changed)
	f.Eventually("it is applied", func() error {
		if s := f.kubectl(strings.Fields(f.diff(changed, diffService))...); s.code != 0 {
			return errors.New(s.stdout + s.stderr)
		}
		return nil
	})
	if selector, _, _ := unstructured.NestedStringMap(f.get("Deployment", "demo-east").Object, "spec", "template",
		"spec", "nodeSelector"); len(selector) != 1 {
		t.Errorf("the nodeSelector is %v", selector)
	}

	f.expectTakenName()
}

// expectRefusedDiffs asks what would change by manifests that the API server refuses: this one with mistakes, and
// others. What it refuses is told in its words, and what it takes is told beside it.
func (f *fixture) expectRefusedDiffs(changed string) {
	f.Helper()
	title := "# DeploymentGrid " + f.namespace + "/demo"
	f.expectSaid(f.diff(strings.Replace(changed, "replicas: 3", "replicas: -3", 1)), 3, "+ minReadySeconds: 1\n",
		"template more, 1 site: west\n# REFUSED: Deployment.apps \"demo-west\" is invalid: spec.replicas: Invalid value: -3: must be greater than or equal to 0\n")
	f.expectSaid(f.diff(strings.Replace(changed, "minReadySeconds: 1", "minReadySecond: 1", 1)), 3,
		`template default, 3 sites: east, north, south`, "REFUSED: ", "minReadySecond: field not declared in schema")
	f.expectSaid(f.diff(diffGrid("replicas: 2", "gridUniqeKey: x,")), 3, title+"\n# REFUSED: ",
		`unknown field "spec.gridUniqeKey"`)
	f.expectSaid(f.diff(strings.Replace(diffService, "KEY", "no way", 1)), 3,
		"REFUSED: ServiceGrid.superedge.io \"demo\" is invalid")
	f.expectSaid(f.diff(diffGrid("replicas: 2", ""))+" --as=jane", 2, `User "jane" cannot list resource "nodes"`)
	f.expectSaid(f.diff(diffConfigMap), 2, "found no grid in ")
	f.expectSaid("grid diff", 2, "-f FILE")
	f.expectSaid("__complete grid di", 0, "diff Show what applying grids would change")
}

// expectTakenName asks what would change by a grid of which one site's name belongs to somebody else's object.
func (f *fixture) expectTakenName() {
	f.Helper()
	f.node("taken")
	f.expectReady("DeploymentGrid", "demo", 5)
	f.expectSaid(f.diff(strings.Replace(diffGrid("replicas: 1", ""), "name: demo", "name: other", 1)), 1,
		"other, template default, 5 sites: east, north, south, taken, west\n")
	deployment := f.get("Deployment", "demo-taken")
	deployment.Object = map[string]any{"apiVersion": "apps/v1", "kind": "Deployment",
		"metadata": map[string]any{"name": "other-taken"}, "spec": deployment.Object["spec"]}
	_, err := f.of("Deployment").Create(f.ctx, deployment, metav1.CreateOptions{})
	f.Must(err)
	f.expectSaid(f.diff(strings.Replace(diffGrid("replicas: 1", ""), "name: demo", "name: other", 1)), 3,
		"REFUSED: Deployment other-taken exists already and was not made by this grid")
}
