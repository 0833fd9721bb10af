package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/application-grid/application-grid/test/cluster"
)

// gridsManifest are the demo's grids, with SITE-LABEL for the label key.
//
//go:embed grids.yaml
var gridsManifest string

// workloadGrids are the demo's grids that have a workload per site.
var workloadGrids = []struct{ resource, name string }{{"deploymentgrids", "echo"}, {"statefulsetgrids", "db"}}

// kubectl runs the kubectl of the components binary and prints its output, indented.
func (o *options) kubectl(ctx context.Context, c *cluster.Cluster, args ...string) error {
	cmd := exec.CommandContext(ctx, o.components, append([]string{"kubectl"}, args...)...) //nolint:gosec // a binary of our own
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.Kubeconfig())
	output, err := cmd.CombinedOutput()
	for line := range strings.Lines(string(output)) {
		fmt.Println(strings.TrimRight("   "+line, " \n"))
	}
	if err != nil {
		return fmt.Errorf("kubectl %s: %w", strings.Join(args, " "), err)
	}
	return nil
}

// startController starts application-grid-controller, which installs the grids' CRDs.
func (o *options) startController(ctx context.Context, c *cluster.Cluster) error {
	controller, err := c.NewController(ctx, "demo", o.controller)
	if err != nil {
		return err
	}
	return controller.Start(ctx)
}

// applyGrids writes the grids to a file, and applies it as a user would.
func (o *options) applyGrids(ctx context.Context, c *cluster.Cluster) error {
	file := filepath.Join(c.Dir(), "grids.yaml")
	if err := os.WriteFile(file, []byte(strings.ReplaceAll(gridsManifest, "SITE-LABEL", siteLabel)),
		0o600); err != nil {
		return fmt.Errorf("writing the grids: %w", err)
	}
	return o.kubectl(ctx, c, "apply", "-f", file)
}

// gridsReady waits until every site of the workload grids is ready, and there are this many. After the deadline
// the error wraps errWrong.
func gridsReady(ctx context.Context, c *cluster.Cluster, sites int64) error {
	client, err := dynamic.NewForConfig(c.RESTConfig())
	if err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	deadline := time.Now().Add(demoDeadline)
	for _, grid := range workloadGrids {
		resource := schema.GroupVersionResource{Group: "superedge.io", Version: "v1", Resource: grid.resource}
		for {
			u, err := client.Resource(resource).Namespace(demoNamespace).Get(ctx, grid.name, metav1.GetOptions{})
			if err != nil {
				return fmt.Errorf("reading %s %s: %w", grid.resource, grid.name, err)
			}
			status, _, err := unstructured.NestedMap(u.Object, "status")
			if err != nil {
				return fmt.Errorf("reading the status of %s %s: %w", grid.resource, grid.name, err)
			}
			if status["sites"] == sites && status["readySites"] == sites {
				break
			}
			if time.Now().After(deadline) {
				return fmt.Errorf("%w: %s %s should have %d ready sites: %v", errWrong, grid.resource, grid.name, sites,
					status)
			}
			select {
			case <-ctx.Done():
				return errors.New("interrupted")
			case <-time.After(10 * lookInterval):
			}
		}
	}
	return nil
}
