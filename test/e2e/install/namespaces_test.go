package install

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/application-grid/application-grid/test/cluster"
	"github.com/application-grid/application-grid/test/suite"
)

// TestControllerOfSomeNamespaces: with --namespaces the controller needs its rights there only, besides that to nodes,
// and with --manage-crds=off none to CRDs. It works on no grids of other namespaces.
func TestControllerOfSomeNamespaces(t *testing.T) {
	t.Parallel()
	f := start(t, cluster.Options{APIViewOnly: true, AuditLog: true,
		Nodes: []cluster.NodeSpec{{Name: "a1", Labels: map[string]string{siteLabel: "site-a"}}}})
	f.kubectl("delete", "clusterrolebinding", "application-grid:controller", "application-grid:controller-crds")
	for _, namespace := range []string{"shop", "yard", "mall"} {
		f.kubectl("create", "namespace", namespace)
	}
	f.Must(f.apply(controllerBinding("shop", "yard")))
	controller, err := f.Cluster.NewController(f.ctx, "namespaced", suite.Binary(t, "application-grid-controller"),
		"--namespaces=shop,yard", "--manage-crds=off", "--site-removal-grace=1s")
	f.Must(err)
	starting := make(chan error, 1)
	go func() { starting <- controller.Start(f.ctx) }() // it waits for the CRDs
	t.Cleanup(controller.Kill)
	f.kubectl("apply", "-k", manifests+"/crds")
	f.Must(<-starting)

	for _, namespace := range []string{"mall", "shop", "yard"} {
		_, err := f.tryKubectl(`{apiVersion: superedge.io/v1, kind: DeploymentGrid, metadata: {name: web}, spec: {gridUniqKey: zone1, rollout: {}, template: `+
			podTemplate+`}}
---
{apiVersion: superedge.io/v1, kind: ServiceGrid, metadata: {name: web}, spec: {gridUniqKey: zone1, template: {selector: {app: x}, ports: [{port: 80}]}}}
`, "apply", "-n", namespace, "-f", "-")
		f.Must(err)
	}
	ready := func(namespace string) string {
		return f.kubectl("get", "deploymentgrid/web", "-n", namespace, "-o", "jsonpath={.status.readySites}")
	}
	for _, namespace := range []string{"shop", "yard"} {
		f.Eventually("the grid of "+namespace+" is ready", func() error {
			if got := ready(namespace); got != "1" {
				return fmt.Errorf("%q sites are: %s", got, f.kubectl("get", "deploymentgrid/web", "-n", namespace, "-o",
					"jsonpath={.status}")+f.kubectl("get", "pods", "-n", namespace, "-o", "jsonpath={.items[*].status}"))
			}
			return nil
		})
	}
	if got := ready("mall"); got != "" {
		t.Errorf("the grid of mall has %s sites", got)
	}
	if got := f.kubectl("get", "deployments,services,controllerrevisions", "-n", "mall", "-o", "name"); got != "" {
		t.Errorf("mall has %s", got)
	}
	f.Must(f.Cluster.RelabelNode(f.ctx, "a1", siteLabel, ""))
	f.Eventually("the site's workload is removed",
		suite.Is("", func() string { return f.kubectl("get", "deployments", "-n", "shop", "-o", "name") }))
	requests, err := f.Cluster.Audited(0, func(r cluster.Request) bool {
		return r.User.Username == string(cluster.RoleController)
	})
	f.Must(err)
	if len(requests) < 10 {
		t.Errorf("only %d requests are the controller's", len(requests))
	}
	for _, r := range requests {
		if r.ResponseStatus.Code == http.StatusForbidden {
			t.Errorf("refused: %s", r)
		}
	}
}
