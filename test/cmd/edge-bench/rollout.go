package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/application-grid/application-grid/test/cluster"
)

// wavesGrid is what is rolled out: a pod in every site, the first ten sites one by one, then a quarter at a time.
const wavesGrid = `
apiVersion: superedge.io/v1
kind: DeploymentGrid
metadata: {name: bench}
spec:
  gridUniqKey: ` + siteLabel + `
  template:
    replicas: 1
    selector: {matchLabels: {app: x}}
    template:
      metadata: {labels: {app: x}}
      spec: {containers: [{name: c, image: "registry.example.com/team/service:v1"}]}
  rollout:
    waves:
    - {name: canary, sites: {names: ["site-0000*"]}, maxUnavailable: 1}
    - {name: rest, maxUnavailable: 25%}
`

// measureRollout changes a template of all sites in two waves. kube-controller-manager and kube-scheduler are real, and
// kwok plays the kubelets.
func measureRollout(ctx context.Context, o options) (err error) {
	c, err := cluster.Start(ctx, cluster.Options{
		Components: o.components, APIViewOnly: true, AuditLog: true, Progress: os.Stderr,
		// What a control plane of this size has: with the defaults it would write 20 times a second.
		ControllerManagerArgs: []string{"--kube-api-qps=500", "--kube-api-burst=1000"},
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Stop()) }()
	b, err := newGridBench(ctx, c, o)
	if err != nil {
		return err
	}
	defer b.controller.Kill()
	return b.run(ctx, "one DeploymentGrid, a pod in every site; kube-apiserver, kube-controller-manager, kube-scheduler, kwok and the controller on this machine",
		b.install, b.rollOut)
}

// install makes the nodes and the grid, and waits until there is a ready pod in every site.
func (b *gridBench) install(ctx context.Context) error {
	if err := b.createNodes(ctx, liveNode); err != nil {
		return err
	}
	grid := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(wavesGrid), &grid.Object); err != nil {
		return fmt.Errorf("reading the manifest of the grid: %w", err)
	}
	begin := time.Now()
	if _, err := b.grid("deploymentgrids").Create(ctx, grid, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("creating the grid: %w", err)
	}
	// A grid that is created gets no waves: its rollout is complete once all sites were ready.
	err := b.await(ctx, "ready everywhere", func(status map[string]any) bool {
		return status["readySites"] == int64(b.sites)
	})
	if err != nil {
		return err
	}
	b.add("grid created: a ready pod in every site after", "%.1f s", time.Since(begin).Seconds())
	return b.quiet(ctx)
}

// liveNode completes a node that kwok keeps alive.
func liveNode(node *corev1.Node, i int) {
	now := metav1.Now()
	resources := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("8"), corev1.ResourceMemory: resource.MustParse("16Gi"),
		corev1.ResourcePods: resource.MustParse("110"),
	}
	node.Annotations = map[string]string{cluster.KwokAnnotation: "fake"}
	node.Status.Phase, node.Status.Capacity, node.Status.Allocatable = corev1.NodeRunning, resources, resources
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue,
		LastHeartbeatTime: now, LastTransitionTime: now}}
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP,
		Address: fmt.Sprintf("10.1.%d.%d", i/250, 1+i%250)}}
}

// rollOut changes the image, and counts what the controller writes until every site has it.
func (b *gridBench) rollOut(ctx context.Context) error {
	mark, err := b.cluster.AuditMark()
	if err != nil {
		return err
	}
	begin := time.Now()
	changed, err := b.grid("deploymentgrids").Patch(ctx, "bench", types.JSONPatchType,
		[]byte(`[{"op":"replace","path":"/spec/template/template/spec/containers/0/image","value":"registry.example.com/team/service:v2"}]`), metav1.PatchOptions{})
	if err != nil {
		return fmt.Errorf("changing the grid: %w", err)
	}
	err = b.await(ctx, "rolled out", func(status map[string]any) bool {
		phase, _, _ := unstructured.NestedString(status, "rollout", "phase")
		return phase == "Complete" && status["observedGeneration"] == changed.GetGeneration()
	})
	if err != nil {
		return err
	}
	b.add("image changed, in two waves (10 sites one by one, then a quarter at a time): complete after", "%.1f s",
		time.Since(begin).Seconds())
	if err := b.countCalls(ctx, mark); err != nil {
		return err
	}
	writes, err := b.deploymentWrites(mark)
	if err != nil {
		return err
	}
	if writes != b.sites {
		b.wrong = append(b.wrong, fmt.Errorf("a rollout wrote %d times to %d Deployments", writes, b.sites))
	}
	if err := b.statusSize(ctx); err != nil {
		return err
	}
	if mark, err = b.cluster.AuditMark(); err != nil {
		return err
	}
	if err := pause(ctx, time.Minute); err != nil {
		return err
	}
	if err := b.expectNoWrites(mark, "writes in the minute after"); err != nil {
		return err
	}
	return b.memory("resident memory in the end")
}

// await waits until the grid's status is so. state says in an error what it is not.
func (b *gridBench) await(ctx context.Context, state string, is func(status map[string]any) bool) error {
	return b.until(ctx, 100*time.Millisecond, func(ctx context.Context) error {
		grid, err := b.grid("deploymentgrids").Get(ctx, "bench", metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("reading the grid: %w", err)
		}
		status, _, err := unstructured.NestedMap(grid.Object, "status")
		if err != nil {
			return fmt.Errorf("reading the grid's status: %w", err)
		}
		if !is(status) {
			return fmt.Errorf("the grid is not %s: %d sites are ready, and the rollout is %v", state,
				status["readySites"], status["rollout"])
		}
		return nil
	})
}
