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
)

// gridsManifest are the demo's grids, with SITE-LABEL for the label key.
//
//go:embed grids.yaml
var gridsManifest string

// workloadGrids are the demo's grids that have a workload per site.
var workloadGrids = []struct{ resource, name string }{{"deploymentgrids", "echo"}, {"statefulsetgrids", "db"}}

// kubectl runs the kubectl of the components binary and prints its output, indented.
func (d *demo) kubectl(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, program("components"), append([]string{"kubectl"}, args...)...) //nolint:gosec // a binary of our own
	cmd.Env = append(os.Environ(), "KUBECONFIG="+d.cluster.Kubeconfig())
	output, err := cmd.CombinedOutput()
	for line := range strings.Lines(string(output)) {
		fmt.Println(strings.TrimRight("   "+line, " \n"))
	}
	if err != nil {
		return fmt.Errorf("kubectl %s: %w", strings.Join(args, " "), err)
	}
	return nil
}

// applyGrids writes the grids to a file, and applies it as a user would.
func (d *demo) applyGrids(ctx context.Context) error {
	file := filepath.Join(d.cluster.Dir(), "grids.yaml")
	if err := os.WriteFile(file, []byte(strings.ReplaceAll(gridsManifest, "SITE-LABEL", siteLabel)),
		0o600); err != nil {
		return fmt.Errorf("writing the grids: %w", err)
	}
	return d.kubectl(ctx, "apply", "-f", file)
}

// gridsReady waits until every site of the workload grids is ready, and there are this many. After the deadline
// the error wraps errWrong.
func (d *demo) gridsReady(ctx context.Context, sites int64) error {
	client, err := dynamic.NewForConfig(d.cluster.RESTConfig())
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
