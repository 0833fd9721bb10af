package skew

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/application-grid/application-grid/test/cluster"
	"github.com/application-grid/application-grid/test/suite"
)

// grids have a workload of two kinds, and a Service.
const grids = `
apiVersion: superedge.io/v1
kind: DeploymentGrid
metadata: {name: web, namespace: default}
spec:
  gridUniqKey: zone1
  template:
    replicas: 2
    selector: {matchLabels: {app: web}}
    template:
      metadata: {labels: {app: web}}
      spec: {containers: [{name: web, image: "registry.example.org/web:v1"}]}
---
apiVersion: superedge.io/v1
kind: StatefulSetGrid
metadata: {name: db, namespace: default}
spec:
  gridUniqKey: zone1
  template:
    replicas: 1
    serviceName: db-svc
    selector: {matchLabels: {app: db}}
    template:
      metadata: {labels: {app: db}}
      spec: {containers: [{name: db, image: "registry.example.org/db:v1"}]}
---
apiVersion: superedge.io/v1
kind: ServiceGrid
metadata: {name: web, namespace: default}
spec:
  gridUniqKey: zone1
  template: {selector: {app: web}, ports: [{port: 80}]}
`

// TestController takes the controller and its CRDs from the older release to today's and back. No rollout
// begins, and no
// pod is replaced.
func TestController(t *testing.T) {
	r := newReleases(t)
	c, err := cluster.Start(t.Context(), cluster.Options{
		Components: suite.Binary(t, "components"), Progress: os.Stdout, APIViewOnly: true,
		Nodes: []cluster.NodeSpec{{Name: "east1", Labels: map[string]string{siteLabel: "east"}},
			{Name: "west1", Labels: map[string]string{siteLabel: "west"}}},
	})
	suite.Must(t, err)
	t.Cleanup(func() { suite.Must(t, c.Stop()) })
	test := suite.NewTest(t, c, 2*time.Minute, 200*time.Millisecond)
	program, err := c.NewController(t.Context(), "skew", r.path(controller))
	test.Must(err)
	test.Must(program.Start(t.Context()))
	t.Cleanup(program.Kill)
	file := filepath.Join(t.TempDir(), "grids.yaml")
	test.Must(os.WriteFile(file, []byte(grids), 0o600))
	test.Eventually("the grids are applied", func() error {
		_, err := suite.Output(test.Kubectl(t.Context(), "apply", "-f", file))
		return err
	})
	ready := func(what string) {
		test.Eventually(what+": all pods are there, and ready", func() error {
			out, err := suite.Output(test.Kubectl(t.Context(), "wait", "grids", "--all", "--for=condition=Ready", "--timeout=1s"))
			if err != nil {
				said, _ := suite.Output(test.Kubectl(t.Context(), "get", "grids", "-o",
					`jsonpath={range .items[*]}{.kind}: {.status.conditions[?(@.type=="Ready")].message}{"\n"}{end}`))
				return fmt.Errorf("%w: %s\n%s", err, out, said)
			}
			return nil
		})
	}
	ready("older")
	running := func() map[string]string {
		return test.Identities(suite.Dynamic(t, c.RESTConfig()), metav1.NamespaceDefault)
	}
	before := running()
	// Two sites: 2 Deployments with 2 ReplicaSets and 4 pods, 2 StatefulSets with 2 revisions and 2 pods, a Service and
	// the API server's own.
	if len(before) < 2+2+4+2+2+2+2 {
		t.Fatalf("the grids have made %v only", slices.Sorted(maps.Keys(before)))
	}
	for _, release := range []string{today, older} {
		r.use(t, controller, release)
		test.Must(program.Restart(t.Context()))
		test.Eventually(release+": every grid is reconciled", func() error { return reconciled(&test, program) })
		ready(release)
		if after := running(); !maps.Equal(before, after) {
			t.Errorf("with the controller of %s this changed:\nbefore %v\nafter  %v", release, before, after)
		}
	}
}

// reconciled is nil if the controller that runs has reconciled grids of every kind that there is.
func reconciled(test *suite.Test, program *cluster.Controller) error {
	page, err := program.Metrics(test.Context())
	if err != nil {
		return err
	}
	for _, kind := range []string{"DeploymentGrid", "StatefulSetGrid", "ServiceGrid"} {
		done := false
		for line := range strings.Lines(page) {
			done = done || strings.HasPrefix(line, "controller_runtime_reconcile_total{") &&
				strings.Contains(line, `controller="`+kind+`"`) &&
				strings.Contains(line, `result="success"`) && !strings.HasSuffix(strings.TrimSpace(line), " 0")
		}
		if !done {
			return fmt.Errorf("no %s has been", kind)
		}
	}
	return nil
}
